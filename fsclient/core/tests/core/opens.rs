//! Opens at the server: closed, given up with an approval, made for nobody, or refused for want of room.

use crate::calls::{getattr, is_done, opening, removal};
use crate::lookups::found;
use crate::said::{Asked, DIR, FILE, attr, grant, handle, opened, recall};
use crate::world::{Waiter, World};
use bytes::Bytes;
use leasefs_client::call::{Asker, Fh, NewMode, Writing};
use leasefs_client::{Answer, Call, NodeId, Unconnected};
use leasefs_protocol::control::{HelloRefusal, Standing, ToClient, ToServer};
use leasefs_protocol::{
    Approval, Attr, Change, Grant, Mode, OpenId, OpenToken, Parts, Query, Recall, RecallId,
    Refusal, Reply, Request, Response, Scope, Stamp, Touched, answer, query,
};
use std::time::Duration;

fn full() -> Refusal {
    Refusal::Host(libc::ENOSPC as u16)
}

fn close(opens: &[u64]) -> Request {
    Request::Query(Query::Close(query::Close {
        opens: opens.iter().map(|open| OpenId(*open)).collect(),
    }))
}

/// The server is told to close these: at the latest once no further ones are waited for.
fn is_told_to_close(world: &mut World, opens: &[u64]) -> Asked {
    if !world.is_asked() {
        world.pass(Duration::from_millis(10));
    }
    let asked = world.asked();
    assert_eq!(asked.frame.request, close(opens));
    asked
}

#[test]
fn what_was_closed_is_closed_along_with_the_next_change() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let fh = world.open(file, 7, Vec::new()).fh;
    world.call(Call::Release { fh });
    let change = world.call(removal(dir));
    let asked = world.asked();
    let closed = |asked: &Asked| asked.numbered().map(|numbered| numbered.closed.clone());
    assert_eq!(closed(&asked), Some(vec![OpenId(7)]));
    // An answer that was lost with its connection: the server passes over what it has closed.
    world.cut();
    world.finds(Standing::Resumed, 1);
    let again = world.asked();
    assert_eq!(closed(&again), Some(vec![OpenId(7)]));
    world.done(&again);
    assert!(is_done(&world.answered(change)));
    world.call(removal(dir));
    assert_eq!(closed(&world.asked()), Some(Vec::new()));
    world.pass(Duration::from_secs(1));
    assert!(!world.is_asked(), "nothing is left to close");
}

#[test]
fn what_a_change_was_to_close_that_is_never_sent_is_closed_without_it() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let fh = world.open(file, 7, Vec::new()).fh;
    world.cut();
    world.call(Call::Release { fh });
    let change = world.call_by(9, removal(dir));
    world.leaves(9);
    assert_eq!(world.refused(change), Refusal::Cancelled);
    world.finds(Standing::Resumed, 1);
    is_told_to_close(&mut world, &[7]);
}

/// The change never came to the server, and its caller has left.
#[test]
fn what_a_cancelled_change_was_to_close_is_closed_without_it() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let fh = world.open(file, 7, Vec::new()).fh;
    world.call(Call::Release { fh });
    let change = world.call_by(9, removal(dir));
    let seq = world.asked().seq();
    world.cut();
    world.leaves(9);
    assert_eq!(world.refused(change), Refusal::Cancelled);
    world.finds(Standing::Resumed, 1);
    assert_eq!(world.said(), ToServer::Cancel { seq });
    let begun = false;
    world.say(ToClient::Cancelled { seq, begun });
    is_told_to_close(&mut world, &[7]);
}

/// The server has closed what came with the change, which waits there for others.
#[test]
fn who_is_refused_for_want_of_room_does_not_wait_for_a_change_that_closes() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let other = world.node(3, FILE);
    let fh = world.open(file, 7, Vec::new()).fh;
    let open = world.call(opening(other, libc::O_RDWR));
    let asked = world.asked();
    world.call(Call::Release { fh });
    let change = world.call_by(9, removal(dir));
    world.asked();
    world.answer(&asked, Err(Refusal::TooMany));
    let close = is_told_to_close(&mut world, &[7]);
    world.done(&close);
    let again = world.asked();
    assert!(matches!(
        again.frame.request,
        Request::Query(Query::Open(_))
    ));
    assert!(world.waits(open) && world.waits(change));
}

#[test]
fn no_change_takes_along_what_somebody_waits_for() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let other = world.node(3, FILE);
    let first = world.open(file, 7, Vec::new()).fh;
    let second = world.open(file, 8, Vec::new()).fh;
    let open = world.call(opening(other, libc::O_RDWR));
    let asked = world.asked();
    world.call(Call::Release { fh: first });
    let under_way = is_told_to_close(&mut world, &[7]);
    world.call(Call::Release { fh: second });
    world.answer(&asked, Err(Refusal::TooMany));
    world.call_by(9, removal(dir));
    let change = world.asked();
    assert_eq!(change.numbered().map(|n| n.closed.len()), Some(0));
    world.done(&under_way);
    let close = is_told_to_close(&mut world, &[8]);
    world.done(&close);
    let again = world.asked();
    assert!(matches!(
        again.frame.request,
        Request::Query(Query::Open(_))
    ));
    assert!(world.waits(open));
}

/// The directory that is mounted is gone for a while, and the session lives on.
#[test]
fn what_is_closed_while_the_server_refuses_the_session_is_closed_when_it_does_not() {
    let mut world = World::new();
    let file = world.node(1, FILE);
    let fh = world.open(file, 7, Vec::new()).fh;
    let sent = world.open(file, 8, Vec::new()).fh;
    world.call(Call::Release { fh: sent });
    is_told_to_close(&mut world, &[8]);
    world.cut();
    world.call(Call::Release { fh });
    let gone = HelloRefusal::NoDirectory("gone".into());
    world.is_refused(Unconnected::Refused(gone));
    world.pass(Duration::from_secs(6));
    world.finds(Standing::Resumed, 1);
    world.pass(Duration::from_secs(1));
    let mut told: Vec<Request> = world.take_asked().into_iter().map(request).collect();
    told.sort_by_key(|request| format!("{request:?}"));
    assert_eq!(told, [close(&[7]), close(&[8])]);
}

fn request(asked: Asked) -> Request {
    asked.frame.request.clone()
}

/// The next session's opens may have the same numbers.
#[test]
fn nothing_is_closed_of_a_session_that_is_gone() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let first = world.open(file, 7, Vec::new()).fh;
    world.call(Call::Release { fh: first });
    is_told_to_close(&mut world, &[7]);
    let second = world.open(file, 8, Vec::new()).fh;
    world.cut();
    world.call(Call::Release { fh: second });
    world.call(removal(dir));
    world.finds(Standing::New, 1);
    world.pass(Duration::from_secs(1));
    for asked in world.take_asked() {
        let closes = asked.numbered().is_none_or(|n| !n.closed.is_empty());
        assert!(!closes, "{asked:?}");
    }
}

#[test]
fn a_change_that_finds_no_room_is_asked_again_once_what_was_closed_before_is_closed() {
    let mut world = World::new();
    let (dir, file) = (world.node(2, DIR), world.node(1, FILE));
    let fh = world.open(file, 7, Vec::new()).fh;
    world.call(Call::Release { fh });
    let close = is_told_to_close(&mut world, &[7]);
    let change = world.call(removal(dir));
    let asked = world.asked();
    world.answer(&asked, Err(full()));
    assert!(world.waits(change) && !world.is_asked());
    world.done(&close);
    let again = world.asked();
    assert_eq!(again.change(), asked.change());
    assert_ne!(again.seq(), asked.seq());
    world.done(&again);
    assert!(is_done(&world.answered(change)));

    let change = world.call(removal(dir));
    let asked = world.asked();
    world.answer(&asked, Err(full()));
    assert_eq!(
        world.refused(change),
        full(),
        "nothing was closed meanwhile"
    );
}

/// Its bytes may be in the file, and the disk full when they were to be made durable.
#[test]
fn a_synced_write_that_finds_no_room_is_not_asked_again() {
    for flags in [
        libc::O_WRONLY | libc::O_SYNC,
        libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC,
    ] {
        let mut world = World::new();
        let (log, file) = (world.node(2, FILE), world.node(1, FILE));
        let open = world.call(opening(log, flags));
        let asked = world.asked();
        world.answer(&asked, Ok(opened(9, 2)));
        let Ok(Answer::Opened(log)) = world.answered(open) else {
            panic!("not opened")
        };
        let fh = world.open(file, 7, Vec::new()).fh;
        world.call(Call::Release { fh });
        let close = is_told_to_close(&mut world, &[7]);
        let write = world.call(Call::Write {
            fh: log.fh,
            writing: Writing {
                offset: 0,
                data: Bytes::from_static(b"record"),
                flags: flags as u32,
                writeback: false,
                kill_priv: false,
                owner: None,
            },
        });
        let asked = world.asked();
        assert!(asked.numbered().is_some());
        world.done(&close);
        world.answer(&asked, Err(full()));
        // The kernel is told where the file ends before it fails (`fuse_direct_IO`).
        let end = world.asked();
        world.answer(&end, Ok(Response::Attr(attr(2, FILE))));
        assert_eq!(world.refused(write), full());
        assert!(!world.is_asked());
    }
}

#[test]
fn recalls_reach_the_engine_and_approvals_the_server_with_the_opens_given_up() {
    let mut world = World::new();
    let file = world.node(1, FILE);
    let fh = world.open(file, 7, vec![grant(1, Parts::ATTRS, 1)]).fh;
    world.call(Call::Release { fh });
    assert!(!world.is_asked(), "it is kept");
    world.recall(Recall {
        id: RecallId(5),
        stamp: Stamp(2),
        scope: Scope::Everything,
    });
    let approval = Approval {
        recall: RecallId(5),
        closes: vec![OpenId(7)],
    };
    assert_eq!(world.said(), ToServer::Approve(vec![approval]));
    assert_eq!(world.core.session_status().opens, 0);
    assert!(!world.is_asked());
}

#[test]
fn an_open_that_an_approval_closed_is_closed_again_if_the_server_may_not_have_heard_of_it() {
    let mut world = World::new();
    let file = world.node(1, FILE);
    let fh = world.open(file, 7, vec![grant(1, Parts::ATTRS, 1)]).fh;
    world.call(Call::Release { fh });
    world.recall(recall(5, 1, Parts::ATTRS, &[]));
    assert!(matches!(world.said(), ToServer::Approve(_)));
    world.cut();
    world.finds(Standing::Resumed, 1);
    is_told_to_close(&mut world, &[7]);
}

#[test]
fn what_is_given_up_without_a_connection_is_closed_on_the_next() {
    let mut world = World::new();
    let file = found(&mut world, 1).node.id;
    let fh = world.open(file, 7, vec![grant(1, Parts::ATTRS, 1)]).fh;
    world.call(Call::Release { fh });
    world.knows_nothing = true;
    world.recall(recall(5, 1, Parts::ATTRS, &[]));
    world.cut();
    world.knows_nothing = false;
    world.pass(Duration::from_millis(50));
    assert!(!world.has_said(), "there is nobody to approve to");
    world.finds(Standing::Resumed, 1);
    is_told_to_close(&mut world, &[7]);
}

#[test]
fn an_open_nobody_waits_for_is_closed_again_and_closes_are_gathered() {
    let mut world = World::new();
    let file = world.node(1, FILE);
    let abandoned = [7, 8, 9].map(|open| {
        let call = world.call_by(open, opening(file, libc::O_RDONLY));
        let asked = world.asked();
        world.leaves(open);
        assert_eq!(world.refused(call), Refusal::Cancelled);
        asked
    });
    let [first, second, third] = abandoned;
    world.answer(&first, Ok(opened(7, 1)));
    let close = is_told_to_close(&mut world, &[7]);
    world.answer(&second, Ok(opened(8, 1)));
    world.answer(&third, Ok(opened(9, 1)));
    assert!(!world.is_asked());
    world.done(&close);
    let close = is_told_to_close(&mut world, &[8, 9]);
    world.done(&close);
    assert!(!world.is_asked());
}

#[test]
fn an_open_nobody_waits_for_is_asked_for_again_after_a_lost_connection_and_closed() {
    let mut world = World::new();
    let file = world.node(1, FILE);
    world.call_by(7, getattr());
    world.asked();
    world.call_by(8, opening(file, libc::O_RDONLY));
    let asked = world.asked();
    world.leaves(7);
    world.leaves(8);
    world.cut();
    world.finds(Standing::Resumed, 1);
    let again = world.asked();
    assert_eq!(again.frame.id, asked.frame.id);
    assert_eq!(again.frame.request, asked.frame.request);
    assert!(!world.is_asked());
    world.answer(&again, Ok(opened(7, 1)));
    is_told_to_close(&mut world, &[7]);
}

/// A file that was open, and is kept open at the server.
fn keeps(world: &mut World, object: u8) {
    let node = world.node(object, FILE);
    let lease = grant(object, Parts::ATTRS, object.into());
    let fh = world.open(node, object.into(), vec![lease]).fh;
    world.call(Call::Release { fh });
    let again = world.call(opening(node, libc::O_RDONLY));
    let Ok(Answer::Opened(again)) = world.answered(again) else {
        panic!("it isn't kept")
    };
    world.call(Call::Release { fh: again.fh });
    assert!(!world.is_asked());
}

/// A file that is replaced all the time is never missing: a call that is told ESTALE twice is.
#[test]
fn what_a_thread_was_told_before_its_call_succeeded_from_the_cache_counts_no_more() {
    let mut world = World::new();
    keeps(&mut world, 1);
    let (kept, other) = (world.node(1, FILE), world.node(2, FILE));
    let stale = |world: &mut World| {
        let call = world.call_by(7, opening(other, libc::O_RDONLY));
        let asked = world.asked();
        world.answer(&asked, Err(Refusal::Stale));
        world.refused(call)
    };
    assert_eq!(stale(&mut world), Refusal::Stale);
    let again = world.call_by(7, opening(kept, libc::O_RDONLY));
    assert!(matches!(world.answered(again), Ok(Answer::Opened(_))));
    assert!(!world.is_asked());
    assert_eq!(stale(&mut world), Refusal::Stale);
    assert_eq!(stale(&mut world).errno(), libc::ENOENT);
}

fn refuses(world: &mut World) -> Asked {
    let asked = world.asked();
    world.answer(&asked, Err(Refusal::TooMany));
    asked
}

#[test]
fn who_has_no_place_for_an_open_gives_back_those_that_nobody_uses_before_anybody_is_refused() {
    let mut world = World::new();
    keeps(&mut world, 1);
    let node = world.node(2, FILE);
    let open = world.call(opening(node, libc::O_RDONLY));
    let refused = refuses(&mut world);
    let close = is_told_to_close(&mut world, &[1]);
    assert!(world.waits(open) && !world.is_asked());
    world.done(&close);
    let again = world.asked();
    assert_eq!(again.frame.request, refused.frame.request);
    world.answer(&again, Ok(opened(2, 2)));
    assert!(matches!(world.answered(open), Ok(Answer::Opened(_))));

    let node = world.node(3, FILE);
    let open = world.call(opening(node, libc::O_WRONLY));
    refuses(&mut world);
    assert_eq!(world.refused(open), Refusal::TooMany, "all are in use");
    assert!(!world.is_asked());
}

#[test]
fn a_create_that_finds_no_place_gives_back_opens_that_nobody_uses_and_is_made_once() {
    let mut world = World::new();
    keeps(&mut world, 1);
    let mode = NewMode {
        mode: 0o644,
        umask: 0,
    };
    let create = world.call(Call::Create {
        parent: NodeId::ROOT,
        name: b"new".as_slice().into(),
        mode,
        flags: libc::O_WRONLY as u32,
    });
    let refused = refuses(&mut world);
    let close = is_told_to_close(&mut world, &[1]);
    world.done(&close);
    let again = world.asked();
    assert_eq!(again.change(), refused.change());
    assert_ne!(again.seq(), refused.seq(), "the refusal was its answer");
    let created = Response::Created(answer::Created {
        handle: handle(2),
        attr: attr(2, FILE),
        open: OpenId(2),
        token: OpenToken(vec![1]),
    });
    world.answer(&again, Ok(created));
    assert!(matches!(world.answered(create), Ok(Answer::Created(..))));
    assert!(!world.is_asked());
}

/// Bytes that are written to a file, and could have to be written again.
fn writes(world: &mut World, object: u8, fh: Fh) {
    let data = Bytes::from_static(b"written");
    let len = data.len() as u64;
    let write = world.call(Call::Write {
        fh,
        writing: Writing {
            offset: 0,
            data,
            flags: libc::O_WRONLY as u32,
            writeback: false,
            kill_priv: false,
            owner: None,
        },
    });
    let asked = world.asked();
    let exclusive = Grant {
        mode: Mode::Write,
        ..grant(object, Parts::ATTRS | Parts::DATA, 2)
    };
    let mut after = attr(object, FILE);
    after.size = len;
    let reply = Reply {
        grants: vec![exclusive],
        touched: vec![Touched {
            object: handle(object),
            attr: after,
        }],
        stamp: Stamp(2),
        ..asked.reply(Ok(Response::Written(answer::Written::plain(len, 0))))
    };
    world.reply(reply, b"");
    assert!(matches!(world.answered(write), Ok(Answer::Written(7))));
}

#[test]
fn who_has_no_place_for_an_open_commits_what_keeps_written_files_open_at_the_server() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let open = world.call(opening(node, libc::O_WRONLY));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(1, 1)));
    let Ok(Answer::Opened(file)) = world.answered(open) else {
        panic!("not opened")
    };
    writes(&mut world, 1, file.fh);
    world.call(Call::Release { fh: file.fh });
    assert!(!world.is_asked(), "it is kept");
    let node = world.node(2, FILE);
    let open = world.call(opening(node, libc::O_RDONLY));
    refuses(&mut world);
    let commit = world.asked();
    assert_eq!(
        commit.frame.request,
        Request::Query(Query::CommitAll(query::CommitAll))
    );
    world.done(&commit);
    let close = is_told_to_close(&mut world, &[1]);
    world.done(&close);
    let again = world.asked();
    world.answer(&again, Ok(opened(2, 2)));
    assert!(matches!(world.answered(open), Ok(Answer::Opened(_))));
}

/// A directory that has been opened, and left.
pub fn directory_left(world: &mut World, dir: Attr) {
    let call = world.call(Call::OpenDir { node: NodeId::ROOT });
    let asked = world.asked();
    let fh = is_opened(world, call, &asked, dir);
    world.call(Call::ReleaseDir { fh });
}

pub fn is_opened(world: &mut World, call: Waiter, asked: &Asked, dir: Attr) -> Fh {
    let open = asked.frame.id.0;
    let opened = answer::Opened {
        open: OpenId(open),
        token: OpenToken(vec![open as u8]),
        attr: dir,
    };
    let reply = Reply {
        renews: true,
        grants: vec![grant(0, Parts::ATTRS, open)],
        stamp: Stamp(open),
        ..asked.reply(Ok(Response::Opened(opened)))
    };
    world.reply(reply, b"");
    match world.answered(call) {
        Ok(Answer::OpenedDir(fh)) => fh,
        other => panic!("not opened: {other:?}"),
    }
}

/// A name is being removed from it.
fn name_goes(world: &mut World) -> (Waiter, Asked) {
    (world.call(removal(NodeId::ROOT)), world.asked())
}

pub fn name_is_gone(world: &mut World, (change, asked): (Waiter, Asked), dir: Attr) {
    let stamp = asked.frame.id.0;
    let reply = Reply {
        renews: true,
        grants: vec![grant(0, Parts::ATTRS, stamp)],
        touched: vec![Touched {
            object: handle(0),
            attr: dir,
        }],
        stamp: Stamp(stamp),
        ..asked.reply(Ok(Response::Done))
    };
    world.reply(reply, b"");
    assert!(is_done(&world.answered(change)));
}

pub fn without_xattrs() -> Attr {
    Attr {
        xattrs: false,
        ..attr(0, DIR)
    }
}

#[test]
fn a_directory_in_which_a_name_was_changed_here_is_opened_again_without_a_request() {
    let dir = without_xattrs();
    let changed = |mode| Attr {
        mode,
        size: 1,
        ..dir
    };
    for (mode, asks) in [(dir.mode, false), (0o700, true)] {
        let mut world = World::new();
        directory_left(&mut world, dir);
        let removed = name_goes(&mut world);
        name_is_gone(&mut world, removed, changed(mode));
        world.call(Call::OpenDir { node: NodeId::ROOT });
        assert_eq!(world.is_asked(), asks, "{mode:o}");
    }
}

#[test]
fn a_directory_that_is_opened_while_a_name_is_changed_is_asked_for_and_stays_open_once() {
    let (mut world, dir) = (World::new(), without_xattrs());
    directory_left(&mut world, dir);
    for _ in 0..3 {
        let removed = name_goes(&mut world);
        let call = world.call(Call::OpenDir { node: NodeId::ROOT });
        let asked = world.asked();
        name_is_gone(&mut world, removed, dir);
        let fh = is_opened(&mut world, call, &asked, dir);
        world.call(Call::ReleaseDir { fh });
        assert_eq!(world.core.session_status().opens, 1);
    }
}

/// A file that was made, and is open at the server under number 2.
pub struct Made {
    pub node: NodeId,
    pub fh: Fh,
    /// With what flags that was asked for.
    pub flags: u32,
}

/// Somebody makes a file, that then is so, with a lease of this mode.
pub fn makes(world: &mut World, asker: Asker, flags: i32, attr: Attr, mode: Mode) -> Made {
    let create = world.call_of(
        asker,
        Call::Create {
            parent: NodeId::ROOT,
            name: b"new".as_slice().into(),
            mode: NewMode {
                mode: attr.mode.into(),
                umask: 0,
            },
            flags: flags as u32,
        },
    );
    let asked = world.asked();
    let Change::Create(request) = asked.change() else {
        panic!("another request: {asked:?}")
    };
    let created = Response::Created(answer::Created {
        handle: handle(2),
        attr,
        open: OpenId(2),
        token: OpenToken(vec![1]),
    });
    let lease = Grant {
        mode,
        ..grant(2, Parts::ATTRS | Parts::DATA, 1)
    };
    let reply = Reply {
        renews: true,
        grants: vec![lease],
        room: Some(1 << 30),
        ..asked.reply(Ok(created))
    };
    world.reply(reply, b"");
    match world.answered(create) {
        Ok(Answer::Created(entry, opened)) => Made {
            node: entry.node.id,
            fh: opened.fh,
            flags: request.flags,
        },
        other => panic!("not made: {other:?}"),
    }
}

/// It is written to and closed. Returns what is given back of it.
fn gives_back(mode: Mode, durable: bool) -> Parts {
    let mut world = World::new();
    let asker = Asker::default();
    let Made { fh, .. } = makes(&mut world, asker, libc::O_WRONLY, attr(2, FILE), mode);
    if mode == Mode::Read {
        writes(&mut world, 2, fh);
    }
    if durable {
        world.call(Call::Sync {
            fh,
            data_only: false,
        });
        let sync = world.asked();
        world.done(&sync);
    }
    world.call(Call::Release { fh });
    let releases = world.take_releases();
    releases.iter().fold(Parts::NONE, |parts, release| {
        assert_eq!(release.object, handle(2));
        parts | release.parts
    })
}

/// Made with a Read lease: so a server says that others look for what is made there.
#[test]
fn a_file_that_others_look_for_is_given_back_when_it_is_closed() {
    assert_eq!(gives_back(Mode::Write, true), Parts::NONE);
    assert_eq!(gives_back(Mode::Read, true), Parts::ATTRS | Parts::DATA);
    let kept_to_be_written_again = Parts::DATA;
    let rest = (Parts::ATTRS | Parts::DATA) - kept_to_be_written_again;
    assert_eq!(gives_back(Mode::Read, false), rest);
}
