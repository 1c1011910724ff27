//! One operation of a history.

use std::fmt;

/// Who carried out an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Who {
    /// Index of the mount it went through.
    pub mount: u16,
    /// Index of the worker thread that called.
    pub worker: u16,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount {} worker {}", self.mount, self.worker)
    }
}

/// One operation on one object with its stamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<Op> {
    /// Who carried it out.
    pub who: Who,
    /// How it was done (`"pread"`, `"mmap"`, …), for people.
    pub how: &'static str,
    /// `CLOCK_MONOTONIC` before the call, in nanoseconds.
    pub start: u64,
    /// The same after its return; `None` if no answer told whether it happened.
    pub end: Option<u64>,
    /// The operation and its answer.
    pub op: Op,
}

impl<Op> Entry<Op> {
    /// True when this operation had returned before `other` was called.
    pub fn precedes(&self, other: &Self) -> bool {
        self.end.is_some_and(|end| end < other.start)
    }
}
