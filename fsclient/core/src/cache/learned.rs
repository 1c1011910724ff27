//! Caching what a reply says.

use super::state::State;
use super::{Asked, Cache};
use crate::call::{Listing, Node};
use crate::inode::{Dentry, Fetch, Place};
use crate::opens::ServerOpen;
use atomic_refcell::AtomicRefMut;
use bytes::Bytes;
use leasefs_protocol::{Attr, Caller, Grant, Handle, Parts, Stamp};
use std::sync::Arc;
use std::time::Duration;

/// A reply whose grants have been taken in. Each method caches one thing the reply says, if its
/// lease covers it and nothing newer is known; else it does nothing, and the answer is for its
/// caller alone.
#[derive(Debug)]
pub struct Learned<'a> {
    cache: &'a Cache,
    state: AtomicRefMut<'a, State>,
    asked: Asked,
    grants: &'a [Grant],
}

/// The lease of a listing's first page: the whole listing may be cached if it still stands when the
/// last page has come.
#[derive(Clone, Copy, Debug)]
pub struct ListingLease {
    asked: Asked,
    dir: Handle,
    stamp: Stamp,
}

impl<'a> Learned<'a> {
    pub(super) fn new(
        cache: &'a Cache,
        state: AtomicRefMut<'a, State>,
        asked: Asked,
        grants: &'a [Grant],
    ) -> Self {
        Self {
            cache,
            state,
            asked,
            grants,
        }
    }

    /// Attributes. False if no lease covers them.
    pub fn attr(&mut self, object: &Handle, attr: &Attr) -> bool {
        self.state.put_attr(self.asked, self.grants, object, attr)
    }

    /// Attributes; returns the timeout they may have in the reply to a GETATTR, and only there.
    pub fn attr_for_kernel(&mut self, object: &Handle, attr: &Attr) -> Duration {
        if !self.state.put_attr(self.asked, self.grants, object, attr) {
            return Duration::ZERO;
        }
        let now = self.cache.look(&mut self.state);
        let State {
            session, inodes, ..
        } = &mut *self.state;
        let live = session.witness(now).filter(|_| !inodes.is_unclean(object));
        live.and_then(|live| inodes.attr_for_kernel(&live, object))
            .map_or(Duration::ZERO, |(_, timeout)| timeout)
    }

    /// Attributes of a node that the kernel is told along with a name; returns how long it may believe them.
    pub fn attr_with_name(&mut self, node: Node, attr: &Attr) -> Duration {
        let valid = self.attr_for_kernel(&node.handle, attr);
        self.state.inodes.told_with_name(node.id, valid);
        valid
    }

    /// A node is told in the answer to what made it, or gave it this name if it was known.
    pub fn made(&mut self, node: Node, attr: &Attr, known: bool) {
        let now = self.cache.cx.monotonic();
        let inodes = &mut self.state.inodes;
        match known {
            true => {
                inodes.told_size(node.id, attr.size);
                inodes.believes_firmly(node.id, now);
            }
            false => inodes.is_made(node.id, now),
        }
    }

    /// What a name denotes.
    pub fn name(&mut self, dir: &Handle, name: &[u8], dentry: Dentry) {
        self.state
            .put_name(self.asked, self.grants, dir, name, dentry);
    }

    /// What a name denotes; returns the timeout the entry may have in the reply to a LOOKUP, and
    /// only there.
    pub fn name_for_kernel(&mut self, dir: &Handle, name: &[u8], dentry: Dentry) -> Duration {
        let cached = self
            .state
            .put_name(self.asked, self.grants, dir, name, dentry);
        if !cached {
            return Duration::ZERO;
        }
        let now = self.cache.look(&mut self.state);
        self.cache.name_timeout(&mut self.state, now, dir, name)
    }

    /// Whether the kernel has an object.
    pub fn is_known(&self, object: &Handle) -> bool {
        self.state.inodes.node_of(object).is_some()
    }

    /// Counts a reference that the kernel is about to be given, see [`crate::inode::Inodes::refer`].
    pub fn refer(&mut self, object: Handle, attr: &Attr, at: Place<'_>) -> Node {
        self.state.inodes.refer(object, attr, at)
    }

    /// All bytes of a file, if they came with its open.
    pub fn bytes(&mut self, object: &Handle, fetch: Fetch, data: Option<&Bytes>) {
        let covered = self.covered(object, Parts::DATA);
        let inodes = &mut self.state.inodes;
        if let Some(data) = data.filter(|_| covered) {
            inodes.fetched(object, fetch, data);
            inodes.keep_clean_budget(object);
        }
        inodes.drop_unfetched(object);
    }

    /// A symlink's target.
    pub fn target(&mut self, object: &Handle, target: Bytes) {
        if self.covered(object, Parts::ATTRS) {
            self.state.inodes.put_target(*object, target);
        }
    }

    /// An xattr's value, or that there is no such xattr.
    pub fn xattr(&mut self, object: &Handle, name: &[u8], value: Option<Bytes>) {
        if self.covered(object, Parts::ATTRS) {
            self.state.inodes.put_xattr(*object, name, value);
        }
    }

    /// The names of all xattrs, as root or others are told them.
    pub fn xattr_names(&mut self, object: &Handle, to_root: bool, names: Bytes) {
        if self.covered(object, Parts::ATTRS) {
            self.state.inodes.put_xattr_names(*object, to_root, names);
        }
    }

    /// A read-only open that the server has just made. It is shared if the verdict may be cached.
    pub fn opened(&mut self, object: &Handle, caller: &Caller, open: &Arc<ServerOpen>) {
        if self.covered(object, Parts::ATTRS) {
            let (caller, open) = (caller.clone(), Arc::clone(open));
            self.state.inodes.put_open(*object, caller, open);
        }
    }

    /// A directory that has just been made here is empty, if that is covered.
    pub fn empty_directory(&mut self, dir: &Handle) {
        let of_names = |g: &&Grant| g.object == *dir && g.parts.contains(Parts::NAMES);
        if let Some(grant) = self.grants.iter().find(of_names) {
            let names = std::iter::empty();
            self.state
                .put_all_names(self.asked, dir, grant.stamp, names);
        }
    }

    /// The lease of the first page of a listing, if one came with it.
    pub fn listing(&self, dir: &Handle) -> Option<ListingLease> {
        let grant = self
            .grants
            .iter()
            .find(|grant| grant.object == *dir && grant.parts.contains(Parts::LISTING))?;
        Some(ListingLease {
            asked: self.asked,
            dir: *dir,
            stamp: grant.stamp,
        })
    }

    fn covered(&self, object: &Handle, part: Parts) -> bool {
        self.state.covered(self.asked, self.grants, object, part)
    }
}

impl Drop for Learned<'_> {
    fn drop(&mut self) {
        self.cache.check_budget(&self.state);
    }
}

impl ListingLease {
    pub(super) fn keep(self, state: &mut State, listing: Listing) {
        let Self { asked, dir, stamp } = self;
        let cacheable = state.leases.cacheable(asked, &dir, Parts::LISTING, stamp);
        if cacheable.contains(Parts::LISTING) {
            // No name has changed since the first page, or the listing's lease would be gone.
            let names = listing.iter().map(|entry| entry.name);
            state.put_all_names(asked, &dir, stamp, names);
            state.inodes.put_listing(dir, listing);
        }
    }
}
