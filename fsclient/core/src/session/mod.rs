//! One session with its server: every request goes through [`Rpc`].
//!
//! The session survives lost connections, address changes and server restarts. Requests that
//! change nothing are sent again freely; changes are numbered, sent again under their number and
//! run once. A caller that gives up leaves at once; what became of its change is told later
//! ([`Changed::unsettled`]).

mod border;
mod closes;
mod contact;
mod reconnect;
mod replies;
mod request;
mod requests;
mod server_time;
mod status;
mod table;
mod types;

pub(crate) use border::welcome as check_welcome;
pub(crate) use closes::lock_messages;
pub(crate) use request::Patience;
pub(crate) use requests::Rpc;
pub(crate) use types::{Abandon, Answered, CallOptions, Changed, Settlement};

pub use status::{SessionStatus, Waits};

use std::time::Duration;

/// How long a request waits for a server that can't be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Then it fails with `TimedOut`. While the server is in contact it is given at
    /// least the time that others' leases may take to run out.
    After(Duration),
    /// For ever.
    Hard,
}

impl Timeout {
    /// The time after which nobody waits any more, if there is one.
    pub(crate) fn limit(self) -> Option<Duration> {
        match self {
            Self::After(limit) => Some(limit),
            Self::Hard => None,
        }
    }
}
