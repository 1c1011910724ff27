use super::*;
use leasefs_protocol::SetAttr;
use leasefs_protocol::control::IdentityPolicy::{RootSquash, Squash, Trust};

const READ: u32 = libc::O_RDONLY as u32;

#[test]
fn a_private_file_of_another_user_is_refused_under_every_policy() {
    let w = world();
    w.open_to_all();
    let alices = w.create(ALICE, "private", 0o600).node.handle;
    let roots = w.create(0, "roots", 0o600).node.handle;
    let opens = |policy, uid, object| {
        let who = w.store.identity(policy, &caller(uid)).expect("identity");
        w.store.open_object(&who, object, READ).map(drop)
    };
    let denied = Err(errno(libc::EACCES));
    for policy in [Squash, RootSquash, Trust] {
        assert_eq!(opens(policy, BOB, &alices), denied, "{policy:?}");
        assert_eq!(opens(policy, BOB, &roots), denied, "{policy:?}");
    }
    assert_eq!(opens(RootSquash, 0, &alices), denied);
    assert_eq!(opens(Squash, 0, &roots), denied);
    assert_eq!(opens(Squash, ALICE, &alices), denied);
    assert_eq!(opens(RootSquash, ALICE, &alices), Ok(()));
    assert_eq!(opens(Trust, 0, &alices), Ok(()));
}

#[test]
fn squash_maps_to_the_owner_of_the_exported_directory() {
    let scratch = Scratch::new();
    std::os::unix::fs::chown(scratch.export(), Some(ALICE), Some(BOB)).expect("chown");
    let store = open_store(&scratch);
    let who = store.identity(Squash, &caller(0)).expect("identity");
    assert_eq!((who.uid(), who.gid()), (ALICE, BOB));
}

#[test]
fn supplementary_groups_count_and_are_gone_afterwards() {
    let w = world();
    let file = w.create(0, "g", 0o040).node.handle;
    std::os::unix::fs::chown(w.path("g"), Some(0), Some(500)).expect("chown");
    let member = Caller {
        groups: vec![499, 500],
        ..caller(BOB)
    };
    let member = w.store.identity(Trust, &member).expect("identity");
    assert!(w.store.open_object(&member, &file, READ).is_ok());
    let denied = w.store.open_object(&w.who(BOB), &file, READ).map(drop);
    assert_eq!(denied, Err(errno(libc::EACCES)));
}

#[test]
fn the_thread_has_its_own_rights_again_also_after_a_panic() {
    let w = world();
    let before = rights_of_thread();
    let refused = w.store.access(&w.who(BOB), &w.root(), 2);
    assert_eq!(refused, Err(errno(libc::EACCES)));
    assert_eq!(rights_of_thread(), before);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _assumed = w.store.assume(&w.who(BOB)).expect("assume");
        assert_ne!(rights_of_thread(), before);
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!(rights_of_thread(), before);
}

/// The ids and the file system capabilities, as the kernel tells them.
fn rights_of_thread() -> String {
    const OF_THE_FILE_SYSTEM: u64 = 0x1_0800_021f;
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
    let mut rights = String::new();
    for line in status.lines() {
        if line.starts_with("Uid:") || line.starts_with("Gid:") {
            rights.push_str(line);
        } else if let Some(effective) = line.strip_prefix("CapEff:\t") {
            let bits = u64::from_str_radix(effective, 16).expect("hex");
            rights.push_str(&format!("{:x}", bits & OF_THE_FILE_SYSTEM));
        }
    }
    rights
}

#[test]
fn callers_do_not_get_the_servers_capabilities() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "f", 0o644).node.handle;
    let alice = w.who(ALICE);
    let set = |text: &[u8], value: &[u8]| w.store.setxattr(&alice, &file, text, value, 0);
    // VFS_CAP_REVISION_2 with CAP_SETUID permitted and effective.
    let mut capability = 0x0200_0001u32.to_le_bytes().to_vec();
    capability.extend_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let denied = Err(errno(libc::EPERM));
    assert_eq!(set(b"security.capability", &capability), denied);
    assert_eq!(set(b"security.other", b"x"), denied);
    assert_eq!(set(b"user.mine", b"x"), Ok(()));
    let device = w.store.make(
        &alice,
        &w.root(),
        &name("dev"),
        libc::S_IFCHR | 0o666,
        0,
        Kind::Node { rdev: (1, 3) },
    );
    assert_eq!(device.map(drop), denied);
}

#[test]
fn root_has_its_capabilities_in_the_thread_that_served_another_before() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "f", 0o644).node.handle;
    let set = w
        .store
        .setxattr(&w.who(0), &file, b"security.other", b"x", 0);
    assert_eq!(set, Ok(()));
}

#[test]
fn trusted_xattrs_are_roots_alone() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "f", 0o644).node.handle;
    let set = |uid| w.store.setxattr(&w.who(uid), &file, b"trusted.x", b"1", 0);
    let get = |uid| w.store.getxattr(&w.who(uid), &file, b"trusted.x");
    let list = |uid| w.store.listxattr(&w.who(uid), &file);
    let may = |uid| w.store.may_set_xattr(&w.who(uid), &file, b"trusted.x");
    assert_eq!(set(ALICE), Err(Refusal::NotPermitted));
    assert_eq!(may(ALICE), Err(Refusal::NotPermitted));
    assert_eq!((may(0), set(0)), (Ok(()), Ok(())));
    assert_eq!(get(ALICE), Err(errno(libc::ENODATA)));
    assert_eq!(w.store.has_xattr(&file, b"trusted.x"), Ok(true));
    assert_eq!(get(0), Ok(b"1".to_vec()));
    assert_eq!(list(ALICE), Ok(Vec::new()));
    assert_eq!(list(0), Ok(b"trusted.x\0".to_vec()));
    let remove = |uid| w.store.removexattr(&w.who(uid), &file, b"trusted.x");
    assert_eq!(remove(ALICE), Err(Refusal::NotPermitted));
    assert_eq!(remove(0), Ok(()));
}

#[test]
fn sticky_directories_and_ownership_are_the_kernels_rules() {
    let w = world();
    let dir = w.mkdir(&w.root(), "tmp");
    let mode = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    let root = w.who(0);
    w.store
        .setattr(&root, &dir.handle, None, &mode)
        .expect("chmod");
    let flags = (libc::O_RDWR | libc::O_EXCL) as u32;
    let (alice, bob) = (w.who(ALICE), w.who(BOB));
    let file = w
        .store
        .create(&alice, &dir.handle, &name("f"), 0o666, 0, flags)
        .expect("create");
    let denied = Err(errno(libc::EPERM));
    let unlinked = w.store.unlink(&bob, &dir.handle, &name("f"), None);
    assert_eq!(unlinked, denied);
    let chmod = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    let set = w.store.setattr(&bob, &file.node.handle, None, &chmod);
    assert_eq!(set.map(drop), denied);
    let chown = SetAttr {
        uid: Some(BOB),
        ..SetAttr::default()
    };
    let set = w.store.setattr(&alice, &file.node.handle, None, &chown);
    assert_eq!(set.map(drop), denied);
    assert_eq!(
        w.store.unlink(&alice, &dir.handle, &name("f"), None),
        Ok(())
    );
}

#[test]
fn an_id_the_kernel_does_not_take_is_refused_and_nothing_is_left_of_it() {
    let w = world();
    let before = rights_of_thread();
    let nobody_at_all = w.who(u32::MAX);
    let refused = w.store.access(&nobody_at_all, &w.root(), 4);
    assert_eq!(refused, Err(Refusal::Invalid));
    assert_eq!(rights_of_thread(), before);
}

/// What the host does, which must be what the verdict says as far as rights go.
fn agree<T>(
    what: &str,
    verdict: Result<T, Refusal>,
    done: impl FnOnce() -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let (verdict, done) = (verdict.map(drop), done());
    let denied = [libc::EACCES, libc::EPERM].map(|no| Err(errno(no)));
    match verdict {
        Err(_) => assert_eq!(verdict, done, "{what}"),
        Ok(()) => assert!(!denied.contains(&done), "{what}: {done:?}"),
    }
    done
}

/// Directories and files of all the modes that matter, with their owners.
fn modes(w: &World) -> Vec<(String, Handle)> {
    let mut dirs = Vec::new();
    let modes = [
        0o700, 0o711, 0o755, 0o733, 0o777, 0o1777, 0o1770, 0o070, 0o007,
    ];
    for mode in modes {
        for (uid, gid) in [(0, 0), (ALICE, 0), (0, BOB), (ALICE, BOB), (BOB, BOB)] {
            let text = format!("d{mode:o}-{uid}-{gid}");
            let dir = w.mkdir(&w.root(), &text).handle;
            for (name, owner) in [("roots", 0), ("bobs", BOB), ("removed", BOB), ("spare", 0)] {
                let path = w.path(&text).join(name);
                std::fs::write(&path, b"x").expect("write");
                std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("chown");
            }
            std::fs::create_dir(w.path(&text).join("dir")).expect("mkdir");
            std::os::unix::fs::chown(w.path(&text), Some(uid), Some(gid)).expect("chown");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(w.path(&text), mode).expect("chmod");
            dirs.push((text, dir));
        }
    }
    dirs
}

#[test]
fn verdicts_about_names_are_those_of_the_hosts_kernel() {
    let w = world();
    let (s, bob) = (&w.store, &w.who(BOB));
    let free = name("free");
    let file = Kind::Node { rdev: (0, 0) };
    let mut allowed = 0;
    for (text, dir) in &modes(&w) {
        let make = || s.make(bob, dir, &free, libc::S_IFREG | 0o644, 0, file);
        let made = agree(text, s.may_make(bob, dir, &free), || make().map(drop));
        allowed += u32::from(made.is_ok());
        for victim in ["roots", "bobs", "free", "none"].map(name) {
            let verdict = s.may_unlink(bob, dir, &victim);
            let gone = agree(text, verdict, || s.unlink(bob, dir, &victim, None));
            allowed += u32::from(gone.is_ok());
        }
        for (old, new, flags) in [
            ("removed", "new", 0),
            ("new", "spare", 0),
            ("none", "spare", 0),
            ("dir", "dir2", 0),
            ("spare", "dir", libc::RENAME_EXCHANGE),
            ("spare", "dir", libc::RENAME_NOREPLACE),
            ("spare", "none", libc::RENAME_EXCHANGE),
            ("dir2", "aside", libc::RENAME_WHITEOUT),
        ] {
            let (from, to) = ((dir, &name(old)), (dir, &name(new)));
            let verdict = s.may_rename(bob, from, to, flags);
            let renamed = agree(&format!("{text} {old} {new}"), verdict, || {
                s.rename(bob, from, to, flags)
            });
            allowed += u32::from(renamed.is_ok());
        }
    }
    assert!(allowed > 50, "{allowed} of them are allowed");
}

#[test]
fn verdicts_about_moves_and_links_between_directories_are_those_of_the_hosts_kernel() {
    let w = world();
    let (s, bob) = (&w.store, &w.who(BOB));
    let dirs = modes(&w);
    let mut allowed = 0;
    for (from_text, from) in dirs.iter().step_by(3) {
        for (to_text, to) in &dirs {
            let what = format!("{from_text} {to_text}");
            for (old, new, flags) in [
                ("bobs", "moved", 0),
                ("dir", "roots", 0),
                ("dir", "moved dir", 0),
                ("dir", "dir", libc::RENAME_EXCHANGE),
            ] {
                if from == to {
                    continue;
                }
                let (a, b) = ((from, &name(old)), (to, &name(new)));
                let verdict = s.may_rename(bob, a, b, flags);
                let moved = agree(&format!("{what} {old} {new}"), verdict, || {
                    s.rename(bob, a, b, flags)
                });
                allowed += u32::from(moved.is_ok());
            }
        }
        for source in ["roots", "bobs", "dir"] {
            let root = w.who(0);
            let Ok(Some(object)) = s.lookup(&root, from, &name(source)) else {
                continue;
            };
            let link = name(&format!("link of {source}"));
            for (to_text, to) in &dirs {
                let verdict = s.may_link(bob, &object.handle, to, &link);
                let what = format!("{from_text} {source} {to_text}");
                let linked = agree(&what, verdict, || {
                    s.link(bob, &object.handle, to, &link).map(drop)
                });
                allowed += u32::from(linked.is_ok());
            }
        }
    }
    assert!(allowed > 30, "{allowed} of them are allowed");
}

#[test]
fn verdicts_about_attributes_are_those_of_the_hosts_kernel() {
    let w = world();
    let (s, bob) = (&w.store, &w.who(BOB));
    let set = |change: fn(&mut SetAttr)| {
        let mut set = SetAttr::default();
        change(&mut set);
        set
    };
    let now = Some(leasefs_protocol::SetTime::Now);
    let then = |set: &mut SetAttr| set.mtime = Some(long_ago());
    let sets = [
        set(|s| s.mode = Some(0o644)),
        set(|s| s.uid = Some(BOB)),
        set(|s| s.uid = Some(ALICE)),
        set(|s| s.gid = Some(BOB)),
        set(|s| s.size = Some(1)),
        set(then),
        SetAttr {
            atime: now,
            mtime: now,
            ..SetAttr::default()
        },
        SetAttr {
            atime: now,
            ..SetAttr::default()
        },
    ];
    for mode in [0o600, 0o644, 0o622, 0o200, 0o000] {
        for owner in [0, ALICE, BOB] {
            for kind in ["f", "d"] {
                let text = format!("{kind}{mode:o}-{owner}");
                let path = w.path(&text);
                match kind {
                    "f" => std::fs::write(&path, b"data").expect("write"),
                    _ => std::fs::create_dir(&path).expect("mkdir"),
                }
                for set in &sets {
                    std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("chown");
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                    std::fs::set_permissions(&path, mode).expect("chmod");
                    let object = w.look(&text);
                    // What an owner may set beyond its rights the kernel says when it is done.
                    if owner == BOB && (set.uid, set.gid) != (None, None) {
                        continue;
                    }
                    if kind == "d" && set.size.is_some() {
                        continue;
                    }
                    let verdict = s.may_set(bob, &object, None, set);
                    let _ = agree(&format!("{text} {set:?}"), verdict, || {
                        s.setattr(bob, &object, None, set).map(drop)
                    });
                }
                let object = w.look(&text);
                for xattr in [&b"user.x"[..], b"security.capability"] {
                    if owner == BOB && xattr != b"user.x" {
                        continue;
                    }
                    let verdict = s.may_set_xattr(bob, &object, xattr);
                    let value = [1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                    let _ = agree(&format!("{text} {xattr:?}"), verdict, || {
                        s.setxattr(bob, &object, xattr, &value, 0)
                    });
                }
                if kind == "f" {
                    for access in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
                        let flags = (access | libc::O_TRUNC) as u32;
                        let verdict = s.may_truncate(bob, &object, flags);
                        let _ = agree(&format!("{text} {flags:o}"), verdict, || {
                            s.open_object(bob, &object, flags).map(drop)
                        });
                    }
                }
            }
        }
    }
}

fn long_ago() -> leasefs_protocol::SetTime {
    leasefs_protocol::SetTime::At(leasefs_protocol::Timestamp {
        seconds: 1,
        nanos: 0,
    })
}
