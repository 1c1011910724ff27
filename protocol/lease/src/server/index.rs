//! Objects by the hash of their handle, which is stored once, in the object.
//!
//! Many small tables: one that grows moves all that is in it, and no event is to wait for a million.
//! Never gone through: that has no order that is the same in each run.

use super::ids::ObjId;
use hashbrown::HashTable;

const TABLES: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Index(Box<[HashTable<Entry>]>);

/// With as much of the hash as tells where to move it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    object: ObjId,
}

impl Entry {
    /// The table's own hash: it looks at both ends.
    fn spread(&self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

impl Default for Index {
    fn default() -> Self {
        Self(vec![HashTable::new(); TABLES].into())
    }
}

/// Which table, and what of the hash is left to be told apart there.
fn split(hash: u64) -> (usize, u32) {
    (hash as usize % TABLES, (hash >> 32) as u32)
}

impl Index {
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(ObjId) -> bool) -> Option<ObjId> {
        let (table, hash) = split(hash);
        let object = ObjId(0);
        let spread = Entry { hash, object }.spread();
        let found = self.0.get(table)?;
        let found = found.find(spread, |e| e.hash == hash && is_it(e.object));
        found.map(|entry| entry.object)
    }

    pub(super) fn insert(&mut self, hash: u64, object: ObjId) {
        let (table, hash) = split(hash);
        let entry = Entry { hash, object };
        if let Some(table) = self.0.get_mut(table) {
            table.insert_unique(entry.spread(), entry, Entry::spread);
        }
    }

    pub(super) fn remove(&mut self, hash: u64, object: ObjId) {
        let (table, hash) = split(hash);
        let spread = Entry { hash, object }.spread();
        let table = self.0.get_mut(table);
        let found = table.and_then(|t| t.find_entry(spread, |e| e.object == object).ok());
        found.map(|entry| entry.remove());
    }
}
