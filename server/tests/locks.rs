//! Locks as clients ask for them that say exactly what they are told to, and such that mean to take what isn't theirs.

mod support;

use leasefs_protocol::control::{Push, Reclaim, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_LOCK_WAITS, MAX_LOCKS_OF_FILE};
use leasefs_protocol::lock::{FileLocks, LockGranted, LockOutcome};
use leasefs_protocol::{
    Fence, Handle, HeldLock, LockEpoch, LockKind, LockMode, LockOwner, LockRange, LockWait, OpenId,
    Query, Refusal, Response, Stamp, query,
};
use std::fs;
use std::time::Duration;
use support::client::{Client, LONG, Who, numbered, write};
use support::{House, Running};
use tokio::time::{sleep, timeout};

fn range(first: u64, last: u64) -> LockRange {
    LockRange::new(first, last).expect("a range")
}

fn lock(open: OpenId, owner: u64, range: LockRange, wait: Option<u64>) -> Query {
    Query::Lock(query::Lock {
        open,
        owner: LockOwner(owner),
        kind: LockKind::Posix,
        mode: LockMode::Exclusive,
        range,
        pid: owner as u32,
        wait: wait.map(LockWait),
    })
}

fn unlock(object: Handle, owner: u64) -> Query {
    Query::Unlock(query::Unlock {
        object,
        owner: LockOwner(owner),
        kind: LockKind::Posix,
        range: LockRange::ALL,
    })
}

async fn outcome(client: &mut Client, asked: Query) -> LockOutcome {
    match client.ask(asked).await.result {
        Ok(Response::Locked(locked)) => locked.outcome,
        other => panic!("no answer to a lock: {other:?}"),
    }
}

fn is_granted(outcome: &LockOutcome) -> bool {
    matches!(outcome, LockOutcome::Granted { .. })
}

/// A file, and two clients that have it open, with a lock each: neither decides its locks.
async fn two(house: &House, server: &Running) -> [(Client, Handle, OpenId); 2] {
    fs::write(house.path("f"), b"data").expect("a file");
    let mut both = Vec::new();
    for number in [1, 2] {
        let mut client = Who::enrolled(house, number).connect(server).await;
        let (object, _) = client.lookup(client.root(), "f").await.expect("there");
        let open = client.open(object, libc::O_RDWR).await;
        both.push((client, object, open));
    }
    let Ok([mut a, mut b]): Result<[_; 2], _> = both.try_into() else {
        panic!("two");
    };
    assert!(is_granted(
        &outcome(&mut a.0, lock(a.2, 1, range(1000, 1000), None)).await
    ));
    let asked = b.0.frame(lock(b.2, 1, range(2000, 2000), None));
    b.0.send(&asked, &[]).await;
    // What it held when it was given the right it holds still.
    let recall = a.0.recall().await;
    a.0.approve(&recall).await;
    let (reply, _) = b.0.reply().await;
    assert!(matches!(reply.result, Ok(Response::Locked(locked)) if is_granted(&locked.outcome)));
    [a, b]
}

async fn granted(client: &mut Client) -> LockGranted {
    match client.pushed().await {
        Push::LockGranted(granted) => granted,
        other => panic!("no lock: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_told_when_the_lock_is_his() {
    let house = House::new();
    let server = house.serve().await;
    let [mut a, mut b] = two(&house, &server).await;
    assert!(is_granted(
        &outcome(&mut a.0, lock(a.2, 7, range(0, 9), None)).await
    ));
    let waits = lock(b.2, 8, range(5, 20), Some(3));
    assert_eq!(outcome(&mut b.0, waits.clone()).await, LockOutcome::Waits);
    assert_eq!(
        outcome(&mut b.0, lock(b.2, 8, range(5, 20), None)).await,
        LockOutcome::Conflicts
    );
    a.0.ask(unlock(a.1, 7)).await.result.expect("unlocked");
    assert_eq!(granted(&mut b.0).await.wait, LockWait(3));
    assert!(
        is_granted(&outcome(&mut b.0, waits).await),
        "asked again it does no more"
    );
    let status = server.server.status();
    assert!(
        status
            .locks
            .iter()
            .any(|lock| lock.first == 5 && lock.token.is_some())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_leaves_his_locks() {
    let house = House::new();
    let server = house.serve().await;
    let [a, mut b] = two(&house, &server).await;
    assert_eq!(
        outcome(&mut b.0, lock(b.2, 1, LockRange::ALL, Some(3))).await,
        LockOutcome::Waits
    );
    let mut a = a.0;
    a.tell(ToServer::Goodbye).await;
    granted(&mut b.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_another_tenure_is_not_carried_out() {
    let house = House::new();
    let server = house.serve().await;
    let [mut a, mut b] = two(&house, &server).await;
    let mut epochs = Vec::new();
    for _ in 0..2 {
        let reset = a.0.ask(Query::ResetLocks(query::ResetLocks)).await;
        match reset.result {
            Ok(Response::Unlocked(unlocked)) => epochs.push(unlocked.epoch),
            other => panic!("{other:?}"),
        }
    }
    for (epoch, expected) in [(epochs[0], Err(Refusal::LockLost)), (epochs[1], Ok(()))] {
        let mut frame = a.0.frame(write(a.2, 0));
        numbered(&mut frame).locked = Some(epoch);
        a.0.send(&frame, b"late").await;
        if expected.is_err() {
            // What the other has looked up stands against both.
            let recall = b.0.recall().await;
            b.0.approve(&recall).await;
        }
        let (reply, _) = a.0.reply().await;
        assert_eq!(reply.result.map(drop), expected);
        let there = fs::read(house.path("f")).expect("the file");
        assert_eq!(there == b"late", expected.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_bytes_needs_an_open_for_what_it_keeps_others_from() {
    let house = House::new();
    let server = house.serve().await;
    let [mut a, _b] = two(&house, &server).await;
    let of = |open, kind, mode| {
        let Query::Lock(asked) = lock(open, 1, LockRange::ALL, None) else {
            unreachable!("it is a lock");
        };
        Query::Lock(query::Lock {
            kind,
            mode,
            ..asked
        })
    };
    let exclusive = (LockKind::Posix, LockMode::Exclusive);
    let shared = (LockKind::Posix, LockMode::Shared);
    for (flags, (kind, mode)) in [(libc::O_RDONLY, exclusive), (libc::O_WRONLY, shared)] {
        let open = a.0.open(a.1, flags).await;
        let ebadf = Refusal::Host(libc::EBADF as u16);
        assert_eq!(a.0.refusal(of(open, kind, mode)).await, ebadf, "fcntl(2)");
        let whole = of(open, LockKind::Flock, LockMode::Exclusive);
        assert!(is_granted(&outcome(&mut a.0, whole).await), "flock(2)");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_needs_an_open_file_and_a_range_that_can_be() {
    let house = House::new();
    let server = house.serve().await;
    let [mut a, _b] = two(&house, &server).await;
    let unknown = lock(OpenId(1 << 60), 1, range(0, 1), None);
    assert_eq!(a.0.refusal(unknown).await, Refusal::BadOpen);
    let dir = a.0.open(a.0.root(), libc::O_DIRECTORY).await;
    assert_eq!(
        a.0.refusal(lock(dir, 1, range(0, 1), None)).await,
        Refusal::BadOpen
    );
    // As bytes: no such range can be made.
    let backwards: LockRange = serde_json::from_str(r#"{"first":5,"last":3}"#).expect("a range");
    assert_eq!(
        a.0.refusal(lock(a.2, 1, backwards, None)).await,
        Refusal::Invalid
    );
    let flock = Query::Lock(query::Lock {
        open: a.2,
        owner: LockOwner(1),
        kind: LockKind::Flock,
        mode: LockMode::Shared,
        range: range(0, 1),
        pid: 0,
        wait: None,
    });
    assert_eq!(a.0.refusal(flock).await, Refusal::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_and_waits_of_a_client_are_bounded() {
    const ENOLCK: Refusal = Refusal::Host(libc::ENOLCK as u16);
    let house = House::new();
    let server = house.serve().await;
    let [mut a, mut b] = two(&house, &server).await;
    let mut held = 1;
    loop {
        let byte = 10_000 + 2 * held as u64;
        let asked = lock(a.2, 7, range(byte, byte), None);
        match a.0.ask(asked).await.result {
            Ok(Response::Locked(locked)) if is_granted(&locked.outcome) => held += 1,
            Err(refusal) => break assert_eq!(refusal, ENOLCK),
            other => panic!("{other:?}"),
        }
        assert!(held <= MAX_LOCKS_OF_FILE);
    }
    assert!(held > MAX_LOCKS_OF_FILE / 2, "{held}");
    for wait in 0..MAX_LOCK_WAITS as u64 {
        let asked = lock(b.2, wait + 10, range(1000, 1000), Some(wait));
        assert_eq!(outcome(&mut b.0, asked).await, LockOutcome::Waits);
    }
    let more = lock(b.2, 9, range(1000, 1000), Some(1 << 40));
    assert_eq!(b.0.refusal(more).await, ENOLCK);
    assert!(server.server.leases.check_invariants().is_ok());
}

fn claim(object: Handle, locks: usize) -> FileLocks {
    let held = |number: u64| HeldLock {
        owner: LockOwner(1),
        kind: LockKind::Posix,
        mode: LockMode::Exclusive,
        range: range(2 * number, 2 * number),
        pid: 1,
        fence: Fence(number),
    };
    FileLocks {
        object,
        delegation: Stamp(1),
        locks: (0..locks as u64).map(held).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_been_given_to_decide_is_not_taken_by_saying_so() {
    let house = House::new();
    let server = house.serve().await;
    let [mut a, mut b] = two(&house, &server).await;
    a.0.tell(ToServer::Held(vec![claim(a.1, 1)])).await;
    let reclaim = Reclaim {
        locks: vec![claim(a.1, 1)],
        epoch: LockEpoch(9),
        ..Reclaim::default()
    };
    a.0.tell(ToServer::Reclaim(reclaim)).await;
    match a.0.told().await {
        ToClient::Reclaimed { lost_locks, .. } => assert_eq!(lost_locks, [a.1]),
        other => panic!("{other:?}"),
    }
    assert!(is_granted(
        &outcome(&mut b.0, lock(b.2, 8, range(0, 99), None)).await
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_locks_than_a_message_may_tell_end_the_connection() {
    let house = House::new();
    let server = house.serve().await;
    let [mut a, _b] = two(&house, &server).await;
    a.0.tell(ToServer::Held(vec![claim(a.1, MAX_LOCKS_OF_FILE + 1)]))
        .await;
    let closed = async {
        while server.server.status().violations == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, closed).await.expect("closed");
}
