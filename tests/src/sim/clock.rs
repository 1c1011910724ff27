//! Clocks of hosts: they run at different rates, and one of the two stands still in suspend.

use super::model::Nanos;
use leasefs_client::Now;
use leasefs_lease::time::BootTime;

const MILLION: u64 = 1_000_000;

/// A host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    /// What it showed at `since`.
    base: u64,
    since: Nanos,
    /// Parts per million of true time.
    rate: u64,
    /// By how much the monotonic clock is behind.
    slept: u64,
    /// It shows multiples of this.
    grain: u64,
}

impl HostClock {
    /// A clock that shows `base` at `since` and is wrong by `error_ppm`.
    pub fn new(base: u64, since: Nanos, error_ppm: i64) -> Self {
        let rate = MILLION.saturating_add_signed(error_ppm);
        Self {
            base,
            since,
            rate,
            slept: 0,
            grain: 1,
        }
    }

    /// The same clock, which moves on in steps of `grain`.
    pub fn coarse(self, grain: Nanos) -> Self {
        Self { grain, ..self }
    }

    fn shown(&self, length: Nanos) -> u64 {
        (u128::from(length) * u128::from(self.rate) / u128::from(MILLION)) as u64
    }

    /// `CLOCK_BOOTTIME` at a moment.
    pub fn boot(&self, now: Nanos) -> BootTime {
        let shown = self.shown(now - self.since);
        BootTime::from_nanos(self.base + shown / self.grain * self.grain)
    }

    /// `CLOCK_MONOTONIC` at a moment.
    pub fn monotonic(&self, now: Nanos) -> BootTime {
        let boot = self.boot(now).as_nanos();
        BootTime::from_nanos(boot - self.slept)
    }

    /// Both.
    pub fn now(&self, now: Nanos) -> Now {
        Now {
            boot: self.boot(now),
            monotonic: self.monotonic(now),
        }
    }

    /// The first moment at which `CLOCK_BOOTTIME` shows `local` or more.
    pub fn when(&self, local: BootTime) -> Nanos {
        let wait = local.as_nanos().saturating_sub(self.base);
        let wait = u128::from(wait.div_ceil(self.grain)) * u128::from(self.grain * MILLION);
        self.since
            .saturating_add(u64::try_from(wait.div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX))
    }

    /// As [`HostClock::when`], of `CLOCK_MONOTONIC`.
    pub fn when_monotonic(&self, local: BootTime) -> Nanos {
        self.when(BootTime::from_nanos(
            local.as_nanos().saturating_add(self.slept),
        ))
    }

    /// The host has slept for so long of true time.
    pub fn slept(&mut self, length: Nanos) {
        self.slept += self.shown(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_computed_from_the_clock_is_the_first_at_which_it_shows_that_much() {
        for error in [-50_000, -7, 0, 3, 50_000] {
            let mut clock = HostClock::new(12_345, 777, error);
            for local in [12_345, 12_346, 1_000_000_007, 98_765_432_100] {
                let local = BootTime::from_nanos(local);
                let when = clock.when(local);
                assert!(clock.boot(when) >= local);
                assert!(when == 777 || clock.boot(when - 1) < local);
            }
            let coarse = clock.coarse(1_000);
            for local in [12_345, 12_346, 1_000_000_007] {
                let local = BootTime::from_nanos(local);
                let when = coarse.when(local);
                assert!(coarse.boot(when) >= local);
                assert!(when == 777 || coarse.boot(when - 1) < local);
            }
            clock.slept(5_000);
            assert!(clock.monotonic(9_000) < clock.boot(9_000));
        }
    }
}
