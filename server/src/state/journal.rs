//! The journal: which changes have begun and which Write leases were granted. It survives the
//! server's process, not its host: nothing in it is made durable, and it says which life of the
//! host it belongs to.

use super::log::Log;
use leasefs_protocol::{BootId, Handle, Seq, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

const HOST: u8 = 1;
const BEGUN: u8 = 2;
const WRITE: u8 = 3;
const ENDED: u8 = 4;
const FORGOTTEN: u8 = 5;

/// What is journalled of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journalled {
    low: Seq,
    /// Changes that have begun, above the low-water mark.
    pub begun: BTreeSet<Seq>,
    /// Objects it was granted Write leases of.
    pub writes: BTreeSet<Handle>,
}

type Sessions = BTreeMap<SessionId, Journalled>;

/// The journal.
#[derive(Debug)]
pub struct Journal {
    log: Log,
    host: BootId,
    sessions: Sessions,
}

impl Journal {
    /// Opens the journal kept in a file. Returns what it says, or `None` if it can't be believed,
    /// since it belongs to another life of the host. One left by an orderly end, or before any
    /// life, can be `believed` regardless.
    pub fn open(path: &Path, host: BootId, believed: bool) -> io::Result<(Self, Option<Sessions>)> {
        let (log, records) = Log::open(path)?;
        let mut sessions = Sessions::new();
        let mut found_host = None;
        for record in &records {
            match record.split_first() {
                Some((&HOST, id)) => found_host = <[u8; 16]>::try_from(id).ok().map(BootId),
                Some((&tag, rest)) => replay(&mut sessions, tag, rest),
                None => {}
            }
        }
        let trusted = believed || found_host == Some(host);
        if !trusted {
            sessions.clear();
        }
        let found = trusted.then(|| sessions.clone());
        let mut journal = Self {
            log,
            host,
            sessions,
        };
        journal.rewrite()?;
        Ok((journal, found))
    }

    /// Notes that a change is about to begin.
    pub fn begins(&mut self, session: SessionId, seq: Seq) -> io::Result<()> {
        let low = self.sessions.get(&session).map_or(Seq(0), |s| s.low);
        self.note(&begun(session, seq, low))?;
        let journalled = self.sessions.entry(session).or_default();
        journalled.begun.insert(seq);
        Ok(())
    }

    /// Changes below the mark are no longer asked for. It is written with the next change.
    pub fn low_water(&mut self, session: SessionId, low: Seq) {
        if let Some(journalled) = self.sessions.get_mut(&session) {
            journalled.raise(low);
        }
    }

    /// Notes that a Write lease is about to be granted.
    pub fn write_lease(&mut self, session: SessionId, object: Handle) -> io::Result<()> {
        let known = self.sessions.get(&session);
        if known.is_some_and(|s| s.writes.contains(&object)) {
            return Ok(());
        }
        self.note(&write(session, &object))?;
        let journalled = self.sessions.entry(session).or_default();
        journalled.writes.insert(object);
        Ok(())
    }

    /// The session's leases have ended.
    pub fn leases_ended(&mut self, session: SessionId) -> io::Result<()> {
        match self.sessions.get_mut(&session) {
            Some(journalled) if !journalled.writes.is_empty() => {
                journalled.writes.clear();
                self.note(&about(ENDED, session))
            }
            _ => Ok(()),
        }
    }

    /// The session has ended.
    pub fn forget(&mut self, session: SessionId) -> io::Result<()> {
        match self.sessions.remove(&session) {
            Some(_) => self.note(&about(FORGOTTEN, session)),
            None => Ok(()),
        }
    }

    /// Makes durable what was journalled: an orderly end survives a restart of the host.
    pub fn sync(&self) -> io::Result<()> {
        self.log.sync()
    }

    fn note(&mut self, record: &[u8]) -> io::Result<()> {
        if self.log.is_long()
            && let Err(error) = self.rewrite()
        {
            tracing::warn!(%error, "the journal can't be shortened");
        }
        self.log.append(record)
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let header = [&[HOST], &self.host.0[..]].concat();
        let records = self.sessions.iter().flat_map(|(session, journalled)| {
            let begun = journalled
                .begun
                .iter()
                .map(|seq| begun(*session, *seq, journalled.low));
            let writes = journalled.writes.iter().map(|o| write(*session, o));
            begun.chain(writes)
        });
        let records: Vec<_> = std::iter::once(header).chain(records).collect();
        self.log.rewrite(records, false)
    }
}

impl Journalled {
    fn raise(&mut self, low: Seq) {
        if low > self.low {
            self.low = low;
            self.begun = self.begun.split_off(&low);
        }
    }
}

fn about(tag: u8, session: SessionId) -> Vec<u8> {
    [&[tag], &session.0[..]].concat()
}

fn begun(session: SessionId, seq: Seq, low: Seq) -> Vec<u8> {
    let mut record = about(BEGUN, session);
    record.extend_from_slice(&seq.0.to_le_bytes());
    record.extend_from_slice(&low.0.to_le_bytes());
    record
}

fn write(session: SessionId, object: &Handle) -> Vec<u8> {
    [&about(WRITE, session)[..], object.as_bytes()].concat()
}

fn replay(sessions: &mut Sessions, tag: u8, record: &[u8]) {
    let Some((session, rest)) = record.split_first_chunk::<16>() else {
        return;
    };
    let session = SessionId(*session);
    match tag {
        BEGUN => {
            if let ([seq, low], []) = rest.as_chunks::<8>() {
                let journalled = sessions.entry(session).or_default();
                journalled.begun.insert(Seq(u64::from_le_bytes(*seq)));
                journalled.raise(Seq(u64::from_le_bytes(*low)));
            }
        }
        WRITE => {
            if let Some(object) = Handle::new(rest) {
                let journalled = sessions.entry(session).or_default();
                journalled.writes.insert(object);
            }
        }
        ENDED => {
            if let Some(journalled) = sessions.get_mut(&session) {
                journalled.writes.clear();
            }
        }
        FORGOTTEN => {
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
    const HOST_A: BootId = BootId([8; 16]);
    const HOST_B: BootId = BootId([9; 16]);

    fn handle(byte: u8) -> Handle {
        Handle::new(&[byte; 30]).expect("fits")
    }

    #[test]
    fn begun_changes_above_the_low_water_mark_and_write_leases_are_found_again() {
        let scratch = Scratch::new();
        let path = scratch.path("journal");
        let (mut journal, found) = Journal::open(&path, HOST_A, true).expect("open");
        assert_eq!(found, Some(Sessions::new()));
        for seq in 1..=5 {
            journal.begins(A, Seq(seq)).expect("journal");
        }
        journal.low_water(A, Seq(4));
        journal.begins(A, Seq(6)).expect("journal");
        journal.write_lease(A, handle(1)).expect("journal");
        drop(journal);
        let (mut journal, found) = Journal::open(&path, HOST_A, false).expect("open");
        let found = found.expect("the same host");
        assert_eq!(found[&A].begun, BTreeSet::from([Seq(4), Seq(5), Seq(6)]));
        assert_eq!(found[&A].writes, BTreeSet::from([handle(1)]));
        journal.leases_ended(A).expect("journal");
        let (_, found) = Journal::open(&path, HOST_A, false).expect("open");
        assert!(found.expect("the same host")[&A].writes.is_empty());
    }

    #[test]
    fn after_a_restart_of_the_host_nothing_is_believed() {
        let scratch = Scratch::new();
        let path = scratch.path("journal");
        let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
        journal.begins(A, Seq(1)).expect("journal");
        let (_, found) = Journal::open(&path, HOST_B, false).expect("open");
        assert_eq!(found, None);
        let (_, found) = Journal::open(&path, HOST_B, false).expect("open");
        assert_eq!(found, Some(Sessions::new()));
    }

    #[test]
    fn an_orderly_end_is_believed_after_a_restart_of_the_host_and_a_lost_file_is_not() {
        let scratch = Scratch::new();
        let path = scratch.path("journal");
        let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
        journal.begins(A, Seq(1)).expect("journal");
        let (_, found) = Journal::open(&path, HOST_B, true).expect("open");
        assert!(found.expect("believed").contains_key(&A));
        std::fs::remove_file(&path).expect("remove");
        let (_, found) = Journal::open(&path, HOST_B, false).expect("open");
        assert_eq!(found, None);
    }

    #[test]
    fn the_file_stays_bounded_by_what_is_alive() {
        let scratch = Scratch::new();
        let path = scratch.path("journal");
        let (mut journal, _) = Journal::open(&path, HOST_A, true).expect("open");
        for seq in 1..=100_000 {
            journal.low_water(A, Seq(seq));
            journal.begins(A, Seq(seq)).expect("journal");
        }
        let len = std::fs::metadata(&path).expect("file").len();
        assert!(len < 2 << 20, "{len}");
        let (_, found) = Journal::open(&path, HOST_A, false).expect("open");
        let found = found.expect("the same host");
        assert_eq!(found[&A].begun, BTreeSet::from([Seq(100_000)]));
    }
}
