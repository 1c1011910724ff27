//! Claims about what the journal says after a crash.

use super::*;
use crate::intent::Place;
use crate::records::Recorded;
use crate::seqs::SeqSet;
use crate::state::log::State as _;
use crate::state::tests::Scratch;
use leasefs_protocol::answer::Opened;
use leasefs_protocol::limits::MAX_ANSWERS;
use leasefs_protocol::{OpenId, OpenToken, RawName, Refusal, Response};

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

/// Where A is on record.
fn open(path: &Path, host: BootId, believed: bool) -> (Journal, Option<Journalled>) {
    Journal::open(path, (host, believed), BTreeSet::from([A])).expect("open")
}

fn recorded(path: &Path, host: BootId, believed: bool) -> (Vec<(Seq, Recorded)>, SeqSet) {
    let (_, found) = open(path, host, believed);
    let mut found = found.expect("believed");
    found.changes.remove(&A).unwrap_or_default().into_recorded()
}

/// What a next life of the server finds of the session's changes.
fn changes(path: &Path, host: BootId, believed: bool) -> Vec<(u64, Recorded)> {
    let (changes, _) = recorded(path, host, believed);
    changes.into_iter().map(|(seq, c)| (seq.0, c)).collect()
}

/// Those of them whose answers are lost.
fn lost(path: &Path, host: BootId, believed: bool) -> Vec<(u64, u64)> {
    let (_, lost) = recorded(path, host, believed);
    lost.all().map(|(first, last)| (first.0, last.0)).collect()
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
    let (mut journal, found) = open(&path, HOST_A, true);
    assert_eq!(found, Some(Journalled::default()));
    (1..=5).for_each(|seq| begins(&mut journal, seq));
    ends(&mut journal, 4);
    begins_above(&mut journal, 6, 4);
    journal.write_lease(A, handle(1)).expect("journal");
    drop(journal);
    let (mut journal, found) = open(&path, HOST_A, false);
    let found = found.expect("the same host");
    assert_eq!(found.writes, BTreeSet::from([(A, handle(1))]));
    journal.leases_ended(A).expect("journal");
    let (_, found) = open(&path, HOST_A, false);
    assert!(found.expect("the same host").writes.is_empty());
    let expected = [(4, is_answered()), (5, is_begun()), (6, is_begun())];
    assert_eq!(changes(&path, HOST_A, false), expected);
}

#[test]
fn what_is_undone_is_as_if_it_had_never_begun_and_may_begin_again() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
    begins(&mut journal, 1);
    journal.undone(A, Seq(1)).expect("journal");
    assert_eq!(changes(&path, HOST_A, false), []);
    let (mut journal, _) = open(&path, HOST_A, false);
    begins(&mut journal, 1);
    ends(&mut journal, 1);
    journal.undone(A, Seq(1)).expect("journal");
    assert_eq!(changes(&path, HOST_A, false), [(1, is_answered())]);
}

#[test]
fn an_answer_stands_whatever_comes_later_and_without_a_beginning_there_is_none() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
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
    let (mut journal, _) = open(&path, HOST_A, true);
    begins(&mut journal, 1);
    let (_, found) = open(&path, HOST_B, false);
    assert_eq!(found, None);
    let (_, found) = open(&path, HOST_B, false);
    assert_eq!(found, Some(Journalled::default()));
}

#[test]
fn behind_an_orderly_end_and_a_restart_of_the_host_answers_stand_and_intents_are_lost() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
    begins(&mut journal, 1);
    begins(&mut journal, 2);
    ends(&mut journal, 1);
    for believed in [true, false] {
        assert_eq!(changes(&path, HOST_B, believed), [(1, is_answered())]);
        assert_eq!(lost(&path, HOST_B, believed), [(2, 2)]);
    }
    std::fs::remove_file(&path).expect("remove");
    let (_, found) = open(&path, HOST_B, false);
    assert_eq!(found, None);
}

#[test]
fn the_file_stays_bounded_by_what_is_alive() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
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
    let (mut journal, _) = open(&path, HOST_A, true);
    let many = MAX_ANSWERS as u64 + 2;
    for seq in 1..=many {
        begins(&mut journal, seq);
        ends(&mut journal, seq);
    }
    for _ in 0..2 {
        assert_eq!(changes(&path, HOST_A, false).len() as u64, many - 2);
        assert_eq!(lost(&path, HOST_A, false), [(1, 2)]);
    }
}

#[test]
fn what_was_answered_longest_ago_is_lost_first_whenever_it_had_begun() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
    let many = MAX_ANSWERS as u64 + 1;
    begins(&mut journal, 1);
    for seq in 2..=many {
        begins(&mut journal, seq);
        ends(&mut journal, seq);
    }
    ends(&mut journal, 1);
    for _ in 0..2 {
        assert_eq!(lost(&path, HOST_A, false), [(2, 2)]);
        let first = changes(&path, HOST_A, false).remove(0);
        assert_eq!(first, (1, is_answered()));
    }
}

#[test]
fn what_many_lost_answers_take_does_not_grow_with_their_number() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
    let many = MAX_ANSWERS as u64 + 100_000;
    for seq in 1..=many {
        begins(&mut journal, seq);
        ends(&mut journal, seq);
    }
    assert!(journal.log.state().snapshot().len() < MAX_ANSWERS + 10);
    for _ in 0..2 {
        assert_eq!(lost(&path, HOST_A, false), [(1, 100_000)]);
    }
}

#[test]
fn large_answers_are_kept_as_long_as_there_is_room() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
    let token = OpenToken(vec![7; 4000]);
    let opened = Response::Opened(Opened {
        open: OpenId(1),
        token,
        attr: crate::intent::tests::ATTR,
    });
    for seq in 1..=2000 {
        begins(&mut journal, seq);
        let ended = journal.ends(A, Seq(seq), &Ok(opened.clone()), None);
        ended.expect("journal");
    }
    let kept = changes(&path, HOST_A, false).len();
    assert!((500..1100).contains(&kept), "{kept}");
    let (mut journal, _) = open(&path, HOST_A, true);
    begins_above(&mut journal, 2001, 2001);
    assert!(changes(&path, HOST_A, false) == [(2001, is_begun())]);
}

#[test]
fn nothing_is_journalled_of_a_session_that_is_not_on_record_and_nothing_of_one_is_kept() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (mut journal, _) = open(&path, HOST_A, true);
    begins(&mut journal, 1);
    journal.write_lease(A, handle(1)).expect("journal");
    journal.forget(A).expect("journal");
    let begins = |journal: &mut Journal| journal.begins(A, Seq(2), Seq(0), &intent("a"));
    assert!(begins(&mut journal).is_err());
    assert!(journal.write_lease(A, handle(2)).is_err());
    let (_, found) = open(&path, HOST_A, true);
    assert_eq!(found, Some(Journalled::default()));
    journal.knows(A);
    begins(&mut journal).expect("it is on record");
    drop(journal);
    for known in [BTreeSet::new(), BTreeSet::from([A])] {
        let (_, found) = Journal::open(&path, (HOST_A, true), known).expect("open");
        assert_eq!(found, Some(Journalled::default()), "it was not on record");
    }
}

#[test]
fn a_write_lease_that_has_ended_is_forgotten_unless_it_was_asked_for_again() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    {
        let (mut journal, _) = open(&path, HOST_A, true);
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
    let (_, found) = open(&path, HOST_A, true);
    let found = found.expect("believed");
    let left = [2, 3].map(|object| (A, handle(object)));
    assert_eq!(found.writes, BTreeSet::from(left));
}

#[test]
fn a_crash_of_the_host_is_remembered_until_its_grace_has_ended_however_often_the_process_crashes() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    drop(open(&path, HOST_A, true));
    let open = || open(&path, HOST_B, false);
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
    let (mut journal, _) = open(&path, HOST_A, true);
    journal.crashed(A).expect("journal");
    begins(&mut journal, 5);
    drop(journal);
    let open = || open(&path, HOST_A, false);
    let is_crashed =
        |found: Option<Journalled>| found.expect("believed").changes[&A].host_crashed();
    let (mut journal, found) = open();
    assert!(is_crashed(found));
    ends(&mut journal, 5);
    begins_above(&mut journal, 6, 6);
    drop(journal);
    assert!(!is_crashed(open().1));
}
