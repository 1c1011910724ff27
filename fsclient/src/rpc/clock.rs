//! The clock of lease time.

use leasefs_lease::time::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// Now, by `CLOCK_BOOTTIME`: it goes on while the machine sleeps.
pub fn now() -> BootTime {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    BootTime::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
