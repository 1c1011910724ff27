//! What the running server needs from its state directory, as a trait so that it can be run without one.

use crate::intent::Intent;
use crate::seqs::SeqSet;
use leasefs_protocol::control::{HelloRefusal, IdentityPolicy};
use leasefs_protocol::latency::Counts;
use leasefs_protocol::{BootId, Caller, Fence, Handle, KeyHash, Refusal, Response, Seq, SessionId};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// An enrolled client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its key.
    pub key: KeyHash,
    /// Its name, for people.
    pub name: String,
    /// Whether it may only read.
    pub read_only: bool,
    /// Whose rights its requests have on the host, given their callers.
    pub identity: IdentityPolicy,
    /// The caller that all its requests have, whoever called at the client.
    pub acts_as: Option<Caller>,
    /// The directory that it is confined to.
    pub border: Option<Handle>,
}

impl Client {
    /// On whose behalf a request is, of which the client says that it is the caller's.
    pub fn caller(&self, told: Caller) -> Caller {
        self.acts_as.clone().unwrap_or(told)
    }

    /// What it may do, to be told apart from what it might do before.
    pub fn rights(&self) -> Rights {
        let mut told = vec![u8::from(self.read_only), self.identity as u8];
        if let Some(Caller { uid, gid, groups }) = &self.acts_as {
            let ids = [uid, gid].into_iter().chain(groups);
            ids.for_each(|id| told.extend(id.to_le_bytes()));
        }
        told.extend(self.border.iter().flat_map(Handle::as_bytes));
        let mut rights = Rights::default();
        let digest = digest(&SHA256, &told);
        let bytes = rights.0.iter_mut().zip(digest.as_ref());
        bytes.for_each(|(to, from)| *to = *from);
        rights
    }

    /// What the client is told of whose rights its requests have.
    pub fn policy_shown(&self) -> IdentityPolicy {
        match self.acts_as {
            Some(_) => IdentityPolicy::Squash,
            None => self.identity,
        }
    }
}

/// What a client may do, as a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights(pub [u8; 32]);

/// Whose a session is. It lasts as long as all of this stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The client.
    pub client: KeyHash,
    /// What the client may do: by its opens the session goes on to do it.
    pub rights: Rights,
    /// Random: a later session of the same number has another.
    pub birth: [u8; 16],
}

/// A session that is on record from an earlier life of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSession {
    /// The session.
    pub session: SessionId,
    /// Whose it is.
    pub owner: Owner,
    /// Whether it may hold leases: then the new life's grace waits for it.
    pub leased: bool,
    /// Whether the host has crashed in an earlier life of the server, and the session may send
    /// changes again that ran before that.
    pub host_crashed: bool,
    /// Changes that had begun, above the session's low-water mark as far as it was noted.
    /// Empty after a host crash.
    pub changes: Vec<(Seq, Recorded)>,
    /// Those whose effect is unknown, or whose answer isn't kept.
    pub lost: SeqSet,
    /// Whether its client has been revoked: it is waited for, and nothing more.
    pub over: bool,
}

/// What is on record of a change that had begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It was about to do this; whether it has must be found out.
    Intent(Intent),
    /// It was answered so.
    Answered(Result<Response, Refusal>),
}

/// What the token takes that comes with an answer: the one thing of it that may be large.
pub fn token_size(answer: &Result<Response, Refusal>) -> usize {
    let opened = answer.as_ref().ok().and_then(Response::opened);
    opened.map_or(0, |(_, token)| token.0.len())
}

/// What is known of the Write leases of an earlier life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The host has not crashed: exactly these were granted (or some fewer).
    Trusted(Vec<(SessionId, Handle)>),
    /// The host crashed, in this start or in a life whose grace had not ended: any object may have
    /// one.
    Unknown,
}

/// What a server finds when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// This life of the process.
    pub process: BootId,
    /// This life of the host.
    pub host: BootId,
    /// Longest term ever granted and not known to have ended.
    pub max_term: Duration,
    /// Largest drift bound ever in force, parts per million.
    pub max_drift_ppm: u32,
    /// The first number of a lock that no earlier life has given.
    pub first_fence: Fence,
    /// Whether the earlier life ended with an orderly shutdown: then no lease of it is alive.
    pub clean: bool,
    /// Whether the host has crashed or been booted since the earlier life.
    pub host_crashed: bool,
    /// Sessions on record.
    pub sessions: Vec<RecordedSession>,
    /// Write leases on record.
    pub writes: Writes,
}

/// The state directory. Every method may block on the disk and is called on I/O threads only.
pub trait Records: Send + Sync + 'static {
    /// Whether a client with this key is enrolled and not revoked.
    fn knows(&self, key: KeyHash) -> bool;

    /// Whether the client with this key may have this session: checks enrolment (or enrols the key
    /// with the ticket's secret), revocation, and that a recorded session is the client's own.
    ///
    /// # Errors
    /// What the client is told.
    fn admit(
        &self,
        key: KeyHash,
        ticket: Option<&[u8; 32]>,
        session: SessionId,
        name: &str,
    ) -> Result<Client, HelloRefusal>;

    /// Makes durable, before the first grant of this life: the clean-shutdown mark is gone, and
    /// the maximum term and drift cover these.
    ///
    /// # Errors
    /// If the disk fails; nothing may be granted then.
    fn begin_life(&self, term: Duration, drift_ppm: u32) -> io::Result<()>;

    /// Makes durable, before the session's first grant, that it exists and may hold leases. Does
    /// nothing if the record says so.
    ///
    /// # Errors
    /// If the disk fails; nothing may be granted to the session then.
    fn record_session(&self, session: SessionId, owner: Owner) -> io::Result<()>;

    /// Notes that the session's leases have ended: no grace need wait for it. Its ownership and
    /// its journalled changes stay. Need not be durable.
    fn leases_ended(&self, session: SessionId);

    /// Takes the session off the record with all that is journalled of it: it has ended.
    fn forget_session(&self, session: SessionId);

    /// Journals what a change is about to do, and that changes of its session below `low` are no longer
    /// asked for. Survives the process, not the host.
    ///
    /// # Errors
    /// If the disk fails; the change must not run then.
    fn change_begins(
        &self,
        session: SessionId,
        seq: Seq,
        low: Seq,
        intent: &Intent,
    ) -> io::Result<()>;

    /// Journals the answer of a change that has begun, before anyone hears of it or another change
    /// of its objects begins. Does nothing if it has not begun. Survives the process, not the
    /// host; where the disk fails, so much the less. A Write lease of `keeps` that is to come with the answer
    /// may be journalled in the same go. Whether it is [`Records::write_lease`] tells.
    fn change_ends(
        &self,
        session: SessionId,
        seq: Seq,
        result: &Result<Response, Refusal>,
        keeps: Option<Handle>,
    );

    /// Journals that a change has not happened although it had begun.
    fn change_undone(&self, session: SessionId, seq: Seq);

    /// Journals a Write lease before it is granted. Survives the process, not the host.
    ///
    /// # Errors
    /// If the disk fails; the lease must not be granted then.
    fn write_lease(&self, session: SessionId, object: Handle) -> io::Result<()>;

    /// Journalled Write leases that nobody has asked for since the last call.
    fn idle_writes(&self) -> Vec<(SessionId, Handle)>;

    /// A Write lease isn't held any more, unless it was asked for again since it was found idle.
    fn write_ended(&self, session: SessionId, object: &Handle);

    /// Notes that no lease of an earlier life is alive: the next life need not distrust what is
    /// journalled of Write leases because the host had crashed before this one.
    fn grace_ended(&self);

    /// Why the record can't be kept, if what was to be written last couldn't be. Never blocks.
    fn trouble(&self) -> Option<String>;

    /// How long journalling takes. Never blocks.
    fn journal_writes(&self) -> Counts;

    /// Leaves the clean-shutdown mark: no lease is alive any more.
    ///
    /// # Errors
    /// If the disk fails; the next life will have a grace then.
    fn end_life(&self) -> io::Result<()>;
}
