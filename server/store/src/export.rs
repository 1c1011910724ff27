//! An export: a directory of the host, opened once, below which everything happens.

use crate::dirs::Dirs;
use crate::error::OpenError;
use crate::handle::{HostId, MacKey, Sealer};
use crate::identity::{Assumed, Identity, NOBODY, Rights, Umask};
use crate::in_use::InUse;
use crate::opens::{OpenFile, Opens};
use crate::orphans::Orphans;
use crate::resolve::{ByHandle, Naming, Place, Remembered, Resolver};
use crate::{stat, sys};
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{Attr, Caller, ExportId, FileKind, Handle, Refusal};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// How an export is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// User and group that the policy `squash` maps callers to, if the server is root. By default
    /// the owner of the exported directory, or nobody if that is root. A server that isn't root
    /// maps to its own user.
    pub squash_to: Option<(u32, u32)>,
}

/// One export of the host's file system. Share it in an [`Arc`].
pub struct Store {
    root: OwnedFd,
    /// The same, by which everything is made durable. It stands as long as the store: the host tells a descriptor of what has
    /// failed since it was opened, and no other one of what anybody was told of.
    synced: OnceLock<OwnedFd>,
    root_handle: Handle,
    /// Of the root: what is of another one is another file system, mounted or not.
    device: stat::Device,
    /// A private copy of the mount: nothing is mounted in it, and it updates no access times.
    isolated: bool,
    naming: Naming,
    resolver: Box<dyn Resolver>,
    dirs: Dirs,
    by_handle: bool,
    /// Whether its file system lists every extended attribute.
    pub(crate) lists_xattrs: bool,
    pub(crate) sealer: Sealer,
    pub(crate) rights: Rights,
    pub(crate) in_use: Arc<InUse>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) orphans: Arc<Orphans>,
}

/// An object and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
}

/// A descriptor of an object, for one operation.
pub(crate) enum Target<'a> {
    Root(BorrowedFd<'a>),
    Path(OwnedFd),
    Dir(Arc<OwnedFd>),
    Open(Arc<OpenFile>),
}

impl AsFd for Target<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(fd) => *fd,
            Self::Path(fd) => fd.as_fd(),
            Self::Dir(fd) => fd.as_fd(),
            Self::Open(open) => open.fd(),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("root", &self.root)
            .field("isolated", &self.isolated)
            .field("by_handle", &self.by_handle)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the export of a directory.
    ///
    /// # Errors
    /// [`OpenError`] says what of the host stands in the way.
    pub fn open(
        dir: &Path,
        key: &MacKey,
        export: ExportId,
        options: Options,
    ) -> Result<Self, OpenError> {
        let host = |what| move |source| OpenError::Host { what, source };
        let plain = open_directory(dir)?;
        probe_proc(plain.as_fd())?;
        probe_umask()?;
        let rights = Rights::probe(squash_to(plain.as_fd(), &options)?)?;
        let (root, isolated) = isolate(plain);
        let (naming, root_id) =
            name_root(root.as_fd()).map_err(host("telling the directory from others"))?;
        let by_handle = match naming {
            Naming::Kernel => ByHandle::probe(root.as_fd(), &root_id),
            Naming::Inode => None,
        };
        let device = stat::device(root.as_fd()).map_err(host("reading its attributes"))?;
        let sealer = Sealer::new(key, export);
        let in_use: Arc<InUse> = Arc::default();
        let orphans = Arc::new(Orphans::new(Arc::clone(&in_use)));
        if by_handle.is_some() {
            orphans
                .find(root.as_fd(), naming, &sealer)
                .map_err(host("looking for files that were open without a name"))?;
        }
        Ok(Self {
            synced: to_sync(root.as_fd())
                .map(OnceLock::from)
                .unwrap_or_default(),
            root_handle: sealer.seal(&root_id),
            lists_xattrs: stat::lists_xattrs(root.as_fd()),
            root,
            device,
            isolated,
            naming,
            dirs: Dirs::default(),
            by_handle: by_handle.is_some(),
            resolver: match by_handle {
                Some(by_handle) => Box::new(by_handle),
                None => Box::new(Remembered::new(naming, root_id)),
            },
            sealer,
            rights,
            opens: Arc::new(Opens::new(in_use.clone(), orphans.clone())),
            in_use,
            orphans,
        })
    }

    /// What this server can't do for want of rights, for people; `None` if nothing is missing.
    pub fn limits_note(&self) -> Option<String> {
        let notes = [
            (
                !self.by_handle,
                "the host's file handles can't be used (they need root and a file system that has \
                 them): after a restart of the server, files that clients have open fail with ESTALE",
            ),
            (
                !self.rights.switches(),
                "the server isn't root: all clients act as its own user",
            ),
            (
                !self.isolated,
                "the export's mount can't be copied (that needs CAP_SYS_ADMIN): directories that \
                 something is mounted on fail with EXDEV, and some reads may update access times",
            ),
        ];
        let notes: Vec<&str> = notes
            .into_iter()
            .filter_map(|(applies, note)| applies.then_some(note))
            .collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Whether the server takes on callers' own rights (it is root).
    pub fn switches_identities(&self) -> bool {
        self.rights.switches()
    }

    /// Bytes of free space that anybody may use; none if the host doesn't say.
    pub fn free(&self) -> u64 {
        let stat = rustix::fs::fstatvfs(&self.root);
        stat.map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The export's root.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if it has been removed.
    pub fn root(&self) -> Result<Node, Refusal> {
        self.node_at(&self.root_handle)
    }

    /// Whose rights a caller has under a policy.
    ///
    /// # Errors
    /// [`Refusal::TooMany`] groups.
    pub fn identity(&self, policy: IdentityPolicy, caller: &Caller) -> Result<Identity, Refusal> {
        self.rights.identity(policy, caller)
    }

    /// Whether the handle was given out for this export. Cheap, on any thread; the object may be
    /// gone.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if it wasn't.
    pub fn check(&self, object: &Handle) -> Result<(), Refusal> {
        self.sealer.unseal(object).map(drop)
    }

    /// A descriptor of an object, fit for operations by path or descriptor, not for I/O.
    pub(crate) fn target(&self, object: &Handle) -> Result<Target<'_>, Refusal> {
        // Those that are known were unsealed once.
        if *object == self.root_handle {
            return self.alive().map(|()| Target::Root(self.root.as_fd()));
        }
        if let Some(open) = self.opens.find(object) {
            return Ok(Target::Open(open));
        }
        if let Some(dir) = self.dirs.find(object) {
            return Ok(Target::Dir(dir));
        }
        let id = self.sealer.unseal(object)?;
        let found = self.resolver.resolve(self.root.as_fd(), &id);
        found.map(Target::Path).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT | libc::ESTALE) => Refusal::Stale,
            _ => Refusal::from_io(&e),
        })
    }

    /// As [`Store::target`], of a directory in which a name is looked up or changed: the next request may need it
    /// again.
    pub(crate) fn directory(&self, dir: &Handle) -> Result<Target<'_>, Refusal> {
        let target = self.target(dir)?;
        if !self.by_handle || !matches!(target, Target::Path(_)) {
            return Ok(target);
        }
        // Not only as a path (`O_PATH`): its attributes are told from it, too.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(target.as_fd(), c".", flags, Mode::empty()) {
            Ok(fd) => Ok(Target::Dir(self.dirs.keep(*dir, fd))),
            Err(_) => Ok(target),
        }
    }

    /// The handle and attributes of what is behind `fd`, met under a name.
    pub(crate) fn node(
        &self,
        fd: BorrowedFd<'_>,
        met: Option<(&Handle, &leasefs_protocol::Name)>,
    ) -> Result<Node, Refusal> {
        let node = self.plain_node(fd, met)?;
        Ok(self.with_xattrs(fd, node))
    }

    /// As [`Store::node`], without a look at its extended attributes: for verdicts.
    pub(crate) fn plain_node(
        &self,
        fd: BorrowedFd<'_>,
        met: Option<(&Handle, &leasefs_protocol::Name)>,
    ) -> Result<Node, Refusal> {
        let (handle, id) = self.identify(fd)?;
        let attr = self.plain_attr(fd, &handle)?;
        self.not_crossed(fd, &attr)?;
        if let Some((dir, name)) = met {
            self.remember(&id, dir, name, &attr);
        }
        Ok(Node { handle, attr })
    }

    /// A subvolume (of btrfs) has inode numbers of its own, and is met by its directory. It is refused as what is
    /// mounted there would be.
    fn not_crossed(&self, fd: BorrowedFd<'_>, attr: &Attr) -> Result<(), Refusal> {
        if attr.kind != FileKind::Directory {
            return Ok(());
        }
        match stat::device(fd).map_err(|e| self.refuse(e))? {
            device if device == self.device => Ok(()),
            _ => Err(Refusal::from_io(&Errno::XDEV.into())),
        }
    }

    /// Which object is behind `fd`.
    pub(crate) fn identify(&self, fd: BorrowedFd<'_>) -> Result<(Handle, HostId), Refusal> {
        let id = self.naming.identify(fd).map_err(|e| self.refuse(e))?;
        Ok((self.sealer.seal(&id), id))
    }

    pub(crate) fn root_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A descriptor by which everything can be made durable.
    pub(crate) fn synced(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if let Some(fd) = self.synced.get() {
            return Ok(fd.as_fd());
        }
        let fd = to_sync(self.root.as_fd())?;
        Ok(self.synced.get_or_init(|| fd).as_fd())
    }

    /// Whether it is the export's root.
    pub fn is_root(&self, object: &Handle) -> bool {
        *object == self.root_handle
    }

    /// An object and its attributes.
    ///
    /// # Errors
    /// As [`Store::getattr`].
    pub fn node_at(&self, object: &Handle) -> Result<Node, Refusal> {
        Ok(Node {
            handle: *object,
            attr: self.getattr(object)?,
        })
    }

    pub(crate) fn root_handle(&self) -> Handle {
        self.root_handle
    }

    /// Whether open files that lose their last name are kept for a restart: they are found again
    /// by their handles only.
    pub(crate) fn keeps_orphans(&self) -> bool {
        self.by_handle
    }

    fn remember(&self, id: &HostId, dir: &Handle, name: &leasefs_protocol::Name, attr: &Attr) {
        if self.by_handle {
            return;
        }
        if let Ok(dir) = self.sealer.unseal(dir) {
            let is_dir = attr.kind == leasefs_protocol::FileKind::Directory;
            let name = name.clone();
            self.resolver.remember(id, Place { dir, name, is_dir });
        }
    }

    /// Whether objects are found where they were last met.
    pub(crate) fn remembers_places(&self) -> bool {
        !self.by_handle
    }

    /// Takes on the caller's rights until the guard goes.
    pub(crate) fn assume(&self, who: &Identity) -> Result<Assumed<'_>, Refusal> {
        self.rights.assume(who)
    }

    /// Reading through a descriptor opened on another mount than a private one would update access
    /// times.
    pub(crate) fn needs_noatime(&self) -> bool {
        !self.isolated
    }

    /// The refusal for an error of the host: its errno, but `Stale` once the export is gone.
    pub(crate) fn refuse(&self, error: impl Into<io::Error>) -> Refusal {
        let error = error.into();
        match error.raw_os_error() {
            Some(libc::ESTALE) => Refusal::Stale,
            Some(libc::ENOENT) => match self.alive() {
                Ok(()) => Refusal::from_io(&error),
                Err(gone) => gone,
            },
            _ => Refusal::from_io(&error),
        }
    }

    /// Refuses once the exported directory has been removed.
    pub(crate) fn alive(&self) -> Result<(), Refusal> {
        match rustix::fs::fstat(&self.root) {
            Ok(stat) if stat.st_nlink > 0 => Ok(()),
            _ => Err(Refusal::Stale),
        }
    }
}

fn open_directory(dir: &Path) -> Result<OwnedFd, OpenError> {
    rustix::fs::open(
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|e| OpenError::Directory {
        path: dir.to_owned(),
        source: e.into(),
    })
}

/// The export's own descriptor is only a path (`O_PATH`).
fn to_sync(root: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(root, c".", flags, Mode::empty())
}

/// A private copy of the mount with the directory as its root, where the process may make one: then
/// nothing that is mounted below the directory, now or later, can be entered.
fn isolate(plain: OwnedFd) -> (OwnedFd, bool) {
    let isolated = sys::clone_mount(plain.as_fd()).and_then(|copy| {
        sys::isolate_mount(copy.as_fd(), true)?;
        Ok(copy)
    });
    match isolated {
        Ok(copy) => (copy, true),
        Err(error) => {
            tracing::debug!(%error, "the export's mount can't be copied");
            (plain, false)
        }
    }
}

fn name_root(root: BorrowedFd<'_>) -> io::Result<(Naming, HostId)> {
    match Naming::Kernel.identify(root) {
        Ok(id) => Ok((Naming::Kernel, id)),
        Err(_) => Ok((Naming::Inode, Naming::Inode.identify(root)?)),
    }
}

fn squash_to(dir: BorrowedFd<'_>, options: &Options) -> Result<Identity, OpenError> {
    if let Some((uid, gid)) = options.squash_to {
        return Ok(Identity::alone(uid, gid));
    }
    let owner = stat::of(dir).map_err(|source| OpenError::Host {
        what: "reading the directory's owner",
        source,
    })?;
    Ok(match owner.uid {
        0 => Identity::alone(NOBODY, NOBODY),
        uid => Identity::alone(uid, owner.gid),
    })
}

fn probe_proc(dir: BorrowedFd<'_>) -> Result<(), OpenError> {
    rustix::fs::stat(sys::proc_path(dir))
        .map(drop)
        .map_err(|e| OpenError::NoProc(e.into()))
}

/// On a thread of its own: the probe must not change the caller's umask for good.
fn probe_umask() -> Result<(), OpenError> {
    std::thread::spawn(|| Umask::set(0o077).map(drop))
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the probe panicked")))
        .map_err(OpenError::NoUmask)
}
