//! The state of a session, for people.

use super::request::Waits;
use super::shared::{Shared, lock};
use leasefs_protocol::control::{IdentityPolicy, Standing};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// Its kind.
    pub kind: String,
    /// Handle of the object it names or changes, in hexadecimal; absent where it names opens only.
    pub object: Option<String>,
    /// On whose behalf.
    pub uid: u32,
    /// The process that waits, where it is known.
    pub pid: Option<u32>,
    /// How long already.
    pub waited_ms: u64,
    /// How long at most from now; absent: for ever.
    pub ends_in_ms: Option<u64>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Status {
    pub(super) fn of(shared: &Shared) -> Self {
        let (requests, waits) = {
            let table = lock(&shared.table);
            (table.counts(), table.waiting())
        };
        let contact = lock(&shared.contact);
        let connection = contact.connection.as_ref();
        let (sent, received) = connection.map_or((0, 0), |connection| connection.bytes());
        let in_contact = contact.is_in_contact();
        let state = match (connection, in_contact) {
            (None, _) => "disconnected",
            (Some(_), false) => "silent",
            (Some(_), true) => "connected",
        };
        let welcome = contact.welcome.as_ref();
        Self {
            session: shared.config.session.to_string(),
            server: shared.config.server.to_string(),
            state: state.into(),
            trouble: contact.trouble.clone(),
            server_process: welcome.map(|w| w.process.to_string()),
            standing: welcome.map(|w| standing(w.standing).into()),
            identity: welcome.map(|w| identity(w.identity).into()),
            term_ms: millis(shared.term()),
            rtt_us: connection.map(|c| c.rtt().as_micros() as u64),
            reconnects: contact.connections.saturating_sub(1),
            requests_total: requests.values().sum(),
            requests: requests
                .into_iter()
                .map(|(kind, count)| (kind.into(), count))
                .collect(),
            renewals: shared.renewals_sent.load(Ordering::Relaxed),
            bytes_sent: contact.bytes.0 + sent,
            bytes_received: contact.bytes.1 + received,
            opens: lock(&shared.opens).len(),
            waiting: waiting(waits, in_contact),
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

fn identity(policy: IdentityPolicy) -> &'static str {
    match policy {
        IdentityPolicy::Squash => "squash",
        IdentityPolicy::RootSquash => "root_squash",
        IdentityPolicy::Trust => "trust",
    }
}

fn waiting(waits: Vec<Waits>, in_contact: bool) -> Vec<Waiting> {
    let now = Instant::now();
    let mut waiting: Vec<Waiting> = waits
        .into_iter()
        .filter(|waits| now - waits.since >= WORTH_TELLING)
        .map(|waits| Waiting {
            kind: waits.kind.into(),
            object: waits.object.map(|object| object.to_string()),
            uid: waits.uid,
            pid: waits.pid,
            waited_ms: millis(now - waits.since),
            ends_in_ms: waits.wait.map(|wait| {
                let end = if in_contact {
                    wait.in_contact
                } else {
                    wait.silent
                };
                millis(end.saturating_duration_since(now))
            }),
        })
        .collect();
    waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.waited_ms));
    waiting
}
