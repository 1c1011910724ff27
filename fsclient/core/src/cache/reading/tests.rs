use super::*;
use crate::cache::ChangeScope;
use crate::cache::fixtures::{flush, grant, holding, now, object, write};
use leasefs_lease::client::Span;
use leasefs_protocol::{Mode, Recall, RecallId, Scope, Stamp};

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
    let change = ChangeScope::only_pages(object(), Span::ALL);
    state.begin_change(&change);
    state.end_change(&change, Some(Stamp::default()));
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
