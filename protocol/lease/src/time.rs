//! Lease time: instants of `CLOCK_BOOTTIME` and what drift does to durations.
//!
//! `CLOCK_MONOTONIC` (and so `std::time::Instant`) stops while a laptop sleeps: a lease would
//! wake up valid. Nothing here reads a clock; every instant comes from the caller.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant of one host's `CLOCK_BOOTTIME`, in nanoseconds. Never sent over the wire.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

impl BootTime {
    /// The host's boot.
    pub const ZERO: BootTime = BootTime(0);

    /// The instant this many nanoseconds after boot.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is still to come.
    pub fn since(self, earlier: BootTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time left until this instant; zero once it has come.
    pub fn left_at(self, now: BootTime) -> Duration {
        self.since(now)
    }

    /// Whether this instant has come.
    pub fn has_come(self, now: BootTime) -> bool {
        self <= now
    }
}

/// Saturates: the far end of time (584 years after boot) means never.
impl Add<Duration> for BootTime {
    type Output = BootTime;

    fn add(self, by: Duration) -> BootTime {
        BootTime(self.0.saturating_add(nanos(by)))
    }
}

/// Saturates at boot.
impl Sub<Duration> for BootTime {
    type Output = BootTime;

    fn sub(self, by: Duration) -> BootTime {
        BootTime(self.0.saturating_sub(nanos(by)))
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const MILLION: u128 = 1_000_000;

/// The server's view of a duration promised to a client: longer by the drift, rounded up.
pub fn lengthened(duration: Duration, drift_ppm: u32) -> Duration {
    let parts = u128::from(nanos(duration)) * (MILLION + u128::from(drift_ppm));
    from_nanos(parts.div_ceil(MILLION))
}

/// The client's view of a duration promised by a server: shorter by the drift, rounded down.
pub fn shortened(duration: Duration, drift_ppm: u32) -> Duration {
    let kept = MILLION.saturating_sub(u128::from(drift_ppm));
    from_nanos(u128::from(nanos(duration)) * kept / MILLION)
}

fn from_nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_always_errs_to_the_safe_side() {
        let term = Duration::from_nanos(10_000_000_001);
        assert_eq!(
            lengthened(term, 1_000),
            Duration::from_nanos(10_010_000_002)
        );
        assert_eq!(shortened(term, 1_000), Duration::from_nanos(9_990_000_000));
    }

    #[test]
    fn a_promise_shortened_and_lengthened_by_the_same_drift_never_grows_over_it() {
        let term = Duration::from_secs(10);
        for ppm in [0, 1, 1_000, 100_000] {
            assert!(shortened(lengthened(term, ppm), ppm) <= term, "{ppm} ppm");
        }
    }

    #[test]
    fn arithmetic_saturates_at_both_ends_of_time() {
        let never = BootTime::from_nanos(u64::MAX);
        assert_eq!(never + Duration::MAX, never);
        assert_eq!(BootTime::ZERO - Duration::from_secs(1), BootTime::ZERO);
        assert_eq!(BootTime::ZERO.since(never), Duration::ZERO);
    }
}
