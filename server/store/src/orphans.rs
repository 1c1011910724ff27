//! Files that are open and have lost their last name.
//!
//! Before the last name of an open file goes, the file is linked into a hidden folder in the
//! export's root, so that it can be opened again by its handle after a restart of the server. The
//! link goes with the file's last open. No client sees the folder or that link: the folder's name
//! is reserved, and link counts are told without it.
//!
//! The link is made before the name goes. A crash in between leaves a file that has both; such
//! links are removed when the export is opened.

use crate::handle::{HostId, Sealer};
use crate::in_use::InUse;
use crate::resolve::{Naming, open_entry};
use crate::{stat, sys};
use leasefs_protocol::limits::MAX_GONE;
use leasefs_protocol::{Attr, Handle, Name};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The folder in the export's root.
pub(crate) const FOLDER: &str = ".leasefs-orphans";
/// Objects share gates, so that there is a fixed number of them.
const GATES: u64 = 64;

/// The folder and what is in it.
pub(crate) struct Orphans {
    /// Unset until it is needed.
    folder: OnceLock<OwnedFd>,
    held: RwLock<HashMap<Handle, Held>>,
    /// Keep those who open an object and whoever takes its last name apart.
    gates: Vec<RwLock<()>>,
    /// Somebody may still claim what was open in an earlier life of the server. Read and written under the lock
    /// of `held`.
    claimable: AtomicBool,
    /// Bytes of files that nobody had open and that were kept for such a claim.
    unclaimed: AtomicU64,
    /// Those that have gone since they were last asked for, [`MAX_GONE`] at most.
    gone: Mutex<Vec<Handle>>,
    /// Keyed at random: no client can aim at another's gate.
    hasher: RandomState,
    in_use: Arc<InUse>,
}

/// A link in the folder.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: HostId,
    /// Somebody may have had it open in an earlier life of the server, and not have reclaimed it yet.
    claimable: bool,
}

/// The last name of a file may go while this lives: nobody opens it meanwhile, and if it was open
/// it stays.
#[must_use]
pub(crate) struct Shelter<'a> {
    orphans: &'a Orphans,
    handle: Handle,
    _gate: RwLockWriteGuard<'a, ()>,
}

impl Drop for Shelter<'_> {
    fn drop(&mut self) {
        self.orphans.settle_behind_gate(&self.handle);
    }
}

impl std::fmt::Debug for Orphans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orphans")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Orphans {
    /// None, and no folder.
    pub fn new(in_use: Arc<InUse>) -> Self {
        Self {
            folder: OnceLock::new(),
            held: RwLock::default(),
            claimable: AtomicBool::new(false),
            unclaimed: AtomicU64::new(0),
            gates: (0..GATES).map(|_| RwLock::default()).collect(),
            gone: Mutex::default(),
            hasher: RandomState::new(),
            in_use,
        }
    }

    /// Takes over what an earlier life of the server has left.
    ///
    /// # Errors
    /// If there is something of that name that isn't ours, or the host's.
    pub fn find(&self, root: BorrowedFd<'_>, naming: Naming, sealer: &Sealer) -> io::Result<()> {
        let folder = match open_folder(root) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            found => found?,
        };
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Some((id, attr)) = link_of(&folder, naming, name) {
                if attr.nlink > 1 {
                    rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
                } else {
                    let claimable = true;
                    let held = Held { id, claimable };
                    self.held_mut().insert(sealer.seal(&id), held);
                }
            }
        }
        // Nobody else knows it yet.
        let _ = self.folder.set(folder);
        Ok(())
    }

    /// Whether the folder is there.
    pub fn have_folder(&self) -> bool {
        self.folder.get().is_some()
    }

    /// Makes the folder, or finds the one that another has made meanwhile.
    ///
    /// # Errors
    /// The host's, or that there is something of that name that isn't ours.
    pub fn make_folder(&self, root: BorrowedFd<'_>) -> io::Result<()> {
        let folder = match rustix::fs::mkdirat(root, FOLDER, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open_folder(root)?,
            Err(error) => return Err(error.into()),
        };
        // Whoever came first has set the same.
        let _ = self.folder.set(folder);
        Ok(())
    }

    /// Whatever becomes an orphan until [`Orphans::settle_all`] may be claimed.
    pub fn expect_claims(&self) {
        let _held = self.held_mut();
        self.claimable.store(true, Ordering::Relaxed);
    }

    /// Nobody claims anything any more: removes what nobody has open.
    pub fn settle_all(&self) {
        let held: Vec<Handle> = {
            let mut held = self.held_mut();
            self.claimable.store(false, Ordering::Relaxed);
            self.unclaimed.store(0, Ordering::Relaxed);
            held.values_mut().for_each(|held| held.claimable = false);
            held.keys().copied().collect()
        };
        for handle in held {
            self.settle(&handle);
        }
    }

    /// Whether the file may have to outlive its last name: somebody has it open, or may have had it open in an
    /// earlier life of the server. For those who don't come back an eighth of `free` bytes is kept at most.
    pub fn may_be_open(&self, file: &Handle, attr: &Attr, free: impl FnOnce() -> u64) -> bool {
        if self.in_use.is_open(file) {
            return true;
        }
        self.claimable.load(Ordering::Relaxed) && {
            let kept = self.unclaimed.load(Ordering::Relaxed);
            kept.saturating_add(weight(attr)) <= free() / 8
        }
    }

    /// Until it is dropped nobody opens the object.
    pub fn shelter(&self, handle: Handle) -> Option<Shelter<'_>> {
        let gate = self.gate(&handle)?.write();
        Some(Shelter {
            orphans: self,
            handle,
            _gate: gate.unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// It is gone for good. False if too many are.
    pub fn note_gone(&self, handle: Handle) -> bool {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let room = gone.len() < MAX_GONE;
        if room {
            gone.push(handle);
        }
        room
    }

    /// Takes out up to `most` of those that have gone.
    pub fn take_gone(&self, most: usize) -> Vec<Handle> {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = gone.len().min(most);
        gone.drain(..taken).collect()
    }

    fn held_mut(&self) -> RwLockWriteGuard<'_, HashMap<Handle, Held>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, handle: &Handle) -> Option<Held> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.get(handle).copied()
    }

    /// Whether the object has a link in the folder.
    pub fn holds(&self, handle: &Handle) -> bool {
        self.held(handle).is_some()
    }

    fn gate(&self, handle: &Handle) -> Option<&RwLock<()>> {
        let at = self.hasher.hash_one(handle) % GATES;
        self.gates.get(usize::try_from(at).ok()?)
    }

    /// Held from before an object is opened until the open is known. Whoever drops an open, or may
    /// do so, must not hold it.
    pub fn opening(&self, handle: &Handle) -> Option<RwLockReadGuard<'_, ()>> {
        let gate = self.gate(handle)?;
        Some(gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps a file closed that nobody can have open, so that it needs no shelter; `None` if somebody may have.
    pub fn keep_closed(&self, file: &Handle) -> Option<RwLockWriteGuard<'_, ()>> {
        let gate = self.gate(file)?.write();
        let gate = gate.unwrap_or_else(PoisonError::into_inner);
        self.is_closed(file).then_some(gate)
    }

    /// Whether nobody can have the file open.
    pub fn is_closed(&self, file: &Handle) -> bool {
        !self.claimable.load(Ordering::Relaxed) && !self.in_use.is_open(file)
    }

    /// Removes the object's link unless it is still needed.
    pub fn settle(&self, handle: &Handle) {
        if !self.holds(handle) {
            return;
        }
        let Some(gate) = self.gate(handle) else {
            return;
        };
        let _gate = gate.write().unwrap_or_else(PoisonError::into_inner);
        self.settle_behind_gate(handle);
    }

    fn settle_behind_gate(&self, handle: &Handle) {
        let (Some(folder), Some(held)) = (self.folder.get(), self.held(handle)) else {
            return;
        };
        if held.claimable {
            return;
        }
        let name = link_name(&held.id);
        let is_last = || {
            rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_nlink == 1)
        };
        let is_last = is_last();
        if self.in_use.is_open(handle) && is_last {
            return;
        }
        match rustix::fs::unlinkat(folder, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {
                self.held_mut().remove(handle);
                if is_last {
                    self.note_gone(*handle);
                }
            }
            Err(error) => {
                tracing::warn!(%error, name, "a file that nobody has open can't be removed from {FOLDER}")
            }
        }
    }
}

impl Shelter<'_> {
    /// Links the file, which is about to lose its last name.
    pub fn take_in(&self, id: HostId, file: BorrowedFd<'_>, attr: &Attr) -> io::Result<()> {
        let folder = self.orphans.folder.get().ok_or(Errno::NOENT)?;
        let path = sys::proc_path(file);
        let linked = rustix::fs::linkat(CWD, path, folder, link_name(&id), AtFlags::SYMLINK_FOLLOW);
        match linked {
            Ok(()) | Err(Errno::EXIST) => {
                let mut held = self.orphans.held_mut();
                let claimable = self.orphans.claimable.load(Ordering::Relaxed);
                held.insert(self.handle, Held { id, claimable });
                if !self.orphans.in_use.is_open(&self.handle) {
                    let unclaimed = &self.orphans.unclaimed;
                    unclaimed.fetch_add(weight(attr), Ordering::Relaxed);
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// What a file takes of the disk, an inode at least.
fn weight(attr: &Attr) -> u64 {
    attr.blocks.saturating_mul(512).max(4096)
}

/// A link's name says whose it is, so that a folder's content explains itself.
fn link_name(id: &HostId) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    std::iter::once(&id.kind)
        .chain(id.bytes())
        .map(hex)
        .collect()
}

fn parse_link_name(name: &[u8]) -> Option<HostId> {
    let text = std::str::from_utf8(name).ok()?;
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..text.len())
        .step_by(2)
        .map(byte)
        .collect::<Option<_>>()?;
    let (kind, host) = bytes.split_first()?;
    HostId::new(i32::from(*kind), host).filter(|id| link_name(id) == text)
}

/// Whose link that is and its attributes; `None` if we didn't make it.
fn link_of(folder: &OwnedFd, naming: Naming, name: &[u8]) -> Option<(HostId, Attr)> {
    let id = parse_link_name(name)?;
    let file = open_entry(folder.as_fd(), &Name::new(name).ok()?).ok()?;
    let is_its = naming.identify(file.as_fd()).is_ok_and(|found| found == id);
    let attr = stat::of(file.as_fd()).ok()?;
    is_its.then_some((id, attr))
}

fn open_folder(root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(root, FOLDER, flags, Mode::empty())?;
    let attr = stat::of(folder.as_fd())?;
    let own = rustix::process::geteuid().as_raw();
    if attr.uid != own || attr.mode & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "{FOLDER} in the export is not the server's own: remove or rename it"
        )));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_name_names_its_object_again_and_other_names_name_none() {
        let id = HostId::new(129, &[0, 1, 0xfe]).expect("fits");
        assert_eq!(link_name(&id), "810001fe");
        assert_eq!(parse_link_name(b"810001fe"), Some(id));
        for other in [
            &b""[..],
            b"8",
            b"810",
            b"xy",
            b"+1",
            b"\xff\xff",
            "ä1".as_bytes(),
        ] {
            assert_eq!(parse_link_name(other), None, "{other:?}");
        }
    }
}
