//! Verdicts without effects: what the host's kernel would say to a change, told before anybody else is
//! held up for it.
//!
//! They follow the kernel's own checks in its order (fs/namei.c: `may_create`, `may_delete`,
//! `may_linkat`; fs/attr.c: `setattr_prepare`; fs/xattr.c: `xattr_permission`), so a refused change has
//! the errno it would have had. What they let pass the kernel still decides when it is done.

use crate::attrs::to_host;
use crate::export::{Node, Store, Target};
use crate::identity::Identity;
use crate::names::{self, Spot};
use crate::opening::host_flags;
use crate::opens::OpenFile;
use crate::xattrs::{CAPABILITIES, Space};
use crate::{stat, sys};
use leasefs_protocol::{Attr, FileKind, Handle, Name, Refusal, SetAttr, SetTime};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;
const S_ISVTX: u16 = 0o1000;
const S_ISUID: u16 = 0o4000;
/// Set-group-id, and executable for the group.
const SETGID_PROGRAM: u16 = 0o2010;

/// A name as a caller finds it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// What it denotes. Only [`Store::find`] has looked whether it has extended attributes.
    pub node: Option<Node>,
    /// Whether the caller may list the directory. Who may not must hold no lease on its names: recalls
    /// tell which names others change.
    pub lists: bool,
}

fn no(errno: Errno) -> Refusal {
    Refusal::from_io(&errno.into())
}

impl Store {
    /// A name looked up with the caller's rights.
    ///
    /// # Errors
    /// The host's.
    pub fn find(&self, who: &Identity, dir: &Handle, name: &Name) -> Result<Found, Refusal> {
        let target = self.directory(dir)?;
        let assumed = self.assume(who)?;
        let spot = self.spot(&assumed, &target, (dir, name))?;
        let lists = self.rights.overrides(who) || sys::access(spot.dir.as_fd(), R).is_ok();
        let node = self.told(&spot);
        Ok(Found { node, lists })
    }

    /// Whether the caller may give this name to something new, if it is free.
    ///
    /// # Errors
    /// The host's.
    pub fn may_make(&self, who: &Identity, dir: &Handle, name: &Name) -> Result<Found, Refusal> {
        let target = self.directory(dir)?;
        let assumed = self.assume(who)?;
        let spot = self.spot(&assumed, &target, (dir, name))?;
        self.gives(who, &spot)
    }

    /// Whether the caller may take this name away.
    ///
    /// # Errors
    /// The host's; `ENOENT` if there is no such name.
    pub fn may_unlink(&self, who: &Identity, dir: &Handle, name: &Name) -> Result<Found, Refusal> {
        let target = self.directory(dir)?;
        let assumed = self.assume(who)?;
        let spot = self.spot(&assumed, &target, (dir, name))?;
        let node = spot.node().ok_or(no(Errno::NOENT))?;
        self.takes(who, &spot, &node)
    }

    /// Whether the caller may give the object this name too.
    ///
    /// # Errors
    /// The host's; `EEXIST` if the name is taken.
    pub fn may_link(
        &self,
        who: &Identity,
        object: &Handle,
        dir: &Handle,
        name: &Name,
    ) -> Result<Found, Refusal> {
        let (source, target) = (self.target(object)?, self.directory(dir)?);
        let assumed = self.assume(who)?;
        let spot = self.spot(&assumed, &target, (dir, name))?;
        if spot.entry.is_some() {
            return Err(no(Errno::EXIST));
        }
        if self.orphans.holds(object) {
            // As the host's kernel has it for what has lost its last name.
            return Err(no(Errno::NOENT));
        }
        if self.rights.overrides(who) {
            return self.gives(who, &spot);
        }
        let attr = stat::of(source.as_fd()).map_err(|e| self.refuse(e))?;
        let owns = attr.uid == who.uid;
        if !owns && sys::hardlinks_are_protected() && !is_safe_to_link(&source, &attr) {
            return Err(no(Errno::PERM));
        }
        let found = self.gives(who, &spot)?;
        match attr.kind {
            FileKind::Directory => Err(no(Errno::PERM)),
            _ => Ok(found),
        }
    }

    /// Whether the caller may rename; `flags` as for [`Store::rename`].
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for other flags, or the host's.
    pub fn may_rename(
        &self,
        who: &Identity,
        from: (&Handle, &Name),
        to: (&Handle, &Name),
        flags: u32,
    ) -> Result<(Found, Found), Refusal> {
        names::renaming(flags)?;
        let (old_dir, new_dir) = (self.directory(from.0)?, self.directory(to.0)?);
        let assumed = self.assume(who)?;
        let (old, new) = (
            self.spot(&assumed, &old_dir, from)?,
            self.spot(&assumed, &new_dir, to)?,
        );
        let moved = old.node().ok_or(no(Errno::NOENT))?;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        match new.node() {
            Some(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(no(Errno::EXIST)),
            None if exchange => return Err(no(Errno::NOENT)),
            // Two names of one object: nothing is done, and nobody needs a right.
            Some(found) if found.handle == moved.handle => {
                let found = Found {
                    node: Some(found),
                    lists: false,
                };
                return Ok((found, found));
            }
            _ => (),
        }
        let found = (
            self.takes(who, &old, &moved)?,
            match new.node() {
                Some(node) => self.takes(who, &new, &node)?,
                None => self.gives(who, &new)?,
            },
        );
        if from.0 != to.0 && !self.rights.overrides(who) {
            self.moves(&old, &new, exchange)?;
        }
        Ok(found)
    }

    /// Whether the caller, whose rights are taken on, may change the `..` of what moves to another
    /// directory.
    fn moves(&self, old: &Spot<'_>, new: &Spot<'_>, exchange: bool) -> Result<(), Refusal> {
        let is_dir = |spot: &Spot<'_>| spot.node().map(|n| n.attr.kind == FileKind::Directory);
        let (moved, replaced) = (is_dir(old), is_dir(new));
        if !exchange && replaced.is_some() && moved != replaced {
            // The kernel finds first that they can't replace each other.
            return Ok(());
        }
        let writes = |spot: &Spot<'_>| match &spot.entry {
            Some((fd, _)) => sys::access(fd.as_fd(), W).map_err(|e| self.refuse(e)),
            None => Ok(()),
        };
        if moved == Some(true) {
            writes(old)?;
        }
        match exchange && replaced == Some(true) {
            true => writes(new),
            false => Ok(()),
        }
    }

    /// Whether the caller may set these attributes. An open authorises a change of size.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`] if the open doesn't, or the host's.
    pub fn may_set(
        &self,
        who: &Identity,
        object: &Handle,
        open: Option<&OpenFile>,
        set: &SetAttr,
    ) -> Result<(), Refusal> {
        to_host(set.atime)?;
        to_host(set.mtime)?;
        let by_open = set.size.and(open);
        if by_open.is_some_and(|open| open.handle() != object || !open.writes()) {
            return Err(Refusal::BadOpen);
        }
        if self.rights.overrides(who) {
            return Ok(());
        }
        let target = self.target(object)?;
        let attr = stat::of(target.as_fd()).map_err(|e| self.refuse(e))?;
        let owns = attr.uid == who.uid;
        let _assumed = self.assume(who)?;
        let writes = || sys::access(target.as_fd(), W).map_err(|e| self.refuse(e));
        if set.size.is_some() && by_open.is_none() && attr.kind == FileKind::File {
            writes()?;
        }
        let of_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        match (set.atime, set.mtime) {
            _ if owns => Ok(()),
            _ if of_owner => Err(no(Errno::PERM)),
            (None, None) => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) => writes(),
            _ => Err(no(Errno::PERM)),
        }
    }

    /// Whether the caller may set or remove an xattr of this name.
    ///
    /// # Errors
    /// The host's.
    pub fn may_set_xattr(
        &self,
        who: &Identity,
        object: &Handle,
        name: &[u8],
    ) -> Result<(), Refusal> {
        let space = self.changeable(who, name)?;
        if self.rights.overrides(who) {
            return Ok(());
        }
        let target = self.target(object)?;
        let attr = stat::of(target.as_fd()).map_err(|e| self.refuse(e))?;
        let owns = attr.uid == who.uid;
        let sticky = attr.kind == FileKind::Directory && attr.mode & S_ISVTX != 0;
        match (space, attr.kind) {
            (Space::User, FileKind::File | FileKind::Directory) if owns || !sticky => {
                let _assumed = self.assume(who)?;
                sys::access(target.as_fd(), W).map_err(|e| self.refuse(e))
            }
            (Space::User, _) => Err(no(Errno::PERM)),
            _ if owns => Ok(()),
            _ => Err(no(Errno::PERM)),
        }
    }

    /// Whether the caller may remove an xattr of this name.
    ///
    /// # Errors
    /// The host's.
    pub fn may_remove_xattr(
        &self,
        who: &Identity,
        object: &Handle,
        name: &[u8],
    ) -> Result<(), Refusal> {
        let refusal = match self.may_set_xattr(who, object, name) {
            Err(refusal) if name == CAPABILITIES => refusal,
            result => return result,
        };
        match self.may_write(who, self.target(object)?.as_fd())? {
            true => Ok(()),
            false => Err(refusal),
        }
    }

    /// Whether the caller may write to a file.
    pub(crate) fn may_write(&self, who: &Identity, file: BorrowedFd<'_>) -> Result<bool, Refusal> {
        let kind = stat::of(file).map_err(|e| self.refuse(e))?.kind;
        let _assumed = self.assume(who)?;
        Ok(kind == FileKind::File && sys::access(file, W).is_ok())
    }

    /// Whether the caller may open a file with these flags, `O_TRUNC` among them.
    ///
    /// # Errors
    /// The host's.
    pub fn may_truncate(&self, who: &Identity, object: &Handle, flags: u32) -> Result<(), Refusal> {
        let flags = host_flags(flags)?;
        let target = self.target(object)?;
        if self.openable(target.as_fd(), object)? == FileKind::Directory {
            return Err(no(Errno::ISDIR));
        }
        let mask = match flags & OFlags::ACCMODE {
            OFlags::WRONLY => W,
            _ => R | W,
        };
        let _assumed = self.assume(who)?;
        sys::access(target.as_fd(), mask).map_err(|e| self.refuse(e))
    }

    /// Whether the open's caller may read the file.
    pub(crate) fn may_read(&self, open: &OpenFile) -> bool {
        if open.reads() {
            return true;
        }
        let assumed = self.assume(open.identity());
        assumed.is_ok_and(|_assumed| sys::access(open.fd(), R).is_ok())
    }

    /// Whether the caller, whose rights are taken on, may put a name there if it is free.
    fn gives(&self, who: &Identity, spot: &Spot<'_>) -> Result<Found, Refusal> {
        let node = spot.node();
        let lists = match node {
            Some(_) => false,
            None => self.changes_names(who, spot.dir)?,
        };
        Ok(Found { node, lists })
    }

    /// Whether the caller, whose rights are taken on, may take away the name of `node`.
    fn takes(&self, who: &Identity, spot: &Spot<'_>, node: &Node) -> Result<Found, Refusal> {
        let lists = self.changes_names(who, spot.dir)?;
        if node.attr.uid != who.uid && !self.rights.overrides(who) {
            let dir = stat::of(spot.dir.as_fd()).map_err(|e| self.refuse(e))?;
            if dir.mode & S_ISVTX != 0 && dir.uid != who.uid {
                return Err(no(Errno::PERM));
            }
        }
        let node = spot.node();
        Ok(Found { node, lists })
    }

    /// Whether the caller may list the directory whose names it may change.
    fn changes_names(&self, who: &Identity, dir: &Target<'_>) -> Result<bool, Refusal> {
        let access = |mask| sys::access(dir.as_fd(), mask);
        if self.rights.overrides(who) || access(R | W | X).is_ok() {
            return Ok(true);
        }
        access(W | X).map(|()| false).map_err(|e| self.refuse(e))
    }
}

/// The kernel's `safe_hardlink_source`: whether those who don't own a file may link it where hard links
/// are protected.
fn is_safe_to_link(file: &Target<'_>, attr: &Attr) -> bool {
    attr.kind == FileKind::File
        && attr.mode & S_ISUID == 0
        && attr.mode & SETGID_PROGRAM != SETGID_PROGRAM
        && sys::access(file.as_fd(), R | W).is_ok()
}
