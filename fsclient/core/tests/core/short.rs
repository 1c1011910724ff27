//! What is given back when there is no room for all that is cached.

use crate::kernel::opened_file;
use crate::said::{FILE, attr, grant, handle};
use crate::world::World;
use crate::xattrs::know_root;
use leasefs_client::call::{At, Fh, Room};
use leasefs_client::{Call, Memory, NodeId};
use leasefs_protocol::{LockOwner, Parts, Reply, Response};

/// More values than there is room for by a quarter of [`Memory::LEAST`].
const VALUES: usize = Memory::LEAST / 4 / 4096 + 100;

fn small() -> World {
    World::using(Memory::new(Memory::LEAST))
}

/// The root has so many attributes that nothing else can stay. Returns what was given back of the first file.
fn fills_up(world: &mut World) -> Parts {
    know_root(world, true);
    for value in 0..VALUES {
        let name = format!("user.{value}").into_bytes().into();
        world.call(Call::GetXattr {
            node: NodeId::ROOT,
            name,
            room: Room(4096),
        });
        let asked = world.asked();
        let grants = vec![grant(0, Parts::ATTRS, 1)];
        let reply = Reply {
            grants,
            ..asked.reply(Ok(Response::Done))
        };
        world.reply(reply, &[7; 4096]);
    }
    let all = world.take_releases();
    assert!(!all.is_empty(), "there is room for all");
    let of_file = all.iter().filter(|release| release.object == handle(1));
    of_file.fold(Parts::NONE, |parts, release| parts | release.parts)
}

fn knows_attributes(world: &mut World, node: NodeId) {
    let call = world.call(Call::GetAttr { node });
    let asked = world.asked();
    let told = Response::Attr(attr(1, FILE));
    world.grant(&asked, told, vec![grant(1, Parts::ATTRS, 1)]);
    assert!(world.answered(call).is_ok());
}

fn reads(world: &mut World, fh: Fh) {
    world.call(Call::Read {
        at: At { fh, offset: 0 },
        len: 4096,
        owner: LockOwner(1),
    });
    let asked = world.asked();
    let reply = Reply {
        grants: vec![grant(1, Parts::DATA, 1)],
        ..asked.reply(Ok(Response::Done))
    };
    world.reply(reply, &[7; 4096]);
}

#[test]
fn the_attributes_of_a_file_are_given_back() {
    let mut world = small();
    let (node, _) = opened_file(&mut world);
    knows_attributes(&mut world, node);
    assert_eq!(fills_up(&mut world), Parts::ATTRS);
}

/// Under a further lease they would be taken for what the file has then.
#[test]
fn a_lease_on_bytes_that_are_here_is_kept() {
    let mut world = small();
    let (node, fh) = opened_file(&mut world);
    reads(&mut world, fh);
    knows_attributes(&mut world, node);
    assert_eq!(fills_up(&mut world), Parts::ATTRS);
}
