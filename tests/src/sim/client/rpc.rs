//! What has been asked of the server and not been answered: numbers, order, sending again. As in
//! the shipped client.

use super::Client;
use super::link::Conn;
use crate::sim::cx::Cx;
use crate::sim::kernel::Unique;
use crate::sim::model::{Deed, Frame, Obj, Payload, Up, What};
use crate::sim::net::{LANES, LinkId, Stream};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Change, Handle, RecallId, Refusal, Reply, RequestId, Seq};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    No,
    Asked,
    Begun,
}

#[derive(Clone, Debug)]
struct Pending {
    frame: Frame,
    task: Unique,
    touches: Vec<Obj>,
    sent: Option<(BootTime, LinkId)>,
    cancel: Cancel,
    /// Its caller is still there.
    waited_for: bool,
}

impl Pending {
    fn seq(&self) -> Option<Seq> {
        self.frame.change.as_ref().map(|change| change.seq)
    }
}

/// All requests without an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Rpc {
    pending: BTreeMap<RequestId, Pending>,
    unsettled: BTreeMap<Seq, RequestId>,
    last_request: u64,
    last_seq: u64,
    keep_alives: u64,
    asked: VecDeque<(u64, BootTime)>,
    /// When the newest request was sent whose reply renewed.
    pub renewed: BootTime,
    /// When a keep-alive was last sent.
    pub last_asked: BootTime,
}

/// What became of a change whose caller has gone.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    Answered(Box<Reply>),
    Never,
    SessionLost,
}

impl Rpc {
    fn low_water(&self) -> Seq {
        let first = self.unsettled.keys().next().copied();
        first.unwrap_or(Seq(self.last_seq + 1))
    }

    fn after(&self, touches: &[Obj]) -> Vec<Seq> {
        let meets = |id: &RequestId| {
            let pending = self.pending.get(id);
            pending.is_some_and(|p| p.touches.iter().any(|o| touches.contains(o)))
        };
        let all = self.unsettled.iter().filter(|(_, id)| meets(id));
        all.map(|(seq, _)| *seq).collect()
    }

    /// What is flushed follows the flush before it alone.
    fn after_flush(&self, file: Obj) -> Vec<Seq> {
        let flushes = |id: &RequestId| {
            let what = self.pending.get(id).map(|pending| pending.frame.what);
            matches!(what, Some(What::Deed(_, Deed::Flush(of, ..))) if of == file)
        };
        let mut all = self.unsettled.iter().rev();
        let last = all.find(|(_, id)| flushes(id));
        last.map(|(seq, _)| *seq).into_iter().collect()
    }

    fn remove(&mut self, id: RequestId) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        if let Some(seq) = pending.seq() {
            self.unsettled.remove(&seq);
        }
        Some(pending)
    }

    /// When the keep-alive was sent that is answered.
    pub fn kept_alive(&mut self, number: u64) -> Option<BootTime> {
        while let Some((asked, sent)) = self.asked.pop_front() {
            if asked == number {
                return Some(sent);
            }
            if asked > number {
                self.asked.push_front((asked, sent));
                break;
            }
        }
        None
    }

    pub fn disconnected(&mut self) {
        self.asked.clear();
    }
}

impl Client {
    /// Sends a request, now or with the next connection.
    pub(super) fn request(&mut self, cx: &mut Cx, task: Unique, what: What, dropped: Vec<Handle>) {
        self.rpc.last_request += 1;
        let id = RequestId(self.rpc.last_request);
        let touches = match what {
            What::Ask(_) => Vec::new(),
            What::Deed(_, deed) => deed.touches(),
        };
        let change = matches!(what, What::Deed(..)).then(|| {
            let after = match what {
                What::Deed(_, Deed::Flush(file, ..)) => self.rpc.after_flush(file),
                _ => self.rpc.after(&touches),
            };
            self.rpc.last_seq += 1;
            let seq = Seq(self.rpc.last_seq);
            self.rpc.unsettled.insert(seq, id);
            Change {
                seq,
                after,
                resent: false,
                dropped,
            }
        });
        let low = self.rpc.low_water();
        let pending = Pending {
            frame: Frame {
                id,
                low,
                change,
                what,
            },
            task,
            touches,
            sent: None,
            cancel: Cancel::No,
            waited_for: true,
        };
        self.rpc.pending.insert(id, pending);
        if let Conn::Up(link) = self.conn {
            self.send(cx, id, link);
        }
    }

    fn send(&mut self, cx: &mut Cx, id: RequestId, link: LinkId) {
        let now = self.now(cx);
        let low = self.rpc.low_water();
        let unsettled = &self.rpc.unsettled;
        let Some(pending) = self.rpc.pending.get_mut(&id) else {
            return;
        };
        let resent = pending.sent.replace((now, link)).is_some();
        pending.frame.low = low;
        if let Some(change) = &mut pending.frame.change {
            change.resent = resent;
            change.after.retain(|seq| unsettled.contains_key(seq));
        }
        let lane = cx.rng.below(usize::from(LANES)) as u8;
        let frame = pending.frame.clone();
        cx.up(link, Stream::LaneUp(lane), Up::Request(frame));
    }

    /// A connection stands: what has no answer is sent (again).
    pub(super) fn resume(&mut self, cx: &mut Cx, link: LinkId, forgotten: bool) {
        if forgotten {
            self.lose_sent_changes(cx);
        }
        let gone = |p: &Pending| !p.waited_for && p.seq().is_none();
        self.rpc.pending.retain(|_, p| !gone(p));
        let all = self.rpc.pending.iter();
        let mut all: Vec<_> = all.map(|(id, p)| (p.seq(), *id, p.cancel)).collect();
        all.sort_unstable_by_key(|(seq, id, _)| (*seq, *id));
        for (seq, _, cancel) in &all {
            if let (Cancel::Asked, Some(seq)) = (cancel, seq) {
                cx.up(link, Stream::ControlUp, Up::Cancel(*seq));
            }
        }
        for (_, id, cancel) in all {
            if cancel != Cancel::Asked {
                self.send(cx, id, link);
            }
        }
    }

    fn lose_sent_changes(&mut self, cx: &mut Cx) {
        let sent = |p: &Pending| p.seq().is_some() && p.sent.is_some();
        let lost = self.rpc.pending.iter().filter(|(_, p)| sent(p));
        let lost: Vec<RequestId> = lost.map(|(id, _)| *id).collect();
        let rpc = &mut self.rpc;
        let lost: Vec<Pending> = lost.into_iter().filter_map(|id| rpc.remove(id)).collect();
        for pending in lost {
            match pending.waited_for {
                true => self.change_refused(cx, pending.task, Refusal::Lost),
                false => self.change_settled(cx, pending.task, Settled::SessionLost),
            }
        }
    }

    /// A reply comes.
    pub(super) fn deliver(&mut self, cx: &mut Cx, link: LinkId, reply: Reply, payload: Payload) {
        let Conn::Up(_) = self.conn else {
            return;
        };
        let sent = self.rpc.pending.get(&reply.id).and_then(|p| p.sent);
        let Some((sent, on)) = sent else { return };
        if on != link {
            return;
        }
        if reply.renews {
            self.renewed(cx, sent);
        }
        let Some(pending) = self.rpc.remove(reply.id) else {
            return;
        };
        let object = pending.touches.first().copied();
        let task = pending.task;
        if let Some(object) = object {
            self.trace(cx, Some(object), || {
                format!("{task:?} is answered: {:?} {}", reply.result, reply.stamp)
            });
        }
        match (pending.waited_for, pending.seq().is_some()) {
            (true, true) => self.change_answered(cx, task, reply),
            (true, false) => self.answered(cx, task, reply, payload),
            (false, true) => {
                let settled = match reply.result {
                    Err(Refusal::Cancelled) => Settled::Never,
                    _ => Settled::Answered(Box::new(reply)),
                };
                self.change_settled(cx, task, settled);
            }
            (false, false) => {}
        }
    }

    /// The caller of a change leaves.
    pub(super) fn abandon(&mut self, cx: &mut Cx, task: Unique) {
        let mut all = self.rpc.pending.iter_mut();
        let Some((id, pending)) = all.find(|(_, p)| p.task == task && p.waited_for) else {
            return;
        };
        let Some(seq) = pending.seq() else { return };
        let id = *id;
        pending.waited_for = false;
        let object = pending.touches.first().copied();
        if pending.sent.is_none() {
            self.rpc.remove(id);
            self.change_refused(cx, task, Refusal::Cancelled);
            return;
        }
        pending.cancel = Cancel::Asked;
        self.trace(cx, object, || format!("{task:?} is abandoned"));
        if let Conn::Up(link) = self.conn {
            cx.up(link, Stream::ControlUp, Up::Cancel(seq));
        }
        self.change_unsettled(cx, task);
    }

    /// The server has answered a cancel.
    pub(super) fn cancelled(&mut self, cx: &mut Cx, seq: Seq, begun: bool) {
        let Some(id) = self.rpc.unsettled.get(&seq).copied() else {
            return;
        };
        if !begun {
            if let Some(pending) = self.rpc.remove(id)
                && !pending.waited_for
            {
                self.change_settled(cx, pending.task, Settled::Never);
            }
            return;
        }
        let Conn::Up(link) = self.conn else { return };
        let Some(pending) = self.rpc.pending.get_mut(&id) else {
            return;
        };
        pending.cancel = Cancel::Begun;
        if pending.sent.is_none_or(|(_, on)| on != link) {
            self.send(cx, id, link);
        }
    }

    pub(super) fn approve(&mut self, cx: &mut Cx, recalls: Vec<RecallId>) {
        if let Conn::Up(link) = self.conn {
            cx.up(link, Stream::ControlUp, Up::Approve(recalls));
        }
    }

    pub(super) fn keep_alive(&mut self, cx: &mut Cx) {
        let Conn::Up(link) = self.conn else { return };
        self.rpc.keep_alives += 1;
        let (number, now) = (self.rpc.keep_alives, self.now(cx));
        self.rpc.asked.push_back((number, now));
        self.rpc.last_asked = now;
        cx.up(link, Stream::ControlUp, Up::KeepAlive(number));
    }
}

/// What a change makes known of names.
pub(super) fn names_after(deed: Deed, made: Option<Obj>) -> Vec<((Obj, u8), Option<Obj>)> {
    match deed {
        Deed::Create(dir, name) | Deed::Link(_, (dir, name)) => vec![((dir, name), made)],
        Deed::Unlink(dir, name) => vec![((dir, name), None)],
        Deed::Write(..)
        | Deed::WriteSync(..)
        | Deed::Flush(..)
        | Deed::Append(..)
        | Deed::Truncate(..)
        | Deed::Chmod(_)
        | Deed::Rename(..) => Vec::new(),
    }
}
