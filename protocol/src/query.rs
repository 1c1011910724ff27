//! Operations that change nothing. Flags, modes and masks have their Linux values.

use crate::answer::{Entries, Object, Offset, Opened};
use crate::attr::{Attr, FsStat};
use crate::explain::Explained;
use crate::ids::{Handle, LockOwner, LockWait, OpenId};
use crate::lock::{LockFound, LockKind, LockMode, LockRange, Locked, Unlocked};
use crate::name::RawName;
use crate::operation::{Durability, OpenFlags, operations};
use serde::{Deserialize, Serialize};

operations! {
    /// Asks something that changes nothing.
    Query {
        Lookup => Option<Object>, "lookup";
        GetAttr => Attr, "getattr";
        ReadLink => (), "readlink";
        Open => Opened, "open";
        Close => (), "close";
        Read => (), "read";
        Commit => (), "commit";
        Seek => Offset, "seek";
        ReadDir => Entries, "readdir";
        StatFs => FsStat, "statfs";
        Access => (), "access";
        GetXattr => (), "getxattr";
        ListXattr => (), "listxattr";
        CommitAll => (), "commit_all";
        Lock => Locked, "lock";
        Unlock => Unlocked, "unlock";
        TestLock => Option<LockFound>, "test_lock";
        CancelLock => Unlocked, "cancel_lock";
        ResetLocks => Unlocked, "reset_locks";
        Explain => Explained, "explain";
    }
}

/// The object that a query names. One table for those who look at it and those who change it.
macro_rules! handle {
    ($query:expr) => {
        match $query {
            Self::Lookup(Lookup { dir, .. }) | Self::Explain(Explain { dir, .. }) => Some(dir),
            Self::GetAttr(GetAttr { object })
            | Self::ReadLink(ReadLink { object })
            | Self::Open(Open { object, .. })
            | Self::StatFs(StatFs { object })
            | Self::Access(Access { object, .. })
            | Self::GetXattr(GetXattr { object, .. })
            | Self::ListXattr(ListXattr { object })
            | Self::Unlock(Unlock { object, .. })
            | Self::CancelLock(CancelLock { object, .. }) => Some(object),
            Self::Close(_)
            | Self::Read(_)
            | Self::Commit(_)
            | Self::Seek(_)
            | Self::ReadDir(_)
            | Self::CommitAll(_)
            | Self::Lock(_)
            | Self::TestLock(_)
            | Self::ResetLocks(_) => None,
        }
    };
}

impl Query {
    /// The object it names by its handle.
    pub fn handle(&self) -> Option<&Handle> {
        handle!(self)
    }

    /// The same, to be changed.
    pub fn handle_mut(&mut self) -> Option<&mut Handle> {
        handle!(self)
    }
}

/// What a READ leaves behind at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Fill {
    /// Nothing: the answer goes to the caller alone. Needs no lease.
    Nothing,
    /// Pages in the client's kernel: a Read lease comes with them.
    Pages,
    /// Pages that a shared mapping may store into: a Write lease comes with them.
    PagesForStore,
    /// Bytes in the client's daemon, if a Read lease comes with them.
    Cache,
}

/// Handle and attributes of a name; grants NAMES of the directory, ATTRS of the object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Lookup {
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
}

/// Attributes; grants ATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct GetAttr {
    /// Object.
    pub object: Handle,
}

/// A symlink's target, as payload; grants ATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct ReadLink {
    /// Symlink.
    pub object: Handle,
}

/// Opens a file or directory (`O_DIRECTORY`); grants ATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Open {
    /// Object.
    pub object: Handle,
    /// How.
    pub flags: OpenFlags,
    /// All bytes of a file are wanted with it, as payload, if they are no more than
    /// [`crate::limits::OPEN_DATA`]. A Read lease on DATA comes with them; without it they haven't come.
    pub with_data: bool,
}

/// Ends opens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Close {
    /// At most [`crate::limits::MAX_BATCH`].
    pub opens: Vec<OpenId>,
}

/// Bytes, as payload; grants DATA as `fill` says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Read {
    /// A file's open that allows reading.
    pub open: OpenId,
    /// First byte.
    pub offset: u64,
    /// At most [`crate::limits::MAX_PAYLOAD`]; fewer come only at the end of the file.
    pub len: u32,
    /// What the answer leaves behind.
    pub fill: Fill,
}

/// Makes durable what was written to the object by anyone (`fsync`), also of directories.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Commit {
    /// An open of the object.
    pub open: OpenId,
    /// Data alone or all metadata.
    pub durability: Durability,
}

/// `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Seek {
    /// A file's open.
    pub open: OpenId,
    /// From here.
    pub offset: u64,
    /// `SEEK_DATA` or `SEEK_HOLE`.
    pub whence: u32,
}

/// A page of a directory's entries; grants LISTING with the first page, and ATTRS of the
/// entries and NAMES of the directory where `nodes` asks for them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct ReadDir {
    /// An open of the directory.
    pub open: OpenId,
    /// 0, or the cookie of the last entry of the page before.
    pub cookie: u64,
    /// Whether handles and attributes are wanted.
    pub nodes: bool,
}

/// State of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct StatFs {
    /// Any object of it.
    pub object: Handle,
}

/// `access(2)` for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Access {
    /// Object.
    pub object: Handle,
    /// `R_OK`, `W_OK`, `X_OK`.
    pub mask: u32,
}

/// Value of an xattr, as payload; grants ATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct GetXattr {
    /// Object.
    pub object: Handle,
    /// Its name.
    pub name: RawName,
}

/// Names of the xattrs, NUL-terminated, as payload; grants ATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct ListXattr {
    /// Object.
    pub object: Handle,
}

/// Makes durable whatever was written to the export by anyone (`syncfs`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct CommitAll;

/// Takes a lock (`F_SETLK`, `F_SETLKW`, `flock`), in place of what its owner holds of the same bytes. Asked again it does no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Lock {
    /// An open of the file.
    pub open: OpenId,
    /// Whose lock.
    pub owner: LockOwner,
    /// Of which kind.
    pub kind: LockKind,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Which bytes; of `flock` all.
    pub range: LockRange,
    /// The process, for `F_GETLK` and `status`.
    pub pid: u32,
    /// It is waited for, under this number; without it what stands against it is told at once.
    pub wait: Option<LockWait>,
}

/// Gives up what an owner holds of these bytes (`F_UNLCK`, `LOCK_UN`). Asked again it does no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Unlock {
    /// The file.
    pub object: Handle,
    /// Whose locks.
    pub owner: LockOwner,
    /// Of which kind.
    pub kind: LockKind,
    /// Which bytes.
    pub range: LockRange,
}

/// What stands against a lock (`F_GETLK`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct TestLock {
    /// An open of the file.
    pub open: OpenId,
    /// Whose lock it would be.
    pub owner: LockOwner,
    /// Of which kind.
    pub kind: LockKind,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Which bytes.
    pub range: LockRange,
}

/// Waits no longer for a lock. Once this is answered it isn't granted any more; it may have been before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct CancelLock {
    /// The file.
    pub object: Handle,
    /// Which request.
    pub wait: LockWait,
}

/// Gives up all locks of the session, those it waits for too: by the client's clock they are lost. What was sent under them is
/// refused from now on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct ResetLocks;

/// What an access to the object of a path would wait for. Nobody's leases change. Not asked of a server that doesn't have
/// [`crate::control::EXPLAINS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Explain {
    /// Where the path begins.
    pub dir: Handle,
    /// Its components, looked up one by one with the caller's rights; at most [`crate::limits::MAX_PATH`].
    pub path: Vec<RawName>,
}
