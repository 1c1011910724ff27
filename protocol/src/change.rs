//! Operations that change something. Flags and modes have their Linux values.

use crate::answer::{Created, Object, Opened, Written};
use crate::attr::{self, Attr, Timestamp, Version};
use crate::ids::{Handle, OpenId};
use crate::name::RawName;
use crate::operation::{Durability, OpenFlags, operations};
use serde::{Deserialize, Serialize};

operations! {
    /// Changes something.
    Change {
        SetAttr => Attr, "setattr";
        Make => Object, "make";
        Unlink => (), "unlink";
        Rmdir => (), "rmdir";
        Rename => (), "rename";
        Link => Object, "link";
        OpenTruncated => Opened, "open_truncated";
        Create => Created, "create";
        Write => Written, "write";
        Fallocate => (), "fallocate";
        CopyRange => Written, "copy_range";
        SetXattr => (), "setxattr";
        RemoveXattr => (), "removexattr";
    }
}

/// The objects that a change names. One table for those who look at them and those who change them.
macro_rules! handles {
    ($change:expr) => {
        match $change {
            Self::Make(Make { dir, .. })
            | Self::Unlink(Unlink { dir, .. })
            | Self::Rmdir(Rmdir { dir, .. })
            | Self::Create(Create { dir, .. }) => [Some(dir), None],
            Self::Rename(Rename { dir, new_dir, .. }) => [Some(dir), Some(new_dir)],
            Self::Link(Link { object, dir, .. }) => [Some(object), Some(dir)],
            Self::SetAttr(SetAttr { object, .. })
            | Self::OpenTruncated(OpenTruncated { object, .. })
            | Self::SetXattr(SetXattr { object, .. })
            | Self::RemoveXattr(RemoveXattr { object, .. }) => [Some(object), None],
            Self::Write(_) | Self::Fallocate(_) | Self::CopyRange(_) => [None, None],
        }
    };
}

impl Change {
    /// The objects it names by their handles, the one it is about first.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        handles!(self).into_iter().flatten()
    }

    /// The same, to be changed.
    pub fn handles_mut(&mut self) -> impl Iterator<Item = &mut Handle> {
        handles!(self).into_iter().flatten()
    }
}

/// Where a WRITE goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum WriteAt {
    /// At this byte.
    Offset(u64),
    /// At the end of the file, decided by the server (`O_APPEND`).
    Append,
    /// Its parts, one after the other, to these places: at least one, at most [`crate::limits::MAX_PLACES`], none empty, each
    /// behind the last. Only said to who has [`crate::control::SCATTERS`].
    Places(Vec<Place>),
}

/// Where a part of a WRITE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Place {
    /// Its first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl WriteAt {
    /// Where `len` bytes go, in order; nowhere that is known if they are appended.
    pub fn places(&self, len: u64) -> impl Iterator<Item = Place> {
        let (one, more): (Option<Place>, &[Place]) = match self {
            Self::Offset(offset) => {
                let offset = *offset;
                (Some(Place { offset, len }), &[])
            }
            Self::Append => (None, &[]),
            Self::Places(places) => (None, places),
        };
        one.into_iter().chain(more.iter().copied())
    }

    /// The parts of `data`, and where each goes.
    pub fn parts<'a>(&'a self, data: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
        let mut rest = data;
        self.places(data.len() as u64).map(move |place| {
            let len = usize::try_from(place.len).unwrap_or(usize::MAX);
            let (part, behind) = rest.split_at(len.min(rest.len()));
            rest = behind;
            (place.offset, part)
        })
    }

    /// The first byte written, unless it is appended.
    pub fn first(&self) -> Option<u64> {
        self.places(0).next().map(|place| place.offset)
    }
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
    /// pages come with a Write lease: where that has ended, refused with [`Refusal::Changed`](crate::Refusal::Changed).
    Page {
        /// That lease had ended before the session was taken up again: one that it has now isn't it.
        late: bool,
    },
    /// Buffered by the client under a Write lease. Where that has ended, refused with
    /// [`Refusal::Changed`](crate::Refusal::Changed) unless the file still is this version, or what flushes
    /// through the same open have made of it.
    Flush {
        /// As the session's last operation on the file left it.
        base: Version,
        /// As with [`Page`](Self::Page).
        late: bool,
        /// When the last of them was written, by the server's clock as far as the client knows it.
        /// It becomes the file's mtime, unless that would go back or be to come.
        written: Option<Timestamp>,
        /// Some of it may have been carried out before, by an earlier request: then it isn't refused if
        /// the file holds the bytes already. So it is with what is [sent again](crate::Numbered::resent).
        repeated: bool,
        /// What its caller has set of the file (never a size): mode and owner before these bytes, so that none are
        /// readable that were written behind a `chmod`; times behind the last of them.
        set: attr::SetAttr,
    },
}

impl WriteKind {
    /// Whether an approval the client owes may wait for it.
    pub fn is_writeback(self) -> bool {
        match self {
            Self::Through { .. } => false,
            Self::Page { .. } | Self::Flush { .. } => true,
        }
    }
}

/// What to make in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum What {
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

/// Sets attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct SetAttr {
    /// Object.
    pub object: Handle,
    /// An open that allows writing authorises a change of size.
    pub open: Option<OpenId>,
    /// What to set.
    pub set: attr::SetAttr,
}

/// Makes an object that isn't opened; grants ATTRS of it, and NAMES of a directory if it is
/// sure to be empty still.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Make {
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
    /// Type and permission bits.
    pub mode: u32,
    /// The caller's umask; the host applies it or a default ACL.
    pub umask: u32,
    /// What.
    pub make: What,
}

/// Removes a name that isn't a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Unlink {
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
}

/// Removes an empty directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Rmdir {
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
}

/// Renames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Rename {
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
    /// Directory it goes to.
    pub new_dir: Handle,
    /// Name there.
    pub new_name: RawName,
    /// As `renameat2(2)` has them.
    pub flags: u32,
}

/// A further name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Link {
    /// Object.
    pub object: Handle,
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
}

/// Opens a file and makes it empty (`O_TRUNC`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct OpenTruncated {
    /// Object.
    pub object: Handle,
    /// As of an open that doesn't.
    pub flags: OpenFlags,
}

/// Creates and opens; with `O_EXCL` the name must be free.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Create {
    /// Directory.
    pub dir: Handle,
    /// Name in it.
    pub name: RawName,
    /// Type and permission bits.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// As of an open, and `O_EXCL`, `O_TRUNC`.
    pub flags: u32,
    /// A Write lease on ATTRS and DATA is wanted if the file is made.
    pub keep: bool,
}

/// Writes the payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Write {
    /// A file's open that allows writing.
    pub open: OpenId,
    /// Where.
    pub at: WriteAt,
    /// Clear setuid and setgid bits.
    pub kill_priv: bool,
    /// What must be durable when the answer comes.
    pub durability: Durability,
    /// Where it comes from.
    pub kind: WriteKind,
}

/// Allocates, punches, zeroes, collapses or inserts a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Fallocate {
    /// A file's open that allows writing.
    pub open: OpenId,
    /// `FALLOC_FL_*`.
    pub mode: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Copies within the server (`copy_file_range`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct CopyRange {
    /// An open that allows reading.
    pub from: OpenId,
    /// First byte there.
    pub from_offset: u64,
    /// An open that allows writing.
    pub to: OpenId,
    /// First byte there.
    pub to_offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Sets an xattr to the payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct SetXattr {
    /// Object.
    pub object: Handle,
    /// Its name.
    pub name: RawName,
    /// `XATTR_CREATE`, `XATTR_REPLACE`.
    pub flags: u32,
}

/// Removes an xattr.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct RemoveXattr {
    /// Object.
    pub object: Handle,
    /// Its name.
    pub name: RawName,
}
