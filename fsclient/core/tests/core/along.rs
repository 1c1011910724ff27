//! Who makes a new file durable, and its directory next, waits once.

use crate::calls::removal;
use crate::opens::{directory_left, is_opened, name_is_gone, without_xattrs};
use crate::said::{Asked, FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use leasefs_client::call::{Asker, Fh, NewMode};
use leasefs_client::{Answer, Call, NodeId};
use leasefs_protocol::{
    OpenId, OpenToken, Parts, Query, Refusal, Reply, Request, Response, Stamp, Touched, answer,
};

/// A client that has had the root open.
fn world() -> World {
    let mut world = World::new();
    directory_left(&mut world, without_xattrs());
    world
}

/// A file is made in the root, whose attributes come with the answer.
fn makes(world: &mut World, file: u8) -> Fh {
    let create = world.call(Call::Create {
        parent: NodeId::ROOT,
        name: [b'a' + file].into(),
        mode: NewMode {
            mode: 0o644,
            umask: 0,
        },
        flags: libc::O_WRONLY as u32,
    });
    let asked = world.asked();
    let stamp = asked.frame.id.0;
    let created = Response::Created(answer::Created {
        handle: handle(file),
        attr: attr(file, FILE),
        open: OpenId(100 + stamp),
        token: OpenToken(vec![1]),
    });
    let reply = Reply {
        renews: true,
        grants: vec![grant(0, Parts::ATTRS, stamp)],
        touched: vec![Touched {
            object: handle(0),
            attr: without_xattrs(),
        }],
        stamp: Stamp(stamp),
        ..asked.reply(Ok(created))
    };
    world.reply(reply, b"");
    match world.answered(create) {
        Ok(Answer::Created(_, opened)) => opened.fh,
        other => panic!("not made: {other:?}"),
    }
}

fn syncs(world: &mut World, fh: Fh) -> Waiter {
    world.call(Call::Sync {
        fh,
        data_only: true,
    })
}

/// The root, opened without a request.
fn root(world: &mut World) -> Fh {
    let open = world.call(Call::OpenDir { node: NodeId::ROOT });
    match world.answered(open) {
        Ok(Answer::OpenedDir(fh)) => fh,
        other => panic!("not open: {other:?}"),
    }
}

fn commits(world: &mut World, count: usize) -> Vec<Asked> {
    let asked = world.take_asked();
    let are = asked
        .iter()
        .all(|asked| matches!(asked.frame.request, Request::Query(Query::Commit(_))));
    assert!(are && asked.len() == count, "{asked:?}");
    asked
}

/// A commit is asked for, and ends it.
fn is_committed(world: &mut World, sync: Waiter) {
    let commit = commits(world, 1).remove(0);
    world.done(&commit);
    world.answered(sync).expect("durable");
}

/// It was made, and it and then the root made durable, each by a request.
fn one_after_the_other(world: &mut World, file: u8) {
    let fh = makes(world, file);
    let sync = syncs(world, fh);
    is_committed(world, sync);
    let fh = root(world);
    let sync = syncs(world, fh);
    is_committed(world, sync);
    world.call(Call::ReleaseDir { fh });
}

/// A file was made, and is being made durable with the root: what the root is asked with, and the file.
fn both_at_once(world: &mut World, file: u8) -> (Asked, Asked, Waiter) {
    let fh = makes(world, file);
    let sync = syncs(world, fh);
    let mut asked = commits(world, 2).into_iter();
    let mut next = || asked.next().expect("two");
    let commit = next();
    (next(), commit, sync)
}

#[test]
fn a_directory_is_made_durable_along_with_a_new_file_where_it_was_next_before() {
    let mut world = world();
    one_after_the_other(&mut world, 1);
    for file in 2..5 {
        let (along, commit, sync) = both_at_once(&mut world, file);
        world.done(&commit);
        world.answered(sync).expect("it waits for its own alone");
        let fh = root(&mut world);
        let sync = syncs(&mut world, fh);
        assert!(world.waits(sync) && !world.is_asked());
        world.done(&along);
        world.answered(sync).expect("durable");
        world.call(Call::ReleaseDir { fh });
    }
    let (along, _, _) = both_at_once(&mut world, 6);
    world.done(&along);
    for _ in 0..2 {
        let fh = root(&mut world);
        let sync = syncs(&mut world, fh);
        world.answered(sync).expect("durable already");
    }
    assert!(!world.is_asked());
}

#[test]
fn a_directory_that_is_not_made_durable_next_is_left_alone() {
    let mut world = world();
    one_after_the_other(&mut world, 1);
    both_at_once(&mut world, 2);
    let fh = makes(&mut world, 3);
    let sync = syncs(&mut world, fh);
    is_committed(&mut world, sync);
    let sync = syncs(&mut world, fh);
    is_committed(&mut world, sync);
}

fn is_removed(world: &mut World) {
    let removed = (world.call(removal(NodeId::ROOT)), world.asked());
    name_is_gone(world, removed, without_xattrs());
}

#[test]
fn a_directory_that_has_changed_since_is_made_durable_by_itself() {
    for (elsewhere, answered) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = world();
        one_after_the_other(&mut world, 1);
        let (along, _, _) = both_at_once(&mut world, 2);
        let dir = root(&mut world);
        if answered {
            world.done(&along);
        }
        match elsewhere {
            false => is_removed(&mut world),
            true => {
                world.recall(recall(1, 0, Parts::ATTRS | Parts::LISTING, &["x"]));
            }
        }
        if !answered {
            world.done(&along);
        }
        let sync = syncs(&mut world, dir);
        is_committed(&mut world, sync);
    }
}

#[test]
fn who_waits_for_a_directory_that_changes_meanwhile_has_it_made_durable_by_itself() {
    let mut world = world();
    one_after_the_other(&mut world, 1);
    both_at_once(&mut world, 2);
    let fh = root(&mut world);
    let sync = syncs(&mut world, fh);
    assert!(world.waits(sync));
    is_removed(&mut world);
    is_committed(&mut world, sync);
}

#[test]
fn a_directory_that_has_not_come_to_the_disk_along_is_told_of_once() {
    let failed = Refusal::Host(libc::EIO as u16);
    let mut world = world();
    one_after_the_other(&mut world, 1);
    let fh = root(&mut world);
    let (along, _, _) = both_at_once(&mut world, 2);
    world.answer(&along, Err(failed));
    for told in [true, false] {
        let sync = syncs(&mut world, fh);
        let commit = commits(&mut world, 1).remove(0);
        world.done(&commit);
        match told {
            true => assert_eq!(world.refused(sync), failed),
            false => drop(world.answered(sync).expect("durable")),
        }
    }
}

#[test]
fn who_waits_for_a_directory_that_does_not_come_to_the_disk_is_told_at_once_and_once() {
    let failed = Refusal::Host(libc::EIO as u16);
    let mut world = world();
    one_after_the_other(&mut world, 1);
    let fh = root(&mut world);
    let (along, _, _) = both_at_once(&mut world, 2);
    let sync = syncs(&mut world, fh);
    world.answer(&along, Err(failed));
    assert_eq!(world.refused(sync), failed);
    let sync = syncs(&mut world, fh);
    is_committed(&mut world, sync);
}

#[test]
fn a_host_that_syncs_no_directories_says_so_to_who_asks_and_nothing_is_lost() {
    let refused = Refusal::Host(libc::EINVAL as u16);
    let mut world = world();
    one_after_the_other(&mut world, 1);
    let fh = root(&mut world);
    let (along, _, _) = both_at_once(&mut world, 2);
    world.answer(&along, Err(refused));
    let sync = syncs(&mut world, fh);
    is_committed(&mut world, sync);
}

/// What the disk has failed in the host tells through each open once.
#[test]
fn what_another_open_has_made_durable_is_made_durable_again() {
    let mut world = world();
    one_after_the_other(&mut world, 1);
    let other = Asker {
        pid: 0,
        uid: 7,
        gid: 7,
    };
    let open = world.call_of(other, Call::OpenDir { node: NodeId::ROOT });
    let asked = world.asked();
    let theirs = is_opened(&mut world, open, &asked, without_xattrs());
    let (along, _, _) = both_at_once(&mut world, 2);
    for answered in [false, true] {
        if answered {
            world.done(&along);
        }
        let sync = syncs(&mut world, theirs);
        is_committed(&mut world, sync);
    }
}

#[test]
fn names_that_are_changed_between_say_that_it_is_not_for_the_file() {
    let mut world = world();
    let fh = makes(&mut world, 1);
    let sync = syncs(&mut world, fh);
    is_committed(&mut world, sync);
    is_removed(&mut world);
    let fh = root(&mut world);
    let sync = syncs(&mut world, fh);
    is_committed(&mut world, sync);
    let fh = makes(&mut world, 2);
    syncs(&mut world, fh);
    commits(&mut world, 1);
}
