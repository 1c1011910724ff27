//! A client that says exactly what it is told to.

use super::{House, Running};
use bytes::Bytes;
use leasefs_protocol::Durability;
use leasefs_protocol::change::{What, WriteAt, WriteKind};
use leasefs_protocol::control::{Hello, HelloRefusal, Push, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::PROTOCOL_VERSION;
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Approval, Attr, Caller, Change, Handle, KeyHash, Numbered, OpenId, Query, RawName, Recall,
    Refusal, Reply, Request, RequestFrame, RequestId, Response, Seq, SessionId, SetAttr, Timestamp,
    Version, answer, change, query,
};
use leasefs_transport::{Connection, FrameReader, FrameWriter, Identity, connect};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// Longer than anything here may take.
pub const LONG: Duration = Duration::from_secs(20);

/// Who a client is, whatever connection it has.
#[derive(Clone)]
pub struct Who {
    pub identity: Identity,
    pub session: SessionId,
}

impl Who {
    pub fn new(number: u8) -> Self {
        Self {
            identity: Identity::generate().expect("an identity"),
            session: SessionId([number; 16]),
        }
    }

    pub fn enrolled(house: &House, number: u8) -> Self {
        let who = Self::new(number);
        house.records.enrol(who.identity.key_hash(), false);
        who
    }

    pub fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            features: 0,
            session: self.session,
            ticket: None,
            name: "test:/mnt".to_owned(),
            subdir: Vec::new(),
            drift_ppm: 1000,
            last_process: None,
        }
    }

    pub async fn connect(&self, server: &Running) -> Client {
        let hello = self.hello();
        self.connect_with(server, hello).await.expect("let in")
    }

    pub async fn connect_with(
        &self,
        server: &Running,
        hello: Hello,
    ) -> Result<Client, HelloRefusal> {
        self.connect_to(server.address, server.key, hello).await
    }

    pub async fn connect_to(
        &self,
        address: SocketAddr,
        key: KeyHash,
        hello: Hello,
    ) -> Result<Client, HelloRefusal> {
        let connection = connect(address, &self.identity, key).await;
        let connection = connection.expect("a connection");
        let (mut control, mut control_in) = connection.open().await.expect("a control stream");
        send(&mut control, &ToServer::Hello(hello)).await;
        match next(&mut control_in).await {
            ToClient::Welcome(welcome) => {
                let (lane, lane_in) = connection.open().await.expect("a lane");
                Ok(Client {
                    session: self.session,
                    connection,
                    welcome,
                    control,
                    control_in,
                    lane,
                    lane_in,
                    push: None,
                    id: 0,
                    seq: 0,
                    low_water: Seq(0),
                    caller: Caller::default(),
                    opens: HashMap::new(),
                })
            }
            ToClient::Refused(refusal) => Err(refusal),
            other => panic!("neither welcome nor refusal: {other:?}"),
        }
    }

    pub async fn reach(&self, server: &Running) -> Connection {
        let connection = connect(server.address, &self.identity, server.key).await;
        connection.expect("a connection")
    }
}

async fn send<M: serde::Serialize>(writer: &mut FrameWriter, message: &M) {
    writer.send(message, Bytes::new()).await.expect("sent");
}

async fn next<M: serde::de::DeserializeOwned>(reader: &mut FrameReader) -> M {
    let frame = timeout(LONG, reader.next()).await.expect("in time");
    frame.expect("a frame").expect("not the end").0
}

/// What is asked, without the number that a change gets.
#[derive(Clone, Debug)]
pub enum Ask {
    Query(Query),
    Change(Change),
}

impl From<Query> for Ask {
    fn from(query: Query) -> Self {
        Self::Query(query)
    }
}

impl From<Change> for Ask {
    fn from(change: Change) -> Self {
        Self::Change(change)
    }
}

pub struct Client {
    pub session: SessionId,
    pub connection: Connection,
    pub welcome: Welcome,
    pub control: FrameWriter,
    pub control_in: FrameReader,
    pub lane: FrameWriter,
    pub lane_in: FrameReader,
    push: Option<FrameReader>,
    id: u64,
    pub seq: u64,
    pub low_water: Seq,
    /// In whose name requests are made.
    pub caller: Caller,
    /// Whose opens they are.
    pub opens: HashMap<OpenId, Handle>,
}

pub fn raw(name: &str) -> RawName {
    RawName(name.as_bytes().to_vec())
}

impl Client {
    pub fn root(&self) -> Handle {
        self.welcome.root
    }

    /// Goes on numbering where an earlier connection of the same session ended.
    pub fn take_over(&mut self, earlier: &Client) {
        self.id = earlier.id;
        self.seq = earlier.seq;
        self.low_water = earlier.low_water;
        self.opens = earlier.opens.clone();
    }

    /// A frame; a change gets the next number.
    pub fn frame(&mut self, asked: impl Into<Ask>) -> RequestFrame {
        self.id += 1;
        let request = match asked.into() {
            Ask::Query(query) => Request::Query(query),
            Ask::Change(change) => {
                self.seq += 1;
                let numbered = Numbered {
                    seq: Seq(self.seq),
                    after: Vec::new(),
                    resent: false,
                    dropped: self.dropped(&change),
                    closed: Vec::new(),
                    locked: None,
                };
                Request::Change(numbered, change)
            }
        };
        RequestFrame {
            id: RequestId(self.id),
            low_water: self.low_water,
            caller: self.caller.clone(),
            request,
        }
    }

    pub async fn send(&mut self, frame: &RequestFrame, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        self.lane.send(frame, payload).await.expect("sent");
    }

    pub async fn reply(&mut self) -> (Reply, Bytes) {
        let frame = timeout(LONG, self.lane_in.next()).await.expect("in time");
        frame.expect("a frame").expect("not the end")
    }

    pub async fn ask_with(&mut self, asked: impl Into<Ask>, payload: &[u8]) -> (Reply, Bytes) {
        let frame = self.frame(asked);
        self.send(&frame, payload).await;
        let (reply, payload) = self.reply().await;
        assert_eq!(reply.id, frame.id);
        (reply, payload)
    }

    pub async fn ask(&mut self, asked: impl Into<Ask>) -> Reply {
        self.ask_with(asked, b"").await.0
    }

    pub async fn refusal(&mut self, asked: impl Into<Ask>) -> Refusal {
        self.ask(asked).await.result.expect_err("a refusal")
    }

    pub async fn tell(&mut self, message: ToServer) {
        send(&mut self.control, &message).await;
    }

    pub async fn told(&mut self) -> ToClient {
        next(&mut self.control_in).await
    }

    /// What a well-behaved client has dropped before it sends the request, as far as the request
    /// names it.
    fn dropped(&self, change: &Change) -> Vec<Handle> {
        match change {
            Change::SetXattr(_) | Change::RemoveXattr(_) => Vec::new(),
            Change::Write(write) => self.opens.get(&write.open).copied().into_iter().collect(),
            change => change.handles().copied().collect(),
        }
    }

    /// The next recall.
    pub async fn recall(&mut self) -> Recall {
        match self.pushed().await {
            Push::Recall(recall) => recall,
            other => panic!("no recall: {other:?}"),
        }
    }

    /// What the server says unasked.
    pub async fn pushed(&mut self) -> Push {
        if self.push.is_none() {
            let push = timeout(LONG, self.connection.accept_push()).await;
            self.push = Some(push.expect("in time").expect("a push stream"));
        }
        next(self.push.as_mut().expect("just set")).await
    }

    pub async fn approve(&mut self, recall: &Recall) {
        let approval = Approval {
            recall: recall.id,
            closes: Vec::new(),
        };
        self.tell(ToServer::Approve(vec![approval])).await;
    }

    pub async fn lookup(&mut self, dir: Handle, name: &str) -> Option<(Handle, Attr)> {
        let request = Query::Lookup(query::Lookup {
            dir,
            name: raw(name),
        });
        match self.ask(request).await.result.expect("an answer") {
            Response::Object(answer::Object { handle, attr }) => Some((handle, attr)),
            Response::NoEntry => None,
            other => panic!("no answer to a lookup: {other:?}"),
        }
    }

    pub async fn getattr(&mut self, object: Handle) -> Reply {
        self.ask(Query::GetAttr(query::GetAttr { object })).await
    }

    pub fn create_request(&self, name: &str, flags: i32) -> Change {
        Change::Create(change::Create {
            dir: self.root(),
            name: raw(name),
            mode: 0o100_644,
            umask: 0,
            flags: (libc::O_CREAT | flags) as u32,
            keep: false,
        })
    }

    /// Creates (or opens) a file for reading and writing.
    pub async fn create(&mut self, name: &str) -> (Handle, OpenId) {
        let request = self.create_request(name, libc::O_RDWR);
        match self.ask(request).await.result.expect("created") {
            Response::Created(answer::Created { handle, open, .. }) => {
                self.opens.insert(open, handle);
                (handle, open)
            }
            other => panic!("no answer to a create: {other:?}"),
        }
    }

    pub async fn open(&mut self, object: Handle, flags: i32) -> OpenId {
        let flags = (flags as u32).into();
        let reply = self
            .ask(Query::Open(query::Open {
                object,
                flags,
                with_data: false,
            }))
            .await;
        match reply.result.expect("opened") {
            Response::Opened(answer::Opened { open, .. }) => {
                self.opens.insert(open, object);
                open
            }
            other => panic!("no answer to an open: {other:?}"),
        }
    }

    pub async fn write(&mut self, open: OpenId, offset: u64, data: &[u8]) -> Reply {
        self.ask_with(write(open, offset), data).await.0
    }

    pub async fn read(&mut self, open: OpenId, offset: u64, len: u32) -> (Reply, Bytes) {
        self.ask_with(read(open, offset, len), b"").await
    }

    pub async fn mkdir(&mut self, name: &str) -> Reply {
        let dir = self.root();
        self.ask(mkdir(dir, raw(name))).await
    }
}

/// The number of a change.
pub fn numbered(frame: &mut RequestFrame) -> &mut Numbered {
    match &mut frame.request {
        Request::Change(numbered, _) => numbered,
        Request::Query(query) => panic!("no change: {query:?}"),
    }
}

pub fn mkdir(dir: Handle, name: RawName) -> Change {
    Change::Make(change::Make {
        dir,
        name,
        mode: 0o40_755,
        umask: 0,
        make: What::Directory,
    })
}

pub fn write(open: OpenId, offset: u64) -> Change {
    Change::Write(change::Write {
        open,
        at: WriteAt::Offset(offset),
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Through { keep: false },
    })
}

/// Bytes that were kept back, since they were `written`, under a lease that stands, of a file of version `base`.
pub fn flush(open: OpenId, base: Version, written: Option<Timestamp>) -> Change {
    Change::Write(change::Write {
        open,
        at: WriteAt::Offset(0),
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Flush {
            base,
            written,
            late: false,
            repeated: false,
            set: SetAttr::default(),
        },
    })
}

pub fn read(open: OpenId, offset: u64, len: u32) -> Query {
    Query::Read(query::Read {
        open,
        offset,
        len,
        fill: Fill::Pages,
    })
}
