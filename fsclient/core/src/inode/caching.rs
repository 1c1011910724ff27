//! What is cached of objects, their bytes apart. It is read with a [`Live`] only.
//!
//! What is cached is covered by a lease: it comes in only if it is cacheable, and goes out in the same
//! critical section in which the lease is given up.

use super::Inodes;
use super::cached::{Cached, Dentry, Dropped};
use super::shared_opens::SharedOpens;
use crate::call::Listing;
use crate::opens::ServerOpen;
use bytes::Bytes;
use leasefs_lease::client::Live;
use leasefs_protocol::{Attr, Caller, Handle, OpenId, Parts};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

/// Most opens kept without a user; the server has a bound for all opens of a session.
const MAX_RETAINED: usize = 16_384;

impl Inodes {
    /// As [`Inodes::attr`], without counting as a use.
    pub fn peek_attr(&self, _: &Live<'_>, object: &Handle) -> Option<Attr> {
        self.get(object)?.cached.as_ref()?.attr.as_deref().copied()
    }

    pub fn attr(&mut self, _: &Live<'_>, object: &Handle) -> Option<Attr> {
        self.used(object)?.attr.as_deref().copied()
    }

    /// Attributes for a GETATTR reply, and the timeout they may have there.
    pub fn attr_for_kernel(
        &mut self,
        live: &Live<'_>,
        object: &Handle,
    ) -> Option<(Attr, Duration)> {
        let cached = self.used(object)?;
        let attr = *cached.attr.as_deref()?;
        let timeout = live.kernel_timeout();
        cached.attr_told |= !timeout.is_zero();
        Some((attr, timeout))
    }

    pub fn name(&mut self, _: &Live<'_>, dir: &Handle, name: &[u8]) -> Option<Dentry> {
        self.used(dir)?.name(name)
    }

    /// The timeout a name may have in a LOOKUP or READDIRPLUS reply. From then on the kernel may know it.
    pub fn name_timeout(&mut self, live: &Live<'_>, dir: &Handle, name: &[u8]) -> Duration {
        let telling = self.epochs.telling();
        let Some(dir) = self.used(dir) else {
            return Duration::ZERO;
        };
        let timeout = match dir.name(name) {
            Some(Dentry::Object(_)) => live.kernel_timeout(),
            Some(Dentry::Absent) | None => Duration::ZERO,
        };
        if !timeout.is_zero() {
            dir.name_is_told(name, telling);
        }
        timeout
    }

    pub fn listing(&mut self, _: &Live<'_>, dir: &Handle) -> Option<Listing> {
        self.used(dir)?.listing()
    }

    pub fn target(&mut self, _: &Live<'_>, object: &Handle) -> Option<Bytes> {
        self.used(object)?.target()
    }

    /// `Some(None)`: there is no such xattr.
    pub fn xattr(&mut self, _: &Live<'_>, object: &Handle, name: &[u8]) -> Option<Option<Bytes>> {
        let cached = self.used(object)?;
        let known = cached.xattr(name);
        known.or_else(|| (cached.has_no_xattrs() && is_told_to_all(name)).then_some(None))
    }

    /// Of a dirty file nothing is cached, but what it had not when it was clean it has not.
    pub fn xattr_of_dirty(&self, object: &Handle, name: &[u8]) -> Option<Option<Bytes>> {
        let has_none = self
            .dirty(object)?
            .attr()
            .is_some_and(|attr| attr.has_no_xattrs());
        (has_none && is_told_to_all(name)).then_some(None)
    }

    pub fn xattr_names(&mut self, _: &Live<'_>, object: &Handle, to_root: bool) -> Option<Bytes> {
        let cached = self.used(object)?;
        let known = cached.xattr_names(to_root);
        known.or_else(|| (cached.has_no_xattrs() && !to_root).then(Bytes::new))
    }

    pub fn reuse_open(
        &mut self,
        _: &Live<'_>,
        object: &Handle,
        caller: &Caller,
    ) -> Option<Arc<ServerOpen>> {
        self.used(object)?.opens()?.reuse(caller)
    }

    pub fn put_attr(&mut self, object: Arc<Handle>, attr: &Attr) {
        let inode = self.get(&object);
        let attr = inode.map_or_else(|| Arc::new(*attr), |inode| inode.shared_attr(attr));
        self.put(object, |cached| cached.put_attr(attr));
    }

    pub fn put_name(&mut self, dir: Handle, name: &[u8], dentry: Dentry) {
        let object = match dentry {
            Dentry::Object(object) => Some(self.shared(&object)),
            Dentry::Absent => None,
        };
        self.put(dir, |cached| cached.put_name(name, object));
    }

    /// No other names than these, and those that are known, can be there.
    pub fn put_others(&mut self, dir: Handle, names: impl Iterator<Item = Box<[u8]>>) {
        self.put(dir, |cached| cached.put_others(names));
    }

    /// Whether nothing is known of any name of a directory, here or in the kernel.
    pub fn knows_no_name(&self, dir: &Handle) -> bool {
        let cached = self.get(dir).and_then(|inode| inode.cached.as_deref());
        cached.is_none_or(Cached::knows_no_name) && !self.owes_names(dir)
    }

    pub fn put_listing(&mut self, dir: Handle, listing: Listing) {
        self.put(dir, |cached| cached.put_listing(listing));
    }

    pub fn put_target(&mut self, object: Handle, target: Bytes) {
        self.put(object, |cached| cached.put_target(target));
    }

    pub fn put_xattr(&mut self, object: Handle, name: &[u8], value: Option<Bytes>) {
        self.put(object, |cached| cached.put_xattr(name, value));
    }

    pub fn put_xattr_names(&mut self, object: Handle, to_root: bool, names: Bytes) {
        self.put(object, |cached| cached.put_xattr_names(to_root, names));
    }

    /// Shares an open.
    pub fn put_open(&mut self, object: Handle, caller: Caller, open: Arc<ServerOpen>) {
        self.put(object, |cached| cached.share(open, caller));
    }

    /// A local open ends that uses this one; if it is the last and there is no use in keeping that, it isn't
    /// shared any more.
    pub fn open_is_left(&mut self, object: &Handle, open: &Arc<ServerOpen>) {
        let room = self.weight.opens < MAX_RETAINED;
        self.change_cached(object, |cached| {
            // What has no name can't be opened again, and takes up room until it is closed.
            let nameless = cached.attr.as_ref().is_some_and(|attr| attr.nlink == 0);
            if nameless || !room {
                cached.change_opens(|opens| opens.give_up_with(open));
            }
        });
    }

    /// Gives up the opens that nobody uses.
    pub fn give_up_unused_opens(&mut self) {
        for object in self.cached_objects() {
            self.change_cached(&object, |cached| {
                cached.change_opens(SharedOpens::give_up_unused);
            });
        }
    }

    /// The server doesn't know these opens any more.
    pub fn opens_lost(&mut self, opens: &[OpenId]) {
        for object in self.cached_objects() {
            self.change_cached(&object, |cached| {
                cached.change_opens(|all| all.lost(opens));
            });
        }
    }

    /// Forgets parts and names of an object.
    pub fn drop_parts<'a>(
        &mut self,
        object: &Handle,
        parts: Parts,
        names: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Dropped,
    ) {
        self.drop_names((object, parts), names, out, |cached, forgotten, out| {
            cached.drop_parts(object, parts, forgotten, out);
        });
    }

    /// Names of a directory are about to be changed here, and with them parts of it.
    pub fn names_change<'a>(
        &mut self,
        dir: &Handle,
        parts: Parts,
        names: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Dropped,
    ) {
        self.drop_names((dir, parts), names, out, |cached, forgotten, out| {
            cached.names_change(dir, parts, forgotten, out);
        });
    }

    fn drop_names<'a>(
        &mut self,
        (object, parts): (&Handle, Parts),
        names: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Dropped,
        before: impl FnOnce(&mut Cached, u64, &mut Dropped),
    ) {
        let forgotten = self.epochs.forgotten(object);
        let (known, told) = (out.attrs.len(), out.names.len());
        let mut names = names.into_iter().peekable();
        let of_names = parts.contains(Parts::NAMES) || names.peek().is_some();
        self.change_cached(object, |cached| {
            before(cached, forgotten, out);
            for name in names {
                cached.drop_name(object, name, forgotten, out);
            }
        });
        // What could not be dropped the last time.
        if parts.contains(Parts::ATTRS) && out.attrs.len() == known && self.is_unseen(object) {
            out.attrs.push(*object);
        }
        if of_names && self.epochs.owes(object, out.names.len() > told) {
            out.owing.push(*object);
        }
    }

    /// The kernel has forgotten the inode, and with it the names below it.
    pub fn kernel_forgot(&mut self, object: &Handle) {
        self.change_cached(object, Cached::kernel_forgot);
        self.epochs.late_is_over(object);
    }

    /// Memory in use by what is cached, approximately; clean bytes apart.
    pub fn cached_bytes(&self) -> usize {
        self.weight.cached
    }

    pub(super) fn used(&mut self, object: &Handle) -> Option<&mut Cached> {
        let cached = self.get_mut(object)?.cached.as_mut()?;
        cached.used = true;
        Some(cached)
    }

    fn put<R>(
        &mut self,
        object: impl Into<Arc<Handle>> + Borrow<Handle> + Clone,
        put: impl FnOnce(&mut Cached) -> R,
    ) -> R {
        let (new, result) = self.make(object.clone(), |inode| {
            let new = !inode.is_cached();
            let cached = inode.cached.get_or_insert_default();
            cached.used = true;
            (new, put(cached))
        });
        if new {
            self.ring.push_back(self.shared(object.borrow()));
        }
        result
    }

    pub(super) fn change_cached<R>(
        &mut self,
        object: &Handle,
        change: impl FnOnce(&mut Cached) -> R,
    ) -> Option<R> {
        self.change(object, |inode| Some(change(inode.cached.as_mut()?)))?
    }
}

/// Whether everybody is told that there is no such xattr. For `user.*` one needs the right to read, and what
/// no host has is refused.
fn is_told_to_all(name: &[u8]) -> bool {
    let acl = name == b"system.posix_acl_access" || name == b"system.posix_acl_default";
    acl || name
        .strip_prefix(b"security.")
        .is_some_and(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fixtures::{attr, object};
    use crate::opens::Opens;
    use crate::opens::fixtures::opened;

    #[test]
    fn an_open_of_what_has_no_name_any_more_is_not_kept_without_users() {
        for (nlink, closed) in [(1, false), (0, true)] {
            let mut inodes = Inodes::default();
            let server = Opens::default();
            let open = opened(&server, 1);
            inodes.put_open(object(), Caller::default(), Arc::clone(&open));
            inodes.put_attr(Arc::new(object()), &Attr { nlink, ..attr(0) });
            inodes.open_is_left(&object(), &open);
            drop(open);
            assert_eq!(!server.is_open(OpenId(1)), closed);
        }
    }
}
