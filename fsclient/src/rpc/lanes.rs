//! The streams of one connection, and which request goes where.

use super::request::ToSend;
use leasefs_protocol::Request;
use leasefs_protocol::codec::CodecError;
use leasefs_protocol::control::ToServer;
use leasefs_protocol::limits::HELLO_TIMEOUT;
use leasefs_transport::{Connection, FrameReader, Lost, OutFrame, Outbox};
use tokio::time::timeout;

/// A request with more data than this, in either direction, goes to the bulk lanes.
const SMALL: usize = 16 * 1024;
/// Lanes for bulk data: a lost packet holds up only one of them.
const BULK_LANES: usize = 3;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Lanes {
    /// Tells connections apart.
    pub(super) connection: u64,
    control: Outbox,
    small: Outbox,
    bulk: Vec<Outbox>,
}

impl Lanes {
    /// Opens the request lanes; `control` is open already. Returns their readers too. A server that
    /// allows none, and keeps the connection, is given up.
    pub(super) async fn open(
        number: u64,
        connection: &Connection,
        control: Outbox,
    ) -> Result<(Self, Vec<FrameReader>), Lost> {
        timeout(HELLO_TIMEOUT, Self::open_all(number, connection, control))
            .await
            .unwrap_or_else(|_| Err(Lost::Broken("the server allows no requests".into())))
    }

    async fn open_all(
        number: u64,
        connection: &Connection,
        control: Outbox,
    ) -> Result<(Self, Vec<FrameReader>), Lost> {
        let (small, reader) = connection.open().await?;
        let mut readers = vec![reader];
        let mut bulk = Vec::with_capacity(BULK_LANES);
        for _ in 0..BULK_LANES {
            let (writer, reader) = connection.open().await?;
            bulk.push(writer.into_outbox());
            readers.push(reader);
        }
        let lanes = Self {
            connection: number,
            control,
            small: small.into_outbox(),
            bulk,
        };
        Ok((lanes, readers))
    }

    /// Sends a request. One that can't be sent because the connection is gone is sent again with
    /// the next.
    ///
    /// # Errors
    /// If the request is over the bounds of the protocol.
    pub(super) fn send(&self, send: &ToSend) -> Result<(), CodecError> {
        let frame = OutFrame::new(&*send.frame, send.payload.clone())?;
        let _ = self.lane(send).push(frame);
        Ok(())
    }

    fn lane(&self, send: &ToSend) -> &Outbox {
        if !is_bulk(&send.frame.request, send.payload.len()) {
            return &self.small;
        }
        let turn = send.frame.id.0 % BULK_LANES as u64;
        self.bulk.get(turn as usize).unwrap_or(&self.small)
    }

    /// Sends a control message.
    pub(super) fn control(&self, message: &ToServer) -> Result<(), CodecError> {
        let _ = self
            .control
            .push(OutFrame::new(message, Default::default())?);
        Ok(())
    }
}

fn is_bulk(request: &Request, payload: usize) -> bool {
    let answer = match request {
        Request::Read { len, .. } => *len as usize,
        Request::ReadDir { .. } => usize::MAX,
        _ => 0,
    };
    payload.max(answer) > SMALL
}
