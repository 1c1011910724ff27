//! What has been asked and not been answered: numbers, order, resending. No I/O.

use super::border;
use super::request::{
    Asked, New, NewChange, NotTaken, Progress, RequestOutcome, Resend, Taken, ToSend, Wait, Waiting,
};
use super::types::{Answered, Settlement, Unsettled};
use crate::api::{ConnectionId, Now};
use crate::inode::Kept;
use crate::opens::{Closing, Opens, ServerOpen};
use crate::run::{Map, Place};
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_lease::client::Span;
use leasefs_lease::planted::{self, Bug};
use leasefs_lease::time::BootTime;
use leasefs_protocol::change::{self, WriteKind};
use leasefs_protocol::limits::{MAX_AFTER, MAX_CHANGES_AHEAD};
use leasefs_protocol::{
    BootId, Change, Handle, Numbered, Query, Refusal, Reply, Request, RequestFrame, RequestId, Seq,
    query,
};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    No,
    /// The server is asked, or will be as soon as there is a connection.
    Asked,
    /// It had begun: its answer is awaited.
    Begun,
}

#[derive(Debug)]
struct Unanswered {
    frame: Arc<RequestFrame>,
    payload: Bytes,
    touches: Vec<Handle>,
    /// As the caller has it.
    life: Option<BootId>,
    waiter: Option<oneshot::Sender<RequestOutcome>>,
    settled: Option<oneshot::Sender<Settlement>>,
    cancel: Cancel,
    /// When it was sent last, and on which connection.
    sent: Option<(BootTime, ConnectionId)>,
    since: BootTime,
    wait: Option<Wait>,
    pid: Option<u32>,
    /// What it closes.
    closing: Option<Closing>,
    _places: [Option<Place>; 2],
}

impl Unanswered {
    /// Whether it does nothing else.
    fn closes(&self) -> bool {
        matches!(self.frame.request, Request::Query(Query::Close(_)))
    }

    fn seq(&self) -> Option<Seq> {
        self.frame.request.numbered().map(|numbered| numbered.seq)
    }
}

/// A request whose reply has come.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) at: BootTime,
    /// Since when it waits, by the clock that stands still in suspend.
    pub(super) since: BootTime,
    pub(super) frame: Arc<RequestFrame>,
    /// Of its payload.
    pub(super) bytes: usize,
}

/// All requests without an answer.
#[derive(Debug)]
pub(super) struct Table {
    entries: Map<RequestId, Unanswered>,
    unsettled: BTreeMap<Seq, RequestId>,
    by_object: Map<Handle, Vec<Seq>>,
    last_request: RequestId,
    next_seq: Seq,
    /// The last connection on which requests were sent.
    connection: ConnectionId,
    /// It stands.
    connected: bool,
    refused: Option<Refusal>,
    counts: BTreeMap<&'static str, u64>,
    /// The life of the server's host on the present connection.
    host: BootId,
    /// What is to be closed at the server goes along with changes that take names.
    opens: Opens,
}

impl Table {
    /// Nothing has been asked.
    pub(super) fn new(opens: Opens) -> Self {
        Self {
            opens,
            entries: Map::default(),
            unsettled: BTreeMap::new(),
            by_object: Map::default(),
            last_request: RequestId(0),
            next_seq: Seq(1),
            connection: ConnectionId(0),
            connected: false,
            refused: None,
            counts: BTreeMap::new(),
            host: BootId([0; 16]),
        }
    }

    /// Whether one more such change of these objects may be sent.
    fn has_room(&self, change: &Change, touches: &[Handle]) -> bool {
        let ahead = self.next_seq.0.saturating_sub(self.low_water().0);
        ahead < MAX_CHANGES_AHEAD && self.after(change, touches).len() <= MAX_AFTER
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// If there is no room for the change, or the server has refused the session for good.
    pub(super) fn take(&mut self, new: New, now: Now) -> Result<Taken, NotTaken> {
        if let Some(refused) = self.refused {
            if let Asked::Close(closing) = new.asked {
                closing.put_back();
            }
            return Err(NotTaken::Refused(refused));
        }
        let mut life = None;
        if let Asked::Change(change, numbering) = &new.asked {
            life = numbering.life;
            if self.connected && life.is_some_and(|life| life != self.host) {
                return Err(NotTaken::Overtaken);
            }
            if !self.has_room(change, &numbering.touches) {
                return Err(NotTaken::NoRoom(Box::new(new)));
            }
        }
        let id = self.last_request.next();
        self.last_request = id;
        let (request, touches, closing) = self.request(id, new.asked);
        let frame = Arc::new(RequestFrame {
            id,
            low_water: self.low_water(),
            caller: new.caller,
            request,
        });
        let (waiter, outcome) = oneshot::channel();
        let sent = self.connected.then_some((now.boot, self.connection));
        if sent.is_some() {
            self.count(frame.request.kind());
        }
        let entry = Unanswered {
            frame: frame.clone(),
            payload: new.payload.clone(),
            touches,
            waiter: Some(waiter),
            life,
            settled: None,
            cancel: Cancel::No,
            sent,
            since: now.monotonic,
            wait: new.wait,
            pid: new.pid,
            closing,
            _places: new.places,
        };
        self.entries.insert(id, entry);
        Ok(Taken {
            send: ToSend {
                frame,
                payload: new.payload,
            },
            outcome,
            connection: self.stands(),
        })
    }

    /// As it is sent, the objects whose earlier changes it follows, and what it closes.
    fn request(&mut self, id: RequestId, asked: Asked) -> (Request, Vec<Handle>, Option<Closing>) {
        match asked {
            Asked::Query(query) => (Request::Query(query), Vec::new(), None),
            Asked::Close(closing) => {
                let opens = closing.ids().to_vec();
                let close = query::Close { opens }.into();
                (Request::Query(close), Vec::new(), Some(closing))
            }
            Asked::Change(
                change,
                NewChange {
                    touches,
                    dropped,
                    locked,
                    ..
                },
            ) => {
                let closing = takes_names(&change).then(|| self.opens.take_closing(true));
                let numbered = Numbered {
                    dropped,
                    locked,
                    closed: closing.as_ref().map_or_else(Vec::new, |c| c.ids().to_vec()),
                    ..self.number(id, &change, &touches)
                };
                (Request::Change(numbered, change), touches, closing)
            }
        }
    }

    fn number(&mut self, id: RequestId, change: &Change, touches: &[Handle]) -> Numbered {
        let seq = self.next_seq;
        self.next_seq = seq.next();
        let after = self.after(change, touches);
        self.unsettled.insert(seq, id);
        for object in touches {
            let seqs = self.by_object.entry(*object).or_default();
            if seqs.last() != Some(&seq) {
                seqs.push(seq);
            }
        }
        Numbered {
            seq,
            after,
            resent: false,
            dropped: Vec::new(),
            closed: Vec::new(),
            locked: None,
        }
    }

    /// Unanswered changes of these objects that one more has to follow, each once, in order.
    ///
    /// What the kernel writes back follows nothing: it keeps pages locked until the answer, so the
    /// approval that an earlier change of another session waits for waits for it. What is flushed
    /// follows the flush before it alone, so that a crash leaves no hole.
    fn after(&self, change: &Change, touches: &[Handle]) -> Vec<Seq> {
        let earlier = touches
            .iter()
            .filter_map(|object| self.by_object.get(object));
        let earlier = earlier.flatten().copied();
        let mut after: Vec<Seq> = match write_kind(change) {
            Some(WriteKind::Page { .. }) => Vec::new(),
            Some(WriteKind::Flush { .. }) => earlier
                .filter(|seq| self.is_flush(*seq))
                .max()
                .into_iter()
                .collect(),
            Some(WriteKind::Through { .. }) | None => earlier.collect(),
        };
        after.sort_unstable();
        after.dedup();
        after
    }

    fn is_flush(&self, seq: Seq) -> bool {
        let entry = self.unsettled.get(&seq).and_then(|id| self.entries.get(id));
        let Some(Request::Change(_, change)) = entry.map(|entry| &entry.frame.request) else {
            return false;
        };
        matches!(write_kind(change), Some(WriteKind::Flush { .. }))
    }

    /// Every change numbered below has been answered.
    fn low_water(&self) -> Seq {
        let behind = usize::from(planted::is(Bug::LowWaterHigh));
        let mut unsettled = self.unsettled.keys();
        unsettled.nth(behind).copied().unwrap_or(self.next_seq)
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    fn remove(&mut self, id: RequestId) -> Option<Unanswered> {
        let entry = self.entries.remove(&id)?;
        if let Some(seq) = entry.seq() {
            self.unsettled.remove(&seq);
            for object in &entry.touches {
                if let Some(seqs) = self.by_object.get_mut(object) {
                    seqs.retain(|other| *other != seq);
                    if seqs.is_empty() {
                        self.by_object.remove(object);
                    }
                }
            }
        }
        Some(entry)
    }

    /// The request that a reply on this connection answers, and when it was sent. `None` for a late
    /// reply of an earlier connection: it says nothing about this one's time, its stamps may mean
    /// nothing any more, and the request is sent again.
    pub(super) fn sent(&self, connection: ConnectionId, id: RequestId) -> Option<Sent> {
        let entry = self.entries.get(&id)?;
        let (at, on) = entry.sent?;
        (on == connection && on == self.connection).then(|| Sent {
            at,
            since: entry.since,
            frame: entry.frame.clone(),
            bytes: entry.payload.len(),
        })
    }

    /// Hands a reply to its caller, with what it has opened. Returns whether a change has been answered.
    pub(super) fn deliver(
        &mut self,
        reply: Reply,
        payload: Bytes,
        open: Option<ServerOpen>,
    ) -> bool {
        let Some(entry) = self.remove(reply.id) else {
            return false;
        };
        let settled = entry.seq().is_some();
        let answer = Answered {
            reply,
            payload,
            host: self.host,
            open,
        };
        match (entry.waiter, entry.settled) {
            (Some(waiter), _) => {
                // Who waited may be gone.
                let _ = waiter.send(RequestOutcome::Answered(answer));
            }
            (None, Some(hook)) => {
                let settlement = match answer.reply.result {
                    Err(Refusal::Cancelled) => Settlement::NeverHappens,
                    _ => Settlement::Answered(Box::new(answer)),
                };
                // Nobody may be interested.
                let _ = hook.send(settlement);
            }
            (None, None) => {}
        }
        settled
    }

    /// Takes out a request that the server doesn't get, or not any more.
    fn remove_unsent(&mut self, id: RequestId) -> Option<Unanswered> {
        let mut entry = self.remove(id)?;
        if let Some(closing) = entry.closing.take() {
            closing.not_sent();
        }
        Some(entry)
    }

    /// The request is over the protocol's bounds and was not sent.
    pub(super) fn unsendable(&mut self, id: RequestId) {
        if let Some(waiter) = self.remove_unsent(id).and_then(|entry| entry.waiter) {
            let _ = waiter.send(RequestOutcome::GaveUp {
                refusal: Refusal::Invalid,
                unsettled: None,
            });
        }
    }

    /// The caller of a request leaves with `refusal`. Returns the change the server is to be asked
    /// to cancel, if it has been sent.
    pub(super) fn give_up(&mut self, id: RequestId, mut refusal: Refusal) -> Option<Seq> {
        let entry = self.entries.get_mut(&id)?;
        let waiter = entry.waiter.take()?;
        let mut unsettled = None;
        let mut cancel = None;
        match (entry.sent, entry.seq()) {
            (None, _) => {
                self.remove_unsent(id);
            }
            // The server answers it still: until then it counts as in flight.
            (Some(_), None) => entry.payload = Bytes::new(),
            (Some(_), Some(seq)) => {
                let (settled, receiver) = oneshot::channel();
                entry.settled = Some(settled);
                entry.cancel = Cancel::Asked;
                unsettled = Some(Unsettled(receiver));
                cancel = Some(seq);
                if refusal == Refusal::Stale {
                    // To the kernel that means that nothing has happened: it makes the whole call
                    // again, and finds the name taken that this change has made.
                    refusal = Refusal::Lost;
                }
            }
        }
        // The caller's future may be gone.
        let _ = waiter.send(RequestOutcome::GaveUp { refusal, unsettled });
        cancel
    }

    /// Requests whose time is over.
    pub(super) fn overdue(&self, now: BootTime, progress: Progress) -> Vec<RequestId> {
        let is_over = |wait: Wait| wait.ends(progress).is_some_and(|at| at.has_come(now));
        self.entries
            .iter()
            .filter(|(_, entry)| entry.waiter.is_some() && entry.wait.is_some_and(is_over))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The server has answered a cancel. Returns the change if it has to be sent again to learn
    /// its answer.
    pub(super) fn cancelled(&mut self, seq: Seq, begun: bool, now: BootTime) -> Option<ToSend> {
        let id = *self.unsettled.get(&seq)?;
        if !begun {
            let settled = self.remove_unsent(id)?.settled?;
            let _ = settled.send(Settlement::NeverHappens);
            return None;
        }
        let connection = self.connection;
        let entry = self.entries.get_mut(&id)?;
        entry.cancel = Cancel::Begun;
        let here = entry.sent.is_some_and(|(_, on)| on == connection);
        if here { None } else { self.again(id, now) }
    }

    /// Of every write-back that has no answer: whether it is late.
    pub(super) fn judge_writeback(&mut self, is_late: impl Fn(&Handle, Kept) -> bool) {
        for entry in self.entries.values_mut() {
            if let Request::Change(numbered, change) = &mut Arc::make_mut(&mut entry.frame).request
            {
                judge_writeback(change, &numbered.dropped, entry.payload.len(), &is_late);
            }
        }
    }

    /// A connection stands. `forgotten`: the server knows nothing of earlier connections.
    pub(super) fn connected(
        &mut self,
        connection: ConnectionId,
        host: BootId,
        forgotten: bool,
        now: BootTime,
    ) -> Resend {
        self.connection = connection;
        self.connected = true;
        self.host = host;
        self.refused = None;
        if forgotten {
            self.lose_session();
        }
        self.hold_back(forgotten);
        // An open that the server may have made must be heard of, to be closed.
        let opens =
            |entry: &Unanswered| matches!(entry.frame.request, Request::Query(Query::Open(_)));
        let settles = |entry: &Unanswered| entry.seq().is_some() || entry.closes() || opens(entry);
        let nobody_waits = |entry: &Unanswered| entry.waiter.is_none() && !settles(entry);
        self.entries.retain(|_, entry| !nobody_waits(entry));
        let mut ids: Vec<(Option<Seq>, RequestId, Cancel)> = self
            .entries
            .iter()
            .map(|(id, entry)| (entry.seq(), *id, entry.cancel))
            .collect();
        ids.sort_unstable_by_key(|(seq, id, _)| (*seq, *id));
        let mut resend = Resend::default();
        for (seq, id, cancel) in ids {
            match (cancel, seq) {
                (Cancel::Asked, Some(seq)) => resend.cancels.push(seq),
                _ => resend.frames.extend(self.again(id, now)),
            }
        }
        resend
    }

    /// Changes that wait for a connection are not sent before what has been lost is written again.
    fn hold_back(&mut self, forgotten: bool) {
        let other = |life| forgotten || life != self.host;
        let waits = |entry: &Unanswered| entry.life.is_some_and(other) && entry.sent.is_none();
        let all = self.entries.iter();
        let ids: Vec<RequestId> = all.filter(|(_, e)| waits(e)).map(|(id, _)| *id).collect();
        for entry in ids.into_iter().filter_map(|id| self.remove_unsent(id)) {
            if let Some(waiter) = entry.waiter {
                // The caller's future may be gone.
                let _ = waiter.send(RequestOutcome::Overtaken);
            }
        }
    }

    /// What was sent as a change is lost. So are all closes: the opens are gone, and those of the next session may have
    /// the same numbers.
    fn lose_session(&mut self) {
        let sent = |entry: &Unanswered| entry.seq().is_some() && entry.sent.is_some();
        let lost: Vec<RequestId> = self
            .entries
            .iter()
            .filter(|(_, entry)| sent(entry) || entry.closes())
            .map(|(id, _)| *id)
            .collect();
        for entry in lost.into_iter().filter_map(|id| self.remove(id)) {
            if let Some(waiter) = entry.waiter {
                let _ = waiter.send(RequestOutcome::GaveUp {
                    refusal: Refusal::Lost,
                    unsettled: None,
                });
            }
            if let Some(settled) = entry.settled {
                let _ = settled.send(Settlement::SessionLost);
            }
        }
        for entry in self.entries.values_mut() {
            if entry.closing.take().is_some_and(|c| !c.ids().is_empty())
                && let Request::Change(numbered, _) = &mut Arc::make_mut(&mut entry.frame).request
            {
                numbered.closed.clear();
            }
        }
    }

    /// The request's frame for the present connection.
    fn again(&mut self, id: RequestId, now: BootTime) -> Option<ToSend> {
        let low_water = self.low_water();
        let entry = self.entries.get_mut(&id)?;
        let resent = entry.sent.is_some();
        entry.sent = Some((now, self.connection));
        let frame = Arc::make_mut(&mut entry.frame);
        frame.low_water = low_water;
        if let Request::Change(numbered, _) = &mut frame.request {
            numbered.resent = resent && !planted::is(Bug::ResendAsNew);
            numbered
                .after
                .retain(|seq| self.unsettled.contains_key(seq));
        }
        let send = ToSend {
            frame: entry.frame.clone(),
            payload: entry.payload.clone(),
        };
        self.count(send.frame.request.kind());
        Some(send)
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.connected = false;
    }

    /// The server refuses the session for good: everyone is told, until it changes its mind.
    /// Returns what waited.
    pub(super) fn refused(&mut self, refusal: Refusal) -> Vec<RequestId> {
        self.refused = Some(refusal);
        self.entries.keys().copied().collect()
    }

    /// The connection on which requests are sent.
    pub(super) fn stands(&self) -> Option<ConnectionId> {
        self.connected.then_some(self.connection)
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.clone()
    }

    pub(super) fn under_way(&self) -> usize {
        self.entries.len()
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        self.entries
            .values()
            .filter(|entry| entry.waiter.is_some())
            .map(|entry| Waiting {
                kind: entry.frame.request.kind(),
                object: self.named(entry),
                uid: entry.frame.caller.uid,
                pid: entry.pid,
                since: entry.since,
                wait: entry.wait,
            })
            .collect()
    }

    /// The object a request is about.
    fn named(&self, entry: &Unanswered) -> Option<Handle> {
        let of_open = |open| self.opens.object(open);
        let named = border::named(&entry.frame.request, of_open);
        named.first().or(entry.touches.first()).copied()
    }
}

/// Notes whether a write-back is late: see [`WriteKind`].
pub(super) fn judge_writeback(
    change: &mut Change,
    dropped: &[Handle],
    len: usize,
    is_late: impl Fn(&Handle, Kept) -> bool,
) {
    let Change::Write(change::Write { at, kind, .. }) = change else {
        return;
    };
    let Some(offset) = at.first() else {
        return;
    };
    let (kept, late) = match kind {
        WriteKind::Page { late } => (Kept::Mapped(Span::new(offset, len as u64)), late),
        WriteKind::Flush { late, .. } => (Kept::Buffered, late),
        WriteKind::Through { .. } => return,
    };
    *late |= dropped.iter().any(|object| is_late(object, kept));
}

/// A file that loses its last name is gone at once if the server has nothing of it open; else it is kept, in another
/// folder, until it is closed.
fn takes_names(change: &Change) -> bool {
    matches!(change, Change::Unlink(_) | Change::Rename(_))
}

fn write_kind(change: &Change) -> Option<WriteKind> {
    match change {
        Change::Write(write) => Some(write.kind),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
