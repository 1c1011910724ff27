//! Opens: the verdict about a caller's access, kept as a descriptor and provable by a token.

use crate::identity::Identity;
use crate::in_use::InUse;
use crate::orphans::Orphans;
use leasefs_protocol::{FileKind, Handle, Version};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// What of an open's flags says how it may be used.
pub(crate) const ACCESS: OFlags = OFlags::ACCMODE.union(OFlags::APPEND);
/// An open of the host. Closed when the last reference goes.
#[derive(Debug)]
pub struct OpenFile {
    handle: Handle,
    fd: OwnedFd,
    kind: FileKind,
    /// Access mode, and `O_APPEND` of what can only be appended to.
    pub(crate) access: OFlags,
    identity: Identity,
    /// Serialises users of the descriptor's own file position.
    position: Mutex<()>,
    closed: AtomicBool,
    flushed: Mutex<Option<Flushed>>,
    opens: Arc<Opens>,
    /// Dropped with it.
    counted: OnceLock<Box<dyn Debug + Send + Sync>>,
}

/// What flushes have made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flushed {
    /// What it was to them.
    base: Version,
    /// What the last of them has left.
    version: Version,
}

impl OpenFile {
    /// The object.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What it is: a file or a directory.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whose rights its reads and writes have.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it allows reading.
    pub fn reads(&self) -> bool {
        self.access & OFlags::ACCMODE != OFlags::WRONLY
    }

    /// Whether it allows writing.
    pub fn writes(&self) -> bool {
        self.access & OFlags::ACCMODE != OFlags::RDONLY
    }

    /// Whether it allows writing at the end only.
    pub(crate) fn only_appends(&self) -> bool {
        self.access.contains(OFlags::APPEND)
    }

    /// Its client has closed it: if it was the last open of a file without a name, the file goes
    /// as soon as nothing uses it. One that is dropped without this can be opened again by its
    /// token after a restart of the server.
    pub fn close(self: Arc<Self>) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// What it is counted by is dropped with it, however many still use it when it is closed.
    pub fn count_by(&self, place: impl Debug + Send + Sync + 'static) {
        // Once for each open.
        let _ = self.counted.set(Box::new(place));
    }

    /// A flush through it, made from `base`, has left this version.
    pub fn flushed(&self, base: Version, version: Version) {
        *self.lock_flushed() = Some(Flushed { base, version });
    }

    /// Whether flushes through it, made from `base`, have left this version.
    pub fn has_flushed(&self, base: Version, version: Version) -> bool {
        *self.lock_flushed() == Some(Flushed { base, version })
    }

    fn lock_flushed(&self) -> MutexGuard<'_, Option<Flushed>> {
        self.flushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn lock_position(&self) -> MutexGuard<'_, ()> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.opens
            .end(&self.handle, self.closed.load(Ordering::Relaxed));
    }
}

/// All opens by object: an object that is open stays reachable by its handle, whatever became of
/// its names.
#[derive(Debug)]
pub(crate) struct Opens {
    files: Mutex<HashMap<Handle, Vec<Weak<OpenFile>>>>,
    in_use: Arc<InUse>,
    orphans: Arc<Orphans>,
}

impl Opens {
    /// None. `orphans` is told of those that end.
    pub fn new(in_use: Arc<InUse>, orphans: Arc<Orphans>) -> Self {
        Self {
            files: Mutex::default(),
            in_use,
            orphans,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, Vec<Weak<OpenFile>>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find(&self, handle: &Handle) -> Option<Arc<OpenFile>> {
        self.lock().get(handle)?.iter().find_map(Weak::upgrade)
    }

    /// Keeps a descriptor that was opened with these flags.
    pub fn open(
        self: &Arc<Self>,
        handle: Handle,
        fd: OwnedFd,
        kind: FileKind,
        flags: OFlags,
        identity: Identity,
    ) -> Arc<OpenFile> {
        let open = Arc::new(OpenFile {
            handle,
            fd,
            kind,
            access: flags & ACCESS,
            identity,
            position: Mutex::default(),
            closed: AtomicBool::new(false),
            flushed: Mutex::default(),
            opens: Arc::clone(self),
            counted: OnceLock::new(),
        });
        self.in_use.add(&handle);
        let mut files = self.lock();
        let of_object = files.entry(handle).or_default();
        of_object.push(Arc::downgrade(&open));
        open
    }

    fn end(&self, handle: &Handle, closed: bool) {
        self.forget(handle);
        self.in_use.remove(handle);
        if closed {
            self.orphans.settle(handle);
        }
    }

    fn forget(&self, handle: &Handle) {
        let mut files = self.lock();
        if let Some(of_object) = files.get_mut(handle) {
            of_object.retain(|open| open.strong_count() > 0);
            if of_object.is_empty() {
                files.remove(handle);
            }
        }
    }
}
