//! What an access to an object would wait for, for people. Only said to who has [`crate::control::EXPLAINS`].

use crate::attr::FileKind;
use crate::ids::Handle;
use crate::lease::Parts;
use serde::{Deserialize, Serialize};

/// Who holds what of an object just now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Explained {
    /// The object.
    pub object: Handle,
    /// Its inode number on the storage host.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Sessions that hold leases or locks of it, at most [`crate::limits::MAX_HOLDERS_TOLD`]; the asking one first.
    pub holders: Vec<Holding>,
    /// How many more there are.
    pub more: u32,
    /// Operations at it that wait.
    pub waiting: u32,
    /// It bounces: nobody may buffer writes of it before that is looked at again, milliseconds from now.
    pub bounces_ms: Option<u64>,
    /// The server is in grace: changes wait until it ends, so many milliseconds from now at most.
    pub grace_ms: Option<u64>,
}

/// What one session holds of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Holding {
    /// It is the session that asks.
    pub own: bool,
    /// Its host and mount point, as its client has told them; absent if that isn't the caller's to know.
    pub mount: Option<String>,
    /// What its leases cover.
    pub parts: Parts,
    /// What of that it has in Write mode.
    pub write: Parts,
    /// The newest of these was granted so many milliseconds ago, too much by a second and a quarter of that at most; absent if it
    /// has none. What a session has reclaimed was granted then.
    pub granted_ms: Option<u64>,
    /// Its leases end then, if it is never heard of again: milliseconds from now.
    pub ends_ms: u64,
    /// Nothing has come from it for over half a term, or what it was asked for is overdue.
    pub silent: bool,
    /// What it has been asked to give back.
    pub recall: Option<Recalled>,
    /// Locks it holds, as far as the server knows.
    pub locks: u32,
    /// Locks it waits for.
    pub lock_waits: u32,
}

/// A recall that is not approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Recalled {
    /// For how long it has been open, in milliseconds.
    pub since_ms: u64,
    /// Who waits for it waits so many more milliseconds at most, but for a flush.
    pub until_ms: u64,
}
