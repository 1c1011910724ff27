//! A server that isn't root: played by a thread that has given up all rights of its own.

use super::*;
use leasefs_protocol::change::WriteAt;
use rustix::process::{Gid, Uid};

fn as_nobody(test: impl FnOnce(&World) + Send) {
    let scratch = Scratch::new();
    std::os::unix::fs::chown(scratch.export(), Some(ALICE), Some(ALICE)).expect("chown");
    // The scratch folder is removed by a thread that may.
    std::thread::scope(|scope| {
        let tested = scope.spawn(move || {
            let (uid, gid) = (Uid::from_raw(ALICE), Gid::from_raw(ALICE));
            rustix::thread::set_thread_groups(&[]).expect("setgroups");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid");
            let store = open_store(&scratch);
            let world = World { scratch, store };
            test(&world);
            world
        });
        drop(tested.join().expect("the test in the thread"));
    });
}

#[test]
fn it_says_what_it_can_not_do() {
    as_nobody(|w| {
        let note = w.store.limits_note().expect("note");
        assert!(
            note.contains("ESTALE") && note.contains("isn't root"),
            "{note}"
        );
    });
    assert_eq!(world().store.limits_note(), None);
}

#[test]
fn everybody_is_its_own_user() {
    as_nobody(|w| {
        let made = w.create(0, "f", 0o600);
        assert_eq!(made.node.attr.uid, ALICE);
        assert_eq!(w.who(0).uid(), ALICE);
    });
}

#[test]
fn objects_are_found_where_they_were_met_also_after_renames() {
    as_nobody(|w| {
        let who = w.who(0);
        let dir = w.mkdir(&w.root(), "d").handle;
        let file = w.create(0, "f", 0o600).node.handle;
        let (root, f) = (w.root(), name("f"));
        w.store
            .rename(&who, (&root, &f), (&dir, &f), 0)
            .expect("rename");
        w.store
            .rename(&who, (&root, &name("d")), (&root, &name("e")), 0)
            .expect("rename");
        assert!(w.store.getattr(&file).is_ok());
        w.store
            .link(&who, &file, &root, &name("g"))
            .expect("second name");
        w.store.unlink(&who, &dir, &f, None).expect("unlink");
        assert!(w.store.getattr(&file).is_ok());
        w.store
            .unlink(&who, &root, &name("g"), None)
            .expect("unlink");
        assert_eq!(w.store.getattr(&file).map(drop), Err(Refusal::Stale));
    });
}

#[test]
fn a_name_taken_by_another_object_does_not_lead_to_it_by_the_old_handle() {
    as_nobody(|w| {
        let file = w.create(0, "f", 0o600).node.handle;
        std::fs::rename(w.path("f"), w.path("hidden")).expect("rename");
        std::fs::write(w.path("f"), b"other").expect("write");
        assert_eq!(w.store.getattr(&file).map(drop), Err(Refusal::Stale));
    });
}

#[test]
fn an_unlinked_open_file_stays_usable_and_reads_and_writes_work() {
    as_nobody(|w| {
        let made = w.create(0, "f", 0o600);
        w.store
            .unlink(&w.who(0), &w.root(), &name("f"), None)
            .expect("unlink");
        let at = WriteAt::Append;
        let written = w.store.write(&made.open, &at, b"x", true);
        assert_eq!(written.expect("write").len, 1);
        let attr = w.store.getattr(&made.node.handle).expect("attr");
        assert_eq!((attr.size, attr.nlink), (1, 0));
    });
}

#[test]
fn tokens_reopen_what_it_can_still_reach() {
    as_nobody(|w| {
        let made = w.create(0, "f", 0o600);
        let session = SessionId([1; 16]);
        let token = w.store.mint(&made.open, NUMBER, &holder(session));
        drop(made);
        assert!(w.store.reopen(&token, NUMBER, &holder(session)).is_ok());
    });
}
