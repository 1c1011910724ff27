//! Sessions: their one clock, what they hold, what they owe.

use super::api::{Config, OpId};
use super::cover::Cover;
use super::slab::Slab;
use super::table::ObjId;
use crate::time::{BootTime, lengthened};
use leasefs_protocol::limits::RECALL_PATIENCE_MAX;
use leasefs_protocol::{KeyHash, RecallId, SessionId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A session known to the core. Reused only after everything it held is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Sid(u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) client: KeyHash,
    pub(super) drift_ppm: u32,
    pub(super) rtt: Duration,
    /// `None` once its leases have ended: it holds and owes nothing.
    pub(super) expires: Option<BootTime>,
    /// On record from the server's earlier life and not done with reclaiming.
    pub(super) reclaiming: bool,
    last_stamp: Stamp,
    last_recall: RecallId,
    /// Objects it holds, by the stamp of the newest grant: the oldest first.
    pub(super) leases: BTreeMap<Stamp, ObjId>,
    pub(super) recalls: BTreeMap<RecallId, OpenRecall>,
    /// The open recalls by the time they become overdue.
    pub(super) overdue: BTreeSet<(BootTime, RecallId)>,
    /// The open recall of everything.
    pub(super) everything: Option<RecallId>,
    /// Leases up to this stamp have been asked back because there are too many.
    pub(super) shed_to: Stamp,
    /// How many leases up to `shed_to` are still held.
    pub(super) shedding: usize,
}

/// A recall that is neither approved nor closed by its session's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenRecall {
    pub(super) stamp: Stamp,
    /// `None`: everything.
    pub(super) object: Option<ObjId>,
    pub(super) cover: Cover,
    /// What of it was not granted again since: the approval takes it from the holder, and
    /// serves later operations too.
    pub(super) fresh: Cover,
    pub(super) sent: BootTime,
    /// From then on the session isn't renewed.
    pub(super) overdue_at: BootTime,
    /// Flush progress moves `overdue_at` up to here.
    pub(super) extended_to: BootTime,
    /// Bytes flushed since the last progress.
    pub(super) flushed: u64,
    /// Another client has waited for it.
    pub(super) awaited: bool,
    pub(super) waiters: BTreeSet<OpId>,
}

impl Session {
    pub(super) fn new(id: SessionId, client: KeyHash) -> Self {
        Self {
            id,
            client,
            drift_ppm: 0,
            rtt: Duration::ZERO,
            expires: None,
            reclaiming: false,
            last_stamp: Stamp(0),
            last_recall: RecallId(0),
            leases: BTreeMap::new(),
            recalls: BTreeMap::new(),
            overdue: BTreeSet::new(),
            everything: None,
            shed_to: Stamp(0),
            shedding: 0,
        }
    }

    pub(super) fn next_stamp(&mut self) -> Stamp {
        self.last_stamp = self.last_stamp.next();
        self.last_stamp
    }

    pub(super) fn next_recall(&mut self) -> RecallId {
        self.last_recall = self.last_recall.next();
        self.last_recall
    }

    pub(super) fn last_stamp(&self) -> Stamp {
        self.last_stamp
    }

    pub(super) fn is_alive(&self) -> bool {
        self.expires.is_some()
    }

    /// How long a renewal lasts by the server's clock.
    pub(super) fn lease_time(&self, config: &Config) -> Duration {
        lengthened(config.term, self.drift_ppm.max(config.drift_ppm))
    }

    /// How long a recall may take before it is overdue. The peer makes the round trip as long as it
    /// likes.
    pub(super) fn patience(&self, config: &Config) -> Duration {
        let by_rtt = self.rtt.saturating_mul(4).min(RECALL_PATIENCE_MAX);
        config.overdue.max(by_rtt)
    }

    /// Whether some approval is overdue.
    pub(super) fn is_overdue(&self, now: BootTime) -> bool {
        self.overdue.first().is_some_and(|(at, _)| at.has_come(now))
    }

    /// When the session's leases end at the latest if it never approves `recall`.
    pub(super) fn latest_end(&self, recall: &OpenRecall, config: &Config) -> BootTime {
        let renewed_last = recall.overdue_at + self.lease_time(config);
        self.expires.map_or(renewed_last, |at| at.max(renewed_last))
    }

    /// Notes that the lease granted at `stamp` is gone, or granted anew.
    pub(super) fn unlist(&mut self, stamp: Stamp) {
        if self.leases.remove(&stamp).is_some() && stamp <= self.shed_to {
            self.shedding = self.shedding.saturating_sub(1);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sessions {
    slots: Slab<Session>,
    by_id: BTreeMap<SessionId, Sid>,
    by_client: BTreeSet<(KeyHash, Sid)>,
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            by_id: BTreeMap::new(),
            by_client: BTreeSet::new(),
        }
    }

    pub(super) fn find(&self, id: SessionId) -> Option<Sid> {
        self.by_id.get(&id).copied()
    }

    /// The session if it may hold leases.
    pub(super) fn alive(&self, id: SessionId) -> Option<Sid> {
        let sid = self.find(id)?;
        self.get(sid)?.is_alive().then_some(sid)
    }

    pub(super) fn get(&self, sid: Sid) -> Option<&Session> {
        self.slots.get(sid.0)
    }

    pub(super) fn get_mut(&mut self, sid: Sid) -> Option<&mut Session> {
        self.slots.get_mut(sid.0)
    }

    pub(super) fn insert(&mut self, id: SessionId, client: KeyHash) -> Sid {
        let sid = Sid(self.slots.insert(Session::new(id, client)));
        self.by_id.insert(id, sid);
        self.by_client.insert((client, sid));
        sid
    }

    pub(super) fn remove(&mut self, sid: Sid) {
        if let Some(session) = self.slots.remove(sid.0) {
            self.by_id.remove(&session.id);
            self.by_client.remove(&(session.client, sid));
        }
    }

    pub(super) fn of_client(&self, client: KeyHash) -> Vec<Sid> {
        let all = (client, Sid(0))..=(client, Sid(u32::MAX));
        self.by_client.range(all).map(|(_, sid)| *sid).collect()
    }

    /// In the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Sid, &Session)> {
        let session = |sid: &Sid| Some((*sid, self.get(*sid)?));
        self.by_id.values().filter_map(session)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.slots.values_mut()
    }

    pub(super) fn recall(&self, sid: Sid, id: RecallId) -> Option<&OpenRecall> {
        self.get(sid)?.recalls.get(&id)
    }
}
