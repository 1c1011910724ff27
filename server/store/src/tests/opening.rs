use super::*;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::{OpenToken, SessionId};

const RDWR: u32 = libc::O_RDWR as u32;
const SESSION: SessionId = SessionId([5; 16]);

#[test]
fn an_unlinked_file_stays_usable_by_handle_until_its_last_open_goes() {
    let w = world();
    let made = w.create(0, "f", 0o600);
    let handle = made.node.handle;
    w.store
        .unlink(&w.who(0), &w.root(), &name("f"), None)
        .expect("unlink");
    assert_eq!(w.store.getattr(&handle).expect("attr").nlink, 0);
    let at = WriteAt::Offset(0);
    let written = w.store.write(&made.open, &at, b"data", false);
    assert_eq!(written.expect("write").len, 4);
    let (again, attr) = w
        .store
        .open_object(&w.who(0), &handle, RDWR)
        .expect("by handle");
    assert_eq!((attr.size, attr.nlink), (4, 0));
    drop(made);
    assert_eq!(w.store.read(&again, 0, 10), Ok(b"data".to_vec()));
    let set = w.store.setxattr(&w.who(0), &handle, b"user.x", b"1", 0);
    assert_eq!(set, Ok(()));
    drop(again);
    assert_eq!(w.store.getattr(&handle).map(drop), Err(Refusal::Stale));
}

#[test]
fn opening_a_fifo_socket_or_device_neither_blocks_nor_succeeds() {
    let w = world();
    for (text, kind) in [
        ("fifo", libc::S_IFIFO),
        ("sock", libc::S_IFSOCK),
        ("null", libc::S_IFCHR),
    ] {
        let node = w
            .store
            .make(
                &w.who(0),
                &w.root(),
                &name(text),
                kind | 0o666,
                0,
                Kind::Node { rdev: (1, 3) },
            )
            .expect("mknod");
        let refused = Err(errno(libc::ENXIO));
        let opened = w.store.open_object(&w.who(0), &node.handle, 0);
        assert_eq!(opened.map(drop), refused, "{text}");
        let created = w
            .store
            .create(&w.who(0), &w.root(), &name(text), 0o600, 0, RDWR);
        assert_eq!(created.map(drop), refused, "{text}");
    }
}

#[test]
fn create_opens_what_is_there_unless_it_must_be_new() {
    let w = world();
    let first = w.create(0, "f", 0o640);
    assert!(first.created);
    assert_eq!(first.node.attr.mode, 0o640);
    let (who, root, f) = (w.who(0), w.root(), name("f"));
    let second = w
        .store
        .create(&who, &root, &f, 0o600, 0, RDWR)
        .expect("open");
    assert!(!second.created);
    assert_eq!(second.node.handle, first.node.handle);
    assert_eq!(second.node.attr.mode, 0o640);
    let flags = RDWR | libc::O_EXCL as u32;
    let refused = w.store.create(&who, &root, &f, 0o600, 0, flags);
    assert_eq!(refused.map(drop), Err(errno(libc::EEXIST)));
}

#[test]
fn a_file_created_without_rights_is_open_as_asked() {
    let w = world();
    w.open_to_all();
    let made = w.create(ALICE, "f", 0o000);
    assert!(made.open.reads() && made.open.writes());
    let again = w.store.open_object(&w.who(ALICE), &made.node.handle, RDWR);
    assert_eq!(again.map(drop), Err(errno(libc::EACCES)));
}

#[test]
fn truncation_at_open_needs_the_right_to_write() {
    let w = world();
    std::fs::write(w.path("f"), b"data").expect("write");
    let file = w.look("f");
    let flags = libc::O_TRUNC as u32;
    let bobs = w.store.open_object(&w.who(BOB), &file, flags);
    assert_eq!(bobs.map(drop), Err(errno(libc::EACCES)));
    let (_, attr) = w
        .store
        .open_object(&w.who(0), &file, flags | RDWR)
        .expect("open");
    assert_eq!(attr.size, 0);
}

#[test]
fn a_program_may_be_opened_for_execution_by_those_who_may_only_execute_it() {
    let w = world();
    w.open_to_all();
    let file = w.create(ALICE, "program", 0o711).node.handle;
    let open = |flags| w.store.open_object(&w.who(BOB), &file, flags).map(drop);
    assert_eq!(open(0), Err(errno(libc::EACCES)));
    assert_eq!(open(0x20), Ok(()));
    assert_eq!(open(0x20 | RDWR), Err(errno(libc::EACCES)));
}

#[test]
fn a_token_reopens_after_a_restart_without_a_new_verdict() {
    let w = world();
    w.open_to_all();
    let made = w.create(ALICE, "f", 0o000);
    let token = w.store.mint(&made.open, NUMBER, &holder(SESSION));
    drop(made);
    let restarted = World {
        store: open_store(&w.scratch),
        scratch: w.scratch,
    };
    let open = restarted
        .store
        .reopen(&token, NUMBER, &holder(SESSION))
        .expect("reopen");
    assert!(open.writes());
    assert_eq!(open.identity().uid(), ALICE);
    let elsewhere = restarted
        .store
        .reopen(&token, NUMBER, &holder(SessionId([6; 16])));
    assert_eq!(elsewhere.map(drop), Err(Refusal::BadOpen));
    let mut forged = token.0.clone();
    forged[40] ^= 1;
    let forged = restarted
        .store
        .reopen(&OpenToken(forged), NUMBER, &holder(SESSION));
    assert_eq!(forged.map(drop), Err(Refusal::BadOpen));
    drop(open);
    std::fs::remove_file(restarted.path("f")).expect("remove");
    let gone = restarted.store.reopen(&token, NUMBER, &holder(SESSION));
    assert_eq!(gone.map(drop), Err(Refusal::Stale));
}
