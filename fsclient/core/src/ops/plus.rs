//! What the kernel is told along with a listing (READDIRPLUS): names and attributes, as far as they are known here, which it
//! won't ask for one by one.

use super::Ops;
use super::names::{NameIn, ToldNames, tells_attr};
use super::opens::OpenDir;
use crate::cache::Tier;
use crate::call::{Asker, EntriesFrom, Entry, Fh, ListingFrom, NodeId};
use leasefs_protocol::FileKind;
use std::time::Duration;

/// Bytes of an entry in an answer but for its name (`struct fuse_direntplus`).
const ENTRY: usize = 152;
/// At a multiple of these each begins.
const ALIGN: usize = 8;

impl Ops {
    /// Somebody has looked up a name.
    pub(super) fn looks(&self, asker: Asker, parent: NodeId, found: Option<&Entry>) {
        if found.is_some_and(|entry| entry.node.kind != FileKind::Directory) {
            self.walkers.borrow_mut().looks(asker.pid, parent);
        }
    }

    /// What the first entries of a listing denote, of as many as there is room for: `None` is not told, nor are others than
    /// directories without `files`. What is told has been counted as a reference of the kernel's.
    pub(super) fn entries(
        &self,
        (fh, open): (Fh, &OpenDir),
        listing: ListingFrom,
        room: u32,
        files: bool,
    ) -> EntriesFrom {
        let told = match self.told_in(open.node) {
            ToldNames::All if !files => ToldNames::Directories,
            told => told,
        };
        let (mut left, mut entries) = (room as usize, Vec::new());
        let mut tier = self.cache().live();
        let (parent, dir) = (open.node, open.object);
        listing.hand_on(|entry| {
            let size = (ENTRY + entry.name.len()).next_multiple_of(ALIGN);
            if size > left {
                return true;
            }
            left -= size;
            let name = entry.name;
            let tier = tier.as_mut();
            let at = NameIn { parent, dir, name };
            entries.push(tier.and_then(|tier| self.told_along(at, tier, told)));
            false
        });
        drop(tier);
        let last = entries.iter().rev().flatten().next();
        if let Some(last) = last {
            self.inodes()
                .told_with_listing(fh, parent, dir, last.node.id);
        }
        let told = entries;
        EntriesFrom { listing, told }
    }

    /// What a name denotes, if the kernel is told it along with the listing.
    fn told_along(&self, at: NameIn<'_>, tier: &mut Tier<'_>, told: ToldNames) -> Option<Entry> {
        let object = tier.denoted(&at.dir, at.name)?;
        // What the kernel knows it asks for itself: see `found`.
        let attr = match tier.node_of(&object) {
            Some(_) => return None,
            None => tier.peek_attr(&object)?,
        };
        if !told.includes(attr.kind) || self.engine.is_restless(&at.dir, at.name) {
            return None;
        }
        let valid = tier.name_timeout(&at.dir, at.name);
        if valid.is_zero() {
            return None;
        }
        let node = tier.refer(object, &attr, at.place());
        let attr_valid = match tells_attr(node, &attr, false) {
            true => tier.attr_with_name(node),
            false => Duration::ZERO,
        };
        Some(self.entry(node, attr, (valid, attr_valid)))
    }
}
