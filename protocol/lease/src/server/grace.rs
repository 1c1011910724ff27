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
    /// Write leases that may hide newer data of an object.
    writes: BTreeMap<SessionId, BTreeSet<Handle>>,
    /// How many of them are of each object.
    writers: BTreeMap<Handle, u32>,
    /// The host crashed: newer data of anything may be hidden.
    pub(super) host_crashed: bool,
}

impl GraceState {
    pub(super) fn begin(known: Grace, now: BootTime) -> Option<Self> {
        let missing: BTreeSet<SessionId> = known.sessions.into_iter().collect();
        if missing.is_empty() || planted::is(Bug::NoGrace) {
            return None;
        }
        let trusts = planted::is(Bug::TrustAfterHostCrash);
        let host_crashed = known.writes == LoggedWrites::Unknown && !trusts;
        let mut writes = BTreeMap::<SessionId, BTreeSet<Handle>>::new();
        if let LoggedWrites::Trusted(logged) = known.writes {
            for (session, object) in logged {
                writes.entry(session).or_default().insert(object);
            }
        }
        let mut writers = BTreeMap::new();
        for object in writes.values().flatten() {
            *writers.entry(*object).or_default() += 1;
        }
        Some(Self {
            ends: now + lengthened(known.max_term, known.drift_ppm),
            missing,
            writes,
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
        let logged = self.writers.get(object).copied().unwrap_or(0);
        let own = logged > 0 && reader.is_some_and(|id| self.writes_on_record(id, object));
        (self.host_crashed || logged > u32::from(own)) && !planted::is(Bug::ReadInGrace)
    }

    pub(super) fn is_logged(&self, session: SessionId, object: &Handle) -> bool {
        self.host_crashed || self.writes_on_record(session, object)
    }

    fn writes_on_record(&self, session: SessionId, object: &Handle) -> bool {
        let own = self.writes.get(&session);
        own.is_some_and(|own| own.contains(object))
    }

    pub(super) fn forget_writer(&mut self, session: SessionId, object: &Handle) {
        let own = self.writes.get_mut(&session);
        if own.is_some_and(|own| own.remove(object)) {
            self.has_one_writer_less(object);
        }
    }

    fn has_one_writer_less(&mut self, object: &Handle) {
        if let Some(writers) = self.writers.get_mut(object) {
            *writers -= 1;
            if *writers == 0 {
                self.writers.remove(object);
            }
        }
    }

    /// Nothing of the session is left; of which objects it hides nothing any more.
    pub(super) fn forget(&mut self, session: SessionId) -> BTreeSet<Handle> {
        self.missing.remove(&session);
        let shown = self.writes.remove(&session).unwrap_or_default();
        for object in &shown {
            self.has_one_writer_less(object);
        }
        shown
    }
}
