//! What clients can make the server keep, tried in every way at once by clients that mean to.

mod support;

use bytes::Bytes;
use leasefs_protocol::control::{Hello, ToServer};
use leasefs_protocol::limits::{MAX_LANES, MAX_PAYLOAD, MAX_XATTR_VALUE};
use leasefs_protocol::{
    Caller, Change, Handle, KeyHash, OpenId, Query, RequestFrame, Response, Seq, SessionId, change,
    query,
};
use leasefs_transport::{FrameError, FrameReader, FrameWriter};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use support::client::{Client, Who, mkdir, numbered, raw, read, write};
use support::process::{Estate, Process};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// As docs/operations.md says, in MiB. (The few files and leases are within that.)
const PER_CLIENT: usize = 64;
const PER_MOUNT: usize = 48;
const SESSIONS: u8 = 10;
const SHARED: usize = 100;

/// How long each way is tried.
const A_WHILE: Duration = Duration::from_millis(1_200);
const IN_ALL: Duration = Duration::from_secs(30);

fn fill(estate: &Estate) {
    let share = |path: std::path::PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    for n in 0..SHARED {
        let file = estate.export().join(format!("f{n}"));
        fs::write(&file, vec![1; MAX_PAYLOAD]).expect("a file");
        share(file, 0o666);
    }
    for n in 0..=SESSIONS {
        let dir = estate.export().join(format!("d{n}"));
        fs::create_dir(&dir).expect("a directory");
        fs::write(dir.join("own"), vec![1; MAX_PAYLOAD]).expect("a file");
        share(dir.join("own"), 0o666);
        share(dir, 0o777);
    }
}

/// Of what ends only when the server closes the connection.
type Tried = Result<(), FrameError>;

/// As many groups as a caller may have: the server keeps them with what it keeps.
fn in_many_groups() -> Caller {
    Caller {
        uid: 1000,
        gid: 1000,
        groups: (100_000..101_000).collect(),
    }
}

/// One session of a client in a server's process.
struct Siege {
    client: Client,
    lanes: Vec<(FrameWriter, FrameReader)>,
    shared: Vec<Handle>,
    dir: Handle,
    /// A directory, and a file of its own, open.
    opens: (OpenId, OpenId),
    own: Handle,
}

async fn connect(who: &Who, to: (SocketAddr, KeyHash), ticket: Option<[u8; 32]>) -> Client {
    let hello = Hello {
        ticket,
        ..who.hello()
    };
    let mut client = who.connect_to(to.0, to.1, hello).await.expect("let in");
    client.caller = in_many_groups();
    client
}

impl Siege {
    /// Learns its way, and holds leases on what others do.
    async fn begin(mut client: Client, number: u8) -> Self {
        let root = client.root();
        let mut shared = Vec::new();
        for n in 0..SHARED {
            let (file, _) = client.lookup(root, &format!("f{n}")).await.expect("there");
            client.getattr(file).await;
            shared.push(file);
        }
        let (dir, _) = client
            .lookup(root, &format!("d{number}"))
            .await
            .expect("there");
        let (own, _) = client.lookup(dir, "own").await.expect("there");
        let listed = client.open(dir, libc::O_DIRECTORY).await;
        let open = client.open(own, libc::O_RDWR).await;
        let mut lanes = Vec::new();
        for _ in 1..MAX_LANES {
            lanes.push(client.connection.open().await.expect("a lane"));
        }
        Self {
            client,
            lanes,
            shared,
            dir,
            opens: (listed, open),
            own,
        }
    }

    /// Opens, and changes whose answers are kept: none is ever acknowledged.
    async fn collect(&mut self) {
        for n in 0..250 {
            let flags = (libc::O_RDWR as u32).into();
            let object = self.own;
            let opened = self
                .client
                .ask(Query::Open(query::Open {
                    object,
                    flags,
                    with_data: false,
                }))
                .await;
            assert!(
                matches!(opened.result, Ok(Response::Opened(_))),
                "{opened:?}"
            );
            let made = self.client.ask(mkdir(self.dir, raw(&n.to_string()))).await;
            assert!(made.result.is_ok(), "{made:?}");
        }
    }

    /// Numbers that are never used, and recalls of each other's leases that nobody approves.
    async fn confuse(&mut self) {
        for n in 1..2_000 {
            let seq = Seq(100_000 + 2 * n);
            self.client.tell(ToServer::Cancel { seq }).await;
        }
        let value = vec![2; MAX_XATTR_VALUE / 4];
        let client = &mut self.client;
        let changes = async {
            for object in &self.shared {
                let mut frame = client.frame(Change::SetXattr(change::SetXattr {
                    object: *object,
                    name: raw("user.a"),
                    flags: 0,
                }));
                dropping(&mut frame, *object);
                client.send(&frame, &value).await;
            }
        };
        let _ = timeout(A_WHILE, changes).await;
    }

    /// Data that waits for what never comes, until frames are cut in two; on a third of the lanes answers
    /// that nobody reads. (What these may take is set aside for them, so they come last.)
    async fn stuff(&mut self) {
        let (listed, open) = self.opens;
        let (answers, data) = self.lanes.split_at_mut(MAX_LANES / 3);
        let client = &mut self.client;
        // Never sent: what follows it waits.
        client.seq += 1;
        let missing = Seq(client.seq);
        let payload = Bytes::from(vec![3; MAX_PAYLOAD]);
        for (lane, _) in data.iter_mut() {
            let held = async {
                loop {
                    let mut frame = client.frame(write(open, 0));
                    numbered(&mut frame).after = vec![missing];
                    numbered(&mut frame).dropped = vec![self.own];
                    lane.send(&frame, payload.clone()).await?;
                }
            };
            let _: Result<Tried, _> = timeout(A_WHILE / 3, held).await;
        }
        let unread = async {
            loop {
                for (lane, _) in answers.iter_mut() {
                    let list = Query::ReadDir(query::ReadDir {
                        open: listed,
                        cookie: 0,
                        nodes: true,
                    });
                    for request in [read(open, 0, MAX_PAYLOAD as u32), list] {
                        lane.send(&client.frame(request), Bytes::new()).await?;
                    }
                }
            }
        };
        let _: Result<Tried, _> = timeout(A_WHILE, unread).await;
    }
}

fn dropping(frame: &mut RequestFrame, object: Handle) {
    numbered(frame).dropped = vec![object];
}

/// All of that by each of these, who stay until it is measured, in MiB.
async fn besiege(server: &Process, clients: Vec<(Client, u8)>) -> usize {
    let before = server.most_resident();
    let mut sieges = JoinSet::new();
    for (client, number) in clients {
        sieges.spawn(async move {
            let mut siege = Siege::begin(client, number).await;
            siege.collect().await;
            siege
        });
    }
    let begun = sieges.join_all().await;
    let collected = server.most_resident() - before;
    let mut sieges = JoinSet::new();
    for mut siege in begun {
        sieges.spawn(async move {
            siege.confuse().await;
            siege.stuff().await;
            siege
        });
    }
    let held = sieges.join_all().await;
    let grown = server.most_resident() - before;
    println!("{grown} MiB, {collected} of them before data came");
    drop(held);
    grown
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_mounts_of_one_client_that_try_everything_keep_the_server_within_what_is_stated() {
    let estate = Estate::new();
    fill(&estate);
    let server = estate.serve_with_descriptors(20_000);
    let ticket = estate.ticket();
    let to = (server.address, ticket.key);
    let one = Who::new(1);
    let mut clients = vec![(connect(&one, to, Some(ticket.secret)).await, 1)];
    for number in 2..=SESSIONS {
        let who = Who {
            session: SessionId([number; 16]),
            ..one.clone()
        };
        clients.push((connect(&who, to, None).await, number));
    }
    let grown = timeout(IN_ALL, besiege(&server, clients)).await;
    let grown = grown.expect("in time");
    let stated = PER_CLIENT + usize::from(SESSIONS) * PER_MOUNT;
    assert!(grown > PER_CLIENT, "{grown} MiB are no attack");
    assert!(grown < stated, "{grown} MiB");
    assert!(estate.command(&["status"]).contains("test:/mnt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_clients_that_try_everything_keep_the_server_within_what_is_stated() {
    let estate = Estate::new();
    fill(&estate);
    let server = estate.serve_with_descriptors(20_000);
    let mut clients = Vec::new();
    for number in 1..=SESSIONS {
        let ticket = estate.ticket();
        let to = (server.address, ticket.key);
        let client = connect(&Who::new(number), to, Some(ticket.secret)).await;
        clients.push((client, number));
    }
    let grown = timeout(IN_ALL, besiege(&server, clients)).await;
    let grown = grown.expect("in time");
    let stated = usize::from(SESSIONS) * (PER_CLIENT + PER_MOUNT);
    assert!(grown > PER_CLIENT, "{grown} MiB are no attack");
    assert!(grown < stated, "{grown} MiB");
    assert!(estate.command(&["status"]).contains("test:/mnt"));
}
