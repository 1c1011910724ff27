//! Reclaiming: what of the server's earlier life is taken over in grace, and what is hidden until then.

use super::Core;
use super::api::{Action, ReclaimRefusal, Reclaimed};
use super::cover::Cover;
use super::ids::{ObjId, Sid};
use super::op::Cause;
use super::timer::Timer;
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{Mode, Parts, SessionId};

impl Core {
    /// When grace ends at the latest; `None` if there is none (any more).
    pub fn grace_until(&self) -> Option<BootTime> {
        self.grace.as_ref().map(|g| g.ends)
    }

    /// Takes over a lease granted in the server's earlier life. May cause actions, as
    /// [`Core::handle`] does.
    ///
    /// # Errors
    /// If it may not stand; the client must drop what it cached under it.
    pub fn reclaim(
        &mut self,
        now: BootTime,
        session: SessionId,
        lease: Reclaimed,
    ) -> Result<(), ReclaimRefusal> {
        self.run_timers(now);
        let result = self.reclaim_one(now, session, lease);
        self.settle(now);
        result
    }

    fn reclaim_one(
        &mut self,
        now: BootTime,
        session: SessionId,
        lease: Reclaimed,
    ) -> Result<(), ReclaimRefusal> {
        let Reclaimed {
            object: handle,
            parts,
            mode,
        } = lease;
        let object = self.known(&handle);
        let sid = self.may_reclaim(session, object, &lease)?;
        if parts.is_empty() {
            return Ok(());
        }
        if let Some(grace) = &mut self.grace
            && mode == Mode::Write
        {
            grace.forget_writer(session, &handle);
            // Reads that waited for the logged lease now wait for its recall.
            self.dirty.insert(object);
        }
        if let Some(grant) = self.grant(now, sid, object, &Cover::parts(parts), parts, mode) {
            self.recall_for_waiting(now, sid, object, grant, Cause::Holder);
        }
        self.shed(now, sid);
        Ok(())
    }

    fn may_reclaim(
        &self,
        session: SessionId,
        object: ObjId,
        lease: &Reclaimed,
    ) -> Result<Sid, ReclaimRefusal> {
        let sid = self.sessions.alive(session);
        let reclaims = |sid: &Sid| self.sessions.get(*sid).is_some_and(|s| s.reclaiming);
        let (Some(grace), Some(sid)) = (&self.grace, sid.filter(reclaims)) else {
            return Err(ReclaimRefusal::NotReclaiming);
        };
        if self.shutdown {
            return Err(ReclaimRefusal::NotReclaiming);
        }
        match lease.mode {
            // What is asked back as a whole is given back with the approval.
            _ if self.owes_everything(sid) => return Err(ReclaimRefusal::Denied),
            // A Write lease is on record, and bytes may wait behind it.
            Mode::Read if self.is_denied(sid) => return Err(ReclaimRefusal::Denied),
            Mode::Read if self.is_full(sid, object) => return Err(ReclaimRefusal::Denied),
            Mode::Read if grace.host_crashed => return Err(ReclaimRefusal::HostCrashed),
            Mode::Write if !grace.is_logged(session, &lease.object) => {
                return Err(ReclaimRefusal::NotLogged);
            }
            Mode::Read | Mode::Write => {}
        }
        if self.conflicts_with_other(sid, object, lease) {
            return Err(ReclaimRefusal::Conflict);
        }
        Ok(sid)
    }

    fn conflicts_with_other(&self, sid: Sid, object: ObjId, lease: &Reclaimed) -> bool {
        let Some(object) = self.table.get(object) else {
            return false;
        };
        let others = object.holders.iter().filter(|h| h.session != sid);
        let theirs = match lease.mode {
            Mode::Read => object.written_by_others(Some(sid)),
            Mode::Write => others.fold(Parts::NONE, |all, h| all | h.parts),
        };
        theirs.intersects(lease.parts)
    }

    pub(super) fn reclaim_done(&mut self, now: BootTime, id: SessionId) {
        let Some(sid) = self.sessions.alive(id) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(sid).filter(|s| s.reclaiming) else {
            return;
        };
        session.reclaiming = false;
        self.renew_alive(now, sid);
        self.forget_in_grace(now, id);
    }

    /// Nothing of the session's earlier leases is left to be reclaimed.
    pub(super) fn forget_in_grace(&mut self, now: BootTime, session: SessionId) {
        let Some(grace) = &mut self.grace else {
            return;
        };
        let shown = grace.forget(session);
        if grace.missing() == 0 || planted::is(Bug::GraceEndsAtFirst) {
            self.end_grace(now);
        } else {
            let waited_for = shown.iter().filter_map(|object| self.table.find(object));
            self.dirty.extend(waited_for);
        }
    }

    pub(super) fn end_grace(&mut self, now: BootTime) {
        let Some(grace) = self.grace.take() else {
            return;
        };
        self.timers.remove(&(grace.ends, Timer::Grace));
        for session in self.sessions.values_mut() {
            session.reclaiming = false;
        }
        self.bear_no_longer(now);
        self.actions.push_back(Action::GraceEnded);
        self.touch_all_waiting();
    }

    fn touch_all_waiting(&mut self) {
        let objects = self
            .ops
            .values()
            .flat_map(|op| op.needs.iter().map(|n| n.object));
        self.dirty.extend(objects);
    }

    /// Parts of `cover` that someone else may have changed without the store knowing.
    pub(super) fn hidden_parts(&self, reader: Option<Sid>, object: ObjId, cover: &Cover) -> Parts {
        let Some(object) = self.table.get(object) else {
            return Parts::NONE;
        };
        let hidden = match planted::is(Bug::ReadUnderWrite) {
            true => Parts::NONE,
            false => object.written_by_others(reader),
        };
        let by_grace = self.grace.as_ref().is_some_and(|g| {
            let id = reader.and_then(|sid| self.sessions.get(sid)).map(|s| s.id);
            g.hides_data(id, &object.handle)
        });
        let logged = match by_grace {
            true => Parts::ATTRS | Parts::DATA,
            false => Parts::NONE,
        };
        (hidden | logged) & cover.leased()
    }
}
