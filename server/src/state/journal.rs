//! The journal: which changes have begun, what came of them, and which Write leases were granted.
//! It survives the server's process, not its host: nothing in it is made durable, and it says which
//! life of the host it belongs to.

mod changes;
mod writes;

pub use changes::Changes;

use super::error::StateError;
use super::log::{self, Log, Outlives};
use super::trouble::Trouble;
use crate::intent::Intent;
use changes::{Answer, Event};
use leasefs_protocol::latency::Histogram;
use leasefs_protocol::{BootId, Handle, Seq, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use writes::Writes;

/// A record of the log.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// Whose life of the host the log belongs to. The first.
    Host(BootId),
    /// Of a session's changes.
    Change {
        session: SessionId,
        event: Box<Event>,
    },
    /// A Write lease is about to be granted.
    Write { session: SessionId, object: Handle },
    /// The session's leases have ended.
    LeasesEnded { session: SessionId },
    /// The session has ended.
    Forgotten { session: SessionId },
    /// The host has crashed: leases that nothing is journalled of may be alive.
    HostCrashed,
    /// None is any more.
    GraceEnded,
}

fn of_change(session: SessionId, event: Event) -> Record {
    let event = Box::new(event);
    Record::Change { session, event }
}

#[derive(Debug, Default)]
struct State {
    host: Option<BootId>,
    /// Leases of before a crash of the host may be alive.
    host_crashed: bool,
    changes: BTreeMap<SessionId, Changes>,
    writes: Writes,
}

impl log::State for State {
    type Record = Record;

    fn apply(&mut self, record: Record) {
        match record {
            Record::Host(host) => self.host = Some(host),
            Record::HostCrashed => self.host_crashed = true,
            Record::GraceEnded => self.host_crashed = false,
            Record::Change { session, event } => {
                self.changes.entry(session).or_default().apply(*event);
            }
            Record::Write { session, object } => self.writes.grant(session, object),
            Record::LeasesEnded { session } => self.writes.forget(session),
            Record::Forgotten { session } => {
                self.changes.remove(&session);
                self.writes.forget(session);
            }
        }
    }

    fn snapshot(&self) -> Vec<Record> {
        let host = self.host.map(Record::Host);
        let crashed = self.host_crashed.then_some(Record::HostCrashed);
        let changes = self.changes.iter().flat_map(|(session, changes)| {
            let session = *session;
            let record = move |event| of_change(session, event);
            changes.snapshot().map(record)
        });
        let write = |(session, object)| Record::Write { session, object };
        let writes = self.writes.all().map(write);
        let head = host.into_iter().chain(crashed);
        head.chain(changes).chain(writes).collect()
    }
}

/// What an earlier life of the server has left in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journalled {
    /// The changes of each session.
    pub changes: BTreeMap<SessionId, Changes>,
    /// The Write leases that were granted.
    pub writes: BTreeSet<(SessionId, Handle)>,
}

/// The journal.
#[derive(Debug)]
pub struct Journal {
    log: Log<State>,
    /// Sessions on record. Of others nothing is journalled, since nobody would take it out.
    known: BTreeSet<SessionId>,
}

impl Journal {
    /// Opens the journal kept in a file. Returns what it says, or `None` if it can't be believed,
    /// since it belongs to another life of the host. One left by an orderly end, or before any
    /// life, can be `believed` regardless. Of sessions that aren't `known` nothing is left.
    pub fn open(
        path: &Path,
        (host, believed): (BootId, bool),
        known: BTreeSet<SessionId>,
    ) -> Result<(Self, Option<Journalled>), StateError> {
        let mut log = Log::open(path, Outlives::Process, State::default())?;
        let state = log.state_mut();
        state.changes.retain(|session, _| known.contains(session));
        state.writes.retain(|session| known.contains(session));
        let same_host = state.host == Some(host);
        let trusted = believed || same_host;
        state.host_crashed = !trusted || (state.host_crashed && !believed);
        state.host = Some(host);
        if !trusted {
            state.changes.clear();
            state.writes = Writes::default();
        }
        if !same_host {
            // What the disk shows of them need not be what the earlier life did.
            state.changes.values_mut().for_each(Changes::lose_begun);
        }
        let found = trusted.then(|| Journalled {
            changes: state.changes.clone(),
            writes: state.writes.all().collect(),
        });
        log.rewrite().map_err(StateError::file(path))?;
        Ok((Self { log, known }, found))
    }

    /// Whether leases may be alive that were granted before a crash of the host: in this life of
    /// the server, or in one that had not seen the end of its grace.
    pub fn host_crashed(&self) -> bool {
        self.log.state().host_crashed
    }

    /// No lease of an earlier life is alive.
    pub fn grace_ended(&mut self) -> io::Result<()> {
        match self.host_crashed() {
            true => self.log.note(Record::GraceEnded),
            false => Ok(()),
        }
    }

    /// Notes that a session may send changes again that ran before the host crashed.
    pub fn crashed(&mut self, session: SessionId) -> io::Result<()> {
        let event = Event::HostCrashed;
        self.log.note(of_change(session, event))
    }

    /// The session is on record.
    pub fn knows(&mut self, session: SessionId) {
        self.known.insert(session);
    }

    fn must_know(&self, session: SessionId) -> io::Result<()> {
        match self.known.contains(&session) {
            true => Ok(()),
            false => Err(io::Error::other("the session is not on record")),
        }
    }

    /// Notes what a change is about to do, and that changes below `low` are no longer asked for.
    pub fn begins(
        &mut self,
        session: SessionId,
        seq: Seq,
        low: Seq,
        intent: &Intent,
    ) -> io::Result<()> {
        self.must_know(session)?;
        let intent = intent.clone();
        let event = Event::Begins { seq, low, intent };
        self.log.append(of_change(session, event))
    }

    /// Notes the answer of a change that has begun, and that a Write lease of `keeps` is about to be granted with it.
    pub fn ends(
        &mut self,
        session: SessionId,
        seq: Seq,
        answer: &Answer,
        keeps: Option<Handle>,
    ) -> io::Result<()> {
        if !self.is_begun(session, seq) {
            return Ok(());
        }
        let answer = answer.clone();
        let ended = of_change(session, Event::Ends { seq, answer });
        let writes = &mut self.log.state_mut().writes;
        match keeps.filter(|object| !writes.ask(session, *object)) {
            Some(object) => {
                let lease = Record::Write { session, object };
                self.log.note_and_append(ended, lease)
            }
            None => self.log.note(ended),
        }
    }

    /// Notes that a change has not happened although it had begun.
    pub fn undone(&mut self, session: SessionId, seq: Seq) -> io::Result<()> {
        if !self.is_begun(session, seq) {
            return Ok(());
        }
        let event = Event::Undone { seq };
        self.log.note(of_change(session, event))
    }

    fn is_begun(&self, session: SessionId, seq: Seq) -> bool {
        let changes = self.log.state().changes.get(&session);
        changes.is_some_and(|changes| changes.is_begun(seq))
    }

    /// Notes that a Write lease is about to be granted.
    pub fn write_lease(&mut self, session: SessionId, object: Handle) -> io::Result<()> {
        self.must_know(session)?;
        match self.log.state_mut().writes.ask(session, object) {
            true => Ok(()),
            false => self.log.append(Record::Write { session, object }),
        }
    }

    /// Write leases that nobody has asked for since the last call: those that aren't held have
    /// ended.
    pub fn idle_writes(&mut self) -> Vec<(SessionId, Handle)> {
        self.log.state_mut().writes.idle()
    }

    /// A Write lease has ended, unless it was asked for again meanwhile. The next rewriting of the
    /// log leaves it out; until then a restart takes it for granted, which costs a wait at most.
    pub fn write_ended(&mut self, session: SessionId, object: &Handle) {
        self.log.state_mut().writes.end(session, object);
    }

    /// The session's leases have ended.
    pub fn leases_ended(&mut self, session: SessionId) -> io::Result<()> {
        match self.log.state().writes.has(session) {
            true => self.log.note(Record::LeasesEnded { session }),
            false => Ok(()),
        }
    }

    /// The session has ended.
    pub fn forget(&mut self, session: SessionId) -> io::Result<()> {
        self.known.remove(&session);
        let state = self.log.state();
        match state.changes.contains_key(&session) || state.writes.know(session) {
            true => self.log.note(Record::Forgotten { session }),
            false => Ok(()),
        }
    }

    /// Whether it can be written.
    pub fn trouble(&self) -> Arc<Trouble> {
        self.log.trouble()
    }

    /// How long writing to it takes.
    pub fn writes(&self) -> Arc<Histogram> {
        self.log.writes()
    }

    /// Makes durable what was journalled: an orderly end survives a restart of the host.
    pub fn sync(&mut self) -> io::Result<()> {
        self.log.sync()
    }

    #[cfg(test)]
    fn rewrite(&mut self) -> io::Result<()> {
        self.log.rewrite()
    }
}

#[cfg(test)]
mod tests;
