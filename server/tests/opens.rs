//! Opens: what becomes of them when answers are lost, names go and servers restart.

mod support;

use leasefs_protocol::Durability;
use leasefs_protocol::change::{WriteAt, WriteKind};
use leasefs_protocol::control::{Reclaim, ReclaimOpen, ToClient, ToServer};
use leasefs_protocol::limits::OPEN_DATA;
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Caller, Change, Handle, Mode, OpenId, OpenToken, Parts, Query, Refusal, Response, Scope, Seq,
    answer, change, query,
};
use std::time::{Duration, Instant};
use support::client::{Client, Who, mkdir, numbered, raw, write};
use support::{House, Running};

const FOLDER: &str = ".leasefs-orphans";

fn orphans(house: &House) -> usize {
    std::fs::read_dir(house.path(FOLDER)).map_or(0, Iterator::count)
}

fn opens(server: &Running, client: &Client) -> usize {
    let session = server.server.sessions.get(client.session);
    session.expect("the session").opens.len()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn unlink(dir: Handle, name: &str) -> Change {
    Change::Unlink(change::Unlink {
        dir,
        name: raw(name),
    })
}

/// Sends a change as a client does that has dropped what it has cached of these objects.
async fn send(client: &mut Client, request: Change, data: &[u8], dropped: &[Handle]) {
    let mut frame = client.frame(request);
    numbered(&mut frame).dropped.extend_from_slice(dropped);
    client.send(&frame, data).await;
}

async fn created(client: &mut Client, name: &str) -> (Handle, OpenId, OpenToken) {
    let request = client.create_request(name, libc::O_RDWR);
    let reply = client.ask(request).await;
    let Ok(Response::Created(answer::Created {
        handle,
        open,
        token,
        ..
    })) = reply.result
    else {
        panic!("not created: {reply:?}");
    };
    (handle, open, token)
}

/// An open file without a name.
async fn orphan(client: &mut Client, name: &str) -> (Handle, OpenId, OpenToken) {
    let (handle, open, token) = created(client, name).await;
    let root = client.root();
    send(client, unlink(root, name), b"", &[handle]).await;
    assert_eq!(client.reply().await.0.result, Ok(Response::Done));
    (handle, open, token)
}

async fn nlink(client: &mut Client, object: Handle) -> Result<u32, Refusal> {
    match client.getattr(object).await.result? {
        Response::Attr(attr) => Ok(attr.nlink),
        other => panic!("no answer to a getattr: {other:?}"),
    }
}

async fn reclaim(client: &mut Client, open: OpenId, token: OpenToken) -> Vec<OpenId> {
    let opens = vec![ReclaimOpen { open, token }];
    let leases = Vec::new();
    client
        .tell(ToServer::Reclaim(Reclaim {
            leases,
            opens,
            ..Reclaim::default()
        }))
        .await;
    match client.told().await {
        ToClient::Reclaimed { lost_opens, .. } => lost_opens,
        other => panic!("no answer to a reclaim: {other:?}"),
    }
}

async fn write_data(client: &mut Client, file: Handle, open: OpenId) {
    send(client, write(open, 0), b"data", &[file]).await;
    assert!(client.reply().await.0.result.is_ok());
}

/// It takes up its open of a file without a name that holds this data, and closes it.
async fn comes_back_for_the_last_time(
    client: &mut Client,
    (file, open, token): (Handle, OpenId, OpenToken),
) {
    assert_eq!(reclaim(client, open, token).await, []);
    client.tell(ToServer::ReclaimDone).await;
    assert_eq!(&client.read(open, 0, 9).await.1[..], b"data");
    assert_eq!(nlink(client, file).await, Ok(0));
    let close = query::Close { opens: vec![open] };
    client.ask(Query::Close(close)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_whose_answer_was_lost_is_closed_when_it_is_asked_for_again() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut first = who.connect(&server).await;
    let (object, _) = first.lookup(first.root(), "f").await.expect("there");
    let kept = first.open(object, libc::O_RDONLY).await;
    let flags = (libc::O_RDONLY as u32).into();
    let frame = first.frame(Query::Open(query::Open {
        object,
        flags,
        with_data: false,
    }));
    first.send(&frame, b"").await;
    until("two opens", || opens(&server, &first) == 2).await;
    let mut second = who.connect(&server).await;
    second.take_over(&first);
    second.send(&frame, b"").await;
    let reply = second.reply().await.0;
    let Ok(Response::Opened(answer::Opened { open, .. })) = reply.result else {
        panic!("not opened: {reply:?}");
    };
    assert_eq!(opens(&server, &second), 2, "not three");
    for open in [kept, open] {
        assert_eq!(&second.read(open, 0, 9).await.1[..], b"x");
    }
    let closed = second
        .ask(Query::Close(query::Close { opens: vec![open] }))
        .await;
    assert_eq!(closed.result, Ok(Response::Done));
    assert_eq!(opens(&server, &second), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlinked_open_file_goes_on_after_a_crash_until_its_last_close() {
    let house = House::new();
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    let (file, open, token) = orphan(&mut a, "f").await;
    write_data(&mut a, file, open).await;
    assert_eq!(nlink(&mut a, file).await, Ok(0));
    server.crash();
    assert_eq!(orphans(&house), 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    comes_back_for_the_last_time(&mut a, (file, open, token)).await;
    assert_eq!(orphans(&house), 0);
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_outlive_an_orderly_end_and_go_when_they_are_not_reclaimed() {
    let house = House::new();
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    orphan(&mut a, "f").await;
    let known = Seq(a.seq + 1);
    let stopping = tokio::spawn(server.stop());
    let recall = a.recall().await;
    a.approve(&recall).await;
    assert!(stopping.await.expect("the end"), "complete");
    assert_eq!(orphans(&house), 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    assert_eq!(orphans(&house), 1, "it may still be reclaimed");
    a.tell(ToServer::ReclaimDone).await;
    // It knows the answers of all it has asked: none of their opens need be kept.
    a.low_water = known;
    a.getattr(a.root()).await;
    until("the orphan is removed", || orphans(&house) == 0).await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_stays_open_for_who_is_away_though_another_removes_it_after_a_restart() {
    let house = House::new();
    let (away, other) = (Who::enrolled(&house, 1), Who::enrolled(&house, 2));
    let server = house.serve_with(Duration::from_secs(1), |_| ()).await;
    let mut a = away.connect(&server).await;
    let (file, open, token) = created(&mut a, "f").await;
    write_data(&mut a, file, open).await;
    server.crash();
    let server = house.serve().await;
    let mut b = other.connect(&server).await;
    let (found, _) = b.lookup(b.root(), "f").await.expect("there");
    let theirs = b.open(found, libc::O_RDONLY).await;
    b.ask(Query::Close(query::Close {
        opens: vec![theirs],
    }))
    .await;
    let request = unlink(b.root(), "f");
    send(&mut b, request, b"", &[file]).await;
    assert_eq!(b.reply().await.0.result, Ok(Response::Done));
    let mut a = away.connect(&server).await;
    comes_back_for_the_last_time(&mut a, (file, open, token)).await;
    until("the orphan is removed", || orphans(&house) == 0).await;
}

fn leases(server: &Running, client: &Client) -> usize {
    let sessions = server.server.leases.snapshot().sessions;
    let own = sessions.iter().find(|s| s.session == client.session);
    own.map_or(0, |session| session.leases)
}

async fn gives_up(client: &mut Client, object: Handle, parts: Parts) {
    let recall = client.recall().await;
    let scope = Scope::Object {
        object,
        parts,
        names: Vec::new(),
    };
    assert_eq!(recall.scope, scope);
    client.approve(&recall).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_of_a_file_ends_with_the_file_for_who_removed_it_and_others() {
    let house = House::new();
    std::fs::write(house.path("f"), b"data").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let mut held = Vec::new();
    for client in [&mut a, &mut b] {
        let (object, _) = client.lookup(client.root(), "f").await.expect("there");
        let open = client.open(object, libc::O_RDONLY).await;
        let read = Query::Read(query::Read {
            open,
            offset: 0,
            len: 9,
            fill: Fill::Pages,
        });
        let read = client.ask(read).await;
        assert_eq!(read.grants[0].parts, Parts::DATA);
        client
            .ask(Query::Close(query::Close { opens: vec![open] }))
            .await;
        held.push((object, leases(&server, client)));
    }
    let file = held[0].0;
    let request = unlink(a.root(), "f");
    send(&mut a, request, b"", &[file]).await;
    let recall = b.recall().await;
    b.approve(&recall).await;
    let recall = b.recall().await;
    b.approve(&recall).await;
    assert_eq!(a.reply().await.0.result, Ok(Response::Done));
    gives_up(&mut b, file, Parts::DATA).await;
    gives_up(&mut a, file, Parts::ATTRS | Parts::DATA).await;
    for (client, (_, before)) in [&a, &b].into_iter().zip(held) {
        until("nothing is held of it", || leases(&server, client) < before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_of_an_open_file_without_a_name_ends_after_its_last_close() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let (file, open, _) = orphan(&mut a, "f").await;
    assert_eq!(nlink(&mut a, file).await, Ok(0));
    a.ask(Query::Close(query::Close { opens: vec![open] }))
        .await;
    gives_up(&mut a, file, Parts::ATTRS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_go_with_their_session() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    orphan(&mut a, "f").await;
    assert_eq!(orphans(&house), 1);
    a.tell(ToServer::Goodbye).await;
    until("the orphan is removed", || orphans(&house) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn making_the_hidden_folder_recalls_the_roots_attributes_from_others() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    let reply = b.ask(mkdir(root, raw("d"))).await;
    let Ok(Response::Object(answer::Object { handle: dir, .. })) = reply.result else {
        panic!("not made: {reply:?}");
    };
    let create = Change::Create(change::Create {
        dir,
        name: raw("f"),
        mode: 0o100_644,
        umask: 0,
        flags: libc::O_RDWR as u32,
        keep: false,
    });
    let reply = b.ask(create).await;
    let Ok(Response::Created(answer::Created { handle: file, .. })) = reply.result else {
        panic!("not created: {reply:?}");
    };
    let links = nlink(&mut a, root).await;
    send(&mut b, unlink(dir, "f"), b"", &[file, root]).await;
    let recall = a.recall().await;
    let Scope::Object { object, parts, .. } = &recall.scope else {
        panic!("not of an object: {recall:?}");
    };
    assert!(*object == root && parts.contains(Parts::ATTRS));
    a.approve(&recall).await;
    assert_eq!(b.reply().await.0.result, Ok(Response::Done));
    assert_eq!(orphans(&house), 1);
    assert_eq!(nlink(&mut a, root).await, links);
    assert_eq!(a.lookup(root, FOLDER).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_inside_is_answered_and_costs_nothing_else() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let (_, open) = a.create("g").await;
    house.records.panic(true);
    let made = a.ask(mkdir(root, raw("d"))).await;
    assert_eq!(made.result, Err(Refusal::Internal));
    let fill = Query::Read(query::Read {
        open,
        offset: 0,
        len: 1,
        fill: Fill::PagesForStore,
    });
    assert_eq!(a.ask(fill).await.result, Err(Refusal::Internal));
    house.records.panic(false);
    assert!(a.ask(mkdir(root, raw("d"))).await.result.is_ok());
    assert!(a.lookup(root, "d").await.is_some());
    drop(server);
}

/// The kernel has a page of the file that may be stored into.
async fn is_filled_to_store(client: &mut Client, open: OpenId) {
    let fill = Query::Read(query::Read {
        open,
        offset: 0,
        len: 4096,
        fill: Fill::PagesForStore,
    });
    let filled = client.ask(fill).await;
    assert!(filled.grants.iter().any(|grant| grant.mode == Mode::Write));
}

/// The kernel writes it back.
fn page_of(open: OpenId) -> Change {
    Change::Write(change::Write {
        open,
        at: WriteAt::Offset(0),
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Page { late: false },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn zeros_of_a_mapped_page_make_its_file_no_longer_whatever_size_the_kernel_believes_in() {
    let house = House::new();
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (file, open) = client.create("f").await;
    send(&mut client, write(open, 0), b"short", &[file]).await;
    assert!(client.reply().await.0.result.is_ok());
    is_filled_to_store(&mut client, open).await;
    send(&mut client, page_of(open), b"SHORT\0\0\0\0\0", &[file]).await;
    let Ok(Response::Written(written)) = client.reply().await.0.result else {
        panic!("refused")
    };
    assert_eq!(written.len, 10, "there is nothing left to be sent again");
    assert_eq!(std::fs::read(house.path("f")).expect("there"), b"SHORT");
    send(&mut client, page_of(open), b"SHORT\0stored", &[file]).await;
    assert!(client.reply().await.0.result.is_ok());
    let stored = std::fs::read(house.path("f")).expect("there");
    assert_eq!(stored, b"SHORT\0stored", "nothing is left out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapped_page_that_is_written_back_after_its_lease_has_ended_is_refused() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let (file, open) = a.create("f").await;
    send(&mut a, write(open, 0), b"empty", &[file]).await;
    assert!(a.reply().await.0.result.is_ok());
    is_filled_to_store(&mut a, open).await;
    let page = || page_of(open);
    send(&mut a, page(), b"first", &[file]).await;
    assert!(a.reply().await.0.result.is_ok());
    let object = file;
    let flags = (libc::O_WRONLY as u32).into();
    let opened = b
        .ask(Query::Open(query::Open {
            object,
            flags,
            with_data: false,
        }))
        .await;
    let Ok(Response::Opened(answer::Opened { open: others, .. })) = opened.result else {
        panic!("not opened: {opened:?}");
    };
    send(&mut b, write(others, 0), b"newer", &[file]).await;
    let recall = a.recall().await;
    a.approve(&recall).await;
    assert!(b.reply().await.0.result.is_ok());
    send(&mut a, page(), b"older", &[file]).await;
    let recall = b.recall().await;
    b.approve(&recall).await;
    assert_eq!(a.reply().await.0.result, Err(Refusal::Changed));
    assert_eq!(std::fs::read(house.path("f")).expect("a file"), b"newer");
    drop(server);
}

/// Opens with the file's bytes, if they are to be had. What came, and the parts that are leased.
async fn open_with_data(client: &mut Client, object: Handle, flags: i32) -> (Vec<u8>, Parts) {
    let open = Query::Open(query::Open {
        object,
        flags: (flags as u32).into(),
        with_data: true,
    });
    let (reply, data) = client.ask_with(open, b"").await;
    assert!(matches!(reply.result, Ok(Response::Opened(_))), "{reply:?}");
    let leased = reply.grants.iter().fold(Parts::NONE, |all, grant| {
        assert_eq!((grant.object, grant.mode), (object, Mode::Read));
        all | grant.parts
    });
    (data.to_vec(), leased)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_brings_the_bytes_of_a_small_file_under_a_lease() {
    let house = House::new();
    let all = Parts::ATTRS | Parts::DATA;
    let full = vec![b'x'; OPEN_DATA];
    let files: [(&str, &[u8], Parts); 3] = [
        ("small", b"small", all),
        ("full", &full, all),
        ("empty", b"", all),
    ];
    for (name, data, _) in files {
        std::fs::write(house.path(name), data).expect("a file");
    }
    std::fs::write(house.path("large"), vec![b'x'; OPEN_DATA + 1]).expect("a file");
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    for (name, data, parts) in files {
        let (object, _) = client.lookup(client.root(), name).await.expect("there");
        let came = open_with_data(&mut client, object, libc::O_RDONLY).await;
        assert_eq!(came, (data.to_vec(), parts), "{name}");
    }
    let (object, _) = client.lookup(client.root(), "large").await.expect("there");
    let came = open_with_data(&mut client, object, libc::O_RDONLY).await;
    assert_eq!(came, (Vec::new(), Parts::ATTRS), "what is larger is read");
    let (object, _) = client.lookup(client.root(), "small").await.expect("there");
    let came = open_with_data(&mut client, object, libc::O_WRONLY).await;
    assert_eq!(
        came,
        (Vec::new(), Parts::ATTRS),
        "the open doesn't allow it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_read_a_file_gets_neither_its_bytes_nor_a_lease_on_them() {
    use std::os::unix::fs::PermissionsExt;
    let house = House::new();
    std::fs::write(house.path("f"), b"secret").expect("a file");
    let closed = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(house.path("f"), closed).expect("chmod");
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (object, _) = client.lookup(client.root(), "f").await.expect("there");
    client.caller = Caller {
        uid: 1000,
        gid: 1000,
        groups: Vec::new(),
    };
    let open = Query::Open(query::Open {
        object,
        flags: (libc::O_RDONLY as u32).into(),
        with_data: true,
    });
    let (reply, data) = client.ask_with(open, b"").await;
    assert_eq!(reply.result, Err(Refusal::Host(libc::EACCES as u16)));
    assert!(data.is_empty());
    let of_data = |grant: &leasefs_protocol::Grant| grant.parts.contains(Parts::DATA);
    assert!(!reply.grants.iter().any(of_data), "{reply:?}");
}

/// What a second client writes into a file whose bytes came with an open is held back until they are given up.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_came_with_an_open_are_recalled_before_they_change() {
    let house = House::new();
    std::fs::write(house.path("f"), b"old").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let (object, _) = a.lookup(a.root(), "f").await.expect("there");
    open_with_data(&mut a, object, libc::O_RDONLY).await;
    let open = b.open(object, libc::O_WRONLY).await;
    send(&mut b, write(open, 0), b"new", &[object]).await;
    let recall = a.recall().await;
    let Scope::Object { parts, .. } = &recall.scope else {
        panic!("not of the file: {recall:?}")
    };
    assert!(parts.contains(Parts::DATA));
    assert_eq!(std::fs::read(house.path("f")).expect("there"), b"old");
    a.approve(&recall).await;
    assert!(b.reply().await.0.result.is_ok());
    let came = open_with_data(&mut a, object, libc::O_RDONLY).await;
    assert_eq!(came, (b"new".to_vec(), Parts::ATTRS | Parts::DATA));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_gone_with_its_last_name_if_the_change_closes_its_last_open() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (object, _) = client.lookup(client.root(), "f").await.expect("there");
    let open = client.open(object, libc::O_RDONLY).await;
    let mut frame = client.frame(unlink(client.root(), "f"));
    numbered(&mut frame).dropped.push(object);
    numbered(&mut frame).closed.push(open);
    client.send(&frame, b"").await;
    let reply = client.reply().await.0;
    assert_eq!(reply.result, Ok(Response::Done));
    assert_eq!((opens(&server, &client), orphans(&house)), (0, 0));
    // Sent again, as when the answer was lost.
    client.send(&frame, b"").await;
    assert_eq!(client.reply().await.0.result, Ok(Response::Done));
}
