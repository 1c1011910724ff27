//! Grace: the time after a restart in which leases of the earlier life may still be alive.

use super::api::{Grace, LoggedWrites};
use crate::planted::{self, Bug};
use crate::time::{BootTime, lengthened};
use leasefs_protocol::{Handle, SessionId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GraceState {
    /// Every lease of the earlier life has ended by then.
    pub(super) ends: BootTime,
    /// Sessions on record that have not finished reclaiming. Never empty.
    missing: BTreeSet<SessionId>,
    /// Whose Write leases may hide newer data of an object.
    writers: BTreeMap<Handle, BTreeSet<SessionId>>,
    /// The host crashed: newer data of anything may be hidden.
    pub(super) host_crashed: bool,
}

impl GraceState {
    pub(super) fn begin(known: Grace, now: BootTime) -> Option<Self> {
        let missing: BTreeSet<SessionId> = known.sessions.into_iter().collect();
        if missing.is_empty() || planted::is(Bug::NoGrace) {
            return None;
        }
        let mut writers = BTreeMap::<Handle, BTreeSet<SessionId>>::new();
        let trusts = planted::is(Bug::TrustAfterHostCrash);
        let host_crashed = known.writes == LoggedWrites::Unknown && !trusts;
        if let LoggedWrites::Trusted(logged) = known.writes {
            for (session, object) in logged {
                writers.entry(object).or_default().insert(session);
            }
        }
        Some(Self {
            ends: now + lengthened(known.max_term, known.drift_ppm),
            missing,
            writers,
            host_crashed,
        })
    }

    /// Whether the session is on record and has not finished reclaiming.
    pub(super) fn awaits(&self, session: SessionId) -> bool {
        self.missing.contains(&session)
    }

    pub(super) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Whether someone else than `reader` may have newer data of the object.
    pub(super) fn hides_data(&self, reader: Option<SessionId>, object: &Handle) -> bool {
        let other = |session: &SessionId| Some(*session) != reader;
        let logged = self.writers.get(object);
        (self.host_crashed || logged.is_some_and(|w| w.iter().any(other)))
            && !planted::is(Bug::ReadInGrace)
    }

    pub(super) fn is_logged(&self, session: SessionId, object: &Handle) -> bool {
        let logged = self.writers.get(object);
        self.host_crashed || logged.is_some_and(|w| w.contains(&session))
    }

    pub(super) fn forget_writer(&mut self, session: SessionId, object: &Handle) {
        if let Some(writers) = self.writers.get_mut(object) {
            writers.remove(&session);
        }
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.missing.remove(&session);
        self.writers.retain(|_, writers| {
            writers.remove(&session);
            !writers.is_empty()
        });
    }
}
