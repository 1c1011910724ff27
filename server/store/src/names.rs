//! Names: looking them up, making, linking, moving and removing them.

use crate::export::{Node, Store, Target};
use crate::identity::{Assumed, Identity, Umask};
use crate::resolve::open_entry;
use crate::stat;
use crate::sys;
use leasefs_protocol::limits::MAX_SYMLINK;
use leasefs_protocol::{FileKind, Handle, Name, Refusal};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dev, FileType, Mode, RenameFlags};
use rustix::io::Errno;

/// A name as a caller finds it.
pub(crate) struct Spot<'a> {
    /// The directory.
    pub dir: &'a Target<'a>,
    /// What the name denotes.
    pub entry: Option<(OwnedFd, Node)>,
}

impl Spot<'_> {
    /// What the name denotes.
    pub fn node(&self) -> Option<Node> {
        self.entry.as_ref().map(|(_, node)| *node)
    }
}

/// What [`Store::make`] makes.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// A directory.
    Directory,
    /// A file, fifo, socket or device; the mode carries the type.
    Node {
        /// Device number as `(major, minor)`.
        rdev: (u32, u32),
    },
    /// A symlink with this target.
    Symlink {
        /// The target.
        target: &'a [u8],
    },
}

impl Store {
    /// The object of a name, looked up with the caller's rights; `None` if there is none.
    ///
    /// # Errors
    /// The host's.
    pub fn lookup(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &Name,
    ) -> Result<Option<Node>, Refusal> {
        let target = self.directory(dir)?;
        let assumed = self.assume(who)?;
        let spot = self.spot(&assumed, &target, (dir, name))?;
        Ok(self.told(&spot))
    }

    /// What the name denotes, with all of its attributes.
    pub(crate) fn told(&self, spot: &Spot<'_>) -> Option<Node> {
        let (fd, node) = spot.entry.as_ref()?;
        Some(self.with_xattrs(fd.as_fd(), *node))
    }

    /// What a name denotes to the caller whose rights are taken on. The directory is found before, and let
    /// go of afterwards, by the server's own.
    pub(crate) fn spot<'a>(
        &self,
        _: &Assumed<'_>,
        target: &'a Target<'a>,
        (dir, name): (&Handle, &Name),
    ) -> Result<Spot<'a>, Refusal> {
        let entry = match open_entry(target.as_fd(), name) {
            _ if self.is_hidden(dir, name) => None,
            Ok(fd) => {
                let node = self.plain_node(fd.as_fd(), Some((dir, name)))?;
                Some((fd, node))
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                self.alive()?;
                None
            }
            Err(e) => return Err(self.refuse(e)),
        };
        Ok(Spot { dir: target, entry })
    }

    /// The object of a name, whoever asked: for what a crash has left. No request may learn it.
    ///
    /// # Errors
    /// The host's.
    pub fn peek(&self, dir: &Handle, name: &Name) -> Result<Option<(Handle, FileKind)>, Refusal> {
        let target = self.directory(dir)?;
        if self.is_hidden(dir, name) {
            return Ok(None);
        }
        match open_entry(target.as_fd(), name) {
            Ok(fd) => {
                let node = self.node(fd.as_fd(), Some((dir, name)))?;
                Ok(Some((node.handle, node.attr.kind)))
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(self.refuse(e)),
        }
    }

    /// Makes an object that isn't opened. `mode` carries permission bits, and the type for
    /// [`Kind::Node`]; the host applies `umask` or a default ACL.
    ///
    /// # Errors
    /// The host's.
    pub fn make(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &Name,
        mode: u32,
        umask: u32,
        kind: Kind<'_>,
    ) -> Result<Node, Refusal> {
        self.free_to_use(dir, name)?;
        let target = self.directory(dir)?;
        {
            let _umask = Umask::set(umask).map_err(|e| self.refuse(e))?;
            let _assumed = self.assume(who)?;
            self.make_in(target.as_fd(), name, mode, kind)?;
        }
        self.entry(target.as_fd(), dir, name)
    }

    fn make_in(
        &self,
        dir: BorrowedFd<'_>,
        name: &Name,
        mode: u32,
        kind: Kind<'_>,
    ) -> Result<(), Refusal> {
        let permissions = Mode::from_raw_mode(mode & 0o7777);
        let made = match kind {
            Kind::Directory => rustix::fs::mkdirat(dir, name.as_bytes(), permissions),
            Kind::Symlink { target } if target.len() > MAX_SYMLINK => Err(Errno::NAMETOOLONG),
            Kind::Symlink { target } if target.contains(&0) => Err(Errno::INVAL),
            Kind::Symlink { target } => rustix::fs::symlinkat(target, dir, name.as_bytes()),
            Kind::Node { rdev } => {
                let kind = node_type(mode)?;
                let dev = device(rdev)?;
                rustix::fs::mknodat(dir, name.as_bytes(), kind, permissions, dev)
            }
        };
        made.map_err(|e| self.refuse(e))
    }

    /// The object of a name that was just made.
    fn entry(&self, dir: BorrowedFd<'_>, handle: &Handle, name: &Name) -> Result<Node, Refusal> {
        let fd: OwnedFd = open_entry(dir, name).map_err(|e| self.refuse(e))?;
        self.node(fd.as_fd(), Some((handle, name)))
    }

    /// Removes a name that isn't a directory. A file that is open stays until it isn't. `known` is what the name
    /// denotes, where that is known.
    ///
    /// # Errors
    /// The host's.
    pub fn unlink(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &Name,
        known: Option<&Handle>,
    ) -> Result<(), Refusal> {
        let target = self.directory(dir)?;
        let fd = target.as_fd();
        let keep_closed = known.and_then(|file| self.orphans.keep_closed(file));
        let _shelter = match keep_closed {
            Some(_) => None,
            None => self.shelter(fd, name, |file| self.may_remove(who, fd, file)),
        };
        self.remove(who, (dir, fd), name, AtFlags::empty())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The host's.
    pub fn rmdir(&self, who: &Identity, dir: &Handle, name: &Name) -> Result<(), Refusal> {
        let target = self.directory(dir)?;
        self.remove(who, (dir, target.as_fd()), name, AtFlags::REMOVEDIR)
    }

    fn remove(
        &self,
        who: &Identity,
        (dir, fd): (&Handle, BorrowedFd<'_>),
        name: &Name,
        flags: AtFlags,
    ) -> Result<(), Refusal> {
        self.visible(dir, name)?;
        let _assumed = self.assume(who)?;
        rustix::fs::unlinkat(fd, name.as_bytes(), flags).map_err(|e| self.refuse(e))
    }

    /// Renames; `flags` as `renameat2(2)` has them. A replaced file that is open stays until it isn't.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for other flags or what contradicts itself, or the host's.
    pub fn rename(
        &self,
        who: &Identity,
        from: (&Handle, &Name),
        to: (&Handle, &Name),
        flags: u32,
    ) -> Result<(), Refusal> {
        let flags = renaming(flags)?;
        self.visible(from.0, from.1)?;
        self.free_to_use(to.0, to.1)?;
        let (old, new) = (self.directory(from.0)?, self.directory(to.0)?);
        let _shelter = match (flags - RenameFlags::WHITEOUT).is_empty() {
            true => self.shelter(new.as_fd(), to.1, |file| {
                is_file(old.as_fd(), from.1)
                    && self.may_remove(who, new.as_fd(), file)
                    && self.may_remove(who, old.as_fd(), file)
            }),
            false => None,
        };
        {
            let _assumed = self.assume(who)?;
            let (old_name, new_name) = (from.1.as_bytes(), to.1.as_bytes());
            rustix::fs::renameat_with(old.as_fd(), old_name, new.as_fd(), new_name, flags)
                .map_err(|e| self.refuse(e))?;
        }
        self.learn_moved(new.as_fd(), to);
        if flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) {
            self.learn_moved(old.as_fd(), from);
        }
        Ok(())
    }

    /// Where objects are found by remembered places, a moved one has a new place.
    fn learn_moved(&self, dir: BorrowedFd<'_>, (handle, name): (&Handle, &Name)) {
        if self.remembers_places()
            && let Err(refusal) = self.entry(dir, handle, name)
        {
            tracing::debug!(%refusal, ?name, "a renamed object is gone already");
        }
    }

    /// A further name of an object.
    ///
    /// # Errors
    /// The host's.
    pub fn link(
        &self,
        who: &Identity,
        object: &Handle,
        dir: &Handle,
        name: &Name,
    ) -> Result<Node, Refusal> {
        self.free_to_use(dir, name)?;
        if self.orphans.holds(object) {
            // As the host's kernel has it for what has lost its last name.
            return Err(Refusal::from_io(&Errno::NOENT.into()));
        }
        let (source, target) = (self.target(object)?, self.directory(dir)?);
        {
            let _assumed = self.assume(who)?;
            // By way of /proc, since AT_EMPTY_PATH is for the privileged. The link there leads to
            // the object itself, also if that is a symlink.
            let path = sys::proc_path(source.as_fd());
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, path, target.as_fd(), name.as_bytes(), flags)
                .map_err(|e| self.refuse(e))?;
        }
        self.entry(target.as_fd(), dir, name)
    }
}

/// How the host's kernel is to rename.
pub(crate) fn renaming(flags: u32) -> Result<RenameFlags, Refusal> {
    let of_moves = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
    let flags = RenameFlags::from_bits_retain(flags);
    match of_moves.contains(flags) || flags == RenameFlags::EXCHANGE {
        true => Ok(flags),
        false => Err(Refusal::Invalid),
    }
}

/// Whether the name is of something that can replace a file.
fn is_file(dir: BorrowedFd<'_>, name: &Name) -> bool {
    let attr = open_entry(dir, name).and_then(|fd| stat::of(fd.as_fd()));
    attr.is_ok_and(|attr| attr.kind != FileKind::Directory)
}

fn node_type(mode: u32) -> Result<FileType, Refusal> {
    match FileType::from_raw_mode(mode) {
        // As mknod(2) has it, no type is a file's.
        FileType::Unknown if mode & libc::S_IFMT == 0 => Ok(FileType::RegularFile),
        FileType::Unknown | FileType::Directory | FileType::Symlink => Err(Refusal::Invalid),
        kind => Ok(kind),
    }
}

fn device((major, minor): (u32, u32)) -> Result<Dev, Refusal> {
    // What the kernel's device numbers hold: 12 and 20 bits.
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(Refusal::Invalid);
    }
    Ok(rustix::fs::makedev(major, minor))
}
