use super::*;
use crate::cache::Store;
use crate::cache::dirty::{Flushed, Stored, Writer};
use crate::cache::entry::Dropped;
use leasefs_protocol::request::WriteAt;
use leasefs_protocol::{
    Attr, Caller, FileKind, Mode, OpenId, Recall, RecallId, Reply, RequestId, Response, Scope,
    Stamp, Timestamp,
};
use std::sync::Arc;
use std::time::Duration;

fn now() -> BootTime {
    BootTime::from_nanos(1_000_000_000)
}

fn object() -> Handle {
    Handle::new(&[1]).expect("one byte")
}

fn grant(mode: Mode, stamp: u64) -> Grant {
    Grant {
        object: object(),
        parts: Parts::ATTRS | Parts::DATA,
        mode,
        stamp: Stamp(stamp),
    }
}

fn attr(size: u64) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino: 2,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

/// A session with a Write lease on a file of this size.
fn holding(size: u64) -> State {
    let mut state = State::new();
    state.renewed(now(), Duration::from_secs(10), 0);
    let (asked, grants) = (state.leases.ask(), [grant(Mode::Write, 1)]);
    state.granted(asked, &grants);
    assert!(state.put_attr(asked, &grants, &object(), &attr(size)));
    state.dirty.told_room(now(), Some(1 << 20));
    state
}

fn write(state: &mut State, offset: u64, data: &'static [u8]) {
    let store = Store {
        object: object(),
        at: WriteAt::Offset(offset),
        data: Bytes::from_static(data),
        kill_priv: false,
        date: None,
        writer: Writer {
            open: OpenId(1),
            caller: Caller::default(),
            written: Arc::default(),
        },
    };
    let mut dropped = Dropped::default();
    let stored = state.store(now(), &store, (1 << 20, true), &mut dropped);
    assert!(matches!(stored, Stored::Done { .. }));
}

/// Brings everything to the server.
fn flush(state: &mut State, stamp: u64) {
    let round = state.begin_round(&object(), 1 << 20).expect("dirty bytes");
    let asked = state.leases.ask();
    for run in round.runs {
        let written = Response::Written {
            len: run.data.len() as u64,
            offset: run.offset,
        };
        let reply = Box::new(Reply {
            id: RequestId(0),
            renews: false,
            stamp: Stamp(stamp),
            grants: Vec::new(),
            touched: Vec::new(),
            room: None,
            result: Ok(written),
        });
        let flushed = Flushed::Answered(run, reply, Some(attr(8)));
        state.flushed(now(), asked, &object(), flushed);
    }
}

fn range(offset: u64, len: usize) -> Range {
    Range { offset, len }
}

fn asks(state: &mut State, range: Range) -> Asking {
    match state.read_here(now(), &object(), range) {
        Here::Fetch(asking) => asking,
        here => panic!("the server must be asked: {here:?}"),
    }
}

fn here(state: &mut State, range: Range) -> Bytes {
    match state.read_here(now(), &object(), range) {
        Here::All(data) => data,
        here => panic!("it is not here: {here:?}"),
    }
}

fn told(
    state: &mut State,
    range: Range,
    asking: Asking,
    data: &'static [u8],
    stamp: u64,
) -> Option<Bytes> {
    let grants = [grant(Mode::Read, stamp)];
    let data = Bytes::from_static(data);
    let fetched = Fetched {
        grants: &grants,
        data,
    };
    state.fetched(now(), &object(), range, asking, fetched)
}

fn recall(state: &mut State, stamp: u64) {
    let recall = Recall {
        id: RecallId(stamp),
        stamp: Stamp(stamp),
        scope: Scope::Object {
            object: object(),
            parts: Parts::ATTRS | Parts::DATA,
            names: Vec::new(),
        },
    };
    assert!(state.recall(&recall).is_some());
}

#[test]
fn what_was_read_once_is_read_again_without_asking() {
    let mut state = holding(8);
    let asking = asks(&mut state, range(2, 3));
    assert_eq!((asking.fetch.offset, asking.fetch.len), (0, 4096));
    let read = told(&mut state, range(2, 3), asking, b"abcdefgh", 2);
    assert_eq!(read.as_deref(), Some(&b"cde"[..]));
    assert_eq!(here(&mut state, range(1, 20)), &b"bcdefgh"[..]);
    assert_eq!(here(&mut state, range(9, 1)), &b""[..]);
}

#[test]
fn what_is_buffered_lies_over_what_the_server_tells_whenever_it_was_written() {
    let mut state = holding(8);
    write(&mut state, 1, b"X");
    let asking = asks(&mut state, range(0, 12));
    write(&mut state, 10, b"Z");
    let read = told(&mut state, range(0, 12), asking, b"abcdefgh", 2);
    assert_eq!(read.as_deref(), Some(&b"aXcdefgh\0\0Z"[..]));
}

#[test]
fn what_is_flushed_while_the_server_is_asked_is_not_lost() {
    let mut state = holding(8);
    write(&mut state, 1, b"X");
    let asking = asks(&mut state, range(0, 8));
    flush(&mut state, 3);
    // Read before the flush was carried out.
    let read = told(&mut state, range(0, 8), asking, b"abcdefgh", 2);
    assert_eq!(read.as_deref(), Some(&b"aXcdefgh"[..]));
    assert_eq!(here(&mut state, range(0, 8)), &b"aXcdefgh"[..]);
}

#[test]
fn what_comes_behind_a_recall_is_not_used_for_a_file_that_was_dirty() {
    let mut state = holding(8);
    write(&mut state, 1, b"X");
    let asking = asks(&mut state, range(0, 8));
    recall(&mut state, 5);
    assert!(matches!(
        state.read_here(now(), &object(), range(1, 1)),
        Here::Unsettled
    ));
    assert_eq!(told(&mut state, range(0, 8), asking, b"abcdefgh", 2), None);
}

#[test]
fn a_recall_drops_what_was_read() {
    let mut state = holding(8);
    let asking = asks(&mut state, range(0, 8));
    let read = told(&mut state, range(0, 8), asking, b"abcdefgh", 2);
    assert_eq!(read.as_deref(), Some(&b"abcdefgh"[..]));
    recall(&mut state, 5);
    asks(&mut state, range(0, 8));
}

#[test]
fn what_was_asked_for_before_an_own_change_is_not_kept() {
    let mut state = holding(8);
    let asking = asks(&mut state, range(0, 8));
    state.begin_content(object());
    state.end_content(&object());
    // For its caller it is good: the change came later.
    let read = told(&mut state, range(0, 8), asking, b"abcdefgh", 2);
    assert_eq!(read.as_deref(), Some(&b"abcdefgh"[..]));
    asks(&mut state, range(0, 8));
}

#[test]
fn nothing_is_read_here_after_the_leases_have_ended() {
    let mut state = holding(8);
    let asking = asks(&mut state, range(0, 8));
    let read = told(&mut state, range(0, 8), asking, b"abcdefgh", 2);
    assert!(read.is_some());
    let late = BootTime::from_nanos(20_000_000_000);
    let here = state.read_here(late, &object(), range(0, 8));
    assert!(matches!(here, Here::Fetch(_)));
}
