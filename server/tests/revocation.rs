//! A client that is revoked while something of it is under way: once that has returned, nothing of it
//! takes effect.

mod support;

use leasefs_protocol::control::{Hello, HelloRefusal, Reclaim, ReclaimLease, ToServer};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{Handle, Mode, Parts, Query, SessionId, query};
use leasefs_transport::Lost;
use std::time::Duration;
use support::client::{Client, LONG, Who, mkdir, numbered, raw, write};
use support::memory::{At, Held};
use support::{House, Running};
use tokio::time::timeout;

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// As the command does it: struck off the list, then shut out.
async fn revoke(house: &House, server: &Running, who: &Who) -> usize {
    let key = who.identity.key_hash();
    house.records.revoke(key);
    server.server.revoke(key).await
}

/// A hello that is held up at `at` while its client is revoked.
async fn hello_overtaken_by_revocation(at: At) {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let held = house.records.hold(at);
    let hello = who.hello();
    let connect = timeout(LONG, who.connect_with(&server, hello));
    let revocation = async {
        held.reached().await;
        let revoked = revoke(&house, &server, &who);
        tokio::pin!(revoked);
        // It may wait for what is held up, but for nothing else.
        let early = timeout(A_WHILE, &mut revoked).await.ok();
        drop(held);
        match early {
            Some(left) => left,
            None => revoked.await,
        }
    };
    let (connected, left) = tokio::join!(connect, revocation);
    assert_eq!(left, 0);
    let refusal = connected.expect("in time").err().expect("it is refused");
    let key = who.identity.key_hash();
    assert_eq!(refusal, HelloRefusal::Revoked(key), "{at:?}");
    assert!(server.server.sessions.all().is_empty(), "{at:?}");
    tokio::time::sleep(A_WHILE).await;
    assert!(!house.records.has_session(who.session), "{at:?}");
    assert!(server.server.status().sessions.is_empty(), "{at:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_admitted_before_a_revocation_does_not_connect_after_it() {
    hello_overtaken_by_revocation(At::Admitted).await;
    hello_overtaken_by_revocation(At::Record).await;
}

async fn is_closed(client: &Client) {
    let lost = timeout(LONG, client.connection.closed()).await;
    assert!(matches!(lost.expect("in time"), Lost::Closed { .. }));
}

/// A client with a request that is held up at `at` when the client is revoked. Whether the
/// revocation has waited for it.
async fn revoked_over(
    house: &House,
    server: &Running,
    client: (&Who, &Client),
    held: Held,
) -> bool {
    held.reached().await;
    let revoked = revoke(house, server, client.0);
    tokio::pin!(revoked);
    let early = timeout(A_WHILE, &mut revoked).await.ok();
    is_closed(client.1).await;
    drop(held);
    let waited = early.is_none();
    let left = match early {
        Some(left) => left,
        None => revoked.await,
    };
    assert_eq!(left, 0);
    waited
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_asks_the_host_is_waited_for_and_nothing_happens_after_the_revocation() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut client = who.connect(&server).await;
    let held = house.records.hold(At::ChangeBegins);
    let mut frame = client.frame(mkdir(client.root(), raw("d")));
    client.send(&frame, b"").await;
    // Follows it, so it has not begun.
    let mut next = client.frame(mkdir(client.root(), raw("e")));
    let first = numbered(&mut frame).seq;
    numbered(&mut next).after = vec![first];
    client.send(&next, b"").await;
    tokio::time::sleep(A_WHILE).await;
    let waited = revoked_over(&house, &server, (&who, &client), held).await;
    let at_its_return = house.path("d").exists();
    tokio::time::sleep(A_WHILE).await;
    assert!(waited, "it waits for what has begun");
    assert_eq!(at_its_return, house.path("d").exists());
    assert!(at_its_return, "what has begun ends");
    assert!(!house.path("e").exists(), "what has not begun never does");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_a_lease_never_runs_once_its_client_is_revoked() {
    let house = House::new();
    std::fs::write(house.path("f"), b"old").expect("a file");
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut reader = Who::enrolled(&house, 2).connect(&server).await;
    let mut writer = who.connect(&server).await;
    let (handle, _) = reader.lookup(reader.root(), "f").await.expect("there");
    let open = reader.open(handle, libc::O_RDONLY).await;
    reader.read(open, 0, 10).await;
    let writing = writer.open(handle, libc::O_WRONLY).await;
    let frame = writer.frame(write(writing, 0));
    writer.send(&frame, b"new").await;
    let recall = reader.recall().await;
    assert_eq!(revoke(&house, &server, &who).await, 0);
    is_closed(&writer).await;
    reader.approve(&recall).await;
    tokio::time::sleep(A_WHILE).await;
    let content = std::fs::read(house.path("f")).expect("the file");
    assert_eq!(content, b"old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_under_way_is_not_answered_once_its_client_is_revoked() {
    let house = House::new();
    std::fs::write(house.path("f"), b"secret").expect("a file");
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut client = who.connect(&server).await;
    let (handle, _) = client.lookup(client.root(), "f").await.expect("there");
    let open = client.open(handle, libc::O_RDWR).await;
    let held = house.records.hold(At::WriteLease);
    let frame = client.frame(Query::Read(query::Read {
        open,
        offset: 0,
        len: 10,
        fill: Fill::PagesForStore,
    }));
    client.send(&frame, b"").await;
    revoked_over(&house, &server, (&who, &client), held).await;
    let answer = timeout(LONG, client.lane_in.next::<leasefs_protocol::Reply>()).await;
    assert!(answer.expect("in time").is_err(), "it is not answered");
    assert!(server.server.sessions.all().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_an_earlier_life_and_its_interrupted_changes_go_with_their_client() {
    let house = House::new();
    let who = Who::enrolled(&house, 1);
    let first = house.serve().await;
    let mut client = who.connect(&first).await;
    let (handle, open) = client.create("f").await;
    client.low_water = leasefs_protocol::Seq(client.seq + 1);
    let held = house.records.hold(At::ChangeBegins);
    let frame = client.frame(write(open, 0));
    client.send(&frame, b"new").await;
    held.reached().await;
    first.crash();
    drop(held);
    tokio::time::sleep(A_WHILE).await;
    let second = house.serve().await;
    let held = house.records.hold(At::Record);
    let hello = Hello {
        last_process: Some(client.welcome.process),
        ..who.hello()
    };
    let connect = timeout(LONG, who.connect_with(&second, hello));
    let revocation = async {
        held.reached().await;
        let revoked = revoke(&house, &second, &who);
        tokio::pin!(revoked);
        let early = timeout(A_WHILE, &mut revoked).await.ok();
        drop(held);
        match early {
            Some(left) => left,
            None => revoked.await,
        }
    };
    let (connected, _) = tokio::join!(connect, revocation);
    assert!(connected.expect("in time").is_err(), "it is refused");
    assert!(second.server.sessions.all().is_empty());
    let mut other = Who::enrolled(&house, 2).connect(&second).await;
    // Its interrupted change stands in nobody's way any more, and what it was leased no longer than the grace.
    let open = other.open(handle, libc::O_WRONLY).await;
    let reply = timeout(LONG, other.write(open, 0, b"other")).await;
    assert!(reply.expect("in time").result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_revoked_client_says_last_changes_nothing() {
    let house = House::new();
    std::fs::write(house.path("f"), b"old").expect("a file");
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut client = who.connect(&server).await;
    let (object, _) = client.lookup(client.root(), "f").await.expect("there");
    // Many, so that some are under way when it is revoked.
    let lease = ReclaimLease {
        object,
        parts: Parts::ATTRS | Parts::DATA,
        mode: Mode::Write,
    };
    for _ in 0..50 {
        let leases = vec![lease; 100];
        let opens = Vec::new();
        client
            .tell(ToServer::Reclaim(Reclaim {
                leases,
                opens,
                ..Reclaim::default()
            }))
            .await;
    }
    assert_eq!(revoke(&house, &server, &who).await, 0);
    tokio::time::sleep(A_WHILE).await;
    let status = server.server.status();
    assert!(status.sessions.is_empty());
    let mut other = Who::enrolled(&house, 2).connect(&server).await;
    let open = other.open(object, libc::O_WRONLY).await;
    let begun = std::time::Instant::now();
    assert!(other.write(open, 0, b"new").await.result.is_ok());
    let term = Duration::from_secs(10);
    assert!(
        begun.elapsed() < term + A_WHILE * 10,
        "nobody holds it for longer"
    );
}

/// Of the leases that are waited for.
const TERM: Duration = Duration::from_secs(2);

/// A file that somebody has read, who has leases of it for a term.
async fn read_by_one() -> (House, Running, Who, (Client, Handle)) {
    let house = House::new();
    std::fs::write(house.path("f"), b"old").expect("a file");
    let server = house.serve_with(TERM, |_| ()).await;
    let who = Who::enrolled(&house, 1);
    let mut reader = who.connect(&server).await;
    let (handle, _) = reader.lookup(reader.root(), "f").await.expect("there");
    let open = reader.open(handle, libc::O_RDONLY).await;
    reader.read(open, 0, 10).await;
    (house, server, who, (reader, handle))
}

/// A reader whose sessions are over by what `ends` them doesn't know yet: who changes what it has read waits for its leases.
async fn is_waited_for(ends: impl AsyncFnOnce(&House, &Running, &Who)) {
    let (house, server, who, (reader, handle)) = read_by_one().await;
    // Its own leases outlast the reader's.
    tokio::time::sleep(TERM / 2).await;
    let mut writer = Who::enrolled(&house, 2).connect(&server).await;
    let writing = writer.open(handle, libc::O_WRONLY).await;
    let began = std::time::Instant::now();
    ends(&house, &server, &who).await;
    is_closed(&reader).await;
    assert!(server.server.sessions.get(who.session).is_none());
    let frame = writer.frame(write(writing, 0));
    writer.send(&frame, b"new").await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(std::fs::read(house.path("f")).expect("the file"), b"old");
    assert!(writer.reply().await.0.result.is_ok());
    assert!(began.elapsed() < TERM * 2);
    assert_eq!(std::fs::read(house.path("f")).expect("the file"), b"new");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_revoked_client_was_leased_is_waited_for_until_its_term_is_over() {
    is_waited_for(async |house, server, who| {
        assert_eq!(revoke(house, server, who).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_was_leased_under_another_role_is_waited_for_until_its_term_is_over() {
    is_waited_for(async |house, server, who| {
        house.records.enrol(who.identity.key_hash(), true);
        let another = Who {
            session: SessionId([3; 16]),
            ..who.clone()
        };
        another.connect(server).await;
        // The session itself begins anew when nobody has to wait for it any more.
        let early = who.connect_with(server, who.hello()).await.err();
        assert!(
            matches!(early, Some(HelloRefusal::Internal(_))),
            "{early:?}"
        );
    })
    .await;
}

/// A reader that doesn't come back behind the server's restart, in whose first moment it is revoked, or before.
async fn is_waited_for_behind_a_restart(before: bool) {
    let (house, server, who, (_reader, handle)) = read_by_one().await;
    if before {
        revoke(&house, &server, &who).await;
    }
    server.crash();
    let server = house.serve_with(TERM, |_| ()).await;
    if !before {
        revoke(&house, &server, &who).await;
    }
    let mut writer = Who::enrolled(&house, 2).connect(&server).await;
    let writing = writer.open(handle, libc::O_WRONLY).await;
    let frame = writer.frame(write(writing, 0));
    writer.send(&frame, b"new").await;
    tokio::time::sleep(A_WHILE).await;
    let content = std::fs::read(house.path("f")).expect("the file");
    assert_eq!(content, b"old", "its leases may stand");
    let answered = async {
        loop {
            // Who waits as long as this must not let his own term run out.
            match timeout(TERM / 4, writer.reply()).await {
                Ok((reply, _)) => break reply,
                Err(_) => writer.tell(ToServer::KeepAlive { number: 1 }).await,
            }
        }
    };
    let reply = timeout(LONG, answered).await.expect("in time");
    assert!(reply.result.is_ok());
    let forgotten = async {
        while house.records.has_session(who.session) {
            tokio::time::sleep(A_WHILE).await;
        }
    };
    assert!(timeout(LONG, forgotten).await.is_ok(), "off the record");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_revoked_client_was_leased_in_the_servers_earlier_life_is_waited_for() {
    is_waited_for_behind_a_restart(false).await;
    is_waited_for_behind_a_restart(true).await;
}
