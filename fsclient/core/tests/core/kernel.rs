//! What the kernel believes whatever it is told, and what the client does about it.

use crate::lookups::found;
use crate::said::{Asked, FILE, attr, grant, handle, opened, recall};
use crate::world::{Waiter, World};
use bytes::Bytes;
use leasefs_client::call::{At, Fh, Writing};
use leasefs_client::{Answer, Call, Event, NodeId, Notice, WhyNot};
use leasefs_protocol::change::{WriteAt, WriteKind};
use leasefs_protocol::control::{Standing, ToServer};
use leasefs_protocol::{
    Attr, Change, Grant, Mode, Parts, Query, RecallId, Refusal, Release, Reply, Request, Response,
    SetAttr, Touched, answer,
};
use std::time::Duration;

const PAGE: &[u8] = b"a mapped page";

fn page_of(fh: Fh) -> Call {
    Call::Write {
        fh,
        writing: Writing {
            offset: 4096,
            data: Bytes::from_static(PAGE),
            flags: libc::O_RDWR as u32,
            writeback: true,
            kill_priv: false,
            owner: None,
        },
    }
}

fn writes_back(world: &mut World, fh: Fh) -> (Waiter, Asked) {
    let write = world.call(page_of(fh));
    let asked = world.asked();
    assert!(matches!(asked.change(), Change::Write(_)));
    (write, asked)
}

pub fn opened_file(world: &mut World) -> (leasefs_client::NodeId, Fh) {
    let node = world.node(1, FILE);
    let call = world.call(crate::calls::opening(node, libc::O_RDWR));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(7, 1)));
    match world.answered(call) {
        Ok(Answer::Opened(opened)) => (node, opened.fh),
        other => panic!("not opened: {other:?}"),
    }
}

fn is_asked_for_attributes(world: &mut World, size: u64) {
    let asked = world.asked();
    let request = &asked.frame.request;
    assert!(matches!(request, Request::Query(Query::GetAttr(_))));
    tell_size(world, &asked, size);
}

fn tell_size(world: &mut World, asked: &Asked, size: u64) {
    let attr = Attr {
        size,
        ..attr(1, FILE)
    };
    world.answer(asked, Ok(Response::Attr(attr)));
}

#[test]
fn a_mapped_page_that_is_refused_for_whatever_reason_is_kept_before_the_kernel_is_told() {
    let full = Refusal::Host(libc::ENOSPC as u16);
    for (refusal, reason) in [
        (full, WhyNot::Refused(full)),
        (Refusal::Lost, WhyNot::Refused(Refusal::Lost)),
        (Refusal::Changed, WhyNot::ChangedElsewhere),
    ] {
        let mut world = World::new();
        let (node, fh) = opened_file(&mut world);
        is_told(&mut world, node, 9000);
        let (write, asked) = writes_back(&mut world, fh);
        world.keeps_waiting = true;
        world.answer(&asked, Err(refusal));
        assert!(world.waits(write), "it is kept first");
        world.gets_on();
        assert_eq!(world.refused(write), refusal);
        let kept: Vec<_> = world.kept.drain(..).collect();
        let [page] = kept.as_slice() else {
            panic!("not kept once: {kept:?}")
        };
        assert_eq!(
            (page.object, page.size, page.reason),
            (handle(1), 9000, reason)
        );
        assert_eq!(page.extents, [(4096, Bytes::from_static(PAGE))]);
    }
}

/// It takes the page for clean then, and lets processes store into it.
#[test]
fn a_page_that_is_refused_is_locked_to_be_dropped_before_the_kernel_hears_of_it() {
    let mut world = World::new();
    let (node, fh) = opened_file(&mut world);
    let (write, asked) = writes_back(&mut world, fh);
    world.keeps_waiting = true;
    world.answer(&asked, Err(Refusal::Changed));
    assert!(world.waits(write));
    let locks =
        |notice: &Notice| matches!(notice, Notice::DropWritten { node: of, .. } if *of == node);
    assert!(world.told.iter().any(locks));
    world.gets_on();
    assert_eq!(world.refused(write), Refusal::Changed);
}

/// The kernel takes all of it for written, whatever the answer says.
#[test]
fn of_mapped_pages_what_the_host_had_no_room_for_is_sent_again_and_kept_when_it_is_refused() {
    let full = Refusal::Host(libc::ENOSPC as u16);
    for fits in [false, true] {
        let mut world = World::new();
        let (_, fh) = opened_file(&mut world);
        let (write, asked) = writes_back(&mut world, fh);
        let part = Response::Written(answer::Written::plain(1, 4096));
        world.answer(&asked, Ok(part));
        assert!(world.waits(write));
        let rest = world.asked();
        let Change::Write(again) = rest.change() else {
            panic!("something else: {rest:?}")
        };
        assert_eq!(again.at, WriteAt::Offset(4097));
        assert_eq!(rest.payload, PAGE[1..]);
        let left = PAGE.len() as u32 - 1;
        match fits {
            true => {
                let all = Response::Written(answer::Written::plain(left.into(), 4097));
                world.answer(&rest, Ok(all));
                let answer = world.answered(write);
                assert!(matches!(answer, Ok(Answer::Written(len)) if len == left + 1));
                assert!(world.kept.is_empty());
            }
            false => {
                world.answer(&rest, Err(full));
                assert_eq!(world.refused(write), full);
                assert_eq!(world.kept[0].extents, [(4096, Bytes::from_static(PAGE))]);
            }
        }
    }
}

#[test]
fn a_mapped_page_under_way_is_among_what_is_kept_when_the_mount_ends() {
    let mut world = World::new();
    let (node, fh) = opened_file(&mut world);
    is_told(&mut world, node, 9000);
    let (_, asked) = writes_back(&mut world, fh);
    let left = world.core.take_undelivered();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].size, 9000, "as its writer saw it");
    assert_eq!(left[0].extents, [(4096, Bytes::from_static(PAGE))]);
    assert!(world.core.take_undelivered().is_empty(), "kept once");
    world.answer(&asked, Err(Refusal::Lost));
}

#[test]
fn an_answer_to_a_change_of_an_open_file_tells_a_size_that_is_asked_for_behind_it() {
    let mut world = World::new();
    let (node, _) = opened_file(&mut world);
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let call = world.call(Call::SetAttr {
        node,
        fh: None,
        set,
        owner: None,
    });
    let asked = world.asked();
    let old = Attr {
        size: 1,
        ..attr(1, FILE)
    };
    // No lease covers it: the file may have grown since.
    world.answer(&asked, Ok(Response::Attr(old)));
    assert!(world.waits(call));
    is_asked_for_attributes(&mut world, 4096);
    match world.answered(call) {
        Ok(Answer::Attr(told)) => assert_eq!(told.shown.attr.size, 4096),
        other => panic!("not told: {other:?}"),
    }
}

/// A page is in the kernel under the Write lease, to be stored into: where the file ends, if that has to be asked for.
fn page_comes_in(world: &mut World, fh: Fh, offset: u64, stamp: u64) -> Waiter {
    let at = At { fh, offset };
    let read = world.call(Call::ReadPages { at, len: 4096 });
    let asked = world.asked();
    let lease = Grant {
        mode: Mode::Write,
        ..grant(1, Parts::DATA, stamp)
    };
    world.grant(&asked, Response::Done, vec![lease]);
    if let Some(asked) = world.take_asked().first()
        && matches!(asked.frame.request, Request::Query(Query::GetAttr(_)))
    {
        tell_size(world, asked, offset);
    }
    read
}

/// It clears what lies behind the size that it knows, when it writes such a page back.
#[test]
fn the_kernel_knows_where_a_file_ends_before_it_has_a_page_of_that_to_store_into() {
    for (bytes, asks) in [(&[7; 2000][..], true), (&[], false)] {
        let mut world = World::new();
        let (node, fh) = opened_file(&mut world);
        let at = At { fh, offset: 0 };
        let read = world.call(Call::ReadPages { at, len: 4096 });
        let asked = world.asked();
        let lease = Grant {
            mode: Mode::Write,
            ..grant(1, Parts::DATA, 1)
        };
        let reply = Reply {
            grants: vec![lease],
            ..asked.reply(Ok(Response::Done))
        };
        world.reply(reply, bytes);
        assert_eq!(world.waits(read), asks);
        if asks {
            world.keeps_waiting = true;
            is_asked_for_attributes(&mut world, 2000);
            assert!(world.waits(read));
            assert!(world.told.contains(&Notice::Grow { node, size: 2000 }));
            world.gets_on();
        }
        assert!(matches!(world.answered(read), Ok(Answer::Bytes(_))));
    }
}

fn is_late(asked: &Asked) -> bool {
    match asked.change() {
        Change::Write(write) => write.kind == WriteKind::Page { late: true },
        other => panic!("not a write: {other:?}"),
    }
}

#[test]
fn a_mapped_page_whose_lease_has_ended_counts_as_late_whatever_lease_there_is_now() {
    for (standing, late) in [(Standing::Expired, true), (Standing::Resumed, false)] {
        let mut world = World::new();
        let (_, fh) = opened_file(&mut world);
        let read = page_comes_in(&mut world, fh, 4096, 1);
        world.answered(read).expect("read");
        let (_, in_time) = writes_back(&mut world, fh);
        assert!(!is_late(&in_time));
        // It has no answer when the connection breaks; another is written back before there is a new one.
        world.keeps_waiting = true;
        world.cut();
        let behind = world.call(page_of(fh));
        world.finds(standing, 1);
        let again = world.take_asked();
        assert_eq!(again.len(), 2);
        assert!(
            again.iter().all(|asked| is_late(asked) == late),
            "{standing:?}"
        );
        // And one that is written back when another page has come in under a new lease.
        page_comes_in(&mut world, fh, 16 << 20, 2);
        world.take_asked();
        let (_, asked) = writes_back(&mut world, fh);
        assert_eq!(is_late(&asked), late, "{standing:?}");
        assert!(world.waits(behind));
    }
}

/// A process writes, and finds its bytes buffered, or not.
pub fn writes(world: &mut World, fh: Fh, offset: u64) -> Waiter {
    world.call(Call::Write {
        fh,
        writing: Writing {
            offset,
            data: Bytes::from_static(PAGE),
            flags: libc::O_RDWR as u32,
            writeback: false,
            kill_priv: false,
            owner: None,
        },
    })
}

fn is_late_flush(asked: &Asked) -> bool {
    match asked.write().kind {
        WriteKind::Flush { late, .. } => late,
        other => panic!("not a flush: {other:?}"),
    }
}

/// The file is held so that writes to it are buffered.
pub fn may_buffer(world: &mut World, fh: Fh) {
    may_buffer_since(world, fh, 1);
}

/// As [`may_buffer`], by a lease of this stamp.
fn may_buffer_since(world: &mut World, fh: Fh, stamp: u64) {
    let call = writes(world, fh, 0);
    let asked = world.asked();
    let lease = Grant {
        mode: Mode::Write,
        ..grant(1, Parts::ATTRS | Parts::DATA, stamp)
    };
    let len = PAGE.len() as u64;
    let written = Response::Written(answer::Written::plain(len, 0));
    let reply = Reply {
        renews: true,
        grants: vec![lease],
        touched: vec![Touched {
            object: handle(1),
            attr: attr(1, FILE),
        }],
        room: Some(1 << 30),
        ..asked.reply(Ok(written))
    };
    world.reply(reply, b"");
    world.answered(call).expect("written");
}

#[test]
fn what_is_kept_when_the_mount_ends_as_not_committed_is_not_sent_any_more() {
    let mut world = World::new();
    let (_, fh) = opened_file(&mut world);
    may_buffer(&mut world, fh);
    world.recall(recall(1, 1, Parts::ATTRS | Parts::DATA, &[]));
    assert!(!world.is_asked(), "it is not dirty");
    // Another mount may write to the file from here on; then this one has a lease again.
    may_buffer_since(&mut world, fh, 200);
    let buffered = writes(&mut world, fh, 3);
    world.answered(buffered).expect("buffered");
    let left = world.core.take_undelivered();
    let [file] = left.as_slice() else {
        panic!("not kept once: {left:?}")
    };
    let both = Bytes::from([&PAGE[..3], PAGE].concat());
    assert_eq!(file.extents, [(0, both)]);
    world.pass(Duration::from_secs(2));
    let sent = world.take_asked();
    let [flush] = sent.as_slice() else {
        panic!("not what was dirty alone: {sent:?}")
    };
    match flush.change() {
        Change::Write(write) => {
            assert_eq!(write.at, WriteAt::Offset(3));
            assert!(matches!(
                write.kind,
                WriteKind::Flush {
                    repeated: false,
                    ..
                }
            ));
        }
        other => panic!("not a write: {other:?}"),
    }
}

#[test]
fn buffered_bytes_whose_lease_has_ended_count_as_late_whatever_lease_there_is_now() {
    for (standing, late) in [(Standing::Expired, true), (Standing::Resumed, false)] {
        let mut world = World::new();
        let (_, fh) = opened_file(&mut world);
        may_buffer(&mut world, fh);
        let buffered = writes(&mut world, fh, 4096);
        world.answered(buffered).expect("buffered");
        world.pass(Duration::from_secs(2));
        assert!(!is_late_flush(&world.asked()));
        // More is buffered behind it before the connection breaks.
        let buffered = writes(&mut world, fh, 8192);
        world.answered(buffered).expect("buffered");
        world.cut();
        world.finds(standing, 1);
        let again = world.asked();
        assert_eq!(is_late_flush(&again), late, "{standing:?}");
        let lease = Grant {
            mode: Mode::Write,
            ..grant(1, Parts::ATTRS | Parts::DATA, 2)
        };
        let (len, offset) = (PAGE.len() as u64, 4096);
        let written = Response::Written(answer::Written::plain(len, offset));
        world.grant(&again, written, vec![lease]);
        world.pass(Duration::from_secs(2));
        assert_eq!(is_late_flush(&world.asked()), late, "{standing:?}");
    }
}

#[test]
fn all_who_have_a_file_open_are_told_of_a_mapped_page_that_a_crash_of_the_host_has_undone() {
    let mut world = World::new();
    let (node, fh) = opened_file(&mut world);
    let call = world.call(crate::calls::opening(node, libc::O_RDWR));
    let asked = world.asked();
    world.answer(&asked, Ok(opened(8, 1)));
    let Ok(Answer::Opened(other)) = world.answered(call) else {
        panic!("not opened")
    };
    let read = page_comes_in(&mut world, fh, 4096, 1);
    world.answered(read).expect("read");
    // The kernel writes it back through the first descriptor, whoever has mapped it.
    let (write, asked) = writes_back(&mut world, fh);
    let (len, offset) = (PAGE.len() as u64, 4096);
    let reply = asked.written(answer::Written::plain(len, offset));
    world.reply(reply, b"");
    world.answered(write).expect("written");
    world.finds_another_life_of_the_host();
    world.pass(Duration::from_secs(2));
    let again = world.asked();
    assert!(matches!(again.change(), Change::Write(_)));
    world.answer(&again, Err(Refusal::Changed));
    for (fh, told) in [(other.fh, true), (fh, true), (other.fh, false)] {
        let data_only = false;
        let sync = world.call(Call::Sync { fh, data_only });
        while world.is_asked() {
            let commit = world.asked();
            world.done(&commit);
        }
        assert_eq!(world.answered(sync).is_err(), told, "{fh:?}");
    }
}

/// The kernel has attributes of a file under a lease.
fn knows_attributes(world: &mut World) -> NodeId {
    let node = world.node(1, FILE);
    let call = world.call(Call::GetAttr { node });
    let asked = world.asked();
    let grants = vec![grant(1, Parts::ATTRS, 5)];
    world.grant(&asked, Response::Attr(attr(1, FILE)), grants);
    match world.answered(call) {
        Ok(Answer::Attr(told)) => assert!(!told.valid.is_zero(), "believed for a while"),
        other => panic!("not told: {other:?}"),
    }
    world.told.clear();
    node
}

#[test]
fn after_a_suspend_the_first_thing_that_happens_has_everything_dropped() {
    let mut world = World::new();
    let node = knows_attributes(&mut world);
    world.sleep_unnoticed(Duration::from_secs(1));
    let connection = world.connection;
    world.tell(Event::Heard(connection, 1_000));
    assert!(
        world.told.contains(&Notice::DropAttrs(node)),
        "{:?}",
        world.told
    );
}

#[test]
fn after_a_suspend_no_request_is_answered_from_the_cache_though_it_comes_first() {
    let mut world = World::new();
    let node = knows_attributes(&mut world);
    world.sleep_unnoticed(Duration::from_secs(1));
    let call = world.call(Call::GetAttr { node });
    assert!(
        world.told.contains(&Notice::DropAttrs(node)),
        "{:?}",
        world.told
    );
    assert!(world.waits(call), "the server is asked");
}

#[test]
fn a_reply_from_before_a_suspend_revives_nothing() {
    let mut world = World::new();
    let node = knows_attributes(&mut world);
    let other = world.node(2, FILE);
    let call = world.call(Call::GetAttr { node: other });
    let asked = world.asked();
    world.sleep_unnoticed(Duration::from_secs(1));
    let grants = vec![grant(2, Parts::ATTRS, 6)];
    world.grant(&asked, Response::Attr(attr(2, FILE)), grants);
    assert!(
        world.told.contains(&Notice::DropAttrs(node)),
        "{:?}",
        world.told
    );
    match world.answered(call) {
        Ok(Answer::Attr(told)) => {
            assert!(told.valid.is_zero(), "what was asked before is not kept")
        }
        other => panic!("not told: {other:?}"),
    }
}

/// For how long the kernel may believe what a `stat` is told that the server grants a lease with.
fn believed(world: &mut World, node: NodeId, stamp: u64) -> Duration {
    let call = world.call(Call::GetAttr { node });
    let asked = world.asked();
    let grants = vec![grant(1, Parts::ATTRS, stamp)];
    world.grant(&asked, Response::Attr(attr(1, FILE)), grants);
    match world.answered(call) {
        Ok(Answer::Attr(told)) => told.valid,
        other => panic!("not told: {other:?}"),
    }
}

#[test]
fn from_before_a_suspend_that_is_announced_until_it_is_over_the_kernel_believes_nothing() {
    let mut world = World::new();
    let node = knows_attributes(&mut world);
    let sleep = world.call(Call::Sleep);
    assert!(matches!(world.answered(sleep), Ok(Answer::Done)));
    assert!(world.told.contains(&Notice::DropAttrs(node)));
    assert!(believed(&mut world, node, 6).is_zero(), "it goes to sleep");
    let given_back = |r: &Release| r.object == handle(1) && r.parts.contains(Parts::ATTRS);
    match world.said() {
        ToServer::Release(releases) => assert!(releases.iter().any(given_back)),
        other => panic!("nobody is to wait for who sleeps: {other:?}"),
    }
    let wake = world.call(Call::Wake);
    assert!(matches!(world.answered(wake), Ok(Answer::Done)));
    let call = world.call(Call::GetAttr { node });
    match world.answered(call) {
        Ok(Answer::Attr(told)) => assert!(!told.valid.is_zero(), "it is awake"),
        other => panic!("not told from what is cached: {other:?}"),
    }
}

#[test]
fn between_the_announcement_of_a_suspend_and_its_end_pages_are_read_and_recalls_approved() {
    let mut world = World::new();
    let (_, fh) = opened_file(&mut world);
    let sleep = world.call(Call::Sleep);
    assert!(matches!(world.answered(sleep), Ok(Answer::Done)));
    let read = page_comes_in(&mut world, fh, 0, 6);
    assert!(world.answered(read).is_ok(), "who reads isn't held up");
    world.recall(recall(5, 1, Parts::DATA, &[]));
    world.approves(RecallId(5));
}

#[test]
fn a_recall_amid_what_a_suspend_takes_back_is_approved_when_the_kernel_has_given_it_back() {
    let mut world = World::new();
    found(&mut world, 5);
    // That answer, with attributes, is on its way still.
    world.knows_nothing = true;
    world.sleep(Duration::from_secs(1));
    world.recall(recall(5, 1, Parts::ATTRS, &[]));
    world.pass(Duration::from_millis(20));
    assert!(!world.has_said(), "the kernel may learn them yet");
    world.knows_nothing = false;
    world.pass(Duration::from_millis(20));
    world.approves(RecallId(5));
}

#[test]
fn a_suspend_waits_until_mapped_pages_have_left_the_kernel() {
    let mut world = World::new();
    let (_, fh) = opened_file(&mut world);
    let read = page_comes_in(&mut world, fh, 0, 5);
    assert!(world.answered(read).is_ok());
    world.keeps_waiting = true;
    let sleep = world.call(Call::Sleep);
    assert!(world.waits(sleep));
    world.gets_on();
    assert!(matches!(world.answered(sleep), Ok(Answer::Done)));
}

#[test]
fn a_file_that_goes_between_its_lookup_and_its_stat_is_shown_as_it_was_without_a_link() {
    let mut world = World::new();
    let node = world.node(1, FILE);
    let stat = world.call(Call::GetAttr { node });
    let asked = world.asked();
    world.answer(&asked, Err(Refusal::Stale));
    let Ok(Answer::Attr(told)) = world.answered(stat) else {
        panic!("no attributes")
    };
    let gone = Attr {
        nlink: 0,
        ..attr(1, FILE)
    };
    assert_eq!((told.shown.attr, told.valid), (gone, Duration::ZERO));
}

/// An answer without a lease: nothing tells the kernel when it is outdated.
fn is_told(world: &mut World, node: NodeId, size: u64) {
    let stat = world.call(Call::GetAttr { node });
    is_asked_for_attributes(world, size);
    match world.answered(stat) {
        Ok(Answer::Attr(told)) => assert_eq!(told.shown.attr.size, size),
        other => panic!("no attributes: {other:?}"),
    }
}

/// It would ignore the answer then, and go on with the size that it knows: here that to which it has itself made the file longer.
#[test]
fn the_kernel_is_not_made_to_grow_a_file_that_it_may_take_for_longer_than_it_is() {
    let mut world = World::new();
    let (node, fh) = opened_file(&mut world);
    is_told(&mut world, node, 10);
    let (offset, len, mode) = (1, 8192, 0);
    let at = At { fh, offset };
    let allocates = world.call(Call::Allocate { at, len, mode });
    let asked = world.asked();
    world.grant(&asked, Response::Done, vec![]);
    assert!(world.answered(allocates).is_ok());
    world.told.clear();
    is_told(&mut world, node, 5000);
    assert_eq!(world.told, [], "another has cut it off");
    is_told(&mut world, node, 6000);
    assert_eq!(world.told, [Notice::Grow { node, size: 6000 }]);
}

fn truncates(world: &mut World, node: NodeId, size: u64) -> Waiter {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let (fh, owner) = (None, None);
    let call = world.call(Call::SetAttr {
        node,
        fh,
        set,
        owner,
    });
    let asked = world.asked();
    tell_size(world, &asked, size);
    // Behind the change: what the file is by now.
    is_asked_for_attributes(world, size);
    call
}

#[test]
fn a_file_is_cut_off_when_the_kernel_believes_what_it_was_being_made_to() {
    let mut world = World::new();
    let (node, _) = opened_file(&mut world);
    is_told(&mut world, node, 9000);
    world.keeps_waiting = true;
    let stat = world.call(Call::GetAttr { node });
    is_asked_for_attributes(&mut world, 9500);
    assert!(world.waits(stat));
    let cut = truncates(&mut world, node, 100);
    assert!(world.waits(cut), "that would come behind it");
    world.gets_on();
    assert!(world.answered(cut).is_ok());
    is_asked_for_attributes(&mut world, 100);
    assert!(world.answered(stat).is_ok());
}

#[test]
fn the_kernel_is_not_made_to_believe_a_size_from_before_it_has_cut_the_file_off() {
    let mut world = World::new();
    let (node, _) = opened_file(&mut world);
    is_told(&mut world, node, 9000);
    let stat = world.call(Call::GetAttr { node });
    let asked = world.asked();
    let cut = truncates(&mut world, node, 100);
    assert!(world.answered(cut).is_ok());
    world.told.clear();
    tell_size(&mut world, &asked, 9500);
    is_asked_for_attributes(&mut world, 100);
    assert!(world.answered(stat).is_ok());
    assert_eq!(world.told, []);
}

#[test]
fn growth_behind_an_answer_that_told_less_voids_that_answer_first() {
    let mut world = World::new();
    let (node, _) = opened_file(&mut world);
    is_told(&mut world, node, 9000);
    world.told.clear();
    is_told(&mut world, node, 9500);
    assert_eq!(world.told, [Notice::Grow { node, size: 9500 }]);
    world.told.clear();
    is_told(&mut world, node, 5000);
    assert_eq!(world.told, []);
    is_told(&mut world, node, 7000);
    let grows = Notice::Grow { node, size: 7000 };
    assert_eq!(world.told, [Notice::DropAttrs(node), grows]);
}
