//! What the kernel believes of a name that it has looked up.

use crate::said::{FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use leasefs_client::call::Entry;
use leasefs_client::{Answer, Call, Event, NodeId, Notice};
use leasefs_protocol::control::ToServer;
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
pub fn found(world: &mut World, stamp: u64) -> Entry {
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

pub fn forgettings(world: &World) -> usize {
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

/// Whether it has approved a recall since this was asked last.
pub fn approves(world: &mut World) -> bool {
    let said = world.take_said();
    said.iter().any(|said| matches!(said, ToServer::Approve(_)))
}

/// The answer is on its way still, and would bring them whatever was dropped before.
#[test]
fn attributes_that_came_with_a_name_are_given_up_when_the_kernel_knows_of_what() {
    for forgotten in [false, true] {
        let mut world = World::new();
        let entry = found(&mut world, 1);
        assert!(!entry.attr_valid.is_zero());
        world.knows_nothing = true;
        recalls(&mut world, 1, 1, Parts::ATTRS, &[]);
        let node = entry.node.id;
        for _ in 0..10 {
            world.pass(Duration::from_millis(50));
            assert!(!approves(&mut world), "nothing is dropped");
        }
        let drops = world
            .told
            .iter()
            .filter(|told| **told == Notice::DropAttrs(node));
        assert!(
            (8..40).contains(&drops.count()),
            "insists, less and less often"
        );
        match forgotten {
            true => world.tell(Event::Forget { node, count: 1 }),
            false => world.knows_nothing = false,
        }
        world.pass(Duration::from_secs(1));
        assert!(approves(&mut world));
    }
}

/// What it was told before is nothing that an answer could bring back.
#[test]
fn what_the_kernel_has_forgotten_is_given_up_at_once() {
    let mut world = World::new();
    let entry = found(&mut world, 1);
    world.call(Call::GetAttr {
        node: entry.node.id,
    });
    recalls(&mut world, 1, 1, Parts::ATTRS, &[]);
    assert!(approves(&mut world));
    // Known for sure, from here on: the name is told, the attributes aren't.
    let entry = found(&mut world, 200);
    assert!(entry.attr_valid.is_zero(), "of a file that it knows");
    world.knows_nothing = true;
    recalls(&mut world, 2, 1, Parts::ATTRS, &[]);
    assert!(approves(&mut world));
}
