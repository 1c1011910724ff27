//! Outcomes, as the kernel is told them.
//!
//! Timeouts: of attributes in answers to GETATTR alone, of names in answers to LOOKUP alone. A
//! reply that makes an inode known can't carry attributes that outlive it: an invalidation that
//! comes before the kernel has taken the reply up finds nothing to invalidate.

use super::convert::{errno, file_attr, file_type};
use crate::ops::attr::Known;
use crate::ops::data::Filling;
use crate::ops::dir::Listed;
use crate::ops::names::Entry;
use crate::ops::open::{Caching, Opened};
use crate::ops::opens::Fh;
use crate::ops::xattr::Sized;
use crate::recall::{Fault, fault};
use bytes::Bytes;
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr,
};
use leasefs_protocol::{FsStat, Refusal};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;

/// No timeout: the kernel asks again.
const AT_ONCE: Duration = Duration::ZERO;

/// The timeout of the fault that the coherence tests must find.
const FAULTY: Duration = Duration::from_secs(5);

fn faulty_lookups() -> bool {
    static FAULT: OnceLock<bool> = OnceLock::new();
    *FAULT.get_or_init(|| fault() == Some(Fault::LookupAttrTimeout))
}

/// Of LOOKUP.
pub fn lookup(reply: ReplyEntry, found: Result<Option<Entry>, Refusal>) {
    match found {
        Ok(Some(found)) => {
            let attr = match faulty_lookups() {
                true => FAULTY,
                false => AT_ONCE,
            };
            entry_for(reply, &found, attr, found.valid);
        }
        Ok(None) => reply.error(Errno::ENOENT),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of requests that make or find an entry, LOOKUP apart.
pub fn entry(reply: ReplyEntry, made: Result<Entry, Refusal>) {
    match made {
        Ok(made) => entry_for(reply, &made, AT_ONCE, AT_ONCE),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

fn entry_for(reply: ReplyEntry, entry: &Entry, attr_valid: Duration, valid: Duration) {
    let generation = Generation(entry.node.generation);
    let attr = file_attr(&entry.shown);
    reply.entry_with_ttls(&attr_valid, &valid, &attr, generation);
}

/// Of GETATTR and SETATTR.
pub fn attr(reply: ReplyAttr, known: Result<Known, Refusal>) {
    match known {
        Ok(known) => reply.attr(&known.valid, &file_attr(&known.shown)),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of requests that are answered with success alone.
pub fn empty(reply: ReplyEmpty, done: Result<(), Refusal>) {
    match done {
        Ok(()) => reply.ok(),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of requests that are answered with bytes.
pub fn data(reply: ReplyData, data: Result<Bytes, Refusal>) {
    match data {
        Ok(data) => reply.data(&data),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of READ into the page cache. The READ ends when the kernel has its answer.
pub fn filling(reply: ReplyData, filling: Result<Filling, Refusal>) {
    match filling {
        Ok(filling) => reply.data(&filling.data),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of requests that are answered with a count of bytes.
pub fn written(reply: ReplyWrite, written: Result<u32, Refusal>) {
    match written {
        Ok(count) => reply.written(count),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

fn open_flags(caching: Caching) -> FopenFlags {
    match caching {
        Caching::Pages => FopenFlags::FOPEN_KEEP_CACHE,
        Caching::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
    }
}

/// Of OPEN.
pub fn opened(reply: ReplyOpen, opened: Result<Opened, Refusal>) {
    match opened {
        Ok(opened) => reply.opened(FileHandle(opened.fh.0), open_flags(opened.caching)),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of OPENDIR.
pub fn opened_dir(reply: ReplyOpen, fh: Result<Fh, Refusal>) {
    match fh {
        Ok(fh) => reply.opened(FileHandle(fh.0), FopenFlags::empty()),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of CREATE.
pub fn created(reply: ReplyCreate, created: Result<(Entry, Opened), Refusal>) {
    match created {
        Ok((entry, opened)) => reply.created(
            &AT_ONCE,
            &file_attr(&entry.shown),
            Generation(entry.node.generation),
            FileHandle(opened.fh.0),
            open_flags(opened.caching),
        ),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Adds an entry to a listing; true if it doesn't fit any more.
pub fn add(reply: &mut ReplyDirectory, entry: Listed<'_>) -> bool {
    reply.add(
        INodeNo(entry.ino),
        entry.next,
        file_type(entry.kind),
        OsStr::from_bytes(entry.name),
    )
}

/// Of READDIR.
pub fn listed(reply: ReplyDirectory, listed: Result<(), Refusal>) {
    match listed {
        Ok(()) => reply.ok(),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of STATFS.
pub fn statfs(reply: ReplyStatfs, stat: Result<FsStat, Refusal>) {
    match stat {
        Ok(stat) => reply.statfs(
            stat.blocks,
            stat.bfree,
            stat.bavail,
            stat.files,
            stat.ffree,
            stat.bsize,
            stat.namelen,
            stat.frsize,
        ),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of GETXATTR and LISTXATTR.
pub fn xattr(reply: ReplyXattr, value: Result<Sized, Refusal>) {
    match value {
        Ok(Sized::Size(size)) => reply.size(size),
        Ok(Sized::Whole(value)) => reply.data(&value),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

/// Of LSEEK.
pub fn offset(reply: ReplyLseek, offset: Result<u64, Refusal>) {
    match offset.map(i64::try_from) {
        Ok(Ok(offset)) => reply.offset(offset),
        Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
        Err(refusal) => reply.error(errno(refusal)),
    }
}
