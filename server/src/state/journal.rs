//! The journal: which changes have begun, what came of them, and which Write leases were granted.
//! It survives the server's process, not its host: nothing in it is made durable, and it says which
//! life of the host it belongs to.

use super::log::Log;
use crate::intent::Intent;
use crate::records::Recorded;
use leasefs_protocol::codec::{self, PREFIX};
use leasefs_protocol::limits::MAX_ANSWERS;
use leasefs_protocol::{BootId, Handle, Refusal, Response, Seq, SessionId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

type Answer = Result<Response, Refusal>;

/// A record of the log.
#[derive(Debug, Serialize, Deserialize)]
enum Record<'a> {
    /// Whose life of the host the log belongs to. The first.
    Host(BootId),
    /// A change is about to begin.
    Begins {
        session: SessionId,
        seq: Seq,
        /// Below it the session's changes are no longer asked for.
        low: Seq,
        intent: Cow<'a, Intent>,
    },
    /// A change was answered.
    Ends {
        session: SessionId,
        seq: Seq,
        answer: Cow<'a, Answer>,
    },
    /// A change that had begun has not happened.
    Undone { session: SessionId, seq: Seq },
    /// The answer of a change is not kept.
    Lost { session: SessionId, seq: Seq },
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
    /// The session may send changes again that ran before the host crashed.
    Crashed { session: SessionId },
}

/// What is journalled of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journalled {
    low: Seq,
    /// Changes that have begun, above the low-water mark.
    changes: BTreeMap<Seq, State>,
    /// Those of them whose answers are kept.
    answered: BTreeSet<Seq>,
    /// Those whose answers are not.
    lost: BTreeSet<Seq>,
    /// Objects it was granted Write leases of.
    pub writes: BTreeSet<Handle>,
    /// Those asked for since [`Journal::idle_writes`] was called last: they may be about to be granted.
    asked: BTreeSet<Handle>,
    /// It may send changes again that ran before a crash of the host, and are not journalled.
    pub crashed: bool,
    /// The first change that has begun since.
    first: Option<Seq>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Begun(Intent),
    Answered(Answer),
}

type Sessions = BTreeMap<SessionId, Journalled>;

/// The journal.
#[derive(Debug)]
pub struct Journal {
    log: Log,
    host: BootId,
    sessions: Sessions,
    /// Leases of before a crash of the host may be alive.
    host_crashed: bool,
}

impl Journal {
    /// Opens the journal kept in a file. Returns what it says, or `None` if it can't be believed,
    /// since it belongs to another life of the host. One left by an orderly end, or before any
    /// life, can be `believed` regardless.
    pub fn open(path: &Path, host: BootId, believed: bool) -> io::Result<(Self, Option<Sessions>)> {
        let (log, records) = Log::open(path)?;
        let mut sessions = Sessions::new();
        let mut found_host = None;
        let mut host_crashed = false;
        for record in &records {
            match codec::decode::<Record<'_>>(record) {
                Ok(Record::Host(id)) => found_host = Some(id),
                Ok(Record::HostCrashed) => host_crashed = true,
                Ok(Record::GraceEnded) => host_crashed = false,
                Ok(record) => replay(&mut sessions, record),
                Err(error) => tracing::warn!(%error, "a journalled record can't be read"),
            }
        }
        let trusted = believed || found_host == Some(host);
        if !trusted {
            sessions.clear();
        }
        if found_host != Some(host) {
            // What the disk shows of them need not be what the earlier life did.
            sessions.values_mut().for_each(Journalled::lose_begun);
        }
        let found = trusted.then(|| sessions.clone());
        let mut journal = Self {
            log,
            host,
            sessions,
            host_crashed: !trusted || (host_crashed && !believed),
        };
        journal.rewrite()?;
        Ok((journal, found))
    }

    /// Whether leases may be alive that were granted before a crash of the host: in this life of
    /// the server, or in one that had not seen the end of its grace.
    pub fn host_crashed(&self) -> bool {
        self.host_crashed
    }

    /// No lease of an earlier life is alive.
    pub fn grace_ended(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.host_crashed) {
            return Ok(());
        }
        self.note(&Record::GraceEnded)
    }

    /// Notes that a session may send changes again that ran before the host crashed.
    pub fn crashed(&mut self, session: SessionId) -> io::Result<()> {
        self.sessions.entry(session).or_default().crashed = true;
        self.note(&Record::Crashed { session })
    }

    /// Notes what a change is about to do, and that changes below `low` are no longer asked for.
    pub fn begins(
        &mut self,
        session: SessionId,
        seq: Seq,
        low: Seq,
        intent: &Intent,
    ) -> io::Result<()> {
        if let Some(journalled) = self.sessions.get_mut(&session) {
            journalled.raise(low);
        }
        self.note(&Record::Begins {
            session,
            seq,
            low,
            intent: Cow::Borrowed(intent),
        })?;
        let journalled = self.sessions.entry(session).or_default();
        journalled.begins(seq, intent.clone());
        journalled.raise(low);
        Ok(())
    }

    /// Notes the answer of a change that has begun.
    pub fn ends(&mut self, session: SessionId, seq: Seq, answer: &Answer) -> io::Result<()> {
        let Some(journalled) = self.begun(session, seq) else {
            return Ok(());
        };
        journalled.ends(seq, answer.clone());
        self.note(&Record::Ends {
            session,
            seq,
            answer: Cow::Borrowed(answer),
        })
    }

    /// Notes that a change has not happened although it had begun.
    pub fn undone(&mut self, session: SessionId, seq: Seq) -> io::Result<()> {
        let Some(journalled) = self.begun(session, seq) else {
            return Ok(());
        };
        journalled.changes.remove(&seq);
        self.note(&Record::Undone { session, seq })
    }

    /// The session, if this change of it has begun and was not answered.
    fn begun(&mut self, session: SessionId, seq: Seq) -> Option<&mut Journalled> {
        let journalled = self.sessions.get_mut(&session)?;
        match journalled.changes.get(&seq)? {
            State::Begun(_) => Some(journalled),
            State::Answered(_) => None,
        }
    }

    /// Notes that a Write lease is about to be granted.
    pub fn write_lease(&mut self, session: SessionId, object: Handle) -> io::Result<()> {
        let journalled = self.sessions.entry(session).or_default();
        journalled.asked.insert(object);
        if journalled.writes.contains(&object) {
            return Ok(());
        }
        self.note(&Record::Write { session, object })?;
        let journalled = self.sessions.entry(session).or_default();
        journalled.writes.insert(object);
        Ok(())
    }

    /// Write leases that nobody has asked for since the last call: those that aren't held have
    /// ended.
    pub fn idle_writes(&mut self) -> Vec<(SessionId, Handle)> {
        let mut idle = Vec::new();
        for (session, journalled) in &mut self.sessions {
            let asked = std::mem::take(&mut journalled.asked);
            let writes = journalled.writes.difference(&asked);
            idle.extend(writes.map(|object| (*session, *object)));
        }
        idle
    }

    /// A Write lease has ended, unless it was asked for again meanwhile. The next rewriting of the
    /// log leaves it out; until then a restart takes it for granted, which costs a wait at most.
    pub fn write_ended(&mut self, session: SessionId, object: &Handle) {
        if let Some(journalled) = self.sessions.get_mut(&session)
            && !journalled.asked.contains(object)
        {
            journalled.writes.remove(object);
        }
    }

    /// The session's leases have ended.
    pub fn leases_ended(&mut self, session: SessionId) -> io::Result<()> {
        match self.sessions.get_mut(&session) {
            Some(journalled) if !journalled.writes.is_empty() => {
                journalled.writes.clear();
                self.note(&Record::LeasesEnded { session })
            }
            _ => Ok(()),
        }
    }

    /// The session has ended.
    pub fn forget(&mut self, session: SessionId) -> io::Result<()> {
        match self.sessions.remove(&session) {
            Some(_) => self.note(&Record::Forgotten { session }),
            None => Ok(()),
        }
    }

    /// Makes durable what was journalled: an orderly end survives a restart of the host.
    pub fn sync(&self) -> io::Result<()> {
        self.log.sync()
    }

    fn note(&mut self, record: &Record<'_>) -> io::Result<()> {
        if self.log.is_long()
            && let Err(error) = self.rewrite()
        {
            tracing::warn!(%error, "the journal can't be shortened");
        }
        self.log.append(&encode(record)?)
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let header = Record::Host(self.host);
        let of_sessions = self.sessions.iter();
        let records = of_sessions.flat_map(|(session, journalled)| journalled.records(*session));
        let crashed = self.host_crashed.then_some(Record::HostCrashed);
        let records: Vec<Vec<u8>> = std::iter::once(header)
            .chain(crashed)
            .chain(records)
            .map(|record| encode(&record))
            .collect::<io::Result<_>>()?;
        self.log.rewrite(records, false)
    }
}

impl Journalled {
    /// The session's changes that had begun.
    pub fn into_changes(self) -> Vec<(Seq, Recorded)> {
        let kept = self.changes.into_iter().map(|(seq, state)| {
            let recorded = match state {
                State::Begun(intent) => Recorded::Intent(intent),
                State::Answered(answer) => Recorded::Answered(answer),
            };
            (seq, recorded)
        });
        let lost = self.lost.into_iter().map(|seq| (seq, Recorded::Lost));
        kept.chain(lost).collect()
    }

    fn begins(&mut self, seq: Seq, intent: Intent) {
        self.first = Some(self.first.map_or(seq, |first| first.min(seq)));
        self.changes.insert(seq, State::Begun(intent));
    }

    /// As many answers are kept as the running server keeps.
    fn ends(&mut self, seq: Seq, answer: Answer) {
        self.changes.insert(seq, State::Answered(answer));
        self.answered.insert(seq);
        if self.answered.len() > MAX_ANSWERS
            && let Some(oldest) = self.answered.pop_first()
        {
            self.lose(oldest);
        }
    }

    fn lose(&mut self, seq: Seq) {
        self.changes.remove(&seq);
        self.answered.remove(&seq);
        self.lost.insert(seq);
    }

    fn lose_begun(&mut self) {
        let begun = self.changes.iter();
        let begun = begun.filter(|(_, state)| matches!(state, State::Begun(_)));
        let begun: Vec<Seq> = begun.map(|(seq, _)| *seq).collect();
        begun.into_iter().for_each(|seq| self.lose(seq));
    }

    fn raise(&mut self, low: Seq) {
        if low > self.low {
            self.low = low;
            // What came before the first that began since the crash is asked for no more.
            self.crashed &= self.first.is_none_or(|first| first > low);
            self.changes = self.changes.split_off(&low);
            self.answered = self.answered.split_off(&low);
            self.lost = self.lost.split_off(&low);
        }
    }

    fn records(&self, session: SessionId) -> impl Iterator<Item = Record<'_>> {
        let changes = self.changes.iter().map(move |(seq, state)| match state {
            State::Begun(intent) => Record::Begins {
                session,
                seq: *seq,
                low: self.low,
                intent: Cow::Borrowed(intent),
            },
            State::Answered(answer) => Record::Ends {
                session,
                seq: *seq,
                answer: Cow::Borrowed(answer),
            },
        });
        let lost = self.lost.iter();
        let lost = lost.map(move |seq| Record::Lost { session, seq: *seq });
        let writes = self.writes.iter();
        let writes = writes.map(move |object| Record::Write {
            session,
            object: *object,
        });
        let crashed = self.crashed.then_some(Record::Crashed { session });
        crashed.into_iter().chain(changes).chain(lost).chain(writes)
    }
}

fn encode(record: &Record<'_>) -> io::Result<Vec<u8>> {
    let mut framed = codec::encode(record, 0).map_err(io::Error::other)?;
    Ok(framed.split_off(PREFIX))
}

fn replay(sessions: &mut Sessions, record: Record<'_>) {
    match record {
        Record::Host(_) | Record::HostCrashed | Record::GraceEnded => {}
        Record::Crashed { session } => sessions.entry(session).or_default().crashed = true,
        Record::Begins {
            session,
            seq,
            low,
            intent,
        } => {
            let journalled = sessions.entry(session).or_default();
            journalled.begins(seq, intent.into_owned());
            journalled.raise(low);
        }
        Record::Ends {
            session,
            seq,
            answer,
        } => {
            let journalled = sessions.entry(session).or_default();
            journalled.ends(seq, answer.into_owned());
        }
        Record::Undone { session, seq } => {
            let journalled = sessions.entry(session).or_default();
            journalled.changes.remove(&seq);
        }
        Record::Lost { session, seq } => sessions.entry(session).or_default().lose(seq),
        Record::Write { session, object } => {
            let journalled = sessions.entry(session).or_default();
            journalled.writes.insert(object);
        }
        Record::LeasesEnded { session } => {
            if let Some(journalled) = sessions.get_mut(&session) {
                journalled.writes.clear();
            }
        }
        Record::Forgotten { session } => {
            sessions.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests;
