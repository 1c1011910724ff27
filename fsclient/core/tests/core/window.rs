//! How many flushes are under way at a time, and which go before.

use crate::calls::opening;
use crate::kernel::writes;
use crate::said::{Asked, FILE, attr, grant, handle, opened, recall};
use crate::world::World;
use leasefs_client::{Answer, Call};
use leasefs_protocol::limits::MAX_REQUESTS_IN_FLIGHT;
use leasefs_protocol::{Grant, Mode, Parts, Reply, Response, Touched, answer};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(2);
/// At a time.
const FLUSHES: u8 = 16;

/// A file with buffered bytes.
fn dirty(world: &mut World, file: u8) {
    let node = world.node(file, FILE);
    let call = world.call(opening(node, libc::O_RDWR));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(file.into(), file)));
    let fh = match world.answered(call) {
        Ok(Answer::Opened(opened)) => opened.fh,
        other => panic!("not opened: {other:?}"),
    };
    let first = writes(world, fh, 0);
    let through = world.asked();
    let len = through.payload.len() as u64;
    let lease = Grant {
        mode: Mode::Write,
        ..grant(file, Parts::ATTRS | Parts::DATA, 1)
    };
    let reply = Reply {
        renews: true,
        grants: vec![lease],
        touched: vec![Touched {
            object: handle(file),
            attr: attr(file, FILE),
        }],
        room: Some(1 << 30),
        ..through.reply(Ok(Response::Written(answer::Written::plain(len, 0))))
    };
    world.reply(reply, b"");
    world.answered(first).expect("written");
    let second = writes(world, fh, len);
    world.answered(second).expect("buffered");
}

fn of_open(asked: &Asked) -> u8 {
    asked.write().open.0 as u8
}

#[test]
fn what_another_mount_waits_for_does_not_stand_behind_what_nobody_does() {
    let mut world = World::new();
    let files = 1..=FLUSHES + 4;
    files.clone().for_each(|file| dirty(&mut world, file));
    world.pass(SOON);
    let under_way = world.take_asked();
    assert_eq!(under_way.len(), usize::from(FLUSHES));
    let waits = files
        .rev()
        .find(|file| under_way.iter().all(|asked| of_open(asked) != *file));
    let waits = waits.expect("some wait");
    world.recall(recall(1, waits, Parts::ATTRS | Parts::DATA, &[]));
    world.pass(Duration::from_millis(100));
    let past = world.asked();
    assert_eq!(of_open(&past), waits);
    assert!(!world.is_asked(), "the others wait");
}

/// Others wait for it, while all else may wait for others.
#[test]
fn what_is_written_back_has_a_place_while_as_much_is_asked_for_as_may_be() {
    let mut world = World::new();
    dirty(&mut world, 1);
    let other = world.node(2, FILE);
    for _ in 0..MAX_REQUESTS_IN_FLIGHT {
        world.call(Call::GetAttr { node: other });
    }
    let asked = world.take_asked().len();
    assert!(asked < MAX_REQUESTS_IN_FLIGHT);
    world.recall(recall(1, 1, Parts::ATTRS | Parts::DATA, &[]));
    world.pass(Duration::from_millis(100));
    assert_eq!(of_open(&world.asked()), 1);
    world.call(Call::GetAttr { node: other });
    assert!(!world.is_asked(), "the others wait for a place");
}
