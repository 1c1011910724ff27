//! What the kernel believes of a name that it has looked up.

use crate::said::{FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use leasefs_client::call::Entry;
use leasefs_client::{Answer, Call, NodeId, Notice};
use leasefs_protocol::{Parts, Response, answer};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(10);

fn looks_up(world: &mut World) -> Waiter {
    world.call(Call::Lookup {
        parent: NodeId::ROOT,
        name: (*b"f").into(),
    })
}

fn entry(world: &mut World, lookup: Waiter) -> Entry {
    match world.answered(lookup) {
        Ok(Answer::Found(Some(entry))) => entry,
        other => panic!("not found: {other:?}"),
    }
}

/// It is looked up at the server, which grants everything, by leases of this stamp.
fn found(world: &mut World, stamp: u64) -> Entry {
    let lookup = looks_up(world);
    let asked = world.asked();
    let (handle, attr) = (handle(1), attr(1, FILE));
    let object = Response::Object(answer::Object { handle, attr });
    let grants = vec![grant(0, Parts::NAMES, stamp), grant(1, Parts::ATTRS, stamp)];
    world.grant(&asked, object, grants);
    entry(world, lookup)
}

fn recalls(world: &mut World, id: u64, object: u8, parts: Parts, names: &[&str]) {
    world.recall(recall(id, object, parts, names));
}

#[test]
fn what_is_leased_comes_with_the_name_and_nothing_is_asked_for_besides() {
    let mut world = World::new();
    let first = found(&mut world, 1);
    assert!(!first.attr_valid.is_zero() && !first.valid.is_zero());
    let again = looks_up(&mut world);
    let again = entry(&mut world, again);
    assert!(!again.attr_valid.is_zero());
    assert!(!world.is_asked());
    assert_eq!(world.told, [], "what it was told before counts still");
}

#[test]
fn what_is_not_leased_is_believed_by_nobody() {
    let mut world = World::new();
    let file = world.node(1, FILE);
    world.told.clear();
    let lookup = looks_up(&mut world);
    let asked = world.asked();
    let (handle, attr) = (handle(1), attr(1, FILE));
    let object = Response::Object(answer::Object { handle, attr });
    world.grant(&asked, object, Vec::new());
    let found = entry(&mut world, lookup);
    assert!(found.attr_valid.is_zero() && found.valid.is_zero());
    assert_eq!(world.told, [Notice::DropAttrs(file)], "its size is ignored");
}

#[test]
fn a_recall_is_approved_once_the_kernel_has_taken_in_what_it_was_told_and_has_dropped_it() {
    let mut world = World::new();
    found(&mut world, 1);
    world.is_behind = true;
    recalls(&mut world, 1, 1, Parts::ATTRS, &[]);
    world.pass(SOON);
    assert!(!world.has_said(), "it would come to believe it after that");
    world.is_behind = false;
    world.pass(SOON);
    assert!(world.has_said());
}

#[test]
fn a_recall_is_approved_once_the_kernel_has_said_that_it_has_forgotten_the_node() {
    let mut world = World::new();
    let node = found(&mut world, 1).node.id;
    world.is_behind = true;
    recalls(&mut world, 1, 1, Parts::ATTRS, &[]);
    world.pass(SOON);
    assert!(!world.has_said());
    world.tell(leasefs_client::Event::Forget { node, count: 1 });
    world.pass(SOON);
    assert!(world.has_said());
}

#[test]
fn a_kernel_that_never_takes_an_answer_in_costs_the_lease() {
    let mut world = World::new();
    found(&mut world, 1);
    world.is_behind = true;
    recalls(&mut world, 1, 1, Parts::ATTRS, &[]);
    for _ in 0..200 {
        world.pass(Duration::from_millis(100));
    }
    world.is_behind = false;
    world.pass(SOON);
    assert!(!world.has_said(), "it may believe it still");
}

#[test]
fn a_name_that_had_to_be_taken_back_is_asked_for_each_time_for_a_while() {
    let mut world = World::new();
    assert!(!found(&mut world, 1).valid.is_zero());
    recalls(&mut world, 1, 0, Parts::NONE, &["f"]);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.told, [Notice::ForgetNames]);
    assert!(world.has_said());
    assert!(found(&mut world, 200).valid.is_zero());
    recalls(&mut world, 2, 0, Parts::NONE, &["f"]);
    world.pass(Duration::from_secs(5));
    assert_eq!(
        world.told,
        [Notice::ForgetNames],
        "it was told nothing since"
    );
    for _ in 0..200 {
        world.pass(Duration::from_secs(3));
    }
    assert!(
        !found(&mut world, 300).valid.is_zero(),
        "it has come to rest"
    );
}

#[test]
fn a_name_that_a_file_was_renamed_to_is_asked_for_each_time_for_a_while() {
    let mut world = World::new();
    let rename = world.call(Call::Rename {
        parent: NodeId::ROOT,
        name: (*b"f.lock").into(),
        new_parent: NodeId::ROOT,
        new_name: (*b"f").into(),
        flags: 0,
    });
    let asked = world.asked();
    world.done(&asked);
    assert!(matches!(world.answered(rename), Ok(Answer::Done)));
    world.pass(Duration::from_secs(5));
    assert!(found(&mut world, 200).valid.is_zero());
}
