//! Attributes as the host tells them.

use crate::sys;
use leasefs_protocol::limits::MAX_XATTR_VALUE;
use leasefs_protocol::{Attr, FileKind, Name, Timestamp};
use rustix::buffer::spare_capacity;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;

/// The attributes of what is behind `fd`.
pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<Attr> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(Attr {
        ino: stat.stx_ino,
        kind: kind(&stat),
        mode: stat.stx_mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        blksize: stat.stx_blksize,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        xattrs: true,
    })
}

/// Whether what is behind `fd` may have extended attributes: it has, or its host doesn't say. `trusted.*` are
/// listed only to who may administer the host.
pub(crate) fn may_have_xattrs(fd: BorrowedFd<'_>) -> bool {
    let listed = match rustix::fs::flistxattr_query(fd) {
        Err(Errno::BADF) => path_lists_xattrs(fd),
        listed => listed.ok(),
    };
    listed != Some(0)
}

/// As `flistxattr`, of what is only a path (`O_PATH`). By way of /proc that costs ten times as much, and a directory has a name by which
/// whoever may search it finds it.
fn path_lists_xattrs(fd: BorrowedFd<'_>) -> Option<usize> {
    let itself = sys::listxattr_size_at(fd, c".").ok();
    itself.or_else(|| rustix::fs::listxattr_query(sys::proc_path(fd)).ok())
}

/// As [`may_have_xattrs`], of what is behind `fd` and has been found by this name: by way of that it costs a third.
pub(crate) fn named_may_have_xattrs(dir: BorrowedFd<'_>, name: &Name, fd: BorrowedFd<'_>) -> bool {
    let name = CString::new(name.as_bytes()).map_err(io::Error::other);
    match name.and_then(|name| sys::listxattr_size_at(dir, &name)) {
        Ok(size) => size > 0,
        Err(_) => may_have_xattrs(fd),
    }
}

/// Whether a file system's list of extended attributes can be believed: there is none that it doesn't list, and what
/// isn't there is `ENODATA`. So it isn't without ACLs, nor where there are labels: they are made up for what has none.
/// Looked at for a directory of it.
pub(crate) fn lists_xattrs(dir: BorrowedFd<'_>) -> bool {
    let path = sys::proc_path(dir);
    let mut names = Vec::with_capacity(MAX_XATTR_VALUE);
    if rustix::fs::listxattr(&path, spare_capacity(&mut names)).is_err() {
        return false;
    }
    let label = |name: &str| rustix::fs::getxattr_query(&path, name) != Err(Errno::NODATA);
    if ["security.selinux", "security.SMACK64"]
        .into_iter()
        .any(label)
    {
        return false;
    }
    let acl = "system.posix_acl_access";
    match rustix::fs::getxattr_query(&path, acl) {
        Ok(_) => names
            .split(|byte| *byte == 0)
            .any(|name| name == acl.as_bytes()),
        Err(error) => error == Errno::NODATA,
    }
}

/// Number of a file system: where inode numbers tell objects apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    major: u32,
    minor: u32,
}

/// Where what is behind `fd` is.
pub(crate) fn device(fd: BorrowedFd<'_>) -> io::Result<Device> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok(Device {
        major: stat.stx_dev_major,
        minor: stat.stx_dev_minor,
    })
}

fn kind(stat: &Statx) -> FileKind {
    file_kind(FileType::from_raw_mode(stat.stx_mode.into())).unwrap_or(FileKind::File)
}

/// `None` where the host didn't say.
pub(crate) fn file_kind(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

fn time(time: StatxTimestamp) -> Timestamp {
    Timestamp {
        seconds: time.tv_sec,
        nanos: time.tv_nsec,
    }
}
