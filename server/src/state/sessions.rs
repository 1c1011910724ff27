//! Sessions on record: whose they are, and whether they may hold leases.

use super::log::Log;
use crate::records::{Owner, Rights};
use leasefs_protocol::limits::MAX_SESSIONS;
use leasefs_protocol::{KeyHash, SessionId};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// As servers wrote it that knew of a session only whose it is.
const RECORDED_PLAINLY: u8 = 1;
const LEASES_ENDED: u8 = 2;
const FORGOTTEN: u8 = 3;
const RECORDED: u8 = 4;

/// A session on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnRecord {
    /// Whose it is.
    pub owner: Owner,
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
        let of = |(_, session): &(SessionId, OnRecord)| which(session.owner.client);
        self.all().filter(of).collect()
    }

    /// A session.
    pub fn get(&self, session: SessionId) -> Option<OnRecord> {
        self.sessions.get(&session).copied()
    }

    /// Makes durable that the session exists and may hold leases.
    pub fn record(&mut self, session: SessionId, owner: Owner) -> io::Result<()> {
        let leased = true;
        let recorded = OnRecord { owner, leased };
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
    let Owner {
        client,
        rights,
        birth,
    } = on_record.owner;
    [&[RECORDED], &session.0[..], &client.0, &rights.0, &birth].concat()
}

fn owner(recorded: &[u8]) -> Option<Owner> {
    let (client, rest) = recorded.split_first_chunk()?;
    let (rights, birth) = rest.split_first_chunk()?;
    Some(Owner {
        client: KeyHash(*client),
        rights: Rights(*rights),
        birth: birth.try_into().ok()?,
    })
}

/// Its client has no rights of which a session could go on: it begins anew.
fn plain_owner(recorded: &[u8]) -> Option<Owner> {
    Some(Owner {
        client: KeyHash(recorded.try_into().ok()?),
        rights: Rights::default(),
        birth: [0; 16],
    })
}

fn replay(sessions: &mut BTreeMap<SessionId, OnRecord>, record: &[u8]) {
    let parsed = record
        .split_first()
        .and_then(|(tag, rest)| Some((*tag, rest.split_first_chunk::<16>()?)));
    let Some((tag, (session, rest))) = parsed else {
        return;
    };
    let session = SessionId(*session);
    let owner = match tag {
        RECORDED => owner(rest),
        RECORDED_PLAINLY => plain_owner(rest),
        _ => None,
    };
    match (tag, owner) {
        (_, Some(owner)) => {
            let leased = true;
            sessions.insert(session, OnRecord { owner, leased });
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
    fn whose_a_session_is_is_found_again_also_as_it_was_recorded_before() {
        let scratch = Scratch::new();
        let path = scratch.path("sessions");
        let mut record = SessionRecord::open(&path).expect("open");
        record.record(A, OWNER).expect("record");
        let plain = [&[RECORDED_PLAINLY], &B.0[..], &OWNER.client.0].concat();
        record.log.append(&plain).expect("append");
        let record = SessionRecord::open(&path).expect("open");
        let found = |session| record.get(session).expect("on record").owner;
        assert_eq!(found(A), OWNER);
        assert_eq!(found(B).client, OWNER.client);
        assert_eq!(found(B).rights, Rights::default());
    }
}
