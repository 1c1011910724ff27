//! Which changes have begun, and whether any runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many changes of this life have begun, and how many run. Written under the lock, read
/// without.
#[derive(Debug, Default)]
pub(super) struct Progress {
    begun: AtomicU64,
    running: AtomicU64,
}

impl Progress {
    /// A change begins; its number.
    pub fn begins(&self) -> u64 {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn ends(&self) {
        let running = self.running.fetch_sub(1, Ordering::SeqCst);
        assert!(running > 0, "a change ends that never began");
    }

    /// Whether no change has begun since the one of this number.
    pub fn is_last(&self, number: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == number
    }

    pub fn mark(&self) -> Mark {
        // In this order: a change that begins in between either runs, or has ended and is not counted
        // among those that had begun.
        let begun = self.begun.load(Ordering::SeqCst);
        let quiet = self.running.load(Ordering::SeqCst) == 0;
        Mark { quiet, begun }
    }
}

/// A moment in the life of the store, as far as changes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    quiet: bool,
    begun: u64,
}

impl Mark {
    /// Whether no other change has run before the one of this number.
    pub(super) fn precedes(self, number: u64) -> bool {
        self.quiet && number == self.begun + 1
    }

    /// Whether no change ran between this moment and `later`: what was read between is as it was.
    pub fn holds_at(self, later: Mark) -> bool {
        self.quiet && self.begun == later.begun
    }
}
