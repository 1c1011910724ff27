//! Authenticated QUIC between a client and a server, and frames on its streams.
//!
//! Both sides are known by a raw public key (RFC 7250): a client pins the server's key by its
//! SHA-256, the server takes any key whose owner proves possession and leaves what that key may
//! do to `Hello`. Nothing here knows what a message means.
//!
//! The client opens every bidirectional stream: the first is the control stream, the second the
//! lane of small requests, later ones lanes of bulk data. Both sides send them in that priority.
//! The server opens one unidirectional stream, for recalls.

mod connection;
mod endpoint;
mod error;
mod frame;
mod identity;
mod outbox;
mod prompt;
mod socket;
mod tls;
mod tuning;

pub use connection::Connection;
pub use endpoint::{Client, Incoming, Server, connect, not_listening};
pub use error::{CloseCode, FrameError, Lost, TransportError};
pub use frame::{Assembler, FrameReader, FrameWriter, OutFrame};
pub use identity::{EndpointSecret, Identity, IdentityError, key_hash};
pub use outbox::{Outbox, OutboxClosed};
pub use prompt::{prompt, promptly};
pub use tuning::network_threads;
