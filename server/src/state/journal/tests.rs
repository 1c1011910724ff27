//! Claims about what the journal says after a crash.

use super::*;
use crate::intent::Place;
use crate::records::Recorded;
use crate::state::tests::Scratch;
use leasefs_protocol::limits::MAX_ANSWERS;
use leasefs_protocol::{RawName, Refusal, Response};

const A: SessionId = SessionId([1; 16]);
const HOST_A: BootId = BootId([8; 16]);
const HOST_B: BootId = BootId([9; 16]);

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte; 30]).expect("fits")
}

fn intent(name: &str) -> Intent {
    Intent::Remove {
        at: Place {
            dir: handle(7),
            name: RawName(name.as_bytes().to_vec()),
        },
        object: handle(8),
    }
}

fn begins(journal: &mut Journal, seq: u64) {
    begins_above(journal, seq, 0);
}

fn begins_above(journal: &mut Journal, seq: u64, low: u64) {
    let begins = journal.begins(A, Seq(seq), Seq(low), &intent("a"));
    begins.expect("journal");
}

fn ends(journal: &mut Journal, seq: u64) {
    let ends = journal.ends(A, Seq(seq), &Ok(Response::Done), None);
    ends.expect("journal");
}

/// What a next life of the server finds of the session's changes.
fn changes(path: &Path, host: BootId, believed: bool) -> Vec<(u64, Recorded)> {
    let (_, found) = Journal::open(path, host, believed).expect("open");
    let mut found = found.expect("believed");
    let changes = found.changes.remove(&A).unwrap_or_default().into_recorded();
    changes.into_iter().map(|(seq, c)| (seq.0, c)).collect()
}

fn is_begun() -> Recorded {
    Recorded::Intent(intent("a"))
}

fn is_answered() -> Recorded {
    Recorded::Answered(Ok(Response::Done))
}

#[test]
fn changes_above_the_low_water_mark_and_write_leases_are_found_again() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, found) = Journal::open(&path, HOST_A, true).expect("open");
    assert_eq!(found, Some(Journalled::default()));
    (1..=5).for_each(|seq| begins(&mut journal, seq));
    ends(&mut journal, 4);
    begins_above(&mut journal, 6, 4);
    journal.write_lease(A, handle(1)).expect("journal");
    drop(journal);
    let (mut journal, found) = Journal::open(&path, HOST_A, false).expect("open");
    let found = found.expect("the same host");
    assert_eq!(found.writes, BTreeSet::from([(A, handle(1))]));
    journal.leases_ended(A).expect("journal");
    let (_, found) = Journal::open(&path, HOST_A, false).expect("open");
    assert!(found.expect("the same host").writes.is_empty());
    let expected = [(4, is_answered()), (5, is_begun()), (6, is_begun())];
    assert_eq!(changes(&path, HOST_A, false), expected);
}

#[test]
fn what_is_undone_is_as_if_it_had_never_begun_and_may_begin_again() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    begins(&mut journal, 1);
    journal.undone(A, Seq(1)).expect("journal");
    assert_eq!(changes(&path, HOST_A, false), []);
    let (mut journal, _) = Journal::open(&path, HOST_A, false).expect("open");
    begins(&mut journal, 1);
    ends(&mut journal, 1);
    journal.undone(A, Seq(1)).expect("journal");
    assert_eq!(changes(&path, HOST_A, false), [(1, is_answered())]);
}

#[test]
fn an_answer_stands_whatever_comes_later_and_without_a_beginning_there_is_none() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    begins(&mut journal, 1);
    ends(&mut journal, 1);
    let lost = Err(Refusal::Lost);
    journal.ends(A, Seq(1), &lost, None).expect("journal");
    journal.ends(A, Seq(2), &lost, None).expect("journal");
    assert_eq!(changes(&path, HOST_A, false), [(1, is_answered())]);
}

#[test]
fn after_a_restart_of_the_host_nothing_is_believed() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    begins(&mut journal, 1);
    let (_, found) = Journal::open(&path, HOST_B, false).expect("open");
    assert_eq!(found, None);
    let (_, found) = Journal::open(&path, HOST_B, false).expect("open");
    assert_eq!(found, Some(Journalled::default()));
}

#[test]
fn behind_an_orderly_end_and_a_restart_of_the_host_answers_stand_and_intents_are_lost() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    begins(&mut journal, 1);
    begins(&mut journal, 2);
    ends(&mut journal, 1);
    let expected = [(1, is_answered()), (2, Recorded::Lost)];
    assert_eq!(changes(&path, HOST_B, true), expected);
    assert_eq!(changes(&path, HOST_B, false), expected);
    std::fs::remove_file(&path).expect("remove");
    let (_, found) = Journal::open(&path, HOST_B, false).expect("open");
    assert_eq!(found, None);
}

#[test]
fn the_file_stays_bounded_by_what_is_alive() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    for seq in 1..=30_000 {
        begins_above(&mut journal, seq, seq);
        ends(&mut journal, seq);
    }
    let len = std::fs::metadata(&path).expect("file").len();
    assert!(len < 2 << 20, "{len}");
    assert_eq!(changes(&path, HOST_A, false), [(30_000, is_answered())]);
}

#[test]
fn no_more_answers_are_kept_than_a_running_server_keeps_and_the_oldest_are_lost() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    let many = MAX_ANSWERS as u64 + 2;
    for seq in 1..=many {
        begins(&mut journal, seq);
        ends(&mut journal, seq);
    }
    for _ in 0..2 {
        let found = changes(&path, HOST_A, false);
        let lost = found.iter().filter(|(_, c)| *c == Recorded::Lost);
        assert_eq!(lost.map(|(seq, _)| *seq).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(found.len() as u64, many);
    }
}

#[test]
fn a_write_lease_that_has_ended_is_forgotten_unless_it_was_asked_for_again() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    {
        let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
        for object in [1, 2, 3] {
            journal.write_lease(A, handle(object)).expect("journal");
        }
        assert_eq!(journal.idle_writes(), [], "all were just asked for");
        let all = [1, 2, 3].map(|object| (A, handle(object)));
        assert_eq!(journal.idle_writes(), all);
        journal.write_lease(A, handle(2)).expect("journal");
        journal.write_ended(A, &handle(1));
        journal.write_ended(A, &handle(2));
        journal.rewrite().expect("journal");
    }
    let (_, found) = Journal::open(&path, HOST_A, true).expect("open");
    let found = found.expect("believed");
    let left = [2, 3].map(|object| (A, handle(object)));
    assert_eq!(found.writes, BTreeSet::from(left));
}

#[test]
fn a_crash_of_the_host_is_remembered_until_its_grace_has_ended_however_often_the_process_crashes() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    drop(Journal::open(&path, HOST_A, true).expect("open"));
    let open = || Journal::open(&path, HOST_B, false).expect("open");
    let (journal, found) = open();
    assert!(journal.host_crashed() && found.is_none());
    drop(journal);
    let (mut journal, found) = open();
    assert!(journal.host_crashed() && found.is_some());
    journal.grace_ended().expect("journal");
    drop(journal);
    let (journal, _) = open();
    assert!(!journal.host_crashed());
}

#[test]
fn a_session_may_send_what_ran_before_a_crash_of_the_host_until_it_has_had_later_answers() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
    journal.crashed(A).expect("journal");
    begins(&mut journal, 5);
    drop(journal);
    let open = || Journal::open(&path, HOST_A, false).expect("open");
    let is_crashed =
        |found: Option<Journalled>| found.expect("believed").changes[&A].host_crashed();
    let (mut journal, found) = open();
    assert!(is_crashed(found));
    ends(&mut journal, 5);
    begins_above(&mut journal, 6, 6);
    drop(journal);
    assert!(!is_crashed(open().1));
}
