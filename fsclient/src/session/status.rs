//! The state of a session, for people.

use super::wire::Wire;
use leasefs_client::{SessionStatus, Waits};
use leasefs_protocol::control::Standing;
use leasefs_protocol::latency::millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A request is reported as waiting after this long.
const WORTH_TELLING: Duration = Duration::from_millis(100);

/// A session's state and counters. The field names are part of `fsclient status --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The session's id, in hexadecimal.
    pub session: String,
    /// `HOST:PORT`.
    pub server: String,
    /// `connected`, `silent` (connected, but nothing comes) or `disconnected`.
    pub state: String,
    /// Why there is no connection.
    pub trouble: Option<String>,
    /// Identity of the server's process, in hexadecimal.
    pub server_process: Option<String>,
    /// How the session stood at the last connection: `new`, `resumed`, `expired`, `reclaim`.
    pub standing: Option<String>,
    /// `squash`, `root_squash` or `trust`.
    pub identity: Option<String>,
    /// Term of the leases.
    pub term_ms: u64,
    /// Round-trip time.
    pub rtt_us: Option<u64>,
    /// Connections so far, the first one apart.
    pub reconnects: u64,
    /// Requests sent, by kind; renewals apart.
    pub requests: BTreeMap<String, u64>,
    /// Their sum.
    pub requests_total: u64,
    /// Keep-alives sent.
    pub renewals: u64,
    /// UDP bytes sent.
    pub bytes_sent: u64,
    /// UDP bytes received.
    pub bytes_received: u64,
    /// Opens of the session.
    pub opens: usize,
    /// Requests that have waited longer than 100 ms, the longest first.
    pub waiting: Vec<Waiting>,
}

/// A request that waits for the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Its kind.
    pub kind: String,
    /// Handle of the object it is about, in hexadecimal.
    pub object: Option<String>,
    /// Where that is below the mount point, as far as it is known.
    #[serde(default)]
    pub path: Option<String>,
    /// On whose behalf.
    pub uid: u32,
    /// The process that waits, where it is known.
    pub pid: Option<u32>,
    /// How long already.
    pub waited_ms: u64,
    /// How long at most from now; absent: for ever.
    pub ends_in_ms: Option<u64>,
}

impl Status {
    /// What the core and the connection say.
    pub fn new<W: 'static>(session: SessionStatus, wire: &Wire<W>) -> Self {
        let config = wire.config();
        let facts = wire.facts();
        let state = match (session.connected, session.in_contact) {
            (false, _) => "disconnected",
            (true, false) => "silent",
            (true, true) => "connected",
        };
        let welcome = session.welcome.as_ref();
        let requests = session.requests.into_iter();
        let requests: BTreeMap<String, u64> = requests
            .map(|(kind, count)| (kind.to_owned(), count))
            .collect();
        Self {
            session: config.session.to_string(),
            server: config.servers.first().to_string(),
            state: state.into(),
            trouble: session.trouble,
            server_process: welcome.map(|w| w.process.to_string()),
            standing: welcome.map(|w| standing(w.standing).into()),
            identity: welcome.map(|w| w.identity.name().into()),
            term_ms: millis(session.term),
            rtt_us: facts.rtt.map(|rtt| rtt.as_micros() as u64),
            reconnects: session.connections.saturating_sub(1),
            requests_total: requests.values().sum(),
            requests,
            renewals: session.renewals,
            bytes_sent: facts.traffic.bytes_sent,
            bytes_received: facts.traffic.bytes_received,
            opens: session.opens,
            waiting: waiting(session.waiting),
        }
    }
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::New => "new",
        Standing::Resumed => "resumed",
        Standing::Expired => "expired",
        Standing::Reclaim => "reclaim",
    }
}

fn waiting(waits: Vec<Waits>) -> Vec<Waiting> {
    let mut waiting: Vec<Waiting> = waits
        .into_iter()
        .filter(|waits| waits.waited >= WORTH_TELLING)
        .map(|waits| Waiting {
            kind: waits.kind.into(),
            object: waits.object.map(|object| object.to_string()),
            path: waits.path.map(|path| path.display().to_string()),
            uid: waits.uid,
            pid: waits.pid,
            waited_ms: millis(waits.waited),
            ends_in_ms: waits.ends_in.map(millis),
        })
        .collect();
    waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.waited_ms));
    waiting
}
