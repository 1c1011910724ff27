//! Changes: admitted, queued anew, finished, withdrawn.

use super::Core;
use super::api::{Action, OpId, OpState, ReadKind, Wanted};
use super::cover::{Cover, Want};
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Arrival, Kind, Need, Op, Order};
use super::table::Holder;
use super::timer::Timer;
use crate::time::BootTime;
use leasefs_protocol::{Grant, Handle, Mode, Parts, RecallId, SessionId, Stamp};
use std::collections::BTreeMap;

impl Core {
    pub(super) fn admit_change(&mut self, now: BootTime, arrival: Arrival) {
        let id = arrival.op;
        self.arrive(now, arrival);
        self.pass_what_it_owes(id);
        self.bear_with(id);
    }

    /// Takes its place in the queues and recalls what stands in the way.
    pub(super) fn arrive(&mut self, now: BootTime, arrival: Arrival) {
        if self.ops.contains_key(&arrival.op) {
            return;
        }
        let op = self.op_of(now, &arrival);
        if op.kind == Kind::Read(ReadKind::FillPages) {
            let at = op.patient_until;
            self.timers.insert((at, Timer::Fill(arrival.op)));
        }
        self.place(arrival.op, &op);
        self.ops.insert(arrival.op, op);
        self.recall_conflicts(now, arrival.op);
    }

    pub(super) fn op_of(&mut self, now: BootTime, arrival: &Arrival) -> Op {
        self.arrivals += 1;
        let needs = self.needs(arrival);
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
            needs,
            waits: BTreeMap::new(),
        }
    }

    fn needs(&mut self, arrival: &Arrival) -> Vec<Need> {
        let need = |want: &Want| Need {
            object: self.table.find_or_insert(&want.handle),
            cover: want.cover.clone(),
            own_allowed: arrival.own_allowed(&want.handle),
        };
        arrival.wants.iter().map(need).collect()
    }

    pub(super) fn place(&mut self, id: OpId, op: &Op) {
        for need in &op.needs {
            self.table.enqueue(need, id, op);
            self.dirty.insert(need.object);
        }
    }

    fn displace(&mut self, id: OpId, op: &Op) {
        for need in &op.needs {
            self.table.dequeue(need, id, op);
            self.dirty.insert(need.object);
        }
    }

    /// Gives an operation the place directly before another's.
    pub(super) fn move_before(&mut self, id: OpId, place: Order) {
        if let Some(mut op) = self.ops.remove(&id) {
            self.displace(id, &op);
            op.order = op.order.before(place);
            self.place(id, &op);
            self.ops.insert(id, op);
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
            let others = self.ops_at(need.object);
            others.map(move |(other, waiting, _)| (need.object, other, waiting))
        });
        let owed = ahead.filter_map(|(object, other, waiting)| {
            let waits = waiting.is_exclusive() && self.waits_for(waiting, own, object);
            (waits && other != id).then_some(waiting.order)
        });
        if let Some(place) = owed.min().filter(|place| *place < op.order) {
            self.move_before(id, place);
        }
    }

    /// Whether `op` waits for the session's approval of a recall that covers the object.
    pub(super) fn waits_for(&self, op: &Op, sid: Sid, object: ObjId) -> bool {
        let all = (sid, RecallId(0))..=(sid, RecallId(u64::MAX));
        let of_session = op.waits.range(all);
        let mut recalls = of_session.filter_map(|((_, id), _)| self.sessions.recall(sid, *id));
        recalls.any(|r| r.object.is_none_or(|at| at == object))
    }

    pub(super) fn requeue(
        &mut self,
        now: BootTime,
        id: OpId,
        wants: Vec<Want>,
        dropped: Vec<Handle>,
    ) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        let arrival = Arrival {
            op: id,
            session: op.session,
            kind: op.kind,
            wants,
            dropped,
        };
        let op = Op {
            state: OpState::Waiting,
            needs: self.needs(&arrival),
            waits: BTreeMap::new(),
            ..op
        };
        self.place(id, &op);
        self.ops.insert(id, op);
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
        let grants = self.grant_changer(op.session, wants);
        self.actions.push_back(Action::Finished {
            op: id,
            stamp,
            grants,
        });
        if let Some(sid) = sid {
            self.shed(now, sid);
        }
    }

    fn grant_changer(&mut self, id: SessionId, wants: Vec<Wanted>) -> Vec<Grant> {
        let Some(sid) = self.sessions.alive(id) else {
            return Vec::new();
        };
        let grant = |want: Wanted| {
            let cover = Cover::parts(want.parts);
            match want.mode {
                Mode::Write if self.is_alone(sid, &want) => {
                    let object = self.table.find_or_insert(&want.object);
                    self.grant(sid, object, &cover, want.parts, Mode::Write)
                }
                Mode::Read | Mode::Write => self.grant_read(sid, &want.object, &cover),
            }
        };
        wants.into_iter().filter_map(grant).collect()
    }

    /// Whether nobody else holds or waits for any of the parts.
    fn is_alone(&self, sid: Sid, want: &Wanted) -> bool {
        let cover = Cover::parts(want.parts);
        let object = self.table.find(&want.object);
        let busy = object.is_some_and(|o| self.ops_at(o).next().is_some());
        let holders = object.and_then(|o| self.table.get(o)).map(|o| &o.holders);
        let mut others = holders.into_iter().flatten().filter(|h| h.session != sid);
        let shared = others.any(|h| h.parts.intersects(want.parts));
        !want.parts.is_empty()
            && !busy
            && !shared
            && self.grantable(sid, &want.object, &cover) == want.parts
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
    pub(super) fn grant_read(&mut self, sid: Sid, handle: &Handle, cover: &Cover) -> Option<Grant> {
        let parts = self.grantable(sid, handle, cover);
        if parts.is_empty() {
            return None;
        }
        let object = self.table.find_or_insert(handle);
        self.grant(sid, object, cover, parts, Mode::Read)
    }
}
