//! What the kernel believes of a name that it has looked up.

use crate::said::{FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use leasefs_client::call::Entry;
use leasefs_client::{Answer, Call, NodeId, Notice};
use leasefs_protocol::{Parts, Response, answer};
use std::time::Duration;

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

fn forgettings(world: &World) -> usize {
    let told = world.told.iter();
    told.filter(|notice| **notice == Notice::ForgetNames)
        .count()
}

#[test]
fn a_name_that_had_to_be_taken_back_is_asked_for_each_time_for_a_while() {
    let mut world = World::new();
    assert!(!found(&mut world, 1).valid.is_zero());
    recalls(&mut world, 1, 0, Parts::NONE, &["f"]);
    world.pass(Duration::from_secs(5));
    assert_eq!(forgettings(&world), 1);
    assert!(world.has_said());
    assert!(found(&mut world, 200).valid.is_zero());
    recalls(&mut world, 2, 0, Parts::NONE, &["f"]);
    world.pass(Duration::from_secs(5));
    assert_eq!(forgettings(&world), 1, "it was told nothing since");
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
