//! What a request means: its names, rights and opens, the leases it needs, the store call it becomes.

pub mod access;
mod change;
pub mod changes;
mod host;
mod inputs;
mod intents;
mod lateness;
mod lookup;
pub mod reads;
mod replies;
pub mod rights;
mod told;

use crate::records::Client;
use crate::server::Server;
use crate::session::{Origin, Session};
use leasefs_protocol::{Caller, Refusal, Request};
use leasefs_store::{Identity, OpenFile};
use std::fmt;
use std::sync::Arc;

/// On whose behalf a request is served.
pub struct Call {
    /// The server.
    pub server: Arc<Server>,
    /// The session.
    pub session: Arc<Session>,
    /// The session's client, as it was when the request came.
    pub client: Arc<Client>,
    /// The caller at the client.
    pub caller: Caller,
    /// Where an unnumbered request came from: asked again, it runs again.
    pub origin: Option<Origin>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({}, {:?})", self.session.id, self.caller)
    }
}

impl Call {
    /// Refuses what has been moved out of the client's border.
    fn within_border(&self, request: &Request, open: Option<&OpenFile>) -> Result<(), Refusal> {
        let Some(border) = self.session.border() else {
            return Ok(());
        };
        // An open says itself what it authorises, but not what else is to be found by it.
        let listed = match request {
            Request::ReadDir { .. } => open.map(OpenFile::handle),
            _ => None,
        };
        let mut objects = request.handles().chain(listed);
        objects.try_for_each(|object| border.encloses(object))
    }

    /// Whose rights the request has on the host.
    fn identity(&self) -> Result<Identity, Refusal> {
        self.server
            .store
            .identity(self.client.identity, &self.caller)
    }
}
