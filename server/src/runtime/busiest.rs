//! Which files are asked for most: counted over one period after the other, in a table that doesn't grow.
//!
//! Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005): what
//! comes new takes the place of the rarest and its count, which is remembered as what may be too much. So whatever has
//! more than its share of the table is in it.

use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;
use leasefs_protocol::limits::MAX_BUSY_FILES;
use std::collections::HashMap;
use std::time::Duration;

/// How long is counted.
const PERIOD: Duration = Duration::from_secs(10);

/// A file, and how often it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Its handle.
    pub object: Handle,
    /// Requests a second at least, in a period of ten.
    pub per_second: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    requests: u64,
    /// So many of them may be others'.
    too_much: u64,
}

#[derive(Debug)]
pub(super) struct Busiest {
    since: BootTime,
    counts: HashMap<Handle, Count>,
    /// Of the period before.
    last: Vec<Busy>,
}

impl Busiest {
    pub fn new(now: BootTime) -> Self {
        Self {
            since: now,
            counts: HashMap::with_capacity(MAX_BUSY_FILES),
            last: Vec::new(),
        }
    }

    /// It is asked for.
    pub fn asked(&mut self, now: BootTime, object: &Handle) {
        self.turn(now);
        if let Some(count) = self.counts.get_mut(object) {
            count.requests += 1;
            return;
        }
        let inherited = match self.counts.len() < MAX_BUSY_FILES {
            true => 0,
            false => self.replace_rarest(),
        };
        let count = Count {
            requests: inherited + 1,
            too_much: inherited,
        };
        self.counts.insert(*object, count);
    }

    fn replace_rarest(&mut self) -> u64 {
        let rarest = self.counts.iter().min_by_key(|(_, count)| count.requests);
        let Some((object, requests)) = rarest.map(|(object, count)| (*object, count.requests))
        else {
            return 0;
        };
        self.counts.remove(&object);
        requests
    }

    /// Those of the last whole period, the busiest first.
    pub fn last(&mut self, now: BootTime) -> Vec<Busy> {
        self.turn(now);
        self.last.clone()
    }

    fn turn(&mut self, now: BootTime) {
        let over = now.since(self.since);
        if over < PERIOD {
            return;
        }
        // Else nothing was asked for in the last one, and what was counted is of one before.
        let is_last = over < 2 * PERIOD;
        let counted = self.counts.drain().map(|(object, count)| Busy {
            object,
            per_second: (count.requests - count.too_much) / PERIOD.as_secs(),
        });
        self.last = counted
            .filter(|busy| is_last && busy.per_second > 0)
            .collect();
        self.last
            .sort_unstable_by_key(|busy| std::cmp::Reverse((busy.per_second, busy.object)));
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootTime = BootTime::ZERO;

    fn object(number: u16) -> Handle {
        Handle::new(&number.to_be_bytes()).expect("two bytes")
    }

    #[test]
    fn the_busiest_of_the_last_period_come_first_and_those_asked_for_seldom_not_at_all() {
        let mut busiest = Busiest::new(START);
        for (number, requests) in [(1, 10), (2, 35), (3, 9)] {
            (0..requests).for_each(|_| busiest.asked(START, &object(number)));
        }
        assert_eq!(busiest.last(START), [], "the period isn't over");
        let told = |busiest: &mut Busiest, at| {
            let last = busiest.last(START + at);
            last.into_iter()
                .map(|busy| (busy.object, busy.per_second))
                .collect::<Vec<_>>()
        };
        let expected = [(object(2), 3), (object(1), 1)];
        assert_eq!(told(&mut busiest, PERIOD), expected);
        assert_eq!(
            told(&mut busiest, 2 * PERIOD - Duration::from_millis(1)),
            expected
        );
        assert_eq!(told(&mut busiest, 2 * PERIOD), [], "nothing was asked for");
    }

    #[test]
    fn who_asks_for_many_files_once_neither_fills_the_table_nor_hides_a_busy_one() {
        let mut busiest = Busiest::new(START);
        for number in 100..10_000 {
            busiest.asked(START, &object(number));
            if number % 20 == 0 {
                busiest.asked(START, &object(7));
            }
            assert!(busiest.counts.len() <= MAX_BUSY_FILES);
        }
        let last = busiest.last(START + PERIOD);
        let busy = last.first().expect("one is busy");
        assert_eq!(busy.object, object(7));
        assert!(
            busy.per_second <= 495 / 10,
            "it was asked for no oftener: {busy:?}"
        );
    }

    #[test]
    fn what_was_counted_long_ago_is_not_told() {
        let mut busiest = Busiest::new(START);
        (0..100).for_each(|_| busiest.asked(START, &object(1)));
        assert_eq!(busiest.last(START + 3 * PERIOD), []);
    }
}
