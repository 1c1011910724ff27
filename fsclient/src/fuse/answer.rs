//! Who waits in the kernel, and answers as it is told them.
//!
//! Timeouts: of attributes in answers to GETATTR, LOOKUP and READDIRPLUS, of names in those of the latter two. Those that
//! make something can't carry any: the kernel takes the attributes up whatever has been invalidated
//! since (`fuse_iget` without a version).

use super::convert::{errno, file_attr, file_type, name_only};
use crate::driver;
use crate::faults::{Fault, fault};
use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use leasefs_client::call::{Caching, EntriesFrom, Entry, Fitted, ListingFrom, Node, Opened};
use leasefs_client::{Answer, Fault as CoreFault};
use leasefs_protocol::lock::LockFound;
use leasefs_protocol::{FsStat, LockMode, Refusal};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::oneshot;

/// No timeout: the kernel asks again.
const AT_ONCE: Duration = Duration::ZERO;

/// Of an entry of which the kernel is told the name alone.
const NOT_TOLD: INodeNo = INodeNo(0);

/// The timeout of the fault that the coherence tests must find.
const FAULTY: Duration = Duration::from_secs(5);

/// Takes an answer, as FUSE names what is asked.
#[derive(Debug)]
pub enum Waiter {
    /// LOOKUP.
    Lookup(ReplyEntry),
    /// Requests that make or find an entry, LOOKUP apart.
    Entry(ReplyEntry),
    /// GETATTR and SETATTR.
    Attr(ReplyAttr),
    /// Requests that are answered with success alone.
    Empty(ReplyEmpty),
    /// READ and READLINK.
    Data(ReplyData),
    /// Requests that are answered with a count of bytes.
    Write(ReplyWrite),
    /// OPEN and OPENDIR.
    Open(ReplyOpen),
    /// CREATE.
    Create(ReplyCreate),
    /// READDIR.
    Directory(ReplyDirectory),
    /// READDIRPLUS.
    DirectoryPlus(ReplyDirectoryPlus),
    /// STATFS.
    Statfs(ReplyStatfs),
    /// GETXATTR and LISTXATTR.
    Xattr(ReplyXattr),
    /// LSEEK.
    Lseek(ReplyLseek),
    /// GETLK.
    Lock(ReplyLock),
    /// Nobody in the kernel.
    Daemon(oneshot::Sender<Result<Answer, Refusal>>),
}

impl driver::Waiter for Waiter {
    fn of_daemon(answer: oneshot::Sender<Result<Answer, Refusal>>) -> Self {
        Self::Daemon(answer)
    }

    fn answer(self, answer: Result<Answer, Refusal>) {
        match (self, answer) {
            (Self::Daemon(waiter), answer) => waiter.answer(answer),
            (waiter, Ok(answer)) => waiter.is(answer),
            (waiter, Err(refusal)) => waiter.error(errno(refusal)),
        }
    }
}

impl Waiter {
    fn is(self, answer: Answer) {
        match (self, answer) {
            (Self::Lookup(reply), Answer::Found(Some(found))) => lookup(reply, &found),
            (Self::Lookup(reply), Answer::Found(None)) => reply.error(Errno::ENOENT),
            (Self::Entry(reply), Answer::Made(made)) => entry(reply, &made, made.attr_valid),
            (Self::Attr(reply), Answer::Attr(known)) => {
                reply.attr(&known.valid, &file_attr(&known.shown));
            }
            (Self::Empty(reply), Answer::Done) => reply.ok(),
            (Self::Data(reply), Answer::Bytes(data)) => reply.data(&data),
            (Self::Write(reply), Answer::Written(count)) => reply.written(count),
            (Self::Open(reply), Answer::Opened(opened)) => {
                reply.opened(FileHandle(opened.fh.0), open_flags(opened.caching));
            }
            (Self::Open(reply), Answer::OpenedDir(fh)) => {
                reply.opened(FileHandle(fh.0), FopenFlags::empty());
            }
            (Self::Create(reply), Answer::Created(made, opened)) => created(reply, &made, opened),
            (Self::Directory(reply), Answer::Listing(listing)) => listed(reply, &listing),
            (Self::DirectoryPlus(reply), Answer::Entries(entries)) => listed_with(reply, &entries),
            (Self::Statfs(reply), Answer::FsStat(stat)) => statfs(reply, &stat),
            (Self::Xattr(reply), Answer::Xattr(Fitted::Size(size))) => reply.size(size),
            (Self::Xattr(reply), Answer::Xattr(Fitted::Whole(value))) => reply.data(&value),
            (Self::Lseek(reply), Answer::Offset(offset)) => match i64::try_from(offset) {
                Ok(offset) => reply.offset(offset),
                Err(_) => reply.error(Errno::EOVERFLOW),
            },
            (Self::Lock(reply), Answer::Lock(found)) => locked(reply, found),
            // Not what the answer is: nothing of a file reaches the log.
            (waiter, _) => {
                tracing::error!(?waiter, "a defect: this is no answer to that");
                waiter.error(Errno::EIO);
            }
        }
    }

    fn error(self, error: Errno) {
        match self {
            Self::Lookup(reply) | Self::Entry(reply) => reply.error(error),
            Self::Attr(reply) => reply.error(error),
            Self::Empty(reply) => reply.error(error),
            Self::Data(reply) => reply.error(error),
            Self::Write(reply) => reply.error(error),
            Self::Open(reply) => reply.error(error),
            Self::Create(reply) => reply.error(error),
            Self::Directory(reply) => reply.error(error),
            Self::DirectoryPlus(reply) => reply.error(error),
            Self::Statfs(reply) => reply.error(error),
            Self::Xattr(reply) => reply.error(error),
            Self::Lseek(reply) => reply.error(error),
            Self::Lock(reply) => reply.error(error),
            // Finds that nobody answers.
            Self::Daemon(_) => {}
        }
    }
}

fn faulty_lookups() -> bool {
    static FAULT: OnceLock<bool> = OnceLock::new();
    *FAULT.get_or_init(|| fault() == Some(Fault::InCore(CoreFault::LookupAttrTimeout)))
}

fn lookup(reply: ReplyEntry, found: &Entry) {
    let attr = match faulty_lookups() {
        true => FAULTY,
        false => found.attr_valid,
    };
    entry(reply, found, attr);
}

fn entry(reply: ReplyEntry, entry: &Entry, attr_valid: Duration) {
    let attr = entry_attr(entry);
    reply.entry_with_ttls(&attr_valid, &entry.valid, &attr, generation(&entry.node));
}

fn generation(node: &Node) -> Generation {
    Generation(node.generation().into())
}

/// fuser takes the node id from the attributes. Where that isn't `st_ino` the kernel believes these at no time, and asks
/// for it by GETATTR.
fn entry_attr(entry: &Entry) -> FileAttr {
    FileAttr {
        ino: INodeNo(entry.node.id.0),
        ..file_attr(&entry.shown)
    }
}

fn created(reply: ReplyCreate, made: &Entry, opened: Opened) {
    reply.created_with_ttls(
        &made.attr_valid,
        &made.valid,
        &entry_attr(made),
        generation(&made.node),
        FileHandle(opened.fh.0),
        open_flags(opened.caching),
    );
}

/// What is open for reading alone has nothing to flush, but its close asks nevertheless (no `FOPEN_NOFLUSH`): a `fcntl` lock is
/// given up by FLUSH alone.
fn open_flags(caching: Caching) -> FopenFlags {
    match caching {
        Caching::Pages => FopenFlags::FOPEN_KEEP_CACHE,
        Caching::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
    }
}

fn listed(mut reply: ReplyDirectory, listing: &ListingFrom) {
    listing.hand_on(|entry| {
        reply.add(
            INodeNo(entry.ino),
            entry.next,
            file_type(entry.kind),
            OsStr::from_bytes(entry.name),
        )
    });
    reply.ok();
}

fn listed_with(mut reply: ReplyDirectoryPlus, entries: &EntriesFrom) {
    entries.hand_on(|entry, told| {
        let name = OsStr::from_bytes(entry.name);
        match told {
            Some(told) => reply.add_with_ttls(
                INodeNo(told.node.id.0),
                entry.next,
                name,
                &told.attr_valid,
                &told.valid,
                &file_attr(&told.shown),
                generation(&told.node),
            ),
            None => reply.add_with_ttls(
                NOT_TOLD,
                entry.next,
                name,
                &AT_ONCE,
                &AT_ONCE,
                &name_only(&entry),
                Generation(0),
            ),
        };
    });
    reply.ok();
}

/// The kernel has no number for a process of another machine: it shows 0.
fn locked(reply: ReplyLock, found: Option<LockFound>) {
    match found {
        None => reply.locked(0, 0, libc::F_UNLCK, 0),
        Some(found) => {
            let kind = match found.mode {
                LockMode::Shared => libc::F_RDLCK,
                LockMode::Exclusive => libc::F_WRLCK,
            };
            let (first, last) = (found.range.first(), found.range.last());
            reply.locked(first, last, kind, found.pid.unwrap_or(0));
        }
    }
}

fn statfs(reply: ReplyStatfs, stat: &FsStat) {
    reply.statfs(
        stat.blocks,
        stat.bfree,
        stat.bavail,
        stat.files,
        stat.ffree,
        stat.bsize,
        stat.namelen,
        stat.frsize,
    );
}
