//! How long things took, for people and their programs: counted in a few buckets, at the cost of two
//! additions each.

use crate::request::Request;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// In whole milliseconds, as documents have it; the most there is for what is longer.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Up to how long what is counted in each bucket took. The bucket behind the last has no bound.
pub const BOUNDS: [Duration; 12] = [
    Duration::from_micros(100),
    Duration::from_micros(300),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

const BUCKETS: usize = BOUNDS.len() + 1;

/// Counts how long something took each time. Takes no lock.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// What a [`Histogram`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many ended in each bucket alone.
    pub buckets: [u64; BUCKETS],
    /// How long all took together.
    pub sum: Duration,
}

impl Counts {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl Histogram {
    /// Counts one.
    pub fn add(&self, took: Duration) {
        let bucket = BOUNDS.iter().take_while(|bound| took > **bound).count();
        if let Some(count) = self.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            buckets: self.buckets.each_ref().map(read),
            sum: Duration::from_nanos(read(&self.nanos)),
        }
    }
}

/// A histogram for each kind of request.
#[derive(Debug)]
pub struct ByKind([Histogram; Request::KINDS]);

impl Default for ByKind {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Histogram::default()))
    }
}

impl ByKind {
    /// Counts a request of this kind, as [`Request::kind`] names it.
    pub fn add(&self, kind: &str, took: Duration) {
        let place = Request::kinds().position(|known| known == kind);
        if let Some(histogram) = place.and_then(|at| self.0.get(at)) {
            histogram.add(took);
        }
    }

    /// What was counted, by kind; kinds without any left out.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, Counts)> {
        let counts = self.0.iter().map(Histogram::counts);
        Request::kinds()
            .zip(counts)
            .filter(|(_, counts)| counts.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_in_the_first_bucket_that_it_is_not_over() {
        let histogram = Histogram::default();
        for bound in BOUNDS {
            histogram.add(bound);
        }
        histogram.add(Duration::from_nanos(1));
        histogram.add(Duration::from_secs(3600));
        let counts = histogram.counts();
        assert_eq!(counts.buckets, [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(counts.count(), 14);
        let sum: Duration = BOUNDS.iter().sum();
        let all = sum + Duration::from_secs(3600) + Duration::from_nanos(1);
        assert_eq!(counts.sum, all);
    }

    #[test]
    fn kinds_are_counted_apart_and_what_is_none_is_not() {
        let all = ByKind::default();
        all.add("lookup", Duration::ZERO);
        all.add("write", Duration::ZERO);
        all.add("write", Duration::ZERO);
        all.add("nonsense", Duration::ZERO);
        let counts = all.counts().map(|(kind, counts)| (kind, counts.count()));
        assert_eq!(counts.collect::<Vec<_>>(), [("lookup", 1), ("write", 2)]);
    }
}
