//! How a server is run.

use leasefs_protocol::limits::{DEFAULT_DRIFT_PPM, DEFAULT_TERM, MAX_OPENS_PER_CLIENT};
use std::time::Duration;

/// Settings of a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lease term.
    pub term: Duration,
    /// Bound of the clocks' drift, parts per million.
    pub drift_ppm: u32,
    /// Threads for calls of the storage host.
    pub io_threads: usize,
    /// Files that clients may have open in all.
    pub open_files: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            term: DEFAULT_TERM,
            drift_ppm: DEFAULT_DRIFT_PPM,
            io_threads: 32,
            open_files: 2 * MAX_OPENS_PER_CLIENT,
        }
    }
}
