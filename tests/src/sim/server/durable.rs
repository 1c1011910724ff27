//! What survives a server's process, and what of that its host.

use crate::sim::model::Obj;
use fsserver::intent::Intent;
use fsserver::interrupted::ChangeId;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Refusal, Response, Seq, SessionId};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is on record of a change that had begun.
#[derive(Clone, Debug)]
pub(super) enum Record {
    Intent(Intent),
    Answered(Result<Response, Refusal>),
}

/// A session on record.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    pub leased: bool,
    pub birth: u64,
    pub changes: BTreeMap<Seq, Record>,
    /// It may send changes again that ran before the host crashed.
    pub crashed: bool,
    /// The lowest change that has begun since.
    pub first: Option<Seq>,
}

/// What survives the process (and, but for what is journalled of changes and Write leases, the host).
#[derive(Clone, Debug, Default)]
pub struct Durable {
    pub(super) max_term: Duration,
    pub(super) drift_ppm: u32,
    pub(super) clean: bool,
    pub(super) sessions: BTreeMap<SessionId, Recorded>,
    /// Write leases; whether they were asked for since it was last looked whether they stand.
    pub(super) writes: BTreeMap<(SessionId, Obj), bool>,
    /// The host has crashed, and leases of before may be alive.
    pub(super) host_crashed: bool,
    /// Of the present life.
    pub(super) grace_ends: BootTime,
}

impl Durable {
    pub(super) fn note(&mut self, (session, seq): ChangeId, record: Record) {
        if let Some(recorded) = self.sessions.get_mut(&session) {
            recorded.changes.insert(seq, record);
            recorded.first = Some(recorded.first.map_or(seq, |first| first.min(seq)));
        }
    }

    /// Of a change that has begun.
    pub(super) fn note_answer(&mut self, change: ChangeId, answer: Result<Response, Refusal>) {
        let recorded = self.sessions.get_mut(&change.0);
        let record = recorded.and_then(|r| r.changes.get_mut(&change.1));
        if let Some(record) = record {
            *record = Record::Answered(answer);
        }
    }

    pub(super) fn undone(&mut self, (session, seq): ChangeId) {
        if let Some(recorded) = self.sessions.get_mut(&session) {
            recorded.changes.remove(&seq);
        }
    }

    pub(super) fn journalled(&self, session: SessionId) -> Vec<(Seq, Record)> {
        let recorded = self.sessions.get(&session);
        let changes = recorded.into_iter().flat_map(|r| &r.changes);
        changes
            .map(|(seq, record)| (*seq, record.clone()))
            .collect()
    }

    pub(super) fn low_water(&mut self, session: SessionId, low: Seq) {
        if let Some(recorded) = self.sessions.get_mut(&session) {
            recorded.changes.retain(|seq, _| *seq >= low);
            recorded.crashed &= recorded.first.is_none_or(|first| first > low);
        }
    }

    pub(super) fn write_lease(&mut self, session: SessionId, object: Obj) {
        self.writes.insert((session, object), true);
    }

    pub(super) fn crash_of_host(&mut self) {
        self.host_crashed = true;
        self.writes.clear();
        for recorded in self.sessions.values_mut() {
            recorded.changes.clear();
            (recorded.crashed, recorded.first) = (true, None);
        }
    }

    /// When the present life's grace ends at the latest.
    pub fn grace_ends(&self) -> BootTime {
        self.grace_ends
    }
}
