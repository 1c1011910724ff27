//! What all parts of a session share, and how a request goes through it.

use super::border::{self, Broken, Recalls};
use super::clock::now;
use super::contact::Contact;
use super::lanes::Lanes;
use super::opens::Opens;
use super::request::{Delivered, New, NotTaken, Outcome, Taken, ToSend, Wait};
use super::server_time::{self, ServerTime};
use super::table::{Sent, Table};
use super::types::{CallOptions, Config, Event, Timeout};
use bytes::Bytes;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{ToServer, Welcome};
use leasefs_protocol::limits::MAX_REQUESTS_IN_FLIGHT;
use leasefs_protocol::{
    Caller, OpenId, Recall, Refusal, Reply, Request, RequestId, Response, Stamp, Timestamp,
};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;

/// Requests in flight that are kept for the client's own housekeeping.
const HOUSEKEEPING: usize = 8;
/// While the server is in contact a request may have to wait for others' leases to run out, and
/// for a flush: two terms, and a little.
const BEYOND_TERMS: Duration = Duration::from_secs(5);

/// What all parts of a session share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) table: Mutex<Table>,
    pub(super) opens: Mutex<Opens>,
    pub(super) contact: Mutex<Contact>,
    /// Something has been answered: there may be room for a change that waits for it.
    pub(super) room: Notify,
    /// Something is to be closed.
    pub(super) closes: Notify,
    /// A Close request has ended.
    closes_told: Notify,
    /// Number of the next keep-alive.
    pub(super) keep_alives: AtomicU64,
    pub(super) renewals_sent: AtomicU64,
    term_ms: AtomicU64,
    drift_ppm: AtomicU64,
    /// Whether a change was answered.
    pub(super) changed: AtomicBool,
    /// Newest send time of a renewing request, in nanoseconds.
    renewed: AtomicU64,
    server_time: Mutex<ServerTime>,
    pub(super) recalls: Mutex<Recalls>,
    in_flight: Arc<Semaphore>,
    /// Set when the mount ends.
    pub(super) ending: watch::Sender<bool>,
    /// Set when the session has ended.
    pub(super) ended: watch::Sender<bool>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No section leaves its state half changed: a panic in one spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            table: Mutex::default(),
            opens: Mutex::default(),
            contact: Mutex::new(Contact::default()),
            room: Notify::new(),
            closes: Notify::new(),
            closes_told: Notify::new(),
            keep_alives: AtomicU64::new(1),
            renewals_sent: AtomicU64::new(0),
            term_ms: AtomicU64::new(0),
            drift_ppm: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            renewed: AtomicU64::new(0),
            server_time: Mutex::default(),
            recalls: Mutex::default(),
            in_flight: Arc::new(Semaphore::new(MAX_REQUESTS_IN_FLIGHT - HOUSEKEEPING)),
            ending: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        }
    }

    pub(super) fn welcomed(&self, welcome: &Welcome) {
        let store = |cell: &AtomicU64, value: u32| cell.store(value.into(), Ordering::Relaxed);
        store(&self.term_ms, welcome.term_ms);
        store(&self.drift_ppm, welcome.drift_ppm);
    }

    pub(super) fn term(&self) -> Duration {
        Duration::from_millis(self.term_ms.load(Ordering::Relaxed))
    }

    /// The leases are valid for a term from `sent`.
    pub(super) fn renewed(&self, sent: BootTime) {
        self.renewed.fetch_max(sent.as_nanos(), Ordering::Relaxed);
        let drift = self.drift_ppm.load(Ordering::Relaxed) as u32;
        self.config.renewals.renewed(sent, self.term(), drift);
    }

    /// How long ago the newest renewing request was sent.
    pub(super) fn since_renewal(&self) -> Duration {
        let renewed = self.renewed.load(Ordering::Relaxed);
        now().since(BootTime::from_nanos(renewed))
    }

    /// A reply has come. What it says of the session is noted before its caller can use it.
    pub(super) fn deliver(&self, connection: u64, mut reply: Reply, payload: Bytes) {
        let Some(sent) = lock(&self.table).sent(connection, reply.id) else {
            return;
        };
        let request = &sent.frame.request;
        self.check(&sent, &mut reply, payload.len());
        if reply.result == Err(Refusal::BadOpen) {
            // All opens are of the server's making: it has lost this one with the object.
            reply.result = Err(Refusal::Stale);
        }
        match (&reply.result, request) {
            (Ok(Response::Opened { open, token, .. }), Request::Open { object, .. }) => {
                lock(&self.opens).opened(*open, *object, token.clone());
            }
            (
                Ok(Response::Created {
                    open,
                    token,
                    handle,
                    ..
                }),
                _,
            ) => {
                lock(&self.opens).opened(*open, *handle, token.clone());
            }
            _ => {}
        }
        if reply.stamp != Stamp::default() && reply.result.is_ok() {
            self.changed.store(true, Ordering::Relaxed);
        }
        if reply.renews {
            self.renewed(sent.at);
        }
        if let Some(date) = server_time::latest(&reply) {
            lock(&self.server_time).heard(now(), date);
        }
        let Delivered { orphan, settled } = lock(&self.table).deliver(reply, payload);
        if let Some(open) = orphan {
            self.close(open);
        }
        if settled {
            self.room.notify_waiters();
        }
    }

    /// A reply that can't be the answer becomes EIO: nobody knows what has happened, and nothing of it
    /// is believed. What it may not grant is left out.
    fn check(&self, sent: &Sent, reply: &mut Reply, payload: usize) {
        let request = &sent.frame.request;
        let opens = lock(&self.opens);
        let sound = border::reply((request, sent.bytes), (reply, payload), |open| {
            opens.is_open(open)
        });
        match sound {
            Ok(()) => border::grants(request, reply, |open| opens.object(open)),
            Err(broken) => {
                drop(opens);
                tracing::error!(request = request.kind(), "{broken}");
                *reply = Reply {
                    id: reply.id,
                    renews: false,
                    stamp: Stamp::default(),
                    grants: Vec::new(),
                    touched: Vec::new(),
                    room: None,
                    result: Err(Refusal::Internal),
                };
            }
        }
    }

    /// Takes in a recall.
    pub(super) fn recalled(&self, mut recall: Recall) -> Result<(), Broken> {
        lock(&self.recalls).come(&mut recall)?;
        let _ = self.config.events.send(Event::Recall(recall));
        Ok(())
    }

    pub(super) fn date(&self) -> Option<Timestamp> {
        lock(&self.server_time).date(now())
    }

    pub(super) fn close(&self, open: OpenId) {
        if lock(&self.opens).close(open) {
            self.closes.notify_one();
        }
    }

    /// Sends frames of a connection that stands.
    pub(super) fn send_all(&self, sends: Vec<ToSend>) {
        for send in sends {
            let lanes = lock(&self.table).lanes();
            self.send(lanes.as_deref(), &send);
        }
    }

    fn send(&self, lanes: Option<&Lanes>, send: &ToSend) {
        if lanes.is_some_and(|lanes| lanes.send(send).is_err()) {
            // Over a bound of the protocol: no server would take it.
            lock(&self.table).unsendable(send.frame.id);
        }
    }

    /// Control messages are dropped without connection.
    pub(super) fn control(&self, message: &ToServer) {
        let lanes = lock(&self.table).lanes();
        if let Some(lanes) = lanes
            && let Err(error) = lanes.control(message)
        {
            tracing::error!(%error, "a control message is over the bounds of the protocol");
        }
    }

    pub(super) fn give_up(&self, id: RequestId, refusal: Refusal) {
        let cancel = lock(&self.table).give_up(id, refusal);
        if let Some(seq) = cancel {
            self.control(&ToServer::Cancel { seq });
        }
        self.room.notify_waiters();
    }

    pub(super) fn keep_alive(&self) -> Option<u64> {
        let lanes = lock(&self.table).lanes()?;
        let number = self.keep_alives.fetch_add(1, Ordering::SeqCst);
        lanes.control(&ToServer::KeepAlive { number }).ok()?;
        self.renewals_sent.fetch_add(1, Ordering::Relaxed);
        Some(number)
    }

    pub(super) fn wait(&self) -> Option<Wait> {
        let Timeout::After(timeout) = self.config.timeout else {
            return None;
        };
        let start = Instant::now();
        let terms = self.term() * 2 + BEYOND_TERMS;
        Some(Wait {
            silent: start + timeout,
            in_contact: start + timeout.max(terms),
        })
    }

    /// Takes the request in and waits for what becomes of it.
    pub(super) async fn run(self: &Arc<Self>, mut new: New, options: CallOptions<'_>) -> Outcome {
        loop {
            let room = self.room.notified();
            let taken = lock(&self.table).take(new, now());
            let full = match taken {
                Ok(taken) => {
                    options.numbered.inspect(|numbered| numbered.notify_one());
                    return self.follow(taken, options).await;
                }
                Err(NotTaken::Refused(refusal)) => return gave_up(refusal),
                Err(NotTaken::Overtaken) => return Outcome::Overtaken,
                Err(NotTaken::NoRoom(full)) => *full,
            };
            if let Err(refusal) = self.patiently(full.wait, options, room).await {
                return gave_up(refusal);
            }
            new = full;
        }
    }

    async fn follow(self: &Arc<Self>, taken: Taken, options: CallOptions<'_>) -> Outcome {
        let Taken {
            send,
            mut outcome,
            lanes,
        } = taken;
        let id = send.frame.id;
        let leaves = GivesUp(self, id);
        self.send(lanes.as_deref(), &send);
        drop(send);
        if let Some(abandon) = options.abandon {
            tokio::select! {
                biased;
                result = &mut outcome => return leaves.stayed(result),
                () = abandon.triggered() => self.give_up(id, Refusal::Cancelled),
            }
        }
        // Giving up resolves it at once.
        let result = outcome.await;
        leaves.stayed(result)
    }

    /// Waits for `ready`, as long as a request may wait.
    async fn patiently<T>(
        &self,
        wait: Option<Wait>,
        options: CallOptions<'_>,
        ready: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let too_late = async {
            match wait {
                Some(wait) => tokio::time::sleep_until(wait.in_contact).await,
                None => std::future::pending().await,
            }
        };
        let left = async {
            match options.abandon {
                Some(abandon) => abandon.triggered().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ready = ready => Ok(ready),
            () = too_late => Err(Refusal::TimedOut),
            () = left => Err(Refusal::Cancelled),
        }
    }

    pub(super) async fn permit(
        &self,
        wait: Option<Wait>,
        options: CallOptions<'_>,
    ) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        if let Ok(permit) = self.in_flight.clone().try_acquire_owned() {
            return Ok(Some(permit));
        }
        let permit = self.in_flight.clone().acquire_owned();
        // The semaphore is never closed.
        Ok(self.patiently(wait, options, permit).await?.ok())
    }

    pub(super) async fn further_closes(&self, told: u64, options: CallOptions<'_>) -> bool {
        let wait = self.wait();
        let closed = lock(&self.opens).closed();
        let all_told = async {
            loop {
                let next = self.closes_told.notified();
                if lock(&self.opens).told() >= closed {
                    return;
                }
                next.await;
            }
        };
        closed > told && self.patiently(wait, options, all_told).await.is_ok()
    }

    /// Tells the server of closed opens, many at a time.
    pub(super) async fn run_closer(self: Arc<Self>) {
        loop {
            let closes = self.closes.notified();
            let opens = lock(&self.opens).take_closing();
            self.closes_told.notify_waiters();
            if opens.is_empty() {
                closes.await;
                continue;
            }
            let close = New {
                caller: Caller::default(),
                request: Request::Close { opens },
                payload: Bytes::new(),
                change: None,
                wait: None,
                pid: None,
                permit: None,
            };
            if let Outcome::GaveUp { refusal, .. } = self.run(close, CallOptions::default()).await {
                tracing::debug!(%refusal, "closes were not delivered");
            }
        }
    }
}

fn gave_up(refusal: Refusal) -> Outcome {
    Outcome::GaveUp {
        refusal,
        unsettled: None,
    }
}

/// A caller whose future is dropped leaves.
struct GivesUp<'a>(&'a Arc<Shared>, RequestId);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        self.0.give_up(self.1, Refusal::Cancelled);
    }
}

impl GivesUp<'_> {
    /// The caller has waited for the outcome.
    fn stayed(self, outcome: Result<Outcome, oneshot::error::RecvError>) -> Outcome {
        std::mem::forget(self);
        outcome.unwrap_or_else(|_| gave_up(Refusal::Lost))
    }
}
