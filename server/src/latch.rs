//! Reads of the host see an object before or after a change, never in the middle of it.
//!
//! The host's kernel doesn't promise that: ext4 sets a file's times before its size, and copies a
//! page to one reader while another writes it. What leases allow to overlap (a read without a
//! lease, or one that began before the change was admitted) is kept apart here, for as long as
//! one call of the host takes. Whoever waits gives its thread to others meanwhile: a long call on
//! one object must not hold up the rest.

use leasefs_protocol::Handle;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Objects share latches, so that there is a fixed number of them.
const LATCHES: usize = 1024;

/// The latches of all objects.
#[derive(Debug)]
pub struct Latches {
    // Keyed at random: no client can aim at another's latch.
    hasher: RandomState,
    latches: Vec<RwLock<()>>,
}

impl Default for Latches {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            latches: (0..LATCHES).map(|_| RwLock::default()).collect(),
        }
    }
}

impl Latches {
    fn place(&self, object: &Handle) -> usize {
        // The remainder is below LATCHES, which fits.
        (self.hasher.hash_one(object) % LATCHES as u64) as usize
    }

    /// Waits until no change of the object is in the middle.
    pub async fn read(&self, object: &Handle) -> Option<RwLockReadGuard<'_, ()>> {
        let latch = self.latches.get(self.place(object))?;
        Some(latch.read().await)
    }

    /// The same without waiting; `None` if a change is in the middle.
    pub fn try_read(&self, object: &Handle) -> Option<RwLockReadGuard<'_, ()>> {
        self.latches.get(self.place(object))?.try_read().ok()
    }

    /// Keeps reads of these objects out, once those under way have ended.
    pub async fn change(&self, objects: &[Handle]) -> Vec<RwLockWriteGuard<'_, ()>> {
        // In one order for everyone, each once: no two changes wait for each other.
        let places: BTreeSet<usize> = objects.iter().map(|object| self.place(object)).collect();
        let mut held = Vec::with_capacity(places.len());
        for latch in places.iter().filter_map(|place| self.latches.get(*place)) {
            held.push(latch.write().await);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: u8) -> Handle {
        Handle::new(&[number]).expect("one byte")
    }

    #[tokio::test]
    async fn a_change_keeps_reads_of_its_objects_out_until_it_ends() {
        let latches = Latches::default();
        let held = latches.change(&[object(1), object(1), object(2)]).await;
        assert!(latches.try_read(&object(1)).is_none());
        assert!(latches.try_read(&object(2)).is_none());
        drop(held);
        let first = latches.try_read(&object(1));
        assert!(first.is_some() && latches.read(&object(1)).await.is_some());
    }
}
