//! How the service of a connection ends.

use leasefs_transport::FrameError;

/// How a connection's service ended, seen from here.
#[derive(Debug)]
pub(super) enum End {
    /// The connection is gone, or the client has gone in good order.
    Gone,
    /// The client broke the protocol: what it did, for both sides' people.
    Breach(String),
    /// The client leaves unread what it asks for.
    TooSlow,
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Codec(_) | FrameError::Truncated => Self::Breach(error.to_string()),
            FrameError::Abandoned | FrameError::Lost(_) => Self::Gone,
        }
    }
}
