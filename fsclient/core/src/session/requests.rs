//! How requests go through the session.

use super::Timeout;
use super::border::Recalls;
use super::contact::Contact;
use super::request::{
    Asked, New, NewChange, NotTaken, Patience, Progress, RequestOutcome, Taken, ToSend, Wait,
};
use super::server_time::ServerTime;
use super::table::{Table, judge_writeback};
use super::types::{Abandon, Answered, CallOptions, Changed};
use crate::api::{ConnectionId, Effect};
use crate::cache::{Cache, Sending};
use crate::opens::Opens;
use crate::run::{Bell, Cx, Part, Place, Places, first};
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::ToServer;
use leasefs_protocol::latency::{ByKind, Histogram};
use leasefs_protocol::limits::MAX_REQUESTS_IN_FLIGHT;
use leasefs_protocol::{Caller, Change, Durability, Handle, Operation, Query, Refusal, RequestId};
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

/// Requests in flight that are kept for the client's own housekeeping.
const HOUSEKEEPING: usize = 8;
/// Those that are kept for what is written back: others may wait for it, while all else waits for others.
const WRITE_BACKS: usize = 128;
/// Changes in flight with more than [`LARGE`] bytes, what is written back apart: with all others less than the server has room for
/// ([`MAX_BYTES_ASKED`](leasefs_protocol::limits::MAX_BYTES_ASKED)).
const LARGE_CHANGES: usize = 16;
const LARGE: usize = 16 * 1024;
/// How often it is looked whether what is waited for still may come.
const LOOK: Duration = Duration::from_secs(1);
/// While the server is in contact a request may have to wait for others' leases to run out, and
/// for a flush: two terms, and a little.
const BEYOND_TERMS: Duration = Duration::from_secs(5);

/// What is counted, and what the last `Welcome` said of time.
#[derive(Debug, Default)]
pub(super) struct Renewing {
    /// Number of the last keep-alive.
    pub keep_alives: u64,
    pub term: Duration,
    pub drift_ppm: u32,
    /// Newest send time of a renewing request.
    pub renewed: BootTime,
    /// Whether a change was answered.
    pub changed: bool,
}

pub(super) struct RpcInner {
    pub cx: Cx,
    pub cache: Arc<Cache>,
    timeout: Timeout,
    pub table: Part<Table>,
    pub opens: Opens,
    pub contact: Part<Contact>,
    pub renewing: Part<Renewing>,
    pub server_time: Part<ServerTime>,
    pub recalls: Part<Recalls>,
    /// How long requests took that were answered.
    pub took: ByKind,
    /// How long it took until recalls were approved.
    pub approved: Histogram,
    /// Something has been answered: there may be room for a change that waits for it.
    pub room: Bell,
    in_flight: Places,
    write_backs: Places,
    large: Places,
}

/// A session with its server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Rpc(pub(super) Arc<RpcInner>);

impl Rpc {
    /// A session that isn't connected.
    pub fn new(cx: Cx, cache: Arc<Cache>, timeout: Timeout) -> Self {
        let opens = Opens::default();
        let rpc = Self(Arc::new(RpcInner {
            cx: cx.clone(),
            cache,
            timeout,
            table: Part::new(Table::new(opens.clone())),
            opens,
            contact: Part::default(),
            renewing: Part::default(),
            server_time: Part::default(),
            recalls: Part::default(),
            took: ByKind::default(),
            approved: Histogram::default(),
            room: Bell::default(),
            in_flight: Places::new(MAX_REQUESTS_IN_FLIGHT - HOUSEKEEPING - WRITE_BACKS),
            write_backs: Places::new(WRITE_BACKS),
            large: Places::new(LARGE_CHANGES),
        }));
        cx.spawn(rpc.clone().run_closer());
        rpc
    }

    /// Asks something that changes nothing. Dropping the future abandons it.
    ///
    /// # Errors
    /// `TimedOut`, `Cancelled` (abandoned), or `Invalid` for a request over the protocol's bounds.
    /// What the server refuses stands in the answer.
    pub async fn call<Q>(
        &self,
        caller: Caller,
        query: Q,
        options: CallOptions<'_>,
    ) -> Result<Answered<Q::Answer>, Refusal>
    where
        Q: Operation + Into<Query>,
    {
        let query = query.into();
        let wait = self.wait(Patience::of_query(&query));
        let new = New {
            caller,
            asked: Asked::Query(query),
            payload: Bytes::new(),
            wait,
            pid: options.pid,
            places: [self.place(&self.0.in_flight, wait, options).await?, None],
        };
        match self.run(new, options).await {
            RequestOutcome::Answered(answer) => {
                if !answer.payload.is_empty() {
                    self.0.cache.pace().received(self.0.cx.monotonic());
                }
                Ok(answer.typed())
            }
            RequestOutcome::GaveUp { refusal, .. } => Err(refusal),
            RequestOutcome::Overtaken => Err(Refusal::Cancelled),
        }
    }

    /// Asks for a change. It takes effect after the unanswered changes of the same session to the
    /// objects in `touches`; `dropped` is sent with it. The future must not be dropped before it is
    /// resolved (use [`CallOptions::abandon`]): nobody would know what is unsettled.
    ///
    /// Opens are closed in the background, though `close` of the last open of an unlinked file makes
    /// room at once on a local file system: who finds none asks again once the server knows of them, but
    /// not if that could do twice what a refusal doesn't say that it hasn't been done.
    pub async fn change<C>(
        &self,
        caller: Caller,
        change: C,
        payload: Bytes,
        touches: &[Handle],
        dropped: Vec<Handle>,
        options: CallOptions<'_>,
    ) -> Changed<C::Answer>
    where
        C: Operation + Into<Change>,
    {
        let told = self.closes_told();
        let change = change.into();
        let wait = self.wait(Patience::of_change(&change));
        let numbering = || NewChange {
            touches: touches.to_vec(),
            dropped: dropped.clone(),
            life: options.life,
            locked: options.locked,
        };
        let new = || New {
            caller: caller.clone(),
            asked: Asked::Change(change.clone(), numbering()),
            payload: payload.clone(),
            wait,
            pid: options.pid,
            places: Default::default(),
        };
        let changed = self.change_once(new(), options).await;
        let again = changed.finds_no_room() && !may_have_written(&change);
        match again && self.further_closes(told, options).await {
            true => self.change_once(new(), options).await,
            false => changed,
        }
        .typed()
    }

    #[cfg(test)]
    pub(crate) fn opens(&self) -> Opens {
        self.0.opens.clone()
    }

    async fn change_once(&self, mut new: New, options: CallOptions<'_>) -> Changed {
        if let Err(refusal) = self.give_place(&mut new, options).await {
            return Changed::never(refusal);
        }
        let load = Load::new(self, new.payload.len());
        match self.run(new, options).await {
            RequestOutcome::Answered(answer) => Changed {
                result: Ok(load.arrives(answer)),
                unsettled: None,
                overtaken: false,
            },
            RequestOutcome::GaveUp { refusal, unsettled } => Changed {
                result: Err(refusal),
                unsettled,
                overtaken: false,
            },
            RequestOutcome::Overtaken => Changed {
                overtaken: true,
                ..Changed::never(Refusal::Cancelled)
            },
        }
    }

    /// Sends frames of a connection that stands.
    pub(super) fn send_all(&self, sends: Vec<ToSend>) {
        let connection = self.0.table.borrow().stands();
        for send in sends {
            self.send(connection, send);
        }
    }

    fn send(&self, connection: Option<ConnectionId>, send: ToSend) {
        let Some(connection) = connection else { return };
        let ToSend { frame, payload } = send;
        self.0.cx.effect(Effect::Send {
            connection,
            frame,
            payload,
        });
    }

    /// How many requests are not answered.
    pub(crate) fn under_way(&self) -> usize {
        self.0.table.borrow().under_way()
    }

    /// The request is over a bound of the protocol: no server would take it.
    pub(crate) fn unsendable(&self, id: RequestId) {
        self.0.table.borrow_mut().unsendable(id);
    }

    /// Control messages are dropped without connection.
    pub(crate) fn control(&self, message: ToServer) {
        let connection = self.0.table.borrow().stands();
        if let Some(connection) = connection {
            self.0.cx.effect(Effect::Control(connection, message));
        }
    }

    pub(crate) fn give_up(&self, id: RequestId, refusal: Refusal) {
        let cancel = self.0.table.borrow_mut().give_up(id, refusal);
        if let Some(seq) = cancel {
            self.control(ToServer::Cancel { seq });
        }
        self.0.room.ring_all();
    }

    /// Asks for a renewal; returns its number.
    pub(crate) fn keep_alive(&self) -> Option<u64> {
        self.0.table.borrow().stands()?;
        let number = {
            let mut renewing = self.0.renewing.borrow_mut();
            renewing.keep_alives += 1;
            renewing.keep_alives
        };
        self.control(ToServer::KeepAlive { number });
        Some(number)
    }

    /// How long something waits that begins now; `None` for ever.
    pub(crate) fn wait(&self, patience: Patience) -> Option<Wait> {
        let timeout = self.0.timeout.limit();
        let silent = timeout.filter(|_| patience != Patience::Endless)?;
        let terms = self.term() * 2 + BEYOND_TERMS;
        Some(Wait {
            begun: self.0.cx.monotonic(),
            silent,
            at_most: (patience == Patience::Usual).then(|| silent.max(terms)),
        })
    }

    /// What is known of the way to the server.
    pub(crate) fn progress(&self) -> Progress {
        let contact = self.0.contact.borrow();
        Progress {
            in_contact: contact.is_in_contact(),
            heard: contact.heard,
            moved: self.0.cache.pace().progress(),
        }
    }

    /// How long a request waits at most while nothing comes through; `None` for ever.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        self.wait(Patience::Usual)?.at_most
    }

    /// Resolves when nothing has happened for as long as it may be waited for.
    pub(crate) async fn too_late(&self, wait: Option<Wait>) {
        let Some(wait) = wait else {
            return pending().await;
        };
        loop {
            let now = self.0.cx.monotonic();
            let ends = wait.ends(self.progress());
            if ends.is_some_and(|at| at.has_come(now)) {
                return;
            }
            // What is known may change: contact is lost, or found again.
            let look = now + LOOK;
            let next = ends.map_or(look, |at| at.min(look));
            self.0.cx.sleep_until(next).await;
        }
    }

    /// Takes the request in and waits for what becomes of it.
    pub(super) async fn run(&self, mut new: New, options: CallOptions<'_>) -> RequestOutcome {
        loop {
            if let Asked::Change(change, numbering) = &mut new.asked {
                let is_late = |object: &Handle, kept| self.0.cache.is_late(object, kept);
                judge_writeback(change, &numbering.dropped, new.payload.len(), is_late);
            }
            let taken = self.0.table.borrow_mut().take(new, self.0.cx.now());
            let full = match taken {
                Ok(taken) => {
                    options.numbered.inspect(|numbered| numbered.ring_one());
                    return self.follow(taken, options).await;
                }
                Err(NotTaken::Refused(refusal)) => return gave_up(refusal),
                Err(NotTaken::Overtaken) => return RequestOutcome::Overtaken,
                Err(NotTaken::NoRoom(full)) => *full,
            };
            let room = self.0.room.listen();
            if let Err(refusal) = self.patiently(full.wait, options, room).await {
                return gave_up(refusal);
            }
            new = full;
        }
    }

    async fn follow(&self, taken: Taken, options: CallOptions<'_>) -> RequestOutcome {
        let Taken {
            send,
            mut outcome,
            connection,
        } = taken;
        let id = send.frame.id;
        let leaves = GivesUp(self, id);
        self.send(connection, send);
        if let Some(abandon) = options.abandon {
            let resolved = async { Some((&mut outcome).await) };
            let left = async {
                abandon.triggered().await;
                None
            };
            if let Some(result) = first(resolved, left).await {
                return leaves.stayed(result);
            }
            self.give_up(id, Refusal::Cancelled);
        }
        // Giving up resolves it at once.
        let result = outcome.await;
        leaves.stayed(result)
    }

    /// Waits for `ready`, as long as a request may wait.
    pub(super) async fn patiently<T>(
        &self,
        wait: Option<Wait>,
        options: CallOptions<'_>,
        ready: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let too_late = async {
            self.too_late(wait).await;
            Err(Refusal::TimedOut)
        };
        let left = async {
            leaves(options.abandon).await;
            Err(Refusal::Cancelled)
        };
        first(async { Ok(ready.await) }, first(too_late, left)).await
    }

    /// A place for a change.
    async fn give_place(&self, new: &mut New, options: CallOptions<'_>) -> Result<(), Refusal> {
        let brings_back = new.asked.is_write_back();
        let large = new.payload.len() > LARGE && !brings_back;
        let places = match brings_back {
            true => &self.0.write_backs,
            false => &self.0.in_flight,
        };
        if large {
            new.places[0] = self.place(&self.0.large, new.wait, options).await?;
        }
        new.places[1] = self.place(places, new.wait, options).await?;
        Ok(())
    }

    async fn place(
        &self,
        places: &Places,
        wait: Option<Wait>,
        options: CallOptions<'_>,
    ) -> Result<Option<Place>, Refusal> {
        match places.at_once() {
            Some(place) => Ok(Some(place)),
            None => self.patiently(wait, options, places.next()).await,
        }
    }
}

/// Its bytes may stand in the file, where others may have gone over them since, and only what makes them
/// durable have found no room.
fn may_have_written(change: &Change) -> bool {
    matches!(change, Change::Write(write) if write.durability != Durability::None)
}

async fn leaves(abandon: Option<&Abandon>) {
    match abandon {
        Some(abandon) => abandon.triggered().await,
        None => pending().await,
    }
}

fn gave_up(refusal: Refusal) -> RequestOutcome {
    RequestOutcome::GaveUp {
        refusal,
        unsettled: None,
    }
}

/// Bytes on their way to the server, if there are any.
struct Load<'a>(&'a Rpc, Option<Sending>);

impl<'a> Load<'a> {
    fn new(rpc: &'a Rpc, bytes: usize) -> Self {
        let now = rpc.0.cx.monotonic();
        let sending = (bytes > 0).then(|| rpc.0.cache.pace().sends(now, bytes));
        Self(rpc, sending)
    }

    fn arrives(mut self, answer: Answered) -> Answered {
        if let Some(sending) = self.1.take() {
            let now = self.0.0.cx.monotonic();
            self.0.0.cache.pace().sent(now, &sending);
        }
        answer
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        if self.1.is_some() {
            self.0.0.cache.pace().not_sent();
        }
    }
}

/// A caller whose future is dropped leaves.
struct GivesUp<'a>(&'a Rpc, RequestId);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        self.0.give_up(self.1, Refusal::Cancelled);
    }
}

impl GivesUp<'_> {
    /// The caller has waited for the outcome.
    fn stayed(self, outcome: Result<RequestOutcome, oneshot::Canceled>) -> RequestOutcome {
        std::mem::forget(self);
        outcome.unwrap_or_else(|_| gave_up(Refusal::Lost))
    }
}
