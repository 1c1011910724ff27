//! Whose turn it is at an object.

use super::Core;
use super::api::{Action, OpId, OpState, ReadKind};
use super::ids::ObjId;
use super::locks::Effort;
use super::op::{Cause, Kind, Need, Op, Order};
use crate::time::BootTime;
use leasefs_protocol::{Parts, RawName};
use std::collections::HashSet;

/// What several operations cover together.
#[derive(Clone, Debug, Default)]
struct Claims<'a> {
    parts: Parts,
    names: HashSet<&'a RawName>,
}

impl<'a> Claims<'a> {
    fn add(&mut self, need: &'a Need) {
        self.parts |= need.cover.parts;
        self.names.extend(&need.cover.names);
    }

    fn meet(&self, need: &Need) -> bool {
        let all_names = self.parts.contains(Parts::NAMES);
        let whole = self.parts.intersects(need.cover.parts)
            || (all_names && need.is_named())
            || (need.cover.parts.contains(Parts::NAMES) && !self.names.is_empty());
        whole
            || need
                .cover
                .names
                .iter()
                .any(|name| self.names.contains(name))
    }
}

/// What becomes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Wait,
    /// Answered without a lease.
    Answer,
    /// Answered with what can be granted.
    Lease,
    /// Answered with a lease on all it shows, recalled at once for whoever waits.
    Fill(Cause),
}

/// What stands before a page fill at its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Outlook {
    /// A change of the data runs.
    running: bool,
    /// Changes of the data wait before it; the earliest time one of them gives up waiting.
    waiting: Option<BootTime>,
    /// One of them waits for a holder that takes too long.
    held_up: bool,
}

impl Outlook {
    /// For a fill that arrives now.
    pub(super) fn behind_all(core: &Core, now: BootTime, object: ObjId) -> Self {
        let mut outlook = Self::default();
        for (_, op, need) in core.exclusive_at(object) {
            outlook.add(core, now, op, need);
        }
        outlook
    }

    fn behind_running(core: &Core, object: ObjId) -> Self {
        let mut at = core.running_at(object);
        let running = at.any(|(_, need)| changes_data(need));
        Self {
            running,
            ..Self::default()
        }
    }

    fn add(&mut self, core: &Core, now: BootTime, op: &Op, need: &Need) {
        if !changes_data(need) {
            return;
        }
        if op.is_running() {
            self.running = true;
            return;
        }
        self.waiting = Some(self.waiting.map_or(op.latest, |at| at.min(op.latest)));
        self.held_up |= core.is_held_up(now, op);
    }

    /// A lease past waiting changes is given only while their own holders keep them waiting,
    /// and not for ever: else a stream of readers could starve them.
    pub(super) fn for_fill(&self, now: BootTime, patient_until: BootTime) -> Verdict {
        match self.waiting {
            _ if self.running => Verdict::Wait,
            None => Verdict::Fill(Cause::Holder),
            Some(latest) if latest.has_come(now) => Verdict::Wait,
            Some(_) if self.held_up || patient_until.has_come(now) => Verdict::Fill(Cause::Born),
            Some(_) => Verdict::Wait,
        }
    }
}

fn changes_data(need: &Need) -> bool {
    need.cover.parts.contains(Parts::DATA)
}

/// An operation whose turn has come.
enum Ready {
    Change,
    Lock,
    /// A change that was made under locks that are lost.
    Late,
    Store,
    Read(Vec<Verdict>),
    Unpark,
}

impl Core {
    /// Lets everything go on that can.
    pub(super) fn settle(&mut self, now: BootTime) {
        let mut effort = Effort::of_one_event();
        loop {
            if let Some(file) = self.locks.changed.pop_first() {
                self.grant_locks(now, &file, &mut effort);
            } else if let Some(id) = self.came.pop_first() {
                if let Some(ready) = self.ready_alone(now, id) {
                    self.go_on(now, id, ready);
                }
            } else if let Some(object) = self.dirty.pop_first() {
                while let Some((id, ready)) = self.next_ready(now, object) {
                    self.go_on(now, id, ready);
                }
                self.untidy.push(object);
            } else {
                break;
            }
        }
        while let Some(object) = self.untidy.pop() {
            self.table.tidy(object);
        }
    }

    fn go_on(&mut self, now: BootTime, id: OpId, ready: Ready) {
        match ready {
            Ready::Change => self.run_change(now, id),
            Ready::Lock => self.run_lock(now, id),
            Ready::Late => {
                self.remove_op(id);
                self.actions.push_back(Action::LockLost { op: id });
            }
            Ready::Store => self.admit_store(now, id),
            Ready::Read(verdicts) => self.admit_waiting(now, id, verdicts),
            Ready::Unpark => self.unpark(now, id),
        }
    }

    fn run_change(&mut self, now: BootTime, id: OpId) {
        self.has_borne_with(now, id);
        if let Some(op) = self.ops.get_mut(&id) {
            op.state = OpState::Running;
            for need in &op.needs {
                self.table.begin(need.object, op.order, id);
            }
            let grants = Vec::new();
            self.actions.push_back(Action::Admitted { op: id, grants });
        }
    }

    fn running_at(&self, object: ObjId) -> impl Iterator<Item = (OpId, &Need)> {
        let running = self.table.get(object).into_iter().flat_map(|o| o.running());
        running.filter_map(move |id| Some((id, self.ops.get(&id)?.need(object)?)))
    }

    /// Operations at an object, in their order.
    pub(super) fn ops_at(&self, object: ObjId) -> impl Iterator<Item = (OpId, &Op, &Need)> {
        let queue = self.table.get(object).into_iter().flat_map(|o| o.queue());
        self.named(object, queue)
    }

    /// Those of them that others have to wait for.
    pub(super) fn exclusive_at(&self, object: ObjId) -> impl Iterator<Item = (OpId, &Op, &Need)> {
        let queue = self.table.get(object).into_iter();
        self.named(object, queue.flat_map(|o| o.exclusive()))
    }

    fn named<'a>(
        &'a self,
        object: ObjId,
        queue: impl Iterator<Item = &'a (Order, OpId)>,
    ) -> impl Iterator<Item = (OpId, &'a Op, &'a Need)> {
        queue.filter_map(move |(_, id)| {
            let op = self.ops.get(id)?;
            Some((*id, op, op.need(object)?))
        })
    }

    /// Whether the operation may go on.
    fn ready_alone(&self, now: BootTime, id: OpId) -> Option<Ready> {
        let op = self.ops.get(&id).filter(|op| !op.is_running())?;
        match op.is_exclusive() {
            true => self.ready_exclusive(op, None),
            false => self.ready_read(now, op, None),
        }
    }

    /// The first operation at the object that may go on.
    fn next_ready(&self, now: BootTime, object: ObjId) -> Option<(OpId, Ready)> {
        let mut claims = Claims::default();
        let mut outlook = Outlook::behind_running(self, object);
        self.running_at(object)
            .for_each(|(_, need)| claims.add(need));
        for (id, op, need) in self.ops_at(object).filter(|(_, op, _)| !op.is_running()) {
            let ready = if op.is_exclusive() {
                self.ready_exclusive(op, Some((object, claims.meet(need))))
            } else {
                self.ready_read(now, op, Some((object, &outlook)))
            };
            if let Some(ready) = ready {
                return Some((id, ready));
            }
            if op.is_exclusive() {
                claims.add(need);
                let demand = self.table.get(object).and_then(|o| o.demand());
                // Whoever is behind meets what is before it.
                if demand.is_some_and(|demand| demand.is_within(claims.parts)) {
                    return None;
                }
                outlook.add(self, now, op, need);
            }
        }
        None
    }

    /// `here`: where it is known already whether something is before it.
    fn ready_exclusive(&self, op: &Op, here: Option<(ObjId, bool)>) -> Option<Ready> {
        let store = op.is_fill();
        if store && let Some(verdicts) = self.released_store(op) {
            return Some(Ready::Read(verdicts));
        }
        let stopped = self.is_stopped_by_grace(op) || (self.shutdown && op.is_for_later());
        if stopped || !op.waits.is_empty() {
            return None;
        }
        let is_blocked = |need: &Need| match here {
            Some((at, blocked)) if at == need.object => blocked,
            _ => self.blockers(op, need).next().is_some(),
        };
        if op.needs.iter().any(is_blocked) {
            return None;
        }
        Some(match op.kind {
            Kind::Read(_) | Kind::Parked(_) => Ready::Store,
            Kind::Change { .. } if self.is_late(op) => Ready::Late,
            Kind::Change { .. } => Ready::Change,
            Kind::Lock if self.is_held_by_late(op) => return None,
            Kind::Lock => Ready::Lock,
        })
    }

    /// Leases of the server's earlier life may stand against it. None does where its session holds
    /// exclusively all that it covers, as who flushes does: what a recall waits for goes through.
    pub(super) fn is_stopped_by_grace(&self, op: &Op) -> bool {
        if self.grace.is_none() {
            return false;
        }
        let change = matches!(op.kind, Kind::Change { .. });
        let sid = self.sessions.alive(op.session).filter(|_| change);
        let alone = |need: &Need| {
            let object = self.table.get(need.object);
            let holder = object.zip(sid).and_then(|(o, sid)| o.holder(sid));
            holder.is_some_and(|h| h.write.contains(need.cover.leased()))
        };
        !op.needs.iter().all(alone)
    }

    /// An exclusive fill is answered without its lease if its session owes an approval for the
    /// object, or has lost its leases and nothing is hidden from it.
    fn released_store(&self, op: &Op) -> Option<Vec<Verdict>> {
        let sid = self.sessions.find(op.session);
        let owes_all = sid.is_some_and(|sid| self.owes_everything(sid));
        let dead = self.sessions.alive(op.session).is_none();
        let released = |need: &Need| {
            let owes = sid.is_some_and(|sid| self.owes(sid, need.object, Parts::DATA));
            let hidden = self.hidden_parts(sid, need.object, &need.cover);
            owes || ((owes_all || dead) && hidden.is_empty())
        };
        let answer = || vec![Verdict::Answer; op.needs.len()];
        op.needs.iter().all(released).then(answer)
    }

    /// `here`: where it is known already what stands before it.
    fn ready_read(&self, now: BootTime, op: &Op, here: Option<(ObjId, &Outlook)>) -> Option<Ready> {
        if let Kind::Parked(_) = op.kind {
            let objects = op.needs.iter().map(|need| need.object);
            return (!self.must_park(op.session, objects)).then_some(Ready::Unpark);
        }
        let Kind::Read(kind) = op.kind else {
            return None;
        };
        let sid = self.sessions.find(op.session);
        let verdict = |need: &Need| {
            if kind != ReadKind::FillPages {
                return self.plain_verdict(sid, kind, need);
            }
            let outlook = match here {
                Some((at, outlook)) if at == need.object => *outlook,
                _ => self.outlook_for(now, op, need.object),
            };
            self.fill_verdict(now, sid, op.patient_until, need.object, &outlook)
        };
        let mut verdicts = Vec::with_capacity(op.needs.len());
        for need in &op.needs {
            match verdict(need) {
                Verdict::Wait => return None,
                go_on => verdicts.push(go_on),
            }
        }
        Some(Ready::Read(verdicts))
    }

    fn outlook_for(&self, now: BootTime, fill: &Op, object: ObjId) -> Outlook {
        let mut outlook = Outlook::behind_running(self, object);
        let exclusive = self.exclusive_at(object);
        for (_, op, need) in exclusive.take_while(|(_, op, _)| op.order < fill.order) {
            outlook.add(self, now, op, need);
        }
        outlook
    }

    /// Operations that `op` has to let finish first at one of its objects.
    pub(super) fn blockers<'a>(
        &'a self,
        op: &'a Op,
        need: &'a Need,
    ) -> impl Iterator<Item = OpId> + 'a {
        let before = |other: &Op| other.is_running() || other.order < op.order;
        let at = self.exclusive_at(need.object);
        at.filter(move |(_, other, theirs)| {
            other.order != op.order && before(other) && !theirs.cover.meets(&need.cover).is_empty()
        })
        .map(|(id, _, _)| id)
    }
}
