//! Names of directory entries: raw as they come from a peer, checked as the store may use them.

use crate::limits::MAX_NAME;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A name as a peer sent it; nothing is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct RawName(#[serde(with = "crate::codec::bytes")] pub Vec<u8>);

/// A name that denotes one entry of a directory: not empty, not `.` or `..`, at most
/// [`MAX_NAME`] bytes, without `/` and NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// A name of these bytes.
    ///
    /// # Errors
    /// As [`Name::check`].
    pub fn new(bytes: &[u8]) -> Result<Self, Refusal> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// Whether these bytes are a name.
    ///
    /// # Errors
    /// [`Refusal::NameTooLong`] over 255 bytes, else [`Refusal::Invalid`].
    pub fn check(bytes: &[u8]) -> Result<(), Refusal> {
        if bytes.len() > MAX_NAME {
            return Err(Refusal::NameTooLong);
        }
        let reserved = bytes.is_empty() || bytes == b"." || bytes == b"..";
        if reserved || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(Refusal::Invalid);
        }
        Ok(())
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as it goes on the wire.
    pub fn to_raw(&self) -> RawName {
        RawName(self.0.to_vec())
    }
}

impl TryFrom<&RawName> for Name {
    type Error = Refusal;

    fn try_from(raw: &RawName) -> Result<Self, Refusal> {
        Self::new(&raw.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_denote_no_entry_are_invalid() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", b"/"] {
            assert_eq!(Name::new(bad), Err(Refusal::Invalid), "{bad:?}");
        }
    }

    #[test]
    fn names_of_up_to_255_bytes_are_taken() {
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 256]), Err(Refusal::NameTooLong));
    }
}
