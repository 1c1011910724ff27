//! Recalls: issued, shared, approved, extended.

use super::Core;
use super::api::{Action, OpId};
use super::cover::Cover;
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Cause, Need, Op};
use super::session::{OpenRecall, Session};
use crate::time::BootTime;
use leasefs_protocol::limits::FLUSH_PROGRESS;
use leasefs_protocol::{Handle, Parts, Recall, RecallId, Scope, SessionId};
use std::collections::BTreeSet;

/// An operation that will wait for a recall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) op: OpId,
    pub(super) cause: Cause,
}

impl Core {
    /// Recalls what `op` needs of every object from everyone who has it.
    pub(super) fn recall_conflicts(&mut self, now: BootTime, id: OpId) {
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        let waiter = Waiter {
            op: id,
            cause: Cause::Holder,
        };
        let conflicts = self.conflicts(op);
        if !conflicts.is_empty() {
            self.note_wait(now, id);
        }
        for (sid, object, taken) in conflicts {
            self.recall(now, sid, object, taken, Some(waiter));
        }
        self.let_writebacks_pass(id);
    }

    fn conflicts(&self, op: &Op) -> Vec<(Sid, ObjId, Cover)> {
        let own = self.sessions.find(op.session);
        let mut conflicts = Vec::new();
        for need in &op.needs {
            let holders = self.table.get(need.object).map_or(&[][..], |o| &o.holders);
            conflicts.extend(holders.iter().filter_map(|holder| {
                let taken = holder.gives_up(op, need, own == Some(holder.session))?;
                Some((holder.session, need.object, taken))
            }));
        }
        conflicts
    }

    /// Asks a holder for `taken`, as far as no open recall has asked for it already.
    pub(super) fn recall(
        &mut self,
        now: BootTime,
        sid: Sid,
        object: ObjId,
        mut taken: Cover,
        waiter: Option<Waiter>,
    ) {
        for shared in self.shared_recalls(sid, object, &taken) {
            if let Some(open) = self.sessions.recall(sid, shared) {
                taken.subtract(&open.fresh);
            }
            self.wait_for(waiter, sid, shared);
        }
        if taken.is_empty() {
            return;
        }
        let issued = match self.owes_too_many(sid) {
            true => self.recall_everything(now, sid),
            false => self.issue(now, sid, Some(object), taken),
        };
        if let Some(recall) = issued {
            self.wait_for(waiter, sid, recall);
        }
    }

    /// Whether further recalls of the session are made one, of everything.
    fn owes_too_many(&self, sid: Sid) -> bool {
        self.sessions.counts(sid).recalls >= self.config.max_recalls_per_client
    }

    /// Open recalls whose approval serves for part of `taken`.
    fn shared_recalls(&self, sid: Sid, object: ObjId, taken: &Cover) -> Vec<RecallId> {
        let Some(session) = self.sessions.get(sid) else {
            return Vec::new();
        };
        if let Some(everything) = session.everything {
            return vec![everything];
        }
        let serves = |id: &RecallId| {
            let recall = session.recalls.get(id);
            recall.is_some_and(|r| !r.fresh.meets(taken).is_empty())
        };
        let open = self.table.get(object).into_iter();
        open.flat_map(|o| o.recalls_of(sid))
            .filter(serves)
            .collect()
    }

    fn issue(
        &mut self,
        now: BootTime,
        sid: Sid,
        object: Option<ObjId>,
        cover: Cover,
    ) -> Option<RecallId> {
        let session = self.sessions.get_mut(sid)?;
        let id = session.next_recall();
        let overdue_at = now + session.patience(&self.config);
        let recall = OpenRecall {
            stamp: session.next_stamp(),
            object,
            fresh: cover.clone(),
            cover,
            sent: now,
            asked: now,
            overdue_at,
            extended_to: overdue_at + self.config.term,
            flushed: 0,
            progress: 0,
            awaited: false,
            borne: false,
            waiters: BTreeSet::new(),
        };
        let (session_id, handle) = (session.id, object.and_then(|o| self.table.get(o)));
        let message = message(id, &recall, handle.map(|o| o.handle));
        self.sessions.open_recall(sid, id, recall);
        if let Some(object) = object {
            self.table.open_recall(object, sid, id);
            // Page fills of the session must not wait any longer.
            self.dirty.insert(object);
        }
        self.actions.push_back(Action::Recall {
            session: session_id,
            recall: message,
        });
        self.bear_at(sid, object);
        Some(id)
    }

    fn wait_for(&mut self, waiter: Option<Waiter>, sid: Sid, recall: RecallId) {
        let Some(Waiter { op: id, cause }) = waiter else {
            return;
        };
        let of_client = self
            .ops
            .get(&id)
            .and_then(|op| self.sessions.find(op.session));
        let of_client = of_client
            .and_then(|sid| self.sessions.get(sid))
            .map(|s| s.client);
        let (Some(op), Some(session)) = (self.ops.get_mut(&id), self.sessions.get_mut(sid)) else {
            return;
        };
        let until = session
            .recalls
            .get(&recall)
            .map(|open| session.latest_end(open, &self.config));
        let Some(open) = session.recalls.get_mut(&recall) else {
            return;
        };
        open.waiters.insert(id);
        open.awaited |= of_client != Some(session.client);
        let known = op.waits.entry((sid, recall)).or_insert(cause);
        *known = cause.min(*known);
        if cause == Cause::Holder {
            op.latest = op.latest.max(until.unwrap_or_default());
        }
    }

    /// A holder keeps pages locked for write-back until it is answered: what it writes back goes
    /// before the operation that waits for its approval of the same object.
    pub(super) fn let_writebacks_pass(&mut self, waiting: OpId) {
        let Some(op) = self.ops.get(&waiting).filter(|op| op.is_exclusive()) else {
            return;
        };
        let place = op.order;
        let busy = |need: &&Need| {
            let demand = self.table.get(need.object).and_then(|o| o.demand());
            demand.is_some_and(|demand| demand.writebacks > 0)
        };
        let behind = op.needs.iter().filter(busy).flat_map(|need| {
            let others = self.exclusive_at(need.object);
            others.map(move |(id, other, _)| (need.object, id, other))
        });
        let passes = behind.filter(|(object, _, other)| {
            let waits = other.is_writeback() && !other.is_running() && other.order > place;
            let owner = self.sessions.find(other.session).filter(|_| waits);
            owner.is_some_and(|owner| self.waits_for(op, owner, *object))
        });
        let passing: BTreeSet<OpId> = passes.map(|(_, id, _)| id).collect();
        for id in passing {
            self.move_before(id, place);
        }
    }

    pub(super) fn approve(&mut self, now: BootTime, id: SessionId, recall: RecallId) {
        let Some(sid) = self.sessions.find(id) else {
            return;
        };
        let Some(open) = self.sessions.recall(sid, recall) else {
            return;
        };
        let (of, cover, fresh) = (open.object, open.cover.clone(), open.fresh.parts);
        let late = self.late_since(now, sid, recall);
        match of {
            None => self.drop_everything(sid),
            Some(object) => {
                self.close_recall(sid, recall);
                for older in self.older_recalls(sid, object, recall) {
                    self.shrink_recall(sid, older, &cover);
                }
                self.unhold(sid, object, fresh);
            }
        }
        if let Some(since) = late {
            self.charge(now, sid, since);
        }
    }

    fn older_recalls(&self, sid: Sid, object: ObjId, recall: RecallId) -> Vec<RecallId> {
        let open = self
            .table
            .get(object)
            .into_iter()
            .flat_map(|o| o.recalls_of(sid));
        open.filter(|other| *other < recall).collect()
    }

    /// The approval of a newer recall stands for an older one as far as both cover the same.
    fn shrink_recall(&mut self, sid: Sid, recall: RecallId, approved: &Cover) {
        let session = self.sessions.get_mut(sid);
        let Some(open) = session.and_then(|s| s.recalls.get_mut(&recall)) else {
            return;
        };
        open.cover.subtract(approved);
        open.fresh.subtract(approved);
        if open.cover.is_empty() {
            self.close_recall(sid, recall);
        }
    }

    /// Forgets a recall; nobody waits for it any longer.
    pub(super) fn close_recall(&mut self, sid: Sid, recall: RecallId) {
        let Some(open) = self.sessions.close_recall(sid, recall) else {
            return;
        };
        if let Some(object) = open.object {
            let was_last = self.table.close_recall(object, sid, recall);
            if was_last {
                self.dirty.insert(object);
            }
        }
        for op in open.waiters {
            self.stop_waiting(op, sid, recall);
        }
    }

    /// Every recall that the flush may have been for stays alive, if enough has come.
    pub(super) fn note_flushed(
        &mut self,
        now: BootTime,
        id: SessionId,
        object: &Handle,
        bytes: u64,
    ) {
        let Some(sid) = self.sessions.find(id) else {
            return;
        };
        for recall in self.recalls_of(sid, object) {
            self.note_progress(now, sid, recall, bytes);
        }
    }

    fn note_progress(&mut self, now: BootTime, sid: Sid, recall: RecallId, bytes: u64) {
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        let patience = session.patience(&self.config);
        let Some(open) = session.recalls.get_mut(&recall) else {
            return;
        };
        open.flushed = open.flushed.saturating_add(bytes);
        if open.flushed - open.progress < FLUSH_PROGRESS {
            return;
        }
        open.progress = open.flushed;
        let in_time = (now + patience).min(open.may_last_until());
        let overdue_at = open.overdue_at.max(in_time);
        self.set_overdue(sid, recall, overdue_at);
    }

    /// Moves the time from which on the session isn't renewed if it hasn't approved.
    fn set_overdue(&mut self, sid: Sid, recall: RecallId, overdue_at: BootTime) {
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        let Some(open) = session.recalls.get_mut(&recall) else {
            return;
        };
        let before = std::mem::replace(&mut open.overdue_at, overdue_at);
        session.overdue.remove(&(before, recall));
        session.overdue.insert((overdue_at, recall));
        let Some(open) = session.recalls.get(&recall) else {
            return;
        };
        let until = session.latest_end(open, &self.config);
        for id in &open.waiters {
            if let Some(op) = self.ops.get_mut(id) {
                op.latest = op.latest.max(until);
            }
        }
    }

    /// The session has all the time for its approval, and for progress with it, that it would have if it
    /// were asked at `asked`.
    fn ask_anew(&mut self, asked: BootTime, sid: Sid, recall: RecallId) {
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        let overdue_at = asked + session.patience(&self.config);
        if let Some(open) = session.recalls.get_mut(&recall) {
            open.asked = asked;
            open.extended_to = overdue_at + self.config.term;
            (open.flushed, open.progress) = (0, 0);
        }
        self.set_overdue(sid, recall, overdue_at);
    }

    /// A write-back that waits for the end of grace (others may hold the attributes that it changes), or for
    /// others to let go of these, is no fault of its session's: what it owes isn't overdue before it can have been done.
    pub(super) fn bear_with(&mut self, id: OpId) {
        let op = self.ops.get(&id).filter(|op| op.is_writeback());
        let Some((op, sid)) = op.and_then(|op| Some((op, self.sessions.find(op.session)?))) else {
            return;
        };
        let owed = self.owed_at(sid, op);
        let stopped = self.is_stopped_by_grace(op);
        let grace_ends = self.grace.as_ref().filter(|_| stopped).map(|g| g.ends);
        let others_end = self.others_end(sid, op);
        for recall in owed {
            match (grace_ends, others_end) {
                (Some(ends), _) => self.ask_anew(ends, sid, recall),
                (None, Some(ends)) => self.bear_until(ends, sid, recall),
                (None, None) => {}
            }
        }
    }

    /// The session is renewed as long as it has to wait for others, and can do what it owes then. That takes a further
    /// term at most, however many it waits for.
    fn bear_until(&mut self, others_end: BootTime, sid: Sid, recall: RecallId) {
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        let patience = session.patience(&self.config);
        let most = patience + session.lease_time(&self.config) + patience;
        let Some(open) = session.recalls.get_mut(&recall) else {
            return;
        };
        let overdue_at = (others_end + patience).min(open.asked + most);
        if overdue_at > open.overdue_at {
            open.borne = true;
            open.extended_to = open.extended_to.max(overdue_at + self.config.term);
            self.set_overdue(sid, recall, overdue_at);
        }
    }

    /// When the leases of those end for whom the operation waits, if they are never heard of again. A client waits for
    /// its own sessions at its own expense.
    fn others_end(&self, own: Sid, op: &Op) -> Option<BootTime> {
        let client = self.sessions.get(own)?.client;
        let end = |(sid, recall): &(Sid, RecallId)| {
            let session = self.sessions.get(*sid)?;
            let open = session.recalls.get(recall)?;
            let asked = open.asked + session.patience(&self.config);
            let end = asked + session.lease_time(&self.config);
            let end = session.expires.map_or(end, |at| at.max(end));
            (session.client != client).then_some(end)
        };
        op.waits.keys().filter_map(end).max()
    }

    /// What the session owes where an operation is.
    fn owed_at(&self, sid: Sid, op: &Op) -> Vec<RecallId> {
        let everything = self.sessions.get(sid).and_then(|s| s.everything);
        let at = op.needs.iter();
        let at = at.filter_map(|need| self.table.get(need.object));
        at.flat_map(|o| o.recalls_of(sid))
            .chain(everything)
            .collect()
    }

    /// The write-back has its turn: what its session owes there can be done now.
    pub(super) fn has_borne_with(&mut self, now: BootTime, id: OpId) {
        let op = self.ops.get(&id).filter(|op| op.is_writeback());
        let Some((op, sid)) = op.and_then(|op| Some((op, self.sessions.find(op.session)?))) else {
            return;
        };
        let owed = self.owed_at(sid, op);
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        let due = now + session.patience(&self.config);
        let mut sooner = Vec::new();
        for recall in owed {
            let open = session.recalls.get_mut(&recall);
            // Of everything: others of its write-backs may still wait.
            let Some(open) = open.filter(|open| open.borne && open.object.is_some()) else {
                continue;
            };
            open.borne = false;
            if due < open.overdue_at {
                sooner.push(recall);
            }
        }
        for recall in sooner {
            self.set_overdue(sid, recall, due);
        }
    }

    /// Its write-backs that are on their way already may have to wait for others. `None`: wherever they are.
    fn bear_at(&mut self, sid: Sid, object: Option<ObjId>) {
        let id = self.sessions.get(sid).map(|s| s.id);
        let own = |op: &Op| Some(op.session) == id && !op.is_running() && op.is_writeback();
        let own: Vec<OpId> = match object {
            Some(object) => {
                let at = self.exclusive_at(object).filter(|(_, op, _)| own(op));
                at.map(|(id, ..)| id).collect()
            }
            None => {
                let all = self.ops.iter().filter(|(_, op)| own(op));
                all.map(|(id, _)| *id).collect()
            }
        };
        for op in own {
            self.bear_with(op);
        }
    }

    /// Grace is over: what waited for it goes on.
    pub(super) fn bear_no_longer(&mut self, now: BootTime) {
        let borne_with = |(sid, session): (Sid, &Session)| {
            let latest = (now + session.patience(&self.config), RecallId(u64::MAX));
            let owed = session.overdue.range(latest..).map(|(_, id)| (sid, *id));
            owed.collect::<Vec<_>>()
        };
        let borne: Vec<_> = self.sessions.iter().flat_map(borne_with).collect();
        for (sid, recall) in borne {
            self.ask_anew(now, sid, recall);
        }
        let waiting = self.ops.iter().filter(|(_, op)| !op.is_running());
        let waiting: Vec<OpId> = waiting.map(|(id, _)| *id).collect();
        for op in waiting {
            self.bear_with(op);
        }
    }

    pub(super) fn shut_down(&mut self, now: BootTime) {
        self.shutdown = true;
        let all: Vec<Sid> = self.sessions.iter().map(|(sid, _)| sid).collect();
        for sid in all {
            self.recall_everything(now, sid);
        }
        // Page fills of sessions that owe an approval must not wait any longer.
        let objects = self
            .ops
            .values()
            .flat_map(|op| op.needs.iter().map(|n| n.object));
        self.dirty.extend(objects);
    }

    pub(super) fn recall_everything(&mut self, now: BootTime, sid: Sid) -> Option<RecallId> {
        let session = self.sessions.get(sid)?;
        if session.leases.is_empty() || session.everything.is_some() {
            return None;
        }
        let client = session.client;
        let recall = self.issue(now, sid, None, Cover::parts(Parts::ALL));
        self.touch_parked(client);
        self.sessions.get_mut(sid)?.everything = recall;
        recall
    }

    /// Whether the session has an open recall of `parts` of the object. What is recalled is held
    /// until the approval, so nobody else can have changed it.
    pub(super) fn owes(&self, sid: Sid, object: ObjId, parts: Parts) -> bool {
        let Some(session) = self.sessions.get(sid) else {
            return false;
        };
        let covers = |id: RecallId| {
            let recall = session.recalls.get(&id);
            recall.is_some_and(|r| r.cover.parts.intersects(parts))
        };
        let mut open = self
            .table
            .get(object)
            .into_iter()
            .flat_map(|o| o.recalls_of(sid));
        open.any(covers)
    }

    /// Whether the session has an open recall of everything.
    pub(super) fn owes_everything(&self, sid: Sid) -> bool {
        self.sessions
            .get(sid)
            .is_some_and(|s| s.everything.is_some())
    }

    /// The session's unapproved recalls that concern the object.
    fn recalls_of(&self, sid: Sid, handle: &Handle) -> Vec<RecallId> {
        let object = self.table.find(handle).and_then(|o| self.table.get(o));
        let singly = object.into_iter().flat_map(|o| o.recalls_of(sid));
        let everything = self.sessions.get(sid).and_then(|s| s.everything);
        singly.chain(everything).collect()
    }

    /// The session's unapproved recalls, in the order they were first sent: to be sent again,
    /// before anything else, on a new connection.
    pub fn open_recalls(&self, session: SessionId) -> Vec<Recall> {
        let session = self
            .sessions
            .find(session)
            .and_then(|sid| self.sessions.get(sid));
        let recalls = session.into_iter().flat_map(|s| &s.recalls);
        recalls.map(|(id, open)| self.message(*id, open)).collect()
    }

    pub(super) fn message(&self, id: RecallId, open: &OpenRecall) -> Recall {
        let object = open.object.and_then(|o| self.table.get(o));
        message(id, open, object.map(|o| o.handle))
    }
}

fn message(id: RecallId, open: &OpenRecall, object: Option<Handle>) -> Recall {
    let scope = object.map_or(Scope::Everything, |object| Scope::Object {
        object,
        parts: open.cover.parts,
        names: open.cover.names.clone(),
    });
    Recall {
        id,
        stamp: open.stamp,
        scope,
    }
}
