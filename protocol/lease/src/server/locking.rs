//! Locks: asked for, decided when nobody else decides them, and given to who waits.

use super::Core;
use super::api::{Action, LockAnswer, LockAsk, OpId};
use super::cover::Cover;
use super::ids::{ObjId, Sid};
use super::locks::{Effort, Owner, Taken, shown};
use super::op::{Arrival, Kind, Need, Op};
use super::timer::Timer;
use crate::locks::LockWanted;
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::latency::millis;
use leasefs_protocol::limits::FENCES_DELEGATED;
use leasefs_protocol::lock::{
    Delegation, FileLocks, LockGranted, LockHolder, LockOutcome, Locked, Unlocked,
};
use leasefs_protocol::{
    Handle, HeldLock, LockEpoch, LockOwner, LockWait, Mode, Parts, SessionId, Stamp,
};
use std::time::Duration;

impl Core {
    pub(super) fn ask_lock(
        &mut self,
        now: BootTime,
        (op, session): (OpId, SessionId),
        object: Handle,
        ask: LockAsk,
    ) {
        if !self.waits_for_decider(session, &object, &ask) {
            return self.decide(now, (op, session), object, ask);
        }
        let need = Need {
            object: self.known(&object),
            cover: Cover::parts(Parts::LOCKS),
            own_allowed: false,
        };
        let arrival = Arrival {
            asks: Some(Box::new(ask)),
            ..Arrival::new(op, session, Kind::Lock, vec![need])
        };
        self.arrive(now, arrival);
    }

    /// Where another session decides the file's locks this one has none, and doesn't wait for any.
    fn waits_for_decider(&self, session: SessionId, object: &Handle, ask: &LockAsk) -> bool {
        match ask {
            LockAsk::Take(..) | LockAsk::Test(_) => true,
            LockAsk::GiveUp(..) => self.locks.decides(session, object),
            LockAsk::Cancel(_) | LockAsk::Reset => false,
        }
    }

    /// Its turn has come.
    pub(super) fn run_lock(&mut self, now: BootTime, id: OpId) {
        let op = self.ops.get(&id);
        let object = op.and_then(|op| op.needs.first()).map(|need| need.object);
        let handle = object.and_then(|o| self.table.get(o)).map(|o| o.handle);
        let op = self.remove_op(id);
        if let (Some(handle), Some(op)) = (handle, op)
            && let Some(ask) = op.asks
        {
            self.decide(now, (id, op.session), handle, *ask);
        }
    }

    fn decide(
        &mut self,
        now: BootTime,
        (op, session): (OpId, SessionId),
        object: Handle,
        ask: LockAsk,
    ) {
        let sid = self.sessions.alive(session);
        let answer = match sid {
            Some(sid) => self.decide_for(now, (sid, session), object, ask),
            None => LockAnswer::Ended,
        };
        self.actions.push_back(Action::Locked { op, answer });
        // Stamped behind the answer.
        sid.into_iter().for_each(|sid| self.shed(now, sid));
    }

    fn decide_for(
        &mut self,
        now: BootTime,
        (sid, session): (Sid, SessionId),
        object: Handle,
        ask: LockAsk,
    ) -> LockAnswer {
        let gives_up = match ask {
            LockAsk::Take(lock, wait) => {
                return self.take_lock(now, (sid, session), object, (lock, wait));
            }
            LockAsk::Test(lock) => return self.test_lock((sid, session), &object, lock),
            LockAsk::GiveUp(owner, kind, range) => {
                self.locks.give_up(object, (session, owner), kind, range)
            }
            LockAsk::Cancel(wait) => Some(self.locks.stops_waiting(object, session, Some(wait))),
            LockAsk::Reset => {
                self.reset_locks(sid, session);
                Some(true)
            }
        };
        let Some(any) = gives_up else {
            return LockAnswer::TooMany;
        };
        let (stamp, epoch) = self.stamped(sid);
        LockAnswer::Unlocked(Unlocked { stamp, epoch, any })
    }

    fn take_lock(
        &mut self,
        now: BootTime,
        (sid, session): (Sid, SessionId),
        object: Handle,
        (lock, wait): (LockWanted<LockOwner>, Option<LockWait>),
    ) -> LockAnswer {
        let taken = self.locks.take(now, object, of(session, lock), wait);
        let (stamp, epoch) = self.stamped(sid);
        let outcome = match taken {
            Taken::Held(fence) => {
                let delegated = self.delegate(now, (sid, session), object);
                let (delegation, held) = delegated.unzip();
                LockOutcome::Granted {
                    fence,
                    delegation,
                    held: held.unwrap_or_default(),
                }
            }
            Taken::Waits => LockOutcome::Waits,
            Taken::Conflicts => LockOutcome::Conflicts,
            Taken::Deadlock => LockOutcome::Deadlock,
            Taken::TooMany => return LockAnswer::TooMany,
        };
        let holder = (outcome == LockOutcome::Waits)
            .then(|| self.lock_holder(now, &object, &of(session, lock)))
            .flatten();
        LockAnswer::Locked(Locked {
            stamp,
            epoch,
            outcome,
            holder,
        })
    }

    /// Who holds a lock up that waits. Where he is mounted others know.
    fn lock_holder(
        &self,
        now: BootTime,
        object: &Handle,
        lock: &LockWanted<Owner>,
    ) -> Option<LockHolder> {
        let (session, pid) = self.locks.holds_up(object, lock)?;
        let expires = self
            .sessions
            .find(session)
            .and_then(|sid| self.sessions.get(sid)?.expires);
        let ends = expires.map_or(Duration::ZERO, |at| at.left_at(now));
        Some(LockHolder {
            session,
            pid,
            mount: String::new(),
            ends_ms: millis(ends),
        })
    }

    /// The right to decide the file's locks, if nobody else has any and nobody wants one.
    fn delegate(
        &mut self,
        now: BootTime,
        (sid, session): (Sid, SessionId),
        handle: Handle,
    ) -> Option<(Delegation, Vec<HeldLock>)> {
        if !self.locks.is_alone(session, &handle) {
            return None;
        }
        let object = self.known(&handle);
        let cover = Cover::parts(Parts::LOCKS);
        if self.grantable(sid, object, &cover) != Parts::LOCKS {
            return None;
        }
        let first = self.locks.fences(FENCES_DELEGATED)?;
        let grant = self.grant(now, sid, object, &cover, Parts::LOCKS, Mode::Write)?;
        Some(self.locks.delegate(session, handle, grant.stamp, first))
    }

    fn test_lock(
        &mut self,
        (sid, session): (Sid, SessionId),
        object: &Handle,
        lock: LockWanted<LockOwner>,
    ) -> LockAnswer {
        let found = self.locks.found(object, &of(session, lock));
        let client = |sid: Option<Sid>| Some(self.sessions.get(sid?)?.client);
        let found = found.map(|held| {
            let theirs = self.sessions.find(held.owner.0);
            shown(&held, client(theirs) == client(Some(sid)))
        });
        LockAnswer::Found(found)
    }

    fn reset_locks(&mut self, sid: Sid, session: SessionId) {
        for handle in self.locks.decided_by(session) {
            if let Some(object) = self.table.find(&handle) {
                let free = Parts::LOCKS - self.owed(sid, object);
                self.unhold(sid, object, free);
            }
        }
        self.lose_locks(sid);
    }

    /// The session's locks are gone; what was sent under them is refused from now on.
    pub(super) fn lose_locks(&mut self, sid: Sid) {
        let epoch = self.locks.next_epoch();
        if let Some(session) = self.sessions.get_mut(sid) {
            session.epoch = epoch;
            self.locks.end_session(session.id);
        }
    }

    fn stamped(&mut self, sid: Sid) -> (Stamp, LockEpoch) {
        let session = self.sessions.get_mut(sid);
        session.map_or_else(Default::default, |s| (s.next_stamp(), s.epoch))
    }

    pub(super) fn hold_locks(&mut self, now: BootTime, session: SessionId, files: Vec<FileLocks>) {
        let Some(sid) = self.sessions.alive(session) else {
            return;
        };
        for file in files {
            // Others would be given what it holds: it holds nothing from now on, and what it writes under that is refused.
            if !self.locks.declare(now, session, file) {
                return self.lose_locks(sid);
            }
        }
    }

    /// Takes over locks that were held in the server's earlier life. Those that can't be are returned. May cause actions, as
    /// [`Core::handle`] does.
    pub fn reclaim_locks(
        &mut self,
        now: BootTime,
        session: SessionId,
        epoch: LockEpoch,
        files: Vec<FileLocks>,
    ) -> Vec<Handle> {
        self.run_timers(now);
        let reclaims = self.grace.is_some() && !self.shutdown;
        let sid = self.sessions.alive(session).filter(|_| reclaims);
        let reclaiming = sid.and_then(|sid| self.sessions.get_mut(sid));
        let reclaiming = reclaiming.filter(|session| session.reclaiming);
        let may = reclaiming.is_some();
        if let Some(session) = reclaiming {
            session.epoch = epoch;
        }
        let lost = files.into_iter().filter_map(|file| {
            let object = file.object;
            let stands = may && self.locks.restore(now, session, file);
            if !stands {
                // It may have been taken over before, and the answer not have come: its client knows of none now.
                self.locks.has_lost(now, session, object);
            }
            (!stands).then_some(object)
        });
        let lost = lost.collect();
        self.settle(now);
        lost
    }

    /// Gives those who wait for locks of a file theirs. What is too much for one event goes on at the next.
    pub(super) fn grant_locks(&mut self, now: BootTime, handle: &Handle, effort: &mut Effort) {
        if self
            .table
            .find(handle)
            .is_some_and(|o| self.has_late_change(o))
        {
            return;
        }
        loop {
            if effort.is_spent() {
                self.locks.put_off(*handle);
                self.timers.insert((now, Timer::Locks));
                return;
            }
            let Some((id, wait, fence)) = self.locks.grant_next(now, handle, effort) else {
                return;
            };
            let sid = self.sessions.find(id);
            let (stamp, epoch) = sid.map_or_else(Default::default, |sid| self.stamped(sid));
            let granted = LockGranted {
                wait,
                stamp,
                epoch,
                fence,
            };
            self.actions.push_back(Action::LockGranted {
                session: id,
                granted,
            });
        }
    }

    /// Whether the locks under which a change was made are lost.
    pub(super) fn is_late(&self, op: &Op) -> bool {
        let sid = self.sessions.find(op.session);
        let now = sid.and_then(|sid| self.sessions.get(sid)).map(|s| s.epoch);
        op.locked.is_some() && op.locked != now && !planted::is(Bug::LateUnderLock)
    }

    /// Whether a change runs that was made under locks that have been lost since it was begun: nobody else gets them
    /// before it is done.
    pub(super) fn has_late_change(&self, object: ObjId) -> bool {
        let running = self.table.get(object).into_iter().flat_map(|o| o.running());
        let mut running = running.filter_map(|id| self.ops.get(&id));
        running.any(|op| self.is_late(op))
    }

    /// Whether what is asked for has to wait for such a change.
    pub(super) fn is_held_by_late(&self, op: &Op) -> bool {
        let lock = op.kind == Kind::Lock;
        lock && op
            .needs
            .iter()
            .any(|need| self.has_late_change(need.object))
    }

    /// The operation is at the object no longer.
    pub(super) fn is_out_of_the_way(&mut self, op: &Op, object: ObjId) {
        if op.locked.is_some()
            && let Some(object) = self.table.get(object)
        {
            self.locks.changed.insert(object.handle);
        }
    }

    /// The session holds these parts of the object no longer.
    pub(super) fn stops_deciding(&mut self, sid: Sid, object: ObjId, parts: Parts) {
        if parts.contains(Parts::LOCKS)
            && let (Some(session), Some(object)) = (self.sessions.get(sid), self.table.get(object))
        {
            self.locks.decides_no_longer(session.id, object.handle);
        }
    }
}

fn of(session: SessionId, lock: LockWanted<LockOwner>) -> LockWanted<Owner> {
    lock.of((session, lock.owner))
}
