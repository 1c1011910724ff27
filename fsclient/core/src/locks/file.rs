//! The locks of one file.

use super::{CONFLICTS, Decision, Of, TOO_MANY};
use crate::call::Fh;
use crate::call::LockCall;
use crate::run::Places;
use leasefs_lease::locks::{LockWanted, Locks};
use leasefs_protocol::limits::MAX_LOCKS_OF_FILE;
use leasefs_protocol::lock::{Delegation, FileLocks};
use leasefs_protocol::{
    Fence, Handle, HeldLock, LockEpoch, LockKind, LockOwner, LockRange, Refusal, Stamp,
};
use std::collections::{BTreeMap, BTreeSet};

/// The right to decide a file's locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right {
    next: Fence,
    left: u64,
}

pub(super) struct FileState {
    pub(super) held: Locks<LockOwner>,
    /// Through which descriptors an owner has taken what it holds.
    pub(super) taken: BTreeMap<Of, BTreeSet<Fh>>,
    /// Who has lost what he held, and through which descriptors he had taken it.
    pub(super) lost: BTreeMap<Of, BTreeSet<Fh>>,
    /// The tenure that ended then.
    pub(super) lost_in: Option<LockEpoch>,
    pub(super) right: Option<Right>,
    /// The last grant of that right, as long as the server may believe that it stands; zero if there is none.
    pub(super) delegation: Stamp,
    /// The keep-alive behind which the server was told what is held.
    pub(super) told_by: Option<u64>,
    /// Newest recall of the right.
    pub(super) recalled: Stamp,
    /// Newest answer taken in.
    pub(super) applied: Stamp,
    /// What the server is asked to take back: nobody believes any more that it is held.
    pub(super) giving_up: Option<(Of, LockRange)>,
    /// Who asks the server something.
    pub(super) users: usize,
    pub(super) waits: usize,
    pub(super) turn: Places,
}

impl std::fmt::Debug for FileState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileState")
            .field("held", &self.held)
            .field("right", &self.right)
            .finish_non_exhaustive()
    }
}

impl Default for FileState {
    fn default() -> Self {
        Self {
            held: Locks::default(),
            taken: BTreeMap::new(),
            lost: BTreeMap::new(),
            lost_in: None,
            right: None,
            delegation: Stamp(0),
            told_by: None,
            recalled: Stamp(0),
            applied: Stamp(0),
            giving_up: None,
            users: 0,
            waits: 0,
            turn: Places::new(1),
        }
    }
}

impl FileState {
    pub(super) fn is_idle(&self) -> bool {
        let remembers = self.delegation != Stamp(0) || self.right.is_some();
        self.is_unused() && !remembers
    }

    /// Whether it is decided here who gets a lock, and nobody has one or wants one.
    pub(super) fn idles(&self) -> bool {
        self.right.is_some() && self.is_unused()
    }

    fn is_unused(&self) -> bool {
        let asked = self.users > 0 || self.waits > 0;
        self.held.is_empty() && self.lost.is_empty() && !asked
    }

    /// Whether it is decided here who gets a lock.
    pub(super) fn decides(&self, live: bool) -> bool {
        live && self.right.is_some()
    }

    pub(super) fn concerns(&self, of: Of) -> bool {
        self.users > 0 || self.waits > 0 || self.holds(of)
    }

    pub(super) fn holds(&self, (kind, owner): Of) -> bool {
        self.held.holds(owner, kind)
    }

    /// `room`: whether the mount may hold more.
    pub(super) fn unlock(&mut self, live: bool, call: &LockCall, room: bool) -> Decision {
        let room = room && self.has_room();
        if self.lost.remove(&call.of()).is_some() {
            return Decision::Refused(Refusal::LockLost);
        }
        if !self.concerns(call.of()) {
            return Decision::Done;
        }
        if !self.decides(live) {
            return Decision::Ask;
        }
        let (kind, owner) = call.of();
        if self.held.splits(owner, kind, call.range) && !room {
            return Decision::Refused(TOO_MANY);
        }
        self.give_up(call.of(), call.range);
        Decision::Done
    }

    pub(super) fn lock(
        &mut self,
        live: bool,
        fh: Fh,
        lock: &LockWanted<LockOwner>,
        (wait, room): (bool, bool),
    ) -> Decision {
        let of = (lock.kind, lock.owner);
        if self.lost.contains_key(&of) || self.is_lost(Some(fh), None) {
            return Decision::Refused(Refusal::LockLost);
        }
        if !self.decides(live) {
            return Decision::Ask;
        }
        self.held.converts(lock);
        if self.held.has(lock).is_some() {
            self.took(fh, of);
            return Decision::Done;
        }
        if self.held.against(lock).next().is_some() {
            return match wait {
                true => Decision::Ask,
                false => Decision::Refused(CONFLICTS),
            };
        }
        if !room || !self.has_room() {
            return Decision::Refused(TOO_MANY);
        }
        match self.right.as_mut().filter(|right| right.left > 0) {
            Some(right) => {
                let fence = right.next;
                right.next = fence.next();
                right.left -= 1;
                self.held.take(lock, fence);
                self.took(fh, of);
                Decision::Done
            }
            None => Decision::Ask,
        }
    }

    /// One lock may split another one, so there is room for two more. What is held must be told in one message.
    fn has_room(&self) -> bool {
        self.held.len() + 2 <= MAX_LOCKS_OF_FILE
    }

    /// The server has given a lock. What stood against it was given up there, though the answer to that may still be under way.
    pub(super) fn given(&mut self, lock: &LockWanted<LockOwner>, fence: Fence) {
        self.held.make_way(lock);
        let held = &self.held;
        self.taken
            .retain(|(kind, owner), _| held.holds(*owner, *kind));
        self.held.take(lock, fence);
    }

    /// It was taken through this descriptor.
    pub(super) fn took(&mut self, fh: Fh, of: Of) {
        self.taken.entry(of).or_default().insert(fh);
    }

    pub(super) fn give_up(&mut self, (kind, owner): Of, range: LockRange) {
        self.held.give_up(owner, kind, range);
        if !self.held.holds(owner, kind) {
            self.taken.remove(&(kind, owner));
        }
    }

    pub(super) fn delegated(&mut self, delegation: Delegation, held: Vec<HeldLock>) {
        let mut locks = Locks::default();
        locks.restore(held);
        self.held = locks;
        // Else it has been taken back, and the server knows what was held when it was given.
        if delegation.stamp > self.recalled {
            self.delegation = delegation.stamp;
            self.told_by = None;
            self.right = Some(Right {
                next: delegation.first,
                left: delegation.count,
            });
        }
    }

    pub(super) fn said(&self, object: Handle) -> FileLocks {
        FileLocks {
            object,
            delegation: self.delegation,
            locks: self.held.iter().copied().collect(),
        }
    }

    /// What is claimed back from a restarted server.
    pub(super) fn claimed(&self, object: Handle) -> FileLocks {
        let mut held = self.held.clone();
        if let Some(((kind, owner), range)) = self.giving_up {
            held.give_up(owner, kind, range);
        }
        FileLocks {
            locks: held.iter().copied().collect(),
            ..self.said(object)
        }
    }

    /// Everything that is held is lost.
    pub(super) fn lose(&mut self, epoch: LockEpoch) {
        self.right = None;
        self.delegation = Stamp(0);
        if self.held.is_empty() {
            return;
        }
        self.held = Locks::default();
        self.lost_in = Some(epoch);
        for (of, through) in std::mem::take(&mut self.taken) {
            self.lost.entry(of).or_default().extend(through);
        }
    }

    /// Whether a lock is held by this owner, or was taken through this descriptor. Of whom nothing is known may be any
    /// owner.
    pub(super) fn guards(&self, fh: Option<Fh>, owner: Option<LockOwner>) -> bool {
        let is_his = |(kind, of): &Of| *kind == LockKind::Posix && owner.is_none_or(|o| o == *of);
        let mut taken = self.taken.iter();
        taken.any(|(of, fhs)| is_his(of) || fh.is_some_and(|fh| fhs.contains(&fh)))
    }

    pub(super) fn is_lost(&self, fh: Option<Fh>, owner: Option<LockOwner>) -> bool {
        let of = owner.map(|owner| (LockKind::Posix, owner));
        let through = |fh| self.lost.values().any(|fhs| fhs.contains(&fh));
        of.is_some_and(|of| self.lost.contains_key(&of)) || fh.is_some_and(through)
    }

    pub(super) fn forget_lost_through(&mut self, fh: Fh) {
        self.lost.retain(|_, fhs| {
            fhs.remove(&fh);
            !fhs.is_empty()
        });
    }
}
