//! Reads: admitted at once, or held back.

use super::Core;
use super::api::{Action, OpId, ReadItem, ReadKind};
use super::cover::{self, Cover, Want};
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Arrival, Cause, Kind, Op};
use super::turn::{Outlook, Verdict};
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{Grant, Handle, Mode, Parts, SessionId};

impl Core {
    pub(super) fn admit_read(
        &mut self,
        now: BootTime,
        op: OpId,
        session: SessionId,
        kind: ReadKind,
        items: Vec<ReadItem>,
    ) {
        let mut wants = cover::of_read(items);
        if matches!(kind, ReadKind::FillPages | ReadKind::FillForStore) {
            let data = |want: &mut Want| want.cover = Cover::parts(Parts::DATA);
            wants.iter_mut().for_each(data);
        }
        self.admit_wants(now, op, session, kind, wants);
    }

    pub(super) fn admit_wants(
        &mut self,
        now: BootTime,
        op: OpId,
        session: SessionId,
        kind: ReadKind,
        wants: Vec<Want>,
    ) {
        let fills = matches!(kind, ReadKind::FillPages | ReadKind::FillForStore);
        let known = wants
            .iter()
            .filter_map(|want| self.table.find(&want.handle));
        if fills && self.must_park(session, known) {
            self.park(now, op, session, kind, wants);
            return;
        }
        // A session without leases is not helped by waiting for one.
        let may_hold = self
            .sessions
            .alive(session)
            .is_some_and(|sid| !self.is_denied(sid));
        let kind = if may_hold { kind } else { ReadKind::Uncached };
        if let Some(verdicts) = self.verdicts_at_once(now, session, kind, &wants) {
            let wants = wants.into_iter().map(|want| (want.handle, want.cover));
            self.admit(now, op, session, wants.zip(verdicts).collect());
            return;
        }
        let arrival = Arrival {
            op,
            session,
            kind: Kind::Read(kind),
            wants,
            dropped: Vec::new(),
        };
        self.arrive(now, arrival);
    }

    /// Unless something has to wait: then the read takes its place in the queues.
    fn verdicts_at_once(
        &self,
        now: BootTime,
        session: SessionId,
        kind: ReadKind,
        wants: &[Want],
    ) -> Option<Vec<Verdict>> {
        let verdict = |want: &Want| match kind {
            ReadKind::Uncached | ReadKind::Metadata => self.plain_verdict(session, kind, want),
            ReadKind::FillForStore if self.owes_data(session, &want.handle) => Verdict::Answer,
            ReadKind::FillForStore => Verdict::Wait,
            ReadKind::FillPages => {
                let object = self.table.find(&want.handle);
                let outlook = object.map(|o| Outlook::behind_all(self, now, o));
                let patient_until = now + self.config.overdue;
                let outlook = outlook.unwrap_or_default();
                self.fill_verdict(now, session, patient_until, &want.handle, &outlook)
            }
        };
        let go_on = |verdict| (verdict != Verdict::Wait).then_some(verdict);
        wants.iter().map(|want| go_on(verdict(want))).collect()
    }

    /// Reads that leave nothing behind without a lease wait only for what is hidden.
    pub(super) fn plain_verdict(&self, session: SessionId, kind: ReadKind, want: &Want) -> Verdict {
        let sid = self.sessions.find(session);
        if !self.hidden_parts(sid, &want.handle, &want.cover).is_empty() {
            Verdict::Wait
        } else if kind == ReadKind::Metadata {
            Verdict::Lease
        } else {
            Verdict::Answer
        }
    }

    fn owes_data(&self, session: SessionId, handle: &Handle) -> bool {
        let known = self.sessions.find(session).zip(self.table.find(handle));
        known.is_some_and(|(sid, object)| self.owes(sid, object, Parts::DATA))
    }

    /// Page fills also wait for changes, as long as the holders answer promptly.
    pub(super) fn fill_verdict(
        &self,
        now: BootTime,
        session: SessionId,
        patient_until: BootTime,
        handle: &Handle,
        outlook: &Outlook,
    ) -> Verdict {
        if self.owes_data(session, handle) {
            return Verdict::Answer;
        }
        let sid = self.sessions.find(session);
        let hidden = self.hidden_parts(sid, handle, &Cover::parts(Parts::DATA));
        if !hidden.is_empty() {
            return Verdict::Wait;
        }
        let owes_all = sid.is_some_and(|sid| self.owes_everything(sid));
        let known = self.table.find(handle);
        let full = sid.is_some_and(|sid| self.is_full(sid, known));
        if owes_all || full || self.sessions.alive(session).is_none() {
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
        wants: Vec<((Handle, Cover), Verdict)>,
    ) {
        let mut granted: Vec<(ObjId, Grant, Option<Cause>)> = Vec::new();
        let sid = self.sessions.alive(session);
        for ((handle, cover), verdict) in wants {
            granted.extend(sid.and_then(|sid| self.grant_by(sid, &handle, &cover, verdict)));
        }
        let grants = granted.iter().map(|(_, grant, _)| *grant).collect();
        self.actions.push_back(Action::Admitted { op, grants });
        let Some(sid) = sid else {
            return;
        };
        for (object, grant, cause) in granted {
            if let Some(cause) = cause.filter(|_| !planted::is(Bug::BornUnrecalled)) {
                self.recall_for_waiting(now, sid, object, grant, cause);
            }
        }
        self.shed(now, sid);
    }

    fn grant_by(
        &mut self,
        sid: Sid,
        handle: &Handle,
        cover: &Cover,
        verdict: Verdict,
    ) -> Option<(ObjId, Grant, Option<Cause>)> {
        match verdict {
            Verdict::Wait | Verdict::Answer => None,
            Verdict::Lease => {
                let grant = self.grant_read(sid, handle, cover)?;
                Some((self.table.find(handle)?, grant, None))
            }
            Verdict::Fill(cause) => {
                let object = self.table.find_or_insert(handle);
                let grant = self.grant(sid, object, cover, cover.leased(), Mode::Read)?;
                Some((object, grant, Some(cause)))
            }
        }
    }

    /// Admits a read that has waited: its queues forget it.
    pub(super) fn admit_waiting(&mut self, now: BootTime, id: OpId, verdicts: Vec<Verdict>) {
        let Some(op) = self.remove_op(id) else {
            return;
        };
        if self.parks_now(now, id, &op) {
            return;
        }
        let covers: Vec<_> = self.handles(&op);
        self.admit(
            now,
            id,
            op.session,
            covers.into_iter().zip(verdicts).collect(),
        );
    }

    pub(super) fn handles(&self, op: &Op) -> Vec<(Handle, Cover)> {
        let covers = op.needs.iter().filter_map(|need| {
            let object = self.table.get(need.object)?;
            Some((object.handle, need.cover.clone()))
        });
        covers.collect()
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
        let grant = |need: &super::op::Need| {
            if self.is_full(sid, Some(need.object)) {
                return None;
            }
            let grant = self.grant(sid, need.object, &need.cover, Parts::DATA, Mode::Write)?;
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
