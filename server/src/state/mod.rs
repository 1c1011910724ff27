//! The state directory: what a server must not forget.
//!
//! | file | holds | durable |
//! | --- | --- | --- |
//! | `server.key` | the server's identity | when made |
//! | `secrets` | secret of connection ids and resets, key of handles and open tokens | when made |
//! | `export.json` | the export's id | when made |
//! | `served.json` | how the server was run last | at start |
//! | `clients.json` | clients and tickets | before anyone is told |
//! | `spent` | revoked keys and used tickets, once more | before `clients.json` |
//! | `life.json` | clean-shutdown mark, largest term and drift bound, numbers of locks | before the first grant |
//! | `sessions` | sessions on record | before a session's first grant |
//! | `journal.8` | changes that have begun, their answers, Write leases | survives the process, not the host |
//!
//! The journal has a format of its own, which holds messages of every protocol that is served: who has upgraded a server
//! loses no answer. One of another format is let go, as if the host had crashed unless the server had ended in order.
//!
//! All of it is in a folder of mode 0700 that one process has at a time.

mod dir;
mod error;
mod files;
mod journal;
mod life;
mod locks;
mod log;
mod registry;
mod sessions;
pub mod storage;
#[cfg(test)]
mod tests;
mod trouble;

pub use dir::{Location, Policy, Served, StateDir};
pub use error::StateError;
pub use files::random;
pub use locks::ExportLock;
pub use registry::{Directory, Enrolled, Registry, RevokeError, Role, User, wall_clock};

use crate::intent::Intent;
use crate::records::{Client, Found, Owner, RecordedSession, Records, Writes};
use crate::sync::lock;
use journal::{Journal, Journalled};
use leasefs_host::boot::{self, boot_id};
use leasefs_host::files::{remove_if_there, sync_parent};
use leasefs_protocol::control::{HelloRefusal, IdentityPolicy};
use leasefs_protocol::latency::{Counts, Histogram};
use leasefs_protocol::{BootId, Caller, Handle, KeyHash, Refusal, Response, Seq, SessionId};
use life::LifeRecord;
use sessions::{OnRecord, SessionRecord};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trouble::Trouble;

/// The journal, with the number of its format. Its numbers were those of the protocol up to 8.
pub const JOURNAL: &str = "journal.8";

/// The state of a running server.
#[derive(Debug)]
pub struct State {
    dir: StateDir,
    policy: Policy,
    registry: Mutex<Registry>,
    life: Mutex<LifeRecord>,
    sessions: Mutex<SessionRecord>,
    journal: Mutex<Journal>,
    journal_writes: Arc<Histogram>,
    /// Of the logs without which nothing is changed.
    troubles: [Arc<Trouble>; 2],
}

impl State {
    /// Reads what earlier lives of the server have left. `policy` is whose rights clients have
    /// unless they were enrolled with trust.
    ///
    /// # Errors
    /// If the state can't be read or is damaged.
    pub fn open(dir: StateDir, policy: Policy) -> Result<(Self, Found), StateError> {
        let host = boot_id().map_err(StateError::file(Path::new(boot::PATH)))?;
        let path = dir.file("life.json");
        let life = LifeRecord::open(&path, host)?;
        let clean = life.ended_clean();
        let path = dir.file("sessions");
        let mut sessions = SessionRecord::open(&path)?;
        let path = dir.file(JOURNAL);
        let others = dir.other_versions_of(&path)?;
        if !others.is_empty() {
            tracing::info!(
                ?others,
                "a server of another format has run: no journal is believed"
            );
            let_go(std::slice::from_ref(&path))?;
        }
        let known = sessions.all().map(|(session, _)| session).collect();
        let (mut journal, mut journalled) = Journal::open(&path, (host, clean), known)?;
        let registry = dir.registry()?;
        // Their clients may not know yet, and go by what they were leased.
        let revoked = sessions.of_clients(|key| registry.has_revoked(key));
        for (session, on_record) in revoked {
            if let Some(journalled) = &mut journalled {
                journalled.changes.remove(&session);
            }
            if clean || !on_record.leased {
                noted("a revoked client", sessions.forget(session));
                noted("a revoked client", journal.forget(session));
            }
        }
        let host_crashed = journalled.is_none();
        // What was let go told which changes have run, also where the life before ended in order.
        let unknown = host_crashed || !others.is_empty();
        if unknown {
            for (session, _) in sessions.all() {
                journal.crashed(session).map_err(StateError::file(&path))?;
            }
        }
        if !others.is_empty() {
            replaces(&mut journal, &path, &others)?;
        }
        let found = Found {
            process: BootId(files::random()?),
            host,
            max_term: life.max_term(),
            max_drift_ppm: life.max_drift_ppm(),
            first_fence: life.first_fence(),
            clean,
            host_crashed,
            writes: writes(&journal, journalled.as_ref()),
            sessions: recorded(
                (&sessions, &registry),
                journalled.unwrap_or_default(),
                (clean, unknown),
            ),
        };
        let state = Self {
            registry: Mutex::new(registry),
            life: Mutex::new(life),
            troubles: [journal.trouble(), sessions.trouble()],
            sessions: Mutex::new(sessions),
            journal_writes: journal.writes(),
            journal: Mutex::new(journal),
            dir,
            policy,
        };
        Ok((state, found))
    }

    /// The state directory.
    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// Makes a ticket of this role and returns its secret.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn issue(&self, role: Role) -> Result<[u8; 32], StateError> {
        lock(&self.registry).issue(role, wall_clock())
    }

    /// All clients, revoked ones too.
    pub fn clients(&self) -> Vec<Enrolled> {
        lock(&self.registry).clients().to_vec()
    }

    /// Revokes a client by its name or the beginning of its key.
    ///
    /// # Errors
    /// If it isn't exactly one, or can't be written.
    pub fn revoke(&self, which: &str) -> Result<Enrolled, RevokeError> {
        lock(&self.registry).revoke(which, wall_clock())
    }

    /// What people ought to know of the list of clients.
    pub fn note(&self) -> Option<String> {
        lock(&self.registry).note().map(str::to_owned)
    }

    /// Whose rights a client's requests have: what its ticket says goes before the server's policy.
    fn rights_of(&self, role: &Role) -> (IdentityPolicy, Option<User>) {
        match role.acts_as {
            // A server that can't take on rights has no others to give.
            _ if !rustix::process::geteuid().is_root() => (IdentityPolicy::Squash, None),
            Some(user) => (IdentityPolicy::Trust, Some(user)),
            None if role.trust => (IdentityPolicy::Trust, None),
            None => (self.policy.untrusted(), None),
        }
    }
}

fn let_go(files: &[PathBuf]) -> Result<(), StateError> {
    let mut files = files.iter();
    files.try_for_each(|file| remove_if_there(file).map_err(StateError::file(file)))
}

/// The journal stands, and those of other formats go: not before it is on the disk, since whoever finds them gone believes in
/// what is there.
fn replaces(journal: &mut Journal, path: &Path, others: &[PathBuf]) -> Result<(), StateError> {
    let synced = journal.sync().and_then(|()| sync_parent(path));
    synced.map_err(StateError::file(path))?;
    let_go(others)
}

fn writes(journal: &Journal, journalled: Option<&Journalled>) -> Writes {
    match journalled {
        Some(journalled) if !journal.host_crashed() => {
            Writes::Trusted(journalled.writes.iter().copied().collect())
        }
        _ => Writes::Unknown,
    }
}

fn recorded(
    (sessions, registry): (&SessionRecord, &Registry),
    mut journalled: Journalled,
    (clean, unknown): (bool, bool),
) -> Vec<RecordedSession> {
    let recorded = |(session, on_record): (SessionId, OnRecord)| {
        let changes = journalled.changes.remove(&session).unwrap_or_default();
        let host_crashed = unknown || changes.host_crashed();
        let (changes, lost) = changes.into_recorded();
        RecordedSession {
            session,
            owner: on_record.owner,
            leased: on_record.leased && !clean,
            host_crashed,
            changes,
            lost,
            over: registry.has_revoked(on_record.owner.client),
        }
    };
    sessions.all().map(recorded).collect()
}

/// For what need not be durable: a failure costs a longer grace, or an answer.
fn noted(what: &'static str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, what, "the state directory can't be written");
    }
}

impl Records for State {
    fn knows(&self, key: KeyHash) -> bool {
        lock(&self.registry).knows(key)
    }

    fn admit(
        &self,
        key: KeyHash,
        ticket: Option<&[u8; 32]>,
        session: SessionId,
        name: &str,
    ) -> Result<Client, HelloRefusal> {
        let on_record = lock(&self.sessions).get(session);
        if on_record.is_some_and(|on_record| on_record.owner.client != key) {
            return Err(HelloRefusal::ForeignSession);
        }
        let client = lock(&self.registry).admit(key, ticket, name, wall_clock())?;
        let (identity, acts_as) = self.rights_of(&client.role);
        Ok(Client {
            key,
            read_only: client.role.read_only,
            identity,
            acts_as: acts_as.map(|User { uid, gid }| Caller {
                uid,
                gid,
                groups: Vec::new(),
            }),
            border: client.role.confined_to(),
            name: client.name,
        })
    }

    fn begin_life(&self, term: Duration, drift_ppm: u32) -> io::Result<()> {
        let mut life = lock(&self.life);
        let mut sessions = lock(&self.sessions);
        if life.ended_clean() {
            // Before the mark goes, or a crash right behind it would bring their leases back.
            sessions.all_leases_ended()?;
        }
        let leased = sessions.all().any(|(_, session)| session.leased);
        life.begin(term, drift_ppm, leased)
    }

    fn record_session(&self, session: SessionId, owner: Owner) -> io::Result<()> {
        lock(&self.sessions).record(session, owner)?;
        lock(&self.journal).knows(session);
        Ok(())
    }

    fn leases_ended(&self, session: SessionId) {
        noted("leases ended", lock(&self.sessions).leases_ended(session));
        noted("leases ended", lock(&self.journal).leases_ended(session));
    }

    fn forget_session(&self, session: SessionId) {
        noted("session ended", lock(&self.sessions).forget(session));
        noted("session ended", lock(&self.journal).forget(session));
    }

    fn change_begins(
        &self,
        session: SessionId,
        seq: Seq,
        low: Seq,
        intent: &Intent,
    ) -> io::Result<()> {
        lock(&self.journal).begins(session, seq, low, intent)
    }

    fn change_ends(
        &self,
        session: SessionId,
        seq: Seq,
        result: &Result<Response, Refusal>,
        keeps: Option<Handle>,
    ) {
        let ended = lock(&self.journal).ends(session, seq, result, keeps);
        noted("an answer", ended);
    }

    fn change_undone(&self, session: SessionId, seq: Seq) {
        noted("a change undone", lock(&self.journal).undone(session, seq));
    }

    fn write_lease(&self, session: SessionId, object: Handle) -> io::Result<()> {
        lock(&self.journal).write_lease(session, object)
    }

    fn idle_writes(&self) -> Vec<(SessionId, Handle)> {
        lock(&self.journal).idle_writes()
    }

    fn write_ended(&self, session: SessionId, object: &Handle) {
        lock(&self.journal).write_ended(session, object);
    }

    fn grace_ended(&self) {
        noted("the end of the grace", lock(&self.journal).grace_ended());
    }

    fn trouble(&self) -> Option<String> {
        self.troubles.iter().find_map(|log| log.last())
    }

    fn journal_writes(&self) -> Counts {
        self.journal_writes.counts()
    }

    fn end_life(&self) -> io::Result<()> {
        lock(&self.sessions).all_leases_ended()?;
        lock(&self.journal).sync()?;
        lock(&self.life).end()
    }
}
