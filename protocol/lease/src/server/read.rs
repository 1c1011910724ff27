//! Reads: admitted at once, or held back.

use super::Core;
use super::api::{Action, OpId, ReadItem, ReadKind};
use super::cover::{self, Cover, Want};
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Arrival, Cause, Kind, Need};
use super::turn::{Outlook, Verdict};
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{Grant, Mode, Parts, SessionId};

impl Core {
    pub(super) fn admit_read(
        &mut self,
        now: BootTime,
        op: OpId,
        session: SessionId,
        kind: ReadKind,
        items: Vec<ReadItem>,
    ) {
        let fills = matches!(kind, ReadKind::FillPages | ReadKind::FillForStore);
        let need = |want: Want| Need {
            object: self.known(&want.handle),
            cover: match fills {
                true => Cover::parts(Parts::DATA),
                false => want.cover,
            },
            // Reads never wait for their own session's leases.
            own_allowed: true,
        };
        let needs = cover::of_read(items).into_iter().map(need).collect();
        self.admit_needs(now, op, session, kind, needs);
    }

    pub(super) fn admit_needs(
        &mut self,
        now: BootTime,
        op: OpId,
        session: SessionId,
        kind: ReadKind,
        needs: Vec<Need>,
    ) {
        self.note_read(session, &needs);
        let fills = matches!(kind, ReadKind::FillPages | ReadKind::FillForStore);
        let objects = needs.iter().map(|need| need.object);
        if fills && self.must_park(session, objects) {
            self.park(now, op, session, kind, needs);
            return;
        }
        // A session without leases is not helped by waiting for one.
        let may_hold = self
            .sessions
            .alive(session)
            .is_some_and(|sid| !self.is_denied(sid));
        let kind = if may_hold { kind } else { ReadKind::Uncached };
        if let Some(verdicts) = self.verdicts_at_once(now, session, kind, &needs) {
            self.admit(now, op, session, &needs, verdicts);
            return;
        }
        let arrival = Arrival::new(op, session, Kind::Read(kind), needs);
        self.arrive(now, arrival);
    }

    /// Unless something has to wait: then the read takes its place in the queues.
    fn verdicts_at_once(
        &self,
        now: BootTime,
        session: SessionId,
        kind: ReadKind,
        needs: &[Need],
    ) -> Option<Vec<Verdict>> {
        let sid = self.sessions.find(session);
        let verdict = |need: &Need| match kind {
            ReadKind::Uncached | ReadKind::Metadata => self.plain_verdict(sid, kind, need),
            ReadKind::FillForStore if self.owes_data(sid, need.object) => Verdict::Answer,
            ReadKind::FillForStore => Verdict::Wait,
            ReadKind::FillPages => {
                let outlook = Outlook::behind_all(self, now, need.object);
                let patient_until = now + self.config.overdue;
                self.fill_verdict(now, sid, patient_until, need.object, &outlook)
            }
        };
        let go_on = |verdict| (verdict != Verdict::Wait).then_some(verdict);
        needs.iter().map(|need| go_on(verdict(need))).collect()
    }

    /// Reads that leave nothing behind without a lease wait only for what is hidden.
    pub(super) fn plain_verdict(&self, sid: Option<Sid>, kind: ReadKind, need: &Need) -> Verdict {
        if !self.hidden_parts(sid, need.object, &need.cover).is_empty() {
            Verdict::Wait
        } else if kind == ReadKind::Metadata {
            Verdict::Lease
        } else {
            Verdict::Answer
        }
    }

    fn owes_data(&self, sid: Option<Sid>, object: ObjId) -> bool {
        sid.is_some_and(|sid| self.owes(sid, object, Parts::DATA))
    }

    /// Page fills also wait for changes, as long as the holders answer promptly.
    pub(super) fn fill_verdict(
        &self,
        now: BootTime,
        sid: Option<Sid>,
        patient_until: BootTime,
        object: ObjId,
        outlook: &Outlook,
    ) -> Verdict {
        if self.owes_data(sid, object) {
            return Verdict::Answer;
        }
        let hidden = self.hidden_parts(sid, object, &Cover::parts(Parts::DATA));
        if !hidden.is_empty() {
            return Verdict::Wait;
        }
        let owes_all = sid.is_some_and(|sid| self.owes_everything(sid));
        let full = sid.is_some_and(|sid| self.is_full(sid, object));
        let alive = sid.and_then(|sid| self.sessions.get(sid));
        let alive = alive.is_some_and(|session| session.is_alive());
        if owes_all || full || !alive {
            return Verdict::Answer;
        }
        if self.shutdown {
            return Verdict::Wait;
        }
        outlook.for_fill(now, patient_until)
    }

    /// Admits a read with what its verdicts allow.
    pub(super) fn admit(
        &mut self,
        now: BootTime,
        op: OpId,
        session: SessionId,
        needs: &[Need],
        verdicts: Vec<Verdict>,
    ) {
        let mut grants: Vec<Grant> = Vec::new();
        let mut born: Vec<(ObjId, Grant, Cause)> = Vec::new();
        let sid = self.sessions.alive(session);
        for (need, verdict) in needs.iter().zip(verdicts) {
            let granted = sid.and_then(|sid| self.grant_by(now, sid, need, verdict));
            let Some(grant) = granted else { continue };
            grants.push(grant);
            if let Verdict::Fill(cause) = verdict {
                born.push((need.object, grant, cause));
            }
        }
        self.actions.push_back(Action::Admitted { op, grants });
        let Some(sid) = sid else {
            return;
        };
        born.retain(|_| !planted::is(Bug::BornUnrecalled));
        for (object, grant, cause) in born {
            self.recall_for_waiting(now, sid, object, grant, cause);
        }
        self.shed(now, sid);
    }

    fn grant_by(
        &mut self,
        now: BootTime,
        sid: Sid,
        need: &Need,
        verdict: Verdict,
    ) -> Option<Grant> {
        let (object, cover) = (need.object, &need.cover);
        match verdict {
            Verdict::Wait | Verdict::Answer => None,
            Verdict::Lease => self.grant_read(now, sid, object, cover),
            Verdict::Fill(_) => self.grant(now, sid, object, cover, cover.leased(), Mode::Read),
        }
    }

    /// Admits a read that has waited: its queues forget it.
    pub(super) fn admit_waiting(&mut self, now: BootTime, id: OpId, verdicts: Vec<Verdict>) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        if !self.parks_now(now, id, &op) {
            self.admit(now, id, op.session, &op.needs, verdicts);
        }
    }

    /// Admits an exclusive fill whose turn has come.
    pub(super) fn admit_store(&mut self, now: BootTime, id: OpId) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        if self.parks_now(now, id, &op) {
            return;
        }
        let Some(sid) = self.sessions.alive(op.session) else {
            self.actions.push_back(Action::Admitted {
                op: id,
                grants: Vec::new(),
            });
            return;
        };
        let grant = |need: &Need| {
            if self.is_full(sid, need.object) {
                return None;
            }
            let grant = self.grant(now, sid, need.object, &need.cover, Parts::DATA, Mode::Write)?;
            Some((need.object, grant))
        };
        let granted: Vec<(ObjId, Grant)> = op.needs.iter().filter_map(grant).collect();
        let grants = granted.iter().map(|(_, grant)| *grant).collect();
        self.actions.push_back(Action::Admitted { op: id, grants });
        for (object, grant) in granted {
            self.recall_for_waiting(now, sid, object, grant, Cause::Holder);
        }
        self.shed(now, sid);
    }
}
