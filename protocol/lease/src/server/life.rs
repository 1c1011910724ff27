//! Beginning, renewal and end of sessions, and every deadline.

use super::Core;
use super::api::{Action, Event, OpId, Standing};
use super::ids::Sid;
use super::op::Cause;
use super::session::Session;
use super::timer::Timer;
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{KeyHash, Parts, RecallId, SessionId};
use std::collections::BTreeSet;
use std::time::Duration;

impl Core {
    /// Whether the reply or keep-alive that is about to be answered renews its session's leases;
    /// if so they are valid for a term from now on. Call it for every answer, when it is made.
    pub fn renew(&mut self, now: BootTime, session: SessionId) -> bool {
        self.sessions
            .alive(session)
            .is_some_and(|sid| self.renew_alive(now, sid))
    }

    /// Whether the session may hold leases, or reclaim some; in grace also if it hasn't come back.
    pub fn may_hold(&self, session: SessionId) -> bool {
        if self.grace.as_ref().is_some_and(|g| g.awaits(session)) {
            return true;
        }
        let sid = self.sessions.find(session);
        let session = sid.and_then(|sid| self.sessions.get(sid));
        session.is_some_and(|s| s.is_alive() || s.reclaiming)
    }

    pub(super) fn renew_alive(&mut self, now: BootTime, sid: Sid) -> bool {
        let Some(session) = self.sessions.get(sid) else {
            return false;
        };
        let ended = session.expires.is_none_or(|at| at.has_come(now));
        let overdue = session.is_overdue(now) && !planted::is(Bug::RenewOverdue);
        if ended || session.reclaiming || overdue {
            return planted::is(Bug::RenewalTold) && !ended;
        }
        // What was promised in an earlier life, for a longer term, is kept.
        let expires = session
            .expires
            .max(Some(now + session.lease_time(&self.config)));
        self.set_expiry(sid, expires);
        true
    }

    pub(super) fn set_expiry(&mut self, sid: Sid, expires: Option<BootTime>) {
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        let before = std::mem::replace(&mut session.expires, expires);
        if before != expires {
            let timer = |at| (at, Timer::Session(sid));
            before.map(|at| self.timers.remove(&timer(at)));
            expires.map(|at| self.timers.insert(timer(at)));
        }
    }

    pub(super) fn open_session(
        &mut self,
        now: BootTime,
        id: SessionId,
        client: KeyHash,
        drift_ppm: u32,
    ) {
        let (sid, standing) = self.welcome(id, client);
        if let Some(session) = self.sessions.get_mut(sid) {
            session.drift_ppm = session.drift_ppm.max(drift_ppm);
        }
        let renewed = match standing {
            Standing::Resumed => self.renew_alive(now, sid),
            Standing::New | Standing::Expired => {
                self.begin_term(now, sid);
                true
            }
            Standing::Reclaim => {
                self.outlast_grace(now, sid);
                false
            }
        };
        self.actions.push_back(Action::Opened {
            session: id,
            standing,
            renewed,
        });
    }

    fn welcome(&mut self, id: SessionId, client: KeyHash) -> (Sid, Standing) {
        let standing = |session: &Session| match session {
            s if s.reclaiming => Standing::Reclaim,
            s if s.is_alive() => Standing::Resumed,
            _ => Standing::Expired,
        };
        let known = self.sessions.find(id);
        if let Some(sid) = known
            && let Some(session) = self.sessions.get(sid)
        {
            return (sid, standing(session));
        }
        let reclaiming = self.grace.as_ref().is_some_and(|g| g.awaits(id));
        let sid = self.sessions.insert(id, client);
        let epoch = self.locks.next_epoch();
        if let Some(session) = self.sessions.get_mut(sid) {
            session.epoch = epoch;
            session.reclaiming = reclaiming;
        }
        let standing = if reclaiming {
            Standing::Reclaim
        } else {
            Standing::New
        };
        (sid, standing)
    }

    pub(super) fn begin_term(&mut self, now: BootTime, sid: Sid) {
        if let Some(session) = self.sessions.get(sid) {
            let expires = now + session.lease_time(&self.config);
            self.set_expiry(sid, session.expires.max(Some(expires)));
        }
    }

    /// What a session reclaims may be alive by its own clock as long as grace can last.
    fn outlast_grace(&mut self, now: BootTime, sid: Sid) {
        // Who connects again and again gains no time.
        if self.sessions.get(sid).is_some_and(|s| !s.is_overdue(now)) {
            self.begin_term(now, sid);
        }
        let ends = self.grace.as_ref().map(|g| g.ends);
        let expires = self.sessions.get(sid).and_then(|s| s.expires);
        self.set_expiry(sid, expires.max(ends));
    }

    pub(super) fn note_round_trip(&mut self, id: SessionId, rtt: Duration) {
        let sid = self.sessions.find(id);
        if let Some(session) = sid.and_then(|sid| self.sessions.get_mut(sid)) {
            session.rtt = rtt;
        }
    }

    pub(super) fn end_session(&mut self, now: BootTime, id: SessionId) {
        if let Some(sid) = self.sessions.find(id) {
            self.end_leases(now, sid, false);
            self.lose_locks(sid);
            self.sessions.remove(sid);
        }
        self.forget_in_grace(now, id);
    }

    fn expire(&mut self, now: BootTime, sid: Sid) {
        self.end_leases(now, sid, true);
        self.lose_locks(sid);
        if let Some(session) = self.sessions.get_mut(sid) {
            session.reclaiming = false;
            let session = session.id;
            self.actions.push_back(Action::Expired { session });
        }
    }

    /// Ends all leases of a session and closes its recalls.
    pub(super) fn drop_everything(&mut self, sid: Sid) {
        let Some(session) = self.sessions.get(sid) else {
            return;
        };
        let recalls: Vec<RecallId> = session.recalls.keys().copied().collect();
        let leases = self.sessions.take_leases(sid);
        for object in leases.into_values() {
            self.stops_deciding(sid, object, Parts::LOCKS);
            self.table.unhold(object, sid, Parts::ALL);
            if self.table.is_busy(object) {
                self.dirty.insert(object);
            } else {
                self.table.tidy(object);
            }
        }
        for recall in recalls {
            self.close_recall(sid, recall);
        }
    }

    pub(super) fn run_timers(&mut self, now: BootTime) {
        while let Some((at, timer)) = self.timers.first().copied()
            && at.has_come(now)
        {
            self.timers.pop_first();
            match timer {
                Timer::Grace => self.end_grace(now),
                Timer::Session(sid) => self.expire(now, sid),
                Timer::Conduct(client) => self.look_at_conduct(at, client),
                Timer::Fill(op) => drop(self.came.insert(op)),
                Timer::Locks => self.locks.catch_up(),
            }
        }
    }

    /// The operation no longer waits for the recall.
    pub(super) fn stop_waiting(&mut self, op: OpId, sid: Sid, recall: RecallId) {
        if let Some(op) = self.ops.get_mut(&op) {
            op.waits.remove(&(sid, recall));
            if planted::is(Bug::FirstApprovalServes) {
                op.waits.clear();
            }
            // A recall of everything has no object of its own.
            if op.waits.is_empty() {
                self.dirty.extend(op.needs.iter().map(|need| need.object));
            }
        }
    }

    /// Moves the origin of time to `now`: instants that have passed become zero. For model
    /// checkers, whose states must not differ by when they were reached.
    pub fn rebase(&mut self, now: BootTime) {
        self.handle(now, Event::Tick);
        let move_back = |at: &mut BootTime| *at = BootTime::ZERO + at.since(now);
        for session in self.sessions.values_mut() {
            session.expires.iter_mut().for_each(move_back);
            for recall in session.recalls.values_mut() {
                move_back(&mut recall.sent);
                move_back(&mut recall.asked);
                move_back(&mut recall.overdue_at);
                move_back(&mut recall.extended_to);
            }
            let by_time = session.recalls.iter().map(|(id, r)| (r.overdue_at, *id));
            session.overdue = by_time.collect();
        }
        for op in self.ops.values_mut() {
            move_back(&mut op.since);
            move_back(&mut op.patient_until);
            move_back(&mut op.latest);
        }
        self.conduct.values_mut().for_each(|c| c.rebase(now));
        self.bounces.rebase(now);
        self.locks.rebase(move_back);
        self.grace.iter_mut().for_each(|g| move_back(&mut g.ends));
        let timers: BTreeSet<_> = self
            .timers
            .iter()
            .map(|(at, t)| (BootTime::ZERO + at.since(now), *t))
            .collect();
        self.timers = timers;
    }

    /// Whether the operation waits for a holder that takes too long.
    pub(super) fn is_held_up(&self, now: BootTime, op: &super::op::Op) -> bool {
        let overdue = |(sid, recall): &(Sid, RecallId)| {
            let recall = self.sessions.recall(*sid, *recall);
            recall.is_some_and(|r| r.overdue_at.has_come(now))
        };
        let held_up = |(recall, cause): (&(Sid, RecallId), &Cause)| {
            *cause == Cause::Holder && overdue(recall)
        };
        self.grace.is_some() || op.waits.iter().any(held_up)
    }
}
