//! The session's life: connections begin, serve, end, and others are tried.

mod attempts;
mod reclaim;
mod serve;

pub use attempts::{Pause, refused_for_good};

use crate::api::{ConnectionId, Effect, Unconnected};
use crate::recall::Engine;
use crate::run::{Bell, Cx, Part, first};
use crate::session::{Rpc, check_welcome};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::lock::LockGranted;
use leasefs_protocol::{BootId, Recall};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How often the session looks after itself.
const TICK: Duration = Duration::from_millis(250);
/// Pause between two attempts when the server refuses the session.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// How long what was cached may take to be dropped. What takes longer waits for the kernel's locked
/// pages to be written back, and that waits for the connection.
const DROP: Duration = Duration::from_millis(500);

/// What concerns the session's connections.
#[derive(Debug)]
pub(crate) enum Happened {
    Connected {
        connection: ConnectionId,
        welcome: Box<Welcome>,
        sent: BootTime,
    },
    NotConnected(Unconnected),
    Control(ConnectionId, ToClient),
    Heard(ConnectionId, u64),
    Lost(ConnectionId, String),
}

/// Why a connection is of no use any more.
#[derive(Debug)]
struct Over {
    broken: bool,
    reason: String,
}

impl Over {
    fn broken(reason: impl ToString) -> Self {
        Self {
            broken: true,
            reason: reason.to_string(),
        }
    }

    fn lost(reason: impl ToString) -> Self {
        Self {
            broken: false,
            reason: reason.to_string(),
        }
    }
}

#[derive(Default)]
struct Inbox {
    happened: VecDeque<Happened>,
    /// The connection that is spoken on.
    current: Option<ConnectionId>,
    ending: bool,
}

/// The life of one session.
pub(crate) struct Life {
    cx: Cx,
    rpc: Rpc,
    engine: Engine,
    inbox: Part<Inbox>,
    bell: Bell,
    ending: Bell,
}

impl Life {
    /// Waits for the first connection.
    pub fn begin(cx: Cx, rpc: Rpc, engine: Engine) -> Arc<Self> {
        let life = Arc::new(Self {
            cx: cx.clone(),
            rpc: rpc.clone(),
            engine,
            inbox: Part::default(),
            bell: Bell::default(),
            ending: Bell::default(),
        });
        cx.spawn(Arc::clone(&life).live());
        let sweeper = cx.clone();
        cx.spawn(async move {
            loop {
                sweeper.sleep(TICK).await;
                rpc.end_overdue();
            }
        });
        life
    }

    /// Takes in what concerns connections.
    pub fn happened(&self, happened: Happened) {
        self.inbox.borrow_mut().happened.push_back(happened);
        self.bell.ring_one();
    }

    /// The mount ends.
    pub fn goodbye(&self) {
        self.inbox.borrow_mut().ending = true;
        self.ending.ring_all();
    }

    /// The server takes something back.
    pub fn recalled(&self, connection: ConnectionId, mut recall: Recall) {
        if !self.is_on(connection) {
            return;
        }
        match self.rpc.recalled(&mut recall) {
            Ok(()) => self.engine.recalled(recall),
            Err(broken) => {
                tracing::error!("{broken}");
                self.disconnect(connection, &Over::broken(broken));
            }
        }
    }

    /// A lock that was waited for is held.
    pub fn lock_granted(&self, connection: ConnectionId, granted: LockGranted) {
        if self.is_on(connection) {
            self.engine.lock_granted(granted);
        }
    }

    /// Whether this is the connection now.
    pub fn is_on(&self, connection: ConnectionId) -> bool {
        self.inbox.borrow().current == Some(connection)
    }

    fn is_ending(&self) -> bool {
        self.inbox.borrow().ending
    }

    async fn next(&self) -> Happened {
        loop {
            let bell = self.bell.listen();
            let next = self.inbox.borrow_mut().happened.pop_front();
            match next {
                Some(happened) => return happened,
                None => bell.await,
            }
        }
    }

    /// Waits until the mount ends.
    async fn ended(&self) {
        let bell = self.ending.listen();
        if !self.is_ending() {
            bell.await;
        }
    }

    async fn live(self: Arc<Self>) {
        let mut connected = self.first_connection().await;
        while let Some(connection) = connected {
            let over = self.serve(connection).await;
            self.end(connection, &over);
            if self.is_ending() {
                break;
            }
            tracing::warn!(reason = %over.reason, "lost the server");
            connected = first(async { Some(self.reconnect().await) }, async {
                self.ended().await;
                None
            })
            .await;
        }
        self.cx.effect(Effect::Ended);
    }

    /// The first connection was made before there was anything to be lost.
    async fn first_connection(&self) -> Option<ConnectionId> {
        let connected = async {
            loop {
                if let Happened::Connected {
                    connection,
                    welcome,
                    sent,
                } = self.next().await
                {
                    return match self.welcomed(connection, *welcome, sent).await {
                        Ok(()) => connection,
                        Err(over) => {
                            self.end(connection, &over);
                            self.reconnect().await
                        }
                    };
                }
            }
        };
        let ended = async {
            self.ended().await;
            None
        };
        first(async { Some(connected.await) }, ended).await
    }

    async fn reconnect(&self) -> ConnectionId {
        let mut pause = Pause::default();
        loop {
            let last_process = self.rpc.last_process().unwrap_or(BootId([0; 16]));
            self.cx.effect(Effect::Connect { last_process });
            match self.attempted().await {
                Ok((connection, welcome, sent)) => {
                    match self.welcomed(connection, *welcome, sent).await {
                        Ok(()) => {
                            tracing::info!("found the server again");
                            return connection;
                        }
                        Err(over) => {
                            self.trouble(&over.reason);
                            self.end(connection, &over);
                        }
                    }
                }
                Err(Unconnected::Refused(refusal)) => {
                    self.trouble(&refusal.to_string());
                    if let Some(errno) = refused_for_good(&refusal) {
                        self.rpc.refused(errno);
                        self.engine.shut_out();
                        self.cx.sleep(REFUSED_PAUSE).await;
                    }
                }
                Err(Unconnected::Unreachable(reason)) => self.trouble(&reason),
            }
            self.cx.sleep(pause.next(self.cx.boot())).await;
        }
    }

    /// What has come of an attempt to connect.
    async fn attempted(&self) -> Result<(ConnectionId, Box<Welcome>, BootTime), Unconnected> {
        loop {
            match self.next().await {
                Happened::Connected {
                    connection,
                    welcome,
                    sent,
                } => return Ok((connection, welcome, sent)),
                Happened::NotConnected(why) => return Err(why),
                // Of an earlier connection.
                Happened::Control(..) | Happened::Heard(..) | Happened::Lost(..) => {}
            }
        }
    }

    fn trouble(&self, trouble: &str) {
        if self.rpc.trouble(trouble) {
            tracing::warn!(reason = %trouble, "no session");
        }
    }

    /// Reclaims if the server has restarted, and sends again what has no answer.
    async fn welcomed(
        &self,
        connection: ConnectionId,
        welcome: Welcome,
        sent: BootTime,
    ) -> Result<(), Over> {
        check_welcome(&welcome).map_err(Over::broken)?;
        self.inbox.borrow_mut().current = Some(connection);
        self.rpc.welcomed(&welcome);
        if welcome.renews {
            self.rpc.renewed(sent);
        }
        let last_host = self.rpc.last_host();
        let ended = matches!(welcome.standing, Standing::New | Standing::Expired);
        if ended || self.rpc.last_process() != Some(welcome.process) {
            self.rpc.recalls_ended();
        }
        self.engine.connected(&welcome);
        if last_host.is_some_and(|last| last != welcome.host) {
            // Nothing that it says from now on may meet what was cached before.
            self.dropped(self.engine.host_crashed()).await;
        }
        if welcome.standing == Standing::Reclaim {
            self.reclaim(connection).await?;
        }
        let forgotten = welcome.standing == Standing::New && last_host.is_some();
        if forgotten {
            // The server knows nothing of what the session had.
            let opens = self.rpc.forget_opens();
            drop(self.engine.lost(&[], &opens));
        }
        if welcome.standing != Standing::Resumed {
            self.engine.kept_outlives();
        }
        self.cx.effect(Effect::Serve(connection));
        self.rpc.connected(connection, welcome, forgotten);
        Ok(())
    }

    async fn dropped(&self, dropped: impl Future<Output = ()>) {
        if self.cx.timeout(DROP, dropped).await.is_err() {
            tracing::info!("some cached pages can't be dropped before they are written back");
        }
    }

    fn tell(&self, connection: ConnectionId, message: ToServer) {
        self.cx.effect(Effect::Control(connection, message));
    }

    fn disconnect(&self, connection: ConnectionId, over: &Over) {
        self.cx.effect(Effect::Disconnect {
            connection,
            broken: over.broken,
            reason: over.reason.clone(),
        });
    }

    /// The connection is of no use any more.
    fn end(&self, connection: ConnectionId, over: &Over) {
        self.disconnect(connection, over);
        self.inbox.borrow_mut().current = None;
        self.rpc.disconnected(&over.reason);
    }
}
