//! Directories that names were looked up in lately, kept as descriptors.
//!
//! A change of a name needs its directory three times, and the next one most often the same again. To find it by
//! its handle costs several times what is then done in it. Only directories: a descriptor keeps the blocks of a
//! file that is removed.

use leasefs_protocol::Handle;
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most that are kept. Few, since they come off what is reserved of the server's descriptors.
const MAX_DIRS: usize = 64;

/// The directories, the last used first.
#[derive(Debug, Default)]
pub(crate) struct Dirs(Mutex<Vec<(Handle, Arc<OwnedFd>)>>);

impl Dirs {
    fn lock(&self) -> MutexGuard<'_, Vec<(Handle, Arc<OwnedFd>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, if it is kept and still there.
    pub fn find(&self, handle: &Handle) -> Option<Arc<OwnedFd>> {
        let found = self.take_first(handle)?;
        if rustix::fs::fstat(&found).is_ok_and(|stat| stat.st_nlink > 0) {
            return Some(found);
        }
        self.lock().retain(|(kept, _)| kept != handle);
        None
    }

    fn take_first(&self, handle: &Handle) -> Option<Arc<OwnedFd>> {
        let mut dirs = self.lock();
        let at = dirs.iter().position(|(kept, _)| kept == handle)?;
        dirs.get_mut(..=at)?.rotate_right(1);
        dirs.first().map(|(_, dir)| Arc::clone(dir))
    }

    /// Keeps a directory, in the place of the one that was last used longest ago.
    pub fn keep(&self, handle: Handle, dir: OwnedFd) -> Arc<OwnedFd> {
        let dir = Arc::new(dir);
        let mut dirs = self.lock();
        dirs.retain(|(kept, _)| *kept != handle);
        dirs.truncate(MAX_DIRS - 1);
        dirs.insert(0, (handle, Arc::clone(&dir)));
        dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags};

    fn handle(number: u8) -> Handle {
        Handle::new(&[number]).expect("one byte")
    }

    fn root() -> OwnedFd {
        rustix::fs::openat(CWD, "/", OFlags::PATH, Mode::empty()).expect("there is one")
    }

    #[test]
    fn those_used_last_are_kept_and_no_more_than_so_many() {
        let dirs = Dirs::default();
        for number in 0..=MAX_DIRS as u8 {
            dirs.keep(handle(number), root());
            assert!(dirs.find(&handle(0)).is_some());
        }
        assert_eq!(dirs.lock().len(), MAX_DIRS);
        assert!(dirs.find(&handle(1)).is_none());
        assert!(dirs.find(&handle(2)).is_some());
    }
}
