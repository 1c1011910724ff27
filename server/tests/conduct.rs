//! Clients that hold others up on purpose, and what they may not have at all.

mod support;

use leasefs_protocol::control::{ToClient, ToServer};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Change, Handle, Mode, OpenId, Query, Reply, Response, Seq, SessionId, answer, change, query,
};
use std::time::{Duration, Instant};
use support::client::{Client, Who, raw, read, write};
use support::{House, Running};
use tokio::time::timeout;

const FILES: usize = 10;

fn modes(reply: &Reply, object: Handle) -> Vec<Mode> {
    let grants = reply.grants.iter().filter(|g| g.object == object);
    grants.map(|grant| grant.mode).collect()
}

async fn handles(client: &mut Client) -> Vec<Handle> {
    let mut handles = Vec::new();
    for number in 0..FILES {
        let found = client.lookup(client.root(), &format!("f{number}")).await;
        handles.push(found.expect("there").0);
    }
    handles
}

/// Takes leases on all the files; how many it gets.
async fn hold(client: &mut Client, files: &[Handle]) -> usize {
    let mut held = 0;
    for file in files {
        held += client.getattr(*file).await.grants.len();
    }
    held
}

/// Writes and keeps its session alive while that takes.
async fn write_patiently(client: &mut Client, open: OpenId) -> Reply {
    let frame = client.frame(write(open, 0));
    client.send(&frame, b"new").await;
    loop {
        let answer = timeout(Duration::from_millis(200), client.lane_in.next()).await;
        if let Ok(answer) = answer {
            return answer.expect("a frame").expect("not the end").0;
        }
        client.tell(ToServer::KeepAlive { number: 1 }).await;
        client.told().await;
    }
}

fn files(house: &House) {
    for number in 0..FILES {
        std::fs::write(house.path(&format!("f{number}")), b"old").expect("a file");
    }
}

fn denied(server: &Running, session: SessionId) -> Option<u64> {
    let status = server.server.status();
    let mut of = status
        .sessions
        .iter()
        .filter(|s| s.session == session.to_string());
    of.next().expect("known").denied_ms
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_approves_costs_others_one_term_whatever_it_holds_and_how_often_it_comes()
 {
    let term = Duration::from_secs(3);
    let house = House::new();
    files(&house);
    let server = house.serve_with(term, |_| ()).await;
    let hostile = Who::enrolled(&house, 1);
    let mut victim = Who::enrolled(&house, 200).connect(&server).await;
    let objects = handles(&mut victim).await;
    let mut opens = Vec::new();
    for object in &objects {
        opens.push(victim.open(*object, libc::O_WRONLY).await);
    }
    let mut delayed = Duration::ZERO;
    let mut connections = Vec::new();
    for round in 1..=10 {
        let session = SessionId([round; 16]);
        let who = Who {
            session,
            ..hostile.clone()
        };
        let mut client = who.connect(&server).await;
        let held = hold(&mut client, &objects).await;
        assert_eq!(held > 0, round == 1, "{held} leases in round {round}");
        connections.push(client);
        for open in &opens {
            let begun = Instant::now();
            let reply = write_patiently(&mut victim, *open).await;
            assert!(reply.result.is_ok(), "{reply:?}");
            delayed += begun.elapsed();
        }
        assert!(denied(&server, session).is_some());
    }
    assert!(delayed > term / 2, "nothing was held: {delayed:?}");
    assert!(delayed < term + Duration::from_secs(1), "{delayed:?}");
    assert_eq!(denied(&server, victim.session), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_made_beforehand_cost_no_term_each() {
    let term = Duration::from_secs(2);
    let house = House::new();
    files(&house);
    let server = house.serve_with(term, |_| ()).await;
    let hostile = Who::enrolled(&house, 1);
    let mut victim = Who::enrolled(&house, 200).connect(&server).await;
    let objects = handles(&mut victim).await;
    let mut renewing = Vec::new();
    for (number, object) in (1..).zip(&objects) {
        let who = Who {
            session: SessionId([number; 16]),
            ..hostile.clone()
        };
        let mut client = who.connect(&server).await;
        assert_eq!(client.getattr(*object).await.grants.len(), 1);
        renewing.push(tokio::spawn(async move {
            loop {
                client.tell(ToServer::KeepAlive { number: 1 }).await;
                client.told().await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }));
    }
    let begun = Instant::now();
    for object in &objects {
        let open = victim.open(*object, libc::O_WRONLY).await;
        let reply = write_patiently(&mut victim, open).await;
        assert!(reply.result.is_ok(), "{reply:?}");
    }
    // The first, then all others at once.
    let took = begun.elapsed();
    assert!(took < 2 * term + Duration::from_secs(1), "{took:?}");
    renewing.into_iter().for_each(|task| task.abort());
}

fn fill_for_store(open: OpenId) -> Query {
    Query::Read(query::Read {
        open,
        offset: 0,
        len: 4096,
        fill: Fill::PagesForStore,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_client_never_gets_an_exclusive_lease() {
    let house = House::new();
    files(&house);
    let server = house.serve().await;
    let who = Who::new(1);
    house.records.enrol(who.identity.key_hash(), true);
    let mut client = who.connect(&server).await;
    let (object, _) = client.lookup(client.root(), "f0").await.expect("there");
    let open = client.open(object, libc::O_RDONLY).await;
    let reply = client.ask(fill_for_store(open)).await;
    assert_eq!(modes(&reply, object), [Mode::Read], "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_for_reading_never_gets_an_exclusive_lease() {
    let house = House::new();
    files(&house);
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (object, _) = client.lookup(client.root(), "f0").await.expect("there");
    let open = client.open(object, libc::O_RDONLY).await;
    let reply = client.ask(fill_for_store(open)).await;
    assert_eq!(modes(&reply, object), [Mode::Read], "{reply:?}");
    let Change::Create(change::Create {
        dir, mode, umask, ..
    }) = client.create_request("made", 0)
    else {
        panic!("a create");
    };
    let create = Change::Create(change::Create {
        dir,
        name: raw("made"),
        mode,
        umask,
        flags: (libc::O_CREAT | libc::O_RDONLY) as u32,
        keep: true,
    });
    let reply = client.ask(create).await;
    let Ok(Response::Created(answer::Created { handle, .. })) = reply.result else {
        panic!("{reply:?}");
    };
    assert!(!modes(&reply, handle).contains(&Mode::Write), "{reply:?}");
    // Another open of the mount can store into the pages: then whichever descriptor reads them.
    let writing = client.open(object, libc::O_RDWR).await;
    let reply = client.ask(fill_for_store(open)).await;
    assert_eq!(modes(&reply, object), [Mode::Write], "{reply:?}");
    let closes = Query::Close(query::Close {
        opens: vec![writing],
    });
    assert!(client.ask(closes).await.result.is_ok());
    let reply = client.ask(fill_for_store(open)).await;
    assert!(!modes(&reply, object).contains(&Mode::Write), "{reply:?}");
}

#[tokio::test]
async fn a_slow_journal_keeps_nobody_elses_keep_alives_and_cached_reads_waiting() {
    let house = House::new();
    files(&house);
    let server = house.serve().await;
    let mut busy = Who::enrolled(&house, 1).connect(&server).await;
    let mut other = Who::enrolled(&house, 2).connect(&server).await;
    let (object, _) = other.lookup(other.root(), "f0").await.expect("there");
    let open = other.open(object, libc::O_RDWR).await;
    assert!(other.write(open, 0, b"new").await.result.is_ok());
    other.read(open, 0, 3).await;
    let (busy_with, _) = busy.lookup(busy.root(), "f1").await.expect("there");
    let writing = busy.open(busy_with, libc::O_WRONLY).await;
    house.records.slow_down(Duration::from_millis(300));
    for _ in 0..4 {
        let frame = busy.frame(write(writing, 0));
        busy.send(&frame, b"new").await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Its change has been answered: what is journalled of it may go.
    other.low_water = Seq(2);
    let mut times = Vec::new();
    for round in 0..5 {
        let begun = Instant::now();
        other.tell(ToServer::KeepAlive { number: round }).await;
        let ToClient::KeepAlive { .. } = other.told().await else {
            panic!("no keep-alive");
        };
        let (reply, data) = other.ask_with(read(open, 0, 3), b"").await;
        assert!(reply.result.is_ok() && &data[..] == b"new");
        times.push(begun.elapsed());
    }
    // One turn at the journal takes longer.
    let longest = times.iter().max().expect("rounds");
    assert!(*longest < Duration::from_millis(250), "{times:?}");
    house.records.slow_down(Duration::ZERO);
    for _ in 0..4 {
        assert!(busy.reply().await.0.result.is_ok());
    }
    assert!(other.write(open, 0, b"end").await.result.is_ok());
}
