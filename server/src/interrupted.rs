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
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A change of a session.
pub type ChangeId = (SessionId, Seq);

/// The interrupted changes of all sessions.
pub struct Interrupted {
    changes: Mutex<HashMap<ChangeId, Pending>>,
    /// Journals that one is lost. It is on record before anybody goes past it: after a further crash it would be repeated over what
    /// they have done.
    lost: Box<dyn Fn(ChangeId) + Send + Sync>,
    /// How many there are, to be looked at without the lock.
    left: AtomicUsize,
    settled: Notify,
    until: Instant,
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupted")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

struct Pending {
    objects: Vec<Handle>,
    overtaken: bool,
}

impl Interrupted {
    /// Others wait for these for so long. `lost` is told, and journals, which are lost.
    pub fn new(
        changes: Vec<(ChangeId, Vec<Handle>)>,
        patience: Duration,
        lost: impl Fn(ChangeId) + Send + Sync + 'static,
    ) -> Self {
        let pending = |(change, objects)| {
            let overtaken = false;
            (change, Pending { objects, overtaken })
        };
        Self {
            lost: Box::new(lost),
            left: AtomicUsize::new(changes.len()),
            changes: Mutex::new(changes.into_iter().map(pending).collect()),
            settled: Notify::new(),
            until: Instant::now() + patience,
        }
    }

    /// Waits until no interrupted change of these objects is left but `own`. Those that the patience is too short for are lost. May block.
    pub async fn let_pass(&self, own: ChangeId, touches: &[Touch]) {
        self.let_these_pass(own, touches, |_| true).await;
    }

    /// As [`Interrupted::let_pass`], of those of the same session alone; others are lost at once.
    pub async fn let_own_pass(&self, own: ChangeId, touches: &[Touch]) {
        self.let_these_pass(own, touches, is_of_session(own)).await;
        self.overtake(own, touches);
    }

    async fn let_these_pass(
        &self,
        own: ChangeId,
        touches: &[Touch],
        which: impl Fn(ChangeId) -> bool,
    ) {
        while self.left.load(Ordering::Acquire) > 0 {
            let settled = self.settled.notified();
            if !self.is_one_before(own, touches, &which) {
                return;
            }
            if tokio::time::timeout_at(self.until, settled).await.is_err() {
                self.lose(|change, pending| {
                    change != own && which(change) && pending.meets(touches)
                });
                return;
            }
        }
    }

    /// Whether an interrupted change of these objects is left but `own` that nobody has gone past.
    pub fn is_before(&self, own: ChangeId, touches: &[Touch]) -> bool {
        self.is_one_before(own, touches, |_| true)
    }

    /// As [`Interrupted::is_before`], of those of the same session.
    pub fn is_own_before(&self, own: ChangeId, touches: &[Touch]) -> bool {
        self.is_one_before(own, touches, is_of_session(own))
    }

    fn is_one_before(
        &self,
        own: ChangeId,
        touches: &[Touch],
        which: impl Fn(ChangeId) -> bool,
    ) -> bool {
        let changes = lock(&self.changes);
        let mut others = changes
            .iter()
            .filter(|(change, _)| **change != own && which(**change));
        others.any(|(_, pending)| !pending.overtaken && pending.meets(touches))
            && !planted::is(Bug::PassInterrupted)
    }

    /// Goes past the interrupted changes of these objects. May block.
    pub fn overtake(&self, own: ChangeId, touches: &[Touch]) {
        if self.left.load(Ordering::Acquire) > 0 {
            self.lose(|change, pending| change != own && pending.meets(touches));
        }
    }

    /// These sessions have not come back in time. May block.
    pub fn give_up(&self, is_away: impl Fn(SessionId) -> bool) {
        self.lose(|(session, _), _| is_away(session));
    }

    fn lose(&self, which: impl Fn(ChangeId, &Pending) -> bool) {
        let mut changes = lock(&self.changes);
        let lost = changes
            .iter_mut()
            .filter(|(change, pending)| !pending.overtaken && which(**change, pending));
        for (change, pending) in lost {
            (self.lost)(*change);
            pending.overtaken = true;
        }
        self.settled.notify_waiters();
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

fn is_of_session(own: ChangeId) -> impl Fn(ChangeId) -> bool {
    move |(session, _)| session == own.0
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
    use std::pin::{Pin, pin};
    use std::sync::{Arc, OnceLock, Weak};

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

    type Journal = Arc<Mutex<Vec<ChangeId>>>;

    fn interrupted(patience: Duration) -> (Interrupted, Journal) {
        let journal = Journal::default();
        let journals = Arc::clone(&journal);
        let lost = move |change| lock(&journals).push(change);
        let changes = vec![(A, vec![handle(1)])];
        (Interrupted::new(changes, patience, lost), journal)
    }

    async fn waits(wait: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
        tokio::time::timeout(Duration::ZERO, wait).await.is_err()
    }

    #[tokio::test]
    async fn others_wait_for_an_interrupted_change_of_their_objects_and_it_does_not_for_itself() {
        let (interrupted, journal) = interrupted(LONG);
        interrupted.let_pass(A, &touch(1)).await;
        interrupted.let_pass(B, &touch(2)).await;
        let touches = touch(1);
        let mut wait = pin!(interrupted.let_pass(B, &touches));
        assert!(waits(&mut wait).await);
        interrupted.settle(A);
        wait.await;
        assert!(!interrupted.is_overtaken(A) && lock(&journal).is_empty());
    }

    #[tokio::test]
    async fn once_the_patience_is_over_it_is_overtaken_once_and_for_all() {
        let (interrupted, journal) = interrupted(Duration::ZERO);
        interrupted.let_pass(B, &touch(1)).await;
        assert!(interrupted.is_overtaken(A));
        interrupted.let_pass(B, &touch(1)).await;
        assert_eq!(*lock(&journal), [A]);
    }

    #[tokio::test]
    async fn what_cannot_wait_for_others_goes_past_them_and_waits_for_its_own_session() {
        let (interrupted, journal) = interrupted(LONG);
        let touches = touch(1);
        let page = (A.0, Seq(2));
        let mut wait = pin!(interrupted.let_own_pass(page, &touches));
        assert!(waits(&mut wait).await && lock(&journal).is_empty());
        interrupted.let_own_pass(B, &touches).await;
        assert_eq!(*lock(&journal), [A]);
        wait.await;
    }

    #[test]
    fn that_a_change_is_lost_is_on_record_before_anybody_goes_past_it() {
        let seen = Arc::new(OnceLock::<Weak<Interrupted>>::new());
        let sees = Arc::clone(&seen);
        let is_past = move |_| {
            let interrupted = sees.get().and_then(Weak::upgrade).expect("there");
            assert!(interrupted.changes.try_lock().is_err(), "others wait");
        };
        let changes = vec![(A, vec![handle(1)])];
        let interrupted = Arc::new(Interrupted::new(changes, LONG, is_past));
        seen.set(Arc::downgrade(&interrupted)).expect("once");
        interrupted.overtake(B, &touch(1));
        assert!(interrupted.is_overtaken(A));
    }

    #[tokio::test]
    async fn a_change_of_a_session_that_is_away_is_overtaken_before_the_patience_is_over() {
        let (interrupted, journal) = interrupted(LONG);
        interrupted.give_up(|session| session == B.0);
        assert!(lock(&journal).is_empty());
        interrupted.give_up(|session| session == A.0);
        interrupted.let_pass(B, &touch(1)).await;
        assert!(interrupted.is_overtaken(A));
    }

    #[tokio::test]
    async fn nobody_waits_for_a_session_that_is_over() {
        let (interrupted, _) = interrupted(LONG);
        interrupted.end_session(A.0);
        interrupted.let_pass(B, &touch(1)).await;
    }
}
