//! The QUIC half of a session: connections, their streams, and who reads them.
//!
//! What is said, and when, is the core's: this carries out its [`Effect`](leasefs_client::Effect)s and
//! tells it what comes back as [`Event`]s. It knows no more of a message than which stream it belongs on.

mod config;
mod first;
mod lanes;
mod link;
mod probe;
mod readers;
mod status;
mod wire;

pub use config::{Config, ConnectError, new_session};
pub use first::first;
pub use link::{Link, nobody_listens};
pub use probe::{Probed, probe, route_mtu};
pub use status::{Status, Waiting};
pub use wire::{Facts, Out, Wire, is_ours};

use leasefs_client::Event;
use std::sync::Arc;

/// Takes what happens. `W` is who waits for the core's answers, and of no interest here.
pub type Ear<W> = Arc<dyn Fn(Event<W>) + Send + Sync>;
