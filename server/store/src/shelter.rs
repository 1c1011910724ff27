//! What the store does so that open files outlive their last name, and nobody sees how.

use crate::export::{Node, Store};
use crate::identity::Identity;
use crate::orphans::{FOLDER, Shelter};
use crate::resolve::open_entry;
use crate::{stat, sys};
use leasefs_protocol::{Attr, FileKind, Handle, Name, Refusal};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

const S_ISVTX: u16 = 0o1000;
/// `W_OK | X_OK`
const MAY_REMOVE: u32 = 3;

impl Store {
    /// The export's root, if removing the last name of this object changes it: the hidden folder
    /// doesn't exist yet and would be needed.
    pub fn needs_shelter(&self, object: &Handle) -> Option<Handle> {
        if !self.keeps_orphans() || self.orphans.have_folder() || self.orphans.is_closed(object) {
            return None;
        }
        let last = |attr: &Attr| attr.kind == FileKind::File && attr.nlink == 1;
        let found = self.getattr(object).ok().filter(last)?;
        self.may_be_open(object, &found)
            .then_some(self.root_handle())
    }

    /// Makes the hidden folder. Without it files that lose their last name stay open only as long
    /// as the server lives.
    pub fn make_shelter(&self) {
        if !self.keeps_orphans() || self.orphans.have_folder() {
            return;
        }
        if let Err(error) = self.orphans.make_folder(self.root_fd()) {
            tracing::warn!(%error, "{FOLDER} can't be made in the export: open files that are removed are lost if the server restarts");
        }
    }

    /// Others than those who have a file open now may have had it open in an earlier life of the server: no
    /// orphan is removed before [`Store::remove_unclaimed`].
    pub fn expect_claims(&self) {
        self.orphans.expect_claims();
    }

    /// Removes orphans that nobody has open. To be called once those who may reclaim opens of an
    /// earlier life of the server have done so.
    pub fn remove_unclaimed(&self) {
        self.orphans.settle_all();
    }

    /// An object is gone for good, and nobody has it open. False if too many are for one more to be noted.
    pub fn note_gone(&self, object: Handle) -> bool {
        self.orphans.note_gone(object)
    }

    /// Takes out up to `most` objects that have gone since this was asked.
    pub fn take_gone(&self, most: usize) -> Vec<Handle> {
        self.orphans.take_gone(most)
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
        let (handle, attr) = (*handle, self.plain_attr(fd, handle)?);
        Ok(self.with_xattrs(fd, Node { handle, attr }).attr)
    }

    /// What is behind `fd`, with a look at whether it has extended attributes.
    pub(crate) fn with_xattrs(&self, fd: BorrowedFd<'_>, mut node: Node) -> Node {
        node.attr.xattrs = !self.lists_xattrs || stat::may_have_xattrs(fd);
        node
    }

    /// As [`Store::with_xattrs`], of what was found by a name.
    pub(crate) fn with_xattrs_of_named(
        &self,
        (dir, name): (BorrowedFd<'_>, &Name),
        fd: BorrowedFd<'_>,
        mut node: Node,
    ) -> Node {
        node.attr.xattrs = !self.lists_xattrs || stat::named_may_have_xattrs(dir, name, fd);
        node
    }

    /// As [`Store::attr_of`], as if there might be extended attributes.
    pub(crate) fn plain_attr(&self, fd: BorrowedFd<'_>, handle: &Handle) -> Result<Attr, Refusal> {
        let mut attr = stat::of(fd).map_err(|e| self.refuse(e))?;
        // Some file systems don't count directories: the root's count is always 1 there.
        let counted = || *handle == self.root_handle() && attr.nlink > 2;
        if self.orphans.have_folder() && (self.orphans.holds(handle) || counted()) {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        Ok(attr)
    }

    /// To be held while what `name` denotes may lose this name: if that is the last one of a file that may be
    /// open, it is linked into the hidden folder first. Not if `succeeds` says that the removal will
    /// be refused, so that the file's times stay.
    pub(crate) fn shelter(
        &self,
        dir: BorrowedFd<'_>,
        name: &Name,
        succeeds: impl FnOnce(&Attr) -> bool,
    ) -> Option<Shelter<'_>> {
        if !self.orphans.have_folder() {
            return None;
        }
        let file = open_entry(dir, name).ok()?;
        let attr = stat::of(file.as_fd()).ok()?;
        if attr.kind != FileKind::File || attr.nlink != 1 {
            return None;
        }
        let (handle, id) = self.identify(file.as_fd()).ok()?;
        let shelter = self.orphans.shelter(handle)?;
        if self.may_be_open(&handle, &attr)
            && succeeds(&attr)
            && let Err(error) = shelter.take_in(id, file.as_fd(), &attr)
        {
            tracing::warn!(%error, ?name, "an open file that is removed can't be kept for a restart of the server");
        }
        Some(shelter)
    }

    fn may_be_open(&self, file: &Handle, attr: &Attr) -> bool {
        self.orphans.may_be_open(file, attr, || self.free())
    }

    /// Whether the caller may remove a file's name from a directory, as far as modes tell.
    pub(crate) fn may_remove(&self, who: &Identity, dir: BorrowedFd<'_>, file: &Attr) -> bool {
        let (Ok(of_dir), Ok(_assumed)) = (stat::of(dir), self.assume(who)) else {
            return false;
        };
        let own = [0, file.uid, of_dir.uid].contains(&who.uid());
        (of_dir.mode & S_ISVTX == 0 || own) && sys::access(dir, MAY_REMOVE).is_ok()
    }
}
