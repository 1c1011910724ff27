//! Probation: who holds others up gets no leases for a while.
//!
//! A client that doesn't answer recalls costs others a term, however many files it holds. What is
//! granted to it afterwards would cost them a further one, under this session or the next. So
//! while it is *denied*, no session of the client gets a lease: it is answered without, and fills of
//! its kernel's pages, which need one, are *parked* until that ends. What the client's other
//! sessions hold is recalled.

use super::Core;
use super::api::{Config, OpId, ReadKind};
use super::conduct::{Conduct, late_since};
use super::ids::{ObjId, Sid};
use super::op::{Arrival, Kind, Need, Op};
use super::session::{OpenRecall, Session};
use super::timer::Timer;
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{KeyHash, Parts, RecallId, SessionId};

impl Core {
    /// Whether the session gets no leases.
    pub(super) fn is_denied(&self, sid: Sid) -> bool {
        let session = self.sessions.get(sid);
        session.is_some_and(|session| self.denied_until(session).is_some())
            && !planted::is(Bug::DeniedGranted)
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
        // Who is borne with is renewed all the time, unless it doesn't ask for it.
        let unanswered = |r: &OpenRecall| r.awaited && (r.borne || r.overdue_at.has_come(now));
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
        needs: Vec<Need>,
    ) {
        let arrival = Arrival::new(id, session, Kind::Parked(kind), needs);
        let op = self.op_of(now, arrival);
        self.place(id, op);
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
            self.park(now, id, op.session, kind, op.needs.clone());
        }
        parks
    }

    /// A parked fill asks anew.
    pub(super) fn unpark(&mut self, now: BootTime, id: OpId) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        if let Kind::Parked(kind) = op.kind {
            self.admit_needs(now, id, op.session, kind, op.needs);
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
