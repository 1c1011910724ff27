//! A server that says what none may say.

use crate::calls::{getattr, opening};
use crate::said::{DIR, FILE, attr, grant, opened, recall, welcome};
use crate::world::{PATIENT, World};
use leasefs_client::call::At;
use leasefs_client::{Answer, Call};
use leasefs_protocol::control::{Standing, Welcome};
use leasefs_protocol::limits::MAX_RECALLS_OPEN;
use leasefs_protocol::{Parts, Refusal, Reply, Response, answer};
use std::time::Duration;

#[test]
fn a_mount_does_not_stand_on_a_term_of_nothing() {
    let mut world = World::unconnected(PATIENT);
    world.connected(Welcome {
        term_ms: 0,
        ..welcome(Standing::New, 1)
    });
    let ended = world.cut_off.clone().expect("ended");
    assert!(ended.broken, "{ended:?}");
    assert!(ended.reason.contains("a term out of bounds"), "{ended:?}");
    assert!(!world.serves);
    assert_eq!(world.core.cache_status().remaining, Duration::ZERO);
}

#[test]
fn an_answer_that_cannot_be_one_is_an_io_error_and_the_session_goes_on() {
    let mut world = World::new();
    let mut endless = attr(0, DIR);
    endless.size = u64::MAX;
    for (response, payload) in [
        (Response::Attr(endless), &b""[..]),
        (Response::Attr(attr(0, DIR)), b"unasked"),
        (Response::Written(answer::Written::plain(1, 0)), b""),
    ] {
        let call = world.call(getattr());
        let asked = world.asked();
        world.pass(Duration::from_millis(10));
        let remaining = world.core.cache_status().remaining;
        let reply = Reply {
            renews: true,
            grants: vec![grant(0, Parts::ATTRS, 5)],
            ..asked.reply(Ok(response))
        };
        world.reply(reply, payload);
        assert_eq!(world.refused(call), Refusal::Internal);
        let status = world.core.cache_status();
        assert_eq!((status.remaining, status.leases), (remaining, 0));
    }
    let call = world.call(getattr());
    let asked = world.asked();
    world.answer(&asked, Ok(Response::Attr(attr(0, DIR))));
    assert!(matches!(world.answered(call), Ok(Answer::Attr(_))));
    assert_eq!(world.cut_off, None);
}

#[test]
fn the_open_of_one_file_is_not_given_out_for_another() {
    let mut world = World::new();
    let [first, second] = [1, 2].map(|object| world.node(object, FILE));
    world.open(first, 7, Vec::new());
    let call = world.call(opening(second, libc::O_RDONLY));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(7, 2)));
    assert_eq!(world.refused(call), Refusal::Internal);
    assert_eq!(world.core.session_status().opens, 1);
    assert!(!world.is_asked(), "it isn't closed either");
}

/// Files with pages in the kernel.
const FILES: u8 = 64;

#[test]
fn a_flood_of_recalls_ends_the_connection() {
    let mut world = World::new();
    for file in 0..FILES {
        let node = world.node(file + 1, FILE);
        let fh = world.open(node, file.into(), Vec::new()).fh;
        let at = At { fh, offset: 0 };
        let read = world.call(Call::ReadPages { at, len: 4096 });
        let asked = world.asked();
        let grants = vec![grant(file + 1, Parts::DATA, 1)];
        world.grant(&asked, Response::Done, grants);
        assert!(world.answered(read).is_ok());
    }
    // None can be approved.
    world.keeps_waiting = true;
    // One is of everything, where the server has no more room.
    let most = MAX_RECALLS_OPEN + 1;
    let recalls = (0..=most as u64).zip((1..=FILES).cycle());
    let mut recalls = recalls.map(|(id, file)| recall(id, file, Parts::DATA, &["x"]));
    for recall in recalls.by_ref().take(most) {
        world.recall(recall);
    }
    assert_eq!(world.cut_off, None);
    assert_eq!(world.core.cache_status().recalls, most);
    recalls.for_each(|recall| world.recall(recall));
    let ended = world.cut_off.clone().expect("ended");
    assert!(ended.broken, "{ended:?}");
    assert_eq!(world.core.cache_status().recalls, most);
    world.finds(Standing::Resumed, 1);
    assert!(world.serves);
}
