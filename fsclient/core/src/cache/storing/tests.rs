use super::*;
use crate::cache::fixtures::{answer, holding, object, write, write_by, writer};
use crate::cache::{Flushed, Round};
use crate::inode::{Hearers, Inodes, Writer, Written};
use crate::opens::Opens;
use crate::opens::fixtures::opened;
use bytes::Bytes;
use leasefs_lease::client::Tenure;
use leasefs_protocol::OpenId;
use std::time::Duration;

const TERM: Duration = Duration::from_secs(10);

fn at(millis: u64) -> BootTime {
    BootTime::from_nanos(millis * 1_000_000)
}

/// A file that has so many dirty bytes.
fn dirty(inodes: &mut Inodes, bytes: usize) {
    inodes.becomes_dirty(object(), Version::default(), writer(1));
    let data = Bytes::from(vec![0; bytes]);
    inodes.with_dirty(&object(), |dirty| dirty.buffer.put(0, data, false));
}

#[test]
fn what_the_server_may_have_no_room_for_is_not_kept_here() {
    let mut inodes = Inodes::default();
    assert!(!inodes.has_room(at(0), 1), "nothing is known");
    inodes.told_room(at(0), Some(100));
    assert!(inodes.has_room(at(0), 100) && !inodes.has_room(at(0), 101));
    dirty(&mut inodes, 60);
    assert!(inodes.has_room(at(0), 40) && !inodes.has_room(at(0), 41));
    assert!(!inodes.has_room(at(3_000), 1), "what is known is old");
}

#[test]
fn a_file_holds_no_more_than_is_flushed_in_half_a_term() {
    let mut inodes = Inodes::default();
    dirty(&mut inodes, 8 << 20);
    assert!(!inodes.is_at_bound(&object(), 1 << 30), "nothing is known");
    // 2 MiB a second.
    inodes.measured(4 << 20, Duration::from_secs(2), TERM);
    assert!(!inodes.is_at_bound(&object(), 2 << 20));
    assert!(inodes.is_at_bound(&object(), (2 << 20) + 1));
    assert!(!inodes.is_at_bound(&Handle::new(&[2]).expect("one byte"), 64 << 20));
}

#[test]
fn a_failure_is_told_once() {
    let written = Written::default();
    written.failed(Refusal::Host(28));
    written.failed(Refusal::Internal);
    assert_eq!(written.known(), Err(Refusal::Host(28)));
    assert_eq!(written.check(), Err(Refusal::Host(28)));
    assert_eq!(written.check(), Ok(()));
    assert_eq!(written.known(), Ok(()));
}

/// Bytes that these descriptors have written, the last of them last.
fn undone(writers: &[&Writer], offset: u64, data: &'static [u8]) -> Undone {
    let mut hearers = Hearers::default();
    writers
        .iter()
        .for_each(|writer| hearers.add(&writer.written));
    Undone {
        object: object(),
        runs: vec![Run {
            offset,
            data: Bytes::from_static(data),
        }],
        base: Version::default(),
        writer: writers.last().copied().expect("one").clone(),
        hearers,
        path: None,
        tenure: Tenure::default(),
    }
}

fn round(state: &mut State) -> Round {
    state.begin_round(&object(), 1 << 20).expect("dirty bytes")
}

#[test]
fn an_open_is_held_until_what_is_to_be_written_through_it_is_there() {
    let (mut state, server) = (holding(8), Opens::default());
    let writes = |open| Writer {
        open: opened(&server, open),
        ..writer(open)
    };
    write_by(writes(1), &mut state, 0, b"a");
    let first = round(&mut state);
    assert_eq!(first.writer.open.id(), OpenId(1));
    write_by(writes(2), &mut state, 1, b"b");
    assert!(server.is_open(OpenId(1)), "the round still has it");
    let run = first.runs[0].clone();
    drop(first);
    assert!(!server.is_open(OpenId(1)) && server.is_open(OpenId(2)));
    answer(&mut state, run, 2);
    let second = round(&mut state);
    assert_eq!(second.writer.open.id(), OpenId(2));
    assert_eq!(second.hearers.len(), 1, "the first is closed");
    answer(&mut state, second.runs[0].clone(), 3);
    drop(second);
    assert!(!state.inodes.is_dirty(&object()) && !server.is_open(OpenId(2)));
}

#[test]
fn what_is_written_again_goes_through_the_open_that_was_kept_for_it() {
    let mut state = holding(8);
    let [first, second] = [writer(1), writer(2)];
    write_by(second.clone(), &mut state, 0, b"new");
    state.restore(undone(&[&first, &second], 4, b"old"));
    let round = round(&mut state);
    assert_eq!(round.writer.open.id(), OpenId(2), "that of 1 may be closed");
    assert_eq!(round.hearers.len(), 2);
    assert!(round.repeated);
}

#[test]
fn a_round_of_which_nothing_was_sent_before_is_no_repetition() {
    let mut state = holding(8);
    write(&mut state, 0, b"a");
    let first = round(&mut state);
    assert!(!first.repeated);
    let (asked, run) = (state.leases.ask(), first.runs[0].clone());
    let now = BootTime::ZERO;
    state.flushed(now, asked, &object(), Flushed::Again(run));
    let again = round(&mut state);
    assert!(again.repeated);
    write(&mut state, 0, b"b");
    answer(&mut state, again.runs[0].clone(), 2);
    assert!(!round(&mut state).repeated);
}
