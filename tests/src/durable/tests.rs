//! Planted losses and foreign bytes are noticed; what a crash may do is not.

use super::journal::{Entry, FileId, LOG, Op, STRIPES};
use super::model::WriterModel;
use super::snapshot::{STRIPE, Snapshot};
use super::stamp::{CELL, Stamp};
use super::verify::{Expect, Witness, verify};

const SEED: u64 = 5;
const FILE: FileId = FileId(0x10001);
const CELL_LEN: u64 = CELL as u64;

/// One writer's calls, each with whether it succeeded.
#[derive(Default)]
struct Calls(Vec<Entry>);

impl Calls {
    fn begin(&mut self, op: Op) -> u64 {
        let begun = |entry: &&Entry| matches!(entry, Entry::Begin { .. });
        let seq = self.0.iter().filter(begun).count() as u64 + 1;
        self.0.push(Entry::Begin { seq, op });
        seq
    }

    fn done(&mut self, op: Op) -> u64 {
        let seq = self.begin(op);
        self.0.push(Entry::Done { seq });
        seq
    }

    fn failed(&mut self, op: Op) -> u64 {
        let seq = self.begin(op);
        self.0.push(Entry::Failed { seq, errno: 5 });
        seq
    }

    /// The file with one cell, durable by name and content.
    fn durable_file() -> Self {
        let mut calls = Self::default();
        calls.done(create("f1"));
        calls.done(write(0, 1));
        calls.done(Op::Sync { file: FILE });
        calls.done(Op::SyncDir);
        calls
    }

    fn check(&self, expect: Expect, found: &Snapshot) -> Vec<String> {
        let witness = Witness {
            model: WriterModel::new(&self.0, 2 * STRIPE),
            expect,
        };
        verify(SEED, &[witness], found)
    }
}

fn create(name: &str) -> Op {
    Op::Create {
        name: name.to_owned(),
        file: FILE,
    }
}

fn write(cell: u64, cells: u64) -> Op {
    Op::Write {
        file: FILE,
        offset: cell * CELL_LEN,
        len: cells * CELL_LEN,
        synced: false,
    }
}

fn bytes(file: FileId, seq: u64, cell: u64, cells: u64) -> Vec<u8> {
    let stamp = Stamp {
        seed: SEED,
        file,
        writer: 0,
        seq,
    };
    stamp.bytes(cell * CELL_LEN, cells * CELL_LEN)
}

fn there(files: &[(&str, Vec<u8>)], log: Vec<u8>) -> Snapshot {
    let home = files
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
    Snapshot {
        homes: vec![home.collect()],
        stripes: vec![0; 2 * STRIPE as usize],
        log,
    }
}

fn file(content: Vec<u8>) -> Snapshot {
    there(&[("f1", content)], Vec::new())
}

#[test]
fn synced_bytes_that_are_gone_zero_or_old_are_flagged() {
    let mut calls = Calls::durable_file();
    let newer = calls.done(write(0, 1));
    calls.done(Op::Sync { file: FILE });
    let good = file(bytes(FILE, newer, 0, 1));
    assert_eq!(calls.check(Expect::POWER_LOST, &good), [""; 0]);
    for bad in [Vec::new(), vec![0; CELL], bytes(FILE, 2, 0, 1)] {
        assert!(!calls.check(Expect::POWER_LOST, &file(bad)).is_empty());
    }
    assert!(
        !calls
            .check(Expect::POWER_LOST, &there(&[], Vec::new()))
            .is_empty()
    );
}

#[test]
fn what_only_returned_may_go_with_the_power_but_not_with_the_server() {
    let mut calls = Calls::durable_file();
    calls.done(write(0, 2));
    let old = file(bytes(FILE, 2, 0, 1));
    assert_eq!(calls.check(Expect::POWER_LOST, &old), [""; 0]);
    assert_eq!(calls.check(Expect::CLIENT_DIED, &old), [""; 0]);
    assert!(!calls.check(Expect::ALL_RETURNED, &old).is_empty());
}

#[test]
fn bytes_that_nobody_wrote_there_are_flagged() {
    let calls = Calls::durable_file();
    let misplaced = bytes(FILE, 2, 1, 1);
    let of_another_file = bytes(FileId(9), 2, 0, 1);
    let never_asked_for = bytes(FILE, 9, 0, 1);
    let beyond = bytes(FILE, 2, 0, 2);
    for bad in [
        misplaced,
        of_another_file,
        never_asked_for,
        beyond,
        vec![1; CELL],
    ] {
        assert!(!calls.check(Expect::POWER_LOST, &file(bad)).is_empty());
    }
}

#[test]
fn a_cell_of_two_versions_is_allowed_only_where_the_power_was_cut_under_the_later() {
    let mut calls = Calls::durable_file();
    calls.begin(write(0, 1));
    let mut mixed = bytes(FILE, 2, 0, 1);
    mixed[24..].copy_from_slice(&bytes(FILE, 5, 0, 1)[24..]);
    let found = file(mixed);
    assert_eq!(calls.check(Expect::POWER_LOST, &found), [""; 0]);
    assert!(!calls.check(Expect::CLIENT_DIED, &found).is_empty());
}

#[test]
fn a_failed_write_may_be_there_and_a_failed_sync_promises_nothing() {
    let mut calls = Calls::durable_file();
    let newer = calls.failed(write(0, 1));
    for seq in [2, newer] {
        let found = file(bytes(FILE, seq, 0, 1));
        assert_eq!(calls.check(Expect::ALL_RETURNED, &found), [""; 0]);
    }
    let mut calls = Calls::durable_file();
    calls.done(write(0, 1));
    calls.failed(Op::Sync { file: FILE });
    calls.done(Op::Sync { file: FILE });
    let old = file(bytes(FILE, 2, 0, 1));
    assert_eq!(calls.check(Expect::POWER_LOST, &old), [""; 0]);
}

#[test]
fn names_that_are_missing_left_over_or_nobodys_are_flagged() {
    let mut calls = Calls::durable_file();
    let content = bytes(FILE, 2, 0, 1);
    let foreign = there(&[("f1", content.clone()), ("x", Vec::new())], Vec::new());
    assert!(!calls.check(Expect::POWER_LOST, &foreign).is_empty());
    calls.done(Op::Rename {
        from: "f1".to_owned(),
        to: "g".to_owned(),
    });
    let (old, new) = (file(content.clone()), there(&[("g", content)], Vec::new()));
    assert_eq!(calls.check(Expect::POWER_LOST, &old), [""; 0]);
    assert!(!calls.check(Expect::CLIENT_DIED, &old).is_empty());
    calls.done(Op::SyncDir);
    assert!(!calls.check(Expect::POWER_LOST, &old).is_empty());
    assert_eq!(calls.check(Expect::POWER_LOST, &new), [""; 0]);
}

#[test]
fn a_truncation_that_was_synced_is_not_undone() {
    let mut calls = Calls::durable_file();
    calls.done(Op::Truncate {
        file: FILE,
        size: 0,
    });
    let whole = file(bytes(FILE, 2, 0, 1));
    assert_eq!(calls.check(Expect::POWER_LOST, &whole), [""; 0]);
    calls.done(Op::Sync { file: FILE });
    assert!(!calls.check(Expect::POWER_LOST, &whole).is_empty());
    assert_eq!(calls.check(Expect::POWER_LOST, &file(Vec::new())), [""; 0]);
}

#[test]
fn a_lost_stripe_is_flagged() {
    let mut calls = Calls::default();
    let seq = calls.done(Op::Write {
        file: STRIPES,
        offset: 0,
        len: STRIPE,
        synced: true,
    });
    let mut found = there(&[], Vec::new());
    assert!(!calls.check(Expect::POWER_LOST, &found).is_empty());
    found.stripes[..STRIPE as usize].copy_from_slice(&bytes(STRIPES, seq, 0, 16));
    assert_eq!(calls.check(Expect::POWER_LOST, &found), [""; 0]);
}

#[test]
fn records_that_are_lost_doubled_torn_or_out_of_order_are_flagged() {
    let mut calls = Calls::default();
    let len = 2 * CELL_LEN;
    let (a, b) = (
        calls.done(Op::Append { len }),
        calls.done(Op::Append { len }),
    );
    calls.done(Op::Sync { file: LOG });
    let c = calls.done(Op::Append { len });
    let record = |seq| bytes(LOG, seq, 0, 2);
    let check = |expect, parts: &[Vec<u8>]| calls.check(expect, &there(&[], parts.concat()));
    assert_eq!(
        check(Expect::ALL_RETURNED, &[record(a), record(b), record(c)]),
        [""; 0]
    );
    assert_eq!(check(Expect::POWER_LOST, &[record(a), record(b)]), [""; 0]);
    assert_eq!(check(Expect::CLIENT_DIED, &[record(a), record(b)]), [""; 0]);
    let half = record(c)[..CELL].to_vec();
    let zeros = vec![0; CELL];
    assert_eq!(
        check(Expect::POWER_LOST, &[record(a), record(b), half.clone()]),
        [""; 0]
    );
    for bad in [
        vec![record(a)],
        vec![record(a), record(b)],
        vec![record(a), record(b), half],
        vec![record(b), record(a), record(c)],
        vec![record(a), record(a), record(b), record(c)],
        vec![record(a), record(b), zeros, record(c)],
    ] {
        assert!(!check(Expect::ALL_RETURNED, &bad).is_empty(), "{bad:?}");
    }
}
