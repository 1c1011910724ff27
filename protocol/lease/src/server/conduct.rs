//! Conduct: who holds others up gets no leases for a while.
//!
//! A client that doesn't answer recalls costs others a term, however many files it holds. What is
//! granted to it afterwards would cost them a further one, under this session or the next. So
//! while it is *denied*, no session of the client gets a lease: it is answered without, and fills of
//! its kernel's pages, which need one, are *parked* until that ends. What the client's other
//! sessions hold is recalled.

use super::api::{Config, OpId, ReadKind};
use super::cover::Want;
use super::op::{Arrival, Kind, Op};
use super::session::{OpenRecall, Session, Sid};
use super::table::ObjId;
use super::{Core, Timer};
use crate::time::BootTime;
use leasefs_protocol::limits::RECALL_PATIENCE_MAX;
use leasefs_protocol::{KeyHash, Parts, RecallId, SessionId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Of the time that passes, one part in so many may be spent keeping others waiting: a machine that
/// is slow now and then is not an attack.
const LEAK: u32 = 10;

/// What a client has cost others lately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Conduct {
    /// For how long it has kept others waiting with approvals that came late. It leaks away.
    spent: Duration,
    /// As of when. What came before is in it.
    as_of: BootTime,
    /// How often it was denied leases.
    times: u32,
    /// It gets no leases until then.
    denied_until: Option<BootTime>,
    /// Nothing is held against it from then on.
    forgotten_at: BootTime,
    /// Fills that wait for the end of that.
    parked: BTreeSet<OpId>,
}

impl Conduct {
    fn begins(now: BootTime) -> Self {
        Self {
            spent: Duration::ZERO,
            as_of: BootTime::ZERO,
            times: 0,
            denied_until: None,
            forgotten_at: now,
            parked: BTreeSet::new(),
        }
    }

    fn next_timer(&self) -> BootTime {
        self.denied_until.unwrap_or(self.forgotten_at)
    }

    /// It has kept others waiting from `late_since` until `now`.
    fn charge(&mut self, now: BootTime, late_since: BootTime, config: &Config) {
        let leaked = now.since(self.as_of) / LEAK;
        let late = now.since(late_since.max(self.as_of));
        self.spent = self.spent.saturating_sub(leaked) + late;
        self.as_of = now;
        self.forgotten_at = now + config.max_probation;
        if self.spent >= config.term / 2 {
            self.deny(now, config);
        }
    }

    fn deny(&mut self, now: BootTime, config: &Config) {
        // What its sessions do at one time is one offence.
        if self.denied_until.is_none() {
            self.times = self.times.saturating_add(1).min(32);
        }
        let factor = 1_u32.checked_shl(self.times - 1).unwrap_or(u32::MAX);
        let probation = config.probation.saturating_mul(factor);
        let until = now + probation.min(config.max_probation);
        self.spent = Duration::ZERO;
        self.denied_until = self.denied_until.max(Some(until));
        self.forgotten_at = until + config.max_probation;
    }

    pub(super) fn rebase(&mut self, now: BootTime) {
        let move_back = |at: &mut BootTime| *at = BootTime::ZERO + at.since(now);
        self.spent = self.spent.saturating_sub(now.since(self.as_of) / LEAK);
        self.as_of = BootTime::ZERO;
        self.denied_until.iter_mut().for_each(move_back);
        move_back(&mut self.forgotten_at);
    }
}

/// From when on a recall keeps others waiting for too long; `None` if nobody waits.
fn late_since(open: &OpenRecall) -> Option<BootTime> {
    let in_time = open.sent + RECALL_PATIENCE_MAX;
    open.awaited.then(|| open.overdue_at.max(in_time))
}

impl Core {
    /// Whether the session gets no leases.
    pub(super) fn is_denied(&self, sid: Sid) -> bool {
        let session = self.sessions.get(sid);
        session.is_some_and(|session| self.denied_until(session).is_some())
    }

    pub(super) fn denied_until(&self, session: &Session) -> Option<BootTime> {
        self.conduct.get(&session.client)?.denied_until
    }

    /// Since when an approval that comes now has kept others waiting; `None` if it is in time.
    pub(super) fn late_since(&self, now: BootTime, sid: Sid, recall: RecallId) -> Option<BootTime> {
        let since = self.sessions.recall(sid, recall).and_then(late_since);
        since.filter(|since| *since < now)
    }

    /// A session of the client has kept others waiting until now.
    pub(super) fn charge(&mut self, now: BootTime, sid: Sid, since: BootTime) {
        if let Some(client) = self.sessions.get(sid).map(|session| session.client) {
            let charge = |c: &mut Conduct, config: &Config| c.charge(now, since, config);
            self.hold_against(now, client, charge);
        }
    }

    /// Ends all leases of a session. Who has let them expire while others waited is denied leases;
    /// who lets go of them has kept others waiting until now.
    pub(super) fn end_leases(&mut self, now: BootTime, sid: Sid, expired: bool) {
        let Some(session) = self.sessions.get(sid) else {
            return;
        };
        let client = session.client;
        let mut recalls = session.recalls.values();
        let unanswered = |r: &OpenRecall| r.awaited && r.overdue_at.has_come(now);
        let denied = expired && recalls.any(unanswered);
        let late = session.recalls.values().filter_map(late_since).min();
        self.touch_parked(client);
        self.set_expiry(sid, None);
        self.drop_everything(sid);
        if denied {
            self.hold_against(now, client, |conduct, config| conduct.deny(now, config));
        } else if let Some(since) = late.filter(|since| *since < now) {
            self.charge(now, sid, since);
        }
    }

    fn hold_against(
        &mut self,
        now: BootTime,
        client: KeyHash,
        what: impl FnOnce(&mut Conduct, &Config),
    ) {
        if self.config.probation.is_zero() {
            return;
        }
        let conduct = self.conduct.entry(client);
        let conduct = conduct.or_insert_with(|| Conduct::begins(now));
        self.timers
            .remove(&(conduct.next_timer(), Timer::Conduct(client)));
        what(conduct, &self.config);
        self.timers
            .insert((conduct.next_timer(), Timer::Conduct(client)));
        if conduct.denied_until.is_some() {
            self.recall_all_of(now, client);
        }
    }

    /// What its other sessions hold could cost others a term each.
    fn recall_all_of(&mut self, now: BootTime, client: KeyHash) {
        let all: Vec<Sid> = self.sessions.of_client(client).collect();
        for sid in all {
            self.recall_everything(now, sid);
        }
    }

    /// Its client gets leases again, or nothing is held against it any more.
    pub(super) fn look_at_conduct(&mut self, at: BootTime, client: KeyHash) {
        let Some(conduct) = self.conduct.get_mut(&client) else {
            return;
        };
        if conduct.denied_until.take().is_none() {
            self.conduct.remove(&client);
            return;
        }
        let next = conduct.next_timer().max(at);
        self.timers.insert((next, Timer::Conduct(client)));
        self.touch_parked(client);
    }

    /// Fills that are parked may not have to be any more.
    pub(super) fn touch_parked(&mut self, client: KeyHash) {
        let conduct = self.conduct.get(&client);
        let parked = conduct.into_iter().flat_map(|c| &c.parked);
        let ops = parked.filter_map(|op| self.ops.get(op));
        let objects = ops.flat_map(|op| op.needs.iter().map(|need| need.object));
        self.dirty.extend(objects);
    }

    pub(super) fn conduct_timers(&self) -> impl Iterator<Item = (BootTime, Timer)> {
        let timer = |(client, conduct): (&KeyHash, &Conduct)| {
            (conduct.next_timer(), Timer::Conduct(*client))
        };
        self.conduct.iter().map(timer)
    }

    /// Whether a fill of the session has to wait until its client gets leases again. Not if the
    /// session's approval of what is asked of it may wait for the fill's answer.
    pub(super) fn must_park(
        &self,
        session: SessionId,
        mut objects: impl Iterator<Item = ObjId>,
    ) -> bool {
        let Some(sid) = self
            .sessions
            .alive(session)
            .filter(|sid| self.is_denied(*sid))
        else {
            return false;
        };
        !self.owes_everything(sid) && !objects.any(|object| self.owes(sid, object, Parts::DATA))
    }

    /// Keeps a fill until its client gets leases again. Nobody waits for it.
    pub(super) fn park(
        &mut self,
        now: BootTime,
        id: OpId,
        session: SessionId,
        kind: ReadKind,
        wants: Vec<Want>,
    ) {
        let arrival = Arrival {
            op: id,
            session,
            kind: Kind::Parked(kind),
            wants,
            dropped: Vec::new(),
        };
        let op = self.op_of(now, &arrival);
        self.place(id, &op);
        self.ops.insert(id, op);
        let client = self
            .sessions
            .find(session)
            .and_then(|sid| self.sessions.get(sid));
        if let Some(conduct) = client.and_then(|s| self.conduct.get_mut(&s.client)) {
            conduct.parked.insert(id);
        }
    }

    /// A fill whose client was denied leases while it waited is parked when its turn comes.
    pub(super) fn parks_now(&mut self, now: BootTime, id: OpId, op: &Op) -> bool {
        let objects = op.needs.iter().map(|need| need.object);
        let Kind::Read(kind) = op.kind else {
            return false;
        };
        let parks = op.is_fill() && self.must_park(op.session, objects);
        if parks {
            let want = |(handle, cover)| Want { handle, cover };
            let wants = self.handles(op).into_iter().map(want).collect();
            self.park(now, id, op.session, kind, wants);
        }
        parks
    }

    /// A parked fill asks anew.
    pub(super) fn unpark(&mut self, now: BootTime, id: OpId) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        if let Kind::Parked(kind) = op.kind {
            let want = |(handle, cover)| Want { handle, cover };
            let wants = self.handles(&op).into_iter().map(want).collect();
            self.admit_wants(now, id, op.session, kind, wants);
        }
    }

    /// A fill that may be parked is gone.
    pub(super) fn forget_parked(&mut self, id: OpId, op: &Op) {
        let session = self
            .sessions
            .find(op.session)
            .and_then(|sid| self.sessions.get(sid));
        if let Kind::Parked(_) = op.kind
            && let Some(conduct) = session.and_then(|s| self.conduct.get_mut(&s.client))
        {
            conduct.parked.remove(&id);
        }
    }
}
