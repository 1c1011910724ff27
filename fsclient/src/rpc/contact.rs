//! How the session stands with its server.

use leasefs_protocol::control::Welcome;
use leasefs_transport::Connection;
use std::time::Duration;

/// After so long a silence the server counts as out of contact.
const OUT_OF_CONTACT: Duration = Duration::from_secs(3);

/// For `status` and timeouts.
#[derive(Debug, Default)]
pub(super) struct Contact {
    pub(super) welcome: Option<Welcome>,
    pub(super) connection: Option<Connection>,
    /// How long nothing has come on the connection.
    pub(super) silent: Duration,
    /// Why there is no connection.
    pub(super) trouble: Option<String>,
    pub(super) connections: u64,
    /// Bytes of earlier connections, sent and received.
    pub(super) bytes: (u64, u64),
}

impl Contact {
    pub(super) fn is_in_contact(&self) -> bool {
        self.connection.is_some() && self.silent < OUT_OF_CONTACT
    }

    pub(super) fn lost(&mut self, trouble: String) {
        if let Some(connection) = self.connection.take() {
            let (sent, received) = connection.bytes();
            self.bytes = (self.bytes.0 + sent, self.bytes.1 + received);
        }
        self.trouble = Some(trouble);
    }
}
