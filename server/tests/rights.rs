//! What a request may learn or change is decided under the identity of its caller or an open, before
//! anything is done or leased. These run as root: the server takes on its callers' ids.

mod support;

use leasefs_protocol::change::{WriteAt, WriteKind};
use leasefs_protocol::control::{IdentityPolicy, Reclaim, ReclaimLease, ToClient, ToServer};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Caller, Change, Handle, Mode, OpenId, Parts, Query, RawName, Recall, Refusal, Scope, SetAttr,
    SetTime, Timestamp, Version, change, query,
};
use leasefs_protocol::{Durability, O_TRUNC};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use support::client::{Ask, Client, Who, mkdir, raw, write};
use support::{House, Running};
use tokio::time::timeout;

const BOB: u32 = 41002;
/// `__FMODE_EXEC`
const FOR_EXEC: u32 = 0x20;
/// Far less than the term, which a request that waits for a lease would take.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Long enough for a recall that has been sent to come.
const A_MOMENT: Duration = Duration::from_millis(300);

fn errno(errno: i32) -> Refusal {
    Refusal::Host(u16::try_from(errno).expect("an errno"))
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

async fn bob(house: &House, server: &Running) -> Client {
    let mut bob = Who::enrolled(house, 2).connect(server).await;
    bob.caller = Caller {
        uid: BOB,
        gid: BOB,
        groups: Vec::new(),
    };
    bob
}

fn create(dir: Handle, name: &str, flags: i32) -> Ask {
    Ask::Change(Change::Create(change::Create {
        dir,
        name: raw(name),
        mode: 0o100_644,
        umask: 0,
        flags: (libc::O_CREAT | flags) as u32,
        keep: false,
    }))
}

fn lookup(dir: Handle, name: &str) -> Ask {
    let name = raw(name);
    Ask::Query(Query::Lookup(query::Lookup { dir, name }))
}

async fn look(client: &mut Client, dir: Handle, name: &str) -> Handle {
    client.lookup(dir, name).await.expect("it is there").0
}

async fn no_recall(client: &mut Client) {
    let recalled = timeout(A_MOMENT, client.recall()).await;
    assert!(recalled.is_err(), "recalled: {recalled:?}");
}

/// A directory of root's with a file of this mode in it; who reads the file may not search there.
fn private_directory(house: &House) {
    std::fs::create_dir(house.path("private")).expect("a directory");
    std::fs::write(house.path("private/f"), b"secret").expect("a file");
    chmod(&house.path("private/f"), 0o644);
    chmod(&house.path("private"), 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_tells_and_opens_nothing_where_its_caller_may_not_search() {
    let house = House::new();
    private_directory(&house);
    let server = house.serve().await;
    let mut bob = bob(&house, &server).await;
    let root = bob.root();
    let dir = look(&mut bob, root, "private").await;
    for flags in [libc::O_RDONLY, libc::O_RDWR | libc::O_TRUNC, libc::O_EXCL] {
        for name in ["f", "missing"] {
            let refusal = bob.refusal(create(dir, name, flags)).await;
            assert_eq!(refusal, errno(libc::EACCES), "{name} {flags:o}");
        }
    }
    let names = house.path("private").read_dir().expect("a directory");
    assert_eq!(names.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn existence_is_told_by_no_change_where_its_caller_may_not_search() {
    let house = House::new();
    private_directory(&house);
    let server = house.serve().await;
    let mut bob = bob(&house, &server).await;
    let root = bob.root();
    let dir = look(&mut bob, root, "private").await;
    for name in ["f", "missing"] {
        let denied = errno(libc::EACCES);
        let name = || raw(name);
        let unlink = Ask::Change(Change::Unlink(change::Unlink { dir, name: name() }));
        let rmdir = Ask::Change(Change::Rmdir(change::Rmdir { dir, name: name() }));
        let rename = Ask::Change(Change::Rename(change::Rename {
            dir,
            name: name(),
            new_dir: dir,
            new_name: raw("g"),
            flags: 0,
        }));
        let into = Ask::Change(Change::Rename(change::Rename {
            dir: root,
            name: raw("none"),
            new_dir: dir,
            new_name: name(),
            flags: 0,
        }));
        let link = Ask::Change(Change::Link(change::Link {
            object: root,
            dir,
            name: name(),
        }));
        let lookup = Ask::Query(Query::Lookup(query::Lookup { dir, name: name() }));
        for request in [
            unlink,
            rmdir,
            rename,
            into,
            link,
            mkdir(dir, name()).into(),
            lookup,
        ] {
            let refusal = bob.refusal(request.clone()).await;
            assert_eq!(refusal, denied, "{request:?}");
        }
    }
}

fn rename(dir: Handle, name: &str, new_dir: Handle, new_name: &str) -> Ask {
    Ask::Change(Change::Rename(change::Rename {
        dir,
        name: raw(name),
        new_dir,
        new_name: raw(new_name),
        flags: 0,
    }))
}

fn set(object: Handle, set: SetAttr) -> Ask {
    let open = None;
    Ask::Change(Change::SetAttr(change::SetAttr { object, open, set }))
}

/// The objects of the export that the attacks below aim at.
#[derive(Clone, Copy)]
struct Aims {
    root: Handle,
    /// A directory of root's, mode 0755, in which `f` is.
    dir: Handle,
    /// A file of root's, mode 0644.
    file: Handle,
    /// A directory like /tmp, with a file `f` of root's in it.
    tmp: Handle,
    /// An open of `file` for reading.
    open: OpenId,
}

type Attack = (&'static str, fn(Aims) -> Ask, i32);

/// What `BOB` may not do, and what a local file system would say.
fn attacks() -> Vec<Attack> {
    const CREAT_TRUNC: i32 = libc::O_WRONLY | libc::O_TRUNC;
    let setting = std::fs::read("/proc/sys/fs/protected_hardlinks");
    let protects = setting.is_ok_and(|value| value.starts_with(b"1"));
    let mut attacks: Vec<Attack> = vec![
        ("make", |a| mkdir(a.dir, raw("new")).into(), libc::EACCES),
        (
            "make what is there",
            |a| mkdir(a.dir, raw("f")).into(),
            libc::EEXIST,
        ),
        (
            "create",
            |a| create(a.dir, "new", libc::O_RDWR),
            libc::EACCES,
        ),
        (
            "create over",
            |a| create(a.dir, "f", CREAT_TRUNC),
            libc::EACCES,
        ),
        (
            "truncating open",
            |a| open(a.file, O_TRUNC | 1),
            libc::EACCES,
        ),
        (
            "truncating open to read",
            |a| open(a.file, O_TRUNC),
            libc::EACCES,
        ),
        (
            "open to execute",
            |a| open(a.file, O_TRUNC | FOR_EXEC),
            libc::EACCES,
        ),
        ("unlink", |a| unlink(a.dir, "f"), libc::EACCES),
        ("unlink nothing", |a| unlink(a.dir, "none"), libc::ENOENT),
        ("unlink in /tmp", |a| unlink(a.tmp, "f"), libc::EPERM),
        ("rmdir", |a| rmdir(a.root, "dir"), libc::EACCES),
        (
            "rename out",
            |a| rename(a.dir, "f", a.tmp, "g"),
            libc::EACCES,
        ),
        (
            "rename into",
            |a| rename(a.tmp, "bobs", a.dir, "g"),
            libc::EACCES,
        ),
        (
            "replace",
            |a| rename(a.tmp, "bobs", a.tmp, "f"),
            libc::EPERM,
        ),
        (
            "rename in /tmp",
            |a| rename(a.tmp, "f", a.tmp, "g"),
            libc::EPERM,
        ),
        (
            "move a directory",
            |a| rename(a.tmp, "bobs", a.dir, "f"),
            libc::EACCES,
        ),
        (
            "link into",
            |a| link(a.file, a.dir, "g"),
            if protects { libc::EPERM } else { libc::EACCES },
        ),
        (
            "chmod",
            |a| set(a.file, with(|s| s.mode = Some(0o777))),
            libc::EPERM,
        ),
        (
            "chown",
            |a| set(a.file, with(|s| s.uid = Some(BOB))),
            libc::EPERM,
        ),
        (
            "chgrp",
            |a| set(a.file, with(|s| s.gid = Some(BOB))),
            libc::EPERM,
        ),
        (
            "truncate",
            |a| set(a.file, with(|s| s.size = Some(0))),
            libc::EACCES,
        ),
        ("touch", |a| set(a.file, with(touch)), libc::EACCES),
        (
            "utimes",
            |a| set(a.file, with(|s| s.mtime = Some(long_ago()))),
            libc::EPERM,
        ),
        ("setxattr", |a| setxattr(a.file, b"user.x"), libc::EACCES),
        (
            "setxattr on tmp",
            |a| setxattr(a.tmp, b"user.x"),
            libc::EPERM,
        ),
        (
            "capability",
            |a| setxattr(a.file, b"security.capability"),
            libc::EPERM,
        ),
        (
            "acl",
            |a| removexattr(a.file, b"system.posix_acl_access"),
            libc::EPERM,
        ),
        (
            "removexattr",
            |a| removexattr(a.file, b"user.x"),
            libc::EACCES,
        ),
        ("write", |a| write(a.open, 0).into(), libc::EBADF),
        ("allocate", |a| allocate(a.open), libc::EBADF),
        ("truncate by open", |a| cut(a.file, a.open), libc::EBADF),
        ("copy", |a| copy(a.open, a.open), libc::EBADF),
    ];
    if protects {
        attacks.push(("link", |a| link(a.file, a.tmp, "g"), libc::EPERM));
    }
    attacks
}

fn with(change: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut set = SetAttr::default();
    change(&mut set);
    set
}

fn touch(set: &mut SetAttr) {
    set.atime = Some(SetTime::Now);
    set.mtime = Some(SetTime::Now);
}

fn long_ago() -> SetTime {
    SetTime::At(Timestamp {
        seconds: 1,
        nanos: 0,
    })
}

fn open(object: Handle, flags: u32) -> Ask {
    let (truncates, flags) = (flags & O_TRUNC != 0, flags.into());
    match truncates {
        true => Ask::Change(change::OpenTruncated { object, flags }.into()),
        false => Ask::Query(
            query::Open {
                object,
                flags,
                with_data: false,
            }
            .into(),
        ),
    }
}

fn unlink(dir: Handle, name: &str) -> Ask {
    let name = raw(name);
    Ask::Change(Change::Unlink(change::Unlink { dir, name }))
}

fn rmdir(dir: Handle, name: &str) -> Ask {
    let name = raw(name);
    Ask::Change(Change::Rmdir(change::Rmdir { dir, name }))
}

fn link(object: Handle, dir: Handle, name: &str) -> Ask {
    let name = raw(name);
    Ask::Change(Change::Link(change::Link { object, dir, name }))
}

fn setxattr(object: Handle, name: &[u8]) -> Ask {
    Ask::Change(Change::SetXattr(change::SetXattr {
        object,
        name: RawName(name.to_vec()),
        flags: 0,
    }))
}

fn removexattr(object: Handle, name: &[u8]) -> Ask {
    let name = RawName(name.to_vec());
    Ask::Change(Change::RemoveXattr(change::RemoveXattr { object, name }))
}

fn allocate(open: OpenId) -> Ask {
    Ask::Change(Change::Fallocate(change::Fallocate {
        open,
        mode: 0,
        offset: 0,
        len: 4096,
    }))
}

fn cut(object: Handle, open: OpenId) -> Ask {
    Ask::Change(Change::SetAttr(change::SetAttr {
        object,
        open: Some(open),
        set: with(|set| set.size = Some(0)),
    }))
}

fn copy(from: OpenId, to: OpenId) -> Ask {
    Ask::Change(Change::CopyRange(change::CopyRange {
        from,
        from_offset: 0,
        to,
        to_offset: 0,
        len: 1,
    }))
}

/// Another mount that has everything cached and doesn't answer recalls.
async fn holder(client: &mut Client, aims: &Aims) {
    for dir in [aims.root, aims.dir, aims.tmp] {
        let open = client.open(dir, libc::O_RDONLY | libc::O_DIRECTORY).await;
        let listing = Ask::Query(Query::ReadDir(query::ReadDir {
            open,
            cookie: 0,
            nodes: true,
        }));
        assert!(!client.ask(listing).await.grants.is_empty());
    }
    let open = client.open(aims.file, libc::O_RDONLY).await;
    assert!(!client.read(open, 0, 4096).await.0.grants.is_empty());
}

fn stage(house: &House) {
    for dir in ["dir", "tmp"] {
        std::fs::create_dir(house.path(dir)).expect("a directory");
        std::fs::write(house.path(dir).join("f"), b"data").expect("a file");
        chmod(&house.path(dir).join("f"), 0o644);
    }
    std::fs::create_dir(house.path("tmp/bobs")).expect("a directory");
    std::os::unix::fs::chown(house.path("tmp/bobs"), Some(BOB), Some(BOB)).expect("chown");
    chmod(&house.path("dir"), 0o755);
    chmod(&house.path("tmp"), 0o1777);
}

async fn attacked(
    server: &Running,
    house: &House,
    attack: fn(Aims) -> Ask,
) -> Result<Refusal, String> {
    let mut bob = bob(house, server).await;
    let root = bob.root();
    let (dir, tmp) = (
        look(&mut bob, root, "dir").await,
        look(&mut bob, root, "tmp").await,
    );
    let file = look(&mut bob, dir, "f").await;
    let open = bob.open(file, libc::O_RDONLY).await;
    let aims = Aims {
        root,
        dir,
        file,
        tmp,
        open,
    };
    let mut a = Who::enrolled(house, 1).connect(server).await;
    holder(&mut a, &aims).await;
    let request = attack(aims);
    let takes_data = matches!(
        request,
        Ask::Change(Change::Write(_)) | Ask::Change(Change::SetXattr(_))
    );
    let data: &[u8] = if takes_data { b"x" } else { b"" };
    let Ok((reply, _)) = timeout(AT_ONCE, bob.ask_with(request, data)).await else {
        return Err("it waits for another mount's lease".to_owned());
    };
    if let Ok(recall) = timeout(A_MOMENT, a.recall()).await {
        return Err(format!("it recalls {recall:?}"));
    }
    reply
        .result
        .map_or_else(Ok, |done| Err(format!("it is done: {done:?}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_do_it_recalls_nobodys_lease_and_is_told_what_a_local_file_system_says() {
    let mut found = Vec::new();
    for (what, attack, expected) in attacks() {
        let house = House::new();
        stage(&house);
        let server = house.serve().await;
        match attacked(&server, &house, attack).await {
            Ok(refusal) if refusal.errno() == expected => (),
            Ok(refusal) => found.push(format!("{what}: {refusal:?}")),
            Err(failure) => found.push(format!("{what}: {failure}")),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_that_does_nothing_recalls_nobodys_lease() {
    let house = House::new();
    stage(&house);
    std::fs::hard_link(house.path("dir/f"), house.path("dir/g")).expect("a link");
    let server = house.serve().await;
    let renamed = attacked(&server, &house, |a| rename(a.dir, "f", a.dir, "g")).await;
    assert_eq!(
        renamed,
        Err("it is done: Done".to_owned()),
        "as on the host"
    );
    assert!(house.path("dir/f").exists() && house.path("dir/g").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_for_execution_never_lists_a_directory_nor_truncates_a_program() {
    let house = House::new();
    std::fs::create_dir(house.path("hidden")).expect("a directory");
    chmod(&house.path("hidden"), 0o711);
    std::fs::write(house.path("program"), b"#!/bin/sh").expect("a file");
    chmod(&house.path("program"), 0o711);
    let server = house.serve().await;
    let mut bob = bob(&house, &server).await;
    let root = bob.root();
    let (dir, program) = (
        look(&mut bob, root, "hidden").await,
        look(&mut bob, root, "program").await,
    );
    for flags in [FOR_EXEC, FOR_EXEC | libc::O_DIRECTORY as u32] {
        let refusal = bob.refusal(open(dir, flags)).await;
        assert_eq!(refusal, errno(libc::EACCES));
    }
    let refusal = bob.refusal(open(program, FOR_EXEC | O_TRUNC)).await;
    assert_eq!(refusal, errno(libc::EACCES));
    let content = std::fs::read(house.path("program")).expect("a file");
    assert_eq!(content, b"#!/bin/sh");
    assert!(bob.ask(open(program, FOR_EXEC)).await.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_lookup_leaves_no_lease_and_tells_nothing_later() {
    let house = House::new();
    private_directory(&house);
    let server = house.serve().await;
    let mut bob = bob(&house, &server).await;
    let root = bob.root();
    let dir = look(&mut bob, root, "private").await;
    let reply = bob.ask(lookup(dir, "f")).await;
    assert_eq!(reply.result, Err(errno(libc::EACCES)));
    assert_eq!(reply.grants, []);
    let mut other = others_make(&house, &server, dir, "secret").await;
    assert_eq!(told_names(&mut bob).await, None);
    assert!(other.reply().await.0.result.is_ok());
}

fn of_names(recall: &Recall) -> bool {
    match &recall.scope {
        Scope::Object { parts, names, .. } => parts.contains(Parts::NAMES) || !names.is_empty(),
        Scope::Everything => true,
    }
}

/// Recalls of names that come to a client; those of attributes, which anybody may have, are approved.
async fn told_names(client: &mut Client) -> Option<Recall> {
    while let Ok(recall) = timeout(A_MOMENT, client.recall()).await {
        if of_names(&recall) {
            return Some(recall);
        }
        client.approve(&recall).await;
    }
    None
}

async fn others_make(house: &House, server: &Running, dir: Handle, name: &str) -> Client {
    let mut other = Who::enrolled(house, 3).connect(server).await;
    let frame = other.frame(create(dir, name, libc::O_RDWR));
    other.send(&frame, b"").await;
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_list_a_directory_never_learns_its_names_by_recalls() {
    for mode in [0o711, 0o733] {
        let house = House::new();
        std::fs::create_dir(house.path("hidden")).expect("a directory");
        std::fs::write(house.path("hidden/known"), b"x").expect("a file");
        chmod(&house.path("hidden"), mode);
        let server = house.serve().await;
        let mut bob = bob(&house, &server).await;
        let root = bob.root();
        let dir = look(&mut bob, root, "hidden").await;
        look(&mut bob, dir, "known").await;
        assert_eq!(bob.lookup(dir, "none").await, None);
        let made = bob.ask(create(dir, "bobs", libc::O_RDWR)).await.result;
        assert_eq!(made.is_ok(), mode == 0o733, "{made:?}");
        let mut other = others_make(&house, &server, dir, "secret").await;
        assert_eq!(told_names(&mut bob).await, None, "{mode:o}");
        assert!(other.reply().await.0.result.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_not_reclaimed_of_a_directory_that_nobody_there_may_list() {
    let house = House::new();
    private_directory(&house);
    let who = Who::new(2);
    let policy = IdentityPolicy::RootSquash;
    house
        .records
        .enrol_as(who.identity.key_hash(), false, policy);
    let server = house.serve().await;
    let mut bob = who.connect(&server).await;
    let root = bob.root();
    let dir = look(&mut bob, root, "private").await;
    server.crash();
    let server = house.serve().await;
    let mut bob = who.connect(&server).await;
    let lease = |object, parts| ReclaimLease {
        object,
        parts,
        mode: Mode::Read,
    };
    let (names, listing) = (Parts::NAMES, Parts::LISTING | Parts::ATTRS);
    let leases = vec![
        lease(dir, names),
        lease(dir, listing),
        lease(root, names),
        lease(dir, Parts::ATTRS),
    ];
    let opens = Vec::new();
    bob.tell(ToServer::Reclaim(Reclaim {
        leases,
        opens,
        ..Reclaim::default()
    }))
    .await;
    let ToClient::Reclaimed { lost_leases, .. } = bob.told().await else {
        panic!("no answer to a reclaim");
    };
    assert_eq!(lost_leases, [dir, dir]);
}

/// A file that may be written to and not be read.
async fn write_only(house: &House, server: &Running) -> (Client, Handle, OpenId) {
    let mut bob = bob(house, server).await;
    let root = bob.root();
    let file = look(&mut bob, root, "box").await;
    let open = bob.open(file, libc::O_WRONLY).await;
    (bob, file, open)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_with_a_flush_is_decided_under_its_callers_identity() {
    let house = House::new();
    std::fs::write(house.path("box"), b"theirs").expect("a file");
    chmod(&house.path("box"), 0o622);
    let server = house.serve().await;
    let (mut bob, _, open) = write_only(&house, &server).await;
    let sizes = with(|set| set.size = Some(1));
    for (set, errno) in [
        (with(|set| set.mode = Some(0o777)), libc::EPERM),
        (with(|set| set.uid = Some(BOB)), libc::EPERM),
        (with(|set| set.atime = Some(SetTime::Now)), libc::EPERM),
        (sizes, libc::EINVAL),
    ] {
        let flush = Ask::Change(Change::Write(change::Write {
            open,
            at: WriteAt::Offset(0),
            kill_priv: false,
            durability: Durability::None,
            kind: WriteKind::Flush {
                base: Version::default(),
                written: None,
                late: false,
                repeated: true,
                set,
            },
        }));
        let (reply, _) = bob.ask_with(flush, b"bob's!").await;
        let refusal = reply.result.expect_err("refused");
        assert_eq!(refusal.errno(), errno, "{set:?}");
    }
    let found = std::fs::metadata(house.path("box")).expect("the file");
    assert_eq!(found.permissions().mode() & 0o7777, 0o622);
    let bytes = std::fs::read(house.path("box")).expect("the file");
    assert_eq!(bytes, b"theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn late_pages_and_repeated_flushes_confirm_no_bytes_that_may_not_be_read() {
    let house = House::new();
    std::fs::write(house.path("box"), b"secret").expect("a file");
    chmod(&house.path("box"), 0o622);
    let server = house.serve().await;
    let (mut bob, file, open) = write_only(&house, &server).await;
    let flush = WriteKind::Flush {
        base: Version {
            ctime: Timestamp {
                seconds: 1,
                nanos: 0,
            },
            size: 1,
        },
        written: None,
        late: false,
        repeated: true,
        set: SetAttr::default(),
    };
    for kind in [WriteKind::Page { late: false }, flush] {
        let guess = Ask::Change(Change::Write(change::Write {
            open,
            at: WriteAt::Offset(0),
            kill_priv: false,
            durability: Durability::None,
            kind,
        }));
        for bytes in [b"secret", b"guess!"] {
            let (reply, _) = bob.ask_with(guess.clone(), bytes).await;
            assert_eq!(reply.result, Err(Refusal::Changed), "{kind:?} {bytes:?}");
        }
    }
    let content = std::fs::read(house.path("box")).expect("a file");
    assert_eq!(content, b"secret");
    let (reply, data) = bob.read(open, 0, 9).await;
    assert_eq!((reply.result, &data[..]), (Err(Refusal::BadOpen), &b""[..]));
    assert_eq!(reply.grants, []);
    // Another mount reads it meanwhile: a read that is refused recalls nothing, whatever it wants.
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let others = a.open(file, libc::O_RDONLY).await;
    assert!(!a.read(others, 0, 9).await.0.grants.is_empty());
    let exclusive = Ask::Query(Query::Read(query::Read {
        open,
        offset: 0,
        len: 9,
        fill: Fill::PagesForStore,
    }));
    let refused = timeout(AT_ONCE, bob.refusal(exclusive)).await;
    assert_eq!(refused.expect("at once"), Refusal::BadOpen);
    no_recall(&mut a).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_id_bits_are_cleared_by_nobody_who_does_not_write() {
    let house = House::new();
    std::fs::write(house.path("program"), b"x").expect("a file");
    chmod(&house.path("program"), 0o4755);
    let server = house.serve().await;
    let mut bob = bob(&house, &server).await;
    let root = bob.root();
    let program = look(&mut bob, root, "program").await;
    let open = bob.open(program, libc::O_RDONLY).await;
    for open in [None, Some(open)] {
        let kill = Ask::Change(Change::SetAttr(change::SetAttr {
            object: program,
            open,
            set: with(|set| set.kill_priv = true),
        }));
        bob.ask(kill).await;
        let mode = house.path("program").metadata().expect("there");
        assert_eq!(mode.permissions().mode() & 0o7777, 0o4755, "{open:?}");
    }
}

fn explain(dir: Handle, path: &[&str]) -> Query {
    let path = path.iter().map(|name| raw(name)).collect();
    Query::Explain(query::Explain { dir, path })
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_find_a_file_is_told_nothing_of_its_holders_and_who_may_not_read_it_no_names() {
    let house = House::new();
    private_directory(&house);
    std::fs::write(house.path("hidden"), b"secret").expect("a file");
    chmod(&house.path("hidden"), 0o600);
    std::fs::write(house.path("open"), b"open").expect("a file");
    let server = house.serve().await;
    let mut root = Who::enrolled(&house, 1).connect(&server).await;
    let from = root.root();
    let private = look(&mut root, from, "private").await;
    look(&mut root, private, "f").await;
    look(&mut root, from, "hidden").await;
    look(&mut root, from, "open").await;
    let mut bob = bob(&house, &server).await;
    for path in [&["private", "f"][..], &["private", "none"]] {
        let refusal = bob.refusal(explain(from, path)).await;
        assert_eq!(refusal, errno(libc::EACCES), "{path:?}");
    }
    let named = async |client: &mut Client, name: &str| {
        let reply = client.ask(explain(from, &[name])).await;
        assert!(
            reply.grants.is_empty(),
            "asking has taken a lease: {reply:?}"
        );
        match reply.result.expect("told") {
            leasefs_protocol::Response::Explained(told) => {
                assert_eq!(told.holders.len(), 1, "{told:?}");
                told.holders[0].mount.is_some()
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(!named(&mut bob, "hidden").await);
    assert!(named(&mut bob, "open").await);
    no_recall(&mut root).await;
    server.stop().await;
}

/// Its programs would run with the rights of who owns what it makes. An honest client takes these bits away itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_one_user_leaves_no_set_id_program_on_the_host() {
    let house = House::new();
    chmod(&house.path(""), 0o777);
    let who = Who::new(2);
    let key = who.identity.key_hash();
    let policy = IdentityPolicy::Squash;
    house.records.enrol_as(key, false, policy);
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    let root = client.root();
    let sets = |object, mode| {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let open = None;
        Change::SetAttr(change::SetAttr { object, open, set })
    };
    let created = Change::Create(change::Create {
        dir: root,
        name: raw("made"),
        mode: 0o106_755,
        umask: 0,
        flags: (libc::O_CREAT | libc::O_RDWR) as u32,
        keep: false,
    });
    assert!(client.ask(created).await.result.is_ok());
    let (file, _) = client.create("set").await;
    assert!(client.ask(sets(file, 0o6755)).await.result.is_ok());
    assert!(client.mkdir("dir").await.result.is_ok());
    let dir = look(&mut client, root, "dir").await;
    assert!(client.ask(sets(dir, 0o2755)).await.result.is_ok());
    for (name, mode) in [("made", 0o755), ("set", 0o755), ("dir", 0o2755)] {
        let found = std::fs::metadata(house.path(name)).expect("it is there");
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
    }
}
