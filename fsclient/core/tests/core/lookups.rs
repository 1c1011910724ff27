//! What the kernel believes of a name that it has looked up.

use crate::said::{Asked, DIR, FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use leasefs_client::call::{Entry, NewMode};
use leasefs_client::{Answer, Call, Event, NodeId, Notice};
use leasefs_protocol::control::ToServer;
use leasefs_protocol::{FileKind, Parts, Query, Refusal, Request, Response, SetAttr, answer};
use std::time::Duration;

fn looks_up(world: &mut World, parent: NodeId, name: &[u8]) -> Waiter {
    world.call(Call::Lookup {
        parent,
        name: name.into(),
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
    let lookup = looks_up(world, NodeId::ROOT, b"f");
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
            (8..80).contains(&drops.count()),
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

/// The server has granted what the client has given up by itself.
#[test]
fn what_a_suspend_takes_back_is_waited_for_by_who_finds_nothing_to_take_back_any_more() {
    for recalled in [true, false] {
        let mut world = World::new();
        let entry = found(&mut world, 1);
        assert!(!entry.attr_valid.is_zero());
        world.knows_nothing = true;
        world.sleep(Duration::from_secs(1));
        let set = match recalled {
            true => {
                recalls(&mut world, 1, 1, Parts::ATTRS, &[]);
                None
            }
            false => Some(world.call(Call::SetAttr {
                node: entry.node.id,
                fh: None,
                set: SetAttr {
                    mode: Some(0o600),
                    ..SetAttr::default()
                },
                owner: None,
            })),
        };
        world.pass(Duration::from_millis(500));
        assert!(!approves(&mut world) && !world.is_asked());
        world.knows_nothing = false;
        world.pass(Duration::from_secs(1));
        match set {
            Some(_) => assert!(world.is_asked()),
            None => assert!(approves(&mut world)),
        }
    }
}

/// The object of this number is made, or gets a name, under a lease.
fn makes(world: &mut World, number: u8, kind: FileKind, call: Call) -> Entry {
    let call = world.call(call);
    let asked = world.asked();
    let made = Response::Object(answer::Object {
        handle: handle(number),
        attr: attr(number, kind),
    });
    world.grant(&asked, made, vec![grant(number, Parts::ATTRS, 1)]);
    match world.answered(call) {
        Ok(Answer::Made(entry)) => entry,
        other => panic!("not made: {other:?}"),
    }
}

fn make(name: &[u8]) -> Call {
    Call::MakeNode {
        parent: NodeId::ROOT,
        name: name.into(),
        mode: NewMode {
            mode: 0o644,
            umask: 0,
        },
        rdev: (0, 0),
    }
}

#[test]
fn what_is_made_comes_with_its_attributes_and_not_what_is_linked() {
    let mut world = World::new();
    let new = makes(&mut world, 2, FILE, make(b"new"));
    assert!(!new.attr_valid.is_zero() && new.valid.is_zero());
    let link = Call::Link {
        node: new.node.id,
        parent: NodeId::ROOT,
        name: (*b"link").into(),
    };
    assert!(makes(&mut world, 2, FILE, link).attr_valid.is_zero());
}

/// The server finds the object of number 2.
fn finds(world: &mut World, dir: NodeId, name: &[u8]) -> Waiter {
    let lookup = looks_up(world, dir, name);
    let asked = world.asked();
    let (handle, attr) = (handle(2), attr(2, FILE));
    let object = Response::Object(answer::Object { handle, attr });
    world.grant(&asked, object, vec![]);
    lookup
}

/// It would know it by this answer, and then take up what it was when it was made.
#[test]
fn what_was_made_here_is_told_in_another_directory_once_the_kernel_knows_it() {
    for looked_for in [false, true] {
        let mut world = World::new();
        let mkdir = Call::MakeDir {
            parent: NodeId::ROOT,
            name: (*b"d").into(),
            mode: NewMode {
                mode: 0o755,
                umask: 0,
            },
        };
        let dir = makes(&mut world, 3, DIR, mkdir);
        makes(&mut world, 2, FILE, make(b"new"));
        world.knows_nothing = true;
        if looked_for {
            finds(&mut world, NodeId::ROOT, b"new");
        }
        let moved = finds(&mut world, dir.node.id, b"moved");
        world.pass(Duration::from_secs(1));
        assert_eq!(world.waits(moved), !looked_for);
        world.knows_nothing = false;
        world.pass(Duration::from_secs(1));
        assert!(!world.waits(moved));
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

/// Another mount changes a name of the root that may be known here.
fn is_changed(world: &mut World, id: u64, name: &str) {
    recalls(world, id, 0, Parts::ATTRS, &[name]);
    assert!(approves(world));
}

/// What is asked of the server when the kernel asks for the root's attributes, these first.
fn asked_of_root(world: &mut World) -> Vec<Asked> {
    world.call(Call::GetAttr { node: NodeId::ROOT });
    let all = world.take_asked();
    let first = all.first().map(|asked| &asked.frame.request);
    let attrs = matches!(first, Some(Request::Query(Query::GetAttr(_))));
    assert!(attrs, "{first:?}");
    all
}

fn tells_of_root(world: &mut World, all: &[Asked]) {
    let attr = Response::Attr(attr(0, DIR));
    world.grant(&all[0], attr, vec![]);
}

#[test]
fn what_another_mount_changes_is_looked_up_beside_its_directory_where_it_was_looked_for_before() {
    let mut world = World::new();
    is_changed(&mut world, 1, "f");
    let all = asked_of_root(&mut world);
    assert_eq!(all.len(), 1, "nobody has looked for what was changed yet");
    tells_of_root(&mut world, &all);
    found(&mut world, 50);

    is_changed(&mut world, 2, "f");
    let all = asked_of_root(&mut world);
    assert!(matches!(
        all[1].frame.request,
        Request::Query(Query::Lookup(_))
    ));
    tells_of_root(&mut world, &all);
    let lookup = looks_up(&mut world, NodeId::ROOT, b"f");
    assert!(!world.is_asked(), "it is under way");
    let (object, attr) = (handle(1), attr(1, FILE));
    let found = answer::Object {
        handle: object,
        attr,
    };
    let grants = vec![grant(0, Parts::NAMES, 150), grant(1, Parts::ATTRS, 150)];
    world.grant(&all[1], Response::Object(found), grants);
    assert!(!world.is_asked());
    entry(&mut world, lookup);
}

/// Another mount has changed a name twice, which was looked for in between.
fn changed_again() -> World {
    let mut world = World::new();
    is_changed(&mut world, 1, "f");
    found(&mut world, 50);
    is_changed(&mut world, 2, "f");
    world
}

#[test]
fn what_was_looked_up_beside_its_directory_without_a_lease_is_asked_for_again() {
    let mut world = changed_again();
    let all = asked_of_root(&mut world);
    let lookup = looks_up(&mut world, NodeId::ROOT, b"f");
    world.answer(&all[1], Err(Refusal::Internal));
    assert!(world.waits(lookup) && world.is_asked());
}

#[test]
fn who_waits_for_what_is_looked_up_beside_its_directory_waits_no_longer_than_for_that() {
    let mut world = changed_again();
    asked_of_root(&mut world);
    world.pass(Duration::from_secs(40));
    let lookup = looks_up(&mut world, NodeId::ROOT, b"f");
    world.pass(Duration::from_secs(30));
    assert_eq!(world.refused(lookup), Refusal::TimedOut);
}
