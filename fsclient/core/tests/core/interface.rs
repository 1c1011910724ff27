//! The interface itself: events in, actions out.

use crate::calls::{getattr, is_done, opening, removal};
use crate::said::{DIR, FILE, attr, grant, opened, recall};
use crate::world::World;
use leasefs_client::call::At;
use leasefs_client::{Answer, Call, Event, NodeId, Timeout, repeat_tables};
use leasefs_protocol::control::{Standing, ToClient, ToServer};
use leasefs_protocol::{Parts, RecallId, Refusal, Response};
use std::time::Duration;

/// Much of what can happen to a client, all of its tables used.
fn story() -> Vec<String> {
    let mut world = World::with(Timeout::After(Duration::from_secs(2)));
    let files: Vec<(u8, NodeId)> = (1..40)
        .map(|object| (object, world.node(object, FILE)))
        .collect();
    let dirs = [50, 51].map(|object| world.node(object, DIR));
    for (object, node) in &files {
        let parts = Parts::ATTRS | Parts::DATA;
        let lease = grant(*object, parts, u64::from(*object));
        let fh = world.open(*node, u64::from(*object), vec![lease]).fh;
        let at = At { fh, offset: 0 };
        world.call(Call::ReadPages { at, len: 4096 });
        let asked = world.asked();
        world.grant(&asked, Response::Done, vec![lease]);
    }
    world.keeps_waiting = true;
    for (object, _) in &files[..20] {
        world.recall(recall(u64::from(*object), *object, Parts::DATA, &[]));
    }
    for (pid, dir) in (1..).zip(dirs.iter().chain(&dirs)) {
        world.call_by(pid, removal(*dir));
    }
    world.pass(Duration::from_millis(150));
    for (call, _) in std::mem::take(&mut world.watched) {
        world.tell(Event::Left(call));
    }
    world.gets_on();
    world.call(getattr());
    world.tell(Event::Lost(world.connection, "cut".into()));
    world.finds(Standing::Reclaim, 2);
    for _ in 0..2 {
        world.say(ToClient::Reclaimed {
            lost_leases: (30..35).map(crate::said::handle).collect(),
            lost_opens: (30..35).map(leasefs_protocol::OpenId).collect(),
            lost_locks: Vec::new(),
        });
    }
    world.pass(Duration::from_secs(3));
    world.lively = false;
    world.pass(Duration::from_secs(20));
    world.tell(Event::Goodbye);
    world.pass(Duration::from_secs(2));
    assert!(world.has_ended);
    world.log
}

#[test]
fn the_same_events_give_the_same_actions() {
    repeat_tables();
    let told = story();
    assert!(told.len() > 300, "{}", told.len());
    for (first, second) in told.iter().zip(&story()) {
        assert_eq!(first, second);
    }
    assert_eq!(told.len(), story().len());
}

#[test]
fn an_answer_from_the_cache_needs_no_task() {
    let mut world = World::new();
    let call = world.call(getattr());
    let asked = world.asked();
    let grants = vec![grant(0, Parts::ATTRS, 1)];
    world.grant(&asked, Response::Attr(attr(0, DIR)), grants);
    assert!(world.answered(call).is_ok());
    let (tasks, done) = (format!("{:?}", world.core), world.log.len());
    let call = world.call_by(7, getattr());
    assert_eq!(format!("{:?}", world.core), tasks);
    assert_eq!(world.log.len(), done + 1, "{:?}", &world.log[done..]);
    assert!(world.answered(call).is_ok());
}

#[test]
fn a_call_whose_caller_leaves_is_cancelled_at_the_server_and_answered() {
    let mut world = World::new();
    let dir = world.node(2, DIR);
    let change = world.call_by(7, removal(dir));
    let call = world.call_by(8, getattr());
    let (sent, asked) = (world.asked(), world.asked());
    world.leaves(8);
    assert_eq!(world.refused(call), Refusal::Cancelled);
    assert!(!world.has_said(), "there is nothing to cancel");
    world.answer(&asked, Ok(Response::Attr(attr(0, DIR))));
    assert!(world.waits(change));
    world.leaves(7);
    assert_eq!(world.refused(change), Refusal::Cancelled);
    let seq = sent.seq();
    assert_eq!(world.said(), ToServer::Cancel { seq });
    let begun = true;
    world.say(ToClient::Cancelled { seq, begun });
    world.done(&sent);
    assert!(world.waits(change), "once is enough");
}

#[test]
fn who_leaves_after_the_answer_leaves_no_trace() {
    let mut world = World::new();
    let dir = world.node(2, DIR);
    let change = world.call_by(7, removal(dir));
    let asked = world.asked();
    world.pass(Duration::from_millis(100));
    let (call, pid) = world.watched[0];
    assert_eq!(pid, 7);
    world.done(&asked);
    assert!(is_done(&world.answered(change)));
    let done = world.log.len();
    world.tell(Event::Left(call));
    assert_eq!(world.log.len(), done);
}

#[test]
fn the_next_deadline_is_that_of_the_earliest_timer() {
    let mut world = World::new();
    world.pass(Duration::from_secs(1));
    let next = |world: &World| {
        let due = world.core.next_deadline().expect("a deadline");
        due.since(world.now().monotonic)
    };
    // It looks after its caches and its session.
    let looks = next(&world);
    assert!(looks <= Duration::from_millis(100));
    world.pass(looks - Duration::from_millis(1));
    let busy = world.log.len();
    assert_eq!(next(&world), Duration::from_millis(1));
    // Its caller is looked at later.
    world.call_by(7, getattr());
    assert_eq!(next(&world), Duration::from_millis(1));
    world.asked();
    assert_eq!(world.log.len(), busy + 1);
    assert!(world.watched.is_empty());
    world.pass(Duration::from_millis(98));
    assert!(world.watched.is_empty());
    assert!(next(&world) <= Duration::from_millis(2));
    world.pass(Duration::from_millis(2));
    assert_eq!(world.watched.len(), 1);
}

#[test]
fn nothing_is_done_before_its_time() {
    let mut world = World::new();
    world.pass(Duration::from_secs(1));
    let (due, done) = (world.core.next_deadline(), world.log.len());
    world.tell(Event::Tick);
    assert_eq!((world.core.next_deadline(), world.log.len()), (due, done));
}

#[test]
fn a_file_that_the_kernel_forgets_during_a_read_keeps_its_lease_until_the_read_has_ended() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let fh = world.open(node, 7, Vec::new()).fh;
    let at = At { fh, offset: 0 };
    for stamp in [1, 2] {
        let read = world.call(Call::ReadPages { at, len: 4096 });
        let asked = world.asked();
        if stamp == 2 {
            world.tell(Event::Forget { node, count: 1 });
            world.pass(Duration::from_secs(3));
            assert!(!world.has_said(), "the READ may bring pages");
        }
        world.grant(&asked, Response::Done, vec![grant(1, Parts::DATA, stamp)]);
        assert!(matches!(world.answered(read), Ok(Answer::Bytes(_))));
    }
    world.told.clear();
    world.recall(recall(5, 1, Parts::DATA, &[]));
    world.approves(RecallId(5));
    assert!(world.told.is_empty(), "the kernel doesn't know it");
    // It is looked up once more, and is what it was.
    assert_eq!(world.node(1, FILE), node);
}

#[test]
fn a_file_that_the_kernel_has_looked_up_again_is_not_forgotten() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    assert_eq!(world.node(1, FILE), node);
    world.tell(Event::Forget { node, count: 1 });
    let call = world.call(opening(node, libc::O_RDONLY));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(7, 1)));
    assert!(world.answered(call).is_ok());
    world.tell(Event::Forget { node, count: 1 });
    let call = world.call(Call::GetAttr { node });
    assert_eq!(world.refused(call), Refusal::Stale);
}
