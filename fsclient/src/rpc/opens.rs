//! The session's opens: what is needed to reclaim them, and which the server is still to be told
//! to close.

use leasefs_protocol::control::ReclaimOpen;
use leasefs_protocol::limits::MAX_BATCH;
use leasefs_protocol::{OpenId, OpenToken};
use std::collections::HashMap;

/// All opens of the session.
#[derive(Debug, Default)]
pub(super) struct Opens {
    tokens: HashMap<OpenId, OpenToken>,
    /// To be closed by the next Close request.
    closing: Vec<OpenId>,
    /// Closed by an approval that the server has acknowledged with the keep-alive of this number.
    approved: Vec<(u64, OpenId)>,
}

impl Opens {
    pub(super) fn opened(&mut self, open: OpenId, token: OpenToken) {
        self.tokens.insert(open, token);
    }

    /// Returns whether it was open.
    pub(super) fn close(&mut self, open: OpenId) -> bool {
        let known = self.tokens.remove(&open).is_some();
        if known {
            self.closing.push(open);
        }
        known
    }

    /// Closed by an approval; the server knows once it has answered this keep-alive.
    pub(super) fn closed_by_approval(&mut self, opens: &[OpenId], keep_alive: u64) {
        for open in opens {
            if self.tokens.remove(open).is_some() {
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
        self.closing
            .extend(approved.into_iter().map(|(_, open)| open));
    }

    /// The opens of the next Close request.
    pub(super) fn take_closing(&mut self) -> Vec<OpenId> {
        let count = self.closing.len().min(MAX_BATCH);
        self.closing.drain(..count).collect()
    }

    /// Everything is gone. Returns what was open.
    pub(super) fn forget(&mut self) -> Vec<OpenId> {
        self.closing.clear();
        self.approved.clear();
        self.tokens.drain().map(|(open, _)| open).collect()
    }

    /// Everything that may be reclaimed from a restarted server. What is not, is closed thereby.
    pub(super) fn reclaim(&mut self) -> Vec<ReclaimOpen> {
        self.closing.clear();
        self.tokens
            .iter()
            .map(|(open, token)| ReclaimOpen {
                open: *open,
                token: token.clone(),
            })
            .collect()
    }

    pub(super) fn lost(&mut self, opens: &[OpenId]) {
        opens.iter().for_each(|open| {
            self.tokens.remove(open);
        });
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }
}
