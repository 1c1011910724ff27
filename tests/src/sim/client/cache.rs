//! What the daemon has cached, and what of it the kernel was told with a timeout.

use crate::sim::model::Obj;
use leasefs_protocol::Parts;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct Attrs {
    value: Option<u64>,
    told: bool,
}

#[derive(Clone, Copy, Debug)]
struct NameEntry {
    known: Option<Obj>,
    /// The epoch in which the kernel was last told it.
    told: u64,
}

/// What the kernel must be told after something was dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Dropped {
    pub attrs: Vec<Obj>,
    pub names: bool,
}

/// The tables.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    attrs: BTreeMap<Obj, Attrs>,
    names: BTreeMap<(Obj, u8), NameEntry>,
    listings: BTreeMap<Obj, [u64; 2]>,
    epoch: u64,
}

impl Cache {
    pub fn new() -> Self {
        Self {
            attrs: BTreeMap::new(),
            names: BTreeMap::new(),
            listings: BTreeMap::new(),
            epoch: 1,
        }
    }

    pub fn attr(&self, object: Obj) -> Option<u64> {
        self.attrs.get(&object)?.value
    }

    pub fn put_attr(&mut self, object: Obj, value: u64) {
        self.attrs.entry(object).or_default().value = Some(value);
    }

    pub fn tell_attr(&mut self, object: Obj) {
        self.attrs.entry(object).or_default().told = true;
    }

    pub fn name(&self, at: (Obj, u8)) -> Option<Option<Obj>> {
        self.names.get(&at).map(|entry| entry.known)
    }

    pub fn put_name(&mut self, at: (Obj, u8), known: Option<Obj>) {
        let told = self.names.get(&at).map_or(0, |entry| entry.told);
        self.names.insert(at, NameEntry { known, told });
    }

    pub fn tell_name(&mut self, at: (Obj, u8)) {
        if let Some(entry) = self.names.get_mut(&at) {
            entry.told = self.epoch;
        }
    }

    pub fn listing(&self, dir: Obj) -> Option<[u64; 2]> {
        self.listings.get(&dir).copied()
    }

    pub fn put_listing(&mut self, dir: Obj, listing: [u64; 2]) {
        self.listings.insert(dir, listing);
    }

    /// The kernel is about to look all names up again.
    pub fn next_epoch(&mut self) {
        self.epoch += 1;
    }

    /// The kernel has forgotten the inode.
    pub fn forgotten(&mut self, object: Obj) {
        if let Some(attrs) = self.attrs.get_mut(&object) {
            attrs.told = false;
        }
    }

    /// An object to evict.
    pub fn victim(&self, pick: usize) -> Option<Obj> {
        let attrs = self.attrs.keys().copied();
        let names = self.names.keys().map(|(dir, _)| *dir);
        let mut all: Vec<Obj> = attrs.chain(names).collect();
        all.dedup();
        (!all.is_empty()).then(|| all[pick % all.len()])
    }

    pub fn drop_parts(&mut self, object: Obj, parts: Parts, names: &[u8], out: &mut Dropped) {
        if parts.contains(Parts::ATTRS)
            && let Some(attrs) = self.attrs.remove(&object)
            && attrs.told
        {
            out.attrs.push(object);
        }
        if parts.contains(Parts::LISTING) {
            self.listings.remove(&object);
        }
        let all = parts.contains(Parts::NAMES);
        let epoch = self.epoch;
        self.names.retain(|(dir, name), entry| {
            let goes = *dir == object && (all || names.contains(name));
            out.names |= goes && entry.told == epoch;
            !goes
        });
    }

    pub fn drop_all(&mut self, out: &mut Dropped) {
        let told = self.attrs.iter().filter(|(_, attrs)| attrs.told);
        out.attrs.extend(told.map(|(object, _)| *object));
        out.names |= self.names.values().any(|entry| entry.told == self.epoch);
        self.attrs.clear();
        self.names.clear();
        self.listings.clear();
    }
}
