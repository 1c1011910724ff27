//! What each worker is doing right now, and for how long.

use leasefs_host::clock::monotonic_time;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An operation under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Current {
    pub worker: u16,
    pub mount: usize,
    pub object: usize,
    pub how: &'static str,
    pub since: u64,
}

impl fmt::Display for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            worker,
            mount,
            object,
            how,
            ..
        } = self;
        write!(
            f,
            "{how} on object {object} by worker {worker} through mount {mount}"
        )
    }
}

/// Where one worker notes its operation.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<Option<Current>>);

impl Slot {
    pub(super) fn set(&self, current: Option<Current>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// The operation under way, if it has been for longer than `limit`.
    pub(super) fn overdue(&self, limit: Duration) -> Option<Current> {
        let current = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |current: &Current| {
            Duration::from_nanos(monotonic_time().as_nanos().saturating_sub(current.since))
        };
        current.filter(|current| age(current) > limit)
    }
}
