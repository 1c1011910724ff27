//! Opening objects, and creating them.

use crate::export::{Node, Store};
use crate::identity::{Identity, Umask};
use crate::opens::OpenFile;
use crate::resolve::ONE_NAME;
use crate::{stat, sys};
use leasefs_protocol::{Attr, FileKind, Handle, Name, Refusal};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

/// Flags of an open that mean something to the host's open of it. `O_APPEND` isn't among them: the
/// offset of each write is the client's or, for an append, decided by the write itself. Only files
/// that can't be opened without it (`chattr +a`) are opened with it.
const PASSED: OFlags = OFlags::ACCMODE
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECTORY)
    .union(OFlags::EXCL);
/// The kernel's mark of an open for execution (`__FMODE_EXEC`), which FUSE passes on.
const FOR_EXEC: u32 = 0x20;
/// How often creating goes on after the name appeared and disappeared in between.
const CREATE_ATTEMPTS: usize = 16;

/// An object created or found, and its open.
#[derive(Debug)]
pub struct Created {
    /// The object.
    pub node: Node,
    /// Its open.
    pub open: Arc<OpenFile>,
    /// Whether the object is new.
    pub created: bool,
}

impl Store {
    /// Opens a file or directory with the caller's rights; flags as for `open(2)`.
    ///
    /// Fifos, sockets and devices are refused with `ENXIO`: the client's kernel opens those itself.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for `O_PATH` and `O_TMPFILE`, or the host's.
    pub fn open_object(
        &self,
        who: &Identity,
        object: &Handle,
        flags: u32,
    ) -> Result<(Arc<OpenFile>, Attr), Refusal> {
        let target = self.target(object)?;
        let host_flags = host_flags(flags)? - OFlags::EXCL;
        let _gate = self.orphans.opening(object);
        let kind = self.openable(target.as_fd(), object)?;
        let asked = match kind {
            FileKind::File => flags,
            _ => flags & !FOR_EXEC,
        };
        let (fd, host_flags) = self.open_again(who, target.as_fd(), host_flags, asked)?;
        let attr = self.attr_of(fd.as_fd(), object)?;
        let open = self.opens.open(*object, fd, kind, host_flags, who.clone());
        Ok((open, attr))
    }

    /// Creates a file and opens it, or opens the one that is there unless `O_EXCL` is among the
    /// flags. The host applies `umask` or a default ACL.
    ///
    /// # Errors
    /// As [`Store::open_object`].
    pub fn create(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &Name,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Created, Refusal> {
        let exclusive = host_flags(flags)?.contains(OFlags::EXCL);
        self.free_to_use(dir, name)?;
        for _ in 0..CREATE_ATTEMPTS {
            match self.create_new(who, dir, name, mode, umask, flags) {
                Err(Refusal::Host(errno)) if i32::from(errno) == libc::EEXIST && !exclusive => {}
                other => return other,
            }
            if let Some(found) = self.open_existing(who, dir, name, flags)? {
                return Ok(found);
            }
        }
        Err(Refusal::from_io(&Errno::BUSY.into()))
    }

    fn create_new(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &Name,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Created, Refusal> {
        let target = self.directory(dir)?;
        let host_flags = host_flags(flags)?;
        let fd = {
            let _umask = Umask::set(umask).map_err(|e| self.refuse(e))?;
            let _assumed = self.assume(who)?;
            rustix::fs::openat2(
                target.as_fd(),
                name.as_bytes(),
                host_flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::from_raw_mode(mode & 0o7777),
                ONE_NAME,
            )
            .map_err(|e| self.refuse(e))?
        };
        self.dont_touch_atime(fd.as_fd());
        let node = self.node(fd.as_fd(), Some((dir, name)))?;
        let open = self
            .opens
            .open(node.handle, fd, FileKind::File, host_flags, who.clone());
        Ok(Created {
            node,
            open,
            created: true,
        })
    }

    /// `None` if the name has disappeared.
    fn open_existing(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &Name,
        flags: u32,
    ) -> Result<Option<Created>, Refusal> {
        let target = self.directory(dir)?;
        let spot = {
            let assumed = self.assume(who)?;
            self.spot(&assumed, &target, (dir, name))?
        };
        let Some((found, Node { handle, .. })) = spot.entry else {
            return Ok(None);
        };
        let _gate = self.orphans.opening(&handle);
        let kind = self.openable(found.as_fd(), &handle)?;
        if kind == FileKind::Directory {
            return Err(Refusal::from_io(&Errno::ISDIR.into()));
        }
        let (host_flags, flags) = (host_flags(flags)?, flags & !FOR_EXEC);
        let (fd, host_flags) = self.open_again(who, found.as_fd(), host_flags, flags)?;
        let node = self.node(fd.as_fd(), Some((dir, name)))?;
        let open = self
            .opens
            .open(node.handle, fd, kind, host_flags, who.clone());
        Ok(Some(Created {
            node,
            open,
            created: false,
        }))
    }

    /// The kind of an object that an open makes sense for; opening it can't block.
    pub(crate) fn openable(
        &self,
        fd: BorrowedFd<'_>,
        object: &Handle,
    ) -> Result<FileKind, Refusal> {
        let attr = stat::of(fd).map_err(|e| self.refuse(e))?;
        if attr.nlink == 0 && !self.in_use.is_open(object) {
            // Its last name has just gone, and nobody was there to keep it.
            return Err(Refusal::Stale);
        }
        match attr.kind {
            FileKind::File | FileKind::Directory => Ok(attr.kind),
            FileKind::Symlink => Err(Refusal::from_io(&Errno::LOOP.into())),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Err(Refusal::from_io(&Errno::NXIO.into()))
            }
        }
    }

    /// Opens what is behind an `O_PATH` descriptor, with the caller's rights. `asked` are the
    /// caller's flags, `flags` those for the host; returns those it was opened with.
    fn open_again(
        &self,
        who: &Identity,
        fd: BorrowedFd<'_>,
        mut flags: OFlags,
        asked: u32,
    ) -> Result<(OwnedFd, OFlags), Refusal> {
        let path = sys::proc_path(fd);
        let open = |flags| rustix::fs::openat(CWD, &path, flags | OFlags::CLOEXEC, Mode::empty());
        // A program may be executed by those who may not read it, and that is all.
        let executes = asked & FOR_EXEC != 0 && flags == OFlags::RDONLY;
        let appends = asked & OFlags::APPEND.bits() != 0;
        let opened = {
            let _assumed = self.assume(who)?;
            match open(flags) {
                Err(Errno::ACCESS) if executes && sys::access(fd, 1).is_ok() => None,
                Err(Errno::PERM) if appends => {
                    flags |= OFlags::APPEND;
                    Some(open(flags))
                }
                other => Some(other),
            }
        };
        let opened = opened.unwrap_or_else(|| open(flags));
        let opened = opened.map_err(|e| self.refuse(e))?;
        self.dont_touch_atime(opened.as_fd());
        Ok((opened, flags))
    }

    pub(crate) fn dont_touch_atime(&self, fd: BorrowedFd<'_>) {
        if self.needs_noatime()
            && let Err(error) = rustix::fs::fcntl_setfl(fd, OFlags::NOATIME)
        {
            tracing::debug!(%error, "reads of a file update its access time");
        }
    }
}

pub(crate) fn host_flags(flags: u32) -> Result<OFlags, Refusal> {
    let flags = OFlags::from_bits_retain(flags);
    // O_TMPFILE contains O_DIRECTORY.
    let temporary = flags.contains(OFlags::TMPFILE);
    let no_access_mode = flags & OFlags::ACCMODE == OFlags::ACCMODE;
    if flags.contains(OFlags::PATH) || temporary || no_access_mode {
        return Err(Refusal::Unsupported);
    }
    Ok(flags & PASSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_would_not_be_an_open_are_refused() {
        let refused = Err(Refusal::Unsupported);
        assert_eq!(host_flags(OFlags::PATH.bits()), refused);
        assert_eq!(host_flags((OFlags::TMPFILE | OFlags::RDWR).bits()), refused);
        let append = OFlags::APPEND | OFlags::WRONLY | OFlags::TRUNC;
        assert_eq!(
            host_flags(append.bits()),
            Ok(OFlags::WRONLY | OFlags::TRUNC)
        );
    }
}
