//! Small files: their bytes come with their open.

use crate::calls::opening;
use crate::said::{Asked, FILE, attr, grant, recall};
use crate::sets::{flushed, written_file};
use crate::world::{Waiter, World};
use leasefs_client::NodeId;
use leasefs_client::call::{Answer, At, Call, Fh};
use leasefs_protocol::limits::OPEN_DATA;
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Attr, Grant, OpenId, OpenToken, Parts, Query, Refusal, Reply, Request, Response, answer,
};
use std::time::Duration;

const BYTES: &[u8] = b"all of it";

/// The file, with this many bytes.
fn file_of(size: u64) -> Attr {
    Attr {
        size,
        ..attr(1, FILE)
    }
}

/// Whether bytes are wanted with an open that is asked for.
fn wants_data(asked: &Asked) -> bool {
    match &asked.frame.request {
        Request::Query(Query::Open(open)) => open.with_data,
        other => panic!("no open: {other:?}"),
    }
}

/// Opens the file; its bytes come along, with these leases.
fn open(world: &mut World, node: NodeId, grants: Vec<Grant>) -> Fh {
    let call = world.call(opening(node, libc::O_RDONLY));
    let asked = world.asked();
    assert!(wants_data(&asked));
    comes(world, call, &asked, grants)
}

/// The open is answered, and the bytes with it.
fn comes(world: &mut World, call: Waiter, asked: &Asked, grants: Vec<Grant>) -> Fh {
    answers_open(world, asked, grants);
    match world.answered(call) {
        Ok(Answer::Opened(opened)) => opened.fh,
        other => panic!("not opened: {other:?}"),
    }
}

fn answers_open(world: &mut World, asked: &Asked, grants: Vec<Grant>) {
    let opened = answer::Opened {
        open: OpenId(7),
        token: OpenToken(vec![7]),
        attr: file_of(BYTES.len() as u64),
    };
    let reply = Reply {
        renews: true,
        grants,
        ..asked.reply(Ok(Response::Opened(opened)))
    };
    world.reply(reply, BYTES);
}

fn leases() -> Vec<Grant> {
    vec![grant(1, Parts::ATTRS | Parts::DATA, 1)]
}

fn pages(fh: Fh) -> Call {
    let at = At { fh, offset: 0 };
    Call::ReadPages { at, len: 4096 }
}

fn asks_for_pages(asked: &Asked) -> bool {
    matches!(&asked.frame.request, Request::Query(Query::Read(read)) if read.fill == Fill::Pages)
}

#[test]
fn pages_of_a_small_file_are_there_when_it_is_open() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let fh = open(&mut world, node, leases());
    let read = world.call(pages(fh));
    assert!(!world.is_asked());
    let Ok(Answer::Bytes(data)) = world.answered(read) else {
        panic!("not read")
    };
    assert_eq!(data, BYTES);
    // The kernel has them now: if it drops them, memory was short.
    world.call(pages(fh));
    assert!(asks_for_pages(&world.asked()));
}

#[test]
fn bytes_that_come_without_a_lease_are_asked_for_again() {
    for parts in [Parts::NONE, Parts::ATTRS] {
        let mut world = World::new();
        let node = world.node(1, FILE);
        let fh = open(&mut world, node, vec![grant(1, parts, 1)]);
        world.call(pages(fh));
        assert!(asks_for_pages(&world.asked()), "{parts:?}");
    }
}

#[test]
fn bytes_that_were_recalled_before_they_were_read_are_asked_for_again() {
    for parts in [Parts::DATA, Parts::ATTRS] {
        let mut world = World::new();
        let node = world.node(1, FILE);
        let fh = open(&mut world, node, leases());
        world.recall(recall(5, 1, parts, &[]));
        assert!(world.has_said(), "it is approved");
        world.call(pages(fh));
        let asked = world.asked();
        assert!(asks_for_pages(&asked), "{parts:?}: {asked:?}");
    }
}

/// The recall was sent behind the answer, and has overtaken it.
#[test]
fn bytes_whose_lease_was_recalled_before_it_came_are_asked_for_again() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let call = world.call(opening(node, libc::O_RDONLY));
    let asked = world.asked();
    world.recall(recall(5, 1, Parts::ATTRS | Parts::DATA, &[]));
    let fh = comes(&mut world, call, &asked, leases());
    world.call(pages(fh));
    assert!(asks_for_pages(&world.asked()));
}

#[test]
fn bytes_are_wanted_of_small_files_that_are_opened_for_reading_alone() {
    let small = OPEN_DATA as u64;
    for (flags, size, wanted) in [
        (libc::O_RDONLY, small, true),
        (libc::O_RDONLY, small + 1, false),
        (libc::O_RDONLY, 0, false),
        (libc::O_RDWR, small, false),
        (libc::O_WRONLY, small, false),
    ] {
        let mut world = World::new();
        let node = world.node(1, FILE);
        let call = world.call(Call::GetAttr { node });
        let asked = world.asked();
        let grants = vec![grant(1, Parts::ATTRS, 1)];
        world.grant(&asked, Response::Attr(file_of(size)), grants);
        assert!(world.answered(call).is_ok());
        world.call(opening(node, flags));
        assert_eq!(wants_data(&world.asked()), wanted, "{flags} {size}");
    }
}

#[test]
fn what_another_life_of_the_servers_host_says_of_the_bytes_is_not_believed() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let call = world.call(opening(node, libc::O_RDONLY));
    world.asked();
    world.finds_another_life_of_the_host();
    let asked = world.asked();
    let fh = comes(&mut world, call, &asked, leases());
    world.call(pages(fh));
    assert!(asks_for_pages(&world.asked()));
}

/// The writes went past the kernel's pages; the lease stands.
#[test]
fn the_bytes_of_a_file_that_was_written_here_are_not_wanted_with_its_open() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    world.call(opening(node, libc::O_RDONLY));
    assert!(!wants_data(&world.asked()), "they aren't at the server");
    world.pass(Duration::from_secs(2));
    let flush = world.asked();
    flushed(&mut world, &flush);
    world.call(Call::Release { fh });
    let call = world.call_by(7, opening(node, libc::O_RDONLY));
    let asked = world.asked();
    assert!(!wants_data(&asked), "they are here");
    assert!(world.waits(call));
}

/// Somebody looks at the file's attributes, and is told that they aren't leased; then it is opened. What was cached of it is
/// taken back, and somebody looks again: the server is asked for an open.
fn looked_at_again(world: &mut World, node: NodeId) -> (Waiter, Asked) {
    let look = world.call(Call::GetAttr { node });
    let asked = world.asked();
    world.answer(&asked, Ok(Response::Attr(file_of(BYTES.len() as u64))));
    assert!(world.answered(look).is_ok());
    let fh = open(world, node, leases());
    world.call(Call::Release { fh });
    world.recall(recall(5, 1, Parts::ATTRS | Parts::DATA, &[]));
    assert!(world.has_said(), "it is approved");
    world.take_said();
    let look = world.call(Call::GetAttr { node });
    let asked = world.asked();
    assert!(wants_data(&asked));
    (look, asked)
}

#[test]
fn what_was_opened_after_it_was_looked_at_is_looked_at_opened_and_read_with_one_request() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let (look, asked) = looked_at_again(&mut world, node);
    let grants = vec![grant(1, Parts::ATTRS | Parts::DATA, 200)];
    answers_open(&mut world, &asked, grants);
    let attr = file_of(BYTES.len() as u64);
    assert!(matches!(world.answered(look), Ok(Answer::Attr(shown)) if shown.shown.attr == attr));
    let opening = world.call(opening(node, libc::O_RDONLY));
    let Ok(Answer::Opened(opened)) = world.answered(opening) else {
        panic!("not opened")
    };
    let read = world.call(pages(opened.fh));
    assert!(matches!(world.answered(read), Ok(Answer::Bytes(data)) if data == BYTES));
    assert!(!world.is_asked());
}

#[test]
fn who_may_not_open_what_was_opened_before_is_told_its_attributes() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let (look, asked) = looked_at_again(&mut world, node);
    world.answer(&asked, Err(Refusal::Access));
    let asked = world.asked();
    assert!(matches!(
        asked.frame.request,
        Request::Query(Query::GetAttr(_))
    ));
    world.answer(&asked, Ok(Response::Attr(file_of(3))));
    assert!(matches!(world.answered(look), Ok(Answer::Attr(shown)) if shown.shown.attr.size == 3));
}
