//! What is cached of one object.

use super::shared_opens::SharedOpens;
use super::standing::KeptName;
use super::unstable::Covered;
use crate::call::Listing;
use crate::opens::ServerOpen;
use crate::run::{Map, Set};
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_protocol::{Attr, BootId, Caller, Handle, OpenId, Parts, Refusal};
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
#[derive(Debug)]
struct CachedName {
    /// What it denotes, if that isn't nothing.
    object: Option<Arc<Handle>>,
    /// With which count the kernel was last told it with a timeout ([`super::epochs`]); 0 is never.
    told: u64,
}

impl CachedName {
    fn dentry(&self) -> Dentry {
        let object = self.object.as_deref().copied();
        object.map_or(Dentry::Absent, Dentry::Object)
    }
}

/// A name that the kernel may know.
#[derive(Clone, Debug)]
pub(crate) struct ToldName {
    pub dir: Handle,
    pub name: Box<[u8]>,
    /// What it denotes there, if that isn't nothing.
    pub denotes: Option<Arc<Handle>>,
}

/// What is cached of one object, and what the kernel may know of it by a timeout.
#[derive(Debug, Default)]
pub(super) struct Cached {
    pub attr: Option<Arc<Attr>>,
    /// Of few objects.
    rare: Option<Box<Rare>>,
    /// Of directories.
    directory: Option<Box<Directory>>,
    /// The kernel may hold attributes.
    pub attr_told: bool,
    /// Used since the eviction's hand came by.
    pub used: bool,
    /// Bytes beyond [`INODE_COST`].
    cost: usize,
}

/// What goes with an object's attributes, or once others have changed them.
#[derive(Debug, Default)]
struct Rare {
    opens: SharedOpens,
    target: Option<Bytes>,
    xattrs: Map<Box<[u8]>, Option<Bytes>>,
    /// By whether they were told to root.
    xattr_names: [Option<Bytes>; 2],
    /// Of a directory.
    along: Option<Along>,
}

/// A directory is brought to the server's disk, as its attributes tell it.
#[derive(Debug)]
pub(super) enum Along {
    /// Under this number, by this open, and who waits for it.
    Asked(u64, OpenId, Vec<oneshot::Sender<Result<(), Refusal>>>),
    /// By this open.
    Durable(OpenId, DurableAlong),
}

/// What a directory's commit has covered, and in which life of the host.
pub(crate) type DurableAlong = (Covered, BootId);

/// What is in a directory.
#[derive(Debug, Default)]
struct Directory {
    listing: Option<Listing>,
    names: Map<KeptName, CachedName>,
    /// If present: no other names than these and those in `names` can be there.
    others: Option<Set<Box<[u8]>>>,
    /// How many names have become unknown since anybody asked for one.
    unasked: usize,
}

/// What the kernel must be told after something was dropped here; and opens that the server is told to close
/// when this goes.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// Objects whose attributes the kernel may hold.
    pub attrs: Vec<Handle>,
    /// Names the kernel may know.
    pub names: Vec<ToldName>,
    /// Directories of which it may come to know, or know, names that are no longer in the tables.
    pub owing: Vec<Handle>,
    /// Shared opens whose verdict has ended.
    pub opens: Vec<Arc<ServerOpen>>,
}

/// Approximate size of what is cached of an inode, with its slots in the tables.
const INODE_COST: usize = 360;
/// Largest xattr value worth caching (ACLs and capabilities are small).
const MAX_CACHED_XATTR: usize = 4096;
/// Of a directory with more names whose object isn't known, each name is asked for.
const MOST_OTHERS: usize = 16_384;
/// If so many names change that nobody here asks for, others work in the directory: they should not
/// have to recall each.
const MOST_UNASKED: usize = 64;
/// Approximate size of a name beside its bytes.
const NAME_COST: usize = 64;
/// That of the handle of what it denotes, which may be known by nothing else any more.
const HANDLE_COST: usize = size_of::<Handle>() + 2 * size_of::<usize>();

fn name_cost(name: &[u8]) -> usize {
    NAME_COST + name.len()
}

fn known_name_cost(name: &[u8]) -> usize {
    name_cost(name) + HANDLE_COST
}

impl Dropped {
    /// Whether the kernel has nothing of it.
    pub fn is_empty(&self) -> bool {
        self.attrs.is_empty() && self.names.is_empty() && self.owing.is_empty()
    }

    /// The names the kernel may know, each with its directory.
    pub fn told_names(&self) -> impl ExactSizeIterator<Item = (Handle, &[u8])> {
        self.names.iter().map(|told| (told.dir, &*told.name))
    }

    fn has_left(&mut self, dir: Handle, name: KeptName, entry: CachedName, forgotten: u64) {
        if entry.told > forgotten {
            let name = name.into_boxed_slice();
            let denotes = entry.object;
            self.names.push(ToldName { dir, name, denotes });
        }
    }
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.opens.is_empty()
            && self.along.is_none()
            && self.target.is_none()
            && self.xattrs.is_empty()
            && self.xattr_names.iter().all(Option::is_none)
    }

    fn cost(&self) -> usize {
        let target = self.target.as_ref().map_or(0, Bytes::len);
        let names: usize = self.xattr_names.iter().flatten().map(Bytes::len).sum();
        let xattrs = self.xattrs.iter().map(|(n, value)| xattr_cost(n, value));
        target + names + xattrs.sum::<usize>()
    }
}

impl Directory {
    /// What these names cost that may be there.
    fn others_cost(&self) -> usize {
        let others = self.others.iter().flatten();
        others.map(|name| name_cost(name)).sum()
    }

    fn knows_no_name(&self) -> bool {
        self.names.is_empty() && self.others.is_none()
    }
}

impl Cached {
    /// Forgets parts. Names that were told with no higher count than `forgotten` the kernel has forgotten.
    pub fn drop_parts(&mut self, me: &Handle, parts: Parts, forgotten: u64, out: &mut Dropped) {
        if parts.contains(Parts::ATTRS) {
            self.drop_attrs(me, out);
        }
        if parts.contains(Parts::LISTING) {
            let directory = self.directory.as_mut();
            let listing = directory.and_then(|directory| directory.listing.take());
            self.refund(listing.as_ref().map_or(0, |listing| listing.cost()));
        }
        if parts.contains(Parts::NAMES) {
            self.drop_others();
            let directory = self.directory.as_mut();
            let names = directory.map(|directory| std::mem::take(&mut directory.names));
            for (name, entry) in names.into_iter().flatten() {
                self.refund(known_name_cost(&name));
                out.has_left(*me, name, entry, forgotten);
            }
        }
    }

    /// Names in a directory are about to be changed here, which changes these parts of it: who may open it stays.
    pub fn names_change(&mut self, me: &Handle, parts: Parts, forgotten: u64, out: &mut Dropped) {
        let rare = self.rare.as_mut();
        let mut opens = rare.map_or_else(SharedOpens::default, |r| std::mem::take(&mut r.opens));
        out.opens.extend(opens.suspend(self.attr.as_deref()));
        self.drop_parts(me, parts, forgotten, out);
        if !opens.is_empty() {
            self.rare.get_or_insert_default().opens = opens;
        }
    }

    /// Attributes that a lease covers.
    pub fn put_attr(&mut self, attr: Arc<Attr>) {
        self.change_opens(|opens| opens.resume(&attr));
        self.attr = Some(attr);
    }

    /// Its opens that are shared, if there are any.
    pub fn opens(&self) -> Option<&SharedOpens> {
        self.rare.as_deref().map(|rare| &rare.opens)
    }

    /// Shares an open.
    pub fn share(&mut self, open: Arc<ServerOpen>, caller: Caller) {
        self.rare.get_or_insert_default().opens.add(open, caller);
    }

    /// Changes the opens that are shared.
    pub fn change_opens(&mut self, change: impl FnOnce(&mut SharedOpens)) {
        if let Some(rare) = &mut self.rare {
            change(&mut rare.opens);
        }
        self.rare.take_if(|rare| rare.is_empty());
    }

    /// Forgets one name.
    pub fn drop_name(&mut self, me: &Handle, name: &[u8], forgotten: u64, out: &mut Dropped) {
        self.may_be_there(name);
        let directory = self.directory.as_mut();
        if let Some((name, entry)) = directory.and_then(|d| d.names.remove_entry(name)) {
            self.refund(known_name_cost(&name));
            out.has_left(*me, name, entry, forgotten);
        }
    }

    /// Whether it is known to have none, as [`Attr::has_no_xattrs`] says.
    pub fn has_no_xattrs(&self) -> bool {
        self.attr.as_deref().is_some_and(Attr::has_no_xattrs)
    }

    /// What a name denotes, if that is known.
    pub fn name(&mut self, name: &[u8]) -> Option<Dentry> {
        let directory = self.directory.as_mut()?;
        directory.unasked = 0;
        match (directory.names.get(name), &directory.others) {
            (Some(entry), _) => Some(entry.dentry()),
            (None, Some(others)) if !others.contains(name) => Some(Dentry::Absent),
            (None, _) => None,
        }
    }

    /// Whether a name was looked for that isn't there.
    pub fn is_missed(&self, name: &[u8]) -> bool {
        let known = self.directory.as_ref().and_then(|d| d.names.get(name));
        known.is_some_and(|entry| entry.object.is_none())
    }

    /// The kernel is told a name with a timeout.
    pub fn name_is_told(&mut self, name: &[u8], telling: u64) {
        let directory = self.directory.as_mut();
        if let Some(entry) = directory.and_then(|d| d.names.get_mut(name)) {
            entry.told = telling;
        }
    }

    /// Only these names, and those that are known, can be there.
    pub fn put_others(&mut self, names: impl Iterator<Item = Box<[u8]>>) {
        self.drop_others();
        let directory = self.directory.get_or_insert_default();
        let mut unknown = names.filter(|name| !directory.names.contains_key(&**name));
        let others: Set<Box<[u8]>> = unknown.by_ref().take(MOST_OTHERS).collect();
        if unknown.next().is_none() {
            directory.others = Some(others);
            self.cost += directory.others_cost();
        }
    }

    /// Whether nothing is known of any name.
    pub fn knows_no_name(&self) -> bool {
        let directory = self.directory.as_deref();
        directory.is_none_or(Directory::knows_no_name)
    }

    /// It isn't known any more whether the name is there.
    fn may_be_there(&mut self, name: &[u8]) {
        let Some(directory) = self.directory.as_mut() else {
            return;
        };
        let Some(others) = &mut directory.others else {
            return;
        };
        if others.insert(name.into()) {
            self.cost += name_cost(name);
        }
        directory.unasked += 1;
        if others.len() > MOST_OTHERS || directory.unasked > MOST_UNASKED {
            self.drop_others();
        }
    }

    /// It is known what the name denotes; `None` is nothing.
    pub fn put_name(&mut self, name: &[u8], object: Option<Arc<Handle>>) {
        let directory = self.directory.get_or_insert_default();
        let was_other = directory.others.as_mut().is_some_and(|o| o.remove(name));
        match directory.names.get_mut(name) {
            // What the kernel was told stays to be taken back.
            Some(old) => old.object = object,
            None => {
                let entry = CachedName { object, told: 0 };
                directory.names.insert(name.into(), entry);
                self.cost += known_name_cost(name);
            }
        }
        if was_other {
            self.refund(name_cost(name));
        }
    }

    fn drop_others(&mut self) {
        let Some(directory) = self.directory.as_mut() else {
            return;
        };
        let cost = directory.others_cost();
        directory.others = None;
        self.refund(cost);
    }

    /// The names of a directory in their order.
    pub fn put_listing(&mut self, listing: Listing) {
        self.cost += listing.cost();
        let old = self
            .directory
            .get_or_insert_default()
            .listing
            .replace(listing);
        self.refund(old.as_ref().map_or(0, |listing| listing.cost()));
    }

    /// See [`Cached::put_listing`].
    pub fn listing(&self) -> Option<Listing> {
        self.directory.as_ref()?.listing.clone()
    }

    /// A symlink's target.
    pub fn put_target(&mut self, target: Bytes) {
        self.cost += target.len();
        let old = self.rare.get_or_insert_default().target.replace(target);
        self.refund(old.map_or(0, |old| old.len()));
    }

    /// See [`Cached::put_target`].
    pub fn target(&self) -> Option<Bytes> {
        self.rare.as_ref()?.target.clone()
    }

    /// An xattr's value, if it is worth it.
    pub fn put_xattr(&mut self, name: &[u8], value: Option<Bytes>) {
        if value.as_ref().is_some_and(|v| v.len() > MAX_CACHED_XATTR) {
            return;
        }
        self.cost += xattr_cost(name, &value);
        let rare = self.rare.get_or_insert_default();
        let old = rare.xattrs.insert(name.into(), value);
        self.refund(old.map_or(0, |old| xattr_cost(name, &old)));
    }

    /// See [`Cached::put_xattr`]; `Some(None)`: there is no such xattr.
    pub fn xattr(&self, name: &[u8]) -> Option<Option<Bytes>> {
        self.rare.as_ref()?.xattrs.get(name).cloned()
    }

    /// The names of all xattrs, as root or others are told them.
    pub fn put_xattr_names(&mut self, to_root: bool, names: Bytes) {
        self.cost += names.len();
        let rare = self.rare.get_or_insert_default();
        let old = rare.xattr_names[usize::from(to_root)].replace(names);
        self.refund(old.map_or(0, |old| old.len()));
    }

    /// See [`Cached::put_xattr_names`].
    pub fn xattr_names(&self, to_root: bool) -> Option<Bytes> {
        self.rare.as_ref()?.xattr_names[usize::from(to_root)].clone()
    }

    /// See [`Along`].
    pub fn along_mut(&mut self) -> Option<&mut Along> {
        self.rare.as_deref_mut()?.along.as_mut()
    }

    /// Returns what was there.
    pub fn put_along(&mut self, along: Along) -> Option<Along> {
        self.rare.get_or_insert_default().along.replace(along)
    }

    /// See [`Along`].
    pub fn take_along(&mut self) -> Option<Along> {
        let along = self.rare.as_deref_mut()?.along.take();
        self.rare.take_if(|rare| rare.is_empty());
        along
    }

    /// Memory in use, approximately.
    pub fn bytes(&self) -> usize {
        INODE_COST + self.cost
    }

    /// What the kernel was told of it went with its inode.
    pub fn kernel_forgot(&mut self) {
        self.attr_told = false;
        if let Some(directory) = &mut self.directory {
            directory.names.values_mut().for_each(|name| name.told = 0);
        }
    }

    fn refund(&mut self, cost: usize) {
        let left = self.cost.checked_sub(cost);
        assert!(left.is_some(), "more leaves an inode's cache than it holds");
        self.cost = left.unwrap_or_default();
    }

    /// Whether nothing is cached and the kernel knows nothing that would have to be dropped.
    pub fn is_empty(&self) -> bool {
        let directory = self.directory.as_deref();
        self.attr.is_none()
            && !self.attr_told
            && self.rare.is_none()
            && directory.is_none_or(|d| d.listing.is_none() && d.knows_no_name())
    }

    fn drop_attrs(&mut self, me: &Handle, out: &mut Dropped) {
        self.attr = None;
        if let Some(mut rare) = self.rare.take() {
            self.refund(rare.cost());
            out.opens.extend(rare.opens.invalidate());
        }
        if std::mem::take(&mut self.attr_told) {
            out.attrs.push(*me);
        }
    }
}

fn xattr_cost(name: &[u8], value: &Option<Bytes>) -> usize {
    name_cost(name) + value.as_ref().map_or(0, Bytes::len)
}
