//! How much is done.

use std::time::Duration;

/// Sizes of what is worked on. Figures of different scales can't be compared.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Its name on the command line.
    pub name: &'static str,
    /// MiB of the large file.
    pub large: usize,
    /// Random reads of 4 KiB, by each of the two rows.
    pub reads: (usize, usize),
    /// Files of 4 KiB that are read.
    pub small: usize,
    /// Entries of the directory that is listed.
    pub many: usize,
    /// Files that are created, renamed and unlinked.
    pub created: usize,
    /// MiB that are written in pieces of 4 KiB.
    pub pieces: usize,
    /// Files of the source tree.
    pub tree: usize,
    /// Transactions.
    pub transactions: usize,
    /// Times that something is synced.
    pub syncs: usize,
    /// Rounds of what two mounts do in turn.
    pub turns: usize,
    /// Times that one mount writes while all read.
    pub writes: usize,
    /// How long cached work goes on.
    pub time: Duration,
}

/// All there are; the last two are for counting alone.
pub const SCALES: [Scale; 5] = [
    Scale {
        name: "lan",
        large: 256,
        reads: (4000, 16_000),
        small: 1000,
        many: 10_000,
        created: 1000,
        pieces: 16,
        tree: 2000,
        transactions: 200,
        syncs: 1000,
        turns: 500,
        writes: 20,
        time: Duration::from_secs(1),
    },
    Scale {
        name: "wan",
        large: 64,
        reads: (50, 800),
        small: 60,
        many: 1000,
        created: 100,
        pieces: 8,
        tree: 60,
        transactions: 15,
        syncs: 50,
        turns: 20,
        writes: 20,
        time: Duration::from_secs(1),
    },
    Scale {
        name: "small",
        large: 32,
        reads: (500, 2000),
        small: 100,
        many: 500,
        created: 200,
        pieces: 8,
        tree: 100,
        transactions: 50,
        syncs: 100,
        turns: 50,
        writes: 20,
        time: Duration::from_millis(300),
    },
    Scale {
        name: "smoke",
        large: 8,
        reads: (32, 128),
        small: 32,
        many: 1000,
        created: 32,
        pieces: 4,
        tree: 24,
        transactions: 8,
        syncs: 16,
        turns: 16,
        writes: 8,
        time: Duration::from_millis(50),
    },
    Scale {
        name: "smoke-far",
        large: 4,
        reads: (8, 32),
        small: 8,
        many: 1000,
        created: 8,
        pieces: 1,
        tree: 8,
        transactions: 3,
        syncs: 6,
        turns: 6,
        writes: 4,
        time: Duration::from_millis(50),
    },
];

impl Scale {
    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SCALES.iter().find(|scale| scale.name == name)
    }
}
