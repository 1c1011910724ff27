//! The session's opens: what is needed to reclaim them, and which the server is still to be told
//! to close.

use crate::run::Map;
use leasefs_protocol::control::ReclaimOpen;
use leasefs_protocol::limits::MAX_BATCH;
use leasefs_protocol::{Handle, OpenId, OpenToken};

/// All opens of the session.
#[derive(Debug, Default)]
pub(super) struct Opens {
    held: Map<OpenId, Held>,
    /// To be closed by the next Close request.
    closing: Vec<OpenId>,
    /// In the Close request under way.
    under_way: usize,
    /// Put into `closing` so far.
    closed: u64,
    /// Closed by an approval that the server has acknowledged with the keep-alive of this number.
    approved: Vec<(u64, OpenId)>,
}

#[derive(Debug)]
struct Held {
    object: Handle,
    token: OpenToken,
}

impl Opens {
    pub(super) fn opened(&mut self, open: OpenId, object: Handle, token: OpenToken) {
        self.held.insert(open, Held { object, token });
    }

    pub(super) fn is_open(&self, open: OpenId) -> bool {
        self.held.contains_key(&open)
    }

    /// What an open is of.
    pub(super) fn object(&self, open: OpenId) -> Option<Handle> {
        self.held.get(&open).map(|held| held.object)
    }

    /// Returns whether it was open.
    pub(super) fn close(&mut self, open: OpenId) -> bool {
        let known = self.held.remove(&open).is_some();
        if known {
            self.queue([open]);
        }
        known
    }

    fn queue(&mut self, opens: impl IntoIterator<Item = OpenId>) {
        let before = self.closing.len();
        self.closing.extend(opens);
        self.closed += (self.closing.len() - before) as u64;
    }

    /// How many opens have been closed so far.
    pub(super) fn closed(&self) -> u64 {
        self.closed
    }

    /// Of how many of these nobody has to tell the server any more.
    pub(super) fn told(&self) -> u64 {
        self.closed - (self.closing.len() + self.under_way) as u64
    }

    /// Closed by an approval; the server knows once it has answered this keep-alive.
    pub(super) fn closed_by_approval(&mut self, opens: &[OpenId], keep_alive: u64) {
        for open in opens {
            if self.held.remove(open).is_some() {
                self.approved.push((keep_alive, *open));
            }
        }
    }

    pub(super) fn acknowledged(&mut self, keep_alive: u64) {
        self.approved.retain(|(number, _)| *number > keep_alive);
    }

    /// What approvals closed and was not acknowledged must be closed again.
    pub(super) fn disconnected(&mut self) {
        let approved = std::mem::take(&mut self.approved);
        self.queue(approved.into_iter().map(|(_, open)| open));
    }

    /// The opens of the next Close request; the one before has ended.
    pub(super) fn take_closing(&mut self) -> Vec<OpenId> {
        self.under_way = self.closing.len().min(MAX_BATCH);
        self.closing.drain(..self.under_way).collect()
    }

    /// Everything is gone. Returns what was open.
    pub(super) fn forget(&mut self) -> Vec<OpenId> {
        self.closing.clear();
        self.approved.clear();
        self.held.drain().map(|(open, _)| open).collect()
    }

    /// Everything that may be reclaimed from a restarted server. What is not, is closed thereby.
    pub(super) fn reclaim(&mut self) -> Vec<ReclaimOpen> {
        self.closing.clear();
        self.held
            .iter()
            .map(|(open, held)| ReclaimOpen {
                open: *open,
                token: held.token.clone(),
            })
            .collect()
    }

    pub(super) fn lost(&mut self, opens: &[OpenId]) {
        opens.iter().for_each(|open| {
            self.held.remove(open);
        });
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}
