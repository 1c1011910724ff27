//! One connection: from its `Welcome` to its end.

use super::clock::now;
use super::lanes::Lanes;
use super::link::Link;
use super::reclaim;
use super::session::{DEAD_AFTER, FAREWELL, TICK, set};
use super::shared::{Shared, lock};
use super::types::Event;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{Push, Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::{BootId, Reply};
use leasefs_transport::{CloseCode, Connection, FrameError, FrameReader, Lost};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// The close is sent at once; what comes back doesn't matter.
const LAST_PACKET: Duration = Duration::from_millis(50);
/// After so long a silence the server is asked whether it lives: a restarted one answers that it
/// doesn't know the connection.
const ASK_AFTER: Duration = Duration::from_millis(750);

/// A connection on which requests are served.
pub(super) struct Serving {
    connection: Connection,
    control: FrameReader,
    tasks: JoinSet<()>,
    /// Keep-alives without answer, and when they were sent.
    asked: VecDeque<(u64, BootTime)>,
    last_asked: Instant,
    datagrams: u64,
    last_tick: Instant,
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

impl Serving {
    /// Reclaims if the server has restarted, and sends again what has no answer.
    pub(super) async fn begin(shared: &Arc<Shared>, link: Link) -> Result<Self, FrameError> {
        let Link {
            connection,
            writer,
            mut reader,
            welcome,
            sent,
        } = link;
        let control = writer.into_outbox();
        shared.welcomed(&welcome);
        if welcome.renews {
            shared.renewed(sent);
        }
        let last_host = lock(&shared.contact).welcome.as_ref().map(|last| last.host);
        let first = last_host.is_none();
        let standing = welcome.standing;
        let last = lock(&shared.contact)
            .welcome
            .as_ref()
            .map(|last| last.process);
        if last != Some(welcome.process) {
            lock(&shared.recalls).restarted();
        }
        announce(shared, &welcome);
        if last_host.is_some_and(|last| last != welcome.host) {
            reclaim::host_crashed(shared).await;
        }
        if standing == Standing::Reclaim {
            reclaim::reclaim(shared, &control, &mut reader).await?;
        }
        let forgotten = standing == Standing::New && !first;
        if forgotten {
            forget(shared);
        }
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let (lanes, readers) = Lanes::open(number, &connection, control).await?;
        let mut tasks = JoinSet::new();
        for lane in readers {
            tasks.spawn(read_lane(shared.clone(), number, connection.clone(), lane));
        }
        tasks.spawn(read_pushes(shared.clone(), connection.clone()));
        install(shared, Arc::new(lanes), welcome.host, forgotten);
        let mut contact = lock(&shared.contact);
        contact.connections += 1;
        contact.connection = Some(connection.clone());
        contact.welcome = Some(welcome);
        contact.silent = Duration::ZERO;
        contact.trouble = None;
        drop(contact);
        let now = Instant::now();
        Ok(Self {
            datagrams: connection.datagrams_received(),
            connection,
            control: reader,
            tasks,
            asked: VecDeque::new(),
            last_asked: now - ASK_AFTER,
            last_tick: now,
        })
    }

    /// Until the connection is lost, or the mount ends.
    pub(super) async fn serve(&mut self, shared: &Arc<Shared>) -> FrameError {
        let mut ending = shared.ending.subscribe();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let happened = tokio::select! {
                message = self.control.next::<ToClient>() => match message {
                    Ok(Some((message, _))) => self.control_message(shared, message),
                    Ok(None) => Err(FrameError::Abandoned),
                    Err(error) => Err(error),
                },
                _ = ticks.tick() => self.tick(shared),
                lost = self.connection.closed() => Err(FrameError::Lost(lost)),
                () = set(&mut ending) => break,
            };
            if let Err(error) = happened {
                return error;
            }
        }
        self.farewell(shared).await
    }

    fn control_message(
        &mut self,
        shared: &Arc<Shared>,
        message: ToClient,
    ) -> Result<(), FrameError> {
        match message {
            ToClient::KeepAlive { number, renews } => self.answered(shared, number, renews),
            ToClient::Cancelled { seq, begun } => {
                let again = lock(&shared.table).cancelled(seq, begun, now());
                shared.send_all(again.into_iter().collect());
                shared.room.notify_waiters();
            }
            // The answer to ReclaimDone, where the server gives one, says nothing new.
            ToClient::Reclaimed { .. } => {}
            ToClient::Welcome(_) | ToClient::Refused(_) | ToClient::Farewell => {
                return Err(FrameError::Abandoned);
            }
        }
        Ok(())
    }

    fn answered(&mut self, shared: &Shared, number: u64, renews: bool) {
        while let Some((asked, sent)) = self.asked.front().copied() {
            if asked > number {
                break;
            }
            self.asked.pop_front();
            if asked == number && renews {
                shared.renewed(sent);
            }
        }
        lock(&shared.opens).acknowledged(number);
    }

    fn tick(&mut self, shared: &Arc<Shared>) -> Result<(), FrameError> {
        let silent = self.listen(shared);
        if silent >= DEAD_AFTER {
            return Err(FrameError::Lost(Lost::Silent));
        }
        let old = shared.since_renewal() >= shared.term() / 3;
        let due = self.last_asked.elapsed() >= ASK_AFTER;
        if due && (old || silent >= ASK_AFTER) {
            self.ask(shared);
        }
        Ok(())
    }

    /// How long the server has been silent. Time in which this process itself stood still counts
    /// as one tick.
    fn listen(&mut self, shared: &Shared) -> Duration {
        let passed = self.last_tick.elapsed().min(TICK * 2);
        self.last_tick = Instant::now();
        let datagrams = self.connection.datagrams_received();
        let mut contact = lock(&shared.contact);
        contact.silent = match datagrams == self.datagrams {
            true => contact.silent + passed,
            false => Duration::ZERO,
        };
        self.datagrams = datagrams;
        contact.silent
    }

    fn ask(&mut self, shared: &Shared) {
        let sent = now();
        if let Some(number) = shared.keep_alive() {
            self.asked.push_back((number, sent));
            self.last_asked = Instant::now();
        }
    }

    async fn farewell(&mut self, shared: &Arc<Shared>) -> FrameError {
        let lanes = lock(&shared.table).lanes();
        if let Some(lanes) = lanes {
            let _ = lanes.control(&ToServer::Goodbye);
        }
        let heard = async {
            while let Ok(Some((message, _))) = self.control.next::<ToClient>().await {
                if message == ToClient::Farewell {
                    break;
                }
            }
        };
        let _ = timeout(FAREWELL / 2, heard).await;
        self.connection.close(CloseCode::Goodbye, "unmounted");
        let _ = timeout(LAST_PACKET, self.connection.wait_closed()).await;
        FrameError::Lost(Lost::ClosedHere)
    }

    /// The connection is of no use any more.
    pub(super) fn end(&mut self, shared: &Shared, error: &FrameError) {
        let code = match error {
            FrameError::Codec(_) | FrameError::Truncated => CloseCode::Protocol,
            FrameError::Abandoned | FrameError::Lost(_) => CloseCode::Goodbye,
        };
        self.connection.close(code, &error.to_string());
        self.tasks.abort_all();
        lock(&shared.table).disconnected();
        lock(&shared.opens).disconnected();
        lock(&shared.contact).lost(error.to_string());
        // The recall engine may have ended before the session.
        let _ = shared.config.events.send(Event::Disconnected);
    }
}

fn announce(shared: &Shared, welcome: &Welcome) {
    let welcome = Box::new(welcome.clone());
    let _ = shared.config.events.send(Event::Connected { welcome });
}

/// The server knows nothing of what the session had.
fn forget(shared: &Shared) {
    let opens = lock(&shared.opens).forget();
    let (done, _) = oneshot::channel();
    let _ = shared.config.events.send(Event::Lost {
        leases: Vec::new(),
        opens,
        done,
    });
}

/// From here on requests are sent on these lanes; what was sent on earlier ones is sent again.
fn install(shared: &Shared, lanes: Arc<Lanes>, host: BootId, forgotten: bool) {
    let resend = lock(&shared.table).connected(lanes.clone(), host, forgotten, now());
    for seq in resend.cancels {
        let _ = lanes.control(&ToServer::Cancel { seq });
    }
    shared.send_all(resend.frames);
    shared.closes.notify_one();
    shared.room.notify_waiters();
}

async fn read_lane(shared: Arc<Shared>, number: u64, connection: Connection, lane: FrameReader) {
    let mut lane = lane;
    loop {
        match lane.next::<Reply>().await {
            Ok(Some((reply, payload))) => shared.deliver(number, reply, payload),
            end => return end_of_stream(&connection, end.err()),
        }
    }
}

async fn read_pushes(shared: Arc<Shared>, connection: Connection) {
    let Ok(mut pushes) = connection.accept_push().await else {
        return;
    };
    loop {
        match pushes.next::<Push>().await {
            Ok(Some((Push::Recall(recall), _))) => {
                if let Err(broken) = shared.recalled(recall) {
                    tracing::error!("{broken}");
                    return connection.close(CloseCode::Protocol, &broken.to_string());
                }
            }
            end => return end_of_stream(&connection, end.err()),
        }
    }
}

/// No stream ends before its connection does; where the connection is lost, its loss tells why.
fn end_of_stream(connection: &Connection, error: Option<FrameError>) {
    let reason = match error {
        Some(FrameError::Lost(_)) => return,
        Some(error) => error.to_string(),
        None => "a stream has ended".into(),
    };
    connection.close(CloseCode::Protocol, &reason);
}
