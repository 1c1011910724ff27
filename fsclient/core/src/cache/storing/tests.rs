use super::*;
use crate::cache::dirty::{Dirty, Flushed, Round, Written};
use crate::cache::fixtures::{answer, holding, object, write, write_by, writer};
use bytes::Bytes;
use leasefs_lease::client::Tenure;
use std::time::Duration;

const TERM: Duration = Duration::from_secs(10);

fn at(millis: u64) -> BootTime {
    BootTime::from_nanos(millis * 1_000_000)
}

#[test]
fn what_the_server_may_have_no_room_for_is_not_kept_here() {
    let mut dirty = Dirty::default();
    assert!(!dirty.has_room(at(0), 1), "nothing is known");
    dirty.told_room(at(0), Some(100));
    assert!(dirty.has_room(at(0), 100) && !dirty.has_room(at(0), 101));
    dirty.bytes = 60;
    assert!(dirty.has_room(at(0), 40) && !dirty.has_room(at(0), 41));
    assert!(!dirty.has_room(at(3_000), 1), "what is known is old");
}

#[test]
fn a_file_holds_no_more_than_is_flushed_in_half_a_term() {
    let mut dirty = Dirty::default();
    let mut file = File::new(Version::default());
    file.buffer.put(0, Bytes::from(vec![0; 8 << 20]), false);
    dirty.files.insert(object(), file);
    assert!(!dirty.is_at_bound(&object(), 1 << 30), "nothing is known");
    // 2 MiB a second.
    dirty.measured(4 << 20, Duration::from_secs(2), TERM);
    assert!(!dirty.is_at_bound(&object(), 2 << 20));
    assert!(dirty.is_at_bound(&object(), (2 << 20) + 1));
    assert!(!dirty.is_at_bound(&Handle::new(&[2]).expect("one byte"), 64 << 20));
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

fn undone(open: u64, writers: &[u64], offset: u64, data: &'static [u8]) -> Undone {
    Undone {
        object: object(),
        runs: vec![Run {
            offset,
            data: Bytes::from_static(data),
        }],
        base: Version::default(),
        writers: writers
            .iter()
            .chain([&open])
            .map(|open| writer(*open))
            .collect(),
        path: None,
        closing: Vec::new(),
        tenure: Tenure::default(),
    }
}

fn round(state: &mut State) -> Round {
    state.begin_round(&object(), 1 << 20).expect("dirty bytes")
}

#[test]
fn a_closed_open_ends_with_the_round_that_takes_its_bytes_though_others_go_on_writing() {
    let mut state = holding(8);
    write_by(1, &mut state, 0, b"a");
    assert!(state.close_when_clean(&object(), OpenId(1)));
    let first = round(&mut state);
    write_by(2, &mut state, 1, b"b");
    assert!(state.close_when_clean(&object(), OpenId(2)));
    let ended = answer(&mut state, first.runs[0].clone(), 2);
    assert_eq!(ended.closes, [OpenId(1)]);
    let second = round(&mut state);
    assert_eq!(second.writer.open, OpenId(2));
    assert_eq!(second.writers.len(), 1);
    let ended = answer(&mut state, second.runs[0].clone(), 3);
    assert_eq!(ended.closes, [OpenId(2)]);
    assert!(!state.dirty.contains(&object()));
}

#[test]
fn what_is_written_again_goes_through_the_open_that_was_kept_for_it() {
    let mut state = holding(8);
    write_by(2, &mut state, 0, b"new");
    state.restore(undone(2, &[1], 4, b"old"));
    let round = round(&mut state);
    assert_eq!(round.writer.open, OpenId(2), "that of 1 may be closed");
    assert_eq!(round.writers.len(), 2);
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
