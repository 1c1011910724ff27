use super::*;
use crate::cache::fixtures::writer;
use crate::cache::{Store, Stored};
use crate::inode::{Access, Hearers, Undone};
use crate::memory::Memory;
use crate::opens::ServerOpen;
use crate::session::{Answered, Changed};
use bytes::Bytes;
use leasefs_lease::client::Tenure;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::{
    BootId, Caller, Grant, Mode, OpenId, RawName, Recall, RecallId, Scope, Stamp,
};
use world::{Told, World, attr, grant, handle, reply};

mod names;
mod world;

const ATTRS: Parts = Parts::ATTRS;
const DATA: Parts = Parts::DATA;

fn approve(id: u64) -> Told {
    Told::Approve(RecallId(id), Vec::new())
}

/// A READ of the first page by a descriptor that stays open, answered and delivered.
fn fill(world: &World, object: u8, stamp: u64) {
    let mut read = begin_read(world, object);
    let delivered = read.judge(&reply(0, vec![grant(object, DATA, stamp)]));
    assert_eq!(delivered, Verdict::Deliver);
}

fn begin_read(world: &World, object: u8) -> PageRead {
    world
        .cache
        .inodes()
        .open_begins(handle(object), Access::Read);
    let read = world.engine.page_read(handle(object), 0, 4096, Mode::Read);
    world.run(read).expect("sent")
}

fn changed(stamp: u64) -> Changed {
    Changed {
        overtaken: false,
        result: Ok(Answered {
            reply: reply(stamp, Vec::new()),
            payload: Bytes::new(),
            host: BootId([9; 16]),
            open: None,
        }),
        unsettled: None,
    }
}

#[test]
fn a_recall_of_what_nobody_knows_costs_nothing() {
    let world = World::new();
    world.recall(1, 5, 7, ATTRS | DATA, &["x"]);
    world.recall(1, 5, 7, ATTRS | DATA, &["x"]);
    assert_eq!(world.told(), vec![approve(1), approve(1)]);
}

#[test]
fn attributes_leave_the_kernel_before_the_approval() {
    let world = World::new();
    assert!(!world.getattr(1, 3).is_zero());
    world.recall(1, 5, 1, ATTRS, &[]);
    let expected = vec![Told::DropAttrs(handle(1)), approve(1)];
    assert_eq!(world.told(), expected);
    let tier = world.cache.live().map(|mut tier| tier.attr(&handle(1)));
    assert_eq!(tier, Some(None));
    assert!(world.getattr(1, 4).is_zero(), "older than the recall");
    assert!(!world.getattr(1, 6).is_zero());
}

#[test]
fn pages_leave_the_kernel_before_the_approval() {
    let world = World::new();
    fill(&world, 1, 3);
    world.recall(1, 5, 1, DATA, &[]);
    world.wait_for(&approve(1));
    let expected = vec![Told::DropPages(handle(1), 0, 4096), approve(1)];
    assert_eq!(world.told(), expected);
}

/// A page of a file that nobody has open any more, which the kernel doesn't drop at once.
fn fill_and_leave(world: &World, object: u8, stamp: u64) {
    fill(world, object, stamp);
    let mut inodes = world.cache.inodes();
    inodes.open_ends(&handle(object), Access::Read);
    drop(inodes);
    world.block(handle(object));
}

/// Somebody opens a file, and has to wait until pages have left the kernel.
fn opens_when_dropped(world: &World, object: u8) {
    let engine = world.engine.clone();
    let mut inodes = world.cache.inodes();
    inodes.open_begins(handle(object), Access::Read);
    drop(inodes);
    let mut opens = world.start(async move { engine.clean(&handle(object)).await });
    assert_eq!(world.begun(), 1);
    assert!(opens.end().is_none());
    world.free(&handle(object));
    opens.end().expect("it goes on").expect("dropped");
}

#[test]
fn pages_that_nobody_can_see_go_behind_the_approval_and_before_the_next_open() {
    let world = World::new();
    fill_and_leave(&world, 1, 3);
    // Who only writes sees none.
    world.cache.inodes().open_begins(handle(1), Access::Write);
    world.recall(1, 5, 1, DATA, &[]);
    assert!(world.is_approved(1));
    opens_when_dropped(&world, 1);
}

#[test]
fn an_own_change_waits_for_no_page_that_nobody_can_see_and_the_next_open_does() {
    let world = World::new();
    fill_and_leave(&world, 1, 3);
    let scope = ChangeScope::default().pages(handle(1), PageChange::Drop(Span::new(0, 10)));
    let change = world.run(world.engine.own_change(scope)).expect("at once");
    opens_when_dropped(&world, 1);
    let engine = world.engine.clone();
    let mut read =
        world.start(async move { engine.page_read(handle(1), 0, 4096, Mode::Read).await });
    assert!(read.end().is_none(), "it would bring the state before");
    world.run(change.finish(&mut changed(7)));
    read.end().expect("it goes on").expect("sent");
}

#[test]
fn a_blocked_drop_holds_up_no_other_file() {
    let world = World::new();
    for file in 1..=20 {
        fill(&world, file, u64::from(file));
    }
    for file in 1..=19 {
        world.block(handle(file));
        world.recall(u64::from(file), 100 + u64::from(file), file, DATA, &[]);
    }
    world.recall(20, 200, 20, DATA, &[]);
    world.wait_for(&approve(20));
    assert!((1..=19).all(|file| !world.is_approved(file)));
    for file in 1..=19 {
        world.free(&handle(file));
    }
    for file in 1..=19 {
        world.wait_for(&approve(file));
    }
}

#[test]
fn a_read_in_flight_keeps_the_recall_open_and_is_dropped_again() {
    let world = World::new();
    let mut read = begin_read(&world, 1);
    world.recall(1, 5, 1, DATA, &[]);
    assert!(!world.is_approved(1));
    let verdict = read.judge(&reply(0, vec![grant(1, DATA, 3)]));
    assert_eq!(verdict, Verdict::Deliver);
    drop(read);
    world.wait_for(&approve(1));
    assert!(world.told().contains(&Told::DropPages(handle(1), 0, 4096)));
}

#[test]
fn an_answer_without_a_lease_is_asked_for_again() {
    let world = World::new();
    let mut read = begin_read(&world, 1);
    assert_eq!(read.judge(&reply(0, Vec::new())), Verdict::AskAgain);
    world.run(read.again()).expect("in time");
    let verdict = read.judge(&reply(0, vec![grant(1, DATA, 3)]));
    assert_eq!(verdict, Verdict::Deliver);
}

#[test]
fn an_answer_from_before_a_loss_of_leases_is_asked_for_again() {
    let world = World::new();
    let mut read = begin_read(&world, 1);
    world.advance(world::TERM);
    world.renew();
    let late = reply(0, vec![grant(1, DATA, 3)]);
    assert_eq!(read.judge(&late), Verdict::AskAgain);
    world.run(read.again()).expect("in time");
    assert_eq!(read.judge(&late), Verdict::Deliver);
}

#[test]
fn a_read_behind_the_pass_goes_on_after_the_approval() {
    let world = World::new();
    fill(&world, 1, 3);
    world.block(handle(1));
    world.recall(1, 5, 1, DATA, &[]);
    let engine = world.engine.clone();
    let mut parked = world.start(async move {
        let read = engine.page_read(handle(1), 1 << 30, 4096, Mode::Read);
        read.await.map(drop)
    });
    assert!(parked.end().is_none());
    world.free(&handle(1));
    world.wait_for(&approve(1));
    parked.end().expect("it goes on").expect("sent");
}

#[test]
fn a_read_that_a_drop_is_stuck_on_is_sent() {
    let world = World::new();
    fill(&world, 1, 3);
    world.block(handle(1));
    world.recall(1, 5, 1, DATA, &[]);
    assert_eq!(world.begun(), 1);
    world.advance(Duration::from_millis(1));
    let engine = world.engine.clone();
    let mut parked =
        world.start(async move { engine.page_read(handle(1), 0, 4096, Mode::Read).await });
    world.advance(Duration::from_millis(1));
    assert!(parked.end().is_none(), "the drop may be over soon");
    world.advance(Duration::from_millis(10));
    let mut read = parked.end().expect("it goes on").expect("sent");
    // It owes the approval, so the server grants nothing.
    assert_eq!(read.judge(&reply(0, Vec::new())), Verdict::Deliver);
    drop(read);
    world.free(&handle(1));
    world.wait_for(&approve(1));
    let drops = world.told();
    let drops = drops.iter().filter(|t| matches!(t, Told::DropPages(..)));
    assert_eq!(drops.count(), 2, "what it brought is dropped again");
}

#[test]
fn an_own_change_drops_what_it_covers_before_it_is_sent() {
    let world = World::new();
    world.getattr(1, 3);
    fill(&world, 1, 4);
    let scope = ChangeScope::default().pages(handle(1), PageChange::Drop(Span::new(0, 10)));
    let change = world.run(world.engine.own_change(scope)).expect("dropped");
    assert_eq!(change.dropped(), vec![handle(1)]);
    let expected = vec![
        Told::DropAttrs(handle(1)),
        Told::DropPages(handle(1), 0, 4096),
    ];
    assert_eq!(world.told(), expected);
    assert!(world.getattr(1, 5).is_zero(), "unanswered");
    world.run(change.finish(&mut changed(7)));
    assert!(world.getattr(1, 6).is_zero(), "read before the change");
    assert!(!world.getattr(1, 8).is_zero());
}

#[test]
fn reads_of_the_range_wait_for_the_answer_of_an_own_change() {
    let world = World::new();
    let scope = ChangeScope::default().pages(handle(1), PageChange::Drop(Span::new(0, 10)));
    let change = world.run(world.engine.own_change(scope)).expect("dropped");
    let engine = world.engine.clone();
    let mut parked = world.start(async move {
        let read = engine.page_read(handle(1), 0, 4096, Mode::Read);
        read.await.map(drop)
    });
    let elsewhere = world.engine.page_read(handle(1), 4096, 4096, Mode::Read);
    drop(world.run(elsewhere).expect("sent"));
    assert!(parked.end().is_none());
    world.run(change.finish(&mut changed(7)));
    parked.end().expect("it goes on").expect("sent");
}

#[test]
fn under_a_write_lease_too_pages_go_before_the_change_is_sent() {
    let world = World::new();
    let mut inodes = world.cache.inodes();
    inodes.open_begins(handle(1), Access::ReadWrite);
    drop(inodes);
    let read = world.engine.page_read(handle(1), 0, 4096, Mode::Write);
    let mut read = world.run(read).expect("sent");
    let lease = leasefs_protocol::Grant {
        mode: Mode::Write,
        ..grant(1, DATA, 3)
    };
    assert_eq!(read.judge(&reply(0, vec![lease])), Verdict::Deliver);
    drop(read);
    let scope = ChangeScope::default().pages(handle(1), PageChange::Drop(Span::new(0, 10)));
    world.block(handle(1));
    let engine = world.engine.clone();
    let mut waits = world.start(async move { engine.own_change(scope).await });
    assert_eq!(world.begun(), 1, "a dirty page is written back first");
    assert!(waits.end().is_none());
    world.free(&handle(1));
    let change = waits.end().expect("it goes on").expect("dropped");
    assert_eq!(world.told(), vec![Told::DropPages(handle(1), 0, 4096)]);
    world.run(change.finish(&mut changed(7)));
    assert_eq!(world.told().len(), 1, "and not again");
}

#[test]
fn a_truncation_waits_for_no_page_that_may_be_dirty() {
    let world = World::new();
    fill(&world, 1, 3);
    world.block(handle(1));
    let truncate =
        |stores| ChangeScope::default().pages(handle(1), PageChange::Truncate { stores });
    let change = world.engine.own_change(truncate(true));
    let change = world.run(change).expect("at once");
    world.run(change.finish(&mut changed(7)));
    assert_eq!(world.begun(), 0);
    let engine = world.engine.clone();
    let mut waits = world.start(async move { engine.own_change(truncate(false)).await });
    assert_eq!(world.begun(), 1, "clean pages go first");
    assert!(waits.end().is_none());
    world.free(&handle(1));
    drop(waits.end().expect("it goes on").expect("dropped"));
}

#[test]
fn a_drop_that_never_ends_ends_the_mount() {
    let world = World::new();
    fill(&world, 1, 3);
    world.block(handle(1));
    world.recall(1, 5, 1, DATA, &[]);
    assert_eq!(world.begun(), 1);
    for _ in 0..8 {
        assert!(!world.told().contains(&Told::End));
        world.advance(Duration::from_secs(5));
        world.renew();
    }
    world.advance(Duration::from_secs(1));
    let ends = world.told();
    let ends = ends.iter().filter(|told| **told == Told::End);
    assert_eq!(ends.count(), 1);
    world.free(&handle(1));
}

#[test]
fn an_evicted_file_keeps_the_lease_of_its_pages() {
    let world = World::with_memory(Memory::new(0));
    fill(&world, 1, 3);
    world.getattr(1, 4);
    world.wait_for(&Told::Release(handle(1), ATTRS));
    assert!(world.told().contains(&Told::DropAttrs(handle(1))));
    assert_eq!(world.cache.state().leases.held(&handle(1)), DATA);
}

#[test]
fn a_change_nobody_knows_the_outcome_of_spoils_replies_under_way() {
    let world = World::new();
    let asked = world.cache.ask();
    let scope = ChangeScope::default().object(handle(1), ATTRS);
    drop(world.run(world.engine.own_change(scope)).expect("dropped"));
    let grants = [grant(1, ATTRS, 9)];
    let mut learned = world.cache.learn(asked, &grants);
    assert!(learned.attr_for_kernel(&handle(1), &attr(1)).is_zero());
}

#[test]
fn a_client_out_of_contact_drops_everything_before_its_leases_end() {
    let world = World::new();
    world.getattr(1, 3);
    world.lookup(2, b"a", 1, 4);
    fill(&world, 1, 5);
    // The keeper's last look before the leases end, without the test having to wait for it.
    world.advance(world::TERM - Duration::from_millis(900));
    world.wait_for(&Told::DropPages(handle(1), 0, 4096));
    let told = world.told();
    assert!(told.contains(&Told::DropAttrs(handle(1))));
    assert!(told.contains(&Told::ForgetNames));
    assert!(world.cache.live().is_none());
    assert_eq!(world.cache.status().leases, 0);
}

#[test]
fn after_a_suspend_nothing_is_used_although_the_term_goes_on() {
    let world = World::new();
    world.getattr(1, 3);
    drop(world.cache.live());
    world.suspend(Duration::from_secs(1));
    assert!(world.cache.live().is_none());
    world.wait_for(&Told::DropAttrs(handle(1)));
}

#[test]
fn a_recall_that_waits_when_everything_expires_is_approved_nevertheless() {
    let world = World::new();
    fill(&world, 1, 3);
    let mut read = begin_read(&world, 2);
    world.block(handle(1));
    world.recall(1, 5, 1, DATA, &[]);
    world.recall(2, 6, 2, DATA, &[]);
    world.suspend(Duration::from_secs(1));
    assert!(world.cache.live().is_none());
    world.renew();
    assert!(!world.is_approved(1), "its page is in the kernel");
    world.free(&handle(1));
    world.wait_for(&approve(1));
    world.wait_for(&approve(2));
    let verdict = read.judge(&reply(0, Vec::new()));
    assert_eq!(verdict, Verdict::AskAgain, "nothing stands behind it");
}

#[test]
fn a_file_left_unclean_is_not_told_of_before_its_pages_are_gone() {
    let world = World::new();
    fill(&world, 1, 3);
    world.block(handle(1));
    world.advance(world::TERM);
    world.renew();
    assert!(world.cache.state().inodes.is_unclean(&handle(1)));
    assert!(world.getattr(1, 4).is_zero());
    let tier = world
        .cache
        .live()
        .and_then(|mut t| t.attr_for_kernel(&handle(1)));
    assert_eq!(tier, None);
    let engine = world.engine.clone();
    let mut clean = world.start(async move { engine.clean(&handle(1)).await });
    assert!(clean.end().is_none());
    world.free(&handle(1));
    clean.end().expect("it goes on").expect("clean");
    let tier = world
        .cache
        .live()
        .and_then(|mut t| t.attr_for_kernel(&handle(1)));
    assert!(tier.is_some());
}

#[test]
fn a_lease_that_could_not_be_reclaimed_takes_everything_with_it() {
    let world = World::new();
    world.getattr(1, 3);
    fill(&world, 1, 4);
    world.run(world.engine.lost(&[handle(1)], &[]));
    let told = world.told();
    assert!(told.contains(&Told::DropAttrs(handle(1))));
    assert!(told.contains(&Told::DropPages(handle(1), 0, 4096)));
    assert_eq!(world.cache.status().leases, 0);
}

#[test]
fn after_a_crash_of_the_servers_host_nothing_goes_on_before_everything_cached_is_gone() {
    let world = World::new();
    world.cache.state().host_is(BootId([1; 16]));
    world.getattr(1, 3);
    world.lookup(2, b"a", 1, 4);
    fill(&world, 1, 5);
    world.block(handle(1));
    world.cache.state().host_is(BootId([2; 16]));
    let mut gone = world.start(world.engine.host_crashed());
    let told = world.told();
    assert!(told.contains(&Told::DropAttrs(handle(1))));
    assert!(told.contains(&Told::ForgetNames));
    assert!(gone.end().is_none(), "pages are still there");
    world.free(&handle(1));
    assert!(gone.end().is_some());
    let told = world.told();
    assert!(told.contains(&Told::DropPages(handle(1), 0, 4096)));
    assert!(!world.cache.state().inodes.is_unclean(&handle(1)));
}

#[test]
fn attributes_of_a_file_that_is_written_again_leave_the_kernel_too() {
    let world = World::new();
    world.cache.state().host_is(BootId([1; 16]));
    world.getattr(1, 3);
    let undone = Undone {
        object: handle(1),
        runs: Vec::new(),
        base: attr(1).version(),
        writer: writer(1),
        owner: None,
        hearers: Hearers::default(),
        path: None,
        tenure: Tenure::default(),
    };
    assert!(world.cache.state().restore(undone));
    world.cache.state().host_is(BootId([2; 16]));
    world.run(world.engine.host_crashed());
    assert!(world.told().contains(&Told::DropAttrs(handle(1))));
}

#[test]
fn shutting_down_takes_everything_and_then_is_approved() {
    let world = World::new();
    world.getattr(1, 3);
    world.lookup(2, b"a", 1, 4);
    fill(&world, 1, 5);
    world.engine.recalled(Recall {
        id: RecallId(9),
        stamp: Stamp(6),
        scope: Scope::Everything,
    });
    world.wait_for(&approve(9));
    let told = world.told();
    assert_eq!(told.last(), Some(&approve(9)));
    assert!(told.contains(&Told::DropAttrs(handle(1))));
    assert!(told.contains(&Told::ForgetNames));
    assert!(told.contains(&Told::DropPages(handle(1), 0, 4096)));
}

#[test]
fn the_approval_names_the_opens_it_gives_up() {
    let world = World::new();
    let caller = Caller::default();
    let grants = [grant(1, ATTRS, 3)];
    let asked = world.cache.ask();
    let mut learned = world.cache.learn(asked, &grants);
    let open = world.open(4);
    learned.opened(&handle(1), &caller, &open);
    drop(learned);
    let leave = |open: Arc<ServerOpen>| world.cache.inodes().open_is_left(&handle(1), &open);
    leave(open);
    let reuse = |world: &World| {
        world
            .cache
            .live()
            .and_then(|mut t| t.reuse_open(&handle(1), &caller))
    };
    let reused = reuse(&world).expect("retained");
    assert_eq!(reused.id(), OpenId(4));
    leave(reused);
    world.recall(1, 5, 1, ATTRS, &[]);
    assert_eq!(
        world.told(),
        vec![Told::Approve(RecallId(1), vec![OpenId(4)])]
    );
    assert!(reuse(&world).is_none());
}

#[test]
fn over_the_budget_the_longest_unused_is_evicted_and_its_lease_given_back() {
    let world = World::with_memory(Memory::new(4 * 40 * 360));
    for object in 1..=60 {
        world.getattr(object, u64::from(object));
    }
    world.wait_for(&Told::Release(handle(1), ATTRS));
    assert!(world.cache.status().memory.cached <= 40 * 360);
    let told = world.told();
    let at = |what: &Told| told.iter().position(|t| t == what);
    assert!(at(&Told::DropAttrs(handle(1))) < at(&Told::Release(handle(1), ATTRS)));
    assert!(world.cache.status().leases >= 20);
}

#[test]
fn a_file_the_kernel_has_forgotten_gives_its_data_lease_back() {
    let world = World::new();
    fill(&world, 1, 3);
    world.engine.forgotten(&handle(1));
    world.wait_for(&Told::Release(handle(1), DATA));
}

#[test]
fn a_repeated_recall_is_approved_once_more_but_not_twice_at_once() {
    let world = World::new();
    let names = vec![RawName(b"a".to_vec())];
    let again = Recall {
        id: RecallId(1),
        stamp: Stamp(5),
        scope: Scope::Object {
            object: handle(1),
            parts: ATTRS,
            names,
        },
    };
    world.engine.recalled(again.clone());
    world.engine.recalled(again);
    assert_eq!(world.told(), vec![approve(1), approve(1)]);
}

/// A file held exclusively, with attributes cached.
fn hold_exclusively(world: &World, object: u8) {
    let grants = [Grant {
        mode: Mode::Write,
        ..grant(object, ATTRS | DATA, 1)
    }];
    let asked = world.cache.ask();
    let mut learned = world.cache.learn(asked, &grants);
    learned.attr(&handle(object), &attr(object));
    drop(learned);
    let now = world.cache.now();
    let mut state = world.cache.state();
    state.inodes.told_room(now, Some(1 << 20));
}

fn write(world: &World, object: u8) -> Stored {
    let store = Store {
        object: handle(object),
        at: WriteAt::Offset(0),
        data: Bytes::from_static(b"x"),
        kill_priv: false,
        date: None,
        writer: writer(1),
        locked: None,
    };
    let stored = world.engine.store(&store);
    world.run(stored).expect("in time")
}

#[test]
fn nothing_is_buffered_of_a_file_while_a_change_of_its_bytes_is_under_way() {
    let world = World::new();
    hold_exclusively(&world, 1);
    assert_eq!(write(&world, 1), Stored::Done { first: true });
    let truncation = PageChange::Truncate { stores: false };
    let scope = ChangeScope::default().pages(handle(1), truncation);
    assert_eq!(scope.settles(), [handle(1)]);
    let change = world.run(world.engine.own_change(scope)).expect("begun");
    assert_eq!(write(&world, 1), Stored::Through);
    change.never_sent();
    assert_eq!(write(&world, 1), Stored::Done { first: false });
}

#[test]
fn a_write_is_buffered_though_there_are_pages_that_nobody_can_see() {
    let world = World::new();
    fill_and_leave(&world, 1, 3);
    hold_exclusively(&world, 1);
    assert_eq!(write(&world, 1), Stored::Done { first: true });
    opens_when_dropped(&world, 1);
}

#[test]
fn the_lease_of_a_file_with_buffered_bytes_is_not_given_back_when_the_kernel_forgets_it() {
    let world = World::new();
    hold_exclusively(&world, 1);
    assert_eq!(write(&world, 1), Stored::Done { first: true });
    world.engine.forgotten(&handle(1));
    let mut state = world.cache.state();
    assert_eq!(state.release_idle(), []);
    state.abandon(&handle(1), Refusal::Changed);
    assert!(state.leases.may_buffer(&handle(1)));
}
