//! Sessions on record: whose they are, and whether they may hold leases.

use super::log::Log;
use leasefs_protocol::limits::MAX_SESSIONS;
use leasefs_protocol::{KeyHash, SessionId};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

const RECORDED: u8 = 1;
const LEASES_ENDED: u8 = 2;
const FORGOTTEN: u8 = 3;

/// A session on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnRecord {
    /// Whose it is.
    pub client: KeyHash,
    /// Whether it may hold leases.
    pub leased: bool,
}

/// The record of sessions. A session is durable on it before its first grant; that it has ended
/// need not be.
#[derive(Debug)]
pub struct SessionRecord {
    log: Log,
    sessions: BTreeMap<SessionId, OnRecord>,
}

impl SessionRecord {
    /// Opens the record kept in a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (log, records) = Log::open(path)?;
        let mut sessions = BTreeMap::new();
        for record in records {
            replay(&mut sessions, &record);
        }
        Ok(Self { log, sessions })
    }

    /// All sessions on record.
    pub fn all(&self) -> impl Iterator<Item = (SessionId, OnRecord)> + '_ {
        self.sessions.iter().map(|(id, session)| (*id, *session))
    }

    /// Sessions of these clients.
    pub fn of_clients(&self, which: impl Fn(KeyHash) -> bool) -> Vec<(SessionId, OnRecord)> {
        let of = |(_, session): &(SessionId, OnRecord)| which(session.client);
        self.all().filter(of).collect()
    }

    /// A session.
    pub fn get(&self, session: SessionId) -> Option<OnRecord> {
        self.sessions.get(&session).copied()
    }

    /// Makes durable that the session exists and may hold leases.
    pub fn record(&mut self, session: SessionId, client: KeyHash) -> io::Result<()> {
        let recorded = OnRecord {
            client,
            leased: true,
        };
        if self.sessions.get(&session) == Some(&recorded) {
            return Ok(());
        }
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&session) {
            return Err(io::Error::other("too many sessions on record"));
        }
        self.log.append(&encode(session, &recorded))?;
        self.log.sync()?;
        self.sessions.insert(session, recorded);
        Ok(())
    }

    /// The session's leases have ended.
    pub fn leases_ended(&mut self, session: SessionId) -> io::Result<()> {
        let Some(on_record) = self.sessions.get_mut(&session) else {
            return Ok(());
        };
        if !std::mem::replace(&mut on_record.leased, false) {
            return Ok(());
        }
        self.note(LEASES_ENDED, session)
    }

    /// The session has ended.
    pub fn forget(&mut self, session: SessionId) -> io::Result<()> {
        if self.sessions.remove(&session).is_none() {
            return Ok(());
        }
        self.note(FORGOTTEN, session)
    }

    fn note(&mut self, tag: u8, session: SessionId) -> io::Result<()> {
        self.log.append(&[&[tag], &session.0[..]].concat())?;
        if self.log.is_long() {
            self.rewrite()?;
        }
        Ok(())
    }

    /// No lease of any session is alive: makes that durable.
    pub fn all_leases_ended(&mut self) -> io::Result<()> {
        for session in self.sessions.values_mut() {
            session.leased = false;
        }
        self.rewrite()
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let records = self.sessions.iter().flat_map(|(id, session)| {
            let ended = (!session.leased).then(|| [&[LEASES_ENDED], &id.0[..]].concat());
            [Some(encode(*id, session)), ended].into_iter().flatten()
        });
        self.log.rewrite(records, true)
    }
}

fn encode(session: SessionId, on_record: &OnRecord) -> Vec<u8> {
    [&[RECORDED], &session.0[..], &on_record.client.0[..]].concat()
}

fn replay(sessions: &mut BTreeMap<SessionId, OnRecord>, record: &[u8]) {
    let parsed = record
        .split_first()
        .and_then(|(tag, rest)| Some((*tag, rest.split_first_chunk::<16>()?)));
    let Some((tag, (session, rest))) = parsed else {
        return;
    };
    let session = SessionId(*session);
    match (tag, <[u8; 32]>::try_from(rest)) {
        (RECORDED, Ok(client)) => {
            let client = KeyHash(client);
            let leased = true;
            sessions.insert(session, OnRecord { client, leased });
        }
        (LEASES_ENDED, _) => {
            if let Some(on_record) = sessions.get_mut(&session) {
                on_record.leased = false;
            }
        }
        (FORGOTTEN, _) => {
            sessions.remove(&session);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);
    const KEY: KeyHash = KeyHash([3; 32]);

    #[test]
    fn what_was_recorded_is_found_again_with_whether_leases_have_ended() {
        let scratch = Scratch::new();
        let path = scratch.path("sessions");
        let mut record = SessionRecord::open(&path).expect("open");
        record.record(A, KEY).expect("record");
        record.record(B, KEY).expect("record");
        record.leases_ended(A).expect("note");
        let leased = |path: &Path| {
            let record = SessionRecord::open(path).expect("open");
            record.all().map(|(_, s)| s.leased).collect::<Vec<_>>()
        };
        assert_eq!(leased(&path), [false, true]);
        record.record(A, KEY).expect("record");
        assert_eq!(leased(&path), [true, true]);
        record.all_leases_ended().expect("rewrite");
        assert_eq!(leased(&path), [false, false]);
        record.forget(B).expect("forget");
        assert_eq!(leased(&path), [false]);
    }
}
