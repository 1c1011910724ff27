//! The gate of one file's pages, and who waits there.

use super::drops::Outcome;
use crate::run::Map;
use futures_channel::oneshot;
use leasefs_lease::client::{DropId, PageGate, ReadId};
use leasefs_protocol::Handle;

/// A page gate and who waits at it.
#[derive(Debug, Default)]
pub(super) struct Gate {
    pub pages: PageGate,
    pub parked: Map<ReadId, oneshot::Sender<()>>,
    /// Wait until the file is clean.
    pub clean: Vec<oneshot::Sender<()>>,
    /// A pass is asked for, and will look for what to drop next.
    pub passing: bool,
}

impl Gate {
    /// Whether pages without a lease are still to be dropped.
    pub fn is_unclean(&self) -> bool {
        self.pages.is_unclean()
    }

    /// Takes up what a change has brought about. Returns the drops that are done here.
    pub fn settle(&mut self, me: Handle, out: &mut Outcome) -> Vec<DropId> {
        while let Some(read) = self.pages.poll_released() {
            out.wake.extend(self.parked.remove(&read));
        }
        let clear = std::iter::from_fn(|| self.pages.poll_clear()).collect();
        if !self.is_unclean() {
            out.wake.append(&mut self.clean);
        }
        if !self.passing && self.pages.has_work() {
            self.passing = true;
            out.passes.push(me);
        }
        clear
    }

    /// Whether nothing must be known of the file's pages any more.
    pub fn is_idle(&self) -> bool {
        let idle = self.pages.is_idle() && !self.passing;
        let waits = !self.parked.is_empty() || !self.clean.is_empty();
        assert!(!(idle && waits), "somebody waits at an idle gate");
        idle
    }
}
