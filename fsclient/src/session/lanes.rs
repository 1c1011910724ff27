//! The streams of one connection, and which request goes where.

use bytes::Bytes;
use leasefs_protocol::codec::CodecError;
use leasefs_protocol::control::ToServer;
use leasefs_protocol::{Query, Request, RequestFrame};
use leasefs_transport::{Connection, FrameReader, Lost, OutFrame, Outbox};

/// A request with more data than this, in either direction, goes to the bulk lanes.
const SMALL: usize = 16 * 1024;
/// Lanes for bulk data: a lost packet holds up only one of them.
const BULK_LANES: usize = 3;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Lanes {
    control: Outbox,
    small: Outbox,
    bulk: Vec<Outbox>,
}

impl Lanes {
    /// Opens the request lanes; `control` is open already. Returns their readers too.
    pub(super) async fn open(
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
    pub(super) fn send(&self, frame: &RequestFrame, payload: Bytes) -> Result<(), CodecError> {
        let lane = self.lane(frame, payload.len());
        let _ = lane.push(OutFrame::new(frame, payload)?);
        Ok(())
    }

    fn lane(&self, frame: &RequestFrame, payload: usize) -> &Outbox {
        if !is_bulk(&frame.request, payload) {
            return &self.small;
        }
        let turn = frame.id.0 % BULK_LANES as u64;
        self.bulk.get(turn as usize).unwrap_or(&self.small)
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// If it is over the bounds of the protocol.
    pub(super) fn control(&self, message: &ToServer) -> Result<(), CodecError> {
        let frame = OutFrame::new(message, Bytes::new())?;
        // That the stream is gone is seen by its reader.
        let _ = self.control.push(frame);
        Ok(())
    }
}

fn is_bulk(request: &Request, payload: usize) -> bool {
    let answer = match request {
        Request::Query(Query::Read(read)) => read.len as usize,
        Request::Query(Query::ReadDir(_)) => usize::MAX,
        _ => 0,
    };
    payload.max(answer) > SMALL
}
