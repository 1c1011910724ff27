//! Changes that the server's earlier life may have made: who waits for them, and how long. Around the
//! shipped [`Interrupted`].

use super::{Bug, Server, ServerEv, Work};
use crate::sim::cx::Cx;
use crate::sim::model::Nanos;
use fsserver::interrupted::{ChangeId, Interrupted};
use leasefs_lease::server::{OpId, Touch};
use leasefs_protocol::{Handle, Refusal};
use std::time::Duration;

impl Server {
    /// These are to be repeated; others wait for two terms at most.
    pub(super) fn begin_interrupted(&mut self, cx: &mut Cx, changes: Vec<(ChangeId, Vec<Handle>)>) {
        self.repeats = changes.iter().map(|(change, _)| *change).collect();
        // The time runs here.
        self.interrupted = Interrupted::new(changes, Duration::from_secs(1 << 30));
        let patience = 2 * self.settings.term.as_nanos() as Nanos;
        self.later(cx, patience, ServerEv::Impatient);
    }

    /// Whether a change has to wait for interrupted ones. One that goes past them makes them lost.
    pub(super) fn waits_for_interrupted(
        &mut self,
        cx: &Cx,
        op: OpId,
        own: ChangeId,
        (touches, goes_past): (&[Touch], bool),
    ) -> bool {
        if !self.interrupted.is_before(own, touches) || cx.has(Bug::PassInterrupted) {
            return false;
        }
        if goes_past {
            let lost = self.interrupted.overtake(own, touches);
            self.lose(lost);
            return false;
        }
        self.parked.push(op);
        true
    }

    fn lose(&mut self, changes: Vec<ChangeId>) {
        for change in changes {
            self.durable.note_answer(change, Err(Refusal::Lost));
        }
    }

    /// Who waits looks again.
    pub(super) fn unpark(&mut self, cx: &mut Cx) {
        for op in std::mem::take(&mut self.parked) {
            match self.works.remove(&op) {
                Some(Work::Change(change)) => self.look(cx, op, change, false),
                Some(Work::Read(_)) | None => {}
            }
        }
    }

    /// Sessions that have not come back by the end of grace have lost theirs.
    pub(super) fn give_up_absent(&mut self, cx: &mut Cx) {
        let sessions = &self.sessions;
        let away = |id| sessions.get(&id).is_none_or(|s| s.link.is_none());
        let lost = self.interrupted.give_up(away);
        self.lose(lost);
        self.unpark(cx);
    }

    /// The patience is over.
    pub(super) fn go_past_interrupted(&mut self, cx: &mut Cx) {
        let lost = self.interrupted.give_up(|_| true);
        self.lose(lost);
        self.unpark(cx);
    }
}
