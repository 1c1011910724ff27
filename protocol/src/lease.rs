//! Leases on the wire: what is granted, recalled, approved and released.

use crate::ids::{Handle, OpenId, RecallId, Stamp};
use crate::name::RawName;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// The parts of an object that a lease covers; a set.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Parts(u8);

impl Parts {
    /// No part.
    pub const NONE: Parts = Parts(0);
    /// Attributes, extended attributes and a symlink's target.
    pub const ATTRS: Parts = Parts(1);
    /// A file's bytes.
    pub const DATA: Parts = Parts(2);
    /// The list of a directory's entries.
    pub const LISTING: Parts = Parts(4);
    /// All names of a directory, those that don't exist included. Recalled name by name.
    pub const NAMES: Parts = Parts(8);
    /// A file's locks. Held in Write mode alone: the right to decide them.
    pub const LOCKS: Parts = Parts(16);
    /// Every part.
    pub const ALL: Parts = Parts(31);

    /// Whether all of `other` is in the set.
    pub fn contains(self, other: Parts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in the set.
    pub fn intersects(self, other: Parts) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Parts {
    type Output = Parts;
    fn bitor(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }
}

impl BitOrAssign for Parts {
    fn bitor_assign(&mut self, other: Parts) {
        self.0 |= other.0;
    }
}

impl BitAnd for Parts {
    type Output = Parts;
    fn bitand(self, other: Parts) -> Parts {
        Parts(self.0 & other.0)
    }
}

impl Sub for Parts {
    type Output = Parts;
    fn sub(self, other: Parts) -> Parts {
        Parts(self.0 & !other.0)
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (Parts::ATTRS, "attrs"),
            (Parts::DATA, "data"),
            (Parts::LISTING, "listing"),
            (Parts::NAMES, "names"),
            (Parts::LOCKS, "locks"),
        ];
        let mut words = named
            .iter()
            .filter(|(part, _)| self.contains(*part))
            .map(|(_, word)| *word);
        write!(f, "{}", words.next().unwrap_or("none"))?;
        words.try_for_each(|word| write!(f, "+{word}"))
    }
}

/// What a lease promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Mode {
    /// Nobody changes it without the holder's approval.
    Read,
    /// Nobody else even reads it without the holder's approval.
    Write,
}

/// A lease given with a reply: what the reply says of these parts may be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Grant {
    /// The object.
    pub object: Handle,
    /// What is covered, in addition to what the session already holds.
    pub parts: Parts,
    /// The mode.
    pub mode: Mode,
    /// The grant's place among the session's grants and recalls.
    pub stamp: Stamp,
}

/// What a recall takes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Scope {
    /// Parts of an object, and names of it where it is a directory (the holder keeps `NAMES`).
    Object {
        /// The object.
        object: Handle,
        /// Parts taken back whole.
        parts: Parts,
        /// Names taken back singly.
        names: Vec<RawName>,
    },
    /// All leases of the session: the server is shutting down.
    Everything,
}

/// The server asks a holder to give something up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Recall {
    /// Named by the approval; the same when the recall is sent again after a reconnect.
    pub id: RecallId,
    /// The recall's place among the session's grants and recalls.
    pub stamp: Stamp,
    /// What is taken back.
    pub scope: Scope,
}

/// The holder's answer: its caches, the kernel's included, hold nothing the recall covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Approval {
    /// The recall.
    pub recall: RecallId,
    /// Opens that were only retained for reuse and are given up with the lease.
    pub closes: Vec<OpenId>,
}

/// The client no longer needs these parts (its cache is full, the kernel forgot the object).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Release {
    /// The object.
    pub object: Handle,
    /// Parts given back.
    pub parts: Parts,
    /// Newest stamp the client has seen for the object: a grant behind it, still under way,
    /// isn't released.
    pub seen: Stamp,
}
