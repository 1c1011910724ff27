//! Frames on streams. File data is copied at most once on the way in, never on the way out.

use crate::error::FrameError;
use bytes::{Buf, Bytes, BytesMut};
use leasefs_protocol::codec::{self, CodecError, FramePrefix, PREFIX};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::collections::VecDeque;

/// Most pieces taken from a stream at a time.
const PIECES: usize = 32;
/// A smaller payload is copied out of the datagram it came in, which it would keep whole.
const WORTH_SHARING: usize = 16 * 1024;

/// What is dropped once a frame has been sent, or never will be.
pub type Held = Box<dyn Any + Send + Sync>;

/// A frame ready to be sent.
#[derive(Debug)]
pub struct OutFrame {
    pub(crate) header: Bytes,
    pub(crate) payload: Bytes,
    held: Option<Held>,
}

impl OutFrame {
    /// The frame of a message and its payload.
    ///
    /// # Errors
    /// If either is over its bound.
    pub fn new<M: Serialize>(message: &M, payload: Bytes) -> Result<Self, CodecError> {
        Ok(Self {
            header: codec::encode(message, payload.len())?.into(),
            payload,
            held: None,
        })
    }

    /// Bytes as they are, well-formed or not: for tests of the peer.
    pub fn raw(bytes: Bytes) -> Self {
        Self {
            header: bytes,
            payload: Bytes::new(),
            held: None,
        }
    }

    /// The frame, which keeps something until it has been sent from an outbox.
    #[must_use]
    pub fn holding(self, held: Held) -> Self {
        Self {
            held: Some(held),
            ..self
        }
    }

    pub(crate) fn release(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Makes frames of the pieces of a stream. Pure; allocates for a frame only after its prefix has
/// been checked, and only bytes that are filled by the peer.
#[derive(Debug, Default)]
pub struct Assembler {
    pieces: VecDeque<Bytes>,
    prefix: Option<FramePrefix>,
    /// What has come of the prefix or the body, if it came in several pieces.
    partial: BytesMut,
}

impl Assembler {
    /// Adds the stream's next piece.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// The next frame, if all of it has come.
    ///
    /// # Errors
    /// If the bytes are no frame with a message `M`; the stream is of no use afterwards.
    pub fn take<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Bytes)>, CodecError> {
        let Some((header, payload)) = self.take_undecoded()? else {
            return Ok(None);
        };
        Ok(Some((codec::decode(&header)?, payload)))
    }

    fn take_undecoded(&mut self) -> Result<Option<(Bytes, Bytes)>, CodecError> {
        let prefix = match self.prefix {
            Some(prefix) => prefix,
            None => match self.gather(PREFIX) {
                None => return Ok(None),
                Some(mut bytes) => {
                    let mut raw = [0; PREFIX];
                    bytes.copy_to_slice(&mut raw);
                    *self.prefix.insert(FramePrefix::parse(raw)?)
                }
            },
        };
        let Some(mut body) = self.gather(prefix.header + prefix.payload) else {
            return Ok(None);
        };
        self.prefix = None;
        let header = body.split_to(prefix.header);
        if body.len() < WORTH_SHARING && !body.is_empty() {
            body = Bytes::copy_from_slice(&body);
        }
        Ok(Some((header, body)))
    }

    /// Whether the stream may end here.
    pub fn is_between_frames(&self) -> bool {
        self.prefix.is_none() && self.partial.is_empty() && self.pieces.is_empty()
    }

    /// `len` bytes in one, once they have come: shared if they came in one piece, else copied.
    fn gather(&mut self, len: usize) -> Option<Bytes> {
        if len == 0 {
            return Some(Bytes::new());
        }
        if self.partial.is_empty() {
            let first = self.pieces.front_mut()?;
            if first.len() >= len {
                let whole = first.split_to(len);
                self.drop_empty_front();
                return Some(whole);
            }
            self.partial.reserve(len);
        }
        while self.partial.len() < len {
            let first = self.pieces.front_mut()?;
            let missing = len - self.partial.len();
            let part = first.split_to(missing.min(first.len()));
            self.partial.extend_from_slice(&part);
            self.drop_empty_front();
        }
        Some(std::mem::take(&mut self.partial).freeze())
    }

    fn drop_empty_front(&mut self) {
        if self.pieces.front().is_some_and(Bytes::is_empty) {
            self.pieces.pop_front();
        }
    }
}

/// Reads frames from a stream.
#[derive(Debug)]
pub struct FrameReader {
    stream: quinn::RecvStream,
    assembler: Assembler,
}

impl FrameReader {
    pub(crate) fn new(stream: quinn::RecvStream) -> Self {
        Self {
            stream,
            assembler: Assembler::default(),
        }
    }

    /// The next frame: its message and payload; `None` where the peer has finished the stream.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the peer sent no such frame, or the stream or the connection is gone.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Bytes)>, FrameError> {
        let Some((header, payload)) = self.next_undecoded().await? else {
            return Ok(None);
        };
        Ok(Some((codec::decode(&header)?, payload)))
    }

    /// The next frame: its header, of whatever message, and its payload. Otherwise as [`Self::next`].
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_undecoded(&mut self) -> Result<Option<(Bytes, Bytes)>, FrameError> {
        loop {
            if let Some(frame) = self.assembler.take_undecoded()? {
                return Ok(Some(frame));
            }
            let mut pieces = [const { Bytes::new() }; PIECES];
            match self.stream.read_chunks(&mut pieces).await? {
                Some(count) => pieces
                    .into_iter()
                    .take(count)
                    .for_each(|piece| self.assembler.push(piece)),
                None if self.assembler.is_between_frames() => return Ok(None),
                None => return Err(FrameError::Truncated),
            }
        }
    }

    /// The next frame if all of it has come already: to take what came together in one go.
    ///
    /// # Errors
    /// If the peer sent no such frame.
    pub fn ready<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Bytes)>, FrameError> {
        Ok(self.assembler.take()?)
    }
}

/// Writes frames to a stream.
#[derive(Debug)]
pub struct FrameWriter {
    stream: quinn::SendStream,
}

impl FrameWriter {
    pub(crate) fn new(stream: quinn::SendStream) -> Self {
        Self { stream }
    }

    /// Sends one frame; returns when QUIC has taken it, which may wait for the peer. Not
    /// cancel-safe: a frame may be cut in two, and the stream is of no use afterwards.
    ///
    /// # Errors
    /// If the message is over its bound (nothing is sent), or stream or connection is gone.
    pub async fn send<M: Serialize>(
        &mut self,
        message: &M,
        payload: Bytes,
    ) -> Result<(), FrameError> {
        self.send_frames([OutFrame::new(message, payload)?]).await
    }

    /// Sends frames in one go. Not cancel-safe.
    ///
    /// # Errors
    /// If stream or connection is gone.
    pub async fn send_frames(
        &mut self,
        frames: impl IntoIterator<Item = OutFrame>,
    ) -> Result<(), FrameError> {
        let mut pieces = pieces(frames);
        Ok(self.stream.write_all_chunks(&mut pieces).await?)
    }

    /// Says that nothing follows.
    pub fn finish(&mut self) {
        // Fails only if the stream is finished or given up already.
        let _ = self.stream.finish();
    }
}

/// What is given to QUIC: large payloads as they are, everything else gathered. (QUIC walks
/// through the pieces it has not got acknowledged for every packet: many small ones are slow.)
fn pieces(frames: impl IntoIterator<Item = OutFrame>) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut gathered = BytesMut::new();
    for frame in frames {
        gathered.extend_from_slice(&frame.header);
        if frame.payload.len() < WORTH_SHARING {
            gathered.extend_from_slice(&frame.payload);
        } else {
            pieces.push(gathered.split().freeze());
            pieces.push(frame.payload);
        }
    }
    if !gathered.is_empty() {
        pieces.push(gathered.freeze());
    }
    pieces
}

#[cfg(test)]
mod tests;
