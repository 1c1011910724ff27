//! With whom a session is, and why it may not stand.

use leasefs_host::random::random;
use leasefs_protocol::control::HelloRefusal;
use leasefs_protocol::ticket::{Addresses, ServerAddr};
use leasefs_protocol::{KeyHash, RawName, SessionId};
use leasefs_transport::{Identity, TransportError};
use std::time::Duration;

/// What connections are made with.
pub struct Config {
    /// Where the server is; its names are resolved at each connection.
    pub servers: Addresses,
    /// Its key, pinned.
    pub key: KeyHash,
    /// Who this client is.
    pub identity: Identity,
    /// Secret of a ticket, to enrol.
    pub ticket: Option<[u8; 32]>,
    /// The mount's session.
    pub session: SessionId,
    /// For people: host name and mount point.
    pub name: String,
    /// Directory below the export that is mounted.
    pub subdir: Vec<RawName>,
    /// Bound of the clocks' drift, parts per million.
    pub drift_ppm: u32,
    /// How long the first connection may take.
    pub connect_timeout: Duration,
}

/// A session that nobody has had.
///
/// # Errors
/// A message for people.
pub fn new_session() -> Result<SessionId, String> {
    random().map(SessionId).map_err(|e| e.to_string())
}

impl ConnectError {
    /// The key that the server has shown, if it isn't the pinned one. Nothing proves that it is its own.
    pub fn other_key(&self) -> Option<KeyHash> {
        match self {
            Self::Transport {
                source: TransportError::WrongServer { found, .. },
                ..
            } => Some(*found),
            _ => None,
        }
    }
}

/// There is no session on a connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name can't be resolved.
    #[error("can't find {server}: {reason}")]
    Resolve {
        /// The server.
        server: ServerAddr,
        /// The resolver's reason.
        reason: String,
    },
    /// No connection.
    #[error("can't reach {server}: {source}")]
    Transport {
        /// The server.
        server: ServerAddr,
        /// Why.
        source: TransportError,
    },
    /// The server refuses the session.
    #[error("{server} refuses the mount: {refusal}")]
    Refused {
        /// The server.
        server: ServerAddr,
        /// Its reason.
        refusal: HelloRefusal,
    },
    /// The connection was lost, or the server broke the protocol, before the session stood.
    #[error("{server}: {reason}")]
    Broken {
        /// The server.
        server: ServerAddr,
        /// What happened.
        reason: String,
    },
}
