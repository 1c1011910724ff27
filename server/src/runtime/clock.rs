//! The clock of leases.

use leasefs_lease::time::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// Reads a clock of leases; tests give their own.
pub type Clock = fn() -> BootTime;

/// `CLOCK_BOOTTIME` of this host: unlike `CLOCK_MONOTONIC` it goes on while the host sleeps.
pub fn boot_time() -> BootTime {
    let now = clock_gettime(ClockId::Boottime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    BootTime::from_nanos(part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec))
}
