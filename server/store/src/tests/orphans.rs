//! Open files without a name: kept for a restart, seen by nobody, removed in time.

use super::*;
use crate::OpenFile;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::{Attr, OpenToken, SessionId};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

const RDWR: u32 = libc::O_RDWR as u32;
const SESSION: SessionId = SessionId([5; 16]);
const FOLDER: &str = ".leasefs-orphans";

impl World {
    /// What a restart of the server's process leaves.
    fn restart(self) -> Self {
        let Self { scratch, store } = self;
        drop(store);
        Self {
            store: open_store(&scratch),
            scratch,
        }
    }

    fn orphans(&self) -> usize {
        std::fs::read_dir(self.path(FOLDER)).map_or(0, Iterator::count)
    }

    /// As the server does it: the folder is made first.
    fn unlink(&self, uid: u32, text: &str) -> Result<(), Refusal> {
        let peeked = self.store.peek(&self.root(), &name(text)).expect("peek");
        let known = peeked.map(|(object, _)| object);
        if known.is_some_and(|object| self.store.needs_shelter(&object).is_some()) {
            self.store.make_shelter();
        }
        let (who, root) = (self.who(uid), self.root());
        self.store.unlink(&who, &root, &name(text), known.as_ref())
    }

    /// An open file whose only name is gone again, with the token of its open.
    fn orphan(&self, text: &str) -> (Arc<OpenFile>, Handle, OpenToken) {
        let made = self.create(0, text, 0o600);
        let token = self.store.mint(&made.open, NUMBER, &holder(SESSION));
        self.unlink(0, text).expect("unlink");
        (made.open, made.node.handle, token)
    }
}

#[test]
fn an_open_file_that_was_unlinked_is_reclaimed_after_a_restart() {
    let w = world();
    let (open, handle, token) = w.orphan("f");
    let at = WriteAt::Append;
    w.store.write(&open, &at, b"data", false).expect("write");
    drop(open);
    let w = w.restart();
    let open = w
        .store
        .reopen(&token, NUMBER, &holder(SESSION))
        .expect("reopen");
    w.store.remove_unclaimed();
    assert_eq!(w.store.read(&open, 0, 9), Ok(b"data".to_vec()));
    assert_eq!(w.store.getattr(&handle).expect("attr").nlink, 0);
    open.close();
    assert_eq!(w.orphans(), 0);
    assert_eq!(w.store.getattr(&handle).map(drop), Err(Refusal::Stale));
}

#[test]
fn an_open_file_that_a_rename_replaced_is_reclaimed_too() {
    let w = world();
    // Makes the folder.
    w.orphan("first").0.close();
    let replaced = w.create(0, "old", 0o600);
    let token = w.store.mint(&replaced.open, NUMBER, &holder(SESSION));
    w.create(0, "new", 0o600);
    let (who, root) = (w.who(0), w.root());
    w.store
        .rename(&who, (&root, &name("new")), (&root, &name("old")), 0)
        .expect("rename");
    let attr = w.store.getattr(&replaced.node.handle).expect("attr");
    assert_eq!((attr.nlink, w.orphans()), (0, 1));
    drop(replaced);
    let w = w.restart();
    w.store
        .reopen(&token, NUMBER, &holder(SESSION))
        .expect("reopen")
        .close();
    w.store.remove_unclaimed();
    assert_eq!(w.orphans(), 0);
}

#[test]
fn the_folder_appears_when_it_is_needed_and_no_sooner() {
    let w = world();
    w.create(0, "closed", 0o600).open.close();
    let linked = w.create(0, "linked", 0o600);
    let (who, root) = (w.who(0), w.root());
    let object = &linked.node.handle;
    w.store
        .link(&who, object, &root, &name("other"))
        .expect("link");
    w.unlink(0, "closed").expect("unlink");
    w.unlink(0, "other").expect("unlink");
    assert!(!w.path(FOLDER).exists());
    assert_eq!(w.store.needs_shelter(object), Some(root));
    w.unlink(0, "linked").expect("unlink");
    let folder = std::fs::metadata(w.path(FOLDER)).expect("folder");
    assert_eq!(folder.permissions().mode() & 0o7777, 0o700);
    assert_eq!(w.store.needs_shelter(object), None);
}

#[test]
fn the_last_close_removes_the_orphan_and_earlier_ones_do_not() {
    let w = world();
    let (open, handle, _) = w.orphan("f");
    let (second, attr) = w
        .store
        .open_object(&w.who(0), &handle, RDWR)
        .expect("by handle");
    assert_eq!((attr.nlink, w.orphans()), (0, 1));
    open.close();
    assert_eq!(w.orphans(), 1);
    let in_use = Arc::clone(&second);
    second.close();
    assert_eq!(w.orphans(), 1, "a request still uses it");
    drop(in_use);
    assert_eq!(w.orphans(), 0);
}

#[test]
fn orphans_that_nobody_reclaims_are_removed() {
    let w = world();
    let (kept, lost) = (w.orphan("kept"), w.orphan("lost"));
    let token = kept.2.clone();
    drop((kept, lost));
    let w = w.restart();
    assert_eq!(w.orphans(), 2);
    let open = w
        .store
        .reopen(&token, NUMBER, &holder(SESSION))
        .expect("reopen");
    w.store.remove_unclaimed();
    assert_eq!(w.orphans(), 1);
    drop(open);
}

#[test]
fn an_orphan_that_one_has_reclaimed_and_closed_can_still_be_reclaimed_by_another() {
    const OTHER: SessionId = SessionId([6; 16]);
    let w = world();
    let (open, _, token) = w.orphan("f");
    let others = w.store.mint(&open, NUMBER, &holder(OTHER));
    drop(open);
    let w = w.restart();
    w.store
        .reopen(&token, NUMBER, &holder(SESSION))
        .expect("reopen")
        .close();
    let open = w
        .store
        .reopen(&others, NUMBER, &holder(OTHER))
        .expect("reopen");
    w.store.remove_unclaimed();
    assert_eq!(w.orphans(), 1);
    open.close();
    assert_eq!(w.orphans(), 0);
}

fn stays_until_it_is_closed(w: &World, token: &OpenToken, session: SessionId) {
    let open = w.store.reopen(token, NUMBER, &holder(session));
    let open = open.expect("reopen");
    w.store.remove_unclaimed();
    assert_eq!(w.orphans(), 1);
    open.close();
    assert_eq!(w.orphans(), 0);
}

#[test]
fn an_orphan_made_after_a_restart_can_be_reclaimed_when_another_has_closed_it() {
    const OTHER: SessionId = SessionId([6; 16]);
    let w = world();
    let made = w.create(0, "f", 0o600);
    let token = w.store.mint(&made.open, NUMBER, &holder(SESSION));
    let others = w.store.mint(&made.open, NUMBER, &holder(OTHER));
    drop(made);
    let w = w.restart();
    w.store.expect_claims();
    let open = w.store.reopen(&token, NUMBER, &holder(SESSION));
    let open = open.expect("reopen");
    w.unlink(0, "f").expect("unlink");
    open.close();
    stays_until_it_is_closed(&w, &others, OTHER);
}

#[test]
fn a_file_that_is_removed_before_its_opener_is_back_can_be_reclaimed() {
    let w = world();
    let made = w.create(0, "f", 0o600);
    let token = w.store.mint(&made.open, NUMBER, &holder(SESSION));
    drop(made);
    let w = w.restart();
    w.store.expect_claims();
    w.unlink(0, "f").expect("unlink");
    stays_until_it_is_closed(&w, &token, SESSION);
}

#[test]
fn what_is_kept_for_claims_alone_takes_a_small_part_of_the_room_and_goes_when_nobody_claims_it() {
    let w = world();
    w.orphan("first").0.close();
    w.store.expect_claims();
    let attr = w.create(0, "f", 0o600).node.attr;
    let huge = Attr {
        blocks: w.store.free() / 512,
        ..attr
    };
    let file = w.look("f");
    let kept = |attr: &Attr| w.store.orphans.may_be_open(&file, attr, || w.store.free());
    assert!(kept(&attr) && !kept(&huge));
    w.unlink(0, "f").expect("unlink");
    assert_eq!(w.orphans(), 1);
    w.store.remove_unclaimed();
    assert_eq!(w.orphans(), 0);
    assert_eq!(w.store.take_gone(9).last(), Some(&file));
    assert!(!kept(&attr));
}

#[test]
fn a_link_that_a_crash_left_beside_the_name_goes_at_the_start() {
    let w = world();
    let (open, handle, token) = w.orphan("f");
    drop(open);
    let entry = std::fs::read_dir(w.path(FOLDER)).expect("folder").next();
    let orphan = entry.expect("one").expect("entry").path();
    std::fs::hard_link(&orphan, w.path("f")).expect("link");
    std::fs::write(w.path(FOLDER).join("ff"), b"not ours").expect("write");
    let w = w.restart();
    assert!(!orphan.exists());
    assert_eq!(w.orphans(), 1, "what isn't ours stays");
    assert_eq!(w.look("f"), handle);
    assert_eq!(w.store.getattr(&handle).expect("attr").nlink, 1);
    assert!(w.store.reopen(&token, NUMBER, &holder(SESSION)).is_ok());
}

#[test]
fn a_refused_removal_leaves_the_file_as_it_was() {
    let w = world();
    w.orphan("first").0.close();
    let made = w.create(0, "f", 0o600);
    let before = std::fs::metadata(w.path("f")).expect("metadata");
    assert_eq!(w.unlink(BOB, "f"), Err(errno(libc::EACCES)));
    let sticky = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(w.scratch.export(), sticky).expect("chmod");
    assert_eq!(w.unlink(BOB, "f"), Err(errno(libc::EPERM)));
    let dir = w.mkdir(&w.root(), "d");
    let (who, root) = (w.who(0), w.root());
    let over = w
        .store
        .rename(&who, (&root, &name("d")), (&root, &name("f")), 0);
    assert_eq!(over, Err(errno(libc::ENOTDIR)));
    let after = std::fs::metadata(w.path("f")).expect("metadata");
    let times = |of: &std::fs::Metadata| (of.ctime(), of.ctime_nsec(), of.nlink());
    assert_eq!(times(&after), times(&before));
    assert_eq!(w.orphans(), 0);
    drop((made, dir));
}

#[test]
fn the_folder_is_neither_found_nor_listed_nor_counted_nor_replaced() {
    let w = world();
    let root_links = || w.store.root().expect("root").attr.nlink;
    let before = root_links();
    let _orphan = w.orphan("f");
    let (who, root, hidden) = (w.who(0), w.root(), name(FOLDER));
    assert_eq!(root_links(), before);
    assert_eq!(w.store.lookup(&who, &root, &hidden), Ok(None));
    assert_eq!(w.store.peek(&root, &hidden), Ok(None));
    let (open, _) = w.store.open_object(&who, &root, 0).expect("root");
    assert_eq!(w.store.readdir(&open, 0, true).expect("list").entries, []);
    let made = w.mkdir(&root, "d").handle;
    let file = w.create(0, "g", 0o600).node.handle;
    let reserved = Some(Refusal::NotPermitted);
    let none = Some(errno(libc::ENOENT));
    let mkdir = w
        .store
        .make(&who, &root, &hidden, 0o700, 0, Kind::Directory);
    assert_eq!(mkdir.err(), reserved);
    let created = w.store.create(&who, &root, &hidden, 0o600, 0, RDWR);
    assert_eq!(created.err(), reserved);
    assert_eq!(w.store.link(&who, &file, &root, &hidden).err(), reserved);
    let rename = |from: &str, to: &str| {
        let (from, to) = (name(from), name(to));
        w.store.rename(&who, (&root, &from), (&root, &to), 0).err()
    };
    assert_eq!(rename("g", FOLDER), reserved);
    assert_eq!(rename(FOLDER, "x"), none);
    assert_eq!(w.store.rmdir(&who, &root, &hidden).err(), none);
    assert_eq!(w.store.unlink(&who, &root, &hidden, None).err(), none);
    let elsewhere = w
        .store
        .make(&who, &made, &hidden, 0o700, 0, Kind::Directory);
    assert!(elsewhere.is_ok(), "only in the root is the name reserved");
}

#[test]
fn an_orphan_gets_no_further_name() {
    let w = world();
    let (_open, handle, _) = w.orphan("f");
    let linked = w.store.link(&w.who(0), &handle, &w.root(), &name("g"));
    assert_eq!(linked.err(), Some(errno(libc::ENOENT)));
}

#[test]
fn files_opened_while_their_name_goes_are_kept_or_not_found() {
    let w = world();
    w.orphan("first").0.close();
    for round in 0..200 {
        let text = format!("f{round}");
        let file = w.create(0, &text, 0o600);
        let handle = file.node.handle;
        file.open.close();
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| w.store.open_object(&w.who(0), &handle, RDWR));
            w.unlink(0, &text).expect("unlink");
            match opener.join().expect("the opener") {
                Ok((open, _)) => {
                    assert_eq!(w.orphans(), 1, "round {round}");
                    open.close();
                }
                Err(refusal) => assert_eq!(refusal, Refusal::Stale),
            }
        });
        assert_eq!(w.orphans(), 0, "round {round}");
    }
}

#[test]
fn a_folder_of_that_name_that_is_not_the_servers_own_is_refused_at_the_start() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.export().join(FOLDER)).expect("mkdir");
    let open = || {
        Store::open(
            &scratch.export(),
            &MacKey::new([7; 32]),
            ExportId([1; 8]),
            Options::default(),
        )
    };
    let error = open().expect_err("everybody may look into it").to_string();
    assert!(
        error.contains(FOLDER) && error.contains("rename"),
        "{error}"
    );
}
