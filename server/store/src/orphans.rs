//! Files that are open and have lost their last name.
//!
//! Before the last name of an open file goes, the file is linked into a hidden folder in the
//! export's root, so that it can be opened again by its handle after a restart of the server. The
//! link goes with the file's last open. No client sees the folder or that link: the folder's name
//! is reserved, and link counts are told without it.
//!
//! The link is made before the name goes. A crash in between leaves a file that has both; such
//! links are removed when the export is opened.

use crate::attrs;
use crate::export::Store;
use crate::handle::{HostId, Sealer};
use crate::identity::Identity;
use crate::opens::Opens;
use crate::resolve::{Naming, open_entry};
use crate::sys;
use leasefs_protocol::{Attr, FileKind, Handle, Name, Refusal};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The folder in the export's root.
const FOLDER: &str = ".leasefs-orphans";
/// Objects share gates, so that there is a fixed number of them.
const GATES: u64 = 64;
const S_ISVTX: u16 = 0o1000;
/// `W_OK | X_OK`
const MAY_REMOVE: u32 = 3;

/// The folder and what is in it.
pub(crate) struct Orphans {
    /// Unset until it is needed.
    folder: OnceLock<OwnedFd>,
    held: RwLock<HashMap<Handle, Held>>,
    /// Keep those who open an object and whoever takes its last name apart.
    gates: Vec<RwLock<()>>,
    /// Keyed at random: no client can aim at another's gate.
    hasher: RandomState,
    opens: Arc<Opens>,
}

/// A link in the folder.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: HostId,
    /// From an earlier life of the server, and somebody may not have reclaimed it yet.
    inherited: bool,
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
    pub fn new(opens: Arc<Opens>) -> Self {
        Self {
            folder: OnceLock::new(),
            held: RwLock::default(),
            gates: (0..GATES).map(|_| RwLock::default()).collect(),
            hasher: RandomState::new(),
            opens,
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
                    let inherited = true;
                    let held = Held { id, inherited };
                    self.held_mut().insert(sealer.seal(&id), held);
                }
            }
        }
        // Nobody else knows it yet.
        let _ = self.folder.set(folder);
        Ok(())
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
        if held.inherited {
            return;
        }
        let name = link_name(&held.id);
        let is_last = || {
            rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_nlink == 1)
        };
        if self.opens.is_open(handle) && is_last() {
            return;
        }
        match rustix::fs::unlinkat(folder, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => drop(self.held_mut().remove(handle)),
            Err(error) => {
                tracing::warn!(%error, name, "a file that nobody has open can't be removed from {FOLDER}")
            }
        }
    }

    /// Links a file that is about to lose its last name. The caller has its gate.
    fn take_in(&self, handle: &Handle, id: HostId, file: BorrowedFd<'_>) -> io::Result<()> {
        let folder = self.folder.get().ok_or(Errno::NOENT)?;
        let path = sys::proc_path(file);
        let linked = rustix::fs::linkat(CWD, path, folder, link_name(&id), AtFlags::SYMLINK_FOLLOW);
        match linked {
            Ok(()) | Err(Errno::EXIST) => {
                let inherited = false;
                self.held_mut().insert(*handle, Held { id, inherited });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Store {
    /// The export's root, if removing the last name of this object changes it: the hidden folder
    /// doesn't exist yet and would be needed.
    pub fn needs_shelter(&self, object: &Handle) -> Option<Handle> {
        if !self.keeps_orphans() || self.orphans.folder.get().is_some() {
            return None;
        }
        let last = |attr: Attr| attr.kind == FileKind::File && attr.nlink == 1;
        let needs = self.opens.is_open(object) && self.getattr(object).is_ok_and(last);
        needs.then_some(self.root_handle())
    }

    /// Makes the hidden folder. Without it files that lose their last name stay open only as long
    /// as the server lives.
    pub fn make_shelter(&self) {
        if !self.keeps_orphans() || self.orphans.folder.get().is_some() {
            return;
        }
        let root = self.root_fd();
        let made = match rustix::fs::mkdirat(root, FOLDER, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open_folder(root),
            Err(error) => Err(error.into()),
        };
        match made {
            // Whoever came first has set the same.
            Ok(folder) => drop(self.orphans.folder.set(folder)),
            Err(error) => {
                tracing::warn!(%error, "{FOLDER} can't be made in the export: open files that are removed are lost if the server restarts")
            }
        }
    }

    /// Removes orphans that nobody has open. To be called once those who may reclaim opens of an
    /// earlier life of the server have done so: until then none of that life is removed.
    pub fn remove_unclaimed(&self) {
        let held: Vec<Handle> = {
            let mut held = self.orphans.held_mut();
            held.values_mut().for_each(|held| held.inherited = false);
            held.keys().copied().collect()
        };
        for handle in held {
            self.orphans.settle(&handle);
        }
    }

    /// Whether the name is the hidden folder's.
    pub(crate) fn is_hidden(&self, dir: &Handle, name: &Name) -> bool {
        name.as_bytes() == FOLDER.as_bytes() && *dir == self.root_handle()
    }

    /// Refuses to find the hidden folder.
    pub(crate) fn visible(&self, dir: &Handle, name: &Name) -> Result<(), Refusal> {
        match self.is_hidden(dir, name) {
            true => Err(Refusal::from_io(&Errno::NOENT.into())),
            false => Ok(()),
        }
    }

    /// Refuses to make something of the hidden folder's name.
    pub(crate) fn free_to_use(&self, dir: &Handle, name: &Name) -> Result<(), Refusal> {
        match self.is_hidden(dir, name) {
            true => Err(Refusal::NotPermitted),
            false => Ok(()),
        }
    }

    /// The attributes of what is behind `fd`, as if there were no hidden folder.
    pub(crate) fn attr_of(&self, fd: BorrowedFd<'_>, handle: &Handle) -> Result<Attr, Refusal> {
        let mut attr = attrs::of(fd).map_err(|e| self.refuse(e))?;
        let folder = self.orphans.folder.get();
        // Some file systems don't count directories: the root's count is always 1 there.
        let counted = || *handle == self.root_handle() && attr.nlink > 2;
        if folder.is_some() && (self.orphans.holds(handle) || counted()) {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        Ok(attr)
    }

    /// To be held while what `name` denotes may lose this name: if that is an open file's last
    /// one, it is linked into the hidden folder first. Not if `succeeds` says that the removal will
    /// be refused, so that the file's times stay.
    pub(crate) fn shelter(
        &self,
        dir: BorrowedFd<'_>,
        name: &Name,
        succeeds: impl FnOnce(&Attr) -> bool,
    ) -> Option<Shelter<'_>> {
        self.orphans.folder.get()?;
        let file = open_entry(dir, name).ok()?;
        let attr = attrs::of(file.as_fd()).ok()?;
        if attr.kind != FileKind::File || attr.nlink != 1 {
            return None;
        }
        let (handle, id) = self.identify(file.as_fd()).ok()?;
        let gate = self.orphans.gate(&handle)?.write();
        let shelter = Shelter {
            orphans: &self.orphans,
            handle,
            _gate: gate.unwrap_or_else(PoisonError::into_inner),
        };
        if self.opens.is_open(&handle)
            && succeeds(&attr)
            && let Err(error) = self.orphans.take_in(&handle, id, file.as_fd())
        {
            tracing::warn!(%error, ?name, "an open file that is removed can't be kept for a restart of the server");
        }
        Some(shelter)
    }

    /// Whether the caller may remove a file's name from a directory, as far as modes tell.
    pub(crate) fn may_remove(&self, who: &Identity, dir: BorrowedFd<'_>, file: &Attr) -> bool {
        let (Ok(of_dir), Ok(_assumed)) = (attrs::of(dir), self.assume(who)) else {
            return false;
        };
        let own = [0, file.uid, of_dir.uid].contains(&who.uid());
        (of_dir.mode & S_ISVTX == 0 || own) && sys::access(dir, MAY_REMOVE).is_ok()
    }
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
    let attr = attrs::of(file.as_fd()).ok()?;
    is_its.then_some((id, attr))
}

fn open_folder(root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(root, FOLDER, flags, Mode::empty())?;
    let attr = attrs::of(folder.as_fd())?;
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
