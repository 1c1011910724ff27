//! How the session stands with its server.

use leasefs_lease::time::BootTime;
use leasefs_protocol::control::Welcome;
use std::time::Duration;

/// After so long a silence the server counts as out of contact.
const OUT_OF_CONTACT: Duration = Duration::from_secs(3);

/// For `status` and timeouts.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    pub welcome: Option<Welcome>,
    pub connected: bool,
    /// How long nothing has come on the connection.
    pub silent: Duration,
    /// When something came last, by the clock that stands still in suspend.
    pub heard: BootTime,
    /// Why there is no connection.
    pub trouble: Option<String>,
    pub connections: u64,
}

impl Contact {
    pub fn is_in_contact(&self) -> bool {
        self.connected && self.silent < OUT_OF_CONTACT
    }

    pub fn lost(&mut self, trouble: String) {
        self.connected = false;
        self.trouble = Some(trouble);
    }
}
