//! What is set of a file while bytes of it are buffered goes to the server with them.

use crate::kernel::{may_buffer, opened_file, writes};
use crate::opens::makes;
use crate::said::{Asked, FILE, attr, grant, handle};
use crate::world::{Waiter, World};
use leasefs_client::call::{Asker, Fh, Room, Writing};
use leasefs_client::{Answer, Call, NodeId, Notice};
use leasefs_protocol::change::WriteKind;
use leasefs_protocol::limits::SCATTERED;
use leasefs_protocol::{
    Attr, Change, Grant, Mode, Parts, Refusal, Reply, Request, Response, SetAttr, SetTime,
    Timestamp, answer,
};
use std::time::Duration;

const ROOT: u32 = 0;
const SOON: Duration = Duration::from_secs(2);

/// What a file has that was just made.
fn fresh() -> Attr {
    Attr {
        mode: 0o644,
        xattrs: false,
        ..attr(2, FILE)
    }
}

fn mode(mode: u16) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

fn dated(seconds: i64) -> SetAttr {
    SetAttr {
        mtime: Some(SetTime::At(Timestamp { seconds, nanos: 0 })),
        ..SetAttr::default()
    }
}

fn owned(uid: u32) -> SetAttr {
    SetAttr {
        uid: Some(uid),
        ..SetAttr::default()
    }
}

/// A file with buffered bytes that are not sent yet.
pub fn written_file(world: &mut World) -> (NodeId, Fh) {
    let (node, fh) = opened_file(world);
    may_buffer(world, fh);
    let written = writes(world, fh, 4096);
    world.answered(written).expect("buffered");
    (node, fh)
}

fn sets(world: &mut World, uid: u32, node: NodeId, set: SetAttr) -> Waiter {
    let asker = Asker {
        uid,
        ..Asker::default()
    };
    world.call_of(
        asker,
        Call::SetAttr {
            node,
            fh: None,
            set,
            owner: None,
        },
    )
}

/// It is set, and what it goes with is sent.
fn goes_with_a_flush(world: &mut World, node: NodeId, set: SetAttr) -> Asked {
    let set = sets(world, ROOT, node, set);
    world.answered(set).expect("set");
    world.pass(SOON);
    world.asked()
}

/// What comes with a flush.
fn set_by(asked: &Asked) -> SetAttr {
    match asked.write().kind {
        WriteKind::Flush { set, .. } => set,
        other => panic!("not a flush: {other:?}"),
    }
}

/// It is written; what was set with it isn't, if there is a reason.
fn flushed_but(world: &mut World, asked: &Asked, unset: Option<Refusal>) {
    let len = asked.payload.len() as u64;
    let offset = asked.write().at.first().expect("no append");
    let lease = Grant {
        mode: Mode::Write,
        ..grant(1, Parts::ATTRS | Parts::DATA, 1)
    };
    let reply = Reply {
        grants: vec![lease],
        ..asked.written(answer::Written {
            unset,
            ..answer::Written::plain(len, offset)
        })
    };
    world.reply(reply, b"");
}

pub fn flushed(world: &mut World, asked: &Asked) {
    flushed_but(world, asked, None);
}

#[test]
fn what_is_set_of_a_file_that_was_just_written_costs_no_request() {
    let mut world = World::new();
    let (node, _) = written_file(&mut world);
    for set in [dated(7), owned(ROOT), mode(0o640)] {
        let call = sets(&mut world, ROOT, node, set);
        let Ok(Answer::Attr(told)) = world.answered(call) else {
            panic!("not set")
        };
        assert_eq!(told.valid, Duration::ZERO, "it is asked for the times");
        assert!(
            told.shown.attr.size > 4096,
            "the kernel takes the size from it"
        );
    }
    assert!(!world.is_asked());
    world.pass(SOON);
    let asked = world.asked();
    let all = mode(0o640).behind(owned(ROOT)).behind(dated(7));
    assert_eq!(set_by(&asked), all);
    flushed(&mut world, &asked);
    world.pass(SOON);
    assert!(!world.is_asked(), "it is sent once");
}

/// sqlite gives each journal that it has just made to the database's owner.
#[test]
fn what_a_new_file_has_already_is_not_set_at_the_server() {
    let sets_user = Attr {
        mode: 0o4644,
        ..fresh()
    };
    let capable = Attr {
        xattrs: true,
        ..fresh()
    };
    for (of, uid, wait, set, asked) in [
        (fresh(), ROOT, 0, owned(ROOT), false),
        (fresh(), ROOT, 0, mode(0o644), false),
        (fresh(), ROOT, 19, owned(ROOT), false),
        (fresh(), ROOT, 20, owned(ROOT), true),
        (fresh(), ROOT, 0, owned(7), true),
        (fresh(), ROOT, 0, mode(0o600), true),
        (fresh(), 7, 0, mode(0o644), true),
        (sets_user, ROOT, 0, owned(ROOT), true),
        (capable, ROOT, 0, owned(ROOT), true),
    ] {
        let mut world = World::new();
        let asker = Asker::default();
        let node = makes(&mut world, asker, libc::O_WRONLY, of, Mode::Write).node;
        world.pass(Duration::from_millis(wait));
        let call = sets(&mut world, uid, node, set);
        assert_eq!(world.is_asked(), asked, "{of:?} {uid} {wait} {set:?}");
        assert_eq!(world.waits(call), asked);
    }
    let mut world = World::new();
    let asker = Asker::default();
    let node = makes(&mut world, asker, libc::O_WRONLY, fresh(), Mode::Read).node;
    sets(&mut world, ROOT, node, owned(ROOT));
    assert!(world.is_asked(), "others may change it");
}

#[test]
fn a_written_file_is_looked_up_without_a_request_and_the_kernel_believes_nothing_of_it() {
    let mut world = World::new();
    let (node, fh) = opened_file(&mut world);
    let lookup = Call::Lookup {
        parent: NodeId::ROOT,
        name: [b'a' + 1].into(),
    };
    let call = world.call(lookup.clone());
    let asked = world.asked();
    let (handle, attr) = (handle(1), attr(1, FILE));
    let leases = vec![grant(0, Parts::NAMES, 1), grant(1, Parts::ATTRS, 1)];
    world.grant(
        &asked,
        Response::Object(answer::Object { handle, attr }),
        leases,
    );
    world.answered(call).expect("found");
    may_buffer(&mut world, fh);
    let written = writes(&mut world, fh, 4096);
    world.answered(written).expect("buffered");
    world.told.clear();
    let call = world.call(lookup);
    let Ok(Answer::Found(Some(found))) = world.answered(call) else {
        panic!("not found")
    };
    assert_eq!(found.node.id, node);
    assert!(!world.is_asked());
    assert!(matches!(world.told[..], [Notice::DropAttrs(told)] if told == node));
}

#[test]
fn who_asks_for_attributes_waits_until_what_is_set_is_at_the_server() {
    let mut world = World::new();
    let (node, _) = written_file(&mut world);
    let set = sets(&mut world, ROOT, node, mode(0o640));
    world.answered(set).expect("set");
    let stat = world.call(Call::GetAttr { node });
    let asked = world.asked();
    assert_eq!(set_by(&asked), mode(0o640));
    assert!(world.waits(stat));
    flushed(&mut world, &asked);
    world.answered(stat).expect("told");
}

#[test]
fn who_asks_for_an_acl_does_so_too_and_that_there_are_no_xattrs_is_known() {
    let mut world = World::new();
    let (node, _) = written_file(&mut world);
    let set = sets(&mut world, ROOT, node, mode(0o640));
    world.answered(set).expect("set");
    let name = b"system.posix_acl_access".as_slice().into();
    let room = Room(64);
    let acl = world.call(Call::GetXattr { node, name, room });
    let asked = world.asked();
    assert_eq!(set_by(&asked), mode(0o640));
    assert!(world.waits(acl));
}

#[test]
fn what_may_be_refused_or_means_something_else_later_goes_to_the_server_at_once() {
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    let now = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    for (uid, set) in [
        (ROOT, size),
        (ROOT, now),
        (ROOT, mode(0o4755)),
        (ROOT, mode(0o775)),
        (ROOT, owned(5)),
        (1000, mode(0o640)),
        (1000, dated(7)),
    ] {
        let mut world = World::new();
        let (node, _) = written_file(&mut world);
        let call = sets(&mut world, uid, node, set);
        assert_eq!(set_by(&world.asked()), SetAttr::default(), "{set:?}");
        assert!(world.waits(call), "{set:?}");
    }
}

#[test]
fn with_nothing_left_to_send_what_is_set_goes_to_the_server_behind_it() {
    let mut world = World::new();
    let (node, _) = written_file(&mut world);
    world.pass(SOON);
    let flush = world.asked();
    let call = sets(&mut world, ROOT, node, mode(0o640));
    assert!(world.waits(call) && !world.is_asked());
    flushed(&mut world, &flush);
    assert!(matches!(world.asked().change(), Change::SetAttr(_)));
}

#[test]
fn what_is_sent_again_brings_what_is_set_again() {
    let mut world = World::new();
    let (node, _) = written_file(&mut world);
    let flush = goes_with_a_flush(&mut world, node, mode(0o640));
    assert_eq!(set_by(&flush), mode(0o640));
    world.answer(&flush, Err(Refusal::Lost));
    world.pass(SOON);
    assert_eq!(set_by(&world.asked()), mode(0o640));
}

#[test]
fn a_write_behind_it_dates_the_file_anew() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    let set = sets(&mut world, ROOT, node, dated(7).behind(mode(0o640)));
    world.answered(set).expect("set");
    let written = writes(&mut world, fh, 4096);
    world.answered(written).expect("buffered");
    world.pass(SOON);
    assert_eq!(set_by(&world.asked()), mode(0o640));
}

#[test]
fn what_another_user_writes_behind_it_goes_through_and_what_was_set_before_it() {
    let mut world = World::new();
    let (node, _) = written_file(&mut world);
    let other = Asker {
        uid: 1000,
        ..Asker::default()
    };
    let opens = world.call_of(other, crate::calls::opening(node, libc::O_RDWR));
    let asked = world.asked();
    world.answer(&asked, Ok(crate::said::opened(8, 1)));
    let Ok(Answer::Opened(opened)) = world.answered(opens) else {
        panic!("not opened")
    };
    let set = sets(&mut world, ROOT, node, mode(0o640));
    world.answered(set).expect("set");
    let written = writes(&mut world, opened.fh, 8192);
    assert!(world.waits(written));
    let flush = world.asked();
    assert_eq!(
        (set_by(&flush), flush.frame.caller.uid),
        (mode(0o640), ROOT)
    );
    assert!(!world.is_asked());
}

#[test]
fn that_the_host_does_not_set_it_is_told_though_the_bytes_are_written() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    let flush = goes_with_a_flush(&mut world, node, mode(0o640));
    flushed_but(&mut world, &flush, Some(Refusal::NotPermitted));
    assert!(world.kept.is_empty());
    let close = world.call(Call::Flush {
        fh,
        owner: leasefs_protocol::LockOwner(1),
    });
    assert_eq!(world.refused(close), Refusal::NotPermitted);
}

#[test]
fn modes_come_before_the_bytes_and_dates_with_all_of_them() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    // More than goes with the bytes that are there.
    let written = world.call(Call::Write {
        fh,
        writing: Writing {
            offset: 1 << 20,
            data: vec![7; SCATTERED].into(),
            flags: libc::O_RDWR as u32,
            writeback: false,
            kill_priv: false,
            owner: None,
        },
    });
    world.answered(written).expect("buffered");
    let set = sets(&mut world, ROOT, node, dated(7).behind(mode(0o640)));
    world.answered(set).expect("set");
    world.pass(SOON);
    let sent = world.take_asked();
    let set: Vec<SetAttr> = sent.iter().map(set_by).collect();
    assert_eq!(set, [mode(0o640).behind(dated(7)), dated(7)]);
}

#[test]
fn what_is_at_the_server_counts_when_more_is_set() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    let flush = goes_with_a_flush(&mut world, node, mode(0o555));
    let written = writes(&mut world, fh, 8192);
    world.answered(written).expect("buffered");
    flushed(&mut world, &flush);
    // It could be written to before it was buffered, but not any more.
    let writable = sets(&mut world, ROOT, node, mode(0o755));
    assert!(world.waits(writable));
}

#[test]
fn a_crash_of_the_servers_host_that_may_have_undone_what_was_set_is_told_by_the_next_fsync() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    let flush = goes_with_a_flush(&mut world, node, mode(0o640));
    flushed(&mut world, &flush);
    world.finds_another_life_of_the_host();
    let sync = world.call(Call::Sync {
        fh,
        data_only: false,
    });
    // The bytes are written again, the mode can't be.
    while world.waits(sync) {
        for asked in world.take_asked() {
            match &asked.frame.request {
                Request::Query(_) => world.done(&asked),
                Request::Change(..) => flushed(&mut world, &asked),
            }
        }
        world.pass(Duration::from_millis(100));
    }
    assert_eq!(world.refused(sync), Refusal::Lost);
}
