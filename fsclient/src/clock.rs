//! The host's clocks.

use leasefs_client::Now;
use leasefs_lease::time::BootTime;
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> BootTime {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    BootTime::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// `CLOCK_BOOTTIME`: it goes on while the machine sleeps.
pub(crate) fn boot() -> BootTime {
    read(ClockId::Boottime)
}

/// `CLOCK_MONOTONIC`: it stands still while the machine sleeps.
pub(crate) fn monotonic() -> BootTime {
    read(ClockId::Monotonic)
}

/// Both, in the order the core asks for.
pub(crate) fn now() -> Now {
    Now {
        boot: boot(),
        monotonic: monotonic(),
    }
}
