//! Who has what of one object, for people.

use super::Core;
use super::locks::File;
use super::session::{OpenRecall, Session};
use super::table::{Holder, Object};
use crate::time::BootTime;
use leasefs_protocol::{Handle, Parts, SessionId};
use std::collections::BTreeMap;

/// What is going on at an object, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectStatus {
    /// Sessions that hold leases or locks of it, whoever asked first.
    pub holders: Vec<HolderStatus>,
    /// How many more there are.
    pub more: usize,
    /// Operations that wait there.
    pub waiting: usize,
    /// It is at term zero until then.
    pub term_zero: Option<BootTime>,
}

/// What one session has of an object, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderStatus {
    /// The session.
    pub session: SessionId,
    /// What its leases cover.
    pub parts: Parts,
    /// What of that it has in Write mode.
    pub write: Parts,
    /// When the newest of these was granted, never later, and by a second and a quarter of its age too early at most; absent if it has none.
    pub granted: Option<BootTime>,
    /// When its leases end if it is never heard of again.
    pub ends: BootTime,
    /// Nothing has come from it for over half a term, or an approval is overdue.
    pub silent: bool,
    /// Since when the oldest of its recalls of the object is open, and until when the latest may be.
    pub recall: Option<(BootTime, BootTime)>,
    /// Locks it holds, as far as they are known here.
    pub locks: usize,
    /// Locks it waits for.
    pub lock_waits: usize,
}

/// How many locks of a file each session holds, and waits for.
type OfFile = BTreeMap<SessionId, (usize, usize)>;

impl Core {
    /// What is going on at an object: of `by` first, and of `most` sessions in all. Costs what the holders of the object
    /// and its locks are, and changes nothing.
    pub fn object(
        &self,
        now: BootTime,
        object: &Handle,
        by: SessionId,
        most: usize,
    ) -> ObjectStatus {
        let mut locks = self.locks.file(object).map(locks_of).unwrap_or_default();
        let known = self.table.find(object).and_then(|id| self.table.get(id));
        let leased = known.map_or(&[][..], |object| &object.holders);
        let mut holders = Vec::new();
        let mut more = 0;
        let mut tell = |session: &Session, holder: Option<&Holder>, locks: (usize, usize)| {
            let own = session.id == by;
            if !own && holders.len() == most {
                more += 1;
                return;
            }
            let told = self.holder_status(now, session, (known, holder), locks);
            let place = if own { 0 } else { holders.len() };
            holders.insert(place, told);
        };
        for holder in leased {
            if let Some(session) = self.sessions.get(holder.session) {
                let locks = locks.remove(&session.id).unwrap_or_default();
                tell(session, Some(holder), locks);
            }
        }
        for (id, locks) in locks {
            let sid = self.sessions.find(id);
            if let Some(session) = sid.and_then(|sid| self.sessions.get(sid)) {
                tell(session, None, locks);
            }
        }
        more += holders.len().saturating_sub(most);
        holders.truncate(most);
        ObjectStatus {
            holders,
            more,
            waiting: known.map_or(0, |o| o.queue().count() - o.running().count()),
            term_zero: self.bounces.zero_until(object),
        }
    }

    fn holder_status(
        &self,
        now: BootTime,
        session: &Session,
        (object, holder): (Option<&Object>, Option<&Holder>),
        (locks, lock_waits): (usize, usize),
    ) -> HolderStatus {
        let ends = session.expires.unwrap_or(now);
        let long = session.lease_time(&self.config) / 2;
        HolderStatus {
            session: session.id,
            parts: holder.map_or(Parts::NONE, |holder| holder.parts),
            write: holder.map_or(Parts::NONE, |holder| holder.write),
            granted: holder.and_then(|holder| session.dates.of(holder.stamp)),
            ends,
            silent: ends.left_at(now) < long || session.is_overdue(now),
            recall: self.oldest_recall(now, session, (object, holder)),
            locks,
            lock_waits,
        }
    }

    /// Since when, and until when at most: of the session's open recalls that are of the object, or of everything.
    fn oldest_recall(
        &self,
        now: BootTime,
        session: &Session,
        (object, holder): (Option<&Object>, Option<&Holder>),
    ) -> Option<(BootTime, BootTime)> {
        let of_object = object.zip(holder).into_iter();
        let of_object = of_object.flat_map(|(object, holder)| object.recalls_of(holder.session));
        let open = of_object.chain(session.everything);
        let open: Vec<&OpenRecall> = open.filter_map(|id| session.recalls.get(&id)).collect();
        let since = open.iter().map(|recall| recall.sent).min()?;
        // Who is overdue isn't renewed any more.
        let until = match session.is_overdue(now) {
            true => session.expires,
            false => open
                .iter()
                .map(|r| session.latest_end(r, &self.config))
                .max(),
        };
        Some((since, until?))
    }
}

fn locks_of(file: &File) -> OfFile {
    let mut all = OfFile::new();
    for held in file.held.iter() {
        all.entry(held.owner.0).or_default().0 += 1;
    }
    for waiter in &file.waiting {
        all.entry(waiter.lock.owner.0).or_default().1 += 1;
    }
    all
}
