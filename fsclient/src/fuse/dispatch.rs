//! Every request of the kernel, handed on.

use super::answer;
use super::convert::{device_parts, errno, node_id, set_time};
use super::init;
use super::patience::patiently;
use crate::ops::data::{At, Writing};
use crate::ops::dir::Listed;
use crate::ops::names::NewMode;
use crate::ops::opens::Fh;
use crate::ops::xattr::Room;
use crate::ops::{Ask, Asker, Ops};
use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use leasefs_protocol::{Refusal, SetAttr};
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;

/// The file system as fuser calls it.
#[derive(Debug)]
pub struct Dispatch {
    ops: Arc<Ops>,
    runtime: Runtime,
    posix_acl: bool,
    ended: watch::Sender<bool>,
}

impl Dispatch {
    /// `ended` is set when the kernel has ended the connection.
    pub fn new(
        ops: Arc<Ops>,
        runtime: Runtime,
        posix_acl: bool,
        ended: watch::Sender<bool>,
    ) -> Self {
        Self {
            ops,
            runtime,
            posix_acl,
            ended,
        }
    }

    /// Runs what may wait on the runtime; `reply` takes its outcome.
    fn run<T, F>(
        &self,
        request: &Request,
        operation: impl FnOnce(Arc<Ops>, Ask) -> F,
        reply: impl FnOnce(Result<T, Refusal>) + Send + 'static,
    ) where
        T: Send,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let ask = Ask::new(asker(request));
        let operation = operation(Arc::clone(&self.ops), ask.clone());
        self.runtime
            .spawn(async move { reply(patiently(&ask, operation).await) });
    }
}

fn asker(request: &Request) -> Asker {
    Asker {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

fn owned(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn fh(handle: FileHandle) -> Fh {
    Fh(handle.0)
}

impl Filesystem for Dispatch {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        init::configure(config, self.posix_acl)
    }

    fn destroy(&mut self) {
        self.ended.send_replace(true);
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = node_id(parent);
        if let Some(found) = self.ops.lookup_cached(parent, name.as_bytes()) {
            return answer::lookup(reply, Ok(found));
        }
        let name = owned(name);
        self.run(
            request,
            |ops, ask| async move { ops.lookup(&ask, parent, &name).await },
            |found| answer::lookup(reply, found),
        );
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.ops.forget(node_id(ino), count);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let node = node_id(ino);
        if let Some(known) = self.ops.getattr_cached(node) {
            return answer::attr(reply, Ok(known));
        }
        self.run(
            request,
            |ops, ask| async move { ops.getattr(&ask, node).await },
            |shown| answer::attr(reply, shown),
        );
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
        let (node, open) = (node_id(ino), handle.map(fh));
        self.run(
            request,
            |ops, ask| async move { ops.setattr(&ask, node, open, set).await },
            |shown| answer::attr(reply, shown),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let node = node_id(ino);
        if let Some(target) = self.ops.readlink_cached(node) {
            return answer::data(reply, Ok(target));
        }
        self.run(
            request,
            |ops, ask| async move { ops.readlink(&ask, node).await },
            |target| answer::data(reply, target),
        );
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
        let (parent, name) = (node_id(parent), owned(name));
        let (mode, rdev) = (NewMode { mode, umask }, device_parts(rdev));
        self.run(
            request,
            |ops, ask| async move { ops.mknod(&ask, parent, &name, mode, rdev).await },
            |entry| answer::entry(reply, entry),
        );
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
        let (parent, name) = (node_id(parent), owned(name));
        let mode = NewMode { mode, umask };
        self.run(
            request,
            |ops, ask| async move { ops.mkdir(&ask, parent, &name, mode).await },
            |entry| answer::entry(reply, entry),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (node_id(parent), owned(name));
        self.run(
            request,
            |ops, ask| async move { ops.unlink(&ask, parent, &name).await },
            |done| answer::empty(reply, done),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (node_id(parent), owned(name));
        self.run(
            request,
            |ops, ask| async move { ops.rmdir(&ask, parent, &name).await },
            |done| answer::empty(reply, done),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (parent, name) = (node_id(parent), owned(name));
        let target = owned(target.as_os_str());
        self.run(
            request,
            |ops, ask| async move { ops.symlink(&ask, parent, &name, &target).await },
            |entry| answer::entry(reply, entry),
        );
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
        let (parent, name) = (node_id(parent), owned(name));
        let (new_parent, new_name) = (node_id(new_parent), owned(new_name));
        self.run(
            request,
            |ops, ask| async move {
                let to = (new_parent, &new_name[..]);
                ops.rename(&ask, (parent, &name), to, flags.bits()).await
            },
            |done| answer::empty(reply, done),
        );
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (node, parent, name) = (node_id(ino), node_id(parent), owned(name));
        self.run(
            request,
            |ops, ask| async move { ops.link(&ask, node, parent, &name).await },
            |entry| answer::entry(reply, entry),
        );
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (node, flags) = (node_id(ino), flags.0 as u32);
        if let Some(opened) = self.ops.open_cached(asker(request), node, flags) {
            return answer::opened(reply, Ok(opened));
        }
        self.run(
            request,
            |ops, ask| async move { ops.open(&ask, node, flags).await },
            |opened| answer::opened(reply, opened),
        );
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
        let (parent, name) = (node_id(parent), owned(name));
        let (mode, flags) = (NewMode { mode, umask }, flags as u32);
        self.run(
            request,
            |ops, ask| async move { ops.create(&ask, parent, &name, mode, flags).await },
            |created| answer::created(reply, created),
        );
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
        let at = At { fh, offset };
        match owner {
            // `read(2)` on a direct descriptor; everything else fills pages.
            Some(_) => self.run(
                request,
                |ops, ask| async move { ops.read(&ask, at, size).await },
                |data| answer::data(reply, data),
            ),
            None => self.run(
                request,
                |ops, ask| async move { ops.read_pages(&ask, at, size).await },
                |filling| answer::filling(reply, filling),
            ),
        }
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
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let writing = Writing {
            offset,
            data: Bytes::copy_from_slice(data),
            flags: flags.0 as u32,
            writeback: how.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_priv: how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let fh = fh(handle);
        if let Some(written) = self.ops.write_at_once(fh, &writing) {
            return answer::written(reply, Ok(written));
        }
        self.run(
            request,
            |ops, ask| async move { ops.write(&ask, fh, writing).await },
            |written| answer::written(reply, written),
        );
    }

    /// Everything is at the server already: there is nothing to report.
    fn flush(&self, _: &Request, _: INodeNo, file: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        match self.ops.flush(fh(file)) {
            Ok(()) => reply.ok(),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.ops.release(fh(handle));
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let fh = fh(handle);
        self.run(
            request,
            |ops, ask| async move { ops.fsync(&ask, fh, data_only).await },
            |done| answer::empty(reply, done),
        );
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let node = node_id(ino);
        if let Some(fh) = self.ops.opendir_cached(asker(request), node) {
            return answer::opened_dir(reply, Ok(fh));
        }
        self.run(
            request,
            |ops, ask| async move { ops.opendir(&ask, node).await },
            |fh| answer::opened_dir(reply, fh),
        );
    }

    fn readdir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let fh = fh(handle);
        let add = |entry: Listed<'_>| answer::add(&mut reply, entry);
        if self.ops.readdir_cached(fh, offset, add) {
            return answer::listed(reply, Ok(()));
        }
        let (ops, ask) = (Arc::clone(&self.ops), Ask::new(asker(request)));
        self.runtime.spawn(async move {
            let take = |entry: Listed<'_>| answer::add(&mut reply, entry);
            let listed = patiently(&ask, ops.readdir(&ask, fh, offset, take)).await;
            answer::listed(reply, listed);
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.ops.releasedir(fh(handle));
        reply.ok();
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
        self.run(
            request,
            |ops, ask| async move { ops.statfs(&ask, node).await },
            |stat| answer::statfs(reply, stat),
        );
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
        let (node, name) = (node_id(ino), owned(name));
        let (value, flags) = (Bytes::copy_from_slice(value), flags as u32);
        self.run(
            request,
            |ops, ask| async move { ops.setxattr(&ask, node, &name, value, flags).await },
            |done| answer::empty(reply, done),
        );
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        room: u32,
        reply: ReplyXattr,
    ) {
        let node = node_id(ino);
        if let Some(value) = self.ops.getxattr_cached(node, name.as_bytes(), Room(room)) {
            return answer::xattr(reply, value);
        }
        let name = owned(name);
        self.run(
            request,
            |ops, ask| async move { ops.getxattr(&ask, node, &name, Room(room)).await },
            |value| answer::xattr(reply, value),
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, room: u32, reply: ReplyXattr) {
        let node = node_id(ino);
        if let Some(list) = self.ops.listxattr_cached(node, Room(room)) {
            return answer::xattr(reply, list);
        }
        self.run(
            request,
            |ops, ask| async move { ops.listxattr(&ask, node, Room(room)).await },
            |list| answer::xattr(reply, list),
        );
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (node, name) = (node_id(ino), owned(name));
        self.run(
            request,
            |ops, ask| async move { ops.removexattr(&ask, node, &name).await },
            |done| answer::empty(reply, done),
        );
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (node, mask) = (node_id(ino), mask.bits() as u32);
        self.run(
            request,
            |ops, ask| async move { ops.access(&ask, node, mask).await },
            |done| answer::empty(reply, done),
        );
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
        let at = At {
            fh: fh(handle),
            offset,
        };
        self.run(
            request,
            |ops, ask| async move { ops.fallocate(&ask, at, len, mode as u32).await },
            |done| answer::empty(reply, done),
        );
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
        let fh = fh(handle);
        self.run(
            request,
            |ops, ask| async move {
                let offset = u64::try_from(offset).map_err(|_| Refusal::Invalid)?;
                ops.seek(&ask, At { fh, offset }, whence as u32).await
            },
            |offset| answer::offset(reply, offset),
        );
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
        self.run(
            request,
            |ops, ask| async move { ops.copy_range(&ask, from, to, len).await },
            |copied| answer::written(reply, copied),
        );
    }
}
