//! From an object's identity to a descriptor of it.

use crate::handle::HostId;
use crate::sys;
use leasefs_protocol::Name;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Most objects a server without host handles remembers the place of.
const MAX_PLACES: usize = 1 << 20;
/// Most names remembered of one object.
const MAX_LINKS: usize = 8;
/// How often an object is looked for again. The kernel says `ENOMEM` of a gone object whose inode
/// number is just being given to a new one.
const CREATION_RETRIES: usize = 16;
/// Deepest directory found by its remembered place.
const MAX_DEPTH: usize = 4096;

/// Finds objects by their identity.
pub(crate) trait Resolver: Send + Sync {
    /// An `O_PATH` descriptor of the object.
    ///
    /// # Errors
    /// `ESTALE` if there is no such object (any more).
    fn resolve(&self, root: BorrowedFd<'_>, id: &HostId) -> io::Result<OwnedFd>;

    /// Learns where an object was met.
    fn remember(&self, id: &HostId, place: Place);
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub dir: HostId,
    pub name: Name,
    /// Whether the object there is a directory, which has only one place.
    pub is_dir: bool,
}

pub(crate) fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

/// How a name in a directory is opened on the host: no symlink is followed, no mount entered.
///
/// Not `BENEATH`: a [`Name`] is one component, which leads nowhere else, and with it the kernel looks once more at the
/// end whether what it found is still below the directory. If another has just moved it away, that is EXDEV
/// (`complete_walk` of Linux), which no rename between two directories of one file system may end in.
pub(crate) const ONE_NAME: ResolveFlags = ResolveFlags::NO_XDEV
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// An `O_PATH` descriptor of a name's object, see [`ONE_NAME`].
pub(crate) fn open_entry(dir: BorrowedFd<'_>, name: &Name) -> io::Result<OwnedFd> {
    let fd = rustix::fs::openat2(
        dir,
        name.as_bytes(),
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ONE_NAME,
    )?;
    Ok(fd)
}

/// How objects are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By the host's file handles.
    Kernel,
    /// By inode number and birth time, where the file system has no handles that fit.
    Inode,
}

impl Naming {
    /// The identity of the object behind `fd`.
    pub fn identify(self, fd: BorrowedFd<'_>) -> io::Result<HostId> {
        match self {
            Self::Kernel => {
                let found = sys::name_to_handle(fd)?;
                HostId::new(found.kind, &found.bytes)
                    .ok_or_else(|| io::Error::from_raw_os_error(libc::EOVERFLOW))
            }
            Self::Inode => by_inode(fd),
        }
    }
}

fn by_inode(fd: BorrowedFd<'_>) -> io::Result<HostId> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted)?;
    let mut bytes = found.stx_ino.to_le_bytes().to_vec();
    bytes.extend_from_slice(&found.stx_btime.tv_sec.to_le_bytes());
    bytes.extend_from_slice(&found.stx_btime.tv_nsec.to_le_bytes());
    HostId::new(0, &bytes).ok_or_else(stale)
}

/// The host's kernel finds objects by their handles; needs `CAP_DAC_READ_SEARCH`.
pub(crate) struct ByHandle {
    /// The root, opened for reading: the kernel doesn't take an `O_PATH` descriptor here.
    mount: OwnedFd,
}

impl ByHandle {
    /// `None` if the host doesn't let this process use handles, or the file system has none.
    pub fn probe(root: BorrowedFd<'_>, id: &HostId) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = rustix::fs::openat(root, c".", flags, Mode::empty()).ok()?;
        let found = Self { mount };
        found.resolve(root, id).ok()?;
        Some(found)
    }
}

impl Resolver for ByHandle {
    fn resolve(&self, _: BorrowedFd<'_>, id: &HostId) -> io::Result<OwnedFd> {
        let open = || sys::open_by_handle(self.mount.as_fd(), i32::from(id.kind), id.bytes());
        let mut found = open();
        for _ in 0..CREATION_RETRIES {
            match &found {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                    std::thread::yield_now();
                    found = open();
                }
                _ => break,
            }
        }
        found
    }

    fn remember(&self, _: &HostId, _: Place) {}
}

/// Objects are found where they were last met, and verified to be the same.
///
/// A remembered place that no longer leads to its object is of no use, so nothing has to be
/// forgotten when names change.
pub(crate) struct Remembered {
    naming: Naming,
    root: HostId,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    of: HashMap<HostId, Vec<Place>>,
    oldest_first: VecDeque<HostId>,
}

impl Places {
    fn add(&mut self, id: HostId, place: Place) {
        if let Some(known) = self.of.get_mut(&id) {
            known.retain(|old| *old != place && !old.is_dir);
            known.truncate(MAX_LINKS - 1);
            known.insert(0, place);
            return;
        }
        if self.of.len() >= MAX_PLACES
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.of.remove(&oldest);
        }
        self.of.insert(id, vec![place]);
        self.oldest_first.push_back(id);
    }
}

impl Remembered {
    pub fn new(naming: Naming, root: HostId) -> Self {
        Self {
            naming,
            root,
            places: Mutex::default(),
        }
    }

    fn places_of(&self, id: &HostId) -> Vec<Place> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.of.get(id).cloned().unwrap_or_default()
    }

    /// Walks down to a directory, verifying each step.
    fn walk_to(&self, root: BorrowedFd<'_>, dir: &HostId) -> io::Result<OwnedFd> {
        let mut steps = Vec::new();
        let mut at = *dir;
        while at != self.root {
            let place = self.places_of(&at).into_iter().next().ok_or_else(stale)?;
            steps.push((place.name, at));
            at = place.dir;
            if steps.len() > MAX_DEPTH {
                return Err(stale());
            }
        }
        let mut fd = root.try_clone_to_owned()?;
        for (name, id) in steps.iter().rev() {
            fd = self.step(fd.as_fd(), name, id)?;
        }
        Ok(fd)
    }

    fn step(&self, dir: BorrowedFd<'_>, name: &Name, id: &HostId) -> io::Result<OwnedFd> {
        let fd = open_entry(dir, name)?;
        if self.naming.identify(fd.as_fd())? != *id {
            return Err(stale());
        }
        Ok(fd)
    }
}

impl Resolver for Remembered {
    fn resolve(&self, root: BorrowedFd<'_>, id: &HostId) -> io::Result<OwnedFd> {
        if *id == self.root {
            return root.try_clone_to_owned();
        }
        self.places_of(id)
            .iter()
            .find_map(|place| {
                let dir = self.walk_to(root, &place.dir).ok()?;
                self.step(dir.as_fd(), &place.name, id).ok()
            })
            .ok_or_else(stale)
    }

    fn remember(&self, id: &HostId, place: Place) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.add(*id, place);
    }
}
