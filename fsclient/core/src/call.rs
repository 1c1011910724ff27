//! Requests of the kernel and their answers.

use crate::listing::Names;
use bytes::Bytes;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::explain::Explained;
use leasefs_protocol::lock::LockFound;
use leasefs_protocol::{
    Attr, Caller, FileKind, FsStat, Handle, LockKind, LockMode, LockOwner, LockRange, SetAttr,
};
use std::sync::Arc;
use std::time::Duration;

/// A node id as the kernel knows it: one object's for as long as the kernel knows that, the root's being 1.
/// It is the inode number on the storage host, unless the kernel still knows another object by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The mounted directory.
    pub const ROOT: NodeId = NodeId(1);

    /// Whether an object may have its inode number as its id: FUSE reserves 0 and 1.
    pub(crate) fn may_be(ino: u64) -> bool {
        ino > Self::ROOT.0
    }
}

/// What a node id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// The object.
    pub handle: Handle,
    /// What it is.
    pub kind: FileKind,
}

/// Number of an open, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fh(pub u64);

impl Node {
    /// Tells objects apart that have had one node id, one after the other: a file handle (`name_to_handle_at`) may be older than what
    /// has the id now. Of one object always the same, or the kernel would take it for another one (`fuse_stale_inode`).
    pub fn generation(&self) -> u32 {
        let mix = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(FNV_PRIME);
        match self.id {
            // The kernel has made its inode before it was told anything.
            NodeId::ROOT => 0,
            _ => self.handle.as_bytes().iter().fold(FNV_OFFSET, mix),
        }
    }
}

/// Of the 32-bit hash of Fowler, Noll and Vo (FNV-1a, RFC 9923).
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// The process, user and group of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Thread id; 0 for requests the kernel makes by itself.
    pub pid: u32,
}

impl Asker {
    /// The identity as the server is told it. `groups` looks up the supplementary groups of a process,
    /// which can't change while its request is unanswered.
    ///
    /// Under `squash` all callers are one user there, and a root that is trusted may do everything: then groups aren't
    /// looked up, which costs as much as the message.
    pub(crate) fn caller(self, policy: IdentityPolicy, groups: fn(u32) -> Vec<u32>) -> Caller {
        let groups = match policy {
            IdentityPolicy::Squash => Vec::new(),
            IdentityPolicy::Trust if self.uid == 0 => Vec::new(),
            IdentityPolicy::RootSquash | IdentityPolicy::Trust => groups(self.pid),
        };
        Caller {
            uid: self.uid,
            gid: self.gid,
            groups,
        }
    }
}

/// A place in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The open.
    pub fh: Fh,
    /// First byte.
    pub offset: u64,
}

/// A WRITE of the kernel.
#[derive(Clone, Debug)]
pub struct Writing {
    /// First byte, as the kernel sees it.
    pub offset: u64,
    /// The bytes.
    pub data: Bytes,
    /// `open(2)` flags of the descriptor now.
    pub flags: u32,
    /// It comes from a page of a shared mapping.
    pub writeback: bool,
    /// Clear setuid and setgid bits.
    pub kill_priv: bool,
    /// Whose, where the kernel says so: not of a mapped page.
    pub owner: Option<LockOwner>,
}

/// Type and permission bits of something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMode {
    /// `st_mode`.
    pub mode: u32,
    /// The caller's umask; the host applies it or a default ACL.
    pub umask: u32,
}

/// How much of an xattr's value or list a caller has room for; 0 asks for the size alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room(pub u32);

/// A value or list, as far as the caller has room for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fitted {
    /// Its size was asked for.
    Size(u32),
    /// It fits.
    Whole(Bytes),
}

/// Attributes under the identity policy, with the inode number applications see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// `st_ino`.
    pub ino: u64,
    /// The rest.
    pub attr: Attr,
}

/// Attributes and how long the kernel may believe them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownFor {
    /// The attributes.
    pub shown: Shown,
    /// The timeout.
    pub valid: Duration,
}

/// An entry as the kernel is told it; it has been counted as a reference of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: Node,
    /// Its attributes.
    pub shown: Shown,
    /// How long the kernel may believe that the name denotes it.
    pub valid: Duration,
    /// How long the kernel may believe the attributes.
    pub attr_valid: Duration,
}

/// An open as the kernel is told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub fh: Fh,
    /// How the kernel treats it.
    pub caching: Caching,
}

/// How the kernel treats an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Reads and private maps go through the page cache, which is kept.
    Pages,
    /// Reads and writes come here, writes side by side; maps still use the page cache.
    Direct,
}

/// A whole directory, as it was at one moment; or as much of it as was read.
pub(crate) type Listing = Arc<Names>;

/// An entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
    /// Where the listing goes on behind it.
    pub next: u64,
}

/// The entries of a directory from an offset on, as many as have been read.
#[derive(Clone, Debug)]
pub struct ListingFrom {
    /// The directory.
    pub(crate) own: NodeId,
    /// The entries behind `.` and `..`.
    pub(crate) entries: Listing,
    pub(crate) offset: u64,
}

impl ListingFrom {
    /// Hands on entries until `take` says that it is full.
    pub fn hand_on(&self, mut take: impl FnMut(Listed<'_>) -> bool) {
        let dots = [&b"."[..], b".."].into_iter();
        let dots = dots.map(|name| (self.own.0, FileKind::Directory, name));
        let dots = dots.skip(usize::try_from(self.offset).unwrap_or(usize::MAX));
        let behind = self.offset.saturating_sub(2);
        let others = self
            .entries
            .from(usize::try_from(behind).unwrap_or(usize::MAX));
        let others = others.map(|entry| (entry.ino, entry.kind, entry.name));
        for ((ino, kind, name), next) in dots.chain(others).zip(self.offset.saturating_add(1)..) {
            let entry = Listed {
                ino,
                kind,
                name,
                next,
            };
            if take(entry) {
                return;
            }
        }
    }
}

/// The first entries of a listing, each with what it denotes if the kernel is told that.
#[derive(Clone, Debug)]
pub struct EntriesFrom {
    pub(crate) listing: ListingFrom,
    pub(crate) told: Vec<Option<Entry>>,
}

impl EntriesFrom {
    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        self.told.len()
    }

    /// What they denote, in their order.
    pub fn told(&self) -> &[Option<Entry>] {
        &self.told
    }

    /// Hands on all of them.
    pub fn hand_on(&self, mut take: impl FnMut(Listed<'_>, Option<&Entry>)) {
        let mut told = self.told.iter();
        self.listing.hand_on(|entry| match told.next() {
            Some(told) => {
                take(entry, told.as_ref());
                false
            }
            None => true,
        });
    }
}

/// What a process wants to do with a file's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockCall {
    /// Whose locks, as the kernel tells owners apart.
    pub owner: LockOwner,
    /// Of which kind.
    pub kind: LockKind,
    /// Which bytes.
    pub range: LockRange,
    /// Shared or exclusive; `None` unlocks.
    pub mode: Option<LockMode>,
    /// The process.
    pub pid: u32,
    /// It waits if it has to.
    pub wait: bool,
}

/// What is asked of the mount.
#[derive(Clone, Debug)]
#[expect(
    missing_docs,
    reason = "FUSE's own names, see fuse(4) and the system calls"
)]
pub enum Call {
    Lookup {
        parent: NodeId,
        name: Box<[u8]>,
    },
    GetAttr {
        node: NodeId,
    },
    SetAttr {
        node: NodeId,
        fh: Option<Fh>,
        set: SetAttr,
        /// Who sets a size.
        owner: Option<LockOwner>,
    },
    ReadLink {
        node: NodeId,
    },
    MakeNode {
        parent: NodeId,
        name: Box<[u8]>,
        mode: NewMode,
        rdev: (u32, u32),
    },
    MakeDir {
        parent: NodeId,
        name: Box<[u8]>,
        mode: NewMode,
    },
    Symlink {
        parent: NodeId,
        name: Box<[u8]>,
        target: Box<[u8]>,
    },
    Unlink {
        parent: NodeId,
        name: Box<[u8]>,
    },
    RemoveDir {
        parent: NodeId,
        name: Box<[u8]>,
    },
    Rename {
        parent: NodeId,
        name: Box<[u8]>,
        new_parent: NodeId,
        new_name: Box<[u8]>,
        flags: u32,
    },
    Link {
        node: NodeId,
        parent: NodeId,
        name: Box<[u8]>,
    },
    Open {
        node: NodeId,
        flags: u32,
    },
    Create {
        parent: NodeId,
        name: Box<[u8]>,
        mode: NewMode,
        flags: u32,
    },
    /// `read(2)` on a descriptor that may write: leaves nothing in the kernel.
    Read {
        at: At,
        len: u32,
        owner: LockOwner,
    },
    /// Fills pages of the kernel.
    ReadPages {
        at: At,
        len: u32,
    },
    Write {
        fh: Fh,
        writing: Writing,
    },
    /// A process closes a descriptor: its `fcntl` locks of the file end.
    Flush {
        fh: Fh,
        owner: LockOwner,
    },
    /// The last descriptor is closed and the last mapping gone.
    Release {
        fh: Fh,
    },
    /// Of a file or directory.
    Sync {
        fh: Fh,
        data_only: bool,
    },
    OpenDir {
        node: NodeId,
    },
    /// `plus`: with what the entries denote (READDIRPLUS), as many as go into an answer of so many bytes.
    ReadDir {
        fh: Fh,
        offset: u64,
        plus: Option<u32>,
    },
    ReleaseDir {
        fh: Fh,
    },
    StatFs {
        node: NodeId,
    },
    Access {
        node: NodeId,
        mask: u32,
    },
    GetXattr {
        node: NodeId,
        name: Box<[u8]>,
        room: Room,
    },
    ListXattr {
        node: NodeId,
        room: Room,
    },
    SetXattr {
        node: NodeId,
        name: Box<[u8]>,
        value: Bytes,
        flags: u32,
    },
    RemoveXattr {
        node: NodeId,
        name: Box<[u8]>,
    },
    Allocate {
        at: At,
        len: u64,
        mode: u32,
    },
    /// What stands against a lock.
    TestLock {
        fh: Fh,
        lock: LockCall,
    },
    /// Takes or gives up a lock.
    Lock {
        fh: Fh,
        lock: LockCall,
    },
    Seek {
        at: At,
        whence: u32,
    },
    CopyRange {
        from: At,
        to: At,
        len: u64,
    },
    /// Of the daemon: who holds what of the object of a path below the mount's root. Changes nobody's leases.
    Explain {
        path: Vec<Box<[u8]>>,
    },
    /// Of the daemon: everything buffered is to be at the server.
    FlushAll,
    /// Of the daemon: everything is to be on the server's disk.
    SyncAll,
    /// Of the daemon: the machine is about to sleep. Answered when nothing that was cached is in the kernel any
    /// more; until [`Call::Wake`] the kernel is told nothing to believe, and nothing is buffered.
    Sleep,
    /// Of the daemon: the machine is awake, or doesn't sleep after all.
    Wake,
}

/// What a [`Call`] is answered.
#[derive(Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// What a name denotes; `None` is nothing.
    Found(Option<Entry>),
    /// What was made.
    Made(Entry),
    /// Attributes.
    Attr(ShownFor),
    /// Bytes of a file, or a symlink's target.
    Bytes(Bytes),
    /// An open file.
    Opened(Opened),
    /// A file that was made, and its open.
    Created(Entry, Opened),
    /// An open directory.
    OpenedDir(Fh),
    /// Entries of a directory.
    Listing(ListingFrom),
    /// Entries of a directory, with what they denote (READDIRPLUS).
    Entries(EntriesFrom),
    /// So many bytes were written.
    Written(u32),
    /// State of the file system.
    FsStat(FsStat),
    /// An xattr's value, or the list of their names.
    Xattr(Fitted),
    /// An offset in a file.
    Offset(u64),
    /// A lock that stands against another one, if there is one.
    Lock(Option<LockFound>),
    /// Who holds what of an object.
    Explained(Box<Explained>),
}

impl Answer {
    /// Whether the kernel takes a size from it that no lease covers: it cuts off pages that lie behind.
    pub fn believed(&self) -> bool {
        match self {
            Self::Attr(attr) => attr.valid.is_zero(),
            Self::Made(_) | Self::Created(..) => true,
            _ => false,
        }
    }

    /// The same, of which nothing is to be believed beyond this moment: for one that is given long after it was decided, since
    /// this process was stopped in between. By now others may have been told that nothing of it is cached here.
    #[must_use]
    pub fn for_now(mut self) -> Self {
        match &mut self {
            Self::Found(Some(entry)) | Self::Made(entry) | Self::Created(entry, _) => entry.ends(),
            Self::Attr(attr) => attr.valid = Duration::ZERO,
            Self::Entries(entries) => entries.told.iter_mut().flatten().for_each(Entry::ends),
            _ => {}
        }
        self
    }
}

impl Entry {
    fn ends(&mut self) {
        (self.valid, self.attr_valid) = (Duration::ZERO, Duration::ZERO);
    }
}
