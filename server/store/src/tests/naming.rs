use super::*;
use leasefs_protocol::FileKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

#[test]
fn a_name_is_found_with_the_same_handle_by_lookup_peek_make_and_listing() {
    let w = world();
    let made = w.mkdir(&w.root(), "d");
    let (root, d) = (w.root(), name("d"));
    let found = w.store.lookup(&w.who(0), &root, &d).expect("lookup");
    assert_eq!(found.expect("exists").handle, made.handle);
    let peeked = w.store.peek(&root, &d).expect("peek");
    assert_eq!(peeked, Some((made.handle, FileKind::Directory)));
    let (open, _) = w.store.open_object(&w.who(0), &root, 0).expect("open");
    let listing = w.store.readdir(&open, 0, true).expect("readdir");
    assert!(listing.end);
    assert_eq!(listing.entries[0].node.expect("node").0, made.handle);
}

#[test]
fn a_name_that_does_not_exist_is_no_refusal() {
    let w = world();
    let (root, none) = (w.root(), name("none"));
    assert_eq!(w.store.lookup(&w.who(0), &root, &none), Ok(None));
    assert_eq!(w.store.peek(&root, &none), Ok(None));
    let refused = w.store.unlink(&w.who(0), &root, &none, None);
    assert_eq!(refused, Err(errno(libc::ENOENT)));
}

#[test]
fn all_types_can_be_made_and_umask_and_setgid_act_as_on_the_host() {
    let w = world();
    let root = w.root();
    let who = w.who(0);
    let make = |text: &str, mode, kind| {
        w.store
            .make(&who, &root, &name(text), mode, 0o027, kind)
            .expect("make")
            .attr
    };
    let dir = make("d", 0o2777, Kind::Directory);
    assert_eq!((dir.kind, dir.mode & 0o777), (FileKind::Directory, 0o750));
    for (text, kind, expected) in [
        ("file", libc::S_IFREG, FileKind::File),
        ("fifo", libc::S_IFIFO, FileKind::Fifo),
        ("sock", libc::S_IFSOCK, FileKind::Socket),
        ("char", libc::S_IFCHR, FileKind::CharDevice),
        ("block", libc::S_IFBLK, FileKind::BlockDevice),
    ] {
        let attr = make(text, kind | 0o666, Kind::Node { rdev: (1, 7) });
        assert_eq!((attr.kind, attr.mode), (expected, 0o640), "{text}");
    }
    assert_eq!(w.store.getattr(&w.look("char")).expect("attr").rdev, (1, 7));
    let link = make("link", 0o777, Kind::Symlink { target: b"../x" });
    assert_eq!((link.kind, link.size), (FileKind::Symlink, 4));
    let target = w.store.readlink(&w.look("link"));
    assert_eq!(target, Ok(b"../x".to_vec()));
    let file = w.store.readlink(&w.look("file"));
    assert_eq!(file, Err(Refusal::Invalid));
}

#[test]
fn a_default_acl_takes_the_place_of_the_umask() {
    let w = world();
    let root = w.root();
    // user::rwx group::rwx mask::rwx other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, rights) in [(1u16, 7u16), (4, 7), (0x10, 7), (0x20, 0)] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&rights.to_le_bytes());
        acl.extend_from_slice(&u32::MAX.to_le_bytes());
    }
    w.store
        .setxattr(&w.who(0), &root, b"system.posix_acl_default", &acl, 0)
        .expect("default ACL");
    let made = w
        .store
        .make(&w.who(0), &root, &name("d"), 0o777, 0o077, Kind::Directory)
        .expect("mkdir");
    assert_eq!(made.attr.mode & 0o777, 0o770);
}

#[test]
fn renames_keep_the_handle_and_obey_their_flags() {
    let w = world();
    let root = w.root();
    let (a, b) = (w.mkdir(&root, "a").handle, w.mkdir(&root, "b").handle);
    let (na, nb) = (name("a"), name("b"));
    let who = w.who(0);
    let refused = w.store.rename(&who, (&root, &na), (&root, &nb), 1);
    assert_eq!(refused, Err(errno(libc::EEXIST)));
    let exchanged = w.store.rename(&who, (&root, &na), (&root, &nb), 2);
    assert_eq!(exchanged, Ok(()));
    assert_eq!((w.look("a"), w.look("b")), (b, a));
    for contradiction in [1 | 2, 2 | 4, 8] {
        let refused = w
            .store
            .rename(&who, (&root, &na), (&root, &nb), contradiction);
        assert_eq!(refused, Err(Refusal::Invalid));
    }
    let into = w.store.rename(&who, (&root, &na), (&a, &na), 0);
    assert_eq!(into, Ok(()));
    assert_eq!(w.look("b/a"), b);
    let left = w.store.rename(&who, (&root, &nb), (&root, &na), 4);
    assert_eq!(left, Ok(()));
    assert_eq!(w.look("a/a"), b);
    let whiteout = std::fs::symlink_metadata(w.path("b")).expect("a whiteout");
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
}

#[test]
fn a_further_name_leads_to_the_same_object_also_of_a_symlink() {
    let w = world();
    let root = w.root();
    w.create(0, "f", 0o600);
    std::os::unix::fs::symlink("f", w.path("s")).expect("symlink");
    for (from, to) in [("f", "f2"), ("s", "s2")] {
        let object = w.look(from);
        let node = w
            .store
            .link(&w.who(0), &object, &root, &name(to))
            .expect("link");
        assert_eq!((node.handle, node.attr.nlink), (object, 2), "{from}");
    }
}

#[test]
fn long_names_and_long_targets_are_refused_as_by_the_host() {
    let w = world();
    assert_eq!(Name::new(&[b'x'; 256]), Err(Refusal::NameTooLong));
    assert!(w.mkdir(&w.root(), &"x".repeat(255)).attr.ino > 0);
    let target = &[b'x'; 4096][..];
    let kind = Kind::Symlink { target };
    let refused = w
        .store
        .make(&w.who(0), &w.root(), &name("l"), 0o777, 0, kind);
    assert_eq!(refused, Err(errno(libc::ENAMETOOLONG)));
}

#[test]
fn a_long_listing_comes_in_bounded_pages_without_gap_or_repetition() {
    let w = world();
    for i in 0..3000 {
        std::fs::write(w.path(&format!("file-{i:05}")), b"").expect("write");
    }
    let (open, _) = w
        .store
        .open_object(&w.who(0), &w.root(), libc::O_DIRECTORY as u32)
        .expect("open");
    for nodes in [false, true] {
        let (mut cookie, mut names, mut pages) = (0, Vec::new(), 0);
        loop {
            let page = w.store.readdir(&open, cookie, nodes).expect("page");
            assert!(page.entries.len() <= leasefs_protocol::limits::MAX_LISTING_ENTRIES);
            pages += 1;
            for entry in page.entries {
                assert_eq!(entry.node.is_some(), nodes);
                cookie = entry.cookie;
                names.push(entry.name.0);
            }
            if page.end {
                break;
            }
        }
        assert!(pages > 2);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3000);
    }
}

#[test]
fn once_the_export_is_removed_everything_is_stale() {
    let w = world();
    let root = w.root();
    let dir = w.mkdir(&root, "d").handle;
    std::fs::remove_dir_all(w.scratch.export()).expect("remove");
    let stale = Err(Refusal::Stale);
    assert_eq!(w.store.getattr(&root).map(drop), stale);
    assert_eq!(w.store.getattr(&dir).map(drop), stale);
    let looked_up = w.store.lookup(&w.who(0), &root, &name("d"));
    assert_eq!(looked_up.map(drop), stale);
    std::fs::create_dir(w.scratch.export()).expect("for the clean-up");
}

#[test]
fn a_listing_shows_what_was_there_at_one_moment() {
    let w = world();
    let (open, _) = w.store.open_object(&w.who(0), &w.root(), 0).expect("open");
    let (old, new) = (w.path("old"), w.path("new"));
    std::fs::write(&new, b"").expect("write");
    let rename = || {
        for _ in 0..60_000 {
            std::fs::write(&old, b"").expect("write");
            std::fs::rename(&old, &new).expect("rename");
        }
    };
    std::thread::scope(|threads| {
        let renaming = threads.spawn(rename);
        while !renaming.is_finished() {
            let listing = w.store.readdir(&open, 0, true).expect("readdir");
            let mut inodes: Vec<u64> = listing.entries.iter().map(|entry| entry.ino).collect();
            inodes.dedup();
            assert_eq!(
                inodes.len(),
                listing.entries.len(),
                "one file at both names"
            );
        }
    });
}

#[test]
fn a_handle_whose_inode_number_is_being_given_away_is_stale() {
    let w = world();
    let make_and_remove = || {
        let made = w.create(0, "f", 0o600);
        made.open.close();
        let removed = w.store.unlink(&w.who(0), &w.root(), &name("f"), None);
        removed.expect("unlink");
        made.node.handle
    };
    let gone = make_and_remove();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                make_and_remove();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            assert_eq!(w.store.getattr(&gone).map(drop), Err(Refusal::Stale));
        }
    });
}

#[test]
fn a_directory_is_empty_until_something_is_made_in_it() {
    let w = world();
    let dir = w.mkdir(&w.root(), "d").handle;
    assert!(w.store.is_empty(&dir));
    w.mkdir(&dir, "inner");
    assert!(!w.store.is_empty(&dir));
}

#[test]
fn a_directory_that_was_used_and_is_removed_is_stale_and_one_that_moves_is_not() {
    let w = world();
    let (root, who, n) = (w.root(), w.who(0), name("n"));
    let [gone, moves] = ["gone", "moves"].map(|dir| w.mkdir(&root, dir).handle);
    for dir in [&gone, &moves] {
        assert_eq!(w.store.lookup(&who, dir, &n), Ok(None));
    }
    w.store.rmdir(&who, &root, &name("gone")).expect("rmdir");
    std::fs::rename(w.path("moves"), w.path("moved")).expect("rename");
    std::fs::write(w.path("moved/n"), b"").expect("write");
    for _ in 0..2 {
        assert_eq!(w.store.lookup(&who, &gone, &n), Err(Refusal::Stale));
        assert_eq!(w.store.getattr(&gone).map(drop), Err(Refusal::Stale));
        let made = w.store.make(&who, &gone, &n, 0o700, 0, Kind::Directory);
        assert_eq!(made.map(drop), Err(Refusal::Stale));
        let found = w.store.lookup(&who, &moves, &n).expect("lookup");
        assert!(found.is_some());
    }
}

#[test]
fn a_directory_that_is_moved_away_while_it_is_looked_up_is_found_or_not() {
    let scratch = Scratch::new();
    let places = ["a", "b"].map(|dir| scratch.path().join(dir));
    for place in &places {
        std::fs::create_dir(place).expect("a directory");
    }
    let [here, there] = places.each_ref().map(|place| place.join("d"));
    std::fs::create_dir(&here).expect("a directory");
    let dir = std::fs::File::open(&places[0]).expect("a directory");
    let name = Name::new(b"d").expect("a name");
    let looks = || {
        for _ in 0..100_000 {
            if let Err(error) = crate::resolve::open_entry(dir.as_fd(), &name) {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            }
        }
    };
    std::thread::scope(|scope| {
        let looking = scope.spawn(looks);
        while !looking.is_finished() {
            std::fs::rename(&here, &there).expect("a rename");
            std::fs::rename(&there, &here).expect("a rename back");
        }
    });
}
