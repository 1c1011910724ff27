//! Conduct: what a client has cost others lately, and how long it gets no leases for it.

use super::api::{Config, OpId};
use super::session::OpenRecall;
use crate::time::BootTime;
use leasefs_protocol::limits::RECALL_PATIENCE_MAX;
use std::collections::BTreeSet;
use std::time::Duration;

/// Of the time that passes, one part in so many may be spent keeping others waiting: a machine that
/// is slow now and then is not an attack.
const LEAK: u32 = 10;

/// What a client has cost others lately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Conduct {
    /// For how long it has kept others waiting with approvals that came late. It leaks away.
    spent: Duration,
    /// As of when. What came before is in it.
    as_of: BootTime,
    /// How often it was denied leases.
    times: u32,
    /// It gets no leases until then.
    pub(super) denied_until: Option<BootTime>,
    /// Nothing is held against it from then on.
    forgotten_at: BootTime,
    /// Fills that wait for the end of that.
    pub(super) parked: BTreeSet<OpId>,
}

impl Conduct {
    pub(super) fn begins(now: BootTime) -> Self {
        Self {
            spent: Duration::ZERO,
            as_of: BootTime::ZERO,
            times: 0,
            denied_until: None,
            forgotten_at: now,
            parked: BTreeSet::new(),
        }
    }

    pub(super) fn next_timer(&self) -> BootTime {
        self.denied_until.unwrap_or(self.forgotten_at)
    }

    /// It has kept others waiting from `late_since` until `now`.
    pub(super) fn charge(&mut self, now: BootTime, late_since: BootTime, config: &Config) {
        let leaked = now.since(self.as_of) / LEAK;
        let late = now.since(late_since.max(self.as_of));
        self.spent = self.spent.saturating_sub(leaked) + late;
        self.as_of = now;
        self.forgotten_at = now + config.max_probation;
        if self.spent >= config.term / 2 {
            self.deny(now, config);
        }
    }

    pub(super) fn deny(&mut self, now: BootTime, config: &Config) {
        // What its sessions do at one time is one offence.
        if self.denied_until.is_none() {
            self.times = self.times.saturating_add(1).min(32);
        }
        let factor = 1_u32.checked_shl(self.times - 1).unwrap_or(u32::MAX);
        let probation = config.probation.saturating_mul(factor);
        let until = now + probation.min(config.max_probation);
        self.spent = Duration::ZERO;
        self.denied_until = self.denied_until.max(Some(until));
        self.forgotten_at = until + config.max_probation;
    }

    pub(super) fn rebase(&mut self, now: BootTime) {
        let move_back = |at: &mut BootTime| *at = BootTime::ZERO + at.since(now);
        self.spent = self.spent.saturating_sub(now.since(self.as_of) / LEAK);
        self.as_of = BootTime::ZERO;
        self.denied_until.iter_mut().for_each(move_back);
        move_back(&mut self.forgotten_at);
    }
}

/// From when on a recall keeps others waiting for too long; `None` if nobody waits. A flush may take a
/// further term.
pub(super) fn late_since(open: &OpenRecall) -> Option<BootTime> {
    let in_time = open.sent + RECALL_PATIENCE_MAX;
    let due = open.overdue_at.min(open.extended_to);
    open.awaited.then(|| due.max(in_time))
}
