//! The cached data of all objects, under a memory budget.

use super::entry::{Dropped, ENTRY_COST, Entry, Known, listing_cost, xattr_cost};
use crate::call::Listing;
use crate::run::Map;
use bytes::Bytes;
use leasefs_lease::client::Live;
use leasefs_protocol::{Attr, Caller, Handle, OpenId, Parts};
use std::collections::VecDeque;
use std::time::Duration;

/// Most opens kept without a user; the server has a bound for all opens of a session.
const MAX_RETAINED: usize = 16_384;

/// Largest xattr value worth caching (ACLs and capabilities are small).
const MAX_CACHED_XATTR: usize = 4096;

/// The cached data. It is read with a [`Live`] only.
///
/// What is in here is covered by a lease: it comes in only if it is cacheable, and goes out in
/// the same critical section in which the lease is given up.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    objects: Map<Handle, Entry>,
    /// The eviction's hand: every object once.
    ring: VecDeque<Handle>,
    bytes: usize,
    /// How often the kernel was (or is just being) told to look all names up again, plus one.
    epoch: u64,
    shared_opens: usize,
}

impl Tables {
    pub fn new() -> Self {
        Self {
            epoch: 1,
            ..Self::default()
        }
    }

    /// As [`Tables::attr`], without counting as a use.
    pub fn peek_attr(&self, _: &Live<'_>, object: &Handle) -> Option<Attr> {
        self.objects.get(object)?.attr
    }

    pub fn attr(&mut self, _: &Live<'_>, object: &Handle) -> Option<Attr> {
        self.used(object)?.attr
    }

    /// Attributes for a GETATTR reply, and the timeout they may have there.
    pub fn attr_for_kernel(
        &mut self,
        live: &Live<'_>,
        object: &Handle,
    ) -> Option<(Attr, Duration)> {
        let entry = self.used(object)?;
        let attr = entry.attr?;
        let timeout = live.kernel_timeout();
        entry.attr_told |= !timeout.is_zero();
        Some((attr, timeout))
    }

    pub fn name(&mut self, _: &Live<'_>, dir: &Handle, name: &[u8]) -> Option<Known> {
        self.used(dir)?.name(name)
    }

    /// What a name denotes, for a LOOKUP reply, and the timeout it may have there.
    pub fn name_for_kernel(
        &mut self,
        live: &Live<'_>,
        dir: &Handle,
        name: &[u8],
    ) -> Option<(Known, Duration)> {
        let epoch = self.epoch;
        let dir = self.used(dir)?;
        let known = dir.name(name)?;
        let timeout = match known {
            Known::Object(_) => live.kernel_timeout(),
            Known::Absent => Duration::ZERO,
        };
        if let Some(entry) = dir.names.get_mut(name).filter(|_| !timeout.is_zero()) {
            entry.told = epoch;
        }
        Some((known, timeout))
    }

    pub fn listing(&mut self, _: &Live<'_>, dir: &Handle) -> Option<Listing> {
        self.used(dir)?.listing.clone()
    }

    pub fn target(&mut self, _: &Live<'_>, object: &Handle) -> Option<Bytes> {
        self.used(object)?.target.clone()
    }

    /// `Some(None)`: there is no such xattr.
    pub fn xattr(&mut self, _: &Live<'_>, object: &Handle, name: &[u8]) -> Option<Option<Bytes>> {
        self.used(object)?.xattrs.get(name).cloned()
    }

    pub fn xattr_names(&mut self, _: &Live<'_>, object: &Handle) -> Option<Bytes> {
        self.used(object)?.xattr_names.clone()
    }

    pub fn reuse_open(&mut self, _: &Live<'_>, object: &Handle, caller: &Caller) -> Option<OpenId> {
        self.used(object)?.opens.reuse(caller)
    }

    pub fn put_attr(&mut self, object: Handle, attr: Attr) {
        self.entry(object).attr = Some(attr);
    }

    pub fn put_name(&mut self, dir: Handle, name: &[u8], known: Known) {
        self.recount(dir, |entry| entry.put_name(name, known));
    }

    /// No other names than these, and those that are known, can be there.
    pub fn put_others(&mut self, dir: Handle, names: impl Iterator<Item = Box<[u8]>>) {
        self.recount(dir, |entry| entry.put_others(names));
    }

    /// Whether nothing is known of any name of a directory, here or in the kernel.
    pub fn knows_no_name(&self, dir: &Handle) -> bool {
        self.objects.get(dir).is_none_or(Entry::knows_no_name)
    }

    pub fn put_listing(&mut self, dir: Handle, listing: Listing) {
        let cost = listing_cost(&listing);
        let old = self.entry(dir).listing.replace(listing);
        self.refund(&dir, old.as_ref().map_or(0, listing_cost));
        self.charge(&dir, cost);
    }

    pub fn put_target(&mut self, object: Handle, target: Bytes) {
        let cost = target.len();
        let old = self.entry(object).target.replace(target);
        self.refund(&object, old.map_or(0, |old| old.len()));
        self.charge(&object, cost);
    }

    pub fn put_xattr(&mut self, object: Handle, name: &[u8], value: Option<Bytes>) {
        if value.as_ref().is_some_and(|v| v.len() > MAX_CACHED_XATTR) {
            return;
        }
        let cost = xattr_cost(name, &value);
        let old = self.entry(object).xattrs.insert(name.into(), value);
        self.refund(&object, old.map_or(0, |old| xattr_cost(name, &old)));
        self.charge(&object, cost);
    }

    pub fn put_xattr_names(&mut self, object: Handle, names: Bytes) {
        let cost = names.len();
        let old = self.entry(object).xattr_names.replace(names);
        self.refund(&object, old.map_or(0, |old| old.len()));
        self.charge(&object, cost);
    }

    /// Shares an open that has its first user.
    pub fn put_open(&mut self, object: Handle, caller: Caller, open: OpenId) {
        self.entry(object).opens.add(open, caller);
        self.shared_opens += 1;
    }

    /// A local open has ended. True if the server must be told to close `open`.
    pub fn close(&mut self, object: &Handle, open: OpenId) -> bool {
        let Some(entry) = self.objects.get_mut(object) else {
            return true;
        };
        // What has no name can't be opened again, and takes up room until it is closed.
        let nameless = entry.attr.is_some_and(|attr| attr.nlink == 0);
        let keep = self.shared_opens < MAX_RETAINED && !nameless;
        let before = entry.opens.len();
        let useless = entry.opens.close(open, keep);
        self.shared_opens -= before - entry.opens.len();
        useless
    }

    /// Forgets the opens that nobody uses. The server must be told to close them.
    pub fn give_up_unused_opens(&mut self) -> Vec<OpenId> {
        let entries = self.objects.values_mut();
        let unused: Vec<OpenId> = entries.flat_map(|e| e.opens.give_up_unused()).collect();
        self.shared_opens -= unused.len();
        unused
    }

    /// The server doesn't know these opens any more.
    pub fn opens_lost(&mut self, opens: &[OpenId]) {
        for entry in self.objects.values_mut() {
            let before = entry.opens.len();
            entry.opens.lost(opens);
            self.shared_opens -= before - entry.opens.len();
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
        let epoch = self.epoch;
        let Some(entry) = self.objects.get_mut(object) else {
            return;
        };
        let (cost, opens) = (entry.cost, entry.opens.len());
        entry.drop_parts(object, parts, epoch, out);
        for name in names {
            entry.drop_name(object, name, epoch, out);
        }
        self.bytes = (self.bytes + entry.cost).saturating_sub(cost);
        self.shared_opens -= opens - entry.opens.len();
    }

    /// Forgets everything. Opens that have users stay known.
    pub fn drop_all(&mut self, out: &mut Dropped) {
        let objects: Vec<Handle> = self.objects.keys().copied().collect();
        for object in objects {
            self.drop_parts(&object, Parts::ALL, [], out);
        }
        self.objects.retain(|_, entry| !entry.is_empty());
        self.ring = self.objects.keys().copied().collect();
        self.bytes = self.objects.len() * ENTRY_COST;
    }

    /// The kernel is about to look all names up again.
    pub fn next_epoch(&mut self) {
        self.epoch += 1;
    }

    /// The kernel has forgotten the inode, and with it the names below it.
    pub fn forgotten(&mut self, object: &Handle) {
        if let Some(entry) = self.objects.get_mut(object) {
            entry.attr_told = false;
            entry.names.values_mut().for_each(|name| name.told = 0);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the next object that was not used since it was last looked at. Gives up after having
    /// looked at every object twice.
    pub fn evict(&mut self, out: &mut Dropped) -> Option<Handle> {
        for _ in 0..2 * self.ring.len() {
            let object = self.ring.pop_front()?;
            let Some(entry) = self.objects.get_mut(&object) else {
                continue;
            };
            let spared = std::mem::take(&mut entry.used);
            if !spared {
                self.drop_parts(&object, Parts::ALL, [], out);
            }
            if self.objects.get(&object).is_some_and(Entry::is_empty) {
                self.objects.remove(&object);
                self.bytes = self.bytes.saturating_sub(ENTRY_COST);
            } else {
                self.ring.push_back(object);
            }
            if !spared {
                return Some(object);
            }
        }
        None
    }

    fn used(&mut self, object: &Handle) -> Option<&mut Entry> {
        let entry = self.objects.get_mut(object)?;
        entry.used = true;
        Some(entry)
    }

    fn entry(&mut self, object: Handle) -> &mut Entry {
        let (ring, bytes) = (&mut self.ring, &mut self.bytes);
        let entry = self.objects.entry(object).or_insert_with(|| {
            ring.push_back(object);
            *bytes += ENTRY_COST;
            Entry::default()
        });
        entry.used = true;
        entry
    }

    /// Changes an entry that counts its cost itself.
    fn recount(&mut self, object: Handle, change: impl FnOnce(&mut Entry)) {
        let entry = self.entry(object);
        let before = entry.cost;
        change(entry);
        let after = entry.cost;
        self.bytes = (self.bytes + after).saturating_sub(before);
    }

    fn charge(&mut self, object: &Handle, cost: usize) {
        self.bytes += cost;
        if let Some(entry) = self.objects.get_mut(object) {
            entry.cost += cost;
        }
    }

    fn refund(&mut self, object: &Handle, cost: usize) {
        self.bytes = self.bytes.saturating_sub(cost);
        if let Some(entry) = self.objects.get_mut(object) {
            entry.cost = entry.cost.saturating_sub(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fixtures::{attr, object};

    #[test]
    fn an_open_of_what_has_no_name_any_more_is_not_kept_without_users() {
        for (nlink, closed) in [(1, false), (0, true)] {
            let mut tables = Tables::new();
            tables.put_open(object(), Caller::default(), OpenId(1));
            tables.put_attr(object(), Attr { nlink, ..attr(0) });
            assert_eq!(tables.close(&object(), OpenId(1)), closed);
        }
    }
}
