//! Requests and replies of the request streams ("lanes").
//!
//! A client pipelines [`RequestFrame`]s on a lane; [`Reply`]s come back on the same lane in any
//! order, matched by [`RequestId`]. The payload of a frame is the data of WRITE and SETXATTR on the
//! way in, of READ, READLINK, GETXATTR and LISTXATTR on the way out.

use crate::attr::{Attr, DirEntry, FsStat, SetAttr, Timestamp, Version};
use crate::ids::{Handle, OpenId, OpenToken, RequestId, Seq, Stamp};
use crate::lease::Grant;
use crate::name::RawName;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// On whose behalf a request is made; the server's identity policy decides what it is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What makes a request a change: numbered, ordered, run once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Change {
    /// Its number.
    pub seq: Seq,
    /// Unanswered changes it takes effect behind.
    pub after: Vec<Seq>,
    /// Sent before, on this or an earlier connection.
    pub resent: bool,
    /// Objects whose covered parts this client has dropped from its own caches for this change.
    /// The server recalls from every other object the change touches, the sender's leases too.
    pub dropped: Vec<Handle>,
}

/// A request as it stands on a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct RequestFrame {
    /// Matches the reply. Of the session's requests only this one has it, and keeps it when it is
    /// sent again on a later connection.
    pub id: RequestId,
    /// Every change numbered below has been answered to the client: its answer may be forgotten.
    pub low_water: Seq,
    /// On whose behalf.
    pub caller: Caller,
    /// Present exactly if the request changes something.
    pub change: Option<Change>,
    /// What is asked.
    pub request: Request,
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

/// Where a WRITE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum WriteAt {
    /// At this byte.
    Offset(u64),
    /// At the end of the file, decided by the server (`O_APPEND`).
    Append,
}

/// Where the bytes of a WRITE come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum WriteKind {
    /// From a caller that waits for the answer.
    Through {
        /// The client would buffer what follows: a Write lease on ATTRS and DATA comes with the
        /// answer if nothing stands against it.
        keep: bool,
    },
    /// From a page of a shared mapping, which the client's kernel keeps locked until the answer. Such
    /// pages come with a Write lease: where that has ended, refused with [`Refusal::Changed`].
    Page,
    /// Buffered by the client under a Write lease. Where that has ended, refused with
    /// [`Refusal::Changed`] unless the file still is this version.
    Flush {
        /// As the session's last operation on the file left it.
        base: Version,
        /// When the last of them was written, by the server's clock as far as the client knows it.
        /// It becomes the file's mtime, unless that would go back or be to come.
        written: Option<Timestamp>,
        /// Some of it may have been carried out before, by an earlier request: then it isn't refused if
        /// the file holds the bytes already. So it is with what is [sent again](crate::Change::resent).
        repeated: bool,
    },
}

impl WriteKind {
    /// Whether an approval the client owes may wait for it.
    pub fn is_writeback(self) -> bool {
        match self {
            Self::Through { .. } => false,
            Self::Page | Self::Flush { .. } => true,
        }
    }
}

/// What must be on the server's disk when the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Durability {
    /// Nothing.
    None,
    /// The data and what is needed to read it back (`O_DSYNC`, `fdatasync`).
    Data,
    /// All metadata too (`O_SYNC`, `fsync`).
    All,
}

/// What to make in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Make {
    /// A directory.
    Directory,
    /// A file, fifo, socket or device; `mode` of the request carries the type (`S_IFMT`).
    Node {
        /// Device number as `(major, minor)`.
        rdev: (u32, u32),
    },
    /// A symlink with this target.
    Symlink {
        /// Target, at most 4095 bytes.
        target: RawName,
    },
}

/// What a client asks for. Flags, modes and masks have their Linux values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Request {
    /// Handle and attributes of a name; grants NAMES of the directory, ATTRS of the object.
    Lookup {
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
    },
    /// Attributes; grants ATTRS.
    GetAttr {
        /// Object.
        object: Handle,
    },
    /// Change: sets attributes.
    SetAttr {
        /// Object.
        object: Handle,
        /// An open that allows writing authorises a change of size.
        open: Option<OpenId>,
        /// What to set.
        set: SetAttr,
    },
    /// A symlink's target, as payload; grants ATTRS.
    ReadLink {
        /// Symlink.
        object: Handle,
    },
    /// Change: makes an object that isn't opened; grants ATTRS of it, and NAMES of a directory if it is
    /// sure to be empty still.
    Make {
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
        /// Type and permission bits.
        mode: u32,
        /// The caller's umask; the host applies it or a default ACL.
        umask: u32,
        /// What.
        make: Make,
    },
    /// Change: removes a name that isn't a directory.
    Unlink {
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
    },
    /// Change: removes an empty directory.
    Rmdir {
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
    },
    /// Change: renames.
    Rename {
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
        /// Directory it goes to.
        new_dir: Handle,
        /// Name there.
        new_name: RawName,
        /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`.
        flags: u32,
    },
    /// Change: a further name of an object.
    Link {
        /// Object.
        object: Handle,
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
    },
    /// Opens a file or directory (`O_DIRECTORY`). With `O_TRUNC` it is a change.
    Open {
        /// Object.
        object: Handle,
        /// Access mode, `O_TRUNC`, `O_APPEND`, `O_DIRECTORY`, `O_SYNC`…
        flags: u32,
    },
    /// Change: creates and opens; with `O_EXCL` the name must be free.
    Create {
        /// Directory.
        dir: Handle,
        /// Name in it.
        name: RawName,
        /// Type and permission bits.
        mode: u32,
        /// The caller's umask.
        umask: u32,
        /// As in `Open`, and `O_EXCL`.
        flags: u32,
        /// A Write lease on ATTRS and DATA is wanted if the file is made.
        keep: bool,
    },
    /// Ends opens.
    Close {
        /// At most [`crate::limits::MAX_BATCH`].
        opens: Vec<OpenId>,
    },
    /// Bytes, as payload; grants DATA as `fill` says.
    Read {
        /// A file's open that allows reading.
        open: OpenId,
        /// First byte.
        offset: u64,
        /// At most [`crate::limits::MAX_PAYLOAD`]; fewer come only at the end of the file.
        len: u32,
        /// What the answer leaves behind.
        fill: Fill,
    },
    /// Change: writes the payload.
    Write {
        /// A file's open that allows writing.
        open: OpenId,
        /// Where.
        at: WriteAt,
        /// Clear setuid and setgid bits.
        kill_priv: bool,
        /// What must be durable when the answer comes.
        durability: Durability,
        /// Where it comes from.
        kind: WriteKind,
    },
    /// Makes durable what was written to the object by anyone (`fsync`), also of directories.
    Commit {
        /// An open of the object.
        open: OpenId,
        /// Data alone or all metadata.
        durability: Durability,
    },
    /// Change: allocates, punches, zeroes, collapses or inserts a range.
    Fallocate {
        /// A file's open that allows writing.
        open: OpenId,
        /// `FALLOC_FL_*`.
        mode: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// `SEEK_DATA` or `SEEK_HOLE`.
    Seek {
        /// A file's open.
        open: OpenId,
        /// From here.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
    },
    /// Change: copies within the server (`copy_file_range`).
    CopyRange {
        /// An open that allows reading.
        from: OpenId,
        /// First byte there.
        from_offset: u64,
        /// An open that allows writing.
        to: OpenId,
        /// First byte there.
        to_offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A page of a directory's entries; grants LISTING with the first page, and ATTRS of the
    /// entries and NAMES of the directory where `nodes` asks for them.
    ReadDir {
        /// An open of the directory.
        open: OpenId,
        /// 0, or the cookie of the last entry of the page before.
        cookie: u64,
        /// Whether handles and attributes are wanted.
        nodes: bool,
    },
    /// State of the file system.
    StatFs {
        /// Any object of it.
        object: Handle,
    },
    /// `access(2)` for the caller.
    Access {
        /// Object.
        object: Handle,
        /// `R_OK`, `W_OK`, `X_OK`.
        mask: u32,
    },
    /// Value of an xattr, as payload; grants ATTRS.
    GetXattr {
        /// Object.
        object: Handle,
        /// Its name.
        name: RawName,
    },
    /// Names of the xattrs, NUL-terminated, as payload; grants ATTRS.
    ListXattr {
        /// Object.
        object: Handle,
    },
    /// Change: sets an xattr to the payload.
    SetXattr {
        /// Object.
        object: Handle,
        /// Its name.
        name: RawName,
        /// `XATTR_CREATE`, `XATTR_REPLACE`.
        flags: u32,
    },
    /// Change: removes an xattr.
    RemoveXattr {
        /// Object.
        object: Handle,
        /// Its name.
        name: RawName,
    },
    /// Makes durable whatever was written to the export by anyone (`syncfs`).
    CommitAll,
}

/// The objects that a request names. One table for those who look at them and those who change them.
macro_rules! handles {
    ($request:expr) => {
        match $request {
            Self::Lookup { dir, .. }
            | Self::Make { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::Rmdir { dir, .. }
            | Self::Create { dir, .. } => [Some(dir), None],
            Self::Rename { dir, new_dir, .. } => [Some(dir), Some(new_dir)],
            Self::Link { object, dir, .. } => [Some(object), Some(dir)],
            Self::GetAttr { object }
            | Self::SetAttr { object, .. }
            | Self::ReadLink { object }
            | Self::Open { object, .. }
            | Self::StatFs { object }
            | Self::Access { object, .. }
            | Self::GetXattr { object, .. }
            | Self::ListXattr { object }
            | Self::SetXattr { object, .. }
            | Self::RemoveXattr { object, .. } => [Some(object), None],
            Self::Close { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Commit { .. }
            | Self::Fallocate { .. }
            | Self::Seek { .. }
            | Self::CopyRange { .. }
            | Self::ReadDir { .. }
            | Self::CommitAll => [None, None],
        }
    };
}

impl Request {
    /// The objects it names by their handles.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        handles!(self).into_iter().flatten()
    }

    /// The same, to be changed.
    pub fn handles_mut(&mut self) -> impl Iterator<Item = &mut Handle> {
        handles!(self).into_iter().flatten()
    }

    /// Whether the request changes something and so must be numbered.
    pub fn is_change(&self) -> bool {
        match self {
            Self::SetAttr { .. }
            | Self::Make { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::Link { .. }
            | Self::Create { .. }
            | Self::Write { .. }
            | Self::Fallocate { .. }
            | Self::CopyRange { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. } => true,
            Self::Open { flags, .. } => flags & O_TRUNC != 0,
            Self::Lookup { .. }
            | Self::GetAttr { .. }
            | Self::ReadLink { .. }
            | Self::Close { .. }
            | Self::Read { .. }
            | Self::Commit { .. }
            | Self::Seek { .. }
            | Self::ReadDir { .. }
            | Self::StatFs { .. }
            | Self::CommitAll
            | Self::Access { .. }
            | Self::GetXattr { .. }
            | Self::ListXattr { .. } => false,
        }
    }

    /// The request's kind in lower case, for logs and counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lookup { .. } => "lookup",
            Self::GetAttr { .. } => "getattr",
            Self::SetAttr { .. } => "setattr",
            Self::ReadLink { .. } => "readlink",
            Self::Make { .. } => "make",
            Self::Unlink { .. } => "unlink",
            Self::Rmdir { .. } => "rmdir",
            Self::Rename { .. } => "rename",
            Self::Link { .. } => "link",
            Self::Open { .. } => "open",
            Self::Create { .. } => "create",
            Self::Close { .. } => "close",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Commit { .. } => "commit",
            Self::Fallocate { .. } => "fallocate",
            Self::Seek { .. } => "seek",
            Self::CopyRange { .. } => "copy_range",
            Self::ReadDir { .. } => "readdir",
            Self::StatFs { .. } => "statfs",
            Self::CommitAll => "commit_all",
            Self::Access { .. } => "access",
            Self::GetXattr { .. } => "getxattr",
            Self::ListXattr { .. } => "listxattr",
            Self::SetXattr { .. } => "setxattr",
            Self::RemoveXattr { .. } => "removexattr",
        }
    }
}

/// `O_TRUNC` (asm-generic/fcntl.h; the same on every architecture we build for).
pub const O_TRUNC: u32 = 0o1000;

/// An object a change has touched, as it was right after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Touched {
    /// The object.
    pub object: Handle,
    /// Its attributes after the change.
    pub attr: Attr,
}

/// The answer to a request that was not refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Response {
    /// Done; nothing to tell beyond `touched` and the payload.
    Done,
    /// The name exists (Lookup), or the object was made (Make, Link).
    Object {
        /// Its handle.
        handle: Handle,
        /// Its attributes.
        attr: Attr,
    },
    /// The name doesn't exist (Lookup). Not a refusal, since it may be cached.
    NoEntry,
    /// Attributes (GetAttr, SetAttr).
    Attr(Attr),
    /// An open (Open).
    Opened {
        /// Its number.
        open: OpenId,
        /// Its proof, for reclaim.
        token: OpenToken,
        /// The object's attributes.
        attr: Attr,
    },
    /// An object created or found, and its open (Create).
    Created {
        /// Its handle.
        handle: Handle,
        /// Its attributes.
        attr: Attr,
        /// The open's number.
        open: OpenId,
        /// Its proof, for reclaim.
        token: OpenToken,
    },
    /// Bytes written or copied.
    Written {
        /// How many.
        len: u64,
        /// Where they begin (append: decided by the server).
        offset: u64,
    },
    /// Where data or a hole begins (Seek).
    Offset(u64),
    /// A page of a listing (ReadDir).
    Entries {
        /// The entries.
        entries: Vec<DirEntry>,
        /// Whether the listing ends with this page.
        end: bool,
    },
    /// State of the file system (StatFs).
    FsStat(FsStat),
}

/// The reply to a [`RequestFrame`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Reply {
    /// The request.
    pub id: RequestId,
    /// Whether the session's leases are renewed from the moment the request was sent.
    pub renews: bool,
    /// Of a change: its place among the session's grants and recalls. What older stamps say of
    /// the objects in `touched` is never cached.
    pub stamp: Stamp,
    /// What of the answer may be cached.
    pub grants: Vec<Grant>,
    /// The objects a change has touched.
    pub touched: Vec<Touched>,
    /// With a Write lease: how many bytes the session may buffer in all for the next seconds
    /// ([`crate::limits::ROOM_LASTS`]), its share of the space that is free.
    pub room: Option<u64>,
    /// The answer.
    pub result: Result<Response, Refusal>,
}

impl Reply {
    /// Does this to every handle in it.
    pub fn each_handle(&mut self, mut change: impl FnMut(&mut Handle)) {
        self.grants.iter_mut().for_each(|g| change(&mut g.object));
        self.touched.iter_mut().for_each(|t| change(&mut t.object));
        match &mut self.result {
            Ok(Response::Object { handle, .. } | Response::Created { handle, .. }) => {
                change(handle);
            }
            Ok(Response::Entries { entries, .. }) => {
                let nodes = entries.iter_mut().filter_map(|e| e.node.as_mut());
                nodes.for_each(|(handle, _)| change(handle));
            }
            Ok(
                Response::Done
                | Response::NoEntry
                | Response::Attr(_)
                | Response::Opened { .. }
                | Response::Written { .. }
                | Response::Offset(_)
                | Response::FsStat(_),
            )
            | Err(_) => {}
        }
    }
}
