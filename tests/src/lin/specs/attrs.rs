//! The attributes of one file.

use crate::lin::Spec;
use std::fmt;

/// Times set by `utimensat` lie below this (nanoseconds since 1970), those the
/// server sets lie above: the two can be told apart.
pub const EXPLICIT_MTIME_LIMIT: i64 = 1_000_000_000 * 1_000_000_000;

/// A file's attributes from a known start.
#[derive(Debug, Clone, Copy)]
pub struct Attrs {
    /// What the file has before the history.
    pub at_first: AttrsState,
    /// Whether a time the server set is the same for all who see it. (Some file
    /// systems set it more than once during one change.)
    pub settled_times: bool,
}

/// What is known of a file's mtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mtime {
    /// Exactly this, in nanoseconds since 1970.
    Is(i64),
    /// A time of the server's that nobody has seen yet.
    Now,
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttrsState {
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time.
    pub mtime: Mtime,
    /// Names of the file.
    pub nlink: u64,
}

/// A change of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// `truncate` to a size the file does not have.
    Truncate(u64),
    /// A write that ends at this offset.
    WriteUpTo(u64),
    /// `chmod`.
    Mode(u32),
    /// `utimensat` to this many nanoseconds since 1970.
    Mtime(i64),
    /// `link` to a name that did not exist.
    Link,
    /// `unlink` of a name that existed.
    Unlink,
}

/// What an operation saw of the attributes; what it did not look at is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Bytes.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Nanoseconds since 1970.
    pub mtime: Option<i64>,
    /// Names of the file.
    pub nlink: Option<u64>,
}

/// An operation on [`Attrs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrsOp {
    /// Changed them.
    Set(Change),
    /// Looked at them.
    Get(Seen),
}

impl Attrs {
    fn set(state: AttrsState, change: Change) -> Option<AttrsState> {
        let mtime = Mtime::Now;
        Some(match change {
            Change::Truncate(size) => AttrsState {
                size,
                mtime,
                ..state
            },
            Change::WriteUpTo(end) => AttrsState {
                size: state.size.max(end),
                mtime,
                ..state
            },
            Change::Mode(mode) => AttrsState { mode, ..state },
            Change::Mtime(time) => AttrsState {
                mtime: Mtime::Is(time),
                ..state
            },
            Change::Link => AttrsState {
                nlink: state.nlink + 1,
                ..state
            },
            Change::Unlink => AttrsState {
                nlink: state.nlink.checked_sub(1)?,
                ..state
            },
        })
    }

    fn bound(&self, seen: i64) -> Mtime {
        if self.settled_times {
            Mtime::Is(seen)
        } else {
            Mtime::Now
        }
    }

    fn get(&self, state: AttrsState, seen: &Seen) -> Option<AttrsState> {
        let others = seen.size.is_none_or(|size| size == state.size)
            && seen.mode.is_none_or(|mode| mode == state.mode)
            && seen.nlink.is_none_or(|nlink| nlink == state.nlink);
        let mtime = match (state.mtime, seen.mtime) {
            (known, None) => Some(known),
            (Mtime::Is(time), Some(seen)) => (time == seen).then_some(state.mtime),
            (Mtime::Now, Some(seen)) => (seen >= EXPLICIT_MTIME_LIMIT).then(|| self.bound(seen)),
        };
        mtime
            .filter(|_| others)
            .map(|mtime| AttrsState { mtime, ..state })
    }
}

impl Spec for Attrs {
    type State = AttrsState;
    type Op = AttrsOp;

    fn initial(&self) -> AttrsState {
        self.at_first
    }

    fn step(&self, state: &AttrsState, op: &AttrsOp) -> Option<AttrsState> {
        match op {
            AttrsOp::Set(change) => Self::set(*state, *change),
            AttrsOp::Get(seen) => self.get(*state, seen),
        }
    }

    fn is_read(&self, op: &AttrsOp) -> bool {
        matches!(op, AttrsOp::Get(_))
    }
}

impl fmt::Display for AttrsOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(Change::Truncate(size)) => write!(f, "truncate to {size}"),
            Self::Set(Change::WriteUpTo(end)) => write!(f, "write up to {end}"),
            Self::Set(Change::Mode(mode)) => write!(f, "chmod {mode:o}"),
            Self::Set(Change::Mtime(time)) => write!(f, "set mtime {time}"),
            Self::Set(Change::Link) => write!(f, "add a link"),
            Self::Set(Change::Unlink) => write!(f, "remove a link"),
            Self::Get(seen) => write!(f, "{seen}"),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "saw")?;
        if let Some(size) = self.size {
            write!(f, " size {size}")?;
        }
        if let Some(mode) = self.mode {
            write!(f, " mode {mode:o}")?;
        }
        if let Some(mtime) = self.mtime {
            write!(f, " mtime {mtime}")?;
        }
        if let Some(nlink) = self.nlink {
            write!(f, " nlink {nlink}")?;
        }
        Ok(())
    }
}
