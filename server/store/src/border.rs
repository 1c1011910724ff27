//! Borders: directories that clients are confined to.
//!
//! A confined client is given handles in a form of its own, sealed under its border, and only that
//! form is taken from it. So a handle is worth nothing across a border, wherever it was learned. The
//! form stays the same as long as the object exists, as the handle itself does.
//!
//! Directories that have been moved out since are told by the way up from them. A file has no way up:
//! whoever has learned its handle inside may use it as long as the file exists.

use crate::export::Store;
use crate::handle::HostId;
use leasefs_protocol::{Handle, Refusal};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Directories above one that are walked through.
const MAX_DEPTH: usize = 4096;

/// A directory that a client is confined to.
#[derive(Debug)]
pub struct Border {
    dir: Handle,
    id: HostId,
    /// What the handles are bound to.
    context: Vec<u8>,
}

impl Border {
    /// The directory.
    pub fn dir(&self) -> &Handle {
        &self.dir
    }
}

impl Store {
    /// Whether clients can be confined: the directory must be found again by its handle.
    pub fn has_borders(&self) -> bool {
        !self.remembers_places()
    }

    /// The border at a directory for one holder.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] where the host's file handles can't be used, [`Refusal::Stale`] if
    /// the handle isn't this export's.
    pub fn border(&self, dir: Handle, holder: &[u8]) -> Result<Border, Refusal> {
        if !self.has_borders() {
            return Err(Refusal::Unsupported);
        }
        Ok(Border {
            dir,
            id: self.sealer.unseal(&dir)?,
            context: [dir.as_bytes(), holder].concat(),
        })
    }

    /// The form that a handle has within a border.
    pub fn outward(&self, border: &Border, handle: &Handle) -> Handle {
        self.sealer.seal_within(&border.context, handle)
    }

    /// The handle of which this is the form within a border.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if it isn't that of any.
    pub fn inward(&self, border: &Border, form: &Handle) -> Result<Handle, Refusal> {
        self.sealer.unseal_within(&border.context, form)
    }

    /// Refuses a directory that isn't below the border just now.
    ///
    /// # Errors
    /// [`Refusal::Stale`], or the host's.
    pub fn is_within(&self, border: &Border, object: &Handle) -> Result<(), Refusal> {
        if *object == border.dir {
            return Ok(());
        }
        let target = self.target(object)?;
        let up = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = |fd: BorrowedFd<'_>| rustix::fs::openat(fd, c"..", up, Mode::empty());
        let mut at = match parent(target.as_fd()) {
            Ok(parent) => parent,
            // A file.
            Err(Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(self.refuse(error)),
        };
        for _ in 0..MAX_DEPTH {
            let (handle, id) = self.identify(at.as_fd())?;
            if id == border.id {
                return Ok(());
            }
            if self.is_root(&handle) {
                break;
            }
            at = parent(at.as_fd()).map_err(|e| self.refuse(e))?;
        }
        Err(Refusal::Stale)
    }
}
