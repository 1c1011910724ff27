//! What was written here is opened again, and read back, without a request.

use crate::calls::opening;
use crate::connections::reclaimed;
use crate::opens::Made;
use crate::said::{FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use bytes::Bytes;
use leasefs_client::call::{Asker, At, Fh, Writing};
use leasefs_client::{Answer, Call, NodeId};
use leasefs_protocol::control::Standing;
use leasefs_protocol::{
    Attr, Grant, Mode, Parts, Query, Reply, Request, Response, SetAttr, Touched, answer,
};
use std::time::Duration;

const BYTES: &[u8] = b"all of it";
const MAKER: Asker = Asker {
    pid: 0,
    uid: 5,
    gid: 5,
};
const SOON: Duration = Duration::from_secs(2);

fn file(mode: u32, uid: u32, size: u64) -> Attr {
    Attr {
        mode: mode as u16,
        uid,
        size,
        xattrs: false,
        ..attr(2, FILE)
    }
}

fn lease() -> Vec<Grant> {
    vec![Grant {
        mode: Mode::Write,
        ..grant(2, Parts::ATTRS | Parts::DATA, 1)
    }]
}

fn makes(world: &mut World, flags: i32, mode: u32, uid: u32) -> Made {
    let flags = libc::O_EXCL | flags;
    crate::opens::makes(world, MAKER, flags, file(mode, uid, 0), Mode::Write)
}

/// It is written and closed.
fn is_written(world: &mut World, fh: Fh, data: &'static [u8]) {
    writes(world, fh, data);
    world.call(Call::Release { fh });
}

fn writes(world: &mut World, fh: Fh, data: &'static [u8]) {
    let write = begins_to_write(world, fh, data);
    world.answered(write).expect("buffered");
}

fn begins_to_write(world: &mut World, fh: Fh, data: &'static [u8]) -> Waiter {
    let writing = Writing {
        offset: 0,
        data: Bytes::from_static(data),
        flags: libc::O_WRONLY as u32,
        writeback: false,
        kill_priv: false,
        owner: None,
    };
    world.call_of(MAKER, Call::Write { fh, writing })
}

/// What was written comes to the server.
fn is_flushed(world: &mut World, mode: u32) {
    world.pass(SOON);
    comes(world, mode, lease());
}

/// Bytes of the file have come to the server, which answers with these leases.
fn comes(world: &mut World, mode: u32, grants: Vec<Grant>) {
    let asked = world.asked();
    let len = asked.payload.len() as u64;
    let touched = Touched {
        object: handle(2),
        attr: file(mode, MAKER.uid, len),
    };
    let reply = Reply {
        renews: true,
        grants,
        touched: vec![touched],
        ..asked.reply(Ok(Response::Written(answer::Written::plain(len, 0))))
    };
    world.reply(reply, b"");
}

/// A file that was made, written and closed, and is at the server, but not on its disk.
fn is_kept(world: &mut World) -> NodeId {
    let Made { node, fh, .. } = makes(world, libc::O_WRONLY, 0o644, MAKER.uid);
    is_written(world, fh, BYTES);
    is_flushed(world, 0o644);
    node
}

/// Opens it to read, if the server isn't asked for that.
fn opens(world: &mut World, asker: Asker, node: NodeId) -> Option<Fh> {
    opens_for(world, asker, node, libc::O_RDONLY)
}

fn opens_for(world: &mut World, asker: Asker, node: NodeId, flags: i32) -> Option<Fh> {
    let open = world.call_of(asker, opening(node, flags));
    if world.is_asked() {
        return None;
    }
    match world.answered(open) {
        Ok(Answer::Opened(opened)) => Some(opened.fh),
        other => panic!("not opened: {other:?}"),
    }
}

fn reads(world: &mut World, fh: Fh) -> Bytes {
    let at = At { fh, offset: 0 };
    let read = world.call(Call::ReadPages { at, len: 4096 });
    assert!(!world.is_asked());
    match world.answered(read) {
        Ok(Answer::Bytes(data)) => data,
        other => panic!("not read: {other:?}"),
    }
}

#[test]
fn a_small_file_that_was_made_here_is_opened_and_read_without_a_request() {
    let mut world = World::new();
    let Made { node, fh, flags } = makes(&mut world, libc::O_WRONLY, 0o644, MAKER.uid);
    assert_eq!(flags as i32 & libc::O_ACCMODE, libc::O_RDWR);
    is_written(&mut world, fh, BYTES);
    let early = opens(&mut world, MAKER, node).expect("before it is at the server");
    world.call(Call::Release { fh: early });
    is_flushed(&mut world, 0o644);
    for again in [false, true] {
        let fh = opens(&mut world, MAKER, node).expect("without a request");
        if !again {
            assert_eq!(reads(&mut world, fh), BYTES);
        }
        world.call(Call::Release { fh });
    }
    assert!(
        !world.is_asked(),
        "it stays open while its bytes may have to be written again"
    );
}

#[test]
fn who_has_not_written_it_or_may_not_read_it_asks_the_server() {
    let other = Asker { uid: 6, ..MAKER };
    for (mode, owner, asker, here) in [
        (0o644, MAKER.uid, MAKER, true),
        (0o444, MAKER.uid, MAKER, true),
        (0o644, MAKER.uid, other, false),
        (0o244, MAKER.uid, MAKER, false),
        (0o755, MAKER.uid, MAKER, false),
        // Made for nobody, as root's are under root_squash.
        (0o644, 65_534, MAKER, false),
    ] {
        let mut world = World::new();
        let Made { node, fh, .. } = makes(&mut world, libc::O_WRONLY, mode, owner);
        is_written(&mut world, fh, BYTES);
        let opened = opens(&mut world, asker, node);
        assert_eq!(opened.is_some(), here, "{mode:o} {owner} {asker:?}");
    }
}

#[test]
fn as_long_as_its_writer_has_it_open_a_reader_gets_an_open_of_his_own() {
    let mut world = World::new();
    let Made { node, fh, .. } = makes(&mut world, libc::O_WRONLY, 0o644, MAKER.uid);
    writes(&mut world, fh, BYTES);
    assert!(opens(&mut world, MAKER, node).is_none());
}

#[test]
fn once_its_mode_is_changed_or_its_attributes_are_recalled_the_server_is_asked() {
    let mut world = World::new();
    let Made { node, fh, .. } = makes(&mut world, libc::O_RDWR, 0o644, MAKER.uid);
    is_written(&mut world, fh, BYTES);
    let set = SetAttr {
        mode: Some(0o200),
        ..SetAttr::default()
    };
    let sets = world.call_of(
        MAKER,
        Call::SetAttr {
            node,
            fh: None,
            set,
            owner: None,
        },
    );
    assert!(!world.is_asked(), "it goes along with the bytes");
    world.answered(sets).expect("set");
    assert!(opens(&mut world, MAKER, node).is_none());

    let mut world = World::new();
    let node = is_kept(&mut world);
    world.recall(recall(1, 2, Parts::ATTRS | Parts::DATA, &[]));
    assert!(opens(&mut world, MAKER, node).is_none());
}

#[test]
fn once_it_is_durable_its_open_and_its_bytes_are_let_go() {
    let mut world = World::new();
    let node = is_kept(&mut world);
    world.pass(Duration::from_secs(16));
    let commit = world.asked();
    assert!(matches!(
        commit.frame.request,
        Request::Query(Query::CommitAll(_))
    ));
    world.done(&commit);
    world.pass(SOON);
    let close = world.asked();
    assert!(matches!(
        close.frame.request,
        Request::Query(Query::Close(_))
    ));
    world.call_of(MAKER, opening(node, libc::O_RDONLY));
    let asked = world.asked();
    let wanted =
        matches!(&asked.frame.request, Request::Query(Query::Open(open)) if open.with_data);
    assert!(wanted, "{asked:?}");
}

#[test]
fn an_open_that_the_server_has_lost_is_not_read_by() {
    let mut world = World::new();
    let node = is_kept(&mut world);
    world.cut();
    world.finds(Standing::Reclaim, 2);
    world.take_said();
    for _ in 0..2 {
        world.say(reclaimed(&[], &[2]));
    }
    world.take_said();
    world.take_asked();
    assert!(opens(&mut world, MAKER, node).is_none());
}

#[test]
fn who_has_written_a_file_that_he_owns_opens_it_again_to_write_without_a_request() {
    for at_server in [false, true] {
        let mut world = World::new();
        let node = match at_server {
            true => is_kept(&mut world),
            false => {
                let Made { node, fh, .. } = makes(&mut world, libc::O_WRONLY, 0o644, MAKER.uid);
                is_written(&mut world, fh, BYTES);
                node
            }
        };
        for flags in [
            libc::O_WRONLY,
            libc::O_WRONLY | libc::O_APPEND,
            libc::O_RDWR,
        ] {
            let fh = opens_for(&mut world, MAKER, node, flags).expect("without a request");
            is_written(&mut world, fh, BYTES);
        }
    }
}

/// It is written to and closed, where others use it: the server has the bytes, and nobody a Write lease.
fn is_written_through(world: &mut World, fh: Fh) {
    let write = begins_to_write(world, fh, BYTES);
    comes(world, 0o644, vec![grant(2, Parts::ATTRS | Parts::DATA, 3)]);
    world.answered(write).expect("written");
    world.call(Call::Release { fh });
    world.take_said();
}

#[test]
fn a_file_that_is_written_where_others_use_it_is_opened_again_without_a_request_until_that_is_durable()
 {
    let mut world = World::new();
    let attr = file(0o644, MAKER.uid, 0);
    let made = crate::opens::makes(&mut world, MAKER, libc::O_WRONLY, attr, Mode::Read);
    is_written_through(&mut world, made.fh);
    // Its maker has given the lease back.
    world.call_of(MAKER, Call::GetAttr { node: made.node });
    let asked = world.asked();
    let attr = Response::Attr(file(0o644, MAKER.uid, BYTES.len() as u64));
    world.grant(&asked, attr, vec![grant(2, Parts::ATTRS, 5)]);
    let fh = opens_for(&mut world, MAKER, made.node, libc::O_WRONLY).expect("without a request");
    is_written_through(&mut world, fh);
    assert_eq!(world.core.session_status().opens, 1);

    world.pass(Duration::from_secs(16));
    let commit = world.asked();
    assert!(matches!(
        commit.frame.request,
        Request::Query(Query::CommitAll(_))
    ));
    world.done(&commit);
    world.pass(SOON);
    assert_eq!(world.core.session_status().opens, 0);
    assert!(opens_for(&mut world, MAKER, made.node, libc::O_WRONLY).is_none());
}

#[test]
fn what_was_written_where_others_use_it_is_closed_once_somebody_has_removed_it() {
    let mut world = World::new();
    let attr = file(0o644, MAKER.uid, 0);
    let made = crate::opens::makes(&mut world, MAKER, libc::O_WRONLY, attr, Mode::Read);
    is_written_through(&mut world, made.fh);
    world.unlinked(handle(2));
    world.pass(SOON);
    assert_eq!(world.core.session_status().opens, 0);
}

#[test]
fn who_may_not_write_it_or_has_it_open_otherwise_asks_the_server() {
    let other = Asker { uid: 6, ..MAKER };
    for (mode, owner, asker, flags, here) in [
        (0o644, MAKER.uid, MAKER, libc::O_WRONLY, true),
        (0o755, MAKER.uid, MAKER, libc::O_WRONLY, true),
        (0o200, MAKER.uid, MAKER, libc::O_WRONLY, true),
        (0o444, MAKER.uid, MAKER, libc::O_WRONLY, false),
        (0o200, MAKER.uid, MAKER, libc::O_RDWR, false),
        (0o666, MAKER.uid, other, libc::O_WRONLY, false),
        (0o644, 65_534, MAKER, libc::O_WRONLY, false),
    ] {
        let mut world = World::new();
        let Made { node, fh, .. } = makes(&mut world, libc::O_WRONLY, mode, owner);
        is_written(&mut world, fh, BYTES);
        let opened = opens_for(&mut world, asker, node, flags);
        assert_eq!(
            opened.is_some(),
            here,
            "{mode:o} {owner} {asker:?} {flags:o}"
        );
    }

    let mut world = World::new();
    let node = is_kept(&mut world);
    let _reads = opens(&mut world, MAKER, node).expect("without a request");
    let second = opens_for(&mut world, MAKER, node, libc::O_WRONLY);
    assert!(
        second.is_none(),
        "it would not hear of what a reader has heard of"
    );
}
