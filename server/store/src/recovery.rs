//! What a server does before it serves, to complete or undo what a crash has left. By the server's
//! own rights: whoever asked for it was allowed to.

use crate::export::Store;
use crate::identity::Identity;
use crate::opening::host_flags;
use crate::opens::{ACCESS, OpenFile};
use crate::sys;
use leasefs_protocol::Durability;
use leasefs_protocol::{Handle, Refusal};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

impl Store {
    /// Opens a file as its creation would have; flags as for [`Store::create`].
    ///
    /// # Errors
    /// [`Refusal::Stale`] if the object is gone, or the host's.
    pub fn open_created(
        &self,
        who: &Identity,
        object: &Handle,
        flags: u32,
    ) -> Result<Arc<OpenFile>, Refusal> {
        self.open_granted(*object, host_flags(flags)? & ACCESS, who.clone())
    }

    /// Opens an object whose opener's access was decided earlier: `access` is that of an
    /// [`OpenFile`].
    pub(crate) fn open_granted(
        &self,
        object: Handle,
        access: OFlags,
        identity: Identity,
    ) -> Result<Arc<OpenFile>, Refusal> {
        let target = self.target(&object)?;
        let _gate = self.orphans.opening(&object);
        let kind = self.openable(target.as_fd(), &object)?;
        let path = sys::proc_path(target.as_fd());
        let fd = rustix::fs::openat(CWD, &path, access | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| self.refuse(e))?;
        self.dont_touch_atime(fd.as_fd());
        Ok(self.opens.open(object, fd, kind, access, identity))
    }

    /// Cuts a file back to a size it had.
    ///
    /// # Errors
    /// The host's.
    pub fn cut(&self, object: &Handle, size: u64) -> Result<(), Refusal> {
        let file = self.plain_open(object, OFlags::WRONLY)?;
        rustix::fs::ftruncate(&file, size).map_err(|e| self.refuse(e))
    }

    /// Makes durable what was written to a file.
    ///
    /// # Errors
    /// The host's.
    pub fn commit_file(&self, object: &Handle, durability: Durability) -> Result<(), Refusal> {
        let done = match durability {
            Durability::None => Ok(()),
            Durability::Data => rustix::fs::fdatasync(self.plain_open(object, OFlags::RDONLY)?),
            Durability::All => rustix::fs::fsync(self.plain_open(object, OFlags::RDONLY)?),
        };
        done.map_err(|e| self.refuse(e))
    }

    /// Whether the object has this xattr.
    ///
    /// # Errors
    /// The host's.
    pub fn has_xattr(&self, object: &Handle, name: &[u8]) -> Result<bool, Refusal> {
        let target = self.target(object)?;
        // Some (`trusted.`) are there for the privileged alone.
        let _own = self.rights.assume_own()?;
        let path = sys::proc_path(target.as_fd());
        let mut nothing = [0_u8; 0];
        match rustix::fs::getxattr(path, name, &mut nothing) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA) => Ok(false),
            Err(error) => Err(self.refuse(error)),
        }
    }

    fn plain_open(&self, object: &Handle, flags: OFlags) -> Result<OwnedFd, Refusal> {
        let target = self.target(object)?;
        let path = sys::proc_path(target.as_fd());
        let opened = rustix::fs::openat(CWD, &path, flags | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|e| self.refuse(e))
    }
}
