use super::*;
use leasefs_protocol::Timestamp;

fn version(seconds: i64, size: u64) -> Version {
    Version {
        ctime: Timestamp { seconds, nanos: 0 },
        size,
    }
}

fn of_size(size: u64) -> Buffer {
    Buffer::new(version(1, size))
}

fn run(offset: u64, data: &'static [u8]) -> Run {
    let data = Bytes::from_static(data);
    Run { offset, data }
}

fn put(buffer: &mut Buffer, offset: u64, data: &'static [u8]) {
    buffer.put(offset, Bytes::from_static(data), false);
}

/// The bytes from `offset` on, up to the file's end, if all of them are here.
fn read(buffer: &Buffer, offset: u64, len: usize) -> Option<Bytes> {
    let rest = usize::try_from(buffer.size().saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut data = vec![0; len.min(rest)];
    let mut known = Known::default();
    buffer.overlay(offset, &mut data, &mut known);
    known.covers(data.len()).then(|| data.into())
}

#[test]
fn a_read_is_answered_only_if_every_byte_is_here() {
    let mut buffer = of_size(8);
    put(&mut buffer, 4, b"abcdefgh");
    assert_eq!(buffer.size(), 12);
    assert_eq!(read(&buffer, 4, 100).as_deref(), Some(&b"abcdefgh"[..]));
    assert_eq!(read(&buffer, 6, 3).as_deref(), Some(&b"cde"[..]));
    assert_eq!(read(&buffer, 3, 3), None);
    assert_eq!(read(&buffer, 12, 5).as_deref(), Some(&b""[..]));
}

#[test]
fn a_hole_behind_the_servers_end_is_not_here() {
    let mut buffer = of_size(0);
    put(&mut buffer, 10, b"x");
    assert_eq!(read(&buffer, 5, 2), None);
}

#[test]
fn what_is_written_during_a_round_belongs_to_the_next_and_is_what_is_read() {
    let mut buffer = of_size(0);
    put(&mut buffer, 0, b"aaaa");
    let round = buffer.begin_round(1 << 20, true);
    assert_eq!(round.len(), 1);
    put(&mut buffer, 1, b"bb");
    assert_eq!(buffer.begin_round(1 << 20, true), []);
    assert_eq!(read(&buffer, 0, 4).as_deref(), Some(&b"abba"[..]));
    buffer.answered(Some(version(2, 4)));
    assert!(!buffer.is_clean());
    assert_eq!(read(&buffer, 0, 4), None);
    let next = buffer.begin_round(1 << 20, true);
    assert_eq!(next[0].runs(), [run(1, b"bb")]);
    buffer.answered(Some(version(3, 4)));
    assert!(buffer.is_clean());
}

#[test]
fn what_is_sent_again_does_not_cover_what_was_written_since() {
    let mut buffer = of_size(0);
    put(&mut buffer, 0, b"aaaa");
    let round = buffer.begin_round(1 << 20, true);
    put(&mut buffer, 2, b"bb");
    buffer.again(&round[0]);
    assert_eq!(read(&buffer, 0, 4).as_deref(), Some(&b"aabb"[..]));
    let next = buffer.begin_round(1 << 20, true);
    assert_eq!(next[0].runs(), [run(0, b"aabb")]);
}

#[test]
fn the_version_is_the_newest_answered_in_whatever_order() {
    let mut buffer = of_size(0);
    put(&mut buffer, 0, b"aaaa");
    assert_eq!(buffer.begin_round(2, true).len(), 2);
    buffer.answered(Some(version(5, 4)));
    buffer.answered(Some(version(4, 2)));
    assert_eq!(buffer.base(), version(5, 4));
}

#[test]
fn what_lies_apart_goes_together_and_comes_back_together() {
    let mut buffer = of_size(0);
    put(&mut buffer, 0, b"aa");
    put(&mut buffer, 4, b"bb");
    let round = buffer.begin_round(1 << 20, true);
    assert_eq!(round.len(), 1);
    assert_eq!(round[0].runs(), [run(0, b"aa"), run(4, b"bb")]);
    put(&mut buffer, 5, b"n");
    buffer.again(&round[0]);
    let next = buffer.begin_round(1 << 20, true);
    assert_eq!(next[0].runs(), [run(0, b"aa"), run(4, b"bn")]);
    buffer.answered(None);
    assert!(buffer.is_clean());
}

#[test]
fn setuid_bits_go_with_the_first_round_only() {
    let mut buffer = of_size(0);
    buffer.put(0, Bytes::from_static(b"a"), true);
    assert!(buffer.kill_priv());
    assert_eq!(buffer.begin_round(9, true).len(), 1);
    assert!(buffer.kill_priv());
    buffer.answered(None);
    assert!(!buffer.kill_priv());
}

#[test]
fn what_the_server_has_lost_goes_below_all_that_is_here_and_under_way() {
    let mut buffer = of_size(0);
    put(&mut buffer, 0, b"ss");
    assert_eq!(buffer.begin_round(1 << 20, true).len(), 1);
    put(&mut buffer, 4, b"d");
    buffer.restore(vec![run(0, b"xxxx"), run(0, b"ooooo")]);
    assert_eq!(buffer.size(), 5);
    assert_eq!(read(&buffer, 0, 5).as_deref(), Some(&b"ssood"[..]));
    buffer.answered(None);
    let next = buffer.begin_round(1 << 20, true);
    assert_eq!(next[0].runs(), [run(2, b"ood")]);
}

#[test]
fn what_the_server_has_lost_of_a_round_under_way_is_sent_again_with_the_rest_of_it() {
    let mut buffer = of_size(0);
    put(&mut buffer, 0, b"aa");
    put(&mut buffer, 4, b"bb");
    let round = buffer.begin_round(1 << 20, false);
    // Answered already, and lost: it is under way as long as its round is.
    buffer.restore(round[0].runs().to_vec());
    buffer.again(&round[1]);
    buffer.again(&round[0]);
    assert_eq!(buffer.begin_round(1 << 20, false), round);
}
