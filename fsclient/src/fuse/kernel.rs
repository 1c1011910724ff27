//! What the daemon tells the kernel unasked.

use super::init::Release;
use super::inside::Inside;

use crate::driver;
use crate::faults::{Fault, fault};
use fuser::{INodeNo, Notifier};
use leasefs_client::{NodeId, Notice, Noticed};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// `FUSE_NOTIFY_INVAL_INODE`. fuser's own call doesn't say that the kernel doesn't know the inode.
const NOTIFY_INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_STORE`.
const NOTIFY_STORE: i32 = 4;
/// An address where nothing is mapped.
const NOWHERE: usize = 1;
/// `FUSE_NOTIFY_INC_EPOCH`, for which fuser has no call.
const NOTIFY_INC_EPOCH: i32 = 8;

#[derive(Debug)]
struct Link {
    notifier: Notifier,
    device: File,
    number: (u32, u32),
    mountpoint: PathBuf,
    inside: Inside,
    epochs: bool,
}

/// The kernel's side of the mount. Before it is connected it knows nothing, so that there is
/// nothing to drop.
#[derive(Debug, Default)]
pub struct Kernel {
    link: OnceLock<Link>,
}

impl Kernel {
    pub(super) fn connect(
        &self,
        notifier: Notifier,
        device: OwnedFd,
        mountpoint: &Path,
    ) -> io::Result<()> {
        let number = device_of(mountpoint)?;
        let mut link = Link {
            notifier,
            device: File::from(device),
            number,
            mountpoint: mountpoint.to_owned(),
            inside: Inside::watch(number)?,
            epochs: Release::of_host()?.has_epochs(),
        };
        link.epochs = link.epochs && link.forget_names().is_ok();
        self.link
            .set(link)
            .map_err(|_| io::Error::other("the kernel is connected already"))
    }

    /// Device number of the mount; its minor is the connection's number.
    pub(super) fn device(&self) -> Option<(u32, u32)> {
        self.link.get().map(|link| link.number)
    }

    /// Takes the mount out of the file tree. With `lazy`, open files live on.
    pub(super) fn unmount(&self, lazy: bool) -> io::Result<()> {
        match self.link.get() {
            Some(link) if link.is_mounted() => link.unmount(lazy),
            _ => Ok(()),
        }
    }

    pub(super) fn abort(&self) -> io::Result<()> {
        match self.link.get() {
            Some(link) => link.abort(),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl driver::Kernel for Kernel {
    fn tell(&self, notice: &Notice) -> Noticed {
        if is_deaf() {
            return Noticed::Done;
        }
        // Before there is a mount the kernel holds nothing.
        self.link
            .get()
            .map_or(Noticed::Done, |link| link.tell(notice))
    }

    fn can_forget_names(&self) -> bool {
        is_deaf() || self.link.get().is_some_and(Link::can_forget_names)
    }

    fn end_process(&self) -> ! {
        if let Err(error) = self.abort() {
            tracing::debug!(%error, "the connection ends with the process");
        }
        if let Err(error) = self.unmount(true) {
            tracing::error!(%error, "can't unmount");
        }
        std::process::exit(1)
    }
}

/// Whether the tests are to find that the kernel is told nothing.
fn is_deaf() -> bool {
    static FAULT: OnceLock<bool> = OnceLock::new();
    *FAULT.get_or_init(|| fault() == Some(Fault::NoInvalidation))
}

fn is_unknown(result: &io::Result<()>) -> bool {
    let error = result.as_ref().err();
    error.and_then(io::Error::raw_os_error) == Some(libc::ENOENT)
}

/// A connection that has ended, and a node that the kernel has forgotten, hold nothing.
fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

impl Link {
    fn can_forget_names(&self) -> bool {
        self.epochs && !self.inside.any()
    }

    fn tell(&self, notice: &Notice) -> Noticed {
        if *notice == Notice::ForgetNames && !self.can_forget_names() {
            return Noticed::Unable;
        }
        let done = self.carry_out(notice);
        if matches!(notice, Notice::DropAttrs(_)) && is_unknown(&done) {
            return Noticed::Unknown;
        }
        let done = match notice {
            Notice::End => done,
            _ => gone_is_fine(done),
        };
        match done {
            Ok(()) => Noticed::Done,
            Err(error) => {
                tracing::warn!(%error, ?notice, "the kernel doesn't take a notice");
                Noticed::Failed
            }
        }
    }

    fn carry_out(&self, notice: &Notice) -> io::Result<()> {
        match notice {
            Notice::DropAttrs(node) => self.drop_attrs(*node),
            Notice::ForgetNames => self.forget_names(),
            Notice::DropPages { node, offset, len } | Notice::DropWritten { node, offset, len } => {
                let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
                let len = i64::try_from(*len).unwrap_or(0);
                self.notifier.inval_inode(INodeNo(node.0), offset, len)
            }
            Notice::DropName { dir, name } => {
                let name = OsStr::from_bytes(name);
                self.notifier.inval_entry(INodeNo(dir.0), name)
            }
            Notice::Grow { size: 0, .. } => Ok(()),
            Notice::Grow { node, size } => self.grow(*node, *size),
            Notice::End => self.end(),
        }
    }

    /// By the control file system; where that isn't mounted, as in a container, by a forced unmount (`fuse_umount_begin`), which takes
    /// privilege.
    fn abort(&self) -> io::Result<()> {
        let (_, minor) = self.number;
        let aborted = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        aborted.or_else(|error| match self.is_mounted() {
            true => Ok(rustix::mount::unmount(
                &self.mountpoint,
                UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH,
            )?),
            false => Err(error),
        })
    }

    /// What waits fails, and what comes then finds what lies below the mount.
    fn end(&self) -> io::Result<()> {
        self.abort()?;
        match self.is_mounted() {
            true => self.unmount(true),
            false => Ok(()),
        }
    }

    fn is_mounted(&self) -> bool {
        device_of(&self.mountpoint).ok() == Some(self.number)
    }

    fn unmount(&self, lazy: bool) -> io::Result<()> {
        let how = match lazy {
            true => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
            false => UnmountFlags::NOFOLLOW,
        };
        match rustix::mount::unmount(&self.mountpoint, how) {
            Err(rustix::io::Errno::PERM) => self.fusermount(lazy),
            result => Ok(result?),
        }
    }

    /// Without privilege only the set-user-id helper may unmount.
    fn fusermount(&self, lazy: bool) -> io::Result<()> {
        let output = std::process::Command::new("fusermount3")
            .arg(if lazy { "-uz" } else { "-u" })
            .arg("--")
            .arg(&self.mountpoint)
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(reason.trim().to_owned()))
    }

    fn forget_names(&self) -> io::Result<()> {
        (&self.device).write_all(&notification::<16>(NOTIFY_INC_EPOCH))
    }

    fn drop_attrs(&self, NodeId(node): NodeId) -> io::Result<()> {
        let mut message = notification::<40>(NOTIFY_INVAL_INODE);
        // `struct fuse_notify_inval_inode_out`: node, offset (attributes alone), length.
        message[16..24].copy_from_slice(&node.to_ne_bytes());
        message[24..32].copy_from_slice(&(-1_i64).to_ne_bytes());
        (&self.device).write_all(&message)
    }

    /// `FUSE_NOTIFY_STORE` of the last byte. The kernel makes the file long enough for it before
    /// it takes the byte; the byte comes from an address that holds nothing, so that it never
    /// touches a page. That failure is the success.
    fn grow(&self, NodeId(node): NodeId, size: u64) -> io::Result<()> {
        let mut head = notification::<40>(NOTIFY_STORE);
        head[..4].copy_from_slice(&41_u32.to_ne_bytes());
        // `struct fuse_notify_store_out`: node, offset, size.
        head[16..24].copy_from_slice(&node.to_ne_bytes());
        head[24..32].copy_from_slice(&(size - 1).to_ne_bytes());
        head[32..36].copy_from_slice(&1_u32.to_ne_bytes());
        let parts = [
            libc::iovec {
                iov_base: head.as_mut_ptr().cast(),
                iov_len: head.len(),
            },
            libc::iovec {
                iov_base: NOWHERE as *mut libc::c_void,
                iov_len: 1,
            },
        ];
        // SAFETY: the kernel only reads. The first part is `head`; at the address of the second
        // nothing is ever mapped (below `vm.mmap_min_addr`), which it finds out and reports.
        let written = unsafe { libc::writev(self.device.as_raw_fd(), parts.as_ptr(), 2) };
        match written {
            -1 => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
                error => Err(error),
            },
            _ => Err(io::Error::other("the kernel took a byte from nowhere")),
        }
    }
}

/// A message of this length that begins with its `struct fuse_out_header`: length, notification code, no request.
fn notification<const LENGTH: usize>(code: i32) -> [u8; LENGTH] {
    let mut message = [0; LENGTH];
    message[..4].copy_from_slice(&(LENGTH as u32).to_ne_bytes());
    message[4..8].copy_from_slice(&code.to_ne_bytes());
    message
}

/// The device number of what is mounted there, without asking the daemon behind it.
fn device_of(mountpoint: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let found = statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}
