//! What the kernel is told along with a listing (READDIRPLUS): names and attributes, as far as they are known here, which it
//! won't ask for one by one.

use super::Ops;
use super::names::{NameIn, tells_attr};
use super::opens::OpenDir;
use crate::cache::Tier;
use crate::call::{Entry, Fh, ListingFrom};
use std::time::Duration;

/// Bytes of an entry in an answer but for its name (`struct fuse_direntplus`).
const ENTRY: usize = 152;
/// At a multiple of these each begins.
const ALIGN: usize = 8;

impl Ops {
    /// What the first entries of a listing denote, of as many as there is room for: `None` is not told. What is told
    /// has been counted as a reference of the kernel's.
    pub(super) fn entries(
        &self,
        fh: Fh,
        open: &OpenDir,
        listing: &ListingFrom,
        room: u32,
    ) -> Vec<Option<Entry>> {
        let told = self.told_in(open.node);
        let tells = |at: NameIn<'_>, tier: &mut Tier<'_>| {
            let object = tier.denoted(&at.dir, at.name)?;
            // A file that the kernel knows it asks for itself: see `found`.
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
            let attr_valid = match tells_attr(node, &attr, false, valid) {
                true => tier.attr_with_name(node),
                false => Duration::ZERO,
            };
            Some(self.entry(node, attr, (valid, attr_valid)))
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
            entries.push(tier.and_then(|tier| tells(NameIn { parent, dir, name }, tier)));
            false
        });
        drop(tier);
        let last = entries.iter().rev().flatten().next();
        if let Some(last) = last {
            let now = self.cx.monotonic();
            self.inodes().told_with_listing(fh, last.node.id, now);
        }
        entries
    }
}
