//! The clocks of lease time.

use leasefs_lease::time::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME`: it goes on while the machine sleeps.
pub fn boot_time() -> BootTime {
    read(ClockId::Boottime)
}

/// `CLOCK_MONOTONIC`, which stands still while the machine sleeps. All processes of a machine share it.
pub fn monotonic_time() -> BootTime {
    read(ClockId::Monotonic)
}

/// Both parts are positive for these clocks, and 2^64 ns is 584 years.
fn read(clock: ClockId) -> BootTime {
    let now = clock_gettime(clock);
    BootTime::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
