//! Clients that are confined to a directory, and what they try to get out of it.

mod support;

use leasefs_protocol::control::{
    Hello, HelloRefusal, Reclaim, ReclaimLease, Standing, ToClient, ToServer,
};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Change, Handle, Mode, Parts, Query, RawName, Refusal, Release, Reply, Response, Scope, SetAttr,
    Stamp, answer, change, query,
};
use std::fs;
use std::os::unix::fs::symlink;
use support::client::{Ask, Client, Who, mkdir, numbered, raw};
use support::{House, Running};

/// A directory `one` with `inside` and `sub/deep` in it, and `two` beside it with `outside`.
fn house() -> House {
    let house = House::new();
    for dir in ["one/sub", "two/sub"] {
        fs::create_dir_all(house.path(dir)).expect("a directory");
    }
    for file in ["one/inside", "one/sub/deep", "two/outside", "two/sub/deep"] {
        fs::write(house.path(file), file).expect("a file");
    }
    house
}

/// A client that is confined to this directory, as an unconfined one finds it.
async fn confined(house: &House, server: &Running, number: u8, dir: &str) -> (Who, Client) {
    let mut finder = Who::enrolled(house, number + 100).connect(server).await;
    let (dir, _) = finder.lookup(finder.root(), dir).await.expect("there");
    let who = Who::enrolled(house, number);
    // Nobody is to wait for what it has looked at.
    finder.tell(ToServer::Goodbye).await;
    assert_eq!(finder.told().await, ToClient::Farewell);
    house.records.confine(who.identity.key_hash(), dir);
    let client = who.connect(server).await;
    (who, client)
}

/// A change before which the client has dropped this object too.
async fn change(client: &mut Client, request: Change, dropped: Handle) -> Reply {
    let mut frame = client.frame(request);
    let change = numbered(&mut frame);
    change.dropped.push(dropped);
    client.send(&frame, b"").await;
    client.reply().await.0
}

/// One request of each kind that names objects.
fn all_kinds(object: Handle, own: Handle) -> Vec<Ask> {
    let name = || raw("inside");
    let xattr = || RawName(b"user.x".to_vec());
    let rename = |dir, new_dir| {
        Ask::Change(Change::Rename(change::Rename {
            dir,
            name: name(),
            new_dir,
            new_name: raw("new"),
            flags: 0,
        }))
    };
    let link = |object, dir| {
        Ask::Change(Change::Link(change::Link {
            object,
            dir,
            name: raw("link"),
        }))
    };
    let create = Ask::Change(Change::Create(change::Create {
        dir: object,
        name: name(),
        mode: 0o100_644,
        umask: 0,
        flags: libc::O_CREAT as u32,
        keep: false,
    }));
    vec![
        Ask::Query(Query::Lookup(query::Lookup {
            dir: object,
            name: name(),
        })),
        Ask::Query(Query::GetAttr(query::GetAttr { object })),
        Ask::Change(Change::SetAttr(change::SetAttr {
            object,
            open: None,
            set: SetAttr::default(),
        })),
        Ask::Query(Query::ReadLink(query::ReadLink { object })),
        mkdir(object, raw("new")).into(),
        Ask::Change(Change::Unlink(change::Unlink {
            dir: object,
            name: name(),
        })),
        Ask::Change(Change::Rmdir(change::Rmdir {
            dir: object,
            name: name(),
        })),
        rename(object, own),
        rename(own, object),
        link(object, own),
        link(own, object),
        Ask::Query(Query::Open(query::Open {
            object,
            flags: 0.into(),
            with_data: false,
        })),
        Ask::Change(Change::OpenTruncated(change::OpenTruncated {
            object,
            flags: (libc::O_WRONLY as u32).into(),
        })),
        create,
        Ask::Query(Query::StatFs(query::StatFs { object })),
        Ask::Query(Query::Access(query::Access { object, mask: 0 })),
        Ask::Query(Query::GetXattr(query::GetXattr {
            object,
            name: xattr(),
        })),
        Ask::Query(Query::ListXattr(query::ListXattr { object })),
        Ask::Query(Query::Explain(query::Explain {
            dir: object,
            path: vec![name()],
        })),
        Ask::Change(Change::SetXattr(change::SetXattr {
            object,
            name: xattr(),
            flags: 0,
        })),
        Ask::Change(Change::RemoveXattr(change::RemoveXattr {
            object,
            name: xattr(),
        })),
    ]
}

async fn all_are_stale(client: &mut Client, object: Handle) {
    let own = client.root();
    for request in all_kinds(object, own) {
        let reply = client.ask(request.clone()).await;
        assert_eq!(reply.result, Err(Refusal::Stale), "{request:?}");
        assert!(
            reply.grants.is_empty() && reply.touched.is_empty(),
            "{request:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_client_uses_no_handle_that_was_learned_elsewhere() {
    let house = house();
    let server = house.serve().await;
    let mut free = Who::enrolled(&house, 1).connect(&server).await;
    let (_, mut one) = confined(&house, &server, 2, "one").await;
    let (_, mut two) = confined(&house, &server, 3, "two").await;
    let (_, mut other) = confined(&house, &server, 4, "one").await;
    let (dir, _) = free.lookup(free.root(), "two").await.expect("there");
    let (file, _) = free.lookup(dir, "outside").await.expect("there");
    let (mine, _) = free.lookup(free.root(), "one").await.expect("there");
    let (theirs, _) = two.lookup(two.root(), "outside").await.expect("there");
    for handle in [
        free.root(),
        dir,
        file,
        mine,
        theirs,
        two.root(),
        other.root(),
    ] {
        all_are_stale(&mut one, handle).await;
    }
    // What it calls its own is nothing to others.
    let (inside, _) = one.lookup(one.root(), "inside").await.expect("there");
    for client in [&mut free, &mut two, &mut other] {
        all_are_stale(client, inside).await;
    }
    assert!(one.getattr(inside).await.result.is_ok());
    assert_eq!(
        fs::read(house.path("two/outside")).expect("it"),
        b"two/outside"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_dots_nor_links_nor_a_mounts_subdirectory_lead_out_of_a_border() {
    let house = house();
    symlink("../two", house.path("one/out")).expect("a link");
    symlink(house.path("two"), house.path("one/far")).expect("a link");
    let server = house.serve().await;
    let (who, mut one) = confined(&house, &server, 1, "one").await;
    let root = one.root();
    for name in ["..", ".", "../two", "sub/deep", ""] {
        let name = raw(name);
        let refusal = one
            .refusal(Query::Lookup(query::Lookup { dir: root, name }))
            .await;
        assert_ne!(refusal, Refusal::Internal);
    }
    for name in ["out", "far"] {
        let (link, _) = one.lookup(root, name).await.expect("the link itself");
        let name = raw("outside");
        let refusal = one
            .refusal(Query::Lookup(query::Lookup { dir: link, name }))
            .await;
        assert_eq!(refusal, Refusal::Host(libc::ENOTDIR as u16));
        let flags = (libc::O_DIRECTORY as u32).into();
        let refusal = one
            .refusal(Query::Open(query::Open {
                object: link,
                flags,
                with_data: false,
            }))
            .await;
        assert_eq!(refusal, Refusal::Host(libc::ELOOP as u16));
    }
    for subdir in [
        &["two"][..],
        &[".."],
        &["sub", "..", ".."],
        &["out"],
        &["one"],
    ] {
        let hello = Hello {
            subdir: subdir.iter().map(|name| raw(name)).collect(),
            ..who.hello()
        };
        let refusal = who.connect_with(&server, hello).await.err();
        assert!(
            matches!(refusal, Some(HelloRefusal::NoDirectory(_))),
            "{subdir:?}: {refusal:?}"
        );
    }
    let below = Hello {
        subdir: vec![raw("sub")],
        ..who.hello()
    };
    let mut below = who.connect_with(&server, below).await.expect("let in");
    assert!(below.lookup(below.root(), "deep").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_was_moved_out_is_refused_though_its_handle_is_known() {
    let house = house();
    let server = house.serve().await;
    let (_, mut one) = confined(&house, &server, 1, "one").await;
    let (sub, _) = one.lookup(one.root(), "sub").await.expect("there");
    let open = one.open(sub, libc::O_RDONLY | libc::O_DIRECTORY).await;
    let listing = || {
        Query::ReadDir(query::ReadDir {
            open,
            cookie: 0,
            nodes: true,
        })
    };
    assert!(one.ask(listing()).await.result.is_ok());
    fs::rename(house.path("one/sub"), house.path("two/moved")).expect("moved");
    all_are_stale(&mut one, sub).await;
    assert_eq!(one.refusal(listing()).await, Refusal::Stale);
    fs::rename(house.path("two/moved"), house.path("one/back")).expect("moved");
    assert!(one.lookup(sub, "deep").await.is_some());
    assert!(one.ask(listing()).await.result.is_ok());
    // The border follows its directory.
    fs::rename(house.path("one"), house.path("two/one")).expect("moved");
    assert!(one.lookup(one.root(), "inside").await.is_some());
    assert!(one.lookup(sub, "deep").await.is_some());
}

/// A change in between, so that who has waited looks at names again.
async fn changes_elsewhere(house: &House, server: &Running) {
    let mut third = Who::enrolled(house, 3).connect(server).await;
    let (two, _) = third.lookup(third.root(), "two").await.expect("there");
    let elsewhere = third.ask(mkdir(two, raw("elsewhere"))).await;
    assert!(elsewhere.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waited_is_refused_if_its_directory_was_moved_out_meanwhile() {
    let house = house();
    let server = house.serve().await;
    let mut free = Who::enrolled(&house, 1).connect(&server).await;
    let (_, mut one) = confined(&house, &server, 2, "one").await;
    let (sub, _) = one.lookup(one.root(), "sub").await.expect("there");
    let (dir, _) = free.lookup(free.root(), "one").await.expect("there");
    let (same, _) = free.lookup(dir, "sub").await.expect("there");
    assert_eq!(free.lookup(same, "new").await, None);
    let frame = one.frame(mkdir(sub, raw("new")));
    one.send(&frame, b"").await;
    let recall = free.recall().await;
    fs::rename(house.path("one/sub"), house.path("two/moved")).expect("moved");
    changes_elsewhere(&house, &server).await;
    free.approve(&recall).await;
    let (reply, _) = one.reply().await;
    assert_eq!(reply.result, Err(Refusal::Stale));
    assert!(!house.path("two/moved/new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_that_waited_finds_nothing_in_a_directory_that_was_moved_out_meanwhile() {
    let house = house();
    let server = house.serve().await;
    let mut free = Who::enrolled(&house, 1).connect(&server).await;
    let (_, mut one) = confined(&house, &server, 2, "one").await;
    let (dir, _) = free.lookup(free.root(), "one").await.expect("there");
    let (same, _) = free.lookup(dir, "sub").await.expect("there");
    let Change::Create(create) = free.create_request("new", libc::O_RDWR) else {
        unreachable!("it is a create");
    };
    let made = Change::Create(change::Create {
        dir: same,
        keep: true,
        ..create
    });
    assert!(free.ask(made).await.result.is_ok(), "it may have data yet");
    let (sub, _) = one.lookup(one.root(), "sub").await.expect("there");
    let name = raw("new");
    let frame = one.frame(Query::Lookup(query::Lookup { dir: sub, name }));
    one.send(&frame, b"").await;
    let recall = free.recall().await;
    fs::rename(house.path("one/sub"), house.path("two/moved")).expect("moved");
    fs::write(house.path("two/other"), "secret").expect("a file");
    fs::rename(house.path("two/other"), house.path("two/moved/new")).expect("replaced");
    changes_elsewhere(&house, &server).await;
    free.approve(&recall).await;
    let (reply, _) = one.reply().await;
    assert_eq!(reply.result, Err(Refusal::Stale));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_confined_client_are_recalled_released_and_reclaimed_in_its_own_words() {
    let house = house();
    let server = house.serve().await;
    let mut free = Who::enrolled(&house, 1).connect(&server).await;
    let (who, mut one) = confined(&house, &server, 2, "one").await;
    let (dir, _) = free.lookup(free.root(), "one").await.expect("there");
    let (file, _) = free.lookup(dir, "inside").await.expect("there");
    let (mine, _) = one.lookup(one.root(), "inside").await.expect("there");
    assert_ne!(file, mine);
    let reading = one.open(mine, libc::O_RDONLY).await;
    let (reply, data) = one.read(reading, 0, 100).await;
    assert_eq!(&data[..], b"one/inside");
    assert!(reply.grants.iter().all(|grant| grant.object == mine));
    let writing = free.open(file, libc::O_WRONLY).await;
    let frame = free.frame(support::client::write(writing, 0));
    free.send(&frame, b"ONE").await;
    let recall = one.recall().await;
    assert!(matches!(&recall.scope, Scope::Object { object, .. } if *object == mine));
    one.approve(&recall).await;
    assert!(free.reply().await.0.result.is_ok());
    one.read(reading, 0, 100).await;
    let release = Release {
        object: mine,
        parts: Parts::ALL,
        seen: Stamp(u64::MAX),
    };
    one.tell(ToServer::Release(vec![release])).await;
    one.tell(ToServer::KeepAlive { number: 1 }).await;
    one.told().await;
    assert!(free.write(writing, 0, b"two").await.result.is_ok());
    let process = one.welcome.process;
    server.crash();
    let server = house.serve().await;
    let hello = Hello {
        last_process: Some(process),
        ..who.hello()
    };
    let mut one = who.connect_with(&server, hello).await.expect("let in");
    assert_eq!(one.welcome.standing, Standing::Reclaim);
    let lease = |object| ReclaimLease {
        object,
        parts: Parts::ATTRS,
        mode: Mode::Read,
    };
    let reclaim = Reclaim {
        leases: vec![lease(mine), lease(file)],
        opens: Vec::new(),
        ..Reclaim::default()
    };
    one.tell(ToServer::Reclaim(reclaim)).await;
    let ToClient::Reclaimed { lost_leases, .. } = one.told().await else {
        panic!("no answer to a reclaim");
    };
    assert_eq!(lost_leases, [file]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_client_that_removes_an_open_file_is_told_nothing_of_the_exports_root() {
    let house = house();
    let server = house.serve().await;
    let mut free = Who::enrolled(&house, 1).connect(&server).await;
    let (_, mut one) = confined(&house, &server, 2, "one").await;
    let (mine, _) = one.lookup(one.root(), "inside").await.expect("there");
    let open = one.open(mine, libc::O_RDONLY).await;
    let dir = one.root();
    let name = raw("inside");
    let reply = change(&mut one, Change::Unlink(change::Unlink { dir, name }), mine).await;
    assert!(reply.result.is_ok(), "{reply:?}");
    assert!(house.path(".leasefs-orphans").exists(), "the root changed");
    let known = [one.root(), mine];
    assert!(reply.touched.iter().all(|t| known.contains(&t.object)));
    assert!(reply.grants.iter().all(|g| known.contains(&g.object)));
    let request = Query::Read(query::Read {
        open,
        offset: 0,
        len: 100,
        fill: Fill::Nothing,
    });
    let (_, data) = one.ask_with(request, b"").await;
    assert_eq!(&data[..], b"one/inside");
    let (handle, _) = free.lookup(free.root(), "one").await.expect("there");
    assert_eq!(free.lookup(handle, "inside").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_within_a_border_works() {
    let house = house();
    let server = house.serve().await;
    let (_, mut one) = confined(&house, &server, 1, "one").await;
    let (file, open) = one.create("new").await;
    assert!(one.write(open, 0, b"data").await.result.is_ok());
    assert!(one.mkdir("dir").await.result.is_ok());
    let (dir, _) = one.lookup(one.root(), "dir").await.expect("there");
    let root = one.root();
    let link = Change::Link(change::Link {
        object: file,
        dir,
        name: raw("link"),
    });
    let reply = one.ask(link).await;
    assert!(
        matches!(reply.result, Ok(Response::Object(answer::Object { handle, .. })) if handle == file)
    );
    assert!(reply.touched.iter().any(|t| t.object == dir));
    let rename = Change::Rename(change::Rename {
        dir: root,
        name: raw("new"),
        new_dir: dir,
        new_name: raw("moved"),
        flags: 0,
    });
    assert!(change(&mut one, rename, file).await.result.is_ok());
    let listed = one.open(dir, libc::O_RDONLY | libc::O_DIRECTORY).await;
    let list = Query::ReadDir(query::ReadDir {
        open: listed,
        cookie: 0,
        nodes: true,
    });
    let Ok(Response::Entries(answer::Entries { entries, .. })) = one.ask(list).await.result else {
        panic!("no listing");
    };
    let nodes = entries.iter().filter_map(|entry| entry.node);
    assert_eq!(nodes.filter(|(handle, _)| *handle == file).count(), 2);
    assert_eq!(fs::read(house.path("one/dir/moved")).expect("it"), b"data");
}
