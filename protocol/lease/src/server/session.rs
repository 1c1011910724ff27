//! Sessions: their one clock, what they hold, what they owe.

use super::api::{Config, OpId};
use super::cover::Cover;
use super::dates::Dates;
use super::ids::{ObjId, Sid};
use super::slab::Slab;
use crate::time::{BootTime, lengthened};
use leasefs_protocol::limits::{MAX_FLUSH, RECALL_PATIENCE_MAX, SLOWEST_LINK};
use leasefs_protocol::{KeyHash, LockEpoch, RecallId, SessionId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) client: KeyHash,
    of: Cid,
    pub(super) drift_ppm: u32,
    pub(super) rtt: Duration,
    /// `None` once its leases have ended: it holds and owes nothing.
    pub(super) expires: Option<BootTime>,
    /// On record from the server's earlier life and not done with reclaiming.
    pub(super) reclaiming: bool,
    /// In which its locks are held.
    pub(super) epoch: LockEpoch,
    last_stamp: Stamp,
    /// When its leases were granted.
    pub(super) dates: Dates,
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
    /// From when on its session has time for it: since then, or the end of a grace.
    pub(super) asked: BootTime,
    /// From then on the session isn't renewed.
    pub(super) overdue_at: BootTime,
    /// Flush progress moves `overdue_at` up to here; beyond, only as far as what has come could take, and it
    /// is held against the client.
    pub(super) extended_to: BootTime,
    /// Bytes flushed.
    pub(super) flushed: u64,
    /// How many of them there were at the last progress.
    pub(super) progress: u64,
    /// Another client has waited for it.
    pub(super) awaited: bool,
    /// Its session can't write back because of others, and isn't overdue for that.
    pub(super) borne: bool,
    pub(super) waiters: BTreeSet<OpId>,
}

impl OpenRecall {
    /// Up to where flush progress moves `overdue_at`.
    pub(super) fn may_last_until(&self) -> BootTime {
        let micros = self.flushed.saturating_mul(1_000_000) / SLOWEST_LINK;
        self.extended_to + Duration::from_micros(micros).min(MAX_FLUSH)
    }
}

impl Session {
    fn new(id: SessionId, (client, of): (KeyHash, Cid)) -> Self {
        Self {
            id,
            client,
            of,
            drift_ppm: 0,
            rtt: Duration::ZERO,
            expires: None,
            reclaiming: false,
            epoch: LockEpoch::default(),
            last_stamp: Stamp(0),
            dates: Dates::default(),
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

    fn unlist(&mut self, stamp: Stamp) {
        if self.leases.remove(&stamp).is_some() && stamp <= self.shed_to {
            assert!(
                self.shedding > 0,
                "{stamp:?} was asked back, none is counted"
            );
            self.shedding -= 1;
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            leases: self.leases.len(),
            shedding: self.shedding,
            recalls: self.recalls.len(),
        }
    }
}

/// What is counted of a session, or of all sessions of a client together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Counts {
    pub(super) leases: usize,
    /// How many of the leases have been asked back because there are too many.
    pub(super) shedding: usize,
    pub(super) recalls: usize,
}

impl Counts {
    /// Leases that have not been asked back.
    pub(super) fn kept(self) -> usize {
        assert!(
            self.shedding <= self.leases,
            "more leases are asked back than held: {self:?}"
        );
        self.leases - self.shedding
    }

    fn replace(&mut self, before: Self, now: Self) {
        let replace = |all: &mut usize, before: usize, now: usize| {
            assert!(
                *all >= before,
                "a client has {all} in all, one of its sessions {before}"
            );
            *all = *all - before + now;
        };
        replace(&mut self.leases, before.leases, now.leases);
        replace(&mut self.shedding, before.shedding, now.shedding);
        replace(&mut self.recalls, before.recalls, now.recalls);
    }
}

/// A client that has a session, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cid(u32);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    sessions: BTreeSet<Sid>,
    /// Of all of them together.
    counts: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sessions {
    slots: Slab<Session>,
    by_id: BTreeMap<SessionId, Sid>,
    clients: Slab<Client>,
    by_key: BTreeMap<KeyHash, Cid>,
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            by_id: BTreeMap::new(),
            clients: Slab::new(),
            by_key: BTreeMap::new(),
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
        let new = || Cid(self.clients.insert(Client::default()));
        let of = *self.by_key.entry(client).or_insert_with(new);
        let sid = Sid(self.slots.insert(Session::new(id, (client, of))));
        self.by_id.insert(id, sid);
        if let Some(client) = self.clients.get_mut(of.0) {
            client.sessions.insert(sid);
        }
        sid
    }

    pub(super) fn remove(&mut self, sid: Sid) {
        if let Some(session) = self.slots.remove(sid.0) {
            let left = session.counts();
            assert_eq!(left, Counts::default(), "{} ends and holds", session.id);
            self.by_id.remove(&session.id);
            let client = self.clients.get_mut(session.of.0);
            let last = client.is_none_or(|client| {
                client.sessions.remove(&sid);
                client.sessions.is_empty()
            });
            if last {
                self.clients.remove(session.of.0);
                self.by_key.remove(&session.client);
            }
        }
    }

    pub(super) fn of_client(&self, client: KeyHash) -> impl Iterator<Item = Sid> {
        let client = self.by_key.get(&client);
        let client = client.and_then(|of| self.clients.get(of.0));
        client.into_iter().flat_map(|c| &c.sessions).copied()
    }

    /// What the client has that the session is of.
    pub(super) fn counts(&self, sid: Sid) -> Counts {
        let Some(session) = self.get(sid) else {
            return Counts::default();
        };
        let client = self.clients.get(session.of.0);
        debug_assert!(client.is_some(), "nothing is counted of {}", session.id);
        client.map(|client| client.counts).unwrap_or_default()
    }

    /// Changes a session and what is counted of it.
    fn recount<T>(&mut self, sid: Sid, change: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let session = self.slots.get_mut(sid.0)?;
        let before = session.counts();
        let result = change(session);
        let client = self.clients.get_mut(session.of.0);
        debug_assert!(client.is_some(), "nothing is counted of {}", session.id);
        if let Some(client) = client {
            client.counts.replace(before, session.counts());
        }
        Some(result)
    }

    /// Notes a lease, which the session may have had by an earlier grant.
    pub(super) fn list(&mut self, sid: Sid, stamp: Stamp, object: ObjId, before: Option<Stamp>) {
        self.recount(sid, |session| {
            before.iter().for_each(|before| session.unlist(*before));
            session.leases.insert(stamp, object);
        });
    }

    /// Notes that the lease granted at `stamp` is gone.
    pub(super) fn unlist(&mut self, sid: Sid, stamp: Stamp) {
        self.recount(sid, |session| session.unlist(stamp));
    }

    /// Takes out all leases of a session.
    pub(super) fn take_leases(&mut self, sid: Sid) -> BTreeMap<Stamp, ObjId> {
        let taken = self.recount(sid, |session| {
            session.shedding = 0;
            std::mem::take(&mut session.leases)
        });
        taken.unwrap_or_default()
    }

    /// Notes that the oldest lease that has not been asked back is.
    pub(super) fn shed_one(&mut self, sid: Sid) -> Option<ObjId> {
        let shed = self.recount(sid, |session| {
            let rest = (Bound::Excluded(session.shed_to), Bound::Unbounded);
            let (stamp, object) = session.leases.range(rest).next()?;
            let (stamp, object) = (*stamp, *object);
            session.shed_to = stamp;
            session.shedding += 1;
            Some(object)
        });
        shed.flatten()
    }

    pub(super) fn open_recall(&mut self, sid: Sid, id: RecallId, recall: OpenRecall) {
        self.recount(sid, |session| {
            session.overdue.insert((recall.overdue_at, id));
            session.recalls.insert(id, recall);
        });
    }

    pub(super) fn close_recall(&mut self, sid: Sid, id: RecallId) -> Option<OpenRecall> {
        let closed = self.recount(sid, |session| {
            let open = session.recalls.remove(&id)?;
            session.overdue.remove(&(open.overdue_at, id));
            if session.everything == Some(id) {
                session.everything = None;
            }
            Some(open)
        });
        closed.flatten()
    }

    /// Whether what is counted is what there is.
    pub(super) fn counts_are_true(&self) -> bool {
        let mut clients: BTreeMap<KeyHash, Client> = BTreeMap::new();
        for (sid, session) in self.iter() {
            let client = clients.entry(session.client).or_default();
            client.sessions.insert(sid);
            client.counts.replace(Counts::default(), session.counts());
        }
        let known = self.by_key.iter();
        let known = known.map(|(key, of)| (key, self.clients.get(of.0)));
        clients.iter().map(|(key, c)| (key, Some(c))).eq(known)
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
