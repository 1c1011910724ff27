//! Strangers that come in numbers and never finish: those who may come are let in as if they weren't there.

mod support;

use bytes::Bytes;
use leasefs_protocol::control::{Hello, ToClient, ToServer};
use leasefs_transport::{Identity, OutFrame, connect};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use support::client::Who;
use support::memory::Ticket;
use support::{House, Running};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

/// Strangers that stay as long as they may, and come back.
const STRANGERS: usize = 300;
/// How many handshakes are begun each second that nobody means to complete.
const BEGUN: u64 = 100;
const ROUNDS: usize = 5;
/// How much later a client may be let in because of all this.
const DELAY: Duration = Duration::from_secs(1);
/// A stranger that was put out comes back after so long, each a little later than the one before: they
/// share their processors with the server here.
const RETURN: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_millis(5);

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Where the attack goes.
#[derive(Clone, Copy)]
struct Goal {
    address: SocketAddr,
    key: leasefs_protocol::KeyHash,
}

impl Goal {
    fn of(server: &Running) -> Self {
        Self {
            address: server.address,
            key: server.key,
        }
    }
}

/// Says nothing once its key is proven.
async fn silent(goal: Goal) -> Result<(), Failed> {
    let connection = connect(goal.address, &Identity::generate()?, goal.key).await?;
    connection.closed().await;
    Ok(())
}

/// Says one byte a second of a hello that never ends.
async fn dripping(goal: Goal) -> Result<(), Failed> {
    let connection = connect(goal.address, &Identity::generate()?, goal.key).await?;
    let (mut control, _reader) = connection.open().await?;
    let mut prefix = 60_000_u32.to_le_bytes().to_vec();
    prefix.extend(0_u32.to_le_bytes());
    control.send_frames([OutFrame::raw(prefix.into())]).await?;
    loop {
        let byte = OutFrame::raw(Bytes::from_static(&[0]));
        control.send_frames([byte]).await?;
        sleep(Duration::from_secs(1)).await;
    }
}

/// Opens streams, as many as it may, and says nothing on the first.
async fn opening(goal: Goal) -> Result<(), Failed> {
    let connection = connect(goal.address, &Identity::generate()?, goal.key).await?;
    let (_control, _reader) = connection.open().await?;
    let mut lanes = Vec::new();
    let more = async {
        loop {
            let (mut lane, reader) = connection.open().await?;
            let junk = OutFrame::raw(Bytes::from_static(&[7; 4096]));
            lane.send_frames([junk]).await?;
            lanes.push((lane, reader));
        }
    };
    let failed: Result<(), Failed> = tokio::select! {
        lost = connection.closed() => Err(lost.into()),
        failed = more => failed,
    };
    failed
}

/// Begins a handshake, shows that it receives at its address if it is asked to, and leaves it at that:
/// nothing but a Retry gets through to it.
async fn half_open(goal: Goal, stay: Duration) -> Result<(), Failed> {
    let relay = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let between = relay.local_addr()?;
    let (key, identity) = (goal.key, Identity::generate()?);
    let attempt = tokio::spawn(async move { connect(between, &identity, key).await });
    let passing = async {
        let (mut datagram, mut client) = ([0; 65_536], None);
        loop {
            let (len, from) = relay.recv_from(&mut datagram).await?;
            let Some(bytes) = datagram.get(..len) else {
                continue;
            };
            if from != goal.address {
                client = Some(from);
                relay.send_to(bytes, goal.address).await?;
            } else if let Some(client) = client
                && bytes.first().is_some_and(|first| first & 0xf0 == 0xf0)
            {
                relay.send_to(bytes, client).await?;
            }
        }
    };
    let passed: Result<Result<(), Failed>, _> = timeout(stay, passing).await;
    attempt.abort();
    passed.unwrap_or(Ok(()))
}

/// All of it, until it is dropped.
fn attack(goal: Goal) -> JoinSet<()> {
    let mut attackers = JoinSet::new();
    for number in 0..STRANGERS {
        attackers.spawn(async move {
            sleep(LATER * number as u32).await;
            loop {
                let _ = match number % 4 {
                    0 => silent(goal).await,
                    1 => dripping(goal).await,
                    2 => opening(goal).await,
                    _ => half_open(goal, Duration::from_secs(10)).await,
                };
                sleep(RETURN + LATER * number as u32).await;
            }
        });
    }
    attackers.spawn(async move {
        let mut begun = JoinSet::new();
        let mut ticks = interval(Duration::from_secs(1) / BEGUN as u32);
        loop {
            ticks.tick().await;
            begun.spawn(half_open(goal, Duration::from_millis(200)));
            while begun.try_join_next().is_some() {}
        }
    });
    attackers
}

/// How long a client takes that tries again as ours does.
async fn let_in(who: &Who, server: &Running, hello: Hello) -> Duration {
    let begun = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        if attempt(who, server, hello.clone()).await.is_ok() {
            return begun.elapsed();
        }
        sleep(pause).await;
        pause = (pause * 2).clamp(Duration::from_millis(50), Duration::from_secs(1));
    }
}

async fn attempt(who: &Who, server: &Running, hello: Hello) -> Result<(), Failed> {
    let connection = connect(server.address, &who.identity, server.key).await?;
    let (mut control, mut told) = connection.open().await?;
    control.send(&ToServer::Hello(hello), Bytes::new()).await?;
    let answer = timeout(Duration::from_secs(5), told.next::<ToClient>()).await??;
    match answer {
        Some((ToClient::Welcome(_), _)) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_strangers_that_never_finish_keep_no_client_waiting() {
    let house = House::new();
    let server = house.serve().await;
    let first = Who::enrolled(&house, 100);
    let alone = let_in(&first, &server, first.hello()).await;
    let attackers = attack(Goal::of(&server));
    sleep(Duration::from_secs(2)).await;
    let mut delays = Vec::new();
    for round in 0..ROUNDS {
        let who = Who::enrolled(&house, round as u8 + 1);
        delays.push(
            let_in(&who, &server, who.hello())
                .await
                .saturating_sub(alone),
        );
        sleep(Duration::from_secs(1)).await;
    }
    // Its key isn't known: all it has is a ticket.
    let newcomer = Who::new(99);
    house.records.ticket([1; 32], Ticket::Fresh);
    let with_ticket = Hello {
        ticket: Some([1; 32]),
        ..newcomer.hello()
    };
    delays.push(
        let_in(&newcomer, &server, with_ticket)
            .await
            .saturating_sub(alone),
    );
    drop(attackers);
    println!("let in after {alone:?}, under attack later by {delays:?}");
    assert!(delays.iter().all(|delay| *delay < DELAY), "{delays:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greeting_that_drags_on_ends_at_its_deadline() {
    let house = House::new();
    let server = house.serve().await;
    let begun = Instant::now();
    let goal = Goal::of(&server);
    let end = Duration::from_secs(20);
    let ended = tokio::join!(
        timeout(end, silent(goal)),
        timeout(end, dripping(goal)),
        timeout(end, opening(goal)),
    );
    assert!(ended.0.is_ok() && ended.1.is_ok() && ended.2.is_ok());
    let took = begun.elapsed();
    let deadline = leasefs_protocol::limits::HELLO_TIMEOUT;
    assert!(took < deadline + Duration::from_secs(2), "{took:?}");
}
