//! What processes that increment one counter under a lock may say.

use super::locker::Answer;
use std::collections::BTreeMap;

/// An increment that was written under a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    value: u64,
    /// When the lock was there and the value was to be read.
    began: u64,
    /// When it was written, before the lock was given up.
    ended: u64,
}

/// What was said ([`super::process`]: `count`).
#[derive(Debug, Default)]
pub struct Ledger {
    begun: u64,
    written: Vec<Written>,
    lost: BTreeMap<String, u64>,
}

impl Ledger {
    /// Takes in what a process has said. True for an increment that was written.
    ///
    /// # Panics
    /// When it makes no sense.
    pub fn hear(&mut self, answer: &Answer) -> bool {
        let Answer { began, ended, text } = answer;
        let value = |text: &str| text.parse().expect("a value");
        match text.split_once(' ') {
            Some(("begin", _)) => self.begun += 1,
            Some(("wrote", text)) => self.written.push(Written {
                value: value(text),
                began: *began,
                ended: *ended,
            }),
            Some(("lost", what)) => *self.lost.entry(what.to_owned()).or_default() += 1,
            _ => panic!("what is {text}?"),
        }
        text.starts_with("wrote")
    }

    /// Increments that were written.
    pub fn written(&self) -> u64 {
        self.written.len() as u64
    }

    /// One line about it.
    pub fn summary(&self) -> String {
        format!(
            "{} begun, {} written, lost: {:?}",
            self.begun,
            self.written(),
            self.lost
        )
    }

    /// What is wrong if nothing ever failed: each value was written once, and nobody held the lock
    /// while another did.
    pub fn wrong_without_faults(&self, value: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        if !self.lost.is_empty() {
            wrong.push(format!("calls failed: {:?}", self.lost));
        }
        if value != self.written() {
            let told = self.written();
            wrong.push(format!(
                "{told} increments were written, the counter is {value}"
            ));
        }
        let sorted = self.sorted();
        wrong.extend(twice(&sorted));
        let overlaps = sorted
            .windows(2)
            .filter(|pair| pair[0].ended > pair[1].began);
        wrong.extend(overlaps.map(|pair| format!("two held the lock at once: {pair:?}")));
        wrong
    }

    /// What is wrong if holders, clients and servers may die: what was written is never taken back or
    /// written again, and later values were not written before earlier ones were begun.
    pub fn wrong_under_faults(&self, value: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        let sorted = self.sorted();
        let highest = sorted.last().map_or(0, |last| last.value);
        if value < highest.max(self.written()) {
            let told = self.written();
            wrong.push(format!(
                "{told} increments were written, up to {highest}, the counter is {value}"
            ));
        }
        if value > self.begun {
            let begun = self.begun;
            wrong.push(format!(
                "{begun} increments were begun, the counter is {value}"
            ));
        }
        wrong.extend(twice(&sorted));
        let mut latest_begin = 0;
        for written in sorted {
            if written.ended < latest_begin {
                wrong.push(format!("{written:?} was over before a lower one was begun"));
            }
            latest_begin = latest_begin.max(written.began);
        }
        wrong
    }

    fn sorted(&self) -> Vec<Written> {
        let mut sorted = self.written.clone();
        sorted.sort_by_key(|written| (written.value, written.began));
        sorted
    }
}

fn twice(sorted: &[Written]) -> Vec<String> {
    let pairs = sorted
        .windows(2)
        .filter(|pair| pair[0].value == pair[1].value);
    pairs
        .map(|pair| format!("a value was written twice: {pair:?}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(lines: &[(u64, u64, &str)]) -> Ledger {
        let mut ledger = Ledger::default();
        for (began, ended, text) in lines {
            ledger.hear(&Answer {
                began: *began,
                ended: *ended,
                text: (*text).to_owned(),
            });
        }
        ledger
    }

    #[test]
    fn increments_in_turn_are_right() {
        let ledger = ledger(&[
            (1, 1, "begin 1"),
            (1, 2, "wrote 1"),
            (3, 3, "begin 2"),
            (3, 4, "wrote 2"),
        ]);
        assert_eq!(ledger.wrong_without_faults(2), Vec::<String>::new());
        assert_eq!(ledger.wrong_under_faults(2), Vec::<String>::new());
        assert_eq!(ledger.wrong_under_faults(1).len(), 1);
        assert_eq!(ledger.wrong_under_faults(3).len(), 1);
    }

    #[test]
    fn a_value_written_twice_and_holders_at_once_are_noticed() {
        let twice = ledger(&[
            (1, 1, "begin 1"),
            (1, 3, "wrote 1"),
            (2, 2, "begin 1"),
            (2, 4, "wrote 1"),
        ]);
        assert_eq!(twice.wrong_without_faults(1).len(), 3);
        assert_eq!(twice.wrong_under_faults(2).len(), 1);
    }

    #[test]
    fn what_was_begun_and_not_written_may_be_in_the_file_or_not() {
        let ledger = ledger(&[(1, 1, "begin 1"), (1, 2, "lost write EIO")]);
        assert!(ledger.wrong_under_faults(0).is_empty());
        assert!(ledger.wrong_under_faults(1).is_empty());
        assert_eq!(ledger.wrong_without_faults(0).len(), 1);
    }

    #[test]
    fn a_higher_value_before_a_lower_one_is_noticed() {
        let ledger = ledger(&[
            (5, 5, "begin 1"),
            (5, 6, "wrote 1"),
            (1, 1, "begin 2"),
            (1, 2, "wrote 2"),
        ]);
        assert_eq!(ledger.wrong_under_faults(2).len(), 1);
    }
}
