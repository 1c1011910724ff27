//! A change between its arrival and its answer.

use super::Call;
use super::host::Order;
use super::inputs::Inputs;
use crate::interrupted::ChangeId;
use crate::session::Job;
use leasefs_protocol::Seq;

/// A change on its way.
pub(super) struct Change<'a> {
    pub(super) call: &'a Call,
    pub(super) seq: Seq,
    pub(super) job: &'a Job,
    pub(super) inputs: &'a Inputs,
}

impl Change<'_> {
    pub(super) fn order(&self) -> Order<'_> {
        Order {
            call: self.call,
            request: &self.job.request,
            payload: &self.job.payload,
            inputs: self.inputs,
        }
    }

    pub(super) fn id(&self) -> ChangeId {
        (self.call.session.id, self.seq)
    }
}
