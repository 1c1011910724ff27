//! What goes into the lease core and what comes out of it.

use crate::locks::LockWanted;
use leasefs_protocol::limits;
use leasefs_protocol::lock::{FileLocks, LockFound, LockGranted, Locked, Unlocked};
use leasefs_protocol::query::{CancelLock, Unlock};
use leasefs_protocol::{
    Fence, Grant, Handle, KeyHash, LockEpoch, LockKind, LockOwner, LockRange, LockWait, Mode,
    OpenId, Parts, Query, RawName, Recall, RecallId, SessionId, Stamp,
};
use std::time::Duration;

/// An operation (read or change) as its caller numbers it; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Settings of the core; they don't change during its life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a session's leases are valid after a renewal, as promised to clients.
    pub term: Duration,
    /// The server's bound of the clocks' drift, parts per million.
    pub drift_ppm: u32,
    /// A recall unapproved for longer than this (and four round trips) is overdue.
    pub overdue: Duration,
    /// For how long a client gets no leases when it has held others up for the first time; zero: no
    /// client is ever denied leases.
    pub probation: Duration,
    /// The longest such time. Conduct is forgotten when nothing has been amiss for as long.
    pub max_probation: Duration,
    /// Leases all sessions of a client may hold before the oldest are asked back.
    pub max_leases_per_client: usize,
    /// Recalls that all of them may owe an approval for: who owes as many gets no leases, and what
    /// else is to be asked of a session is everything.
    pub max_recalls_per_client: usize,
    /// When nobody gets an exclusive lease with a change because the object bounces.
    pub bouncing: Bouncing,
    /// The first number that is given to a lock; no earlier life has given as many as
    /// [`limits::FENCES_OF_LIFE`] above it.
    pub first_fence: Fence,
}

/// When an object that bounces between sessions is at term zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bouncing {
    /// So many reads have to wait for another session's Write lease on it; zero: no object is ever at term zero.
    pub waits: usize,
    /// Within this time.
    pub window: Duration,
    /// After that long at term zero it is looked at whether the lease would pay.
    pub period: Duration,
}

impl Default for Bouncing {
    fn default() -> Self {
        Self {
            waits: limits::BOUNCE_WAITS,
            window: limits::BOUNCE_WINDOW,
            period: limits::TERM_ZERO_PERIOD,
        }
    }
}

impl Config {
    /// The usual settings of a server that grants leases for a term: probation goes by that.
    pub fn of_term(term: Duration) -> Self {
        Self {
            term,
            drift_ppm: limits::DEFAULT_DRIFT_PPM,
            overdue: limits::RECALL_OVERDUE,
            probation: term,
            max_probation: limits::MAX_PROBATION.min(term * limits::MAX_PROBATION_TERMS),
            max_leases_per_client: limits::MAX_LEASES_PER_CLIENT,
            max_recalls_per_client: limits::MAX_RECALLS_OPEN,
            bouncing: Bouncing::default(),
            first_fence: Fence(1),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::of_term(limits::DEFAULT_TERM)
    }
}

/// What a restarted server knows of the leases its predecessor granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grace {
    /// Longest term ever granted.
    pub max_term: Duration,
    /// Largest drift bound ever in force, parts per million.
    pub drift_ppm: u32,
    /// Sessions on record: each may hold leases. Without any there is no grace.
    pub sessions: Vec<SessionId>,
    /// What is known of their Write leases.
    pub writes: LoggedWrites,
}

/// What is known of the Write leases of an earlier life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LoggedWrites {
    /// The host has not crashed: exactly these were granted (or some fewer).
    Trusted(Vec<(SessionId, Handle)>),
    /// The host crashed: any object may have one, and what Read leases cached may never have
    /// reached the disk.
    Unknown,
}

/// What a read leaves behind at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadKind {
    /// Nothing: the answer goes to its caller alone, no lease is wanted.
    Uncached,
    /// Something a client caches only if a lease comes with it (attributes, names, listings,
    /// pages of the daemon). Never waits for a change; a lease comes if none is under way.
    Metadata,
    /// Pages in the client's kernel: a Read lease comes with them, or an open recall of the
    /// session covers them.
    FillPages,
    /// Pages that a shared mapping may store into: the exclusive Write lease on DATA.
    FillForStore,
}

/// One object of a read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadItem {
    /// The object.
    pub object: Handle,
    /// What the answer shows of it.
    pub parts: Parts,
    /// With NAMES: the one name that is shown; `None` if it may be any.
    pub name: Option<RawName>,
}

/// One object of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Touch {
    /// The object.
    pub object: Handle,
    /// Parts changed as a whole. NAMES here means all names.
    pub parts: Parts,
    /// Names changed in it, where it is a directory.
    pub names: Vec<RawName>,
}

/// A lease that the sender of a change would have with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// The object.
    pub object: Handle,
    /// What the answer shows of it.
    pub parts: Parts,
    /// `Write` is given on all of `parts` or else as `Read`.
    pub mode: Mode,
}

impl Wanted {
    /// A Read lease.
    pub fn read(object: Handle, parts: Parts) -> Self {
        Self {
            object,
            parts,
            mode: Mode::Read,
        }
    }

    /// A Write lease.
    pub fn write(object: Handle, parts: Parts) -> Self {
        Self {
            mode: Mode::Write,
            ..Self::read(object, parts)
        }
    }
}

/// What happens to the core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Nothing but time has passed: due deadlines are run (as with every other event).
    Tick,
    /// A session's client said `Hello`: the session is new, comes back, or begins to reclaim.
    /// Answered by [`Action::Opened`]; send [`Core::open_recalls`](super::Core::open_recalls)
    /// first on the new connection.
    SessionOpened {
        /// The session.
        session: SessionId,
        /// Whose it is: what one session of a client has cost others, all of them pay.
        client: KeyHash,
        /// The client's drift bound, parts per million; the larger of both sides' counts.
        drift_ppm: u32,
    },
    /// The connection's round-trip time as now estimated; used for recalls sent from now on.
    RoundTrip {
        /// The session.
        session: SessionId,
        /// Its round-trip time.
        rtt: Duration,
    },
    /// `Goodbye`, or a session is forgotten: everything it holds is released. Its operations
    /// that wait stay until they are withdrawn or run.
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// A read wants to look at the store. Answered by [`Action::Admitted`], maybe later.
    AdmitRead {
        /// The operation. Forgotten once admitted.
        op: OpId,
        /// Who reads.
        session: SessionId,
        /// What the answer leaves behind.
        kind: ReadKind,
        /// What is read; many objects for a listing.
        items: Vec<ReadItem>,
    },
    /// A change wants to run. Answered by [`Action::Admitted`], after which the change runs
    /// until `FinishChange`, `Withdraw` or `Requeue`.
    AdmitChange {
        /// The operation.
        op: OpId,
        /// Who changes.
        session: SessionId,
        /// What it changes.
        touches: Vec<Touch>,
        /// Objects whose covered parts the requester has dropped itself: its own lease on the
        /// others is recalled as well.
        dropped: Vec<Handle>,
        /// It writes back pages that the requester's kernel keeps locked until the answer.
        writeback: bool,
        /// It was made under locks of this tenure. If they are lost by its turn it is answered by [`Action::LockLost`], and
        /// is over. Until it has run nobody is granted what they kept him from.
        locked: Option<LockEpoch>,
    },
    /// The change turns out to touch other objects than it said: it waits again, at its old
    /// place in the order. It must not have changed anything.
    Requeue {
        /// The operation, admitted or waiting.
        op: OpId,
        /// As in `AdmitChange`.
        touches: Vec<Touch>,
        /// As in `AdmitChange`.
        dropped: Vec<Handle>,
    },
    /// The change has run (or failed). Answered by [`Action::Finished`].
    FinishChange {
        /// The operation; ignored unless it has been admitted.
        op: OpId,
        /// What its reply shows and the client would cache.
        wants: Vec<Wanted>,
    },
    /// The operation never runs (cancelled, or gone with its session). Has no answer.
    Withdraw {
        /// The operation.
        op: OpId,
    },
    /// A recall's approval; unknown ones are ignored.
    Approve {
        /// Who approves.
        session: SessionId,
        /// The recall.
        recall: RecallId,
    },
    /// A holder has brought in buffered bytes. Who gets on with what a recall asks for stays renewed for a
    /// further term, and for longer if it comes as fast as over the slowest link, within
    /// [`MAX_FLUSH`](leasefs_protocol::limits::MAX_FLUSH).
    Flushed {
        /// Who flushes.
        session: SessionId,
        /// The object.
        object: Handle,
        /// How many bytes the store has taken.
        bytes: u64,
    },
    /// A lease given back unasked. What a recall has asked for is still owed an approval.
    Release {
        /// Who gives back.
        session: SessionId,
        /// The object.
        object: Handle,
        /// Parts given back.
        parts: Parts,
        /// Newest stamp the client has seen for the object.
        seen: Stamp,
    },
    /// A grant that no answer carries to its session. What the session holds of these parts, by this
    /// grant or an earlier one it knows of, is recalled.
    TakeBack {
        /// Who was granted it.
        session: SessionId,
        /// The object.
        object: Handle,
        /// Parts granted.
        parts: Parts,
    },
    /// The object is gone for good: it has no name and nobody has it open. What anybody holds of it is
    /// recalled; nobody waits for that.
    Gone {
        /// The object.
        object: Handle,
    },
    /// The session has reclaimed everything it wants (see
    /// [`Core::reclaim`](super::Core::reclaim)).
    ReclaimDone {
        /// The session.
        session: SessionId,
    },
    /// A session wants to do something with locks of a file. Answered by [`Action::Locked`], maybe later; until then it can be
    /// withdrawn.
    Lock {
        /// The operation.
        op: OpId,
        /// Who asks.
        session: SessionId,
        /// The file.
        object: Handle,
        /// What is asked.
        ask: LockAsk,
    },
    /// What a session holds of files whose locks it decides: before it gives that right up.
    Held {
        /// The session.
        session: SessionId,
        /// By file.
        files: Vec<FileLocks>,
    },
    /// An orderly end: everything is recalled from everybody and nothing granted any more.
    Shutdown,
}

/// What the core wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Answers `SessionOpened`.
    Opened {
        /// The session.
        session: SessionId,
        /// How it stands.
        standing: Standing,
        /// Whether its leases were renewed (valid for a term from when `Hello` was sent).
        renewed: bool,
    },
    /// The operation may go to the store now. The leases are registered already.
    Admitted {
        /// The operation.
        op: OpId,
        /// What of a read's answer may be cached. Empty for changes.
        grants: Vec<Grant>,
    },
    /// Answers `FinishChange`.
    Finished {
        /// The operation.
        op: OpId,
        /// The change's place in its session's stream; zero if the session has ended.
        stamp: Stamp,
        /// What of its reply may be cached; stamps are not below `stamp`.
        grants: Vec<Grant>,
    },
    /// The change was made under locks that are lost. It is over.
    LockLost {
        /// The operation.
        op: OpId,
    },
    /// Answers `Lock`.
    Locked {
        /// The operation.
        op: OpId,
        /// What was decided.
        answer: LockAnswer,
    },
    /// A lock that a session waited for is its.
    LockGranted {
        /// The session.
        session: SessionId,
        /// Which.
        granted: LockGranted,
    },
    /// Send this recall, if the session has a connection.
    Recall {
        /// To whom.
        session: SessionId,
        /// What.
        recall: Recall,
    },
    /// The session's leases have ended: it holds nothing until it says `Hello` again.
    Expired {
        /// The session.
        session: SessionId,
    },
    /// All leases of the earlier life have ended or been reclaimed.
    GraceEnded,
}

/// What a session wants to do with locks of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LockAsk {
    /// Take one; with a number it is waited for.
    Take(LockWanted<LockOwner>, Option<LockWait>),
    /// Give some up.
    GiveUp(LockOwner, LockKind, LockRange),
    /// Know what stands against one.
    Test(LockWanted<LockOwner>),
    /// Wait no longer.
    Cancel(LockWait),
    /// Have none at all any more, of no file.
    Reset,
}

impl LockAsk {
    /// What a query asks of which file's locks; `None` if it is none of locks. `opened` is the file of its open.
    ///
    /// # Errors
    /// Why it has none.
    pub fn of<E>(
        query: &Query,
        opened: impl Fn(OpenId) -> Result<Handle, E>,
    ) -> Result<Option<(Handle, Self)>, E> {
        Ok(Some(match query {
            Query::Lock(asked) => (opened(asked.open)?, Self::Take(asked.into(), asked.wait)),
            Query::TestLock(asked) => (opened(asked.open)?, Self::Test(asked.into())),
            Query::Unlock(Unlock {
                object,
                owner,
                kind,
                range,
            }) => (*object, Self::GiveUp(*owner, *kind, *range)),
            Query::CancelLock(CancelLock { object, wait }) => (*object, Self::Cancel(*wait)),
            Query::ResetLocks(_) => (Handle::NONE, Self::Reset),
            _ => return Ok(None),
        }))
    }
}

/// What is answered to that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LockAnswer {
    /// To `Take`.
    Locked(Locked),
    /// To `GiveUp`, `Cancel` and `Reset`.
    Unlocked(Unlocked),
    /// To `Test`.
    Found(Option<LockFound>),
    /// There may not be as many.
    TooMany,
    /// The session holds nothing: its leases have ended.
    Ended,
}

/// How a session stands when its client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// The core doesn't know it: it holds nothing.
    New,
    /// Its leases stand.
    Resumed,
    /// Its leases had expired.
    Expired,
    /// It is on record from an earlier life and may reclaim; nothing is renewed before
    /// `ReclaimDone`.
    Reclaim,
}

/// Why a lease can't be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReclaimRefusal {
    /// There is no grace, it is over, or the session has said that it is done.
    #[error("the session is not reclaiming")]
    NotReclaiming,
    /// What was cached under it may never have reached the disk.
    #[error("the host crashed: read leases can't be reclaimed")]
    HostCrashed,
    /// A Write lease that was never logged.
    #[error("no such write lease was granted")]
    NotLogged,
    /// The client has held others up. What it has cached it can ask for again.
    #[error("the client is denied leases")]
    Denied,
    /// Another session has a conflicting lease.
    #[error("another session holds a conflicting lease")]
    Conflict,
}

/// A lease to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reclaimed {
    /// The object.
    pub object: Handle,
    /// What is covered.
    pub parts: Parts,
    /// The mode.
    pub mode: Mode,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpState {
    /// It waits: it can be withdrawn and has then never happened.
    Waiting,
    /// A change that has been admitted and not finished.
    Running,
}
