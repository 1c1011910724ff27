//! Whoever goes through a long listing, and looks at each of its entries.

use crate::said::{Asked, DIR, FILE, attr, grant, handle};
use crate::world::{Waiter, World};
use leasefs_client::call::Fh;
use leasefs_client::{Answer, Call, NodeId};
use leasefs_protocol::answer::{Entries, Object};
use leasefs_protocol::{
    DirEntry, Grant, OpenId, OpenToken, Parts, Query, RawName, Refusal, Request, Response, answer,
    query,
};

/// Pages that come with what their entries denote, whoever asks.
const WITH_NODES: u8 = 16;
/// Of one entry each.
const PAGES: u8 = 100;

fn name(entry: u8) -> Box<[u8]> {
    format!("{entry:03}").into_bytes().into()
}

/// The entry at this place in the listing, which goes on behind it.
fn entry(at: u8, nodes: bool) -> DirEntry {
    let (handle, attr) = (handle(at + 1), attr(at + 1, FILE));
    DirEntry {
        name: RawName(name(at).into()),
        ino: attr.ino,
        kind: FILE,
        cookie: u64::from(at) + 1,
        node: nodes.then_some((handle, attr)),
    }
}

fn covering(at: u8) -> Vec<Grant> {
    vec![grant(0, Parts::NAMES, 2), grant(at + 1, Parts::ATTRS, 2)]
}

/// Where a page was asked for, and whether with what its entries denote; `None` for another request.
fn page(asked: &Asked) -> Option<(u8, bool)> {
    match &asked.frame.request {
        Request::Query(Query::ReadDir(query::ReadDir { cookie, nodes, .. })) => {
            Some((*cookie as u8, *nodes))
        }
        _ => None,
    }
}

fn tell_page(world: &mut World, asked: &Asked) {
    let (at, nodes) = page(asked).expect("a page is asked for");
    let mut grants = if nodes { covering(at) } else { Vec::new() };
    if at == 0 {
        grants.push(grant(0, Parts::LISTING, 2));
    }
    let entries = vec![entry(at, nodes)];
    let end = at + 1 == PAGES;
    world.grant(asked, Response::Entries(Entries { entries, end }), grants);
}

pub fn open(world: &mut World) -> Fh {
    let call = world.call(Call::OpenDir { node: NodeId::ROOT });
    let asked = world.asked();
    let opened = answer::Opened {
        open: OpenId(1),
        token: OpenToken(vec![1]),
        attr: attr(0, DIR),
    };
    let attrs = grant(0, Parts::ATTRS, 1);
    world.grant(&asked, Response::Opened(opened), vec![attrs]);
    match world.answered(call) {
        Ok(Answer::OpenedDir(fh)) => fh,
        other => panic!("not opened: {other:?}"),
    }
}

/// A client that has listed the root to its end.
fn listed() -> World {
    let mut world = World::new();
    let fh = open(&mut world);
    for at in 0..PAGES {
        let offset = if at == 0 { 0 } else { u64::from(at) + 2 };
        let call = world.call(Call::ReadDir {
            fh,
            offset,
            plus: None,
        });
        let asked = world.asked();
        assert_eq!(page(&asked), Some((at, at < WITH_NODES)));
        tell_page(&mut world, &asked);
        assert!(matches!(world.answered(call), Ok(Answer::Listing(_))));
    }
    world
}

#[test]
fn who_waits_for_a_page_that_is_asked_for_already_may_leave() {
    let mut world = World::new();
    let fh = open(&mut world);
    let reads = |offset| Call::ReadDir {
        fh,
        offset,
        plus: None,
    };
    let first = world.call(reads(0));
    world.asked();
    let second = world.call_by(9, reads(0));
    assert!(world.waits(second));
    world.leaves(9);
    assert_eq!(world.refused(second), Refusal::Cancelled);
    assert!(world.waits(first));
}

fn look_up(world: &mut World, at: u8) -> Waiter {
    let parent = NodeId::ROOT;
    world.call(Call::Lookup {
        parent,
        name: name(at),
    })
}

fn finds(world: &mut World, asked: &Asked, at: u8) {
    let (handle, attr) = (handle(at + 1), attr(at + 1, FILE));
    world.grant(
        asked,
        Response::Object(Object { handle, attr }),
        covering(at),
    );
}

/// Looks up the first entry of which only the name has come; the request, and that for what is behind it.
fn walks(world: &mut World) -> (Waiter, Asked, Asked) {
    let call = look_up(world, WITH_NODES);
    let mut asked = world.take_asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    let pages = asked.iter().position(|asked| page(asked).is_some());
    let ahead = asked.remove(pages.expect("a page is asked for"));
    assert_eq!(page(&ahead), Some((WITH_NODES + 1, true)));
    (call, asked.remove(0), ahead)
}

#[test]
fn what_the_next_entries_of_a_walk_denote_is_not_asked_for_one_by_one() {
    let mut world = listed();
    let (first, asked, mut ahead) = walks(&mut world);
    finds(&mut world, &asked, WITH_NODES);
    assert!(world.answered(first).is_ok());
    let mut told = 0;
    loop {
        tell_page(&mut world, &ahead);
        told += 1;
        match world.is_asked() {
            true => ahead = world.asked(),
            false => break,
        }
    }
    assert!(told > 1, "one page at a time");
    for at in WITH_NODES + 1..=WITH_NODES + told {
        let call = look_up(&mut world, at);
        assert!(matches!(world.answered(call), Ok(Answer::Found(Some(_)))));
    }
    assert!(!world.is_asked());
    // And on from there.
    look_up(&mut world, WITH_NODES + told + 1);
    assert_eq!(world.take_asked().len(), 2);
}

/// Its page may have to wait for what others write.
#[test]
fn a_lookup_does_not_wait_for_its_walk() {
    let mut world = listed();
    let (call, asked, _) = walks(&mut world);
    finds(&mut world, &asked, WITH_NODES);
    assert!(world.answered(call).is_ok());
    let next = look_up(&mut world, WITH_NODES + 1);
    let asked = world.asked();
    assert!(page(&asked).is_none() && !world.is_asked());
    finds(&mut world, &asked, WITH_NODES + 1);
    assert!(world.answered(next).is_ok());
}

/// Who looks at entries faster than their pages come leaves them behind.
#[test]
fn a_walk_goes_on_where_its_walker_has_come_to_meanwhile() {
    const FAR: u8 = 90;
    let mut world = listed();
    let (_, asked, mut ahead) = walks(&mut world);
    finds(&mut world, &asked, WITH_NODES);
    for at in WITH_NODES + 1..FAR {
        look_up(&mut world, at);
        let asked = world.asked();
        assert!(page(&asked).is_none() && !world.is_asked());
        finds(&mut world, &asked, at);
    }
    loop {
        tell_page(&mut world, &ahead);
        match world.is_asked() {
            true => ahead = world.asked(),
            false => break,
        }
    }
    look_up(&mut world, FAR);
    let asked = world.take_asked();
    let pages: Vec<_> = asked.iter().filter_map(page).collect();
    assert_eq!(pages, [(FAR + 1, true)]);
}

#[test]
fn who_looks_at_an_entry_far_ahead_is_on_no_walk() {
    let mut world = listed();
    look_up(&mut world, PAGES - 1);
    assert_eq!(world.take_asked().len(), 1);
}

#[test]
fn a_walk_ends_with_the_lease_on_its_listing() {
    let mut world = listed();
    world.recall(crate::said::recall(1, 0, Parts::LISTING, &[]));
    look_up(&mut world, WITH_NODES);
    let asked = world.take_asked();
    assert!(asked.iter().all(|asked| page(asked).is_none()), "{asked:?}");
}

/// Entries of a page of a directory that is longer than what is asked for ahead.
const FULL: u64 = 64;
/// What the entries of the first pages denote is known.
const KNOWN: u64 = WITH_NODES as u64 * FULL;
/// The entries of which that is known when more is asked for.
const NEAR: u64 = 512;

fn long_name(at: u64) -> Box<[u8]> {
    format!("{at:05}").into_bytes().into()
}

/// Its entries are names of a few files.
fn tell_long_page(world: &mut World, asked: &Asked, end: u64) -> (u64, bool) {
    let Request::Query(Query::ReadDir(query::ReadDir { cookie, nodes, .. })) =
        asked.frame.request.clone()
    else {
        panic!("no page: {asked:?}");
    };
    let file = |at: u64| (at % 100) as u8 + 1;
    let entries = (cookie..cookie + FULL).map(|at| DirEntry {
        name: RawName(long_name(at).into()),
        ino: attr(file(at), FILE).ino,
        kind: FILE,
        cookie: at + 1,
        node: nodes.then(|| (handle(file(at)), attr(file(at), FILE))),
    });
    let entries: Vec<DirEntry> = entries.collect();
    let mut grants = vec![grant(0, Parts::NAMES, 2), grant(0, Parts::LISTING, 2)];
    grants.extend((1..=100).map(|file| grant(file, Parts::ATTRS, 2)));
    let end = cookie + FULL >= end;
    world.grant(asked, Response::Entries(Entries { entries, end }), grants);
    (cookie, nodes)
}

#[test]
fn a_walk_asks_for_what_is_ahead_before_it_comes_there() {
    let mut world = World::new();
    let (fh, end) = (open(&mut world), KNOWN + 2 * FULL);
    for at in (0..end).step_by(FULL as usize) {
        let offset = if at == 0 { 0 } else { at + 2 };
        world.call(Call::ReadDir {
            fh,
            offset,
            plus: None,
        });
        let asked = world.asked();
        assert_eq!(tell_long_page(&mut world, &asked, end), (at, at < KNOWN));
    }
    let look = |world: &mut World, at| {
        let (parent, name) = (NodeId::ROOT, long_name(at));
        let call = world.call(Call::Lookup { parent, name });
        assert!(matches!(world.answered(call), Ok(Answer::Found(Some(_)))));
    };
    for at in 0..KNOWN - NEAR {
        look(&mut world, at);
        assert!(!world.is_asked(), "at {at}");
    }
    look(&mut world, KNOWN - NEAR);
    for page in [KNOWN, KNOWN + FULL] {
        let asked = world.asked();
        assert_eq!(tell_long_page(&mut world, &asked, end), (page, true));
    }
    for at in KNOWN - NEAR + 1..end {
        look(&mut world, at);
    }
    assert!(!world.is_asked());
}
