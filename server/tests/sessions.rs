//! Two sessions and a server: leases, recalls, answers that are lost, connections that are replaced.

mod support;

use leasefs_protocol::control::{HelloRefusal, Standing, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_SESSIONS_PER_CLIENT, SESSION_COURTESY};
use leasefs_protocol::{
    Parts, Query, Refusal, Release, Response, Scope, Seq, SessionId, Stamp, answer, query,
};
use std::collections::HashMap;
use std::time::Duration;
use support::House;
use support::client::{Who, mkdir, numbered, raw, read, write};
use support::memory::At;
use tokio::time::timeout;

/// Long enough to notice that something waits.
const A_WHILE: Duration = Duration::from_millis(150);

fn granted(reply: &leasefs_protocol::Reply, object: leasefs_protocol::Handle) -> Parts {
    let of_object = reply.grants.iter().filter(|g| g.object == object);
    of_object.fold(Parts::NONE, |all, grant| all | grant.parts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_and_a_read_grant_leases_and_the_data_comes_back() {
    let house = House::new();
    std::fs::write(house.path("f"), b"hello").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let request = Query::Lookup(query::Lookup {
        dir: root,
        name: raw("f"),
    });
    let reply = a.ask(request).await;
    assert!(reply.renews);
    let Ok(Response::Object(answer::Object { handle, attr })) = reply.result else {
        panic!("not found: {reply:?}");
    };
    assert_eq!(attr.size, 5);
    assert!(granted(&reply, root).contains(Parts::NAMES));
    assert!(granted(&reply, handle).contains(Parts::ATTRS));
    let open = a.open(handle, libc::O_RDONLY).await;
    let (reply, data) = a.read(open, 0, 4096).await;
    assert_eq!(&data[..], b"hello");
    assert!(granted(&reply, handle).contains(Parts::DATA));
    assert_eq!(a.lookup(root, "nothing").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_as_many_sessions_as_it_may_have_gets_another_for_one_that_is_away() {
    let house = House::new();
    let server = house.serve_with(Duration::from_secs(1), |_| ()).await;
    let mut who = Who::enrolled(&house, 0);
    let mut hello = |number: u8| {
        who.session = SessionId([number; 16]);
        who.clone()
    };
    let mut all = Vec::new();
    for number in 1..=MAX_SESSIONS_PER_CLIENT as u8 {
        all.push(hello(number).connect(&server).await);
    }
    let next = hello(200);
    let refused = next.connect_with(&server, next.hello()).await.err();
    assert!(
        matches!(refused, Some(HelloRefusal::TooMany(_))),
        "all are there: {refused:?}"
    );
    // None says anything more, so that their leases end and they are cut off.
    let let_in = async {
        loop {
            match next.connect_with(&server, next.hello()).await {
                Ok(_) => break,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    timeout(Duration::from_secs(30), let_in)
        .await
        .expect("let in");
}

/// The same client and name may be those of two that live, as machines cloned with their key have them.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_leases_have_ended_outlasts_another_of_its_client_and_name_with_opens_and_answers()
 {
    let house = House::new();
    let server = house.serve_with(Duration::from_secs(1), |_| ()).await;
    let who = Who::enrolled(&house, 1);
    let mut away = who.connect(&server).await;
    let (_, open) = away.create("f").await;
    let mut frame = away.frame(mkdir(away.root(), raw("d")));
    away.send(&frame, b"").await;
    let answered = away.reply().await.0;
    // It says nothing more, so that its leases end and it is cut off.
    let lost = timeout(Duration::from_secs(20), away.connection.closed()).await;
    assert!(lost.is_ok(), "its leases end");
    let mut other = who.clone();
    other.session = SessionId([2; 16]);
    let _other = other.connect(&server).await;
    let sessions = server.server.status().sessions;
    let kept = sessions
        .iter()
        .find(|one| one.session == who.session.to_string());
    let kept = kept.expect("it is kept");
    assert_eq!((kept.expires_ms, kept.opens), (None, 1), "{kept:?}");
    let hour = SESSION_COURTESY.as_millis() as u64;
    let left = kept.kept_ms.expect("it is away");
    assert!((hour - 30_000..=hour).contains(&left), "{left}");
    // What it has written under leases that have ended must not go over what others wrote since.
    let unheard = who.connect(&server).await;
    assert_eq!(unheard.welcome.standing, Standing::Expired);
    let mut again = who.connect(&server).await;
    again.take_over(&away);
    assert_eq!(again.welcome.standing, Standing::Expired);
    numbered(&mut frame).resent = true;
    again.send(&frame, b"").await;
    assert_eq!(again.reply().await.0.result, answered.result, "not EEXIST");
    assert!(again.read(open, 0, 1).await.0.result.is_ok());
    let heard = who.connect(&server).await;
    assert_eq!(heard.welcome.standing, Standing::Resumed);
}

/// Else it would send again what an earlier session has done, and take this one's opens for those it had.
#[tokio::test(flavor = "multi_thread")]
async fn that_a_session_begins_is_said_until_its_client_has_said_something_in_it() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    for _ in 0..3 {
        let unheard = who.connect(&server).await;
        assert_eq!(unheard.welcome.standing, Standing::New);
    }
    let mut heard = who.connect(&server).await;
    assert_eq!(heard.welcome.standing, Standing::New);
    heard.getattr(heard.root()).await;
    let again = who.connect(&server).await;
    assert_eq!(again.welcome.standing, Standing::Resumed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_until_the_reader_has_approved_and_is_then_seen() {
    let house = House::new();
    std::fs::write(house.path("f"), b"old").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    let (handle, _) = a.lookup(root, "f").await.expect("there");
    let reading = a.open(handle, libc::O_RDONLY).await;
    a.read(reading, 0, 10).await;
    let writing = b.open(handle, libc::O_WRONLY).await;
    let frame = b.frame(write(writing, 0));
    b.send(&frame, b"new").await;
    let recall = a.recall().await;
    assert!(matches!(&recall.scope, Scope::Object { object, .. } if *object == handle));
    assert!(timeout(A_WHILE, b.reply()).await.is_err(), "it waits");
    a.approve(&recall).await;
    let (reply, _) = b.reply().await;
    let expected = Response::Written(answer::Written::plain(3, 0));
    assert_eq!(reply.result, Ok(expected));
    assert_eq!(reply.touched.len(), 1);
    let (_, data) = a.read(reading, 0, 10).await;
    assert_eq!(&data[..], b"new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_recalls_just_the_name_from_others() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    assert_eq!(a.lookup(root, "x").await, None);
    let request = b.create_request("x", libc::O_RDWR);
    let frame = b.frame(request);
    b.send(&frame, b"").await;
    let recall = a.recall().await;
    let Scope::Object { names, parts, .. } = &recall.scope else {
        panic!("not of an object: {recall:?}");
    };
    assert_eq!(names, &[raw("x")]);
    assert!(!parts.contains(Parts::NAMES));
    a.approve(&recall).await;
    assert!(b.reply().await.0.result.is_ok());
    assert!(a.lookup(root, "x").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_was_lost_gets_it_again_and_does_not_run_again() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    let request = mkdir(a.root(), raw("d"));
    let mut frame = a.frame(request);
    a.send(&frame, b"").await;
    let first = a.reply().await.0;
    assert!(first.result.is_ok());
    let mut again = who.connect(&server).await;
    assert_eq!(again.welcome.standing, Standing::Resumed);
    numbered(&mut frame).resent = true;
    again.send(&frame, b"").await;
    let second = again.reply().await.0;
    assert_eq!(second.result, first.result, "not EEXIST");
    assert_eq!(second.stamp, first.stamp);
    again.low_water = Seq(2);
    again.getattr(again.root()).await;
    again.send(&frame, b"").await;
    let third = again.reply().await.0;
    assert_eq!(third.result, Err(Refusal::Cancelled), "forgotten, not run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_change_survives_its_connection_and_answers_on_the_next() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    assert_eq!(a.lookup(root, "d").await, None);
    let who = Who::enrolled(&house, 2);
    let mut b = who.connect(&server).await;
    let mut frame = b.frame(mkdir(root, raw("d")));
    b.send(&frame, b"").await;
    let recall = a.recall().await;
    let mut again = who.connect(&server).await;
    numbered(&mut frame).resent = true;
    again.send(&frame, b"").await;
    assert!(timeout(A_WHILE, again.reply()).await.is_err(), "it waits");
    a.approve(&recall).await;
    assert!(again.reply().await.0.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_fences_the_older_and_gets_unapproved_recalls_first() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    let root = a.root();
    a.lookup(root, "d").await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let frame = b.frame(mkdir(root, raw("d")));
    b.send(&frame, b"").await;
    let first = a.recall().await;
    let mut newer = who.connect(&server).await;
    let lost = timeout(Duration::from_secs(5), a.connection.closed()).await;
    assert!(format!("{:?}", lost.expect("closed")).contains("Fenced"));
    let again = newer.recall().await;
    assert_eq!(again.id, first.id);
    newer.approve(&again).await;
    assert!(b.reply().await.0.result.is_ok());
}

/// It may be of an earlier session of the same number, whose recalls and stamps had the same numbers.
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_or_release_of_another_connection_counts_for_nothing() {
    const OTHER: u64 = u64::MAX;
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    let root = a.root();
    a.lookup(root, "d").await;
    let release = Release {
        object: root,
        parts: Parts::ALL,
        seen: Stamp(u64::MAX),
    };
    let leases = &server.server.leases;
    leases.release(who.session, OTHER, vec![release]);
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let frame = b.frame(mkdir(root, raw("d")));
    b.send(&frame, b"").await;
    let recall = a.recall().await;
    leases.approve(who.session, OTHER, [recall.id]);
    assert!(timeout(A_WHILE, b.reply()).await.is_err(), "it waits");
    a.approve(&recall).await;
    assert!(b.reply().await.0.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_begins_while_an_earlier_one_of_its_number_leaves_the_record_stays_on_it() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    let held = house.records.hold(At::Forget);
    a.tell(ToServer::Goodbye).await;
    held.reached().await;
    let frees = async {
        tokio::time::sleep(A_WHILE).await;
        drop(held);
    };
    let (again, ()) = tokio::join!(who.connect(&server), frees);
    assert_eq!(again.welcome.standing, Standing::New);
    tokio::time::sleep(A_WHILE).await;
    assert!(house.records.is_leased(who.session));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_run_behind_those_they_follow() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let first = a.frame(mkdir(root, raw("d")));
    let mut second = a.frame(mkdir(root, raw("d")));
    numbered(&mut second).after = vec![Seq(1)];
    a.send(&second, b"").await;
    assert!(timeout(A_WHILE, a.reply()).await.is_err(), "it waits");
    a.send(&first, b"").await;
    let mut results = HashMap::new();
    for _ in 0..2 {
        let reply = a.reply().await.0;
        results.insert(reply.id, reply.result);
    }
    assert!(results[&first.id].is_ok(), "{results:?}");
    let Err(refusal) = &results[&second.id] else {
        panic!("it ran before what it follows: {results:?}");
    };
    assert_eq!(refusal.errno(), libc::EEXIST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_change_that_waits_never_happens() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    a.lookup(root, "d").await;
    let frame = b.frame(mkdir(root, raw("d")));
    b.send(&frame, b"").await;
    let recall = a.recall().await;
    b.tell(ToServer::Cancel { seq: Seq(1) }).await;
    let expected = ToClient::Cancelled {
        seq: Seq(1),
        begun: false,
    };
    assert_eq!(b.told().await, expected);
    assert_eq!(b.reply().await.0.result, Err(Refusal::Cancelled));
    a.approve(&recall).await;
    assert_eq!(b.lookup(root, "d").await, None);
    a.tell(ToServer::Goodbye).await;
    b.mkdir("e").await.result.expect("later changes run");
    b.tell(ToServer::Cancel { seq: Seq(2) }).await;
    let expected = ToClient::Cancelled {
        seq: Seq(2),
        begun: true,
    };
    assert_eq!(b.told().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_never_answers_delays_a_change_by_one_term() {
    let house = House::new();
    let server = house.serve_with(Duration::from_secs(1), |_| ()).await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    a.lookup(root, "d").await;
    let begun = std::time::Instant::now();
    let frame = b.frame(mkdir(root, raw("d")));
    b.send(&frame, b"").await;
    let reply = loop {
        b.tell(ToServer::KeepAlive { number: 0 }).await;
        if let Ok(reply) = timeout(Duration::from_millis(200), b.reply()).await {
            break reply.0;
        }
    };
    assert!(reply.result.is_ok());
    assert!(begun.elapsed() < Duration::from_millis(1300));
    let lost = timeout(Duration::from_secs(5), a.connection.closed()).await;
    assert!(lost.is_ok(), "an expired session must connect again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keep_alive_is_answered_while_requests_wait() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    a.lookup(root, "d").await;
    let frame = b.frame(mkdir(root, raw("d")));
    b.send(&frame, b"").await;
    a.recall().await;
    b.tell(ToServer::KeepAlive { number: 7 }).await;
    let expected = ToClient::KeepAlive {
        number: 7,
        renews: true,
    };
    assert_eq!(b.told().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn goodbye_releases_everything_at_once() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    a.create("f").await;
    a.tell(ToServer::Goodbye).await;
    assert_eq!(a.told().await, ToClient::Farewell);
    assert!(b.mkdir("d").await.result.is_ok());
    assert_eq!(server.server.status().sessions.len(), 1);
    let _ = root;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_asked_behind_a_goodbye_is_done_or_kept() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    a.tell(ToServer::Goodbye).await;
    assert_eq!(a.told().await, ToClient::Farewell);
    let frame = a.frame(mkdir(a.root(), raw("late")));
    a.send(&frame, b"").await;
    tokio::time::sleep(A_WHILE).await;
    assert!(!house.path("late").exists());
    assert_eq!(house.records.answers(who.session), 0);
}

/// Its client says goodbye by one connection while it says hello by another.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_while_it_is_put_on_record_is_not_left_there() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    let held = house.records.hold(At::Record);
    let (again, address, key) = (who.clone(), server.address, server.key);
    let hello = tokio::spawn(async move {
        let let_in = again.connect_to(address, key, again.hello()).await;
        let_in.is_ok()
    });
    held.reached().await;
    a.tell(ToServer::Goodbye).await;
    tokio::time::sleep(A_WHILE).await;
    drop(held);
    // Refused, or its connection is closed.
    assert!(!matches!(hello.await, Ok(true)));
    tokio::time::sleep(A_WHILE).await;
    assert!(!house.records.has_session(who.session));
    assert!(server.server.status().sessions.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_an_existing_name_opens_it_and_truncates_only_if_asked() {
    let house = House::new();
    std::fs::write(house.path("f"), b"hello").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let (handle, open) = a.create("f").await;
    assert_eq!(&a.read(open, 0, 10).await.1[..], b"hello");
    let request = a.create_request("f", libc::O_RDWR | libc::O_EXCL);
    assert_eq!(a.refusal(request).await.errno(), libc::EEXIST);
    let request = a.create_request("f", libc::O_RDWR | libc::O_TRUNC);
    let mut frame = a.frame(request);
    numbered(&mut frame).dropped.push(handle);
    a.send(&frame, b"").await;
    assert!(a.reply().await.0.result.is_ok());
    assert_eq!(&a.read(open, 0, 10).await.1[..], b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_opens_are_bad_and_opens_are_not_shared_between_sessions() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let (_, open) = a.create("f").await;
    assert_eq!(b.refusal(read(open, 0, 1)).await, Refusal::BadOpen);
    assert!(
        a.ask(Query::Close(query::Close { opens: vec![open] }))
            .await
            .result
            .is_ok()
    );
    assert_eq!(a.refusal(read(open, 0, 1)).await, Refusal::BadOpen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_with_nodes_covers_every_entry() {
    let house = House::new();
    for name in ["a", "b", "c"] {
        std::fs::write(house.path(name), name).expect("a file");
    }
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let open = a.open(root, libc::O_RDONLY | libc::O_DIRECTORY).await;
    let request = Query::ReadDir(query::ReadDir {
        open,
        cookie: 0,
        nodes: true,
    });
    let reply = a.ask(request).await;
    assert!(granted(&reply, root).contains(Parts::LISTING | Parts::NAMES));
    let Ok(Response::Entries(answer::Entries { entries, end })) = &reply.result else {
        panic!("no listing: {reply:?}");
    };
    assert!(*end && entries.len() == 3);
    for entry in entries {
        let (handle, attr) = entry.node.expect("a node");
        assert_eq!(attr.size, 1);
        assert!(granted(&reply, handle).contains(Parts::ATTRS));
    }
}

/// A request by the number may be on its way still when its client finds that its session has begun anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_an_open_is_never_given_again() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut before = who.connect(&server).await;
    let (_, open) = before.create("f").await;
    before.tell(ToServer::Goodbye).await;
    assert_eq!(before.told().await, ToClient::Farewell);
    let another = Who {
        session: SessionId([9; 16]),
        ..who.clone()
    };
    let mut after = another.connect(&server).await;
    for name in ["a", "b", "c"] {
        assert_ne!(after.create(name).await.1, open);
    }
    let (reply, _) = after.read(open, 0, 1).await;
    assert_eq!(reply.result, Err(Refusal::BadOpen));
}
