//! What `fsync` asks for.

use crate::calls::opening;
use crate::kernel::writes;
use crate::said::{Asked, handle, opened, welcome};
use crate::sets::{flushed, written_file};
use crate::world::{PATIENT, Waiter, World};
use leasefs_client::call::{Fh, Writing};
use leasefs_client::{Answer, Call};
use leasefs_protocol::change::{WriteAt, WriteKind};
use leasefs_protocol::control::{Standing, Welcome};
use leasefs_protocol::{Durability, Query, Refusal, Request, Response, Timestamp, Version, answer};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(2);

fn syncs(world: &mut World, fh: Fh, data_only: bool) -> Waiter {
    world.call(Call::Sync { fh, data_only })
}

fn is_commit(asked: &Asked) -> bool {
    matches!(asked.frame.request, Request::Query(Query::Commit(_)))
}

/// A commit is asked for besides, and ends it.
fn is_committed(world: &mut World, sync: Waiter) {
    let commit = world.asked();
    assert!(is_commit(&commit), "{:?}", commit.frame);
    world.done(&commit);
    world.answered(sync).expect("durable");
}

fn all_flushed(world: &mut World) {
    while world.is_asked() {
        let flush = world.asked();
        flushed(world, &flush);
    }
}

fn is_commit_of_all(asked: &Asked) -> bool {
    matches!(asked.frame.request, Request::Query(Query::CommitAll(_)))
}

/// `syncfs` doesn't tell of which file it is.
#[test]
fn where_the_servers_disk_has_not_taken_something_each_file_is_asked_and_what_it_was_is_kept() {
    let failed = Refusal::Host(libc::EIO as u16);
    for lost in [true, false] {
        let mut world = World::new();
        let (_, fh) = written_file(&mut world);
        world.pass(SOON);
        let flush = world.asked();
        flushed(&mut world, &flush);
        world.pass(Duration::from_secs(20));
        let all = world.asked();
        assert!(is_commit_of_all(&all), "{:?}", all.frame);
        world.answer(&all, Err(failed));
        let of_file = world.asked();
        assert!(is_commit(&of_file), "{:?}", of_file.frame);
        match lost {
            true => world.answer(&of_file, Err(failed)),
            false => world.done(&of_file),
        }
        let again = world.asked();
        assert!(is_commit_of_all(&again), "{:?}", again.frame);
        world.done(&again);
        assert_eq!(world.kept.len(), usize::from(lost));
        let sync = syncs(&mut world, fh, false);
        let commit = world.asked();
        assert!(is_commit(&commit));
        world.done(&commit);
        match lost {
            true => assert_eq!(world.refused(sync), failed),
            false => drop(world.answered(sync).expect("durable")),
        }
    }
}

#[test]
fn what_was_just_written_is_made_durable_by_the_request_that_brings_it() {
    for (data_only, durability) in [(false, Durability::All), (true, Durability::Data)] {
        let mut world = World::new();
        let (_, fh) = written_file(&mut world);
        let sync = syncs(&mut world, fh, data_only);
        let flush = world.asked();
        assert_eq!(flush.write().durability, durability);
        assert!(world.waits(sync));
        flushed(&mut world, &flush);
        world.answered(sync).expect("durable");
        assert!(!world.is_asked());
        world.finds_another_life_of_the_host();
        world.pass(SOON);
        let asked = world.take_asked();
        let written = asked
            .iter()
            .any(|a| matches!(a.frame.request, Request::Change(..)));
        assert!(!written, "it was on the disk: {asked:?}");
    }
}

#[test]
fn a_file_with_nothing_to_flush_is_committed() {
    let mut world = World::new();
    let (_, fh) = written_file(&mut world);
    world.pass(SOON);
    let flush = world.asked();
    assert_eq!(flush.write().durability, Durability::None);
    flushed(&mut world, &flush);
    let sync = syncs(&mut world, fh, false);
    is_committed(&mut world, sync);
}

#[test]
fn bytes_that_were_on_their_way_before_are_committed_behind_them() {
    let mut world = World::new();
    let (_, fh) = written_file(&mut world);
    world.pass(SOON);
    let flush = world.asked();
    let sync = syncs(&mut world, fh, false);
    assert!(!world.is_asked(), "a commit would go before them");
    flushed(&mut world, &flush);
    is_committed(&mut world, sync);
}

#[test]
fn a_sync_of_everything_is_not_content_with_one_of_data_that_is_under_way() {
    let mut world = World::new();
    let (_, fh) = written_file(&mut world);
    let data = syncs(&mut world, fh, true);
    let flush = world.asked();
    let all = syncs(&mut world, fh, false);
    flushed(&mut world, &flush);
    world.answered(data).expect("durable");
    is_committed(&mut world, all);
}

#[test]
fn what_the_server_has_had_before_is_committed_besides() {
    let mut world = World::new();
    let (_, fh) = written_file(&mut world);
    let sync = syncs(&mut world, fh, false);
    let flush = world.asked();
    let offset = flush.write().at.first().expect("no append");
    let repeated = Response::Written(answer::Written::plain(flush.payload.len() as u64, offset));
    world.answer(&flush, Ok(repeated));
    is_committed(&mut world, sync);
}

#[test]
fn what_a_disk_may_take_long_for_is_committed_while_others_get_at_the_file() {
    let mut world = World::new();
    let (_, fh) = written_file(&mut world);
    let much = world.call(Call::Write {
        fh,
        writing: Writing {
            offset: 4096,
            data: vec![7; 1 << 20].into(),
            flags: libc::O_RDWR as u32,
            writeback: false,
            kill_priv: false,
            owner: None,
        },
    });
    all_flushed(&mut world);
    world.answered(much).expect("buffered");
    world.pass(SOON);
    all_flushed(&mut world);
    let written = writes(&mut world, fh, 0);
    world.answered(written).expect("buffered");
    let sync = syncs(&mut world, fh, false);
    let flush = world.asked();
    assert_eq!(flush.write().durability, Durability::None);
    flushed(&mut world, &flush);
    is_committed(&mut world, sync);
    let written = writes(&mut world, fh, 0);
    world.answered(written).expect("buffered");
    syncs(&mut world, fh, false);
    let flush = world.asked();
    assert_eq!(
        flush.write().durability,
        Durability::All,
        "there is little again"
    );
}

/// The crash may undo the removal, too.
#[test]
fn nothing_is_kept_of_a_file_that_is_removed_elsewhere_and_a_crash_of_the_host_is_told() {
    let mut world = World::new();
    let (node, fh) = written_file(&mut world);
    world.pass(SOON);
    all_flushed(&mut world);
    world.unlinked(handle(1));
    world.pass(SOON);
    assert!(!world.is_asked(), "it is open here");
    world.call(Call::Release { fh });
    world.pass(SOON);
    assert!(!world.is_asked(), "it stays open for what is kept");
    world.unlinked(handle(1));
    world.pass(SOON);
    let closed = world.asked();
    assert!(matches!(
        closed.frame.request,
        Request::Query(Query::Close(_))
    ));
    world.done(&closed);
    world.finds_another_life_of_the_host();
    let call = world.call(opening(node, libc::O_RDWR));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(8, 1)));
    let Ok(Answer::Opened(anew)) = world.answered(call) else {
        panic!("not opened")
    };
    let sync = syncs(&mut world, anew.fh, false);
    let commit = world.asked();
    assert!(is_commit(&commit), "{:?}", commit.frame);
    world.done(&commit);
    assert_eq!(world.refused(sync), Refusal::Lost);
}

#[test]
fn what_is_flushed_behind_an_answer_that_was_kept_across_a_crash_is_known_to_follow_it() {
    let mut world = World::new();
    let (_, fh) = written_file(&mut world);
    world.pass(SOON);
    let flush = world.asked();
    let written = writes(&mut world, fh, 0);
    world.answered(written).expect("buffered");
    let version = Version {
        ctime: Timestamp {
            seconds: 8,
            nanos: 0,
        },
        size: 8192,
    };
    let offset = flush.write().at.first().expect("no append");
    let kept = Response::Written(answer::Written {
        len: flush.payload.len() as u64,
        offset,
        unset: None,
        version: Some(version),
    });
    world.answer(&flush, Ok(kept));
    world.pass(SOON);
    let WriteKind::Flush { base, .. } = world.asked().write().kind else {
        panic!("not a flush")
    };
    assert_eq!(base, version);
}

/// Bytes of a file are buffered that lie apart.
fn written_far_apart(world: &mut World) -> Fh {
    let (_, fh) = written_file(world);
    let further = writes(world, fh, 1 << 20);
    world.answered(further).expect("buffered");
    fh
}

#[test]
fn what_lies_apart_comes_in_one_request_and_is_durable_with_it() {
    let mut world = World::new();
    let fh = written_far_apart(&mut world);
    let sync = syncs(&mut world, fh, false);
    let flush = world.asked();
    let WriteAt::Places(places) = &flush.write().at else {
        panic!("to one place: {:?}", flush.write())
    };
    assert_eq!(places[1].offset, 1 << 20);
    let bytes: u64 = places.iter().map(|place| place.len).sum();
    assert_eq!(bytes, flush.payload.len() as u64);
    assert_eq!(flush.write().durability, Durability::All);
    flushed(&mut world, &flush);
    world.answered(sync).expect("durable");
    assert!(!world.is_asked());
}

#[test]
fn what_lies_apart_comes_in_a_request_each_where_the_server_knows_no_other_way() {
    let mut world = World::unconnected(PATIENT);
    world.connected(Welcome {
        features: 0,
        ..welcome(Standing::New, 1)
    });
    let fh = written_far_apart(&mut world);
    syncs(&mut world, fh, false);
    let [first, second] = [world.asked(), world.asked()];
    assert_eq!(first.write().durability, Durability::None);
    assert_eq!(second.write().at, WriteAt::Offset(1 << 20));
}

#[test]
fn of_what_was_refused_together_only_what_the_server_refuses_alone_is_lost() {
    let mut world = World::new();
    let fh = written_far_apart(&mut world);
    let sync = syncs(&mut world, fh, false);
    let full = Refusal::Host(libc::ENOSPC as u16);
    let flush = world.asked();
    world.answer(&flush, Err(full));
    assert!(world.waits(sync), "nothing is lost yet");
    world.pass(SOON);
    let [first, second] = [world.asked(), world.asked()];
    assert_eq!(second.write().at, WriteAt::Offset(1 << 20));
    flushed(&mut world, &first);
    world.answer(&second, Err(full));
    assert_eq!(world.refused(sync), full);
}
