//! What the daemon tells the kernel unasked.

use super::init::Release;
use super::inside::Inside;

use crate::nodes::{NodeId, Nodes};
use crate::ops::KernelSide;
use crate::recall::KernelCache;
use fuser::{INodeNo, Notifier};
use leasefs_protocol::Handle;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

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
    inside: Inside,
    epochs: bool,
}

/// The kernel's side of the mount. Before it is connected it knows nothing, so that there is
/// nothing to drop.
#[derive(Debug)]
pub struct Kernel {
    nodes: Arc<Nodes>,
    link: OnceLock<Link>,
    began: Instant,
    /// When it was last made to forget all names, in milliseconds since `began`; 0 is never.
    forgot: AtomicU64,
}

/// For how long after it forgot all names the kernel is told none, in milliseconds.
const CALM: u64 = 1000;

impl Kernel {
    /// A kernel that isn't connected; it knows these nodes.
    pub fn new(nodes: Arc<Nodes>) -> Self {
        Self {
            nodes,
            link: OnceLock::new(),
            began: Instant::now(),
            forgot: AtomicU64::new(0),
        }
    }

    /// Milliseconds since the kernel's side was made; at least 1.
    fn uptime(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    }

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
            inside: Inside::watch(number)?,
            epochs: Release::of_host()?.has_epochs(),
        };
        link.epochs = link.epochs && link.forget_names().is_ok();
        self.link
            .set(link)
            .map_err(|_| io::Error::other("the kernel is connected already"))
    }

    /// Tells the kernel something of an object, if it knows it.
    fn tell(
        &self,
        object: &Handle,
        what: impl FnOnce(&Notifier, INodeNo) -> io::Result<()>,
    ) -> io::Result<()> {
        match (self.link.get(), self.nodes.id_of(object)) {
            (Some(link), Some(NodeId(id))) => gone_is_fine(what(&link.notifier, INodeNo(id))),
            _ => Ok(()),
        }
    }

    /// Device number of the mount; its minor is the connection's number.
    pub(super) fn device(&self) -> Option<(u32, u32)> {
        self.link.get().map(|link| link.number)
    }

    pub(super) fn is_mounted_at(&self, mountpoint: &Path) -> bool {
        self.device().is_some() && device_of(mountpoint).ok() == self.device()
    }

    pub(super) fn abort(&self) -> io::Result<()> {
        let Some((_, minor)) = self.device() else {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        };
        fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
    }
}

impl KernelCache for Kernel {
    fn drop_attrs(&self, object: &Handle) -> io::Result<()> {
        self.tell(object, |kernel, ino| kernel.inval_inode(ino, -1, 0))
    }

    fn drop_pages(&self, object: &Handle, offset: u64, len: u64) -> io::Result<()> {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let len = i64::try_from(len).unwrap_or(0);
        self.tell(object, |kernel, ino| kernel.inval_inode(ino, offset, len))
    }

    fn can_forget_names(&self) -> bool {
        self.link
            .get()
            .is_some_and(|link| link.epochs && !link.inside.any())
    }

    fn forget_names(&self) -> io::Result<()> {
        self.forgot.store(self.uptime(), Ordering::Relaxed);
        self.link
            .get()
            .map_or(Ok(()), |link| gone_is_fine(link.forget_names()))
    }

    fn drop_name(&self, dir: &Handle, name: &[u8]) -> io::Result<()> {
        let name = OsStr::from_bytes(name);
        self.tell(dir, |kernel, ino| kernel.inval_entry(ino, name))
    }

    fn end(&self) -> io::Result<()> {
        self.abort()
    }
}

impl KernelSide for Kernel {
    fn is_calm(&self) -> bool {
        let forgot = self.forgot.load(Ordering::Relaxed);
        forgot == 0 || self.uptime() > forgot + CALM
    }

    fn grow(&self, node: NodeId, size: u64) -> io::Result<()> {
        match self.link.get() {
            Some(link) if size > 0 => gone_is_fine(link.grow(node, size)),
            _ => Ok(()),
        }
    }
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
    fn forget_names(&self) -> io::Result<()> {
        // `struct fuse_out_header`: length, notification code, no request.
        let mut header = [0; 16];
        header[..4].copy_from_slice(&16_u32.to_ne_bytes());
        header[4..8].copy_from_slice(&NOTIFY_INC_EPOCH.to_ne_bytes());
        (&self.device).write_all(&header)
    }

    /// `FUSE_NOTIFY_STORE` of the last byte. The kernel makes the file long enough for it before
    /// it takes the byte; the byte comes from an address that holds nothing, so that it never
    /// touches a page. That failure is the success.
    fn grow(&self, NodeId(node): NodeId, size: u64) -> io::Result<()> {
        let mut head = [0_u8; 40];
        head[..4].copy_from_slice(&41_u32.to_ne_bytes());
        head[4..8].copy_from_slice(&NOTIFY_STORE.to_ne_bytes());
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

/// The device number of what is mounted there, without asking the daemon behind it.
fn device_of(mountpoint: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let found = statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}
