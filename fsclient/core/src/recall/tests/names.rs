//! Names of directories, in the daemon and in the kernel.

use super::approve;
use super::world::{Told, World, grant, handle};
use crate::call::Listing;
use crate::inode::Dentry;
use crate::listing::Names;
use crate::recall::ChangeScope;
use leasefs_protocol::{DirEntry, FileKind, Parts, RawName};
use std::time::Duration;

#[test]
fn only_names_the_kernel_knows_make_it_look_names_up_again() {
    let world = World::new();
    assert!(!world.lookup(1, b"a", 2, 3).is_zero());
    world.recall(1, 5, 1, Parts::NONE, &["b"]);
    assert_eq!(world.told(), vec![approve(1)]);
    world.recall(2, 6, 1, Parts::NONE, &["a"]);
    let expected = vec![approve(1), Told::ForgetNames, approve(2)];
    assert_eq!(world.told(), expected);
}

#[test]
fn after_the_kernel_has_forgotten_all_names_none_is_known() {
    let world = World::new();
    world.lookup(1, b"a", 2, 3);
    world.lookup(1, b"b", 2, 4);
    world.recall(1, 5, 1, Parts::NONE, &["a"]);
    world.recall(2, 6, 1, Parts::NONE, &["b"]);
    let forgotten = world
        .told()
        .iter()
        .filter(|t| **t == Told::ForgetNames)
        .count();
    assert_eq!(forgotten, 1);
}

/// A name is changed here.
fn changes(world: &World, name: &[u8]) {
    let scope = ChangeScope::default().name(handle(1), RawName(name.to_vec()));
    let own = world.run(world.engine.own_change(scope)).expect("dropped");
    own.never_sent();
}

/// A name that the kernel knows is changed here.
fn changes_known(world: &World, name: &[u8], stamp: u64) {
    assert!(!world.lookup(1, name, 2, stamp).is_zero());
    changes(world, name);
}

#[test]
fn only_a_second_own_change_within_a_second_keeps_names_from_the_kernel_for_one() {
    let world = World::new();
    changes_known(&world, b"a", 3);
    assert!(world.engine.is_calm());
    world.advance(Duration::from_millis(900));
    changes_known(&world, b"b", 4);
    assert!(!world.engine.is_calm() && world.engine.is_steady());
    world.advance(Duration::from_millis(1001));
    assert!(world.engine.is_calm());
}

#[test]
fn a_known_name_that_another_mount_changes_keeps_names_from_the_kernel_at_once() {
    let world = World::new();
    world.lookup(1, b"a", 2, 3);
    world.recall(1, 5, 1, Parts::NONE, &["b"]);
    assert!(world.engine.is_calm() && world.engine.is_steady());
    world.recall(2, 6, 1, Parts::NONE, &["a"]);
    assert!(!world.engine.is_calm());
    world.advance(Duration::from_millis(1001));
    assert!(world.engine.is_calm() && !world.engine.is_steady());
}

#[test]
fn an_own_change_of_a_known_name_keeps_those_of_directories_from_the_kernel_only_if_it_is_one() {
    let world = World::new();
    changes_known(&world, b"a", 3);
    assert!(world.engine.is_steady());
    world.advance(Duration::from_millis(1001));
    world.directory(61);
    assert!(!world.lookup(1, b"d", 61, 4).is_zero());
    changes(&world, b"d");
    assert!(world.engine.is_calm() && !world.engine.is_steady());
    world.advance(Duration::from_millis(10_001));
    assert!(world.engine.is_steady());
    changes(&world, b"d");
    assert!(world.engine.is_steady(), "the kernel didn't know it");
}

#[test]
fn absent_names_are_never_given_to_the_kernel() {
    let world = World::new();
    let grants = [grant(1, Parts::NAMES, 3)];
    let asked = world.cache.ask();
    let mut learned = world.cache.learn(asked, &grants);
    let timeout = learned.name_for_kernel(&handle(1), b"a", Dentry::Absent);
    assert!(timeout.is_zero());
    drop(learned);
    let known = world
        .cache
        .live()
        .and_then(|mut t| t.name(&handle(1), b"a"));
    assert_eq!(known, Some(Dentry::Absent));
}

#[test]
fn with_something_mounted_inside_names_are_dropped_singly() {
    let world = World::new();
    world.lookup(1, b"a", 2, 3);
    world.mount_inside();
    world.recall(1, 5, 1, Parts::NONE, &["a"]);
    world.wait_for(&approve(1));
    let expected = vec![Told::DropName(handle(1), b"a".to_vec()), approve(1)];
    assert_eq!(world.told(), expected);
}

/// What is known of a name of directory 1.
fn known(world: &World, name: &[u8]) -> Option<Dentry> {
    let mut tier = world.cache.live().expect("live");
    tier.name(&handle(1), name)
}

/// Directory 1 has been made here.
fn made(world: &World, stamp: u64) {
    let grants = [grant(1, Parts::NAMES, stamp)];
    let asked = world.cache.ask();
    let mut learned = world.cache.learn(asked, &grants);
    learned.empty_directory(&handle(1));
}

#[test]
fn in_a_directory_made_here_every_name_is_absent_until_it_changes_elsewhere() {
    let world = World::new();
    assert_eq!(known(&world, b"a"), None);
    made(&world, 3);
    assert_eq!(known(&world, b"a"), Some(Dentry::Absent));
    world.recall(1, 5, 1, Parts::NONE, &["a"]);
    assert_eq!(known(&world, b"a"), None);
    assert_eq!(known(&world, b"b"), Some(Dentry::Absent));
    world.lookup(1, b"a", 2, 6);
    assert_eq!(known(&world, b"a"), Some(Dentry::Object(handle(2))));
    world.recall(2, 7, 1, Parts::NONE, &["a"]);
    assert_eq!(known(&world, b"a"), None, "it may be there still");
    world.recall(3, 8, 1, Parts::NAMES, &[]);
    assert_eq!(known(&world, b"b"), None);
}

#[test]
fn a_name_made_elsewhere_before_the_answer_to_mkdir_has_come_is_asked_for() {
    let world = World::new();
    world.recall(1, 5, 1, Parts::NONE, &["a"]);
    made(&world, 3);
    assert_eq!(known(&world, b"a"), None);
    assert_eq!(known(&world, b"b"), Some(Dentry::Absent));
    world.recall(2, 6, 1, Parts::NAMES, &[]);
    made(&world, 4);
    assert_eq!(known(&world, b"b"), None, "the lease was recalled");
}

#[test]
fn a_whole_listing_tells_which_names_are_absent_if_the_names_are_leased_too() {
    let entry = DirEntry {
        name: RawName(b"a".to_vec()),
        ino: 2,
        kind: FileKind::File,
        cookie: 1,
        node: None,
    };
    let mut names = Names::default();
    names.push(&entry);
    let listing = Listing::new(names);
    let keep = |world: &World, parts, stamp| {
        let grants = [grant(1, parts, stamp)];
        let asked = world.cache.ask();
        let lease = world.cache.learn(asked, &grants).listing(&handle(1));
        let lease = lease.expect("a lease");
        world.cache.keep_listing(lease, Listing::clone(&listing));
    };
    let world = World::new();
    keep(&world, Parts::LISTING, 3);
    assert_eq!(known(&world, b"b"), None);
    keep(&world, Parts::LISTING | Parts::NAMES, 4);
    assert_eq!(known(&world, b"b"), Some(Dentry::Absent));
    assert_eq!(known(&world, b"a"), None, "there, but not what it denotes");
}

#[test]
fn a_name_that_is_being_changed_here_is_asked_for_until_it_is_known_again() {
    let world = World::new();
    made(&world, 3);
    let name = RawName(b"a".to_vec());
    let scope = ChangeScope::default().name(handle(1), name);
    let own = world.run(world.engine.own_change(scope)).expect("dropped");
    assert_eq!(known(&world, b"a"), None);
    assert_eq!(known(&world, b"b"), Some(Dentry::Absent));
    own.never_sent();
    assert_eq!(known(&world, b"a"), None);
    world.lookup(1, b"a", 2, 4);
    assert_eq!(known(&world, b"a"), Some(Dentry::Object(handle(2))));
}

#[test]
fn names_of_a_large_directory_are_given_up_and_cost_nothing_any_more() {
    let world = World::new();
    made(&world, 3);
    let empty = world.cache.status().memory;
    for number in 0..20_000_u64 {
        let name = format!("name{number}");
        known(&world, b"b");
        world.recall(number + 1, number + 5, 1, Parts::NONE, &[&name]);
    }
    assert_eq!(known(&world, b"b"), None);
    assert_eq!(world.cache.status().memory, empty);
}

#[test]
fn the_names_of_a_directory_in_which_only_others_work_are_given_back() {
    let world = World::new();
    made(&world, 3);
    for number in 0..100_u64 {
        let name = format!("name{number}");
        world.recall(number + 1, number + 5, 1, Parts::NONE, &[&name]);
    }
    assert_eq!(known(&world, b"b"), None);
    world.wait_for(&Told::Release(handle(1), Parts::NAMES));
}
