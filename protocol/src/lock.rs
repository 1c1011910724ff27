//! Advisory locks of files: `fcntl(2)`, open file descriptions' and `flock(2)`.

use crate::ids::{Fence, Handle, LockEpoch, LockOwner, LockWait, SessionId, Stamp};
use serde::{Deserialize, Serialize};

/// Which locks it stands against: as on a local file system `flock` and `fcntl` don't see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum LockKind {
    /// A range of bytes: of a process, or of an open file description.
    Posix,
    /// The whole file: of an open file description.
    Flock,
}

/// What a lock keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum LockMode {
    /// An exclusive lock.
    Shared,
    /// Any lock.
    Exclusive,
}

/// Bytes of a file, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct LockRange {
    first: u64,
    last: u64,
}

impl LockRange {
    /// The last byte a file can have (Linux' `OFFSET_MAX`): a lock up to it has no end.
    pub const END: u64 = i64::MAX as u64;
    /// Every byte there can be.
    pub const ALL: Self = Self {
        first: 0,
        last: Self::END,
    };

    /// `None` if there is no such range.
    pub fn new(first: u64, last: u64) -> Option<Self> {
        let range = Self { first, last };
        range.is_one().then_some(range)
    }

    /// Whether it can be: what came from a peer is to be asked.
    pub fn is_one(self) -> bool {
        self.first <= self.last && self.last <= Self::END
    }

    /// Its first byte.
    pub fn first(self) -> u64 {
        self.first
    }

    /// Its last byte.
    pub fn last(self) -> u64 {
        self.last
    }

    /// Whether both have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether both overlap, or one follows the other.
    pub fn touches(self, other: Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// The bytes from the first of both to the last.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }

    /// The bytes that both have.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }

    /// What of it lies before and behind another one.
    pub fn without(self, other: Self) -> [Option<Self>; 2] {
        let before = other.first.checked_sub(1);
        let before = before.and_then(|last| Self::new(self.first, last.min(self.last)));
        let behind = Self::new(self.first.max(other.last.saturating_add(1)), self.last);
        [before, behind]
    }
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct HeldLock<O = LockOwner> {
    /// Whose it is.
    pub owner: O,
    /// What it stands against.
    pub kind: LockKind,
    /// What it keeps others from.
    pub mode: LockMode,
    /// Of which bytes.
    pub range: LockRange,
    /// The process that took it, as its own machine numbers it.
    pub pid: u32,
    /// Greater than that of any lock of the file that was taken before.
    pub fence: Fence,
}

impl<O> HeldLock<O> {
    /// The same lock, as its owner is named elsewhere.
    pub fn of<P>(&self, owner: P) -> HeldLock<P> {
        HeldLock {
            owner,
            kind: self.kind,
            mode: self.mode,
            range: self.range,
            pid: self.pid,
            fence: self.fence,
        }
    }
}

/// What a session holds of one file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct FileLocks {
    /// The file.
    pub object: Handle,
    /// The delegation under which they were decided: of another one this says nothing.
    pub delegation: Stamp,
    /// In the order of their owners' arrival; at most [`crate::limits::MAX_LOCKS_OF_FILE`].
    pub locks: Vec<HeldLock>,
}

/// The right to decide a file's locks: nobody else has any, and whoever wants one asks for it back
/// (a Write lease on [`crate::Parts::LOCKS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Delegation {
    /// Its place among the session's grants and recalls.
    pub stamp: Stamp,
    /// The first number to be given to a lock.
    pub first: Fence,
    /// How many there are; the next lock must be asked for.
    pub count: u64,
}

/// What became of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Locked {
    /// When it was decided, among the session's grants and recalls: of locks of one file what is stamped
    /// later counts.
    pub stamp: Stamp,
    /// The tenure in which all locks of the session are held (see [`LockEpoch`]).
    pub epoch: LockEpoch,
    /// What was decided.
    pub outcome: LockOutcome,
    /// Of what waits: who holds it up, for people.
    pub holder: Option<LockHolder>,
}

/// Who holds a lock that another waits for, or waits for it longer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct LockHolder {
    /// Of which session.
    pub session: SessionId,
    /// The process, as its own machine numbers it.
    pub pid: u32,
    /// The session's host and mount point, as its client has told them.
    pub mount: String,
    /// If it is never heard of again its locks end then: milliseconds from the answer.
    pub ends_ms: u64,
}

/// What was decided of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum LockOutcome {
    /// It is held.
    Granted {
        /// Its number.
        fence: Fence,
        /// Whether the client decides the file's locks from now on.
        delegation: Option<Delegation>,
        /// With it: all that the session holds.
        held: Vec<HeldLock>,
    },
    /// It waits: [`crate::control::Push::LockGranted`] follows.
    Waits,
    /// Another lock stands against it.
    Conflicts,
    /// It would wait for an owner that waits for its own.
    Deadlock,
}

/// A lock that stands against another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct LockFound {
    /// What it keeps others from.
    pub mode: LockMode,
    /// Of which bytes.
    pub range: LockRange,
    /// The process that took it, if it is one of the client's that asks.
    pub pid: Option<u32>,
}

/// Locks are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Unlocked {
    /// As in [`Locked`].
    pub stamp: Stamp,
    /// As in [`Locked`].
    pub epoch: LockEpoch,
    /// Whether there was something to give up.
    pub any: bool,
}

/// A lock that was waited for is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct LockGranted {
    /// Which.
    pub wait: LockWait,
    /// As in [`Locked`].
    pub stamp: Stamp,
    /// As in [`Locked`].
    pub epoch: LockEpoch,
    /// Its number.
    pub fence: Fence,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> LockRange {
        LockRange::new(first, last).expect("a range")
    }

    #[test]
    fn a_range_has_a_byte_and_ends_where_files_do() {
        assert_eq!(LockRange::new(2, 1), None);
        assert_eq!(LockRange::new(0, LockRange::END + 1), None);
        assert_eq!(LockRange::new(0, LockRange::END), Some(LockRange::ALL));
    }

    #[test]
    fn what_is_taken_out_leaves_what_is_before_and_behind() {
        let whole = range(10, 19);
        assert_eq!(
            whole.without(range(12, 15)),
            [Some(range(10, 11)), Some(range(16, 19))]
        );
        assert_eq!(whole.without(range(0, 15)), [None, Some(range(16, 19))]);
        assert_eq!(
            whole.without(range(12, LockRange::END)),
            [Some(range(10, 11)), None]
        );
        assert_eq!(whole.without(LockRange::ALL), [None, None]);
    }

    #[test]
    fn neighbours_touch_and_do_not_overlap() {
        assert!(range(0, 4).touches(range(5, 9)) && range(5, 9).touches(range(0, 4)));
        assert!(!range(0, 4).overlaps(range(5, 9)));
        assert!(!range(0, 4).touches(range(6, 9)));
        assert!(range(0, 4).overlaps(range(4, 4)));
    }
}
