//! Who waits gets his lock.
//!
//! First come, first served: who would wait lets those go first who wait already, unless they wait for him. To know costs the more
//! the more wait, so that there is a limit to what is looked at for one event; beyond it nobody is let first. What an event
//! leaves to be granted is left to the next, which comes at once.

use super::deadlock::Known;
use super::{File, LockTable, Owner, Waiter};
use crate::locks::LockWanted;
use crate::time::BootTime;
use leasefs_protocol::limits::{MAX_LOCK_STEPS, MAX_POLITE};
use leasefs_protocol::{Fence, Handle, LockWait, SessionId};

/// What may be looked at for one event yet, in locks that are held and waited for.
#[derive(Debug)]
pub(in crate::server) struct Effort(usize);

impl Effort {
    pub(in crate::server) fn of_one_event() -> Self {
        Self(MAX_LOCK_STEPS)
    }

    pub(in crate::server) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// Whether so much could be looked at yet.
    pub(super) fn spend(&mut self, steps: usize) -> bool {
        let enough = steps <= self.0;
        self.0 = self.0.saturating_sub(steps);
        enough
    }
}

impl LockTable {
    /// Whether a lock that is asked for has to wait. Who only asks isn't held up by those who wait.
    pub(super) fn stands_against(
        &self,
        object: &Handle,
        lock: &LockWanted<Owner>,
        wait: Option<LockWait>,
        effort: &mut Effort,
    ) -> bool {
        let Some(file) = self.files.get(object) else {
            return false;
        };
        let is_own = |w: &Waiter| w.lock.owner.0 == lock.owner.0 && Some(w.wait) == wait;
        let before = file.waiting.iter().position(is_own);
        let before = &file.waiting[..before.unwrap_or(file.waiting.len())];
        file.held.against(lock).next().is_some()
            || (wait.is_some()
                && self.lets_first(object, before, lock, (&mut Known::new(), effort)))
    }

    /// Whether one of those who have waited for longer goes first.
    fn lets_first(
        &self,
        object: &Handle,
        before: &[Waiter],
        lock: &LockWanted<Owner>,
        (known, effort): (&mut Known, &mut Effort),
    ) -> bool {
        let too_many = self.polite.len() >= MAX_POLITE && !self.polite.contains(object);
        let mut before = before.iter();
        !too_many
            && before.any(|earlier| {
                effort.spend(1) && self.goes_first(earlier, lock, (&mut *known, &mut *effort))
            })
    }

    /// Gives the next one who waits for a lock of the file his, if he can have it.
    pub(in crate::server) fn grant_next(
        &mut self,
        now: BootTime,
        object: &Handle,
        effort: &mut Effort,
    ) -> Option<(SessionId, LockWait, Fence)> {
        self.polite.remove(object);
        let at = self.next_to_grant(object, effort)?;
        let fence = self.fences(1)?;
        let file = self.files.get_mut(object)?;
        let waiter = file.waiting.remove(at);
        file.take(now, &waiter.lock, fence);
        self.forget_wait(&waiter, *object);
        let session = waiter.lock.owner.0;
        self.recount(session, *object);
        Some((session, waiter.wait, fence))
    }

    fn next_to_grant(&mut self, object: &Handle, effort: &mut Effort) -> Option<usize> {
        let file = self.files.get(object)?;
        effort.spend(file.looked_through());
        let obstacles = file.held.obstacles();
        let free =
            |w: &Waiter| !self.is_full(w.lock.owner.0, object) && !obstacles.any_against(&w.lock);
        let (mut lets_others_first, mut known) = (false, Known::new());
        for (at, waiter) in file.waiting.iter().enumerate().filter(|(_, w)| free(w)) {
            let known = (&mut known, &mut *effort);
            if !self.lets_first(object, &file.waiting[..at], &waiter.lock, known) {
                return Some(at);
            }
            lets_others_first = true;
        }
        if lets_others_first {
            self.polite.insert(*object);
        }
        None
    }

    /// Who waits for locks of this file gets his at the next event.
    pub(in crate::server) fn put_off(&mut self, object: Handle) {
        self.put_off.insert(object);
    }

    /// Whether any is to get his at the next event.
    pub(in crate::server) fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// What was put off is done now.
    pub(in crate::server) fn catch_up(&mut self) {
        self.changed.append(&mut self.put_off);
    }
}

impl File {
    /// How many locks are looked at where all are.
    pub(super) fn looked_through(&self) -> usize {
        self.held.len() + self.waiting.len()
    }
}
