//! Changes: admitted, queued anew, finished, withdrawn.

use super::Core;
use super::api::{Action, OpId, OpState, ReadKind, Touch, Wanted};
use super::cover::{self, Cover, Want};
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Arrival, Kind, Need, Op, Order};
use super::table::Holder;
use super::timer::Timer;
use crate::time::BootTime;
use leasefs_protocol::{Grant, Handle, LockEpoch, Mode, Parts, RecallId, SessionId, Stamp};
use std::collections::BTreeMap;

/// A change as it arrives.
pub(super) struct ChangeBy {
    pub(super) op: OpId,
    pub(super) session: SessionId,
    pub(super) writeback: bool,
    pub(super) locked: Option<LockEpoch>,
}

impl Core {
    pub(super) fn admit_change(
        &mut self,
        now: BootTime,
        by: ChangeBy,
        touches: Vec<Touch>,
        dropped: &[Handle],
    ) {
        let id = by.op;
        let kind = Kind::Change {
            writeback: by.writeback,
        };
        let needs = self.needs(cover::of_change(touches), dropped);
        let arrival = Arrival {
            locked: by.locked,
            ..Arrival::new(id, by.session, kind, needs)
        };
        self.arrive(now, arrival);
        self.pass_what_it_owes(id);
        self.bear_with(id);
    }

    /// Takes its place in the queues and recalls what stands in the way.
    pub(super) fn arrive(&mut self, now: BootTime, arrival: Arrival) {
        if self.ops.contains_key(&arrival.op) {
            return;
        }
        let id = arrival.op;
        let op = self.op_of(now, arrival);
        if op.kind == Kind::Read(ReadKind::FillPages) {
            let at = op.patient_until;
            self.timers.insert((at, Timer::Fill(id)));
        }
        self.place(id, op);
        self.recall_conflicts(now, id);
    }

    pub(super) fn op_of(&mut self, now: BootTime, arrival: Arrival) -> Op {
        self.arrivals += 1;
        let patient_until = now + self.config.overdue;
        let term = crate::time::lengthened(self.config.term, self.config.drift_ppm);
        let grace_ends = self.grace.as_ref().map(|g| g.ends);
        Op {
            session: arrival.session,
            kind: arrival.kind,
            state: OpState::Waiting,
            order: Order::arrived(self.arrivals),
            since: now,
            patient_until,
            latest: (patient_until + term).max(grace_ends.unwrap_or_default()),
            needs: arrival.needs,
            waits: BTreeMap::new(),
            locked: arrival.locked,
            asks: arrival.asks,
        }
    }

    /// Of a change whose requester has dropped what it had of `dropped` itself.
    fn needs(&mut self, wants: Vec<Want>, dropped: &[Handle]) -> Vec<Need> {
        let need = |want: Want| Need {
            own_allowed: dropped.contains(&want.handle),
            object: self.known(&want.handle),
            cover: want.cover,
        };
        wants.into_iter().map(need).collect()
    }

    /// The object, which is in the table at least as long as the event is taken in.
    pub(super) fn known(&mut self, handle: &Handle) -> ObjId {
        let object = self.table.find_or_insert(handle);
        self.untidy.push(object);
        object
    }

    /// Nobody's turn comes by who joins a queue but his own. Of others than these it is known that it hasn't.
    pub(super) fn place(&mut self, id: OpId, op: Op) {
        for need in &op.needs {
            self.table.enqueue(need, id, &op);
        }
        if op.is_exclusive() {
            self.came.insert(id);
        }
        self.ops.insert(id, op);
    }

    fn displace(&mut self, id: OpId, op: &Op) {
        for need in &op.needs {
            self.table.dequeue(need, id, op);
            self.is_out_of_the_way(op, need.object);
            // Nobody waits for the others.
            match op.is_exclusive() {
                true => drop(self.dirty.insert(need.object)),
                false => self.untidy.push(need.object),
            }
        }
    }

    /// Gives an operation the place directly before another's.
    pub(super) fn move_before(&mut self, id: OpId, place: Order) {
        if let Some(mut op) = self.ops.remove(&id) {
            self.displace(id, &op);
            op.order = op.order.before(place);
            self.place(id, op);
        }
    }

    /// A write-back goes before the first operation that waits for its own session's approval.
    fn pass_what_it_owes(&mut self, id: OpId) {
        let Some(op) = self.ops.get(&id).filter(|op| op.is_writeback()) else {
            return;
        };
        let Some(own) = self.sessions.find(op.session) else {
            return;
        };
        let ahead = op.needs.iter().flat_map(|need| {
            let others = self.exclusive_at(need.object);
            others.map(move |(other, waiting, _)| (need.object, other, waiting))
        });
        let owed = ahead.filter_map(|(object, other, waiting)| {
            let waits = self.waits_for(waiting, own, object);
            (waits && other != id).then_some(waiting.order)
        });
        if let Some(place) = owed.min().filter(|place| *place < op.order) {
            self.move_before(id, place);
        }
    }

    /// Whether `op` waits for the session's approval of a recall that covers the object, and the session may have to write back
    /// before. Of two who write back only who holds its bytes exclusively has to: the other has nothing to bring, and approves.
    pub(super) fn waits_for(&self, op: &Op, sid: Sid, object: ObjId) -> bool {
        let all = (sid, RecallId(0))..=(sid, RecallId(u64::MAX));
        let of_session = op.waits.range(all);
        let mut recalls = of_session.filter_map(|((_, id), _)| self.sessions.recall(sid, *id));
        let holder = self.table.get(object).and_then(|o| o.holder(sid));
        let alone = holder.is_some_and(|holder| holder.write.intersects(Parts::DATA));
        (alone || !op.is_writeback()) && recalls.any(|r| r.object.is_none_or(|at| at == object))
    }

    pub(super) fn requeue(
        &mut self,
        now: BootTime,
        id: OpId,
        touches: Vec<Touch>,
        dropped: &[Handle],
    ) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        let op = Op {
            state: OpState::Waiting,
            needs: self.needs(cover::of_change(touches), dropped),
            waits: BTreeMap::new(),
            ..op
        };
        self.place(id, op);
        self.recall_conflicts(now, id);
        self.pass_what_it_owes(id);
        self.bear_with(id);
    }

    pub(super) fn withdraw(&mut self, id: OpId) {
        self.remove_op(id);
    }

    pub(super) fn remove_op(&mut self, id: OpId) -> Option<Op> {
        let op = self.ops.remove(&id)?;
        self.displace(id, &op);
        for (sid, recall) in op.waits.keys() {
            let session = self.sessions.get_mut(*sid);
            if let Some(open) = session.and_then(|s| s.recalls.get_mut(recall)) {
                open.waiters.remove(&id);
            }
        }
        self.timers.remove(&(op.patient_until, Timer::Fill(id)));
        self.forget_parked(id, &op);
        Some(op)
    }

    pub(super) fn finish_change(&mut self, now: BootTime, id: OpId, wants: Vec<Wanted>) {
        let running = self.ops.get(&id).is_some_and(Op::is_running);
        let Some(op) = running.then(|| self.remove_op(id)).flatten() else {
            return;
        };
        let sid = self.sessions.find(op.session);
        let session = sid.and_then(|sid| self.sessions.get_mut(sid));
        let stamp = session.map_or(Stamp(0), |s| s.next_stamp());
        let grants = self.grant_changer(now, &op, wants);
        self.actions.push_back(Action::Finished {
            op: id,
            stamp,
            grants,
        });
        if let Some(sid) = sid {
            self.shed(now, sid);
        }
    }

    fn grant_changer(&mut self, now: BootTime, op: &Op, wants: Vec<Wanted>) -> Vec<Grant> {
        let Some(sid) = self.sessions.alive(op.session) else {
            return Vec::new();
        };
        let grant = |want: Wanted| {
            let cover = Cover::parts(want.parts);
            let object = self.known(&want.object);
            match want.mode {
                Mode::Write
                    if self.is_alone(sid, object, &cover)
                        && !self.is_at_term_zero(now, sid, op, (object, want.parts)) =>
                {
                    self.grant(now, sid, object, &cover, want.parts, Mode::Write)
                }
                Mode::Read | Mode::Write => self.grant_read(now, sid, object, &cover),
            }
        };
        wants.into_iter().filter_map(grant).collect()
    }

    /// Whether nobody else holds or waits for any of the parts.
    fn is_alone(&self, sid: Sid, object: ObjId, cover: &Cover) -> bool {
        let parts = cover.parts;
        let Some(found) = self.table.get(object) else {
            return false;
        };
        let mut others = found.holders.iter().filter(|h| h.session != sid);
        let shared = others.any(|h| h.parts.intersects(parts));
        !parts.is_empty()
            && !found.has_queue()
            && !shared
            && self.grantable(sid, object, cover) == parts
    }

    /// Whether the session has the object's data to itself.
    pub fn holds_write(&self, session: SessionId, handle: &Handle) -> bool {
        let holder = self.holder(session, handle);
        holder.is_some_and(|h| h.write.contains(Parts::DATA))
    }

    /// Whether nobody else has changed the object's data since the session was granted it, or will
    /// before the session's approval.
    pub fn holds_data(&self, session: SessionId, handle: &Handle) -> bool {
        let holder = self.holder(session, handle);
        holder.is_some_and(|h| h.parts.contains(Parts::DATA))
    }

    fn holder(&self, session: SessionId, handle: &Handle) -> Option<&Holder> {
        let object = self.table.find(handle).and_then(|o| self.table.get(o))?;
        object.holder(self.sessions.find(session)?)
    }

    /// A Read lease on as much of `cover` as nothing stands against.
    pub(super) fn grant_read(
        &mut self,
        now: BootTime,
        sid: Sid,
        object: ObjId,
        cover: &Cover,
    ) -> Option<Grant> {
        let parts = self.grantable(sid, object, cover);
        if parts.is_empty() {
            return None;
        }
        self.grant(now, sid, object, cover, parts, Mode::Read)
    }
}
