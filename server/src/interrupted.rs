//! Changes that the server's earlier life may have made, in part too, and that can be repeated.
//!
//! Each is repeated when its client sends it again. Until then nothing else changes its objects:
//! others would see it happen twice. Once somebody has gone past it all the same it is lost: its
//! client has not come back in time, or something couldn't wait.

use crate::sync::lock;
use leasefs_lease::planted::{self, Bug};
use leasefs_lease::server::Touch;
use leasefs_protocol::{Handle, Seq, SessionId};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A change of a session.
pub type ChangeId = (SessionId, Seq);

/// The interrupted changes of all sessions.
#[derive(Debug)]
pub struct Interrupted {
    changes: Mutex<HashMap<ChangeId, Pending>>,
    /// How many there are, to be looked at without the lock.
    left: AtomicUsize,
    settled: Notify,
    until: Instant,
}

#[derive(Debug)]
struct Pending {
    objects: Vec<Handle>,
    overtaken: bool,
}

impl Interrupted {
    /// Others wait for these for so long.
    pub fn new(changes: Vec<(ChangeId, Vec<Handle>)>, patience: Duration) -> Self {
        let pending = |(change, objects)| {
            let overtaken = false;
            (change, Pending { objects, overtaken })
        };
        Self {
            left: AtomicUsize::new(changes.len()),
            changes: Mutex::new(changes.into_iter().map(pending).collect()),
            settled: Notify::new(),
            until: Instant::now() + patience,
        }
    }

    /// Waits until no interrupted change of these objects is left but `own`.
    ///
    /// Returns those that the patience was too short for: they must never be repeated.
    #[must_use = "that they are lost must be journalled"]
    pub async fn let_pass(&self, own: ChangeId, touches: &[Touch]) -> Vec<ChangeId> {
        while self.left.load(Ordering::Acquire) > 0 {
            let settled = self.settled.notified();
            if !self.is_before(own, touches) {
                break;
            }
            if tokio::time::timeout_at(self.until, settled).await.is_err() {
                return self.overtake(own, touches);
            }
        }
        Vec::new()
    }

    /// Whether an interrupted change of these objects is left but `own` that nobody has gone past.
    pub fn is_before(&self, own: ChangeId, touches: &[Touch]) -> bool {
        let changes = lock(&self.changes);
        let mut others = changes.iter().filter(|(change, _)| **change != own);
        others.any(|(_, pending)| !pending.overtaken && pending.meets(touches))
            && !planted::is(Bug::PassInterrupted)
    }

    /// Goes past the interrupted changes of these objects.
    ///
    /// Returns those that nobody had gone past before.
    #[must_use = "that they are lost must be journalled"]
    pub fn overtake(&self, own: ChangeId, touches: &[Touch]) -> Vec<ChangeId> {
        if self.left.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.lose(|change, pending| change != own && pending.meets(touches))
    }

    /// These sessions have not come back in time.
    #[must_use = "that they are lost must be journalled"]
    pub fn give_up(&self, is_away: impl Fn(SessionId) -> bool) -> Vec<ChangeId> {
        self.lose(|(session, _), _| is_away(session))
    }

    fn lose(&self, which: impl Fn(ChangeId, &Pending) -> bool) -> Vec<ChangeId> {
        let mut changes = lock(&self.changes);
        let lost = changes
            .iter_mut()
            .filter(|(change, pending)| !pending.overtaken && which(**change, pending));
        let overtaken = lost.map(|(change, pending)| {
            pending.overtaken = true;
            *change
        });
        let overtaken = overtaken.collect();
        self.settled.notify_waiters();
        overtaken
    }

    /// Whether another change has gone past this one.
    pub fn is_overtaken(&self, change: ChangeId) -> bool {
        self.left.load(Ordering::Acquire) > 0
            && lock(&self.changes)
                .get(&change)
                .is_some_and(|pending| pending.overtaken)
    }

    /// Whether the change is one of them, and not done.
    pub fn has(&self, change: ChangeId) -> bool {
        self.left.load(Ordering::Acquire) > 0 && lock(&self.changes).contains_key(&change)
    }

    /// The change is done, or never will be.
    pub fn settle(&self, change: ChangeId) {
        self.remove(|found| found == change);
    }

    /// The session is over.
    pub fn end_session(&self, session: SessionId) {
        self.remove(|(of, _)| of == session);
    }

    fn remove(&self, gone: impl Fn(ChangeId) -> bool) {
        if self.left.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut changes = lock(&self.changes);
        changes.retain(|change, _| !gone(*change));
        self.left.store(changes.len(), Ordering::Release);
        drop(changes);
        self.settled.notify_waiters();
    }
}

impl Pending {
    fn meets(&self, touches: &[Touch]) -> bool {
        touches.iter().any(|t| self.objects.contains(&t.object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::Parts;
    use std::pin::pin;

    const A: ChangeId = (SessionId([1; 16]), Seq(1));
    const B: ChangeId = (SessionId([2; 16]), Seq(1));
    const LONG: Duration = Duration::from_secs(3600);

    fn touch(byte: u8) -> [Touch; 1] {
        [Touch {
            object: handle(byte),
            parts: Parts::DATA,
            names: Vec::new(),
        }]
    }

    fn handle(byte: u8) -> Handle {
        Handle::new(&[byte; 30]).expect("fits")
    }

    fn interrupted(patience: Duration) -> Interrupted {
        Interrupted::new(vec![(A, vec![handle(1)])], patience)
    }

    #[tokio::test]
    async fn others_wait_for_an_interrupted_change_of_their_objects_and_it_does_not_for_itself() {
        let interrupted = interrupted(LONG);
        assert!(interrupted.let_pass(A, &touch(1)).await.is_empty());
        assert!(interrupted.let_pass(B, &touch(2)).await.is_empty());
        let touches = touch(1);
        let mut waits = pin!(interrupted.let_pass(B, &touches));
        let at_once = tokio::time::timeout(Duration::ZERO, &mut waits).await;
        assert!(at_once.is_err(), "it waits");
        interrupted.settle(A);
        assert!(waits.await.is_empty());
        assert!(!interrupted.is_overtaken(A));
    }

    #[tokio::test]
    async fn once_the_patience_is_over_it_is_overtaken_once_and_for_all() {
        let interrupted = interrupted(Duration::ZERO);
        assert_eq!(interrupted.let_pass(B, &touch(1)).await, [A]);
        assert!(interrupted.is_overtaken(A));
        assert!(interrupted.let_pass(B, &touch(1)).await.is_empty());
    }

    #[tokio::test]
    async fn a_change_of_a_session_that_is_away_is_overtaken_before_the_patience_is_over() {
        let interrupted = interrupted(LONG);
        assert!(interrupted.give_up(|session| session == B.0).is_empty());
        assert_eq!(interrupted.give_up(|session| session == A.0), [A]);
        assert!(interrupted.let_pass(B, &touch(1)).await.is_empty());
        assert!(interrupted.is_overtaken(A));
    }

    #[tokio::test]
    async fn nobody_waits_for_a_session_that_is_over() {
        let interrupted = interrupted(LONG);
        interrupted.end_session(A.0);
        assert!(interrupted.let_pass(B, &touch(1)).await.is_empty());
    }
}
