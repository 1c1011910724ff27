//! `CLOCK_MONOTONIC`, the one clock all histories of a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable between threads and processes
/// of one machine, across CPUs.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both parts are non-negative for this clock, and 2^64 ns is 584 years.
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
