//! What is listed before anybody asks.

use crate::said::{Asked, DIR, FILE, attr, grant, handle, recall};
use crate::world::{Waiter, World};
use leasefs_client::{Answer, Call, NodeId};
use leasefs_protocol::answer::{Entries, Object};
use leasefs_protocol::{
    DirEntry, FileKind, OpenId, OpenToken, Parts, Query, RawName, Refusal, Request, Response,
    answer,
};
use std::time::Duration;

fn world() -> World {
    let mut world = World::new();
    world.lists_ahead = true;
    world
}

fn look_up(world: &mut World, parent: NodeId, name: &str) -> Waiter {
    let name = name.as_bytes().into();
    world.call(Call::Lookup { parent, name })
}

fn found(world: &mut World, lookup: Waiter) -> Option<NodeId> {
    match world.answered(lookup) {
        Ok(Answer::Found(found)) => found.map(|entry| entry.node.id),
        other => panic!("no answer: {other:?}"),
    }
}

/// The directory that is opened, if one is.
fn opened(asked: &Asked) -> Option<u8> {
    match &asked.frame.request {
        Request::Query(Query::Open(open)) => Some(open.object.as_bytes()[0]),
        _ => None,
    }
}

/// Parts what is asked for: the lookup, and the opens of directories, by their objects.
fn asked(world: &mut World) -> (Asked, Vec<(u8, Asked)>) {
    let (opens, mut others): (Vec<Asked>, Vec<Asked>) = world
        .take_asked()
        .into_iter()
        .partition(|asked| opened(asked).is_some());
    assert_eq!(others.len(), 1, "{others:?}");
    let opens = opens
        .into_iter()
        .filter_map(|asked| Some((opened(&asked)?, asked)));
    let mut opens: Vec<_> = opens.collect();
    opens.sort_by_key(|(object, _)| *object);
    (others.remove(0), opens)
}

fn is_found(world: &mut World, asked: &Asked, dir: u8, object: u8) {
    is_found_as(world, asked, dir, (object, FILE));
}

fn is_found_as(world: &mut World, asked: &Asked, dir: u8, (object, kind): (u8, FileKind)) {
    let (handle, attr) = (handle(object), attr(object, kind));
    let grants = vec![grant(dir, Parts::NAMES, 2), grant(object, Parts::ATTRS, 2)];
    world.grant(asked, Response::Object(Object { handle, attr }), grants);
}

/// The directory is opened, and has these entries.
fn is_listed(world: &mut World, open: &Asked, dir: u8, entries: &[(&str, u8, FileKind)]) {
    let answer = answer::Opened {
        open: OpenId(u64::from(dir) + 1),
        token: OpenToken(vec![dir]),
        attr: attr(dir, DIR),
    };
    world.grant(
        open,
        Response::Opened(answer),
        vec![grant(dir, Parts::ATTRS, 2)],
    );
    let page = world.asked();
    let listed = entries
        .iter()
        .enumerate()
        .map(|(at, (name, object, kind))| {
            let attr = attr(*object, *kind);
            DirEntry {
                name: RawName((*name).into()),
                ino: attr.ino,
                kind: *kind,
                cookie: at as u64 + 1,
                node: Some((handle(*object), attr)),
            }
        });
    let entries_told = Entries {
        entries: listed.collect(),
        end: true,
    };
    let mut grants = vec![grant(dir, Parts::NAMES | Parts::LISTING, 2)];
    grants.extend(
        entries
            .iter()
            .map(|(_, object, _)| grant(*object, Parts::ATTRS, 2)),
    );
    world.grant(&page, Response::Entries(entries_told), grants);
}

/// Two names of the root are asked for, one after the other: what is asked for with the second.
fn two_names(world: &mut World) -> (Asked, Vec<(u8, Asked)>) {
    let first = look_up(world, NodeId::ROOT, "a");
    let (lookup, ahead) = asked(world);
    assert!(ahead.is_empty());
    is_found(world, &lookup, 0, 1);
    assert!(found(world, first).is_some());
    look_up(world, NodeId::ROOT, "b");
    asked(world)
}

#[test]
fn a_directory_is_listed_when_a_second_name_there_has_to_be_asked_for() {
    let mut world = world();
    let (lookup, ahead) = two_names(&mut world);
    let [(0, open)] = ahead.as_slice() else {
        panic!("not the root: {ahead:?}");
    };
    is_listed(
        &mut world,
        open,
        0,
        &[("a", 1, FILE), ("b", 2, FILE), ("c", 3, FILE)],
    );
    is_found(&mut world, &lookup, 0, 2);
    for (name, is_there) in [("c", true), ("d", false)] {
        let lookup = look_up(&mut world, NodeId::ROOT, name);
        assert_eq!(found(&mut world, lookup).is_some(), is_there, "{name}");
    }
    assert!(!world.is_asked());
}

#[test]
fn a_directory_that_was_listed_ahead_is_read_without_a_request() {
    let mut world = world();
    let (lookup, mut ahead) = two_names(&mut world);
    let (_, open) = ahead.remove(0);
    is_listed(&mut world, &open, 0, &[("a", 1, FILE), ("b", 2, FILE)]);
    is_found(&mut world, &lookup, 0, 2);
    let node = NodeId::ROOT;
    let opened = world.call(Call::OpenDir { node });
    let Ok(Answer::OpenedDir(fh)) = world.answered(opened) else {
        panic!("not opened");
    };
    let (offset, plus) = (0, None);
    let read = world.call(Call::ReadDir { fh, offset, plus });
    assert!(matches!(world.answered(read), Ok(Answer::Listing(_))));
    assert!(!world.is_asked());
}

/// Its lease would only have to be recalled.
#[test]
fn a_directory_is_not_listed_where_another_mount_changes_names() {
    let mut world = world();
    let first = look_up(&mut world, NodeId::ROOT, "a");
    let (lookup, _) = asked(&mut world);
    is_found(&mut world, &lookup, 0, 1);
    assert!(found(&mut world, first).is_some());
    world.recall(recall(1, 0, Parts::ATTRS, &["x"]));
    look_up(&mut world, NodeId::ROOT, "b");
    assert!(asked(&mut world).1.is_empty());
    // After a while nobody does any more.
    for _ in 0..5 {
        world.pass(Duration::from_secs(3));
    }
    look_up(&mut world, NodeId::ROOT, "c");
    assert_eq!(asked(&mut world).1.len(), 1);
}

#[test]
fn a_directory_that_may_not_be_listed_is_asked_for_once_in_a_while() {
    let mut world = world();
    let (lookup, mut ahead) = two_names(&mut world);
    let (_, open) = ahead.remove(0);
    world.answer(&open, Err(Refusal::Access));
    is_found(&mut world, &lookup, 0, 2);
    for (at, name) in ["c", "d", "e"].into_iter().enumerate() {
        look_up(&mut world, NodeId::ROOT, name);
        let (lookup, ahead) = asked(&mut world);
        assert!(ahead.is_empty(), "{ahead:?}");
        is_found(&mut world, &lookup, 0, at as u8 + 3);
    }
}

#[test]
fn directories_that_follow_are_listed_when_a_second_one_is_looked_into() {
    let mut world = world();
    let (_, mut ahead) = two_names(&mut world);
    let (_, open) = ahead.remove(0);
    let entries = [
        ("d", 14, DIR),
        ("b", 12, DIR),
        ("f", 19, FILE),
        ("c", 13, DIR),
        ("a", 1, FILE),
    ];
    is_listed(&mut world, &open, 0, &entries);
    let mut into = |name| {
        let lookup = look_up(&mut world, NodeId::ROOT, name);
        let node = found(&mut world, lookup).expect("a directory");
        look_up(&mut world, node, "x");
        let (_, ahead) = asked(&mut world);
        ahead
            .into_iter()
            .map(|(object, _)| object)
            .collect::<Vec<_>>()
    };
    assert!(into("b").is_empty());
    // By name "d" follows, and nothing in the listing.
    assert_eq!(into("c"), [13, 14]);
}

/// Looks one name up that has to be asked for. The directories that are listed with it.
fn looks_into(world: &mut World, dir: NodeId, name: &str) -> (Waiter, Asked, Vec<(u8, Asked)>) {
    let lookup = look_up(world, dir, name);
    let (asked, ahead) = asked(world);
    (lookup, asked, ahead)
}

fn node(world: &mut World, dir: NodeId, name: &str) -> NodeId {
    let lookup = look_up(world, dir, name);
    found(world, lookup).expect("a directory")
}

/// A root with three directories, of which the first was looked into, and "s" in it, too.
fn goes_deep(world: &mut World) {
    let (_, mut ahead) = two_names(world);
    let (_, open) = ahead.remove(0);
    let entries = [("c", 13, DIR), ("d", 14, DIR), ("e", 15, DIR)];
    is_listed(world, &open, 0, &entries);
    let c = node(world, NodeId::ROOT, "c");
    let (lookup, asked, _) = looks_into(world, c, "s");
    is_found_as(world, &asked, 13, (23, DIR));
    let s = found(world, lookup).expect("a directory");
    let (_, _, ahead) = looks_into(world, s, "x");
    assert!(ahead.is_empty(), "{ahead:?}");
}

#[test]
fn who_looks_into_what_is_in_directories_beside_each_other_finds_the_first_in_the_next_listed() {
    let mut world = world();
    goes_deep(&mut world);
    let d = node(&mut world, NodeId::ROOT, "d");
    let (_, _, mut ahead) = looks_into(&mut world, d, "s");
    assert_eq!(ahead.iter().map(|(o, _)| *o).collect::<Vec<_>>(), [14, 15]);
    let (_, open) = ahead.remove(1);
    let entries = [
        ("u", 35, DIR),
        ("f", 36, FILE),
        ("t", 34, DIR),
        ("v", 37, DIR),
    ];
    is_listed(&mut world, &open, 15, &entries);
    let mut further: Vec<_> = world.take_asked().iter().filter_map(opened).collect();
    further.sort_unstable();
    assert_eq!(further, [34, 35], "the first by name, and in the listing");
}

#[test]
fn what_is_first_looked_into_within_the_second_directory_is_listed_at_once() {
    let mut world = world();
    goes_deep(&mut world);
    let d = node(&mut world, NodeId::ROOT, "d");
    let (lookup, asked, _) = looks_into(&mut world, d, "s");
    is_found_as(&mut world, &asked, 14, (24, DIR));
    let s = found(&mut world, lookup).expect("a directory");
    let (_, _, ahead) = looks_into(&mut world, s, "x");
    assert_eq!(ahead.iter().map(|(o, _)| *o).collect::<Vec<_>>(), [24]);
}
