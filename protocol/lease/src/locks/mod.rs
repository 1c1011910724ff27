//! The locks of one file: who holds which bytes, and what stands against a further one.
//!
//! The rules are those of `fcntl(2)` and `flock(2)` as Linux has them (`posix_lock_inode`, `flock_lock_inode`): a lock takes the
//! place of what its owner holds of the same bytes, neighbours of one mode are one lock, and of several locks that
//! stand against one the first is told, owners standing in the order in which they came.

mod obstacles;

use leasefs_protocol::query::{Lock, TestLock};
use leasefs_protocol::{Fence, HeldLock, LockKind, LockMode, LockOwner, LockRange};

/// A lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockWanted<O> {
    /// Whose it would be.
    pub owner: O,
    /// Which locks it stands against.
    pub kind: LockKind,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Which bytes.
    pub range: LockRange,
    /// The process.
    pub pid: u32,
}

impl<O: Copy + Eq> LockWanted<O> {
    /// Whether both can't be held at a time.
    pub fn is_against(&self, other: &Self) -> bool {
        self.owner != other.owner
            && self.kind == other.kind
            && (self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
            && self.range.overlaps(other.range)
    }

    /// The same, as its owner is named elsewhere.
    pub fn of<P>(&self, owner: P) -> LockWanted<P> {
        LockWanted {
            owner,
            kind: self.kind,
            mode: self.mode,
            range: self.range,
            pid: self.pid,
        }
    }

    /// As a lock that is held.
    pub fn held(&self, fence: Fence) -> HeldLock<O> {
        HeldLock {
            owner: self.owner,
            kind: self.kind,
            mode: self.mode,
            range: self.range,
            pid: self.pid,
            fence,
        }
    }
}

impl From<&Lock> for LockWanted<LockOwner> {
    fn from(asked: &Lock) -> Self {
        Self {
            owner: asked.owner,
            kind: asked.kind,
            mode: asked.mode,
            range: asked.range,
            pid: asked.pid,
        }
    }
}

/// Nobody's yet.
impl From<&TestLock> for LockWanted<LockOwner> {
    fn from(asked: &TestLock) -> Self {
        Self {
            owner: asked.owner,
            kind: asked.kind,
            mode: asked.mode,
            range: asked.range,
            pid: 0,
        }
    }
}

/// As it was asked for.
pub fn wanted<O: Copy>(held: &HeldLock<O>) -> LockWanted<O> {
    LockWanted {
        owner: held.owner,
        kind: held.kind,
        mode: held.mode,
        range: held.range,
        pid: held.pid,
    }
}

/// The locks of one file. Those of one owner and kind stand together, in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locks<O>(Vec<HeldLock<O>>);

impl<O> Default for Locks<O> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<O: Copy + Eq> Locks<O> {
    /// Whether nobody holds any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All, in the order of their owners' arrival.
    pub fn iter(&self) -> impl Iterator<Item = &HeldLock<O>> {
        self.0.iter()
    }

    /// Whether the owner holds any of this kind.
    pub fn holds(&self, owner: O, kind: LockKind) -> bool {
        self.0
            .iter()
            .any(|held| held.owner == owner && held.kind == kind)
    }

    /// Whether one more is held if the owner gives these bytes up: they lie within one of his.
    pub fn splits(&self, owner: O, kind: LockKind, range: LockRange) -> bool {
        let around = |held: &HeldLock<O>| {
            held.range.first() < range.first() && range.last() < held.range.last()
        };
        let mut own = self.0.iter();
        own.any(|held| held.owner == owner && held.kind == kind && around(held))
    }

    /// Those that stand against a further one; the first is the one to be told.
    pub fn against<'a>(&'a self, lock: &'a LockWanted<O>) -> impl Iterator<Item = &'a HeldLock<O>> {
        self.0.iter().filter(|held| lock.is_against(&wanted(held)))
    }

    /// Whether the owner holds all of it as it is wanted; then its number.
    pub fn has(&self, lock: &LockWanted<O>) -> Option<Fence> {
        let same = |held: &&HeldLock<O>| {
            (held.owner, held.kind, held.mode) == (lock.owner, lock.kind, lock.mode)
        };
        let around = |held: &&HeldLock<O>| {
            held.range.first() <= lock.range.first() && lock.range.last() <= held.range.last()
        };
        let held = self.0.iter().filter(same).find(around);
        held.map(|held| held.fence)
    }

    /// Before it is known whether it can be had: a `flock` that is converted is given up first (flock(2): "converting a lock is
    /// not guaranteed to be atomic").
    pub fn converts(&mut self, lock: &LockWanted<O>) {
        if lock.kind == LockKind::Flock && self.has(lock).is_none() {
            self.give_up(lock.owner, lock.kind, LockRange::ALL);
        }
    }

    /// Takes a lock against which none stands.
    pub fn take(&mut self, lock: &LockWanted<O>, fence: Fence) {
        let mut new = lock.held(fence);
        let (of_owner, from) = self.run_of(lock.owner, lock.kind);
        let mut left = Vec::with_capacity(of_owner.len() + 2);
        for held in of_owner {
            if held.mode == new.mode && held.range.touches(new.range) {
                new.range = new.range.joined(held.range);
            } else {
                push_rest(&mut left, held, lock.range);
            }
        }
        left.push(new);
        left.sort_by_key(|held| held.range.first());
        self.0.splice(from..from, left);
    }

    /// Gives up what an owner holds of these bytes; whether that was anything.
    pub fn give_up(&mut self, owner: O, kind: LockKind, range: LockRange) -> bool {
        let (of_owner, from) = self.run_of(owner, kind);
        let any = of_owner.iter().any(|held| held.range.overlaps(range));
        let mut left = Vec::with_capacity(of_owner.len() + 1);
        for held in of_owner {
            push_rest(&mut left, held, range);
        }
        self.0.splice(from..from, left);
        any
    }

    /// Gives up what stands against a lock that its owner has been given: theirs were given up before. What they hold of the
    /// same bytes and doesn't stand against it they keep.
    pub fn make_way(&mut self, lock: &LockWanted<O>) {
        let common = |held: &HeldLock<O>| Some((held.owner, held.range.common(lock.range)?));
        let theirs: Vec<(O, LockRange)> = self.against(lock).filter_map(common).collect();
        for (owner, range) in theirs {
            self.give_up(owner, lock.kind, range);
        }
    }

    /// Keeps those of which this is so.
    pub fn retain(&mut self, keep: impl FnMut(&HeldLock<O>) -> bool) {
        self.0.retain(keep);
    }

    /// Adds what was held before, as it stood.
    pub fn restore(&mut self, held: impl IntoIterator<Item = HeldLock<O>>) {
        self.0.extend(held);
    }

    /// Takes out what an owner holds, and says where it stood: behind all others if it held nothing.
    fn run_of(&mut self, owner: O, kind: LockKind) -> (Vec<HeldLock<O>>, usize) {
        let is = |held: &HeldLock<O>| held.owner == owner && held.kind == kind;
        let from = self.0.iter().position(is).unwrap_or(self.0.len());
        let count = self.0[from..].iter().take_while(|held| is(held)).count();
        (self.0.drain(from..from + count).collect(), from)
    }
}

/// What is left of a lock when these bytes are taken out of it.
fn push_rest<O: Copy>(left: &mut Vec<HeldLock<O>>, held: HeldLock<O>, range: LockRange) {
    let rest = held.range.without(range).into_iter().flatten();
    left.extend(rest.map(|range| HeldLock { range, ..held }));
}

#[cfg(test)]
mod tests;
