//! What a client can make the server keep, and take from others, tried by clients that mean to.

mod support;

use bytes::Bytes;
use leasefs_protocol::control::{Hello, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_ANSWERS, MAX_BATCH, MAX_TOUCHED};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Handle, KeyHash, Mode, Numbered, OpenId, Query, Refusal, Response, Seq, SessionId, answer,
    query,
};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use support::client::{Client, LONG, Who, mkdir, numbered, raw};
use support::process::{Estate, Process};
use support::{House, Running};
use tokio::time::{sleep, timeout};

/// Waits until the server has closed connections for what their clients did. (Of a client that goes on
/// sending, the reason may be lost on its way.)
async fn closed(server: &Running, connections: u64) {
    let ended = async {
        while server.server.status().violations < connections {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, ended).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_cancelled_without_end_end_the_connection() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut control = a.control;
    let cancels = async move {
        for n in 1..=3 * MAX_ANSWERS as u64 {
            let cancel = ToServer::Cancel { seq: Seq(n * 2) };
            if control.send(&cancel, Bytes::new()).await.is_err() {
                return;
            }
        }
    };
    let answers = async { while let Ok(Some(_)) = a.control_in.next::<ToClient>().await {} };
    let both = async { tokio::join!(cancels, answers) };
    tokio::select! {
        () = closed(&server, 1) => (),
        _ = both => closed(&server, 1).await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_drops_more_than_it_can_touch_ends_the_connection() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let mut frame = a.frame(mkdir(root, raw("d")));
    *numbered(&mut frame) = Numbered {
        seq: Seq(1),
        after: Vec::new(),
        resent: false,
        dropped: vec![root; MAX_TOUCHED + 1],
        closed: Vec::new(),
        locked: None,
    };
    a.send(&frame, b"").await;
    closed(&server, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_closes_more_than_a_message_may_ends_the_connection() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut frame = a.frame(mkdir(a.root(), raw("d")));
    numbered(&mut frame).closed = vec![OpenId(1); MAX_BATCH + 1];
    a.send(&frame, b"").await;
    closed(&server, 1).await;
}

/// More than the client has room for, were their answers counted while they wait.
const READS: u64 = 80;

/// Others may wait for what it writes, and it for them.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_writes_has_room_while_its_reads_wait_for_another() {
    let house = House::new();
    for name in ["mine", "held"] {
        writable(&house.path(name));
    }
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    let root = a.root();
    let mine = a.lookup(root, "mine").await.expect("a file").0;
    let held = b.lookup(root, "held").await.expect("a file").0;
    let mine = a.open(mine, libc::O_RDWR).await;
    let theirs = b.open(held, libc::O_RDWR).await;
    let open = a.open(held, libc::O_RDONLY).await;
    let stores = Query::Read(query::Read {
        fill: Fill::PagesForStore,
        ..pages(theirs, 0)
    });
    let kept = b.ask(stores).await;
    assert!(kept.grants.iter().any(|grant| grant.mode == Mode::Write));
    for at in 0..READS {
        let frame = a.frame(Query::Read(pages(open, at << 20)));
        a.send(&frame, b"").await;
    }
    let written = a.write(mine, 0, &vec![1; 1 << 20]).await;
    assert!(written.result.is_ok());
}

fn pages(open: OpenId, offset: u64) -> query::Read {
    query::Read {
        open,
        offset,
        len: 1 << 20,
        fill: Fill::Pages,
    }
}

/// A mount of a server in a process of its own.
struct Mount {
    who: Who,
    address: SocketAddr,
    key: KeyHash,
}

impl Mount {
    async fn enrol(estate: &Estate, server: &Process, number: u8) -> (Self, Client) {
        let ticket = estate.ticket();
        let mount = Self {
            who: Who::new(number),
            address: server.address,
            key: ticket.key,
        };
        let hello = Hello {
            ticket: Some(ticket.secret),
            ..mount.who.hello()
        };
        let client = mount.who.connect_to(mount.address, mount.key, hello).await;
        (mount, client.expect("let in"))
    }

    /// Another of the same client.
    fn another(&self, number: u8) -> Self {
        let who = Who {
            session: SessionId([number; 16]),
            ..self.who.clone()
        };
        Self { who, ..*self }
    }

    async fn connect(&self) -> Client {
        let hello = self.who.hello();
        let client = self.who.connect_to(self.address, self.key, hello).await;
        client.expect("let in")
    }
}

/// Files that everybody may write.
fn fill(estate: &Estate) {
    for name in ["f", "g"] {
        writable(&estate.export().join(name));
    }
}

fn writable(file: &Path) {
    fs::write(file, b"x").expect("a file");
    let everybody = fs::Permissions::from_mode(0o666);
    fs::set_permissions(file, everybody).expect("ours");
}

async fn open_while_there_is_room(client: &mut Client, object: Handle, most: usize) -> Vec<OpenId> {
    let mut opens = Vec::new();
    let flags = (libc::O_RDWR as u32).into();
    while opens.len() < most {
        match client
            .ask(Query::Open(query::Open {
                object,
                flags,
                with_data: false,
            }))
            .await
            .result
        {
            Ok(Response::Opened(answer::Opened { open, .. })) => opens.push(open),
            Err(Refusal::TooMany) => break,
            other => panic!("neither opened nor refused: {other:?}"),
        }
    }
    opens
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_opens_all_it_can_leaves_descriptors_to_the_others_and_the_server() {
    let estate = Estate::new();
    fill(&estate);
    let server = estate.serve_with_descriptors(600);
    let (first, mut a) = Mount::enrol(&estate, &server, 1).await;
    let root = a.root();
    let (file, _) = a.lookup(root, "f").await.expect("there");
    let held = open_while_there_is_room(&mut a, file, 2000).await;
    // Also by another mount of the same client.
    let mut again = first.another(3).connect().await;
    let more = open_while_there_is_room(&mut again, file, 2000).await;
    assert!(held.len() >= 100, "{} and {}", held.len(), more.len());
    assert_eq!(more.len(), 0, "it has had its share");
    let (_, mut b) = Mount::enrol(&estate, &server, 2).await;
    let (another, _) = b.lookup(root, "g").await.expect("there");
    let others = open_while_there_is_room(&mut b, another, 50).await;
    assert_eq!(others.len(), 50);
    b.opens.insert(others[0], another);
    let written = b.write(others[0], 0, b"buffered before").await;
    assert!(written.result.is_ok(), "{written:?}");
    assert!(estate.command(&["status"]).contains("test:/mnt"));
    let closes = Query::Close(query::Close {
        opens: held[..held.len() / 2].to_vec(),
    });
    assert!(a.ask(closes).await.result.is_ok());
    let back = open_while_there_is_room(&mut a, file, 2000).await;
    assert!(!back.is_empty(), "what it gives back it may have again");
}
