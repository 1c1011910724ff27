//! The wire form of messages. The only file that names the serializer.
//!
//! A frame is an 8 byte prefix (header length, payload length; both `u32`, little endian), a
//! header (one message, bincode 2 standard configuration) and a payload (raw file data).

use crate::limits::{MAX_HEADER, MAX_PAYLOAD};
use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a frame's prefix.
pub const PREFIX: usize = 8;

/// Why bytes are not a message, or a message can't be bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A length is over its bound.
    #[error("{what} of {found} bytes is over the limit of {limit}")]
    TooLong {
        /// Header or payload.
        what: &'static str,
        /// Length found.
        found: usize,
        /// Length allowed.
        limit: usize,
    },
    /// The header isn't a message of the expected kind.
    #[error("malformed header: {0}")]
    Malformed(String),
    /// The message ends before its header does.
    #[error("{0} bytes left over behind the message")]
    LeftOver(usize),
}

/// Lengths of the two parts of a frame, checked against their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePrefix {
    /// Bytes of the header.
    pub header: usize,
    /// Bytes of the payload.
    pub payload: usize,
}

impl FramePrefix {
    /// Reads a prefix; the lengths may be allocated afterwards.
    ///
    /// # Errors
    /// [`CodecError::TooLong`] if either length is over its bound.
    pub fn parse(bytes: [u8; PREFIX]) -> Result<Self, CodecError> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let header = u32::from_le_bytes([a, b, c, d]) as usize;
        let payload = u32::from_le_bytes([e, f, g, h]) as usize;
        Self { header, payload }.checked()
    }

    fn checked(self) -> Result<Self, CodecError> {
        bound("header", self.header, MAX_HEADER)?;
        bound("payload", self.payload, MAX_PAYLOAD)?;
        Ok(self)
    }
}

fn bound(what: &'static str, found: usize, limit: usize) -> Result<(), CodecError> {
    if found > limit {
        return Err(CodecError::TooLong { what, found, limit });
    }
    Ok(())
}

fn config() -> Configuration<LittleEndian, Varint, Limit<MAX_HEADER>> {
    bincode::config::standard().with_limit::<MAX_HEADER>()
}

/// Prefix and header of a frame whose payload, `payload` bytes, the caller sends behind it.
///
/// # Errors
/// [`CodecError::TooLong`] if header or payload is over its bound.
pub fn encode<M: Serialize>(message: &M, payload: usize) -> Result<Vec<u8>, CodecError> {
    let mut frame = vec![0; PREFIX];
    // bincode's limit binds only the decoder: the encoder's size is checked here.
    bincode::serde::encode_into_std_write(message, &mut frame, config())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    let header = frame.len() - PREFIX;
    let prefix = FramePrefix { header, payload }.checked()?;
    frame[..4].copy_from_slice(&(prefix.header as u32).to_le_bytes());
    frame[4..PREFIX].copy_from_slice(&(prefix.payload as u32).to_le_bytes());
    Ok(frame)
}

/// What a header begins with, whatever follows.
pub(crate) fn decode_front<M: DeserializeOwned>(header: &[u8]) -> Option<M> {
    let (front, _) = bincode::serde::decode_from_slice(header, config()).ok()?;
    Some(front)
}

/// The message of a header (a frame without prefix and payload).
///
/// # Errors
/// If the bytes are not exactly one message.
pub fn decode<M: DeserializeOwned>(header: &[u8]) -> Result<M, CodecError> {
    bound("header", header.len(), MAX_HEADER)?;
    let (message, used) = bincode::serde::decode_from_slice(header, config())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    match header.len() - used {
        0 => Ok(message),
        left => Err(CodecError::LeftOver(left)),
    }
}

/// Byte strings as byte strings (serde's `Vec<u8>` would be a sequence of numbers).
pub mod bytes {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt;

    /// For `#[serde(with)]`.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a byte string")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
    }

    /// For `#[serde(with)]`.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests;
