//! The connections there are, and what is to be sent on them.

use super::Ear;
use super::config::{Config, ConnectError};
use super::lanes::Lanes;
use super::link::{self, Link};
use super::readers::{Listening, close_code};
use bytes::Bytes;
use leasefs_client::{ConnectionId, Effect, Event, Unconnected};
use leasefs_protocol::{BootId, RequestFrame};
use leasefs_transport::{CloseCode, Connection, FrameReader, Traffic, TransportError};
use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// A close is sent at once; what comes back doesn't matter.
const LAST_PACKET: Duration = Duration::from_millis(50);
/// A host that has said that the server's port is closed, and says nothing now, is believed for so long: it limits how often
/// it says so, to all mounts of this machine together.
const TOLD_HOLDS: Duration = Duration::from_secs(15);

/// All connections of a session. There is one, or none, but for moments.
pub struct Wire<W>(Arc<Inner<W>>);

struct Inner<W> {
    config: Arc<Config>,
    runtime: Runtime,
    ear: Ear<W>,
    state: Mutex<State<W>>,
}

struct State<W> {
    lives: BTreeMap<ConnectionId, Live<W>>,
    last: ConnectionId,
    /// The one that was closed last, until there is another.
    closed: Option<Connection>,
    /// Of connections that have ended.
    ended: Traffic,
    /// When it was told last that the port is closed, and what people are told of it; until there is a connection.
    told: Option<(Instant, String)>,
}

/// A connection on which something can be sent.
struct Live<W> {
    listening: Listening<W>,
    lanes: Lanes,
    /// Until they are read.
    replies: Vec<FrameReader>,
    readers: JoinSet<()>,
}

/// What is told of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Its round-trip time, if there is one.
    pub rtt: Option<Duration>,
    /// How many bytes may be under way to the server.
    pub window: Option<u64>,
    /// Of all connections so far.
    pub traffic: Traffic,
}

impl<W> Clone for Wire<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: 'static> Wire<W> {
    /// A session without connections. `ear` is told of what comes, on a thread of the runtime.
    pub fn new(config: Arc<Config>, runtime: Runtime, ear: Ear<W>) -> Self {
        let state = State {
            lives: BTreeMap::new(),
            last: ConnectionId(0),
            closed: None,
            ended: Traffic::default(),
            told: None,
        };
        Self(Arc::new(Inner {
            config,
            runtime,
            ear,
            state: Mutex::new(state),
        }))
    }

    /// The session's.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The right to send. Whoever takes it before anybody else can be told what to send keeps the order.
    pub fn out(&self) -> Out<'_, W> {
        Out {
            wire: self,
            state: self.state(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        let state = self.0.state.lock();
        // No section leaves it half changed.
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in: [`Event::Connected`], then what comes on its control stream, then
    /// [`Event::Lost`].
    pub fn stands(&self, link: Link) {
        let Link {
            server: _,
            connection,
            control,
            lanes,
            replies,
            welcome,
            sent,
        } = link;
        let listening = {
            let mut state = self.state();
            let listening = Listening {
                id: state.next_id(),
                connection,
                ear: self.0.ear.clone(),
            };
            let live = Live {
                listening: listening.clone(),
                lanes,
                replies,
                readers: JoinSet::new(),
            };
            state.lives.insert(listening.id, live);
            (state.closed, state.told) = (None, None);
            listening
        };
        (self.0.ear)(Event::Connected {
            connection: listening.id,
            welcome: Box::new(welcome),
            sent,
        });
        let wire = self.clone();
        self.0.runtime.spawn(wire.attend(listening, control));
    }

    async fn attend(self, listening: Listening<W>, control: FrameReader) {
        let lost = listening.control(control).await;
        let reason = lost.to_string();
        listening.connection.close(close_code(&lost), &reason);
        self.state().forget(listening.id);
        (self.0.ear)(Event::Lost(listening.id, reason));
    }

    async fn connect(self, last_process: BootId) {
        match link::establish(&self.0.config, Some(last_process)).await {
            Ok(link) => self.stands(link),
            Err(error) => {
                let failed = match error {
                    ConnectError::Refused { refusal, .. } => Unconnected::Refused(refusal),
                    error => Unconnected::Unreachable(self.state().why(&error)),
                };
                (self.0.ear)(Event::NotConnected(failed));
            }
        }
    }

    /// Ends all connections, and gives the last packets the time to go out.
    pub async fn close(&self) {
        let connections: Vec<Connection> = {
            let mut state = self.state();
            let closed = state.closed.take();
            let open = state.lives.values();
            let open = open.map(|live| live.listening.connection.clone());
            closed.into_iter().chain(open).collect()
        };
        for connection in connections {
            // Says nothing where it is closed already.
            connection.close(CloseCode::Goodbye, "unmounted");
            let _ = timeout(LAST_PACKET, connection.wait_closed()).await;
        }
    }

    /// What is told of the connection.
    pub fn facts(&self) -> Facts {
        let state = self.state();
        let connections = state.lives.values();
        let connections = connections.map(|live| &live.listening.connection);
        let last = connections.clone().next_back();
        Facts {
            rtt: last.map(Connection::rtt),
            window: last.map(Connection::window),
            traffic: connections
                .map(Connection::traffic)
                .fold(state.ended, Traffic::add),
        }
    }
}

impl<W> State<W> {
    fn next_id(&mut self) -> ConnectionId {
        self.last.0 += 1;
        self.last
    }

    /// Why there is no connection, for people.
    fn why(&mut self, error: &ConnectError) -> String {
        let ConnectError::Transport { source, .. } = error else {
            return error.to_string();
        };
        let now = Instant::now();
        match source {
            TransportError::NotListening(_) => self.told = Some((now, error.to_string())),
            TransportError::NoAnswer(_) => {}
            _ => return error.to_string(),
        }
        let told = self.told.as_ref();
        told.filter(|(at, _)| now.duration_since(*at) < TOLD_HOLDS)
            .map_or_else(|| error.to_string(), |(_, said)| said.clone())
    }

    /// Ends its readers too.
    fn forget(&mut self, id: ConnectionId) {
        if let Some(live) = self.lives.remove(&id) {
            self.ended = self.ended + live.listening.connection.traffic();
        }
    }
}

/// Carries out what concerns connections; nobody else does meanwhile.
pub struct Out<'a, W> {
    wire: &'a Wire<W>,
    state: MutexGuard<'a, State<W>>,
}

impl<W: 'static> Out<'_, W> {
    /// Carries out one of the effects that are [`is_ours`]; what is to be told of it, when
    /// nothing is locked any more.
    pub fn carry_out(&mut self, effect: Effect) -> Option<Event<W>> {
        match effect {
            Effect::Send {
                connection,
                frame,
                payload,
            } => self.send(connection, &frame, payload),
            Effect::Control(connection, message) => {
                let sent = self
                    .live(connection)
                    .map(|live| live.lanes.control(&message));
                if let Some(Err(error)) = sent {
                    tracing::error!(%error, "a control message is over the bounds of the protocol");
                }
                None
            }
            Effect::Serve(connection) => {
                self.serve(connection);
                None
            }
            Effect::Listen(connection) => {
                let live = self.live(connection)?;
                let heard = live.listening.connection.datagrams_received();
                Some(Event::Heard(connection, heard))
            }
            Effect::Disconnect {
                connection,
                broken,
                reason,
            } => {
                self.disconnect(connection, broken, &reason);
                None
            }
            Effect::Connect { last_process } => {
                let wire = self.wire.clone();
                self.wire.0.runtime.spawn(wire.connect(last_process));
                None
            }
            Effect::Notify(..) | Effect::Watch(..) | Effect::Keep(..) | Effect::Ended => None,
        }
    }

    fn live(&mut self, connection: ConnectionId) -> Option<&mut Live<W>> {
        self.state.lives.get_mut(&connection)
    }

    fn send(
        &mut self,
        connection: ConnectionId,
        frame: &RequestFrame,
        payload: Bytes,
    ) -> Option<Event<W>> {
        let sent = self.live(connection)?.lanes.send(frame, payload);
        let error = sent.err()?;
        tracing::debug!(%error, request = frame.request.kind(), "not sent");
        Some(Event::Unsendable(frame.id))
    }

    fn serve(&mut self, connection: ConnectionId) {
        let runtime = self.wire.0.runtime.clone();
        let Some(live) = self.live(connection) else {
            return;
        };
        for lane in live.replies.drain(..) {
            let read = live.listening.clone().replies(lane);
            live.readers.spawn_on(read, &runtime);
        }
        let read = live.listening.clone().recalls();
        live.readers.spawn_on(read, &runtime);
    }

    /// Its reader tells that it is lost.
    fn disconnect(&mut self, connection: ConnectionId, broken: bool, reason: &str) {
        let Some(live) = self.live(connection) else {
            return;
        };
        let code = match broken {
            true => CloseCode::Protocol,
            false => CloseCode::Goodbye,
        };
        let connection = live.listening.connection.clone();
        connection.close(code, reason);
        self.state.closed = Some(connection);
    }
}

/// Whether an effect concerns connections.
pub fn is_ours(effect: &Effect) -> bool {
    match effect {
        Effect::Send { .. }
        | Effect::Control(..)
        | Effect::Serve(_)
        | Effect::Listen(_)
        | Effect::Disconnect { .. }
        | Effect::Connect { .. } => true,
        Effect::Notify(..) | Effect::Watch(..) | Effect::Keep(..) | Effect::Ended => false,
    }
}
