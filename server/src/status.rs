//! What a running server tells of itself.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A server, for people and their programs. Times are milliseconds from the moment of asking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Term of leases.
    pub term_ms: u64,
    /// What is left of the grace after a restart; none if there is no grace.
    pub grace_ms: Option<u64>,
    /// Why the state directory can't be written; none if it can.
    #[serde(default)]
    pub state_trouble: Option<String>,
    /// Sessions, those included that are away.
    pub sessions: Vec<SessionStatus>,
    /// Operations that wait.
    pub waiting: Vec<Waiting>,
    /// Files that bounce between sessions, and directories where others look: writes to them, or to what is made there, aren't buffered.
    #[serde(default)]
    pub term_zero: Vec<TermZero>,
    /// Files and directories that are asked for most, the busiest first.
    #[serde(default)]
    pub busiest: Vec<BusyFile>,
    /// Locks that are held or waited for.
    #[serde(default)]
    pub locks: Vec<Lock>,
    /// Requests answered since the server started, by kind.
    pub requests: BTreeMap<String, u64>,
    /// Keep-alives answered since the server started.
    pub renewals: u64,
    /// Connections closed because their client broke the protocol.
    pub violations: u64,
}

/// What clients ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyFile {
    /// Its handle, in hexadecimal.
    pub object: String,
    /// Its inode number on this host; none if it is gone.
    pub inode: Option<u64>,
    /// Where it is in the served directory, if this host's kernel knows that at present.
    pub path: Option<String>,
    /// Requests a second, in the last ten seconds that were counted.
    pub per_second: u64,
}

/// A lock of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Handle of the file, in hexadecimal.
    pub object: String,
    /// The file's inode number on this host; none if it is gone.
    pub inode: Option<u64>,
    /// Where it is in the served directory, if this host's kernel knows that at present.
    #[serde(default)]
    pub path: Option<String>,
    /// The session.
    pub session: String,
    /// Host and mount point as the client tells them.
    pub mount: String,
    /// The process, as its own machine numbers it.
    pub pid: u32,
    /// `fcntl` (of open file descriptions too) or `flock`.
    pub kind: String,
    /// Whether others may hold one beside it.
    pub shared: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte; none to the end of the file, however long it gets.
    pub last: Option<u64>,
    /// Its number; none while it is waited for.
    pub token: Option<u64>,
    /// Since when it is held, as far as the server knows, or waited for.
    pub since_ms: u64,
    /// The mount decides the file's locks itself: it may hold others by now.
    pub decided_there: bool,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its id.
    pub session: String,
    /// Its client's name.
    pub client: String,
    /// Its client's key.
    pub key: String,
    /// Host and mount point as the client tells them.
    pub mount: String,
    /// Where it is connected from; none if it isn't.
    pub address: Option<String>,
    /// For how long it is kept should its client not come back; none while it is connected.
    #[serde(default)]
    pub kept_ms: Option<u64>,
    /// When its leases end; none if they have.
    pub expires_ms: Option<u64>,
    /// Whether it may still reclaim leases of the server's earlier life.
    pub reclaiming: bool,
    /// For how long it gets no leases because its client has held others up; none if it gets them.
    pub denied_ms: Option<u64>,
    /// Objects it holds a lease on.
    pub leases: usize,
    /// Files it has open.
    pub opens: usize,
    /// Recalls it owes an approval.
    pub recalls: usize,
    /// Requests answered, by kind.
    pub requests: BTreeMap<String, u64>,
    /// Keep-alives answered.
    pub renewals: u64,
}

impl SessionStatus {
    /// What people know it by.
    pub fn called(&self) -> &str {
        match self.mount.as_str() {
            // Not back since the server began.
            "" => &self.client,
            mount => mount,
        }
    }

    /// Whether it is away and nobody waits for it, nor will.
    fn is_put_by(&self) -> bool {
        let holds = self.leases > 0 || self.recalls > 0 || self.reclaiming;
        self.kept_ms.is_some() && self.expires_ms.is_none() && self.denied_ms.is_none() && !holds
    }
}

/// Sessions of one name that are away and without leases: kept for a mount that may come back, as one that sleeps does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away<'s> {
    /// The one of them that is kept longest.
    pub longest: &'s SessionStatus,
    /// How many.
    pub count: usize,
    /// What they have open.
    pub opens: usize,
}

impl Status {
    /// Sessions to be told one by one, and the others.
    pub fn present_and_away(&self) -> (Vec<&SessionStatus>, Vec<Away<'_>>) {
        let asks = |one: &SessionStatus| self.waiting.iter().any(|w| w.session == one.session);
        let mut all: Vec<&SessionStatus> = self.sessions.iter().collect();
        let away = all.extract_if(.., |one| one.is_put_by() && !asks(one));
        let mut groups: BTreeMap<(&str, &str), Away<'_>> = BTreeMap::new();
        for one in away {
            let group = groups.entry((one.called(), &one.key)).or_insert(Away {
                longest: one,
                count: 0,
                opens: 0,
            });
            group.count += 1;
            group.opens += one.opens;
            if one.kept_ms > group.longest.kept_ms {
                group.longest = one;
            }
        }
        (all, groups.into_values().collect())
    }
}

/// An operation that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The session that asked.
    pub session: String,
    /// Kind of the request.
    pub request: String,
    /// For how long.
    pub since_ms: u64,
    /// Sessions whose approval it waits for.
    pub holders: Vec<String>,
    /// Whether it waits for the end of the grace.
    pub grace: bool,
    /// When that ends at the latest.
    pub until_ms: Option<u64>,
}

/// A file that bounces between sessions: nobody gets an exclusive lease on it with a write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermZero {
    /// Its handle.
    pub object: String,
    /// Its inode number in the served directory, by which `find -inum` knows it; none if it is gone.
    pub inode: Option<u64>,
    /// Where it is in the served directory, if this host's kernel knows that at present.
    #[serde(default)]
    pub path: Option<String>,
    /// It is a directory: what is new there is meant.
    #[serde(default)]
    pub directory: bool,
    /// For how long.
    pub since_ms: u64,
    /// When the period ends after which it is decided whether that goes on.
    pub until_ms: u64,
    /// In this period, writes that an exclusive lease would have saved.
    pub hits: u64,
    /// In this period, reads that would have had to wait for its recall.
    pub recalls: u64,
}
