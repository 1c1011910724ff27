use super::*;
use crate::cache::fixtures::{answer, holding, now, object, write, write_by, writer};
use crate::cache::{Flushed, Round};
use crate::inode::{Hearers, Inodes, Writer, Written};
use crate::opens::Opens;
use crate::opens::fixtures::opened;
use bytes::Bytes;
use leasefs_lease::client::Tenure;
use leasefs_protocol::{Caller, OpenId};

fn at(millis: u64) -> BootTime {
    BootTime::from_nanos(millis * 1_000_000)
}

/// A file that has so many dirty bytes.
fn dirty(inodes: &mut Inodes, bytes: usize) {
    inodes.becomes_dirty(object(), (None, Version::default()), writer(1));
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

/// Whether so many bytes of the file are kept.
fn keeps(state: &mut State, bytes: usize) -> bool {
    let store = Store {
        object: object(),
        at: WriteAt::Offset(0),
        data: Bytes::from(vec![0; bytes]),
        kill_priv: false,
        date: None,
        writer: writer(1),
        locked: None,
    };
    let stored = state.store(now(), &store, true, &mut Dropped::default());
    assert_ne!(stored, Stored::Through);
    stored != Stored::Full
}

#[test]
fn no_more_is_dirty_than_is_flushed_in_half_a_term_from_the_first_byte_on() {
    let mut state = holding(8);
    state.inodes.told_room(now(), Some(1 << 30));
    // Another file's bytes go the same way.
    let other = Handle::new(&[2]).expect("one byte");
    state
        .inodes
        .becomes_dirty(other, (None, Version::default()), writer(1));
    let data = Bytes::from(vec![0; 200_000]);
    state
        .inodes
        .with_dirty(&other, |dirty| dirty.buffer.put(0, data, false));
    assert!(!keeps(&mut state, 60_000), "nothing is known of the link");
    assert!(keeps(&mut state, 50_000));
    // 2 MiB a second.
    let sending = state.pace.sends(at(0), 4 << 20);
    state.pace.sent(at(2_000), &sending);
    assert!(keeps(&mut state, 8 << 20));
    assert!(!keeps(&mut state, 12 << 20));
}

#[test]
fn a_write_that_waits_for_a_slow_flush_waits_on_though_the_servers_room_was_told_long_ago() {
    let mut state = holding(8);
    write(&mut state, 0, &[0; 300_000]);
    let store = Store {
        object: object(),
        at: WriteAt::Append,
        data: Bytes::from_static(b"more"),
        kill_priv: false,
        date: None,
        writer: writer(1),
        locked: None,
    };
    let later = now() + std::time::Duration::from_secs(4);
    let stored = state.store(later, &store, true, &mut Dropped::default());
    assert_eq!(stored, Stored::Full);
}

#[test]
fn one_write_is_kept_however_large_where_nothing_else_is() {
    let mut state = holding(8);
    state.inodes.told_room(now(), Some(1 << 30));
    assert!(keeps(&mut state, 1 << 20));
    assert!(!keeps(&mut state, 1));
}

/// A descriptor of this user.
fn of_user(uid: u32) -> Writer {
    let caller = Caller {
        uid,
        ..Caller::default()
    };
    Writer {
        caller,
        ..writer(1)
    }
}

#[test]
fn what_another_user_writes_is_not_kept_beside_what_one_has_written() {
    let mut state = holding(8);
    write_by(of_user(1), &mut state, 0, b"a");
    let store = |uid| Store {
        object: object(),
        at: WriteAt::Append,
        data: Bytes::from_static(b"b"),
        kill_priv: false,
        date: None,
        writer: of_user(uid),
        locked: None,
    };
    let mut dropped = Dropped::default();
    let other = state.store(now(), &store(2), true, &mut dropped);
    assert_eq!(other, Stored::Through);
    let same = state.store(now(), &store(1), true, &mut dropped);
    assert_eq!(same, Stored::Done { first: false });
    let file = state.dirty_file(&object()).expect("it is dirty");
    assert_eq!(file.owner.map(|owner| owner.uid), Some(1));
}

#[test]
fn what_is_written_again_of_one_user_beside_anothers_is_neithers() {
    let mut state = holding(8);
    write_by(of_user(1), &mut state, 0, b"new");
    let mut old = undone(&[&of_user(1)], 4, b"old");
    old.owner = Some(of_user(1).caller);
    state.restore(old);
    let owner = |state: &State| state.dirty_file(&object()).expect("dirty").owner;
    assert_eq!(owner(&state).map(|owner| owner.uid), Some(1));
    let mut others = undone(&[&of_user(2)], 8, b"older");
    others.owner = Some(of_user(2).caller);
    state.restore(others);
    assert_eq!(owner(&state), None);
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
        owner: Some(Caller::default()),
        hearers,
        path: None,
        tenure: Tenure::default(),
    }
}

fn round(state: &mut State) -> Round {
    state.begin_round(&object(), true).expect("dirty bytes")
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
    let batch = first.batches[0].clone();
    drop(first);
    assert!(!server.is_open(OpenId(1)) && server.is_open(OpenId(2)));
    answer(&mut state, batch, 2);
    let second = round(&mut state);
    assert_eq!(second.writer.open.id(), OpenId(2));
    assert_eq!(second.hearers.len(), 1, "the first is closed");
    answer(&mut state, second.batches[0].clone(), 3);
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
    let (asked, batch) = (state.leases.ask(), first.batches[0].clone());
    let now = BootTime::ZERO;
    state.flushed(now, asked, &object(), Flushed::Again(batch));
    let again = round(&mut state);
    assert!(again.repeated);
    write(&mut state, 0, b"b");
    answer(&mut state, again.batches[0].clone(), 2);
    assert!(!round(&mut state).repeated);
}

#[test]
fn of_a_request_that_was_refused_each_run_goes_alone_next() {
    let mut state = holding(8);
    write(&mut state, 0, b"a");
    write(&mut state, 4, b"b");
    let together = round(&mut state);
    let [batch] = together.batches.as_slice() else {
        panic!("more than one request: {:?}", together.batches)
    };
    let asked = state.leases.ask();
    let refused = Flushed::Apart(batch.clone());
    state.flushed(BootTime::ZERO, asked, &object(), refused);
    write(&mut state, 8, b"c");
    let alone = round(&mut state);
    assert!(alone.batches.iter().all(|batch| batch.runs().len() == 1));
    assert_eq!(alone.batches.len(), 3);
    write(&mut state, 0, b"a");
    write(&mut state, 4, b"b");
    for batch in alone.batches {
        answer(&mut state, batch, 2);
    }
    assert_eq!(round(&mut state).batches.len(), 1, "as before");
}
