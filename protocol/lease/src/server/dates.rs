//! When a session's leases were granted, roughly, for people.
//!
//! A lease names the stamp of its grant and no time: it is small, and there are a million of them. Which stamp was given out
//! when is noted once for the session, every second at most; the notes are thinned so that what is old is known as well for its
//! age as what is new.

use crate::time::BootTime;
use leasefs_protocol::Stamp;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// Notes are so far apart at least.
const APART: Duration = Duration::from_secs(1);
/// Notes of one session.
const MOST: usize = 128;

/// Some of a session's stamps and when they were given out, the oldest first. Nothing is decided by it, so sessions that differ
/// here alone are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Dates(Vec<(Stamp, BootTime)>);

impl PartialEq for Dates {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Dates {}

impl Hash for Dates {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Dates {
    /// The session's next stamp is given out.
    pub(super) fn note(&mut self, stamp: Stamp, now: BootTime) {
        let last = self.0.last();
        if last.is_some_and(|(_, at)| !(*at + APART).has_come(now)) {
            return;
        }
        if self.0.len() == MOST {
            self.thin(now);
        }
        self.0.push((stamp, now));
    }

    /// When a stamp was given out: never later, and earlier by a second and a quarter of its age at most while the session is
    /// younger than a month.
    pub(super) fn of(&self, stamp: Stamp) -> Option<BootTime> {
        let up_to = self.0.partition_point(|(noted, _)| *noted <= stamp);
        self.0.get(up_to.checked_sub(1)?).map(|(_, at)| *at)
    }

    /// Forgets the note that says least: the gap it leaves is the smallest for its age.
    fn thin(&mut self, now: BootTime) {
        let gaps = self.0.windows(3).map(|notes| {
            let (before, behind) = (notes[0].1, notes[2].1);
            behind.since(before).as_secs_f64() / now.since(before).as_secs_f64()
        });
        let least = gaps.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
        if let Some((at, _)) = least {
            self.0.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    fn at(seconds: u64) -> BootTime {
        BootTime::ZERO + Duration::from_secs(seconds)
    }

    /// A session to which leases are granted every second, and each stamp's second.
    fn busy(seconds: u64) -> Dates {
        let mut dates = Dates::default();
        (0..seconds).for_each(|second| dates.note(Stamp(second + 1), at(second)));
        dates
    }

    #[test]
    fn a_grant_is_dated_to_a_second_and_a_quarter_of_its_age() {
        for age in [1, 100, 3_600, DAY, 30 * DAY] {
            let (dates, now) = (busy(age), at(age));
            assert!(dates.0.len() <= MOST);
            for second in (0..age).step_by(1 + age as usize / 10_000) {
                let told = dates.of(Stamp(second + 1)).expect("noted");
                let wrong = at(second).since(told);
                let most = Duration::from_secs(1) + now.since(at(second)) / 4;
                assert!(told <= at(second), "never later than it was");
                assert!(wrong <= most, "{wrong:?} of {:?}", now.since(at(second)));
            }
        }
    }

    #[test]
    fn what_is_granted_within_a_second_is_noted_once() {
        let mut dates = Dates::default();
        for stamp in 1..=1_000 {
            dates.note(Stamp(stamp), at(5) + Duration::from_micros(stamp));
        }
        assert_eq!(dates.0.len(), 1);
        assert_eq!(dates.of(Stamp(1_000)), dates.of(Stamp(1)));
        assert_eq!(
            dates.of(Stamp(0)),
            None,
            "given out before anything was noted"
        );
    }
}
