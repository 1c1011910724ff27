//! What the cache tells of itself.

use crate::memory::MemoryUse;
use leasefs_protocol::Parts;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Kinds of answers given from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Attributes.
    Attr,
    /// A name, or that it doesn't exist.
    Name,
    /// A directory's listing.
    Listing,
    /// A symlink's target.
    Target,
    /// An xattr, or their list.
    Xattr,
    /// An open that needed no request.
    Open,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Attr, "getattr"),
    (Kind::Name, "lookup"),
    (Kind::Listing, "readdir"),
    (Kind::Target, "readlink"),
    (Kind::Xattr, "getxattr"),
    (Kind::Open, "open"),
];

/// The state of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStatus {
    /// Objects on which a lease is held.
    pub leases: usize,
    /// Objects of which each part is covered: attributes, data, listing, names.
    pub parts: Vec<(&'static str, u64)>,
    /// Recalls that are not approved.
    pub recalls: usize,
    /// What is left of the leases' time; zero if they have ended.
    pub remaining: Duration,
    /// Memory in use.
    pub memory: MemoryUse,
    /// Answers given from the cache, by the kind of request they saved.
    pub answers: Vec<(&'static str, u64)>,
}

/// How many leases cover each part.
pub(super) fn by_part(leases: impl Iterator<Item = Parts>) -> Vec<(&'static str, u64)> {
    let mut counts = [
        (Parts::ATTRS, "attrs", 0),
        (Parts::DATA, "data", 0),
        (Parts::LISTING, "listing", 0),
        (Parts::NAMES, "names", 0),
    ];
    for held in leases {
        for (part, _, count) in &mut counts {
            *count += u64::from(held.contains(*part));
        }
    }
    counts.map(|(_, name, count)| (name, count)).to_vec()
}

#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; KINDS.len()]);

impl Counters {
    pub fn count(&self, kind: Kind) {
        if let Some(counter) = self.0.get(kind as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        KINDS.iter().map(|(_, name)| *name).zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_own_name() {
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }
}
