//! Extended attributes that needn't be asked for.

use crate::calls::getattr;
use crate::said::{DIR, attr, grant};
use crate::world::{Waiter, World};
use leasefs_client::call::{Asker, Fitted, Room};
use leasefs_client::{Answer, Call, NodeId};
use leasefs_protocol::{Attr, Parts, Refusal, Response};

const ACL: &[u8] = b"system.posix_acl_access";
const CAPABILITY: &[u8] = b"security.capability";
const NO_DATA: Refusal = Refusal::Host(libc::ENODATA as u16);

/// A world that has the root's attributes under a lease.
fn knowing(xattrs: bool) -> World {
    let mut world = World::new();
    know_root(&mut world, xattrs);
    world
}

/// It is told the root's attributes, under a lease.
pub fn know_root(world: &mut World, xattrs: bool) {
    let call = world.call(getattr());
    let asked = world.asked();
    let told = Attr {
        xattrs,
        ..attr(0, DIR)
    };
    world.grant(
        &asked,
        Response::Attr(told),
        vec![grant(0, Parts::ATTRS, 1)],
    );
    assert!(world.answered(call).is_ok());
}

fn get(world: &mut World, name: &[u8]) -> Waiter {
    let (node, name) = (NodeId::ROOT, name.into());
    let room = Room(64);
    world.call(Call::GetXattr { node, name, room })
}

fn list(world: &mut World, uid: u32) -> Waiter {
    let (node, room) = (NodeId::ROOT, Room(0));
    let asker = Asker {
        uid,
        ..Asker::default()
    };
    world.call_of(asker, Call::ListXattr { node, room })
}

#[test]
fn xattrs_are_not_asked_for_where_the_attributes_say_that_there_are_none() {
    let mut world = knowing(false);
    for name in [ACL, CAPABILITY] {
        let call = get(&mut world, name);
        assert_eq!(world.refused(call), NO_DATA);
    }
    let call = list(&mut world, 1000);
    assert!(matches!(
        world.answered(call),
        Ok(Answer::Xattr(Fitted::Size(0)))
    ));
    assert!(!world.is_asked());
    for name in [b"user.x".as_slice(), b"trusted.x", b"nonsense"] {
        get(&mut world, name);
        world.asked();
    }
}

#[test]
fn xattrs_are_asked_for_where_there_may_be_some() {
    let mut world = knowing(true);
    get(&mut world, ACL);
    world.asked();
    list(&mut world, 1000);
    world.asked();
}

/// Of `trusted.*` the attributes say nothing.
#[test]
fn root_asks_for_the_names_of_xattrs() {
    let mut world = knowing(false);
    list(&mut world, 0);
    world.asked();
}
