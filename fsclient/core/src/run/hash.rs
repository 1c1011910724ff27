//! Tables whose order can be repeated.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::OnceLock;

static SEED: OnceLock<u64> = OnceLock::new();

/// From now on the order of tables depends on what is put in alone, in this process: for simulations. To
/// be called before any core is made; names that users choose could be made to collide.
pub fn repeat_tables() {
    // Whoever was first has said the same, or simulates nothing.
    let _ = SEED.set(0);
}

/// Makes hashers, by one seed in a process.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(*SEED.get_or_init(|| RandomState::new().hash_one(0_u8)))
    }
}

impl BuildHasher for Seeded {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// A table.
pub(crate) type Map<K, V> = HashMap<K, V, Seeded>;
/// A set.
pub(crate) type Set<K> = HashSet<K, Seeded>;
