//! How the session stands, for people.

use super::requests::Rpc;
use leasefs_protocol::Handle;
use leasefs_protocol::control::Welcome;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A session's state and counters.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// What the last connection was welcomed with.
    pub welcome: Option<Welcome>,
    /// Whether a connection stands.
    pub connected: bool,
    /// Whether anything has come lately.
    pub in_contact: bool,
    /// Why there is no connection.
    pub trouble: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// Term of the leases.
    pub term: Duration,
    /// Requests sent, by kind; renewals apart.
    pub requests: BTreeMap<&'static str, u64>,
    /// Keep-alives sent.
    pub renewals: u64,
    /// Opens of the session.
    pub opens: usize,
    /// Requests that wait.
    pub waiting: Vec<Waits>,
}

/// A request that waits for the server.
#[derive(Clone, Debug)]
pub struct Waits {
    /// Its kind.
    pub kind: &'static str,
    /// The object it names or changes, where it doesn't name opens only.
    pub object: Option<Handle>,
    /// Where that was found last.
    pub path: Option<PathBuf>,
    /// On whose behalf.
    pub uid: u32,
    /// The process that waits, where it is known.
    pub pid: Option<u32>,
    /// How long already.
    pub waited: Duration,
    /// How long at most from now; `None`: for ever.
    pub ends_in: Option<Duration>,
}

impl Rpc {
    /// How the session stands.
    pub(crate) fn status(&self) -> SessionStatus {
        let now = self.0.cx.monotonic();
        let progress = self.progress();
        let contact = self.0.contact.borrow();
        let table = self.0.table.borrow();
        let waiting = table.waiting().into_iter().map(|waiting| Waits {
            kind: waiting.kind,
            path: waiting
                .object
                .as_ref()
                .and_then(|object| self.0.cache.path_of(object)),
            object: waiting.object,
            uid: waiting.uid,
            pid: waiting.pid,
            waited: now.since(waiting.since),
            ends_in: waiting
                .wait
                .and_then(|wait| wait.ends(progress))
                .map(|at| at.left_at(now)),
        });
        let renewing = self.0.renewing.borrow();
        SessionStatus {
            welcome: contact.welcome.clone(),
            connected: contact.connected,
            in_contact: progress.in_contact,
            trouble: contact.trouble.clone(),
            connections: contact.connections,
            term: renewing.term,
            requests: table.counts(),
            renewals: renewing.keep_alives,
            opens: self.0.opens.len(),
            waiting: waiting.collect(),
        }
    }
}
