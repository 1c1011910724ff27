//! Clocks that run at different rates.

use super::model::Nanos;
use leasefs_lease::time::BootTime;

const MILLION: u64 = 1_000_000;

/// A host's clock.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    /// What it showed at `since`.
    base: u64,
    since: Nanos,
    /// Parts per million of true time.
    rate: u64,
}

impl HostClock {
    /// A clock that shows `base` at `since` and is wrong by `error_ppm`.
    pub fn new(base: u64, since: Nanos, error_ppm: i64) -> Self {
        let rate = MILLION.saturating_add_signed(error_ppm);
        Self { base, since, rate }
    }

    /// What it shows at a moment.
    pub fn at(&self, now: Nanos) -> BootTime {
        let shown = (now - self.since) as u128 * u128::from(self.rate) / u128::from(MILLION);
        BootTime::from_nanos(self.base + shown as u64)
    }

    /// The first moment at which it shows `local` or more.
    pub fn when(&self, local: BootTime) -> Nanos {
        let wait = local.as_nanos().saturating_sub(self.base);
        let wait = u128::from(wait) * u128::from(MILLION);
        self.since + wait.div_ceil(u128::from(self.rate)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_computed_from_the_clock_is_the_first_at_which_it_shows_that_much() {
        for error in [-50_000, -7, 0, 3, 50_000] {
            let clock = HostClock::new(12_345, 777, error);
            for local in [12_345, 12_346, 1_000_000_007, 98_765_432_100] {
                let local = BootTime::from_nanos(local);
                let when = clock.when(local);
                assert!(clock.at(when) >= local);
                assert!(when == 777 || clock.at(when - 1) < local);
            }
        }
    }
}
