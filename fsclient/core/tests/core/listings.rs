//! What the kernel is told along with a listing (READDIRPLUS).

use crate::lookups::{approves, forgettings, found};
use crate::said::{Asked, FILE, attr, grant, handle, recall};
use crate::walks::open;
use crate::world::World;
use leasefs_client::call::{Entry, Fh};
use leasefs_client::{Answer, Call, Event, NodeId};
use leasefs_protocol::answer::Entries;
use leasefs_protocol::{
    DirEntry, FileKind, Grant, Parts, Query, RawName, Recall, Request, Response, Scope, query,
};
use std::time::Duration;

/// `f` is the first of them.
const FIRST: u8 = b'f' - 1;
/// Room for so many entries with names of one byte.
const fn room(entries: u32) -> u32 {
    160 * entries
}

/// The files of a page, with what they denote: the first of all is `f`.
fn tells_page(world: &mut World, asked: &Asked, count: u8, end: bool) {
    let Request::Query(Query::ReadDir(query::ReadDir { cookie, .. })) = &asked.frame.request else {
        panic!("another request: {asked:?}")
    };
    let from = *cookie as u8;
    let entry = |file: u8| DirEntry {
        name: RawName(vec![FIRST + file]),
        ino: attr(file, FILE).ino,
        kind: FILE,
        cookie: u64::from(file),
        node: Some((handle(file), attr(file, FILE))),
    };
    let entries = (from + 1..=from + count).map(entry).collect();
    let mut grants: Vec<Grant> = vec![grant(0, Parts::NAMES | Parts::LISTING, 2)];
    grants.extend((from + 1..=from + count).map(|file| grant(file, Parts::ATTRS, 2)));
    world.grant(asked, Response::Entries(Entries { entries, end }), grants);
}

fn reads(fh: Fh, offset: u64, entries: u32) -> Call {
    let plus = Some(room(entries));
    Call::ReadDir { fh, offset, plus }
}

fn has(world: &mut World, call: crate::world::Waiter) -> Vec<Option<Entry>> {
    match world.answered(call) {
        Ok(Answer::Entries(entries)) => entries.told().to_vec(),
        other => panic!("no entries: {other:?}"),
    }
}

/// A directory of so many files is listed: what comes first, and then all files in one answer.
fn lists(world: &mut World, files: u8) -> (Fh, Vec<Option<Entry>>) {
    let fh = open(world);
    let call = world.call(reads(fh, 0, 2));
    let asked = world.asked();
    tells_page(world, &asked, files, true);
    assert_eq!(has(world, call), [None, None]);
    let call = world.call(reads(fh, 2, 100));
    (fh, has(world, call))
}

#[test]
fn names_and_attributes_come_with_a_listing_but_for_those_of_files_that_the_kernel_knows() {
    let mut world = World::new();
    let known = found(&mut world, 1).node;
    let (_, entries) = lists(&mut world, 3);
    let told: Vec<bool> = entries.iter().map(Option::is_some).collect();
    assert_eq!(told, [false, true, true], "f, g, h");
    for entry in entries.into_iter().flatten() {
        assert!(!entry.valid.is_zero() && !entry.attr_valid.is_zero());
        assert_ne!(entry.node.id, known.id);
        // Counted once: it is given back once.
        let node = entry.node.id;
        world.tell(Event::Forget { node, count: 1 });
        world.call(Call::GetAttr { node });
        assert!(!world.is_asked(), "it isn't known any more");
    }
}

#[test]
fn files_are_told_at_once_where_those_of_the_directory_before_were_looked_up() {
    let mut world = World::new();
    let fh = open(&mut world);
    let call = world.call_by(7, reads(fh, 0, 100));
    let asked = world.asked();
    tells_page(&mut world, &asked, 3, true);
    assert!(has(&mut world, call).iter().all(Option::is_none));
    let (parent, name) = (NodeId::ROOT, [FIRST + 1].into());
    let lookup = world.call_by(7, Call::Lookup { parent, name });
    assert!(matches!(world.answered(lookup), Ok(Answer::Found(Some(_)))));
    for (thread, told) in [(8, 0), (7, 2)] {
        let call = world.call_by(thread, reads(fh, 0, 100));
        let entries = has(&mut world, call);
        assert_eq!(entries.iter().flatten().count(), told);
    }
}

#[test]
fn an_answer_has_as_many_entries_as_there_is_room_for() {
    let mut world = World::new();
    let (fh, _) = lists(&mut world, 7);
    for (offset, room, had) in [(0, 4, 4), (4, 4, 4), (8, 4, 1), (9, 4, 0), (4, 0, 0)] {
        let call = world.call(reads(fh, offset, room));
        assert_eq!(has(&mut world, call).len(), had);
    }
    assert!(!world.is_asked());
}

#[test]
fn the_next_page_is_asked_for_while_the_last_is_handed_on_and_nobody_waits_for_it() {
    let mut world = World::new();
    let fh = open(&mut world);
    let call = world.call(reads(fh, 0, 4));
    let first = world.asked();
    tells_page(&mut world, &first, 10, false);
    assert_eq!(has(&mut world, call).len(), 4);
    let next = world.asked();
    for offset in [4, 8] {
        let call = world.call(reads(fh, offset, 4));
        assert_eq!(has(&mut world, call).len(), 4);
        assert!(!world.is_asked(), "once");
    }
    let call = world.call(reads(fh, 12, 4));
    assert!(world.waits(call));
    // It is rewound by somebody who has the same open.
    world.call(Call::ReadDir {
        fh,
        offset: 0,
        plus: None,
    });
    tells_page(&mut world, &next, 10, true);
    let again = world.asked();
    tells_page(&mut world, &again, 20, true);
    assert_eq!(has(&mut world, call).len(), 4, "of what there is now");
}

/// What shows that the kernel has taken an answer up.
#[derive(Clone, Copy, Debug)]
enum Shows {
    Known,
    NextRead,
    Release,
    Change,
    Forgets,
    Unlocked,
}

/// It samples the epoch of an entry only then: all names that it is made to forget before would come back.
#[test]
fn a_name_is_given_up_once_the_kernel_has_taken_up_the_listing_that_it_came_with() {
    for shows in [
        Shows::Known,
        Shows::NextRead,
        Shows::Release,
        Shows::Change,
        Shows::Forgets,
        Shows::Unlocked,
    ] {
        let mut world = World::new();
        let (fh, entries) = lists(&mut world, 3);
        let last = entries.into_iter().flatten().next_back();
        let node = last.expect("three are told").node.id;
        let (parent, name) = (NodeId::ROOT, [FIRST + 3].into());
        world.knows_nothing = true;
        if let Shows::Unlocked = shows {
            // From now on it may know it otherwise.
            world.call(Call::Lookup { parent, name });
            world.keeps_waiting = true;
        }
        world.recall(recall(1, 0, Parts::NONE, &["f"]));
        for _ in 0..9 {
            world.pass(Duration::from_millis(50));
            assert_eq!(forgettings(&world), 1, "{shows:?}: what it has taken up");
            assert!(!approves(&mut world), "{shows:?}");
        }
        match shows {
            Shows::Known => world.knows_nothing = false,
            Shows::NextRead => drop(world.call(reads(fh, 5, 4))),
            Shows::Release => drop(world.call(Call::ReleaseDir { fh })),
            Shows::Change => drop(world.call(crate::calls::removal(parent))),
            Shows::Forgets => world.tell(Event::Forget { node, count: 1 }),
            Shows::Unlocked => world.gets_on(),
        }
        world.pass(Duration::from_millis(150));
        assert_eq!(forgettings(&world), 2, "{shows:?}");
        assert!(approves(&mut world), "{shows:?}");
    }
}

#[test]
fn that_a_listing_was_taken_up_shows_before_its_last_name_is_looked_up() {
    let mut world = World::new();
    lists(&mut world, 3);
    let (parent, name) = (NodeId::ROOT, [FIRST + 3].into());
    world.call(Call::Lookup { parent, name });
    world.recall(recall(1, 0, Parts::NONE, &["f"]));
    assert!(approves(&mut world), "without having the directory's lock");
}

/// Who has locked it to change it may wait for the recall.
#[test]
fn who_changes_a_directory_is_not_waited_for() {
    let mut world = World::new();
    lists(&mut world, 3);
    world.knows_nothing = true;
    let (parent, name) = (NodeId::ROOT, [FIRST + 3].into());
    world.call(Call::Lookup { parent, name });
    world.keeps_waiting = true;
    world.recall(recall(1, 0, Parts::NONE, &["f"]));
    world.pass(Duration::from_millis(50));
    assert!(!approves(&mut world));
    world.call(crate::calls::removal(parent));
    world.pass(Duration::from_millis(50));
    assert!(approves(&mut world), "though its lock isn't to be had");
}

/// Who reads the directory says when that is; nobody knows here by then which names it were.
#[test]
fn a_name_is_never_given_up_that_the_kernel_may_still_take_up() {
    let mut world = World::new();
    lists(&mut world, 3);
    world.knows_nothing = true;
    for (id, name) in [(1, "f"), (2, "f"), (3, "other")] {
        world.recall(recall(id, 0, Parts::NONE, &[name]));
        world.pass(Duration::from_secs(9));
        assert!(!approves(&mut world), "the lease is left to expire");
    }
    world.knows_nothing = false;
    world.pass(Duration::from_millis(20));
    world.recall(recall(4, 0, Parts::NONE, &["f"]));
    assert!(
        approves(&mut world),
        "all names that came along are forgotten"
    );
}

#[test]
fn attributes_are_never_given_up_that_the_kernel_may_still_take_up() {
    let mut world = World::new();
    lists(&mut world, 3);
    world.knows_nothing = true;
    for id in [1, 2] {
        world.recall(recall(id, 3, Parts::ATTRS, &[]));
        world.pass(Duration::from_secs(9));
        assert!(!approves(&mut world), "the lease is left to expire");
    }
    world.recall(Recall {
        scope: Scope::Everything,
        ..recall(3, 3, Parts::ATTRS, &[])
    });
    world.pass(Duration::from_secs(9));
    assert!(!approves(&mut world), "they are among everything");
    world.knows_nothing = false;
    world.pass(Duration::from_millis(20));
    world.recall(recall(4, 3, Parts::ATTRS, &[]));
    assert!(
        approves(&mut world),
        "they were dropped as soon as they came"
    );
}

#[test]
fn nobody_elses_change_or_recall_waits_until_a_listing_is_taken_up() {
    let mut world = World::new();
    let elsewhere = world.node(9, FileKind::Directory);
    lists(&mut world, 3);
    world.knows_nothing = true;
    world.recall(recall(1, 0, Parts::NONE, &["f"]));
    world.recall(recall(2, 9, Parts::NAMES, &[]));
    assert!(approves(&mut world), "of another directory");
    let removal = world.call(crate::calls::removal(elsewhere));
    let asked = world.asked();
    world.done(&asked);
    assert!(matches!(world.answered(removal), Ok(Answer::Done)));
    world.pass(Duration::from_millis(50));
    assert!(!approves(&mut world), "of the one that is read");
}

#[test]
fn names_that_change_are_listed_without_what_they_denote() {
    let mut world = World::new();
    let removal = world.call(crate::calls::removal(NodeId::ROOT));
    let asked = world.asked();
    world.done(&asked);
    assert!(matches!(world.answered(removal), Ok(Answer::Done)));
    let (_, entries) = lists(&mut world, 3);
    assert!(entries.iter().all(Option::is_none));
}
