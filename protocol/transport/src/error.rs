//! What can go wrong below the messages.

use leasefs_protocol::KeyHash;
use leasefs_protocol::codec::CodecError;
use quinn::{ConnectionError, VarInt};
use std::io;
use std::net::SocketAddr;

/// Why a connection is closed; the code travels in QUIC's close frame, with a reason for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// The session or the process ends in good order.
    Goodbye,
    /// The peer broke the protocol.
    Protocol,
    /// A newer connection of the same session has taken over.
    Fenced,
    /// `Hello` was refused; the refusal was sent before.
    Refused,
    /// The server is shutting down.
    ShuttingDown,
    /// The peer took too long.
    TooSlow,
}

impl CloseCode {
    const ALL: [Self; 6] = [
        Self::Goodbye,
        Self::Protocol,
        Self::Fenced,
        Self::Refused,
        Self::ShuttingDown,
        Self::TooSlow,
    ];

    pub(crate) fn to_wire(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    fn from_wire(code: VarInt) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.to_wire() == code)
    }
}

/// How an established connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The peer's process has restarted: it doesn't know this connection.
    #[error("the peer has restarted")]
    Restarted,
    /// Nothing came from the peer for too long.
    #[error("the peer can't be reached")]
    Silent,
    /// The peer closed it.
    #[error("closed by the peer: {reason}")]
    Closed {
        /// Its code, if this version knows it.
        code: Option<CloseCode>,
        /// Its reason.
        reason: String,
    },
    /// This side closed it.
    #[error("closed")]
    ClosedHere,
    /// QUIC or TLS failed.
    #[error("{0}")]
    Broken(String),
}

impl From<ConnectionError> for Lost {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Reset => Self::Restarted,
            ConnectionError::TimedOut => Self::Silent,
            ConnectionError::LocallyClosed => Self::ClosedHere,
            ConnectionError::ApplicationClosed(close) => Self::Closed {
                code: CloseCode::from_wire(close.error_code),
                reason: String::from_utf8_lossy(&close.reason).into_owned(),
            },
            other => Self::Broken(other.to_string()),
        }
    }
}

/// Why an endpoint or a connection can't be had.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The UDP socket.
    #[error("can't use UDP address {address}: {source}")]
    Socket {
        /// The local address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The server has another key than the one that is pinned. Nothing was sent to it.
    #[error(
        "the server's key is not the expected one: expected {expected}, found {found}; \
         either the server was set up anew (mount with a fresh ticket) or this is not the server"
    )]
    WrongServer {
        /// The key pinned.
        expected: KeyHash,
        /// The key shown.
        found: KeyHash,
    },
    /// TLS can't be set up with the identity.
    #[error("TLS: {0}")]
    Tls(String),
    /// The connection can't be started.
    #[error("can't connect: {0}")]
    Connect(String),
    /// The server's host says that no process has the port.
    #[error(
        "nothing listens on UDP port {} of {}: does fsserver run there, and is that its port?",
        .0.port(),
        .0.ip()
    )]
    NotListening(SocketAddr),
    /// The peer didn't finish the handshake in time.
    #[error("no answer from {0}")]
    NoAnswer(SocketAddr),
    /// The connection ended during the handshake.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why no further frame can be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no frame, or a frame can't be made of the message. The peer is at fault when
    /// reading: close with [`CloseCode::Protocol`].
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The stream ends within a frame.
    #[error("the stream ends within a frame")]
    Truncated,
    /// The peer has reset or stopped the stream.
    #[error("the peer has given up the stream")]
    Abandoned,
    /// The connection is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<quinn::ReadError> for FrameError {
    fn from(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::ConnectionLost(lost) => Self::Lost(lost.into()),
            _ => Self::Abandoned,
        }
    }
}

impl From<quinn::WriteError> for FrameError {
    fn from(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::ConnectionLost(lost) => Self::Lost(lost.into()),
            _ => Self::Abandoned,
        }
    }
}
