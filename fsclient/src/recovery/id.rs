//! What items are called.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Names an item of a recovery folder: eight hexadecimal digits, chosen at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecoveryId(pub(super) u32);

impl fmt::Display for RecoveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The text is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is eight hexadecimal digits as `fsclient recover list` shows them")]
pub struct UnknownId;

impl FromStr for RecoveryId {
    type Err = UnknownId;

    fn from_str(text: &str) -> Result<Self, UnknownId> {
        let id = u32::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| UnknownId)?;
        // One spelling each: an id is also a file name.
        (id.to_string() == text).then_some(id).ok_or(UnknownId)
    }
}

impl TryFrom<String> for RecoveryId {
    type Error = UnknownId;

    fn try_from(text: String) -> Result<Self, UnknownId> {
        text.parse()
    }
}

impl From<RecoveryId> for String {
    fn from(id: RecoveryId) -> Self {
        id.to_string()
    }
}
