//! Lives of a server: what a restart keeps, what it delays, what it can't know.

mod support;

use fsserver::intent::Intent;
use fsserver::records::Records;
use leasefs_protocol::control::{Reclaim, ReclaimLease, ReclaimOpen, Standing, ToClient, ToServer};
use leasefs_protocol::{
    Change, Handle, Mode, OpenId, OpenToken, Parts, Query, Refusal, Reply, RequestFrame, Response,
    Seq, SetAttr, answer, change, query,
};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use support::House;
use support::client::{Client, Who, mkdir, numbered, raw, write};
use tokio::time::timeout;

const TERM: Duration = Duration::from_secs(2);

async fn open_with_token(client: &mut Client, name: &str) -> (OpenId, OpenToken) {
    let (object, _) = client.lookup(client.root(), name).await.expect("there");
    let flags = (libc::O_RDONLY as u32).into();
    let reply = client
        .ask(Query::Open(query::Open {
            object,
            flags,
            with_data: false,
        }))
        .await;
    match reply.result.expect("opened") {
        Response::Opened(answer::Opened { open, token, .. }) => (open, token),
        other => panic!("no answer to an open: {other:?}"),
    }
}

async fn reclaim(client: &mut Client, reclaim: Reclaim) -> (usize, usize) {
    client.tell(ToServer::Reclaim(reclaim)).await;
    match client.told().await {
        ToClient::Reclaimed {
            lost_leases,
            lost_opens,
            ..
        } => (lost_leases.len(), lost_opens.len()),
        other => panic!("no answer to a reclaim: {other:?}"),
    }
}

/// The next reply, however long it takes: the session is kept alive meanwhile.
async fn reply_at_last(client: &mut Client) -> Reply {
    loop {
        client.tell(ToServer::KeepAlive { number: 0 }).await;
        if let Ok(reply) = timeout(Duration::from_millis(200), client.reply()).await {
            return reply.0;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_changes_wait_for_the_longest_term_and_reads_do_not() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let (a, b) = (Who::enrolled(&house, 1), Who::enrolled(&house, 2));
    let server = house.serve_with(TERM, |_| ()).await;
    let mut first = a.connect(&server).await;
    first.lookup(first.root(), "f").await;
    server.crash();
    // A shorter term must not shorten the wait.
    let server = house.serve_with(Duration::from_secs(1), |_| ()).await;
    let begun = Instant::now();
    let mut second = b.connect(&server).await;
    let root = second.root();
    assert!(second.lookup(root, "f").await.is_some());
    assert!(begun.elapsed() < Duration::from_secs(1));
    let frame = second.frame(mkdir(root, raw("d")));
    second.send(&frame, b"").await;
    assert!(reply_at_last(&mut second).await.result.is_ok());
    assert!(begun.elapsed() >= TERM - Duration::from_millis(200));
    assert!(begun.elapsed() < TERM + Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn grace_ends_as_soon_as_every_session_has_reclaimed() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let (a, b) = (Who::enrolled(&house, 1), Who::enrolled(&house, 2));
    let server = house.serve().await;
    let mut first = a.connect(&server).await;
    let root = first.root();
    let (handle, _) = first.lookup(root, "f").await.expect("there");
    let (open, token) = open_with_token(&mut first, "f").await;
    server.crash();
    let server = house.serve().await;
    let mut first = a.connect(&server).await;
    assert_eq!(first.welcome.standing, Standing::Reclaim);
    assert!(!first.welcome.renews);
    let forged = OpenToken(vec![7; token.0.len()]);
    let lease = |object, parts| ReclaimLease {
        object,
        parts,
        mode: Mode::Read,
    };
    let asked = Reclaim {
        leases: vec![lease(handle, Parts::ATTRS), lease(root, Parts::NAMES)],
        opens: vec![
            ReclaimOpen { open, token },
            ReclaimOpen {
                open: OpenId(77),
                token: forged,
            },
        ],
        ..Reclaim::default()
    };
    assert_eq!(reclaim(&mut first, asked).await, (0, 1));
    first.tell(ToServer::ReclaimDone).await;
    let mut second = b.connect(&server).await;
    let begun = Instant::now();
    let frame = second.frame(mkdir(root, raw("d")));
    second.send(&frame, b"").await;
    let recall = first.recall().await;
    first.approve(&recall).await;
    assert!(second.reply().await.0.result.is_ok());
    assert!(begun.elapsed() < Duration::from_secs(1));
    let (_, data) = first.read(open, 0, 10).await;
    assert_eq!(&data[..], b"x", "the open goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_answered_before_the_crash_gets_its_first_answer_and_one_not_begun_runs() {
    let house = House::new();
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    let root = a.root();
    let mut begun = a.frame(mkdir(root, raw("d")));
    a.send(&begun, b"").await;
    let first = a.reply().await.0.result;
    assert!(first.is_ok());
    let mut waiting = a.frame(mkdir(root, raw("e")));
    server.crash();
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    a.tell(ToServer::ReclaimDone).await;
    for frame in [&mut begun, &mut waiting] {
        numbered(frame).resent = true;
        a.send(frame, b"").await;
    }
    assert_eq!(a.reply().await.0.result, first);
    assert!(a.reply().await.0.result.is_ok());
    assert!(a.lookup(root, "e").await.is_some());
}

fn chmod(object: Handle, mode: u16) -> Change {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let open = None;
    Change::SetAttr(change::SetAttr { object, open, set })
}

fn mode_of(house: &House, name: &str) -> u32 {
    let meta = std::fs::metadata(house.path(name)).expect("the file");
    meta.permissions().mode() & 0o777
}

/// A server that has crashed while it did a change of `f` that can be repeated.
async fn interrupted(house: &House, a: &Who) -> (Handle, RequestFrame) {
    std::fs::write(house.path("f"), b"x").expect("a file");
    let server = house.serve_with(TERM, |_| ()).await;
    let mut first = a.connect(&server).await;
    let root = first.root();
    let (object, _) = first.lookup(root, "f").await.expect("there");
    let mut frame = first.frame(chmod(object, 0o640));
    server.crash();
    let change = numbered(&mut frame);
    change.resent = true;
    let objects = vec![object];
    let begins = house.records.change_begins(
        a.session,
        change.seq,
        Seq(0),
        &Intent::Repeatable { objects },
    );
    begins.expect("journalled");
    (object, frame)
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_changes_an_object_before_its_interrupted_change_is_repeated() {
    let house = House::new();
    let (a, b) = (Who::enrolled(&house, 1), Who::enrolled(&house, 2));
    let (object, frame) = interrupted(&house, &a).await;
    let server = house.serve_with(TERM, |_| ()).await;
    let mut first = a.connect(&server).await;
    first.tell(ToServer::ReclaimDone).await;
    let mut second = b.connect(&server).await;
    let later = second.frame(chmod(object, 0o604));
    second.send(&later, b"").await;
    let early = timeout(Duration::from_millis(300), second.reply()).await;
    assert!(early.is_err(), "it waits");
    let root = second.root();
    assert!(
        second.getattr(root).await.result.is_ok(),
        "reads don't wait"
    );
    first.send(&frame, b"").await;
    assert!(first.reply().await.0.result.is_ok());
    let recall = first.recall().await;
    first.approve(&recall).await;
    assert!(second.reply().await.0.result.is_ok());
    assert_eq!(mode_of(&house, "f"), 0o604);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_change_whose_client_is_not_back_in_the_grace_is_lost() {
    let house = House::new();
    let (a, b) = (Who::enrolled(&house, 1), Who::enrolled(&house, 2));
    let (object, frame) = interrupted(&house, &a).await;
    let server = house.serve_with(TERM, |_| ()).await;
    let mut second = b.connect(&server).await;
    let begun = Instant::now();
    let later = second.frame(chmod(object, 0o604));
    second.send(&later, b"").await;
    assert!(reply_at_last(&mut second).await.result.is_ok());
    assert!(begun.elapsed() < TERM + Duration::from_secs(1));
    let mut first = a.connect(&server).await;
    first.tell(ToServer::ReclaimDone).await;
    first.send(&frame, b"").await;
    assert_eq!(first.reply().await.0.result, Err(Refusal::Lost));
    assert_eq!(mode_of(&house, "f"), 0o604);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_host_crash_every_change_sent_again_is_lost() {
    let house = House::new();
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    let root = a.root();
    let mut frame = a.frame(mkdir(root, raw("d")));
    server.crash();
    let host_crash = |found: &mut fsserver::records::Found| found.host_crashed = true;
    let server = house.serve_with(TERM, host_crash).await;
    let mut a = who.connect(&server).await;
    a.tell(ToServer::ReclaimDone).await;
    numbered(&mut frame).resent = true;
    a.send(&frame, b"").await;
    assert_eq!(a.reply().await.0.result, Err(Refusal::Lost));
    assert_eq!(a.lookup(root, "d").await, None);
}

/// A restarted server, and a client that comes back to it with these opens.
async fn next_life(
    house: &House,
    who: &Who,
    earlier: &Client,
    opens: Vec<ReclaimOpen>,
) -> (support::Running, Client) {
    let server = house.serve_with(TERM, |_| ()).await;
    let mut client = who.connect(&server).await;
    client.take_over(earlier);
    let leases = Vec::new();
    assert_eq!(
        reclaim(
            &mut client,
            Reclaim {
                leases,
                opens,
                ..Reclaim::default()
            }
        )
        .await,
        (0, 0)
    );
    client.tell(ToServer::ReclaimDone).await;
    (server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_change_that_was_refused_is_not_run_after_another_crash() {
    let house = House::new();
    std::fs::write(house.path("f"), b"old").expect("a file");
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    let (object, _) = a.lookup(a.root(), "f").await.expect("there");
    let flags = (libc::O_RDWR as u32).into();
    let reply = a
        .ask(Query::Open(query::Open {
            object,
            flags,
            with_data: false,
        }))
        .await;
    let Ok(Response::Opened(answer::Opened { open, token, .. })) = reply.result else {
        panic!("not opened: {reply:?}");
    };
    let mut frame = a.frame(write(open, 0));
    let seq = numbered(&mut frame).seq;
    let objects = vec![object];
    let intent = Intent::Repeatable { objects };
    let begins = house
        .records
        .change_begins(who.session, seq, Seq(0), &intent);
    begins.expect("journalled");
    server.crash();
    numbered(&mut frame).resent = true;
    // Its open is not there.
    let (server, mut a) = next_life(&house, &who, &a, Vec::new()).await;
    a.send(&frame, b"new").await;
    let refused = reply_at_last(&mut a).await.result;
    assert_eq!(refused, Err(Refusal::BadOpen));
    server.crash();
    let opens = vec![ReclaimOpen { open, token }];
    let (_server, mut a) = next_life(&house, &who, &a, opens).await;
    a.send(&frame, b"new").await;
    assert_eq!(reply_at_last(&mut a).await.result, refused);
    let now = std::fs::read(house.path("f")).expect("the file");
    assert_eq!(now, b"old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_lease_reclaimed_after_a_host_crash_is_on_record_for_the_next_life() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    let root = a.root();
    let (object, _) = a.lookup(root, "f").await.expect("there");
    server.crash();
    let host_crash = |found: &mut fsserver::records::Found| {
        found.host_crashed = true;
        found.writes = fsserver::records::Writes::Unknown;
    };
    let server = house.serve_with(TERM, host_crash).await;
    let mut a = who.connect(&server).await;
    let claim = Reclaim {
        leases: vec![ReclaimLease {
            object,
            parts: Parts::ATTRS | Parts::DATA,
            mode: Mode::Write,
        }],
        opens: Vec::new(),
        ..Reclaim::default()
    };
    assert_eq!(reclaim(&mut a, claim).await, (0, 0));
    let logged = fsserver::records::Writes::Trusted(vec![(who.session, object)]);
    assert_eq!(house.records.found().writes, logged);
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_end_recalls_everything_and_leaves_opens_but_no_grace() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let (a, b) = (Who::enrolled(&house, 1), Who::enrolled(&house, 2));
    let server = house.serve().await;
    let mut first = a.connect(&server).await;
    let root = first.root();
    first.lookup(root, "d").await;
    let (open, token) = open_with_token(&mut first, "f").await;
    let stopping = tokio::spawn(server.stop());
    let recall = first.recall().await;
    first.approve(&recall).await;
    assert!(stopping.await.expect("the end"), "complete");
    let server = house.serve().await;
    let mut second = b.connect(&server).await;
    let begun = Instant::now();
    assert!(second.mkdir("d").await.result.is_ok());
    assert!(begun.elapsed() < Duration::from_secs(1));
    let mut first = a.connect(&server).await;
    assert_eq!(first.welcome.standing, Standing::Reclaim);
    assert!(!first.welcome.renews);
    let asked = Reclaim {
        leases: vec![ReclaimLease {
            object: root,
            parts: Parts::NAMES,
            mode: Mode::Read,
        }],
        opens: vec![ReclaimOpen { open, token }],
        ..Reclaim::default()
    };
    assert_eq!(reclaim(&mut first, asked).await, (1, 0));
    first.tell(ToServer::ReclaimDone).await;
    let (reply, data) = first.read(open, 0, 10).await;
    assert!(reply.renews);
    assert_eq!(&data[..], b"x", "the open goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_buffered_when_an_orderly_end_begins_comes_in_before_it() {
    let house = House::new();
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (_, open) = client.create("f").await;
    let stopping = tokio::spawn(server.stop());
    let recall = client.recall().await;
    let written = client.write(open, 0, b"buffered").await;
    assert!(written.result.is_ok());
    client.approve(&recall).await;
    assert!(stopping.await.expect("the end"), "complete");
    assert_eq!(std::fs::read(house.path("f")).expect("a file"), b"buffered");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_a_client_does_not_answer_is_not_orderly() {
    let house = House::new();
    let who = Who::enrolled(&house, 1);
    let server = house.serve().await;
    let mut a = who.connect(&server).await;
    a.lookup(a.root(), "d").await;
    let begun = Instant::now();
    assert!(!server.stop().await);
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert!(!house.records.found().clean);
}
