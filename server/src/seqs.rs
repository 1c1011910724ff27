//! A set of change numbers that is small because they come nearly in order.

use leasefs_protocol::Seq;
use std::collections::BTreeMap;

/// Change numbers as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqSet {
    /// First of a range to its last.
    ranges: BTreeMap<u64, u64>,
}

impl SeqSet {
    /// Whether `seq` is in the set.
    pub fn contains(&self, seq: Seq) -> bool {
        self.ranges
            .range(..=seq.0)
            .next_back()
            .is_some_and(|(_, last)| seq.0 <= *last)
    }

    /// Adds `seq`.
    pub fn insert(&mut self, seq: Seq) {
        if self.contains(seq) {
            return;
        }
        let last = match seq.0.checked_add(1) {
            Some(next) => self.ranges.remove(&next).unwrap_or(seq.0),
            None => seq.0,
        };
        match self.ranges.range_mut(..seq.0).next_back() {
            Some((_, end)) if end.checked_add(1) == Some(seq.0) => *end = last,
            _ => {
                self.ranges.insert(seq.0, last);
            }
        }
    }

    /// Adds all from `first` to `last`, of which it has none.
    pub fn insert_all(&mut self, (first, last): (Seq, Seq)) {
        self.ranges.insert(first.0, last.0.max(first.0));
    }

    /// Its ranges, first and last number of each.
    pub fn all(&self) -> impl Iterator<Item = (Seq, Seq)> {
        let ranges = self.ranges.iter();
        ranges.map(|(first, last)| (Seq(*first), Seq(*last)))
    }

    /// Drops every number below `low`.
    pub fn remove_below(&mut self, low: Seq) {
        while let Some((first, last)) = self.ranges.first_key_value().map(|(f, l)| (*f, *l)) {
            if first >= low.0 {
                break;
            }
            self.ranges.remove(&first);
            if last >= low.0 {
                self.ranges.insert(low.0, last);
            }
        }
    }

    /// How many ranges it takes.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_whatever_their_order() {
        let mut set = SeqSet::default();
        for n in [5, 3, 4, 9, 7, 8] {
            set.insert(Seq(n));
        }
        assert_eq!(set.ranges(), 2);
        assert!((3..=5).chain(7..=9).all(|n| set.contains(Seq(n))));
        assert!([2, 6, 10].iter().all(|n| !set.contains(Seq(*n))));
    }

    #[test]
    fn the_low_water_mark_cuts_a_range() {
        let mut set = SeqSet::default();
        (1..10).for_each(|n| set.insert(Seq(n)));
        set.remove_below(Seq(4));
        assert!(!set.contains(Seq(3)) && set.contains(Seq(4)) && set.contains(Seq(9)));
        assert_eq!(set.ranges(), 1);
    }
}
