//! What is cached of one object.

use super::shared_opens::SharedOpens;
use crate::call::{ListedName, Listing};
use crate::opens::ServerOpen;
use crate::run::{Map, Set};
use bytes::Bytes;
use leasefs_protocol::{Attr, FileKind, Handle, Parts};
use std::sync::Arc;

/// What a name denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dentry {
    /// This object.
    Object(Handle),
    /// Nothing.
    Absent,
}

/// A cached name.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedName {
    pub dentry: Dentry,
    /// The kernel epoch in which the kernel was last told it with a timeout; 0 is never.
    pub told: u64,
}

/// A name that the kernel may know.
#[derive(Clone, Debug)]
pub(crate) struct ToldName {
    pub dir: Handle,
    pub name: Box<[u8]>,
    /// What it denotes there.
    pub denotes: Dentry,
}

/// What is cached of one object, and what the kernel may know of it by a timeout.
#[derive(Debug, Default)]
pub(super) struct Cached {
    pub attr: Option<Attr>,
    pub target: Option<Bytes>,
    pub xattrs: Map<Box<[u8]>, Option<Bytes>>,
    /// By whether they were told to root.
    pub xattr_names: [Option<Bytes>; 2],
    pub listing: Option<Listing>,
    pub names: Map<Box<[u8]>, CachedName>,
    /// If present: no other names than these and those in `names` can be there.
    pub others: Option<Set<Box<[u8]>>>,
    /// How many names have become unknown since anybody asked for one.
    unasked: usize,
    pub opens: SharedOpens,
    /// The kernel may hold attributes.
    pub attr_told: bool,
    /// Used since the eviction's hand came by.
    pub used: bool,
    /// Bytes beyond [`INODE_COST`].
    cost: usize,
}

/// What the kernel must be told after something was dropped here; and opens that the server is told to close
/// when this goes.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// Objects whose attributes the kernel may hold.
    pub attrs: Vec<Handle>,
    /// Names the kernel may know.
    pub names: Vec<ToldName>,
    /// Shared opens whose verdict has ended.
    pub opens: Vec<Arc<ServerOpen>>,
}

/// Approximate size of an inode that is cached, with its slots in the tables.
const INODE_COST: usize = 640;
/// Largest xattr value worth caching (ACLs and capabilities are small).
const MAX_CACHED_XATTR: usize = 4096;
/// Of a directory with more names whose object isn't known, each name is asked for.
const MOST_OTHERS: usize = 16_384;
/// If so many names change that nobody here asks for, others work in the directory: they should not
/// have to recall each.
const MOST_UNASKED: usize = 64;
/// Approximate size of a name beside its bytes.
const NAME_COST: usize = 160;

fn name_cost(name: &[u8]) -> usize {
    NAME_COST + name.len()
}

fn listing_cost(listing: &Listing) -> usize {
    listing.iter().map(ListedName::cost).sum()
}

impl Dropped {
    /// The names the kernel may know, each with its directory.
    pub fn told_names(&self) -> impl ExactSizeIterator<Item = (Handle, &[u8])> {
        self.names.iter().map(|told| (told.dir, &*told.name))
    }

    fn has_left(&mut self, dir: Handle, name: Box<[u8]>, entry: CachedName, epoch: u64) {
        if entry.told == epoch {
            let denotes = entry.dentry;
            self.names.push(ToldName { dir, name, denotes });
        }
    }
}

impl Cached {
    /// Forgets parts. `epoch` is the kernel's.
    pub fn drop_parts(&mut self, me: &Handle, parts: Parts, epoch: u64, out: &mut Dropped) {
        if parts.contains(Parts::ATTRS) {
            self.drop_attrs(me, out);
        }
        if parts.contains(Parts::LISTING)
            && let Some(listing) = self.listing.take()
        {
            self.refund(listing_cost(&listing));
        }
        if parts.contains(Parts::NAMES) {
            self.drop_others();
            for (name, entry) in std::mem::take(&mut self.names) {
                self.refund(name_cost(&name));
                out.has_left(*me, name, entry, epoch);
            }
        }
    }

    /// Forgets one name.
    pub fn drop_name(&mut self, me: &Handle, name: &[u8], epoch: u64, out: &mut Dropped) {
        self.may_be_there(name);
        if let Some((name, entry)) = self.names.remove_entry(name) {
            self.refund(name_cost(&name));
            out.has_left(*me, name, entry, epoch);
        }
    }

    /// Whether it is known to have none, as [`has_no_xattrs`] says.
    pub fn has_no_xattrs(&self) -> bool {
        self.attr.as_ref().is_some_and(has_no_xattrs)
    }

    /// What a name denotes, if that is known.
    pub fn name(&mut self, name: &[u8]) -> Option<Dentry> {
        self.unasked = 0;
        match (self.names.get(name), &self.others) {
            (Some(entry), _) => Some(entry.dentry),
            (None, Some(others)) if !others.contains(name) => Some(Dentry::Absent),
            (None, _) => None,
        }
    }

    /// Only these names, and those that are known, can be there.
    pub fn put_others(&mut self, names: impl Iterator<Item = Box<[u8]>>) {
        self.drop_others();
        let mut unknown = names.filter(|name| !self.names.contains_key(name));
        let others: Set<Box<[u8]>> = unknown.by_ref().take(MOST_OTHERS).collect();
        if unknown.next().is_none() {
            self.cost += others.iter().map(|name| name_cost(name)).sum::<usize>();
            self.others = Some(others);
        }
    }

    /// Whether nothing is known of any name.
    pub fn knows_no_name(&self) -> bool {
        self.names.is_empty() && self.others.is_none()
    }

    /// It isn't known any more whether the name is there.
    fn may_be_there(&mut self, name: &[u8]) {
        let Some(others) = &mut self.others else {
            return;
        };
        if others.insert(name.into()) {
            self.cost += name_cost(name);
        }
        self.unasked += 1;
        if others.len() > MOST_OTHERS || self.unasked > MOST_UNASKED {
            self.drop_others();
        }
    }

    /// It is known what the name denotes.
    pub fn put_name(&mut self, name: &[u8], dentry: Dentry) {
        if self.others.as_mut().is_some_and(|o| o.remove(name)) {
            self.refund(name_cost(name));
        }
        match self.names.get_mut(name) {
            // What the kernel was told stays to be taken back.
            Some(old) => old.dentry = dentry,
            None => {
                self.names
                    .insert(name.into(), CachedName { dentry, told: 0 });
                self.cost += name_cost(name);
            }
        }
    }

    fn drop_others(&mut self) {
        let others = self.others.take().unwrap_or_default();
        let cost = others.iter().map(|name| name_cost(name)).sum();
        self.refund(cost);
    }

    /// The names of a directory in their order.
    pub fn put_listing(&mut self, listing: Listing) {
        self.cost += listing_cost(&listing);
        let old = self.listing.replace(listing);
        self.refund(old.as_ref().map_or(0, listing_cost));
    }

    /// A symlink's target.
    pub fn put_target(&mut self, target: Bytes) {
        self.cost += target.len();
        let old = self.target.replace(target);
        self.refund(old.map_or(0, |old| old.len()));
    }

    /// An xattr's value, if it is worth it.
    pub fn put_xattr(&mut self, name: &[u8], value: Option<Bytes>) {
        if value.as_ref().is_some_and(|v| v.len() > MAX_CACHED_XATTR) {
            return;
        }
        self.cost += xattr_cost(name, &value);
        let old = self.xattrs.insert(name.into(), value);
        self.refund(old.map_or(0, |old| xattr_cost(name, &old)));
    }

    /// The names of all xattrs, as root or others are told them.
    pub fn put_xattr_names(&mut self, to_root: bool, names: Bytes) {
        self.cost += names.len();
        let old = self.xattr_names[usize::from(to_root)].replace(names);
        self.refund(old.map_or(0, |old| old.len()));
    }

    /// Memory in use, approximately.
    pub fn bytes(&self) -> usize {
        INODE_COST + self.cost
    }

    /// What the kernel was told of it went with its inode.
    pub fn kernel_forgot(&mut self) {
        self.attr_told = false;
        self.names.values_mut().for_each(|name| name.told = 0);
    }

    fn refund(&mut self, cost: usize) {
        let left = self.cost.checked_sub(cost);
        assert!(left.is_some(), "more leaves an inode's cache than it holds");
        self.cost = left.unwrap_or_default();
    }

    /// Whether nothing is cached and the kernel knows nothing that would have to be dropped.
    pub fn is_empty(&self) -> bool {
        self.attr.is_none()
            && !self.attr_told
            && self.target.is_none()
            && self.xattrs.is_empty()
            && self.xattr_names == [None, None]
            && self.listing.is_none()
            && self.names.is_empty()
            && self.others.is_none()
            && self.opens.is_empty()
    }

    fn drop_attrs(&mut self, me: &Handle, out: &mut Dropped) {
        self.attr = None;
        let target = self.target.take().map_or(0, |t| t.len());
        let names = std::mem::take(&mut self.xattr_names);
        let names: usize = names.iter().flatten().map(Bytes::len).sum();
        let xattrs: usize = self
            .xattrs
            .drain()
            .map(|(name, value)| xattr_cost(&name, &value))
            .sum();
        self.refund(target + names + xattrs);
        if std::mem::take(&mut self.attr_told) {
            out.attrs.push(*me);
        }
        out.opens.extend(self.opens.invalidate());
    }
}

fn xattr_cost(name: &[u8], value: &Option<Bytes>) -> usize {
    name_cost(name) + value.as_ref().map_or(0, Bytes::len)
}
/// Whether it is a file or a directory without extended attributes that others than root see.
pub(super) fn has_no_xattrs(attr: &Attr) -> bool {
    let may_have = match attr.kind {
        FileKind::File | FileKind::Directory => attr.xattrs,
        _ => true,
    };
    !may_have
}
