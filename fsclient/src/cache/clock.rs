//! The clocks of lease time, as something tests can replace.

use leasefs_lease::time::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// Reads both clocks. They advance alike except while the machine sleeps.
pub trait Clock: Send + Sync + 'static {
    /// `CLOCK_BOOTTIME`.
    fn boot(&self) -> BootTime;
    /// `CLOCK_MONOTONIC`, which stands still in suspend.
    fn monotonic(&self) -> BootTime;
}

/// The host's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> BootTime {
        read(ClockId::Boottime)
    }

    fn monotonic(&self) -> BootTime {
        read(ClockId::Monotonic)
    }
}

fn read(clock: ClockId) -> BootTime {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    BootTime::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
