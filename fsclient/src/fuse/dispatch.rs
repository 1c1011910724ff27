//! Every request of the kernel, as the core is asked it.

use super::answer::Waiter;
use super::convert::{device_parts, node_id, set_time};
use super::init;
use crate::driver::Driver;
use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    IoctlFlags, KernelConfig, LkFlags, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use leasefs_client::call::{At, Fh, LockCall, NewMode, Room, Writing};
use leasefs_client::{Asker, Call, Event};
use leasefs_protocol::{LockKind, LockMode, LockRange, SetAttr};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::watch;

/// The file system as fuser calls it. What can be answered at once is, on fuser's thread; none of its
/// threads ever waits.
#[derive(Debug)]
pub(super) struct Dispatch {
    driver: Arc<Driver<Waiter>>,
    posix_acl: bool,
    ended: watch::Sender<bool>,
}

impl Dispatch {
    /// `ended` is set when the kernel has ended the connection.
    pub fn new(driver: Arc<Driver<Waiter>>, posix_acl: bool, ended: watch::Sender<bool>) -> Self {
        Self {
            driver,
            posix_acl,
            ended,
        }
    }

    fn call(&self, request: &Request, waiter: Waiter, call: Call) {
        let asker = Asker {
            uid: request.uid(),
            gid: request.gid(),
            pid: request.pid(),
        };
        self.driver.drive(Event::Call {
            waiter,
            asker,
            call,
        });
    }
}

fn owned(name: &OsStr) -> Box<[u8]> {
    name.as_bytes().into()
}

fn fh(handle: FileHandle) -> Fh {
    Fh(handle.0)
}

fn lock_owner(owner: LockOwner) -> leasefs_protocol::LockOwner {
    leasefs_protocol::LockOwner(owner.0)
}

/// `None` for what no kernel asks.
fn lock_call(
    owner: LockOwner,
    (first, last): (u64, u64),
    typ: i32,
    pid: u32,
    flags: LkFlags,
) -> Option<LockCall> {
    let kind = match flags.contains(LkFlags::FUSE_LK_FLOCK) {
        true => LockKind::Flock,
        false => LockKind::Posix,
    };
    let mode = match typ {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        libc::F_UNLCK => None,
        _ => return None,
    };
    Some(LockCall {
        owner: lock_owner(owner),
        kind,
        range: LockRange::new(first, last)?,
        mode,
        pid,
        wait: false,
    })
}

impl Filesystem for Dispatch {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        init::configure(config, self.posix_acl)
    }

    fn destroy(&mut self) {
        self.ended.send_replace(true);
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let call = Call::Lookup {
            parent: node_id(parent),
            name: owned(name),
        };
        self.call(request, Waiter::Lookup(reply), call);
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        let node = node_id(ino);
        self.driver.drive(Event::Forget { node, count });
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let node = node_id(ino);
        self.call(request, Waiter::Attr(reply), Call::GetAttr { node });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        owner: Option<LockOwner>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            // fuser doesn't pass on what the kernel says of this; it asks for it where the
            // caller lacks CAP_FSETID.
            kill_priv: size.is_some() && request.uid() != 0,
        };
        let call = Call::SetAttr {
            node: node_id(ino),
            fh: handle.map(fh),
            set,
            owner: owner.map(lock_owner),
        };
        self.call(request, Waiter::Attr(reply), call);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let node = node_id(ino);
        self.call(request, Waiter::Data(reply), Call::ReadLink { node });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let call = Call::MakeNode {
            parent: node_id(parent),
            name: owned(name),
            mode: NewMode { mode, umask },
            rdev: device_parts(rdev),
        };
        self.call(request, Waiter::Entry(reply), call);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let call = Call::MakeDir {
            parent: node_id(parent),
            name: owned(name),
            mode: NewMode { mode, umask },
        };
        self.call(request, Waiter::Entry(reply), call);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = Call::Unlink {
            parent: node_id(parent),
            name: owned(name),
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = Call::RemoveDir {
            parent: node_id(parent),
            name: owned(name),
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let call = Call::Symlink {
            parent: node_id(parent),
            name: owned(name),
            target: owned(target.as_os_str()),
        };
        self.call(request, Waiter::Entry(reply), call);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let call = Call::Rename {
            parent: node_id(parent),
            name: owned(name),
            new_parent: node_id(new_parent),
            new_name: owned(new_name),
            flags: flags.bits(),
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let call = Call::Link {
            node: node_id(ino),
            parent: node_id(parent),
            name: owned(name),
        };
        self.call(request, Waiter::Entry(reply), call);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let call = Call::Open {
            node: node_id(ino),
            flags: flags.0 as u32,
        };
        self.call(request, Waiter::Open(reply), call);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let call = Call::Create {
            parent: node_id(parent),
            name: owned(name),
            mode: NewMode { mode, umask },
            flags: flags as u32,
        };
        self.call(request, Waiter::Create(reply), call);
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let fh = fh(handle);
        let (at, len) = (At { fh, offset }, size);
        let call = match owner {
            // `read(2)` on a direct descriptor; everything else fills pages.
            Some(owner) => Call::Read {
                at,
                len,
                owner: lock_owner(owner),
            },
            None => Call::ReadPages { at, len },
        };
        self.call(request, Waiter::Data(reply), call);
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let writing = Writing {
            offset,
            data: Bytes::copy_from_slice(data),
            flags: flags.0 as u32,
            writeback: how.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_priv: how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            owner: owner.map(lock_owner),
        };
        let fh = fh(handle);
        self.call(request, Waiter::Write(reply), Call::Write { fh, writing });
    }

    fn flush(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let call = Call::Flush {
            fh: fh(handle),
            owner: lock_owner(owner),
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn getlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        flags: LkFlags,
        reply: ReplyLock,
    ) {
        match lock_call(owner, (start, end), typ, pid, flags) {
            Some(lock) => {
                let fh = fh(handle);
                self.call(request, Waiter::Lock(reply), Call::TestLock { fh, lock });
            }
            None => reply.error(Errno::EINVAL),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        flags: LkFlags,
        reply: ReplyEmpty,
    ) {
        match lock_call(owner, (start, end), typ, pid, flags) {
            Some(lock) => {
                let (fh, lock) = (
                    fh(handle),
                    LockCall {
                        wait: sleep,
                        ..lock
                    },
                );
                self.call(request, Waiter::Empty(reply), Call::Lock { fh, lock });
            }
            None => reply.error(Errno::EINVAL),
        }
    }

    fn release(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let fh = fh(handle);
        self.call(request, Waiter::Empty(reply), Call::Release { fh });
    }

    fn fsync(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let call = Call::Sync {
            fh: fh(handle),
            data_only,
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let node = node_id(ino);
        self.call(request, Waiter::Open(reply), Call::OpenDir { node });
    }

    fn readdir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let (fh, plus) = (fh(handle), None);
        let call = Call::ReadDir { fh, offset, plus };
        self.call(request, Waiter::Directory(reply), call);
    }

    fn readdirplus(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let room = u32::try_from(reply.size()).unwrap_or(u32::MAX);
        let (fh, plus) = (fh(handle), Some(room));
        let call = Call::ReadDir { fh, offset, plus };
        self.call(request, Waiter::DirectoryPlus(reply), call);
    }

    fn releasedir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let fh = fh(handle);
        self.call(request, Waiter::Empty(reply), Call::ReleaseDir { fh });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.fsync(request, ino, handle, data_only, reply);
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let node = node_id(ino);
        self.call(request, Waiter::Statfs(reply), Call::StatFs { node });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let call = Call::SetXattr {
            node: node_id(ino),
            name: owned(name),
            value: Bytes::copy_from_slice(value),
            flags: flags as u32,
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        room: u32,
        reply: ReplyXattr,
    ) {
        let call = Call::GetXattr {
            node: node_id(ino),
            name: owned(name),
            room: Room(room),
        };
        self.call(request, Waiter::Xattr(reply), call);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, room: u32, reply: ReplyXattr) {
        let call = Call::ListXattr {
            node: node_id(ino),
            room: Room(room),
        };
        self.call(request, Waiter::Xattr(reply), call);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = Call::RemoveXattr {
            node: node_id(ino),
            name: owned(name),
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let call = Call::Access {
            node: node_id(ino),
            mask: mask.bits() as u32,
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    /// There are none; asked for by whoever wants to know whether a file is a terminal.
    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let fh = fh(handle);
        let call = Call::Allocate {
            at: At { fh, offset },
            len,
            mode: mode as u32,
        };
        self.call(request, Waiter::Empty(reply), call);
    }

    fn lseek(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(offset) = u64::try_from(offset) else {
            // Only data and holes are asked for here.
            return reply.error(Errno::ENXIO);
        };
        let fh = fh(handle);
        let call = Call::Seek {
            at: At { fh, offset },
            whence: whence as u32,
        };
        self.call(request, Waiter::Lseek(reply), call);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = At {
            fh: fh(from),
            offset: from_offset,
        };
        let to = At {
            fh: fh(to),
            offset: to_offset,
        };
        let call = Call::CopyRange { from, to, len };
        self.call(request, Waiter::Write(reply), call);
    }
}
