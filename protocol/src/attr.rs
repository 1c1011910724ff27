//! Attributes of objects, as the server's host has them.

use crate::ids::Handle;
use crate::name::RawName;
use serde::{Deserialize, Serialize};

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum FileKind {
    /// `S_IFREG`
    File,
    /// `S_IFDIR`
    Directory,
    /// `S_IFLNK`
    Symlink,
    /// `S_IFIFO`
    Fifo,
    /// `S_IFSOCK`
    Socket,
    /// `S_IFCHR`
    CharDevice,
    /// `S_IFBLK`
    BlockDevice,
}

/// Set-user-id and set-group-id.
pub const SET_IDS: u16 = 0o6000;

impl FileKind {
    /// The permission bits that something may have where all users are one: its owner would be the
    /// mounting user on the client, and is the server's user there, so no program takes on the rights of either. (Of a
    /// directory they say what is made in it inherits. Hidden, they would be lost by the next `chmod`.)
    pub fn without_set_ids(self, mode: u16) -> u16 {
        match self {
            Self::Directory => mode,
            _ => mode & !SET_IDS,
        }
    }
}

/// A time of the server's clock, since the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// Attributes of an object (`stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Attr {
    /// Inode number on the storage host.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky (`07777`).
    pub mode: u16,
    /// Hard links an application can know of.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `(major, minor)`.
    pub rdev: (u32, u32),
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Last access. Not coherent: reads don't update it.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Whether it may have extended attributes; if not, it has none but `trusted.*`.
    pub xattrs: bool,
}

impl Attr {
    /// Whether it is a file or a directory without extended attributes that others than root see.
    pub fn has_no_xattrs(&self) -> bool {
        match self.kind {
            FileKind::File | FileKind::Directory => !self.xattrs,
            _ => false,
        }
    }

    /// What tells this content from any later one.
    pub fn version(&self) -> Version {
        Version {
            ctime: self.ctime,
            size: self.size,
        }
    }
}

/// A file's content, as far as attributes tell: it has not changed while both stay the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Version {
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Size in bytes.
    pub size: u64,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum SetTime {
    /// The server's clock at the moment of the change.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct SetAttr {
    /// Permission bits (`07777`).
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates or extends.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// With a size: clear setuid and setgid bits and `security.capability` (`FUSE_HANDLE_KILLPRIV_V2`).
    pub kill_priv: bool,
}

impl SetAttr {
    /// Whether it leaves everything as it is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Mode and owner alone.
    #[must_use]
    pub fn rights(self) -> Self {
        Self {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            ..Self::default()
        }
    }

    /// Times alone.
    #[must_use]
    pub fn times(self) -> Self {
        Self {
            atime: self.atime,
            mtime: self.mtime,
            ..Self::default()
        }
    }

    /// What it comes to behind what was set earlier.
    #[must_use]
    pub fn behind(self, earlier: Self) -> Self {
        Self {
            mode: self.mode.or(earlier.mode),
            uid: self.uid.or(earlier.uid),
            gid: self.gid.or(earlier.gid),
            size: self.size.or(earlier.size),
            atime: self.atime.or(earlier.atime),
            mtime: self.mtime.or(earlier.mtime),
            kill_priv: self.kill_priv || earlier.kill_priv,
        }
    }

    /// An object's attributes when they have been set so, as far as that can be told; `None` for "now".
    pub fn applied(&self, attr: Attr) -> Option<Attr> {
        let time = |set: Option<SetTime>, old| match set {
            None => Some(old),
            Some(SetTime::At(time)) => Some(time),
            Some(SetTime::Now) => None,
        };
        Some(Attr {
            mode: self.mode.unwrap_or(attr.mode),
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            size: self.size.unwrap_or(attr.size),
            atime: time(self.atime, attr.atime)?,
            mtime: time(self.mtime, attr.mtime)?,
            ..attr
        })
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct DirEntry {
    /// Its name; never `.` or `..`.
    pub name: RawName,
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Where the listing goes on behind this entry.
    pub cookie: u64,
    /// Handle and attributes, where they were asked for and could be had.
    pub node: Option<(Handle, Attr)>,
}

/// State of the file system (`statvfs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct FsStat {
    /// Total blocks, in units of `frsize`.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size.
    pub bsize: u32,
    /// Fragment size.
    pub frsize: u32,
    /// Longest name.
    pub namelen: u32,
}
