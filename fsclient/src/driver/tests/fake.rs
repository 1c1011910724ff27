//! A server whose every word the test says.

use bytes::Bytes;
use leasefs_protocol::control::{
    Hello, IdentityPolicy, Push, Standing, ToClient, ToServer, Welcome,
};
use leasefs_protocol::{
    Attr, BootId, FileKind, Grant, Handle, Numbered, Refusal, Reply, RequestFrame, RequestId,
    Response, Seq, Stamp,
};
use leasefs_transport::{
    CloseCode, Connection, EndpointSecret, FrameReader, FrameWriter, Identity, OutFrame, Outbox,
    Server,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Nothing in these tests takes longer, unless it never comes.
const SOON: Duration = Duration::from_secs(8);

pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

pub(super) fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

pub(in crate::driver) fn attr() -> Attr {
    Attr {
        ino: 1,
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        xattrs: true,
    }
}

pub(super) struct Fake {
    pub(super) server: Server,
    pub(super) identity: Identity,
    pub(super) term_ms: u32,
}

/// A connection that has said `Hello`.
pub(super) struct Session {
    pub(super) hello: Hello,
    pub(super) connection: Connection,
    control: FrameWriter,
    /// Control messages, keep-alives apart if the fake answers them.
    pub(super) said: mpsc::UnboundedReceiver<ToServer>,
    /// Requests of all lanes, and where the answer goes.
    pub(super) asked: mpsc::UnboundedReceiver<Asked>,
    answers: mpsc::UnboundedReceiver<ToClient>,
    push: Option<FrameWriter>,
}

pub(super) struct Asked {
    pub(super) frame: RequestFrame,
    /// It came on a lane for bulk data.
    pub(super) large: bool,
    lane: Outbox,
}

impl Asked {
    pub(super) fn numbered(&self) -> Option<&Numbered> {
        self.frame.request.numbered()
    }

    pub(super) fn seq(&self) -> Seq {
        self.numbered().expect("a change").seq
    }

    pub(super) fn answer(&self, result: Result<Response, Refusal>, payload: Bytes) {
        self.reply(self.frame.id, result, payload, false, Vec::new());
    }

    pub(super) fn grant(&self, response: Response, payload: Bytes, grants: Vec<Grant>) {
        self.reply(self.frame.id, Ok(response), payload, true, grants);
    }

    /// Says what is no frame.
    pub(super) fn noise(&self) {
        let noise = OutFrame::raw(Bytes::from_static(&[255; 64]));
        self.lane.push(noise).expect("open lane");
    }

    fn reply(
        &self,
        id: RequestId,
        result: Result<Response, Refusal>,
        payload: Bytes,
        renews: bool,
        grants: Vec<Grant>,
    ) {
        let reply = Reply {
            id,
            renews,
            stamp: Stamp(1),
            // As much as anybody wants.
            room: (!grants.is_empty()).then_some(1 << 30),
            grants,
            touched: Vec::new(),
            result,
        };
        let frame = OutFrame::new(&reply, payload).expect("frame");
        self.lane.push(frame).expect("open lane");
    }
}

impl Fake {
    pub(super) fn start() -> Self {
        let identity = Identity::generate().expect("identity");
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), identity)
    }

    pub(super) fn start_at(address: SocketAddr, identity: Identity) -> Self {
        let secret = EndpointSecret::generate().expect("secret");
        Self {
            server: Server::bind(address, &identity, &secret).expect("bind"),
            identity,
            term_ms: 10_000,
        }
    }

    /// The next connection, up to its `Hello`.
    pub(super) async fn hello(&self) -> (Hello, Connection, FrameWriter, FrameReader) {
        soon("a connection", async {
            let incoming = self.server.accept().await.expect("open");
            let connection = incoming.handshake().await.expect("handshake");
            connection.let_in();
            let (index, writer, mut reader) = connection.accept().await.expect("control");
            assert_eq!(index, 0);
            match reader.next::<ToServer>().await.expect("hello") {
                Some((ToServer::Hello(hello), _)) => (hello, connection, writer, reader),
                other => panic!("{other:?}"),
            }
        })
        .await
    }

    /// What lets a client in. `process` is this life of the server.
    pub(super) fn greeting(&self, standing: Standing, process: u8) -> Welcome {
        Welcome {
            features: 0,
            term_ms: self.term_ms,
            drift_ppm: 1_000,
            process: BootId([process; 16]),
            host: BootId([9; 16]),
            standing,
            renews: standing != Standing::Reclaim,
            root: handle(0),
            root_attr: attr(),
            read_only: false,
            identity: IdentityPolicy::Trust,
        }
    }

    /// The next connection, let in.
    pub(super) async fn welcome(&self, standing: Standing, process: u8) -> Session {
        let (hello, connection, mut control, reader) = self.hello().await;
        let welcome = self.greeting(standing, process);
        control
            .send(&ToClient::Welcome(welcome), Bytes::new())
            .await
            .expect("welcome");
        let (say, said) = mpsc::unbounded_channel();
        let (keep_alive, answers) = mpsc::unbounded_channel();
        tokio::spawn(read_control(reader, say, keep_alive));
        let (ask, asked) = mpsc::unbounded_channel();
        tokio::spawn(read_lanes(connection.clone(), ask));
        Session {
            hello,
            connection,
            control,
            said,
            asked,
            answers,
            push: None,
        }
    }
}

async fn read_control(
    mut reader: FrameReader,
    say: mpsc::UnboundedSender<ToServer>,
    answers: mpsc::UnboundedSender<ToClient>,
) {
    while let Ok(Some((message, _))) = reader.next::<ToServer>().await {
        let told = match message {
            ToServer::KeepAlive { number } => {
                let renews = true;
                answers.send(ToClient::KeepAlive { number, renews }).is_ok()
            }
            message => say.send(message).is_ok(),
        };
        if !told {
            break;
        }
    }
}

async fn read_lanes(connection: Connection, ask: mpsc::UnboundedSender<Asked>) {
    while let Ok((index, writer, mut reader)) = connection.accept().await {
        let (lane, ask) = (writer.into_outbox(), ask.clone());
        tokio::spawn(async move {
            while let Ok(Some((frame, _))) = reader.next::<RequestFrame>().await {
                let lane = lane.clone();
                let _ = ask.send(Asked {
                    frame,
                    large: index > 1,
                    lane,
                });
            }
        });
    }
}

impl Session {
    pub(super) async fn asked(&mut self) -> Asked {
        soon("a request", self.asked.recv()).await.expect("request")
    }

    pub(super) async fn said(&mut self) -> ToServer {
        soon("a control message", self.said.recv())
            .await
            .expect("message")
    }

    pub(super) async fn say(&mut self, message: ToClient) {
        self.control
            .send(&message, Bytes::new())
            .await
            .expect("sent");
    }

    /// Answers the next keep-alive.
    pub(super) async fn keep_alive(&mut self) {
        let answer = soon("a keep-alive", self.answers.recv()).await;
        self.say(answer.expect("keep-alive")).await;
    }

    pub(super) async fn push(&mut self, push: Push) {
        if self.push.is_none() {
            self.push = Some(self.connection.open_push().await.expect("push"));
        }
        if let Some(writer) = &mut self.push {
            writer.send(&push, Bytes::new()).await.expect("pushed");
        }
    }

    /// The connection breaks.
    pub(super) fn cut(self) {
        self.connection.close(CloseCode::Goodbye, "cut");
    }
}
