//! Attributes: reading, setting, checking access; the file system's state.

use crate::export::{Store, Target};
use crate::identity::Identity;
use crate::opens::OpenFile;
use crate::resolve::ONE_NAME;
use crate::sys;
use leasefs_protocol::limits::MAX_SYMLINK;
use leasefs_protocol::{Attr, FsStat, Handle, Refusal, SetAttr, SetTime};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use std::io;

const NANOS: u32 = 1_000_000_000;
/// `R_OK | W_OK | X_OK`
const ACCESS_MASK: u32 = 7;

pub(crate) fn to_host(time: Option<SetTime>) -> Result<Timespec, Refusal> {
    let special = |nanos| Timespec {
        tv_sec: 0,
        tv_nsec: nanos,
    };
    match time {
        None => Ok(special(rustix::fs::UTIME_OMIT)),
        Some(SetTime::Now) => Ok(special(rustix::fs::UTIME_NOW)),
        // Larger values have a meaning of their own to the kernel.
        Some(SetTime::At(at)) if at.nanos >= NANOS => Err(Refusal::Invalid),
        Some(SetTime::At(at)) => Ok(Timespec {
            tv_sec: at.seconds,
            tv_nsec: at.nanos.into(),
        }),
    }
}

impl Store {
    /// Attributes of an object. Needs no identity: whoever was given the handle may ask.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if the object is gone, or the host's.
    pub fn getattr(&self, object: &Handle) -> Result<Attr, Refusal> {
        self.attr_of(self.target(object)?.as_fd(), object)
    }

    /// Where an object is below the root, for people: as this host's kernel has found it last, if that still holds.
    pub fn path(&self, object: &Handle) -> Option<String> {
        let target = self.target(object).ok()?;
        let place = |fd| rustix::fs::readlink(sys::proc_path(fd), Vec::new()).ok();
        let (root, full) = (place(self.root_fd())?, place(target.as_fd())?);
        let below = full.as_bytes().strip_prefix(root.as_bytes())?;
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let name = match below {
            b"" => b".".as_slice(),
            _ => below,
        };
        // A client may have put anything in the way since.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ONE_NAME | ResolveFlags::BENEATH;
        let there = rustix::fs::openat2(self.root_fd(), name, flags, Mode::empty(), how).ok()?;
        let stat = |fd| rustix::fs::fstat(fd).ok();
        let (there, it) = (stat(there.as_fd())?, stat(target.as_fd())?);
        let same = (there.st_dev, there.st_ino) == (it.st_dev, it.st_ino);
        same.then(|| format!("/{}", String::from_utf8_lossy(below)))
    }

    /// Sets attributes with the caller's rights; an open of the object that allows writing
    /// authorises a change of size. `kill_priv` clears setuid, setgid and file capabilities with a
    /// change of size, whoever makes it. Returns the attributes after it.
    ///
    /// # Errors
    /// The host's; if several attributes are set, those before the refused one are set.
    pub fn setattr(
        &self,
        who: &Identity,
        object: &Handle,
        open: Option<&OpenFile>,
        set: &SetAttr,
    ) -> Result<Attr, Refusal> {
        let target = self.target(object)?;
        let times = Timestamps {
            last_access: to_host(set.atime)?,
            last_modification: to_host(set.mtime)?,
        };
        if let Some(size) = set.size {
            self.set_size(who, object, &target, open, size, set.kill_priv)?;
        }
        let fd = target.as_fd();
        let chowns = set.uid.is_some() || set.gid.is_some();
        let assumed = self.assume(who)?;
        if chowns {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
                .map_err(|e| self.refuse(e))?;
        }
        if let Some(mode) = set.mode {
            let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
            rustix::fs::chmodat(CWD, sys::proc_path(fd), mode, AtFlags::empty())
                .map_err(|e| self.refuse(e))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)
                .map_err(|e| self.refuse(e))?;
        }
        drop(assumed);
        self.attr_of(fd, object)
    }

    fn set_size(
        &self,
        who: &Identity,
        object: &Handle,
        target: &Target<'_>,
        open: Option<&OpenFile>,
        size: u64,
        kill_priv: bool,
    ) -> Result<(), Refusal> {
        if i64::try_from(size).is_err() {
            return Err(Refusal::TooBig);
        }
        let who = open.map_or(who, OpenFile::identity);
        let _assumed = if kill_priv {
            self.rights.assume_killing_priv(who)?
        } else {
            self.assume(who)?
        };
        let Some(open) = open else {
            return truncate(target.as_fd(), size).map_err(|e| self.refuse(e));
        };
        if open.handle() != object || !open.writes() {
            return Err(Refusal::BadOpen);
        }
        rustix::fs::ftruncate(open.fd(), size).map_err(|e| self.refuse(e))
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if it isn't one, or the host's.
    pub fn readlink(&self, object: &Handle) -> Result<Vec<u8>, Refusal> {
        let target = self.target(object)?;
        let link = rustix::fs::readlinkat(target.as_fd(), c"", Vec::with_capacity(MAX_SYMLINK + 1))
            .map_err(|e| match e {
                // What the kernel says of an empty path that isn't a symlink.
                rustix::io::Errno::NOENT => Refusal::Invalid,
                other => self.refuse(other),
            })?;
        Ok(link.into_bytes())
    }

    /// `access(2)` with the caller's rights.
    ///
    /// # Errors
    /// The host's, `EACCES` above all.
    pub fn access(&self, who: &Identity, object: &Handle, mask: u32) -> Result<(), Refusal> {
        if mask & !ACCESS_MASK != 0 {
            return Err(Refusal::Invalid);
        }
        let target = self.target(object)?;
        let _assumed = self.assume(who)?;
        sys::access(target.as_fd(), mask).map_err(|e| self.refuse(e))
    }

    /// State of the file system an object lies on.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if the object is gone, or the host's.
    pub fn statfs(&self, object: &Handle) -> Result<FsStat, Refusal> {
        let target = self.target(object)?;
        let stat = rustix::fs::fstatvfs(target.as_fd()).map_err(|e| self.refuse(e))?;
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(FsStat {
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            bsize: small(stat.f_bsize),
            frsize: small(stat.f_frsize),
            namelen: small(stat.f_namemax),
        })
    }
}

fn truncate(fd: BorrowedFd<'_>, size: u64) -> io::Result<()> {
    sys::truncate(&sys::proc_path(fd), size)
}
