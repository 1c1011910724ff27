//! Who reads a connection's streams.

use super::Ear;
use leasefs_client::{ConnectionId, Event};
use leasefs_protocol::Reply;
use leasefs_protocol::control::{Push, ToClient};
use leasefs_transport::{CloseCode, Connection, FrameError, FrameReader};

/// A connection, and who is told of it.
pub(super) struct Listening<W> {
    pub(super) id: ConnectionId,
    pub(super) connection: Connection,
    pub(super) ear: Ear<W>,
}

impl<W> Clone for Listening<W> {
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            connection: self.connection.clone(),
            ear: self.ear.clone(),
        }
    }
}

impl<W: 'static> Listening<W> {
    /// Reads the control stream until the connection is lost; returns why it is.
    pub(super) async fn control(&self, mut stream: FrameReader) -> FrameError {
        loop {
            let message = tokio::select! {
                message = stream.next::<ToClient>() => message,
                lost = self.connection.closed() => return lost.into(),
            };
            match message {
                Ok(Some((message, _))) => (self.ear)(Event::Control(self.id, message)),
                Ok(None) => return FrameError::Abandoned,
                Err(error) => return error,
            }
        }
    }

    /// Reads the replies of a lane.
    pub(super) async fn replies(self, mut lane: FrameReader) {
        loop {
            match lane.next::<Reply>().await {
                Ok(Some((reply, payload))) => (self.ear)(Event::Reply {
                    connection: self.id,
                    reply,
                    payload,
                }),
                end => return self.end_of_stream(end.err()),
            }
        }
    }

    /// Reads recalls.
    pub(super) async fn recalls(self) {
        let Ok(mut pushes) = self.connection.accept_push().await else {
            return;
        };
        loop {
            match pushes.next::<Push>().await {
                Ok(Some((Push::Recall(recall), _))) => {
                    (self.ear)(Event::Recall(self.id, recall));
                }
                Ok(Some((Push::LockGranted(granted), _))) => {
                    (self.ear)(Event::LockGranted(self.id, granted));
                }
                Ok(Some((Push::Unlinked(object), _))) => {
                    (self.ear)(Event::Unlinked(self.id, object));
                }
                end => return self.end_of_stream(end.err()),
            }
        }
    }

    /// No stream ends before its connection does; where the connection is lost, its loss tells why.
    fn end_of_stream(&self, error: Option<FrameError>) {
        let reason = match error {
            Some(FrameError::Lost(_)) => return,
            Some(error) => error.to_string(),
            None => "a stream has ended".into(),
        };
        tracing::error!(%reason, "the server broke the protocol");
        self.connection.close(CloseCode::Protocol, &reason);
    }
}

/// How a connection is closed after this.
pub(super) fn close_code(error: &FrameError) -> CloseCode {
    match error {
        FrameError::Codec(_) | FrameError::Truncated => CloseCode::Protocol,
        FrameError::Abandoned | FrameError::Lost(_) => CloseCode::Goodbye,
    }
}
