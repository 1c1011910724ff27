//! The common log: records of all writers, each whole, once, and in its writer's order.

use super::journal::LOG;
use super::model::Record;
use super::register::Floor;
use super::stamp::{CELL, Cell, Stamp, describe};
use super::verify::{Witness, cell_at, push_some};
use std::collections::BTreeMap;

/// Where the cells of a record were found.
type Found = BTreeMap<u64, Vec<u64>>;

/// The log taken apart: by writer and call, where the record's cells are.
struct Log<'a> {
    seed: u64,
    witnesses: &'a [Witness],
    found: BTreeMap<(u16, u64), Found>,
    wrong: Vec<String>,
    /// Where in its record the next cell is, as a rule.
    next: u64,
}

pub(super) fn check_log(seed: u64, witnesses: &[Witness], bytes: &[u8], all: &mut Vec<String>) {
    let mut log = Log {
        seed,
        witnesses,
        found: BTreeMap::new(),
        wrong: Vec::new(),
        next: 0,
    };
    if !bytes.len().is_multiple_of(CELL) {
        log.wrong.push(format!("{} bytes", bytes.len()));
    }
    for place in (0..bytes.len() as u64).step_by(CELL) {
        log.sort_in(place, &cell_at(bytes, place));
    }
    log.check_records();
    push_some(
        log.wrong.into_iter().map(|wrong| format!("log: {wrong}")),
        all,
    );
}

impl Log<'_> {
    fn record(&self, writer: u16, seq: u64) -> Option<&Record> {
        self.witnesses
            .get(usize::from(writer))?
            .model
            .records
            .get(&seq)
    }

    fn sort_in(&mut self, at: u64, cell: &Cell) {
        // Other writers' records may have been lost between what was kept.
        let may_be_torn = self.witnesses.iter().any(|witness| witness.expect.torn);
        if *cell == [0; CELL] && may_be_torn {
            return;
        }
        let claimed = Stamp::claimed(self.seed, cell).filter(|stamp| stamp.file == LOG);
        let record = claimed.and_then(|stamp| Some((stamp, self.record(stamp.writer, stamp.seq)?)));
        let place = record.and_then(|(stamp, record)| {
            let all = (0..record.len).step_by(CELL);
            let place = [self.next, 0]
                .into_iter()
                .chain(all)
                .find(|place| stamp.cell(*place) == *cell)?;
            Some((stamp, place))
        });
        match place {
            Some((stamp, place)) => {
                self.next = place + CELL as u64;
                let found = self.found.entry((stamp.writer, stamp.seq)).or_default();
                found.entry(place).or_default().push(at);
            }
            None => {
                let found = describe(self.seed, cell);
                self.wrong.push(format!("byte {at}: {found} of no record"));
            }
        }
    }

    fn check_records(&mut self) {
        for (writer, witness) in self.witnesses.iter().enumerate() {
            let (writer, mut behind) = (writer as u16, 0);
            for (seq, record) in &witness.model.records {
                let found = self.found.remove(&(writer, *seq)).unwrap_or_default();
                if let Some(why) = wrong(record, &found, witness, behind) {
                    let what = format!("record {seq} of writer {writer}: {why}");
                    self.wrong.push(what);
                }
                behind = found.values().flatten().copied().max().unwrap_or(behind);
            }
        }
    }
}

/// What is wrong with a record that must come after the byte `behind`.
fn wrong(record: &Record, found: &Found, witness: &Witness, behind: u64) -> Option<String> {
    let expect = witness.expect;
    let whole = found.len() as u64 == record.len / CELL as u64;
    let must_be = record.durable || (record.returned && expect.content == Floor::Returned);
    if must_be && !whole {
        let (found, all) = (found.len(), record.len / CELL as u64);
        return Some(format!("{found} of {all} cells of what was acknowledged"));
    }
    if !whole && !found.is_empty() && expect.content == Floor::Returned {
        return Some("torn".to_owned());
    }
    if found.values().any(|places| places.len() > 1) {
        return Some("doubled".to_owned());
    }
    let mut begins = found.iter().map(|(place, at)| at[0].wrapping_sub(*place));
    let begin = begins.next()?;
    if begins.any(|other| other != begin) {
        return Some("scattered".to_owned());
    }
    (begin < behind).then(|| format!("before an earlier one, at {begin}"))
}
