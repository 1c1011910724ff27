//! Tables whose order can be repeated.

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

static SEED: OnceLock<SharedSeed> = OnceLock::new();

/// From now on the order of tables depends on what is put in alone, in this process: for simulations. To
/// be called before any core is made; names that users choose could be made to collide.
pub fn repeat_tables() {
    // Whoever was first has said the same, or simulates nothing.
    let _ = SEED.set(SharedSeed::from_u64(1));
}

/// Makes hashers, by one seed in a process that nobody is told. A request looks a hundred times into tables: SipHash took
/// a quarter of its instructions.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(&'static SharedSeed);

impl Default for Seeded {
    fn default() -> Self {
        Self(SEED.get_or_init(|| SharedSeed::from_u64(RandomState::new().hash_one(0_u8))))
    }
}

impl BuildHasher for Seeded {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> FoldHasher<'static> {
        FoldHasher::with_seed(0, self.0)
    }
}

/// A table.
pub(crate) type Map<K, V> = HashMap<K, V, Seeded>;
/// A set.
pub(crate) type Set<K> = HashSet<K, Seeded>;
