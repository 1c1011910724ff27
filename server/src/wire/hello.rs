//! The first message of a connection, and whether its client is let in.

use super::entrance::{Leave, Place};
use super::root::{border, root};
use crate::records::{Client, Owner};
use crate::runtime::{Line, Opened};
use crate::server::Server;
use crate::session::{Gate, Link, Refused, Session, Unheard};
use crate::state::random;
use leasefs_lease::server::Standing as CoreStanding;
use leasefs_protocol::control::{
    FEATURES, Hello, HelloRefusal, Standing, ToClient, ToServer, Welcome,
};
use leasefs_protocol::limits::{
    MAX_DRIFT_PPM, MAX_MOUNT, MAX_SESSIONS_PER_CLIENT, OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION,
};
use leasefs_protocol::{Attr, Handle, KeyHash, codec};
use leasefs_store::Node;
use leasefs_transport::{CloseCode, Connection, FrameReader, FrameWriter, Outbox};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// How long a refused client has to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection whose client was let in.
pub struct Greeted {
    pub session: Arc<Session>,
    pub link: Arc<Link>,
    pub control: Outbox,
    pub reader: FrameReader,
}

/// Hears a client's `Hello` and answers it. `None` if it was refused or never came.
pub async fn greet(
    server: &Arc<Server>,
    connection: &Connection,
    mut place: Place,
) -> Option<Greeted> {
    let heard = place.wait(hear(server, connection)).await;
    let (admitted, writer, reader) = may_stay(connection, heard)??;
    let session = Arc::clone(&admitted.session);
    let ready = place
        .wait(prepare(server, &session, connection, writer))
        .await;
    let ready = may_stay(connection, ready)??;
    admitted
        .welcome(server, connection, place, ready, reader)
        .await
}

fn may_stay<T>(connection: &Connection, waited: Result<T, Leave>) -> Option<T> {
    waited
        .inspect_err(|leave| {
            let (address, client) = (connection.remote_address(), connection.peer());
            tracing::debug!(%address, %client, %leave, "connection closed");
            connection.close(CloseCode::TooSlow, &leave.to_string());
        })
        .ok()
}

/// The client's `Hello`, and whether it may have its session; if not it has been told.
async fn hear(
    server: &Arc<Server>,
    connection: &Connection,
) -> Option<(Admitted, FrameWriter, FrameReader)> {
    let (mut writer, reader, message) = first_message(connection).await?;
    let admitted = match message {
        Ok(hello) => admit(server, connection, hello).await,
        Err(refusal) => Err(refusal),
    };
    match admitted {
        Ok(admitted) => Some((admitted, writer, reader)),
        Err(refusal) => {
            refuse(connection, &mut writer, refusal).await;
            None
        }
    }
}

/// What a session needs before it is answered.
struct Ready<'a> {
    /// Hellos of one session are answered one at a time.
    _turn: tokio::sync::MutexGuard<'a, ()>,
    push: FrameWriter,
    control: FrameWriter,
}

async fn prepare<'a>(
    server: &Arc<Server>,
    session: &'a Arc<Session>,
    connection: &Connection,
    mut control: FrameWriter,
) -> Option<Ready<'a>> {
    let turn = session.hello.lock().await;
    if let Err(refusal) = record(server, session).await {
        refuse(connection, &mut control, refusal).await;
        return None;
    }
    let push = connection.open_push().await.ok()?;
    Some(Ready {
        _turn: turn,
        push,
        control,
    })
}

type First = (FrameWriter, FrameReader, Result<Hello, HelloRefusal>);

async fn first_message(connection: &Connection) -> Option<First> {
    let (_, writer, mut reader) = connection.accept().await.ok()?;
    let message = match reader.next_undecoded().await {
        Ok(Some((header, payload))) => hello_in(&header, &payload),
        Ok(None) => Err(not_hello("the end of the stream")),
        Err(leasefs_transport::FrameError::Lost(_)) => return None,
        Err(error) => Err(not_hello(&error.to_string())),
    };
    Some((writer, reader, message))
}

/// A `Hello` of a version that is served: of others nothing but the version can be understood.
fn hello_in(header: &[u8], payload: &[u8]) -> Result<Hello, HelloRefusal> {
    let served = OLDEST_PROTOCOL_VERSION..=PROTOCOL_VERSION;
    if let Some(found) = Hello::version_in(header).filter(|version| !served.contains(version)) {
        return Err(HelloRefusal::Version {
            expected: PROTOCOL_VERSION,
            found,
        });
    }
    match codec::decode(header) {
        Ok(ToServer::Hello(hello)) if payload.is_empty() => Ok(hello),
        Ok(ToServer::Hello(_)) => Err(not_hello("a payload behind it")),
        Ok(_) => Err(not_hello("another message")),
        Err(error) => Err(not_hello(&error.to_string())),
    }
}

fn not_hello(what: &str) -> HelloRefusal {
    HelloRefusal::NotHello(what.to_owned())
}

async fn refuse(connection: &Connection, writer: &mut FrameWriter, refusal: HelloRefusal) {
    let (address, client) = (connection.remote_address(), connection.peer());
    tracing::warn!(%address, %client, %refusal, "client refused");
    let reason = refusal.to_string();
    let refused = ToClient::Refused(refusal);
    // Closing at once could overtake the refusal.
    if writer.send(&refused, bytes::Bytes::new()).await.is_ok() {
        writer.finish();
        let _ = timeout(LAST_WORDS, connection.closed()).await;
    }
    connection.close(CloseCode::Refused, &reason);
}

/// A client that may have its session.
struct Admitted {
    client: Client,
    hello: Hello,
    session: Arc<Session>,
    root: Node,
}

async fn admit(
    server: &Arc<Server>,
    connection: &Connection,
    hello: Hello,
) -> Result<Admitted, HelloRefusal> {
    if hello.drift_ppm > MAX_DRIFT_PPM {
        let what = format!(
            "a drift bound of {} ppm, at most {MAX_DRIFT_PPM}",
            hello.drift_ppm
        );
        return Err(HelloRefusal::NotHello(what));
    }
    let (task_server, key) = (Arc::clone(server), connection.peer());
    // Had before the client is looked up: if it is revoked from here on, this gate is shut.
    let gate = server.gates.of(key);
    let alone = gate.judge().await;
    let judged = server.spawn_io(async move {
        let _alone = alone;
        judge(&task_server, key, &gate, hello)
    });
    judged.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a hello couldn't be judged");
        Err(HelloRefusal::Internal("see its log".to_owned()))
    })
}

/// What of the decision needs the disk.
fn judge(
    server: &Server,
    key: KeyHash,
    gate: &Arc<Gate>,
    hello: Hello,
) -> Result<Admitted, HelloRefusal> {
    // Looked at first, so that a ticket isn't used up for a session that can't be had.
    if server
        .sessions
        .any(hello.session)
        .is_some_and(|s| s.key != key)
    {
        return Err(HelloRefusal::ForeignSession);
    }
    let ticket = hello.ticket.as_ref();
    let client = server
        .records
        .admit(key, ticket, hello.session, &hello.name)?;
    let border = border(server, &client)?;
    let root = root(server, &client, &hello.subdir)?;
    server.end_outdated(&client);
    let owner = Owner {
        client: key,
        rights: client.rights(),
        birth: random().map_err(|error| HelloRefusal::Internal(error.to_string()))?,
    };
    // Its record must not be taken for that of the one that begins.
    if let Some(ending) = server.sessions.any(hello.session).filter(|s| s.is_over()) {
        server.end_if_lapsed(&ending);
    }
    if server.sessions.any(hello.session).is_none() {
        server.make_room(key);
    }
    let session = server
        .sessions
        .open(hello.session, (owner, gate), server.now())
        .map_err(|refused| match refused {
            Refused::Foreign => HelloRefusal::ForeignSession,
            Refused::ShutOut => HelloRefusal::Revoked(key),
            Refused::Ending => ending(),
            Refused::TooMany => HelloRefusal::TooMany(format!(
                "sessions (at most {MAX_SESSIONS_PER_CLIENT} of one client)"
            )),
        })?;
    session.syncs.begins(&server.failures);
    if border.is_some_and(|border| !session.confine(border)) {
        return Err(HelloRefusal::ForeignSession);
    }
    Ok(Admitted {
        client,
        hello,
        session,
        root,
    })
}

impl Admitted {
    async fn welcome(
        self,
        server: &Arc<Server>,
        connection: &Connection,
        mut place: Place,
        ready: Ready<'_>,
        reader: FrameReader,
    ) -> Option<Greeted> {
        let session = Arc::clone(&self.session);
        let mut writer = ready.control;
        connection.let_in();
        let Some(pass) = session.gate.enter() else {
            refuse(connection, &mut writer, HelloRefusal::Revoked(session.key)).await;
            return None;
        };
        let link = self.connected(server, connection)?;
        let number = link.number;
        let drift = self.hello.drift_ppm;
        let leases = &server.leases;
        let line = Line {
            link: number,
            outbox: ready.push.into_outbox(),
            border: session.border().cloned(),
            features: self.hello.features,
        };
        let opened = leases.open_session(session.id, session.key, drift, line);
        leases.round_trip(session.id, connection.rtt());
        drop(pass);
        let standing = standing(&session, opened);
        let welcome = self.message(server, standing);
        tracing::info!(
            session = %session.id, client = %session.key, name = %self.client.name,
            address = %connection.remote_address(), mount = ?session.mount(),
            standing = ?standing.0, "client connected"
        );
        let sent = place.finish(writer.send(&welcome, bytes::Bytes::new()));
        if !matches!(sent.await, Ok(Ok(()))) {
            link.close(CloseCode::Goodbye, "");
            if session.disconnect(number, server.now()) {
                leases.disconnect(session.id, number);
            }
            return None;
        }
        Some(Greeted {
            link,
            control: writer.into_outbox(),
            reader,
            session: Arc::clone(&session),
        })
    }

    /// The connection is the session's, and an older one is closed.
    fn connected(&self, server: &Server, connection: &Connection) -> Option<Arc<Link>> {
        let session = &self.session;
        let number = server.next_link();
        let link = Arc::new(Link::new(
            number,
            Arc::new(self.client.clone()),
            connection.clone(),
            Arc::clone(session.opens.account()),
            server.meters.connections.begins(number, connection),
        ));
        let mount: String = self.hello.name.chars().take(MAX_MOUNT).collect();
        if let Some(old) = session.connect(Arc::clone(&link), mount) {
            tracing::info!(session = %session.id, "older connection closed: a newer one has come");
            old.close(CloseCode::Fenced, "a newer connection has taken over");
        }
        // What the client may do may have changed since it was let in: then its session is over. Who
        // ends it from here on finds this connection.
        if !server.sessions.has(session) {
            link.close(CloseCode::Goodbye, "the session is over: connect again");
            return None;
        }
        Some(link)
    }

    fn message(&self, server: &Server, (standing, renews): (Standing, bool)) -> ToClient {
        let (mut root, root_attr): (Handle, Attr) = (self.root.handle, self.root.attr);
        if let Some(border) = self.session.border() {
            root = border.outward(&root);
        }
        ToClient::Welcome(Welcome {
            features: self.hello.features & FEATURES,
            term_ms: u32::try_from(server.settings.term.as_millis()).unwrap_or(u32::MAX),
            drift_ppm: server.settings.drift_ppm.max(self.hello.drift_ppm),
            process: server.process,
            host: server.host,
            standing,
            renews,
            root,
            root_attr,
            read_only: self.client.read_only,
            identity: self.client.policy_shown(),
        })
    }
}

/// How the session stands, and whether it is renewed. One from the server's earlier life reclaims
/// its opens even where the lease core knows nothing of it (after an orderly end, or behind the
/// grace); nothing is renewed before, since its client may still hold leases that are none. What its client may not have heard, since
/// this was lost before, is said again.
fn standing(session: &Session, opened: Opened) -> (Standing, bool) {
    if session.reclaims.load(Ordering::Relaxed) {
        return (Standing::Reclaim, false);
    }
    if opened.standing == CoreStanding::Expired {
        session.has_expired();
    }
    let standing = match (session.unheard(), opened.standing) {
        (Unheard::Begun, _) | (_, CoreStanding::New) => Standing::New,
        (_, CoreStanding::Reclaim) => Standing::Reclaim,
        (Unheard::Expired, _) | (_, CoreStanding::Expired) => Standing::Expired,
        (Unheard::Nothing, CoreStanding::Resumed) => Standing::Resumed,
    };
    (standing, opened.renewed)
}

fn ending() -> HelloRefusal {
    let why = "the session has ended, and is still waited for: connect again";
    HelloRefusal::Internal(why.to_owned())
}

/// The session is on record before it is granted anything.
async fn record(server: &Arc<Server>, session: &Arc<Session>) -> Result<(), HelloRefusal> {
    let shut_out = HelloRefusal::Revoked(session.key);
    let pass = session.gate.enter().ok_or(shut_out)?;
    let (task_server, task_session) = (Arc::clone(server), Arc::clone(session));
    // Whoever waits for it may leave.
    let task = async move {
        let (id, owner) = (task_session.id, task_session.owner);
        let record = || task_server.records.record_session(id, owner);
        let recorded = task_session.unless_forgotten(record);
        task_session.leased.store(true, Ordering::Relaxed);
        drop(pass);
        recorded
    };
    match server.spawn_io(task).await {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(None) => Err(ending()),
        Ok(Some(Err(error))) => {
            tracing::error!(%error, "a session can't be put on record");
            Err(HelloRefusal::Internal(format!("state directory: {error}")))
        }
        Err(_) => Err(HelloRefusal::Internal("see its log".to_owned())),
    }
}
