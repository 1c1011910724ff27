//! Sessions on record: whose they are, and whether they may hold leases.

use super::error::StateError;
use super::log::{Log, Outlives, State};
use super::trouble::Trouble;
use crate::records::Owner;
use leasefs_protocol::limits::MAX_SESSIONS;
use leasefs_protocol::{KeyHash, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A session on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnRecord {
    /// Whose it is.
    pub owner: Owner,
    /// Whether it may hold leases.
    pub leased: bool,
}

/// A record of the log.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The session may hold leases from now on.
    Leased { session: SessionId, owner: Owner },
    /// Its leases have ended.
    LeasesEnded { session: SessionId },
    /// It has ended.
    Forgotten { session: SessionId },
}

#[derive(Debug, Default)]
struct Sessions(BTreeMap<SessionId, OnRecord>);

impl State for Sessions {
    type Record = Record;

    fn apply(&mut self, record: Record) {
        match record {
            Record::Leased { session, owner } => {
                let leased = true;
                self.0.insert(session, OnRecord { owner, leased });
            }
            Record::LeasesEnded { session } => {
                if let Some(on_record) = self.0.get_mut(&session) {
                    on_record.leased = false;
                }
            }
            Record::Forgotten { session } => {
                self.0.remove(&session);
            }
        }
    }

    fn snapshot(&self) -> Vec<Record> {
        let of_session = |(session, on_record): (&SessionId, &OnRecord)| {
            let (session, owner) = (*session, on_record.owner);
            let ended = (!on_record.leased).then_some(Record::LeasesEnded { session });
            std::iter::once(Record::Leased { session, owner }).chain(ended)
        };
        self.0.iter().flat_map(of_session).collect()
    }
}

/// The record of sessions. A session is durable on it before its first grant; that it has ended
/// need not be.
#[derive(Debug)]
pub struct SessionRecord(Log<Sessions>);

impl SessionRecord {
    /// Opens the record kept in a file.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Log::open(path, Outlives::Host, Sessions::default()).map(Self)
    }

    /// Whether it can be written.
    pub fn trouble(&self) -> Arc<Trouble> {
        self.0.trouble()
    }

    fn sessions(&self) -> &BTreeMap<SessionId, OnRecord> {
        &self.0.state().0
    }

    /// All sessions on record.
    pub fn all(&self) -> impl Iterator<Item = (SessionId, OnRecord)> + '_ {
        self.sessions().iter().map(|(id, session)| (*id, *session))
    }

    /// Sessions of these clients.
    pub fn of_clients(&self, which: impl Fn(KeyHash) -> bool) -> Vec<(SessionId, OnRecord)> {
        let of = |(_, session): &(SessionId, OnRecord)| which(session.owner.client);
        self.all().filter(of).collect()
    }

    /// A session.
    pub fn get(&self, session: SessionId) -> Option<OnRecord> {
        self.sessions().get(&session).copied()
    }

    /// Makes durable that the session exists and may hold leases.
    pub fn record(&mut self, session: SessionId, owner: Owner) -> io::Result<()> {
        let leased = true;
        let known = self.get(session);
        if known == Some(OnRecord { owner, leased }) {
            return Ok(());
        }
        if self.sessions().len() >= MAX_SESSIONS && known.is_none() {
            return Err(io::Error::other("too many sessions on record"));
        }
        self.0.append_durably(Record::Leased { session, owner })
    }

    /// The session's leases have ended.
    pub fn leases_ended(&mut self, session: SessionId) -> io::Result<()> {
        match self.get(session) {
            Some(on_record) if on_record.leased => self.0.note(Record::LeasesEnded { session }),
            _ => Ok(()),
        }
    }

    /// The session has ended.
    pub fn forget(&mut self, session: SessionId) -> io::Result<()> {
        match self.get(session) {
            Some(_) => self.0.note(Record::Forgotten { session }),
            None => Ok(()),
        }
    }

    /// No lease of any session is alive: makes that durable.
    pub fn all_leases_ended(&mut self) -> io::Result<()> {
        for session in self.0.state_mut().0.values_mut() {
            session.leased = false;
        }
        self.0.rewrite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Rights;
    use crate::state::tests::Scratch;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);
    const OWNER: Owner = Owner {
        client: KeyHash([3; 32]),
        rights: Rights([4; 32]),
        birth: [5; 16],
    };

    #[test]
    fn what_was_recorded_is_found_again_with_whether_leases_have_ended() {
        let scratch = Scratch::new();
        let path = scratch.path("sessions");
        let mut record = SessionRecord::open(&path).expect("open");
        record.record(A, OWNER).expect("record");
        record.record(B, OWNER).expect("record");
        record.leases_ended(A).expect("note");
        let leased = |path: &Path| {
            let record = SessionRecord::open(path).expect("open");
            record.all().map(|(_, s)| s.leased).collect::<Vec<_>>()
        };
        assert_eq!(leased(&path), [false, true]);
        record.record(A, OWNER).expect("record");
        assert_eq!(leased(&path), [true, true]);
        record.all_leases_ended().expect("rewrite");
        assert_eq!(leased(&path), [false, false]);
        record.forget(B).expect("forget");
        assert_eq!(leased(&path), [false]);
    }

    #[test]
    fn whose_a_session_is_is_found_again() {
        let scratch = Scratch::new();
        let path = scratch.path("sessions");
        let mut record = SessionRecord::open(&path).expect("open");
        record.record(A, OWNER).expect("record");
        let record = SessionRecord::open(&path).expect("open");
        assert_eq!(record.get(A).expect("on record").owner, OWNER);
        assert_eq!(record.get(B), None);
    }
}
