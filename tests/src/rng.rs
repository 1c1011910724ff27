//! A small reproducible random source (SplitMix64): a run is named by its seed.

use leasefs_host::clock::monotonic_time;

/// A random stream that depends on nothing but its seed.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
    still: bool,
}

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed,
            still: false,
        }
    }

    /// No chance at all: numbers are the lowest, and what is a matter of chance doesn't happen.
    pub fn still() -> Self {
        Self {
            state: 0,
            still: true,
        }
    }

    /// Whether it leaves nothing to chance.
    pub fn is_still(&self) -> bool {
        self.still
    }

    /// An independent stream for worker `index` of the same run.
    pub fn fork(&self, index: u64) -> Self {
        let mut child =
            Self::new(self.state ^ index.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93));
        child.next_u64();
        child
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if self.still {
            return 0;
        }
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        !self.still && self.below(100) < percent
    }
}

/// A seed for a run that was not given one.
pub fn fresh_seed() -> u64 {
    let mut rng = Rng::new(monotonic_time().as_nanos() ^ (u64::from(std::process::id()) << 32));
    rng.next_u64() % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_stream_and_forks_differ() {
        let draw = |mut rng: Rng| (0..8).map(|_| rng.next_u64()).collect::<Vec<_>>();
        assert_eq!(draw(Rng::new(7)), draw(Rng::new(7)));
        assert_ne!(draw(Rng::new(7).fork(0)), draw(Rng::new(7).fork(1)));
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert_eq!(rng.below(0), 0);
    }
}
