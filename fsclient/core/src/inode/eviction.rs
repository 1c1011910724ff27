//! Which inodes are cached, and which of them go when there are too many.

use super::cached::{Cached, Dropped};
use super::{Inode, Inodes};
use leasefs_protocol::{Handle, Parts};
use std::sync::Arc;

impl Inode {
    pub(super) fn is_cached(&self) -> bool {
        self.cached.is_some()
    }
}

impl Inodes {
    /// Forgets everything that is cached, bytes apart. Opens that have users stay known.
    pub fn drop_cached(&mut self, out: &mut Dropped) {
        for object in self.cached_objects() {
            self.forget_all_of(&object, out);
            self.end_cached_if_empty(&object);
        }
        self.ring = self.cached_handles().map(Arc::clone).collect();
        out.attrs.extend(self.owed_attrs.iter().copied());
        out.owing.extend(self.epochs.owing());
    }

    /// Forgets the next object that was not used since it was last looked at. Gives up after having
    /// looked at every object twice.
    pub fn evict(&mut self, out: &mut Dropped) -> Option<Handle> {
        for _ in 0..2 * self.ring.len() {
            let object = self.ring.pop_front()?;
            let spared = self.change_cached(&object, |cached| std::mem::take(&mut cached.used));
            assert!(
                spared.is_some(),
                "the eviction's hand meets what isn't cached"
            );
            let spared = spared.unwrap_or(false);
            if !spared {
                self.forget_all_of(&object, out);
            }
            let stays = !self.end_cached_if_empty(&object);
            let evicted = (!spared).then_some(*object);
            if stays {
                self.ring.push_back(object);
            }
            if evicted.is_some() {
                return evicted;
            }
        }
        None
    }

    /// Not because another mount has changed it: little follows then from what was done with it once.
    fn forget_all_of(&mut self, object: &Handle, out: &mut Dropped) {
        self.drop_parts(object, Parts::ALL, [], out);
        self.forget_habit(object);
    }

    /// Those of which something is cached, bytes apart.
    pub(super) fn cached_objects(&self) -> Vec<Handle> {
        self.cached_handles().map(|object| **object).collect()
    }

    fn cached_handles(&self) -> impl Iterator<Item = &Arc<Handle>> {
        let cached = self.iter().filter(|(_, inode)| inode.is_cached());
        cached.map(|(object, _)| object)
    }

    /// Returns whether it was empty. Then it must leave the ring.
    fn end_cached_if_empty(&mut self, object: &Handle) -> bool {
        let ended = self.change(object, |inode| {
            let empty = inode.cached.as_deref().is_some_and(Cached::is_empty);
            if empty {
                inode.cached = None;
            }
            empty
        });
        ended.unwrap_or(false)
    }
}
