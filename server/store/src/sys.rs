//! System calls that no crate of ours wraps safely. The only file with `unsafe`.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::{CStr, CString};
use std::io;
use std::time::Duration;

/// Number of `listxattrat`, the same on every architecture that Rust has; libc knows it on few.
const LISTXATTRAT: libc::c_long = 465;

/// Largest handle any Linux file system makes (`MAX_HANDLE_SZ`).
const MAX_HANDLE_SZ: usize = 128;

/// `struct file_handle` with room for the largest handle.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; MAX_HANDLE_SZ],
}

/// A file handle as the host's kernel makes it.
pub(crate) struct KernelHandle {
    pub kind: i32,
    pub bytes: Vec<u8>,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the system call just returned this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The handle of the object behind `fd`.
pub(crate) fn name_to_handle(fd: BorrowedFd<'_>) -> io::Result<KernelHandle> {
    let mut raw = RawHandle {
        bytes: MAX_HANDLE_SZ as u32,
        kind: 0,
        data: [0; MAX_HANDLE_SZ],
    };
    let mut mount = 0;
    // SAFETY: `raw` is a `file_handle` with as many bytes behind it as it says, and the path is a
    // C string.
    let result = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut raw).cast(),
            &mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    check(result.into())?;
    let bytes = raw.data.get(..raw.bytes as usize).unwrap_or_default();
    Ok(KernelHandle {
        kind: raw.kind,
        bytes: bytes.to_vec(),
    })
}

/// How often, and how far apart, a handle is tried whose inode number seems to be in the making.
const HANDLE_TRIES: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_micros(100);

/// An `O_PATH` descriptor of the object that the handle names in the file system of `mount`.
///
/// While the host gives the number of a removed inode to a new object, its `iget_locked` finds that
/// one in creation and gives up without saying why, and ext4 calls that ENOMEM. A moment later the
/// handle is plainly stale.
pub(crate) fn open_by_handle(
    mount: BorrowedFd<'_>,
    kind: i32,
    bytes: &[u8],
) -> io::Result<OwnedFd> {
    let in_the_making = |e: &io::Error| e.raw_os_error() == Some(libc::ENOMEM);
    for _ in 0..HANDLE_TRIES {
        match try_handle(mount, kind, bytes) {
            Err(error) if in_the_making(&error) => std::thread::sleep(BETWEEN_TRIES),
            result => return result,
        }
    }
    try_handle(mount, kind, bytes)
}

fn try_handle(mount: BorrowedFd<'_>, kind: i32, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut raw = RawHandle {
        bytes: 0,
        kind,
        data: [0; MAX_HANDLE_SZ],
    };
    let room = raw
        .data
        .get_mut(..bytes.len())
        .ok_or(io::ErrorKind::InvalidInput)?;
    room.copy_from_slice(bytes);
    raw.bytes = bytes.len() as u32;
    // SAFETY: `raw` is a `file_handle` with as many bytes behind it as it says.
    let fd = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut raw).cast(),
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    owned(fd.into())
}

/// A private copy of the mount that `dir` lies on, with `dir` as its root and nothing mounted in it.
pub(crate) fn clone_mount(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as u32;
    // SAFETY: the path is a C string; the call has no other pointers.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), c"".as_ptr(), flags) };
    owned(fd)
}

/// Takes a mount out of its peer group, so that later mounts of the host don't reach it, and stops
/// it updating access times where `noatime` is set.
pub(crate) fn isolate_mount(mount: BorrowedFd<'_>, noatime: bool) -> io::Result<()> {
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        userns: u64,
    }
    const NOATIME: u64 = 0x10;
    const ATIME_MASK: u64 = 0x70;
    let attr = MountAttr {
        set: if noatime { NOATIME } else { 0 },
        clear: if noatime { ATIME_MASK } else { 0 },
        propagation: libc::MS_PRIVATE,
        userns: 0,
    };
    // SAFETY: the path is a C string; `attr` is a `mount_attr` of the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    check(result).map(drop)
}

/// Sets the calling thread's file system user id; false if the kernel kept the old one.
pub(crate) fn set_fsuid(uid: u32) -> bool {
    // SAFETY: plain numbers. The call never fails visibly: it returns the id before, so the
    // second one tells whether the first took effect.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, uid) as u32 == uid
    }
}

/// Sets the calling thread's file system group id; false if the kernel kept the old one.
pub(crate) fn set_fsgid(gid: u32) -> bool {
    // SAFETY: as in `set_fsuid`.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, gid) as u32 == gid
    }
}

/// Sets the supplementary groups of the calling thread alone (libc's function would set them in
/// every thread of the process).
pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: pointer and length belong to one slice of 32 bit group ids.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    check(result).map(drop)
}

/// Gives the calling thread a umask (and a working directory) of its own.
pub(crate) fn unshare_fs() -> io::Result<()> {
    // SAFETY: the thread's `fs_struct` is copied; no memory is affected.
    let result = unsafe { libc::unshare(libc::CLONE_FS) };
    check(result.into()).map(drop)
}

/// `access(2)` of the object behind `fd` for the thread's file system ids.
pub(crate) fn access(fd: BorrowedFd<'_>, mask: u32) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the path is a C string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mask,
            flags,
        )
    };
    check(result).map(drop)
}

/// Whether the host lets only those link a file who own it, or may read and write it.
pub(crate) fn hardlinks_are_protected() -> bool {
    let setting = std::fs::read("/proc/sys/fs/protected_hardlinks");
    setting.is_ok_and(|value| value.starts_with(b"1"))
}

/// Reads up to `len` bytes behind the end of `buffer`, if that needs no waiting (`EAGAIN` else).
pub(crate) fn read_nowait(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    buffer.reserve(len);
    let room = buffer.spare_capacity_mut();
    let part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: len.min(room.len()),
    };
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `part` is writable memory of the vector's spare capacity, of the length it says.
    let read = unsafe {
        libc::preadv2(
            fd.as_fd().as_raw_fd(),
            &raw const part,
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    let read = check(read as libc::c_long)? as usize;
    // SAFETY: the kernel has filled `read` bytes behind the vector's end, within its capacity.
    unsafe { buffer.set_len(buffer.len() + read) };
    Ok(read)
}

/// Writes at the end of the file and returns the file position behind what was written, which
/// becomes the descriptor's own. The caller serialises users of that position.
pub(crate) fn append(fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<(u64, u64)> {
    let part = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: `part` is the caller's slice, only read; offset -1 stands for the file position.
    let written =
        unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, -1, libc::RWF_APPEND) };
    let written = check(written as libc::c_long)? as u64;
    let end = rustix::fs::tell(fd)?;
    Ok((end.saturating_sub(written), written))
}

/// `truncate(2)`: checks that the thread's ids may write.
pub(crate) fn truncate(path: &CStr, size: u64) -> io::Result<()> {
    let size = i64::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the path is a C string.
    let result = unsafe { libc::truncate(path.as_ptr(), size) };
    check(result.into()).map(drop)
}

/// How long the list of the extended attributes is of what a name denotes (Linux 6.13).
pub(crate) fn listxattr_size_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<usize> {
    // SAFETY: the name is a C string, and no bytes of the list are asked for.
    let result = unsafe {
        libc::syscall(
            LISTXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            std::ptr::null_mut::<u8>(),
            0_usize,
        )
    };
    check(result).map(|size| size as usize)
}

/// Path that leads to the object behind `fd`, whatever became of its names.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> CString {
    let path = format!("/proc/self/fd/{}\0", fd.as_raw_fd());
    CStr::from_bytes_until_nul(path.as_bytes())
        .map(CStr::to_owned)
        .unwrap_or_default()
}
