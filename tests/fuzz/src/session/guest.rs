//! A client that behaves: what it asks is answered in time, whatever others do.

use super::house::{House, TERM};
use bytes::Bytes;
use fsserver::state::Role;
use leasefs_protocol::change::What;
use leasefs_protocol::control::{Hello, Push, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::PROTOCOL_VERSION;
use leasefs_protocol::{
    Approval, Caller, Change, Handle, Numbered, RawName, Refusal, Reply, Request, RequestFrame,
    RequestId, Response, Seq, SessionId, answer, change, query,
};
use leasefs_transport::{
    Connection, FrameError, FrameReader, FrameWriter, Identity, OutFrame, Outbox, connect,
};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::timeout;

/// Keep-alives and reads wait for nobody, but for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);
/// A change waits for the term of all that are in its way, and what the protocol allows beyond it.
const IN_TIME: Duration = TERM.saturating_add(Duration::from_secs(3));

const SESSION: SessionId = SessionId([200; 16]);
/// How often it may be thrown out in a row because the machine is busy.
const ATTEMPTS: usize = 4;

/// A client's first message.
pub fn hello(session: SessionId, ticket: [u8; 32]) -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        session,
        ticket: Some(ticket),
        name: "fuzz".to_owned(),
        subdir: Vec::new(),
        drift_ppm: 1000,
        last_process: None,
    }
}

/// A connection that was let in, and its control stream.
pub async fn enter(
    house: &House,
    identity: &Identity,
    hello: Hello,
) -> Option<(Connection, FrameWriter, FrameReader, Welcome)> {
    let connection = connect(house.address, identity, house.key).await.ok()?;
    let (mut writer, mut reader) = connection.open().await.ok()?;
    let said = writer.send(&ToServer::Hello(hello), Bytes::new()).await;
    said.ok()?;
    match reader.next::<ToClient>().await.ok()?? {
        (ToClient::Welcome(welcome), _) => Some((connection, writer, reader, welcome)),
        _ => None,
    }
}

/// The client that behaves.
pub struct Guest {
    identity: Identity,
    ticket: [u8; 32],
    line: Line,
    number: u64,
    seq: u64,
}

struct Line {
    connection: Connection,
    control: (Outbox, FrameReader),
    lane: (FrameWriter, FrameReader),
    root: Handle,
}

/// On a busy machine the term may pass between two of its words: then it comes again.
struct Lost;

async fn soon<T: DeserializeOwned>(
    reader: &mut FrameReader,
    limit: Duration,
    what: &str,
) -> Result<T, Lost> {
    match timeout(limit, reader.next::<T>()).await {
        Ok(Ok(Some((message, _)))) => Ok(message),
        Ok(Ok(None) | Err(FrameError::Lost(_))) => Err(Lost),
        Ok(Err(error)) => panic!("{what} came to {error}"),
        Err(_) => panic!("{what} took longer than {limit:?}"),
    }
}

async fn line(house: &House, identity: &Identity, ticket: [u8; 32]) -> Line {
    let entered = enter(house, identity, hello(SESSION, ticket)).await;
    let (connection, writer, reader, welcome) = entered.expect("it is let in");
    let control = writer.into_outbox();
    tokio::spawn(approve(connection.clone(), control.clone()));
    Line {
        lane: connection.open().await.expect("a lane"),
        connection,
        control: (control, reader),
        root: welcome.root,
    }
}

/// It caches nothing, so it approves at once.
async fn approve(connection: Connection, control: Outbox) {
    let Ok(mut recalls) = connection.accept_push().await else {
        return;
    };
    while let Ok(Some((Push::Recall(recall), _))) = recalls.next::<Push>().await {
        say(
            &control,
            &ToServer::Approve(vec![Approval {
                recall: recall.id,
                closes: Vec::new(),
            }]),
        );
    }
}

/// Where the connection is gone nothing is said.
fn say(control: &Outbox, message: &ToServer) {
    let frame = OutFrame::new(message, Bytes::new());
    let _ = control.push(frame.expect("within the limits"));
}

impl Guest {
    /// Comes in, trusted.
    pub async fn enter(house: &House) -> Self {
        let identity = Identity::generate().expect("an identity");
        let ticket = house.ticket(Role {
            trust: rustix::process::geteuid().is_root(),
            ..Role::default()
        });
        Self {
            line: line(house, &identity, ticket).await,
            identity,
            ticket,
            number: 0,
            seq: 0,
        }
    }

    /// Keep-alives, reads and changes are answered.
    pub async fn is_served(&mut self, house: &House) {
        for _ in 0..ATTEMPTS {
            if self.line.connection.close_reason().is_some() {
                self.line = line(house, &self.identity, self.ticket).await;
            }
            if self.asks().await.is_ok() {
                return;
            }
            self.line.connection.closed().await;
        }
        panic!("it is thrown out again and again");
    }

    async fn asks(&mut self) -> Result<(), Lost> {
        self.number += 1;
        let question = ToServer::KeepAlive {
            number: self.number,
        };
        let (control, reader) = &mut self.line.control;
        say(control, &question);
        let answer: ToClient = soon(reader, AT_ONCE, "a keep-alive").await?;
        assert!(matches!(answer, ToClient::KeepAlive { number, .. } if number == self.number));
        let private = self.lookup(self.line.root, "private").await?;
        self.lookup(private, "secret").await?;
        let name = format!("own{}", self.seq);
        self.make(private, &name).await?;
        self.remove(private, &name).await
    }

    async fn ask(
        &mut self,
        request: Request,
        limit: Duration,
    ) -> Result<Result<Response, Refusal>, Lost> {
        let kind = request.kind();
        self.number += 1;
        let frame = RequestFrame {
            id: RequestId(self.number),
            low_water: Seq(self.seq),
            caller: Caller::default(),
            request,
        };
        let (writer, reader) = &mut self.line.lane;
        let sent = writer.send(&frame, Bytes::new()).await;
        sent.map_err(|_| Lost)?;
        let reply: Reply = soon(reader, limit, kind).await?;
        assert_eq!(reply.id, frame.id);
        Ok(reply.result)
    }

    /// A change, which gets the next number.
    async fn change(
        &mut self,
        change: Change,
        limit: Duration,
    ) -> Result<Result<Response, Refusal>, Lost> {
        self.seq += 1;
        let numbered = Numbered {
            seq: Seq(self.seq),
            after: Vec::new(),
            resent: false,
            dropped: vec![self.line.root],
            closed: Vec::new(),
            locked: None,
        };
        self.ask(Request::Change(numbered, change), limit).await
    }

    async fn lookup(&mut self, dir: Handle, name: &str) -> Result<Handle, Lost> {
        let lookup = query::Lookup {
            dir,
            name: RawName(name.into()),
        };
        match self.ask(Request::Query(lookup.into()), AT_ONCE).await? {
            Ok(Response::Object(answer::Object { handle, .. })) => Ok(handle),
            other => panic!("looking up {name} came to {other:?}"),
        }
    }

    async fn make(&mut self, dir: Handle, name: &str) -> Result<(), Lost> {
        let request = Change::Make(change::Make {
            dir,
            name: RawName(name.into()),
            mode: 0o100_600,
            umask: 0,
            make: What::Node { rdev: (0, 0) },
        });
        let made = self.change(request, IN_TIME).await?;
        assert!(matches!(made, Ok(Response::Object(_))), "{made:?}");
        Ok(())
    }

    async fn remove(&mut self, dir: Handle, name: &str) -> Result<(), Lost> {
        let request = Change::Unlink(change::Unlink {
            dir,
            name: RawName(name.into()),
        });
        let removed = self.change(request, IN_TIME).await?;
        assert!(removed.is_ok(), "{removed:?}");
        Ok(())
    }
}
