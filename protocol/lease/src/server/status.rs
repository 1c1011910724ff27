//! What people may want to know.

use super::Core;
use super::api::{OpId, OpState};
use super::bounce::Zero;
use super::locks::{File, Owner};
use super::op::{Cause, Kind, Op};
use super::session::{OpenRecall, Session};
use crate::locks::{LockWanted, wanted};
use crate::time::BootTime;
use leasefs_protocol::{Fence, Handle, LockOwner, Recall, RecallId, SessionId};

/// Most operations at one object that are told to be before another: the first ones.
const MOST_TOLD: usize = 16;
/// Most locks that are told.
pub const MOST_LOCKS_TOLD: usize = 4096;

/// A session, for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionId,
    /// When its leases end; `None` if they have ended.
    pub expires: Option<BootTime>,
    /// Whether it may still reclaim leases of the server's earlier life.
    pub reclaiming: bool,
    /// Until when it gets no leases because its client has held others up.
    pub denied_until: Option<BootTime>,
    /// Objects it holds a lease on.
    pub leases: usize,
    /// Recalls it has not approved.
    pub recalls: usize,
}

/// An open recall, for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecallStatus {
    /// The holder.
    pub session: SessionId,
    /// The recall.
    pub recall: Recall,
    /// When it was first sent.
    pub sent: BootTime,
    /// When the holder's leases end at the latest if it never approves.
    pub until: BootTime,
    /// Operations that wait for it.
    pub waiting: Vec<OpId>,
}

/// An operation that waits, for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// The operation.
    pub op: OpId,
    /// Who asked for it.
    pub session: SessionId,
    /// Since when it waits.
    pub since: BootTime,
    /// Whose approvals it waits for.
    pub holders: Vec<(SessionId, RecallId)>,
    /// Operations that are before it.
    pub behind: Vec<OpId>,
    /// Whether it waits for the end of grace.
    pub grace: bool,
    /// When what it waits for itself ends at the latest (the operations before it have their
    /// own).
    pub until: Option<BootTime>,
}

/// An object that bounces and of which nobody gets an exclusive lease with a change, for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TermZero {
    /// The object.
    pub object: Handle,
    /// Since when.
    pub since: BootTime,
    /// When it is looked at again whether that would pay.
    pub until: BootTime,
    /// In this period, writes that an exclusive lease would have saved.
    pub hits: u64,
    /// In this period, reads that would have had to wait for its recall.
    pub recalls: u64,
}

/// A lock that is held or waited for, for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockStatus {
    /// The file.
    pub object: Handle,
    /// Of which session.
    pub session: SessionId,
    /// What it is.
    pub lock: LockWanted<LockOwner>,
    /// Its number; `None` while it is waited for.
    pub fence: Option<Fence>,
    /// Since when it is held, as far as the server knows, or waited for.
    pub since: BootTime,
    /// The session decides the file's locks: it may have given it up.
    pub decided_there: bool,
}

impl Core {
    /// Locks that are held or waited for, file by file, [`MOST_LOCKS_TOLD`] at most.
    pub fn locks(&self) -> Vec<LockStatus> {
        let of_file = |(object, file): (&Handle, &File)| {
            let told = |lock: &LockWanted<Owner>, fence, since| LockStatus {
                object: *object,
                session: lock.owner.0,
                lock: lock.of(lock.owner.1),
                fence,
                since,
                decided_there: file.decides.is_some(),
            };
            let held = file.held.iter();
            let held = held.map(|held| told(&wanted(held), Some(held.fence), file.since(held)));
            let waiting = file.waiting.iter();
            let waiting = waiting.map(|waiter| told(&waiter.lock, None, waiter.since));
            held.chain(waiting).collect::<Vec<_>>()
        };
        let all = self.locks.files().flat_map(of_file);
        all.take(MOST_LOCKS_TOLD).collect()
    }

    /// Where an operation stands; `None` if it is unknown, withdrawn, finished, or a read that
    /// has been admitted.
    pub fn op_state(&self, op: OpId) -> Option<OpState> {
        self.ops.get(&op).map(|op| op.state)
    }

    /// Whether nobody holds a lease or owes an approval, and nothing runs or waits that changes anything: after
    /// [`Event::Shutdown`](super::Event::Shutdown) this makes the end an orderly one. Not in
    /// grace: leases of the earlier life may be alive.
    pub fn all_quiet(&self) -> bool {
        // Whoever asks for a lock changes nothing.
        let changes = |op: &Op| op.is_exclusive() && op.kind != Kind::Lock;
        let changes = self.ops.values().any(changes);
        self.grace.is_none() && !changes && self.all_given_back()
    }

    /// Whether nobody holds a lease or owes an approval.
    pub fn all_given_back(&self) -> bool {
        let quiet = |s: &Session| s.leases.is_empty() && s.recalls.is_empty();
        self.sessions.iter().all(|(_, s)| quiet(s))
    }

    /// Whether any session holds a lock, or waits for one.
    pub fn holds_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    /// Sessions, in the order of their ids.
    pub fn sessions(&self) -> Vec<SessionStatus> {
        let status = |session: &Session| SessionStatus {
            session: session.id,
            expires: session.expires,
            reclaiming: session.reclaiming,
            denied_until: self.denied_until(session),
            leases: session.leases.len(),
            recalls: session.recalls.len(),
        };
        self.sessions.iter().map(|(_, s)| status(s)).collect()
    }

    /// Sessions on record from the server's earlier life that have not finished reclaiming.
    pub fn sessions_missing(&self) -> usize {
        self.grace.as_ref().map_or(0, |g| g.missing())
    }

    /// Leases of all sessions together.
    pub fn lease_count(&self) -> usize {
        self.sessions.iter().map(|(_, s)| s.leases.len()).sum()
    }

    /// Objects at term zero, in the order of their handles.
    pub fn term_zero(&self) -> Vec<TermZero> {
        let status = |(object, zero, until): (&Handle, &Zero, BootTime)| TermZero {
            object: *object,
            since: zero.since,
            until,
            hits: zero.hits,
            recalls: zero.recalls,
        };
        self.bounces.zeros().map(status).collect()
    }

    /// Open recalls of all sessions.
    pub fn recalls(&self) -> Vec<RecallStatus> {
        let status = |session: &Session, id: RecallId, open: &OpenRecall| RecallStatus {
            session: session.id,
            recall: self.message(id, open),
            sent: open.sent,
            until: session.latest_end(open, &self.config),
            waiting: open.waiters.iter().copied().collect(),
        };
        let of_session = |s: &Session| -> Vec<RecallStatus> {
            s.recalls
                .iter()
                .map(|(id, open)| status(s, *id, open))
                .collect()
        };
        self.sessions
            .iter()
            .flat_map(|(_, s)| of_session(s))
            .collect()
    }

    /// When an open recall was first sent.
    pub fn recall_sent(&self, session: SessionId, recall: RecallId) -> Option<BootTime> {
        let sid = self.sessions.find(session)?;
        self.sessions.recall(sid, recall).map(|open| open.sent)
    }

    /// Operations that wait, in the order of their numbers.
    pub fn waiting(&self) -> Vec<Waiting> {
        let waiting = self.ops.iter().filter(|(_, op)| !op.is_running());
        waiting.map(|(id, op)| self.explain(*id, op)).collect()
    }

    fn explain(&self, id: OpId, op: &Op) -> Waiting {
        let mut holders = Vec::new();
        let stopped = self.is_stopped_by_grace(op);
        let grace = self.grace.as_ref().filter(|_| stopped);
        let mut until = grace.map(|g| g.ends);
        for ((sid, recall), cause) in &op.waits {
            if let Some(session) = self.sessions.get(*sid) {
                let open = session
                    .recalls
                    .get(recall)
                    .filter(|_| *cause <= Cause::Born);
                until = until.max(open.map(|r| session.latest_end(r, &self.config)));
                holders.push((session.id, *recall));
            }
        }
        if let Kind::Parked(_) = op.kind {
            let sid = self.sessions.find(op.session);
            let session = sid.and_then(|sid| self.sessions.get(sid));
            until = until.max(session.and_then(|s| self.denied_until(s)));
        }
        let mut behind: Vec<OpId> = Vec::new();
        for need in &op.needs {
            behind.extend(self.blockers(op, need).take(MOST_TOLD));
        }
        behind.sort_unstable();
        behind.dedup();
        Waiting {
            op: id,
            session: op.session,
            since: op.since,
            holders,
            behind,
            grace: stopped,
            until,
        }
    }
}
