//! What callers of [`super::Rpc`] give and get.

use bytes::Bytes;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{HelloRefusal, ReclaimLease, Welcome};
use leasefs_protocol::ticket::ServerAddr;
use leasefs_protocol::{
    BootId, Handle, KeyHash, OpenId, RawName, Recall, Refusal, Reply, Response, SessionId,
};
use leasefs_transport::{Identity, TransportError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// How long a request waits for a server that can't be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Then it fails with [`Refusal::TimedOut`]. While the server is in contact it is given at
    /// least the time that others' leases may take to run out.
    After(Duration),
    /// For ever.
    Hard,
}

/// Everything a session is made with.
pub struct Config {
    /// Where the server is; its name is resolved at each connection.
    pub server: ServerAddr,
    /// Its key, pinned.
    pub key: KeyHash,
    /// Who this client is.
    pub identity: Identity,
    /// Secret of a ticket, to enrol.
    pub ticket: Option<[u8; 32]>,
    /// The mount's session.
    pub session: SessionId,
    /// For people: host name and mount point.
    pub name: String,
    /// Directory below the export that is mounted.
    pub subdir: Vec<RawName>,
    /// Bound of the clocks' drift, parts per million.
    pub drift_ppm: u32,
    /// How long requests wait.
    pub timeout: Timeout,
    /// How long the first connection may take.
    pub connect_timeout: Duration,
    /// Takes what the server says unasked. Never waits: the recall engine keeps reading it.
    pub events: mpsc::UnboundedSender<Event>,
    /// Told of renewals at once.
    pub renewals: Arc<dyn Renewals>,
}

/// Keeps the session's expiry.
pub trait Renewals: Send + Sync + 'static {
    /// The session's leases are valid for `term` (less `drift_ppm`, less the guard) from `sent`,
    /// when the request was sent whose reply says so. Calls come in any order of `sent`: the
    /// newest counts. Called before that reply is handed to its caller; must not block.
    fn renewed(&self, sent: BootTime, term: Duration, drift_ppm: u32);
}

/// What the recall engine is told, in this order.
#[derive(Debug)]
pub enum Event {
    /// A connection stands. By `welcome.standing`: `Resumed`, leases stand and unapproved recalls
    /// come again; `Expired` or `New`, nothing is held any more; `Reclaim`, the server has
    /// restarted, [`Event::Reclaim`] follows. (A renewal it carries was told to [`Renewals`].)
    Connected {
        /// What the server said.
        welcome: Box<Welcome>,
    },
    /// The connection that stands is of another life of the server's host. Nothing goes on before the
    /// answer, but for a short while at most.
    HostCrashed {
        /// To be answered when nothing is left of what was cached before.
        done: oneshot::Sender<()>,
    },
    /// The server has restarted: say which leases are alive by the own clock. Leases that are
    /// left out must not be used any more. Nothing goes on before the answer.
    Reclaim {
        /// Takes the list.
        reply: oneshot::Sender<Vec<ReclaimLease>>,
    },
    /// The server could not take these back: drop what was cached under them.
    Lost {
        /// Objects whose leases are gone.
        leases: Vec<Handle>,
        /// Opens that are gone.
        opens: Vec<OpenId>,
        /// To be answered when the drop is done: then the server is told that the reclaim is
        /// complete, and may let others change these objects. It isn't waited for long.
        done: oneshot::Sender<()>,
    },
    /// Give something up, then [`super::Rpc::approve`].
    Recall(Recall),
    /// The connection is lost; another is tried. Leases stand until they expire.
    Disconnected,
}

/// The first connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name can't be resolved.
    #[error("can't find {server}: {reason}")]
    Resolve {
        /// The server.
        server: ServerAddr,
        /// The resolver's reason.
        reason: String,
    },
    /// No connection.
    #[error("can't reach {server}: {source}")]
    Transport {
        /// The server.
        server: ServerAddr,
        /// Why.
        source: TransportError,
    },
    /// The server refuses the session.
    #[error("{server} refuses the mount: {refusal}")]
    Refused {
        /// The server.
        server: ServerAddr,
        /// Its reason.
        refusal: HelloRefusal,
    },
    /// The connection was lost, or the server broke the protocol, before the session stood.
    #[error("{server}: {reason}")]
    Broken {
        /// The server.
        server: ServerAddr,
        /// What happened.
        reason: String,
    },
}

/// A server's answer.
#[derive(Debug)]
pub struct Answer {
    /// The reply; its `result` may be a refusal.
    pub reply: Reply,
    /// File data behind it.
    pub payload: Bytes,
    /// The life of the server's host in which it was given.
    pub host: BootId,
}

impl Answer {
    /// The response and its payload.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn into_response(self) -> Result<(Response, Bytes), Refusal> {
        Ok((self.reply.result?, self.payload))
    }
}

/// The outcome of a change as its caller is told.
#[derive(Debug)]
pub struct Changed {
    /// The server's answer; or why there is none: `TimedOut`, `Cancelled` (abandoned), `Lost`.
    pub result: Result<Answer, Refusal>,
    /// Present if the change may still happen: its objects must not be cached before this is
    /// resolved.
    pub unsettled: Option<Unsettled>,
    /// It was not sent, since the server's host has crashed or has forgotten the session: what it
    /// must come behind may have to be written again first. Then it may be asked for anew.
    pub overtaken: bool,
}

impl Changed {
    /// A change that was never sent.
    pub(super) fn never(refusal: Refusal) -> Self {
        Self {
            result: Err(refusal),
            unsettled: None,
            overtaken: false,
        }
    }

    /// The storage host's disk is full, or its owner's quota used up.
    pub(super) fn finds_no_room(&self) -> bool {
        const NO_ROOM: [i32; 2] = [libc::ENOSPC, libc::EDQUOT];
        let answer = self.result.as_ref().ok();
        matches!(
            answer.map(|answer| &answer.reply.result),
            Some(Err(Refusal::Host(errno))) if NO_ROOM.contains(&i32::from(*errno))
        )
    }
}

/// Resolves when it is known what became of a change whose caller has gone.
#[derive(Debug)]
pub struct Unsettled(pub(super) oneshot::Receiver<Settlement>);

impl Future for Unsettled {
    type Output = Settlement;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Settlement> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|settled| settled.unwrap_or(Settlement::SessionLost))
    }
}

/// What became of a change whose caller has gone.
#[derive(Debug)]
pub enum Settlement {
    /// It ran; this is its answer. An open it has made is closed again.
    Answered(Box<Answer>),
    /// It never runs.
    NeverHappens,
    /// The server has forgotten the session: it may have run, but does not run any more.
    SessionLost,
}

/// How a request is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions<'a> {
    /// Lets the caller leave early.
    pub abandon: Option<&'a Abandon>,
    /// For `status`: the process that waits.
    pub pid: Option<u32>,
    /// Of a change: the life of the server's host that was known when what it must come behind was
    /// settled. It is sent in no other.
    pub life: Option<BootId>,
    /// Of a change: told when it has its number. Those that are asked for then come behind it.
    pub numbered: Option<&'a Notify>,
}

/// Tells a waiting request that its caller leaves. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Abandon(Arc<AbandonState>);

#[derive(Debug, Default)]
struct AbandonState {
    set: AtomicBool,
    notify: Notify,
}

impl Abandon {
    /// One that is not triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// The caller leaves: its request ends with [`Refusal::Cancelled`].
    pub fn trigger(&self) {
        self.0.set.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// Whether the caller has left.
    pub fn is_triggered(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// Waits until the caller leaves. Cancel-safe.
    pub async fn triggered(&self) {
        loop {
            let notified = self.0.notify.notified();
            if self.is_triggered() {
                return;
            }
            notified.await;
        }
    }
}
