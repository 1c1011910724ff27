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
fn trusted_xattrs_are_out_of_reach_even_for_root() {
    let w = world();
    let file = w.create(0, "f", 0o644).node.handle;
    let root = w.who(0);
    let set = w.store.setxattr(&root, &file, b"trusted.x", b"1", 0);
    assert_eq!(set, Err(Refusal::NotPermitted));
    let path = w.path("f");
    rustix::fs::setxattr(&path, "trusted.x", b"1", rustix::fs::XattrFlags::empty()).expect("set");
    let got = w.store.getxattr(&root, &file, b"trusted.x");
    assert_eq!(got, Err(errno(libc::ENODATA)));
    assert_eq!(w.store.listxattr(&root, &file), Ok(Vec::new()));
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
    let unlinked = w.store.unlink(&bob, &dir.handle, &name("f"));
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
    assert_eq!(w.store.unlink(&alice, &dir.handle, &name("f")), Ok(()));
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
