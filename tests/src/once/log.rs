//! What a log that several append to must hold. Pure.

use super::worker::Wrong;
use std::collections::{BTreeMap, BTreeSet};

/// Most differences that are told.
const MOST: usize = 20;

/// What one who appends to a log was told.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Records it appended, numbered from 0.
    pub records: u64,
    /// Its `fsync` said that some could not be brought in (EIO).
    pub refused: bool,
}

/// Each one's records stand in the log once and in order. Those that are missing are kept by its mount,
/// which was cut off while another appended; then, and only then, it was told.
pub fn check_log(log: &str, answers: &BTreeMap<usize, Log>, kept: &[String]) -> Vec<Wrong> {
    let mut next: BTreeMap<usize, u64> = answers.keys().map(|number| (*number, 0)).collect();
    let mut missing = BTreeMap::<usize, BTreeSet<u64>>::new();
    let mut wrong = Vec::new();
    for line in log.lines() {
        let due = parsed(line).and_then(|(number, record)| {
            let due = next.get_mut(&number)?;
            let appended = (*due..answers[&number].records).contains(&record);
            appended.then(|| (number, std::mem::replace(due, record + 1)..record))
        });
        match due {
            Some((number, skipped)) => missing.entry(number).or_default().extend(skipped),
            None => wrong.push(format!("the log says {line:?} where {next:?} are due")),
        }
    }
    for (number, answer) in answers {
        let missing = missing.entry(*number).or_default();
        missing.extend(next[number]..answer.records);
        let kept = kept.get(*number).map_or("", String::as_str);
        wrong.extend(check_kept(*number, *answer, missing, kept));
    }
    wrong.truncate(MOST);
    wrong
}

fn parsed(line: &str) -> Option<(usize, u64)> {
    let (number, record) = line.split_once(' ')?;
    Some((number.parse().ok()?, record.parse().ok()?))
}

fn check_kept(number: usize, answer: Log, missing: &BTreeSet<u64>, kept: &str) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut found = BTreeSet::new();
    for line in kept.lines() {
        match parsed(line).filter(|(writer, record)| *writer == number && *record < answer.records)
        {
            Some((_, record)) => drop(found.insert(record)),
            None => wrong.push(format!("the mount of {number} keeps {line:?}")),
        }
    }
    if found.is_empty() == answer.refused {
        let (refused, count) = (answer.refused, found.len());
        wrong.push(format!(
            "{number} was told of a loss: {refused}; {count} records are kept"
        ));
    }
    let lost: Vec<_> = missing.difference(&found).collect();
    if let (Some(first), Some(last)) = (lost.first(), lost.last()) {
        let count = lost.len();
        wrong.push(format!(
            "{count} records of {number} are lost, from {first} to {last}"
        ));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(log: &str, refused: bool, kept: &str) -> bool {
        let first = Log {
            records: 2,
            refused,
        };
        let second = Log {
            records: 1,
            refused: false,
        };
        let answers = BTreeMap::from([(0, first), (1, second)]);
        check_log(log, &answers, &[kept.to_owned(), String::new()]).is_empty()
    }

    #[test]
    fn lost_doubled_and_swapped_records_are_flagged() {
        assert!(check("0 0\n1 0\n0 1\n", false, ""));
        for log in [
            "0 0\n1 0\n",
            "0 0\n0 0\n1 0\n0 1\n",
            "0 1\n1 0\n0 0\n",
            "0 0\n1 0\n0 1\n0 2\n",
            "0 0\n1 0\n0 1\nx\n",
        ] {
            assert!(!check(log, false, ""), "{log:?}");
        }
    }

    #[test]
    fn records_that_are_not_brought_in_must_be_kept_and_their_writer_be_told() {
        assert!(check("1 0\n0 1\n", true, "0 0\n"));
        assert!(check("0 0\n1 0\n", true, "0 1\n"));
        assert!(!check("1 0\n0 1\n", false, "0 0\n"), "told of nothing");
        assert!(!check("1 0\n0 1\n", true, ""), "kept nothing");
        assert!(!check("1 0\n", true, "0 0\n"), "kept half");
        assert!(!check("1 0\n0 1\n", true, "0 0\n1 0\n"), "another's");
    }
}
