use super::*;
use leasefs_protocol::{SetAttr, SetTime, Timestamp};

fn set_as(w: &World, uid: u32, object: &Handle, set: SetAttr) -> Result<(), Refusal> {
    w.store.setattr(&w.who(uid), object, None, &set).map(drop)
}

fn at(seconds: i64, nanos: u32) -> Option<SetTime> {
    Some(SetTime::At(Timestamp { seconds, nanos }))
}

#[test]
fn attributes_are_set_and_told_as_they_are() {
    let w = world();
    let file = w.create(0, "f", 0o600).node.handle;
    let set = SetAttr {
        mode: Some(0o4711),
        uid: Some(ALICE),
        gid: Some(BOB),
        size: Some(1234),
        atime: at(-5, 7),
        mtime: at(1 << 33, 999_999_999),
        kill_priv: false,
    };
    let attr = w
        .store
        .setattr(&w.who(0), &file, None, &set)
        .expect("setattr");
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o4711, ALICE, BOB));
    assert_eq!(attr.size, 1234);
    assert_eq!((attr.atime.seconds, attr.atime.nanos), (-5, 7));
    assert_eq!(attr.mtime.seconds, 1 << 33);
    assert_eq!(attr.mtime.nanos, 999_999_999);
    assert_eq!(w.store.getattr(&file), Ok(attr));
}

#[test]
fn attributes_tell_whether_there_may_be_xattrs() {
    let w = world();
    let file = w.create(0, "f", 0o600).node;
    let may = |w: &World| {
        let (root, _) = w.store.open_object(&w.who(0), &w.root(), 0).expect("open");
        let listing = w.store.readdir(&root, 0, true).expect("readdir");
        let listed = listing.entries[0].node.expect("the file").1.xattrs;
        let may = w.store.getattr(&file.handle).expect("getattr").xattrs;
        assert_eq!(listed, may);
        may
    };
    assert!(!file.attr.xattrs && !may(&w));
    let who = w.who(0);
    for name in [b"user.t".as_slice(), b"security.t"] {
        let set = w.store.setxattr(&who, &file.handle, name, b"x", 0);
        assert_eq!((set, may(&w)), (Ok(()), true));
        let removed = w.store.removexattr(&who, &file.handle, name);
        assert_eq!((removed, may(&w)), (Ok(()), false));
    }
}

#[test]
fn times_that_mean_something_else_to_the_kernel_are_invalid() {
    let w = world();
    for nanos in [1_000_000_000, 0x3fff_ffff, 0x3fff_fffe] {
        let set = SetAttr {
            mtime: at(0, nanos),
            ..SetAttr::default()
        };
        assert_eq!(set_as(&w, 0, &w.root(), set), Err(Refusal::Invalid));
    }
}

#[test]
fn a_writer_may_set_both_times_to_now_and_only_the_owner_to_others() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "f", 0o666).node.handle;
    let now = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    assert_eq!(set_as(&w, BOB, &file, now), Ok(()));
    let one = SetAttr { atime: None, ..now };
    assert_eq!(set_as(&w, BOB, &file, one), Err(errno(libc::EPERM)));
    let other = SetAttr {
        mtime: at(1, 0),
        ..now
    };
    assert_eq!(set_as(&w, BOB, &file, other), Err(errno(libc::EPERM)));
    assert_eq!(set_as(&w, ALICE, &file, other), Ok(()));
}

#[test]
fn the_size_needs_the_right_to_write_or_an_open_that_has_it() {
    let w = world();
    w.open_to_all();
    let made = w.create(ALICE, "f", 0o000);
    let file = made.node.handle;
    let set = SetAttr {
        size: Some(5),
        ..SetAttr::default()
    };
    assert_eq!(set_as(&w, ALICE, &file, set), Err(errno(libc::EACCES)));
    let by_open = w
        .store
        .setattr(&w.who(ALICE), &file, Some(&made.open), &set);
    assert_eq!(by_open.map(|attr| attr.size), Ok(5));
    let other = w.create(0, "g", 0o600);
    let wrong = w.store.setattr(&w.who(0), &file, Some(&other.open), &set);
    assert_eq!(wrong.map(drop), Err(Refusal::BadOpen));
    let huge = SetAttr {
        size: Some(u64::MAX),
        ..SetAttr::default()
    };
    assert_eq!(set_as(&w, 0, &file, huge), Err(Refusal::TooBig));
}

#[test]
fn access_is_answered_for_the_caller() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "f", 0o640).node.handle;
    let access = |uid, mask| w.store.access(&w.who(uid), &file, mask);
    let denied = Err(errno(libc::EACCES));
    assert_eq!(access(ALICE, 6), Ok(()));
    assert_eq!(access(ALICE, 1), denied);
    assert_eq!(access(BOB, 4), denied);
    assert_eq!(access(BOB, 0), Ok(()));
    assert_eq!(access(0, 6), Ok(()));
    assert_eq!(access(0, 8), Err(Refusal::Invalid));
}

#[test]
fn xattrs_of_all_kinds_of_objects_are_set_listed_and_removed() {
    let w = world();
    std::os::unix::fs::symlink("nowhere", w.path("link")).expect("symlink");
    let who = w.who(0);
    let root = w.root();
    assert_eq!(w.store.setxattr(&who, &root, b"user.a", b"1", 0), Ok(()));
    let again = w.store.setxattr(&who, &root, b"user.a", b"2", 1);
    assert_eq!(again, Err(errno(libc::EEXIST)));
    assert_eq!(w.store.getxattr(&who, &root, b"user.a"), Ok(b"1".to_vec()));
    let listed = w.store.listxattr(&who, &root);
    assert_eq!(listed, Ok(b"user.a\0".to_vec()));
    assert_eq!(w.store.removexattr(&who, &root, b"user.a"), Ok(()));
    let gone = w.store.getxattr(&who, &root, b"user.a");
    assert_eq!(gone, Err(errno(libc::ENODATA)));
    let link = w.look("link");
    let refused = w.store.setxattr(&who, &link, b"user.a", b"1", 0);
    assert_eq!(refused, Err(errno(libc::EPERM)));
    let unknown = w.store.setxattr(&who, &root, b"other.a", b"1", 0);
    assert_eq!(unknown, Err(Refusal::Unsupported));
}

#[test]
fn the_file_systems_state_is_told() {
    let w = world();
    let stat = w.store.statfs(&w.root()).expect("statfs");
    assert!(stat.blocks >= stat.bfree && stat.bfree >= stat.bavail);
    assert_eq!(stat.namelen, 255);
}

#[test]
fn capabilities_are_taken_from_a_program_by_who_may_write_to_it() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "f", 0o755).node.handle;
    let name = b"security.capability";
    let mut capability = 0x0200_0001u32.to_le_bytes().to_vec();
    capability.extend_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let root = w.who(0);
    assert_eq!(w.store.setxattr(&root, &file, name, &capability, 0), Ok(()));
    let removal = |uid| {
        let who = w.who(uid);
        let verdict = w.store.may_remove_xattr(&who, &file, name);
        let removed = w.store.removexattr(&who, &file, name);
        assert_eq!(verdict, removed);
        removed
    };
    assert_eq!(removal(BOB), Err(errno(libc::EPERM)));
    let mode = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    assert_eq!(set_as(&w, ALICE, &file, mode), Ok(()));
    assert_eq!(removal(BOB), Ok(()));
    let gone = w.store.getxattr(&root, &file, name);
    assert_eq!(gone, Err(errno(libc::ENODATA)));
}

#[test]
fn an_object_is_told_by_its_path_as_long_as_it_has_one() {
    let w = world();
    let dir = w.mkdir(&w.root(), "d").handle;
    let file = w.create(0, "f", 0o600).node.handle;
    assert_eq!(w.store.path(&w.root()).as_deref(), Some("/"));
    assert_eq!(w.store.path(&dir).as_deref(), Some("/d"));
    assert_eq!(w.store.path(&file).as_deref(), Some("/f"));
    std::fs::rename(w.path("f"), w.path("d/g")).expect("a rename");
    assert_eq!(w.store.path(&file).as_deref(), Some("/d/g"));
    std::fs::remove_file(w.path("d/g")).expect("it is there");
    assert_eq!(w.store.path(&file), None);
}
