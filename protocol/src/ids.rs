//! Identifiers. Each is a newtype so that no two can be mistaken for each other.

use crate::limits::MAX_HANDLE;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[cfg_attr(test, derive(proptest_derive::Arbitrary))]
        pub struct $name(pub u64);

        impl $name {
            /// The next identifier of this kind. (Nobody counts so far; a peer may begin there.)
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

counter! {
    /// Number of a request on its connection; a reply carries it back.
    RequestId
}
counter! {
    /// Number of a change in its session, counted from 1; the same when it is sent again.
    Seq
}
counter! {
    /// Place of a grant or recall in the one order the lease core gives each session.
    ///
    /// A client never caches from a stamp older than the newest it has acted on for an object.
    Stamp
}
counter! {
    /// A recall of one session, named by its approval.
    RecallId
}
counter! {
    /// An open of one session.
    OpenId
}
counter! {
    /// Whose a lock is, as its client tells owners apart (the kernel's `lock_owner`).
    LockOwner
}
counter! {
    /// A request for a lock that waits, one of its session.
    LockWait
}
counter! {
    /// The number of a lock: a fencing token. Of one file each lock has a greater one than those taken before, across
    /// mounts, crashes and restarts.
    Fence
}
counter! {
    /// The time in which a session's locks stand without a break. Who has lost them has another one from then on: what was
    /// sent under them is refused.
    LockEpoch
}

macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[cfg_attr(test, derive(proptest_derive::Arbitrary))]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadHex;

            fn from_str(text: &str) -> Result<Self, BadHex> {
                let mut bytes = [0; $len];
                // Digits alone: the standard library would take a sign for one of them.
                if text.len() != 2 * $len || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(BadHex);
                }
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| BadHex)?;
                }
                Ok(Self(bytes))
            }
        }
    };
}

/// The text is not the hexadecimal form of the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the hexadecimal form of the identifier")]
pub struct BadHex;

opaque! {
    /// One mount's standing with the server; made at random by the client when it mounts.
    SessionId, 16
}
opaque! {
    /// SHA-256 of a public key in its SubjectPublicKeyInfo form: the name of a server or client.
    KeyHash, 32
}
opaque! {
    /// One life of a process or of a host; made at random or read from the kernel.
    BootId, 16
}
opaque! {
    /// A directory of the storage host that the server serves.
    ExportId, 8
}

/// Names an object (file, directory, …) of an export for as long as it exists.
///
/// Opaque to the client. The server makes it from the host's file handle and a MAC, so a
/// handle that it didn't give out is recognised as forged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    len: u8,
    bytes: [u8; MAX_HANDLE],
}

impl Handle {
    /// Names nothing.
    pub const NONE: Self = Self {
        len: 0,
        bytes: [0; MAX_HANDLE],
    };

    /// A handle of these bytes; `None` if they are more than [`MAX_HANDLE`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Self {
            len: u8::try_from(bytes.len()).ok()?,
            bytes: [0; MAX_HANDLE],
        };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// The bytes given to [`Handle::new`].
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes()
            .iter()
            .try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::str::FromStr for Handle {
    type Err = BadHex;

    fn from_str(text: &str) -> Result<Self, BadHex> {
        let (digits, odd) = text.as_bytes().as_chunks::<2>();
        let byte = |digits: &[u8; 2]| {
            let digits = std::str::from_utf8(digits).ok()?;
            let all = digits.bytes().all(|b| b.is_ascii_hexdigit());
            all.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = digits.iter().map(byte).collect();
        let bytes = bytes.filter(|_| odd.is_empty()).ok_or(BadHex)?;
        Self::new(&bytes).ok_or(BadHex)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({self})")
    }
}

/// Of what it consists of alone, not of the room for longer ones.
impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
        state.write_u8(self.len);
    }
}

impl Serialize for Handle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

struct HandleVisitor;

impl serde::de::Visitor<'_> for HandleVisitor {
    type Value = Handle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a handle of at most {MAX_HANDLE} bytes")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Handle, E> {
        Handle::new(bytes).ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(HandleVisitor)
    }
}

/// Proof that the server opened an object for an identity: MACed, opaque to the client, and
/// presented again to reclaim the open after a server restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct OpenToken(pub Vec<u8>);

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for Handle {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::strategy::Strategy;
        proptest::collection::vec(proptest::num::u8::ANY, 0..=MAX_HANDLE)
            .prop_filter_map("fits", |bytes| Handle::new(&bytes))
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_form_reads_back_and_refuses_what_it_is_not() {
        let id = SessionId([0xa5; 16]);
        assert_eq!(id.to_string().parse::<SessionId>(), Ok(id));
        assert_eq!("a5".parse::<SessionId>(), Err(BadHex));
        assert_eq!("zz".repeat(16).parse::<SessionId>(), Err(BadHex));
        assert_eq!("+5".repeat(16).parse::<SessionId>(), Err(BadHex));
    }

    #[test]
    fn handle_refuses_more_bytes_than_it_holds() {
        assert!(Handle::new(&[1; MAX_HANDLE]).is_some());
        assert!(Handle::new(&[1; MAX_HANDLE + 1]).is_none());
        let handle = Handle::new(&[7, 0xfe]).expect("fits");
        assert_eq!(handle.to_string().parse(), Ok(handle));
        for bad in ["7", "7g", "+7", "00é"] {
            assert_eq!(bad.parse::<Handle>(), Err(BadHex));
        }
        assert_eq!(
            Handle::new(&[7, 8]).map(|h| h.as_bytes().to_vec()),
            Some(vec![7, 8])
        );
    }
}
