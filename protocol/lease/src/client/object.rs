//! What a session knows of its leases on one object.

use crate::planted::{self, Bug};
use leasefs_protocol::{Parts, Stamp};
use std::collections::BTreeMap;

/// The four parts singly, in the order of their slots.
const SINGLE: [Parts; 4] = [Parts::ATTRS, Parts::DATA, Parts::LISTING, Parts::NAMES];

/// Most names of a directory whose stamps are remembered singly.
pub(super) const MAX_NAMES: usize = 1024;

/// One span of time in which a file's data was held exclusively: nobody else has changed it since
/// it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tenure(pub(super) u64);

/// Leases on one object, and what may not be cached of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Object {
    /// Parts held.
    pub held: Parts,
    /// Those held in Write mode; a subset of `held`.
    pub write: Parts,
    /// Since when DATA is held in Write mode without a break.
    pub tenure: Tenure,
    /// DATA was held exclusively and is being recalled: until the approval nobody else sees it.
    pub yielding: bool,
    /// Newest stamp seen.
    pub seen: Stamp,
    /// Whether it is in the queue of objects to be forgotten.
    pub queued: bool,
    /// Of most objects nothing was ever taken back; there unless it is as it began.
    changes: Option<Box<Changes>>,
}

/// Recalls and own changes, those in flight and those that were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Changes {
    /// Newest stamp acted on, by part.
    acted: [Stamp; 4],
    /// Open recalls and own changes in flight, by part.
    busy: [u32; 4],
    /// The same by name; of directories.
    names: Option<Box<Names>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Names {
    acted: BTreeMap<Box<[u8]>, Stamp>,
    busy: BTreeMap<Box<[u8]>, u32>,
}

fn slots(parts: Parts) -> impl Iterator<Item = (usize, Parts)> {
    let all = SINGLE.into_iter().enumerate();
    all.filter(move |(_, part)| parts.intersects(*part))
}

impl Object {
    /// Those of `parts` about which a reply of this stamp says nothing outdated.
    pub fn current(&self, parts: Parts, stamp: Stamp) -> Parts {
        let acted = self.changes.as_ref().map(|changes| changes.acted);
        let acted = acted.unwrap_or_default();
        slots(parts)
            .filter(|(slot, _)| {
                acted.get(*slot).is_some_and(|acted| {
                    stamp >= *acted
                        || planted::is(Bug::StaleStamp)
                        || (planted::is(Bug::StampBefore) && stamp.next() >= *acted)
                })
            })
            .fold(Parts::NONE, |sum, (_, part)| sum | part)
    }

    /// Whether nobody else sees the data.
    pub fn is_exclusive(&self) -> bool {
        self.yielding || self.write.contains(Parts::DATA)
    }

    /// Whether anything of `parts` is being recalled or changed.
    pub fn is_busy(&self, parts: Parts) -> bool {
        let changes = self.changes.as_deref();
        changes.is_some_and(|changes| changes.is_busy(parts))
    }

    /// Whether any single name is being recalled or changed.
    pub fn has_busy_name(&self) -> bool {
        self.names().is_some_and(|n| !n.busy.is_empty())
    }

    /// As [`Object::current`] and [`Object::is_busy`], of a single name.
    pub fn name_is_settled(&self, name: &[u8], stamp: Stamp) -> bool {
        self.names().is_none_or(|names| {
            !names.busy.contains_key(name)
                && (names.acted.get(name).is_none_or(|acted| stamp >= *acted)
                    || planted::is(Bug::NameStale))
        })
    }

    /// The names that are not settled as of this stamp.
    pub fn unsettled_names(&self, stamp: Stamp) -> Vec<Box<[u8]>> {
        let Some(names) = self.names() else {
            return Vec::new();
        };
        let newer = names.acted.iter().filter(|(_, acted)| stamp < **acted);
        let newer = newer.map(|(name, _)| name);
        names.busy.keys().chain(newer).cloned().collect()
    }

    /// Counts an open recall or own change of `parts` and `names`.
    pub fn block<'a>(&mut self, parts: Parts, names: impl IntoIterator<Item = &'a [u8]>) {
        self.change(|changes| changes.block(parts, names));
    }

    /// Takes back one [`Object::block`].
    pub fn unblock<'a>(&mut self, parts: Parts, names: impl IntoIterator<Item = &'a [u8]>) {
        self.change(|changes| changes.unblock(parts, names));
    }

    /// What older stamps say of `parts` is outdated.
    pub fn act(&mut self, parts: Parts, stamp: Stamp) {
        self.seen = self.seen.max(stamp);
        self.change(|changes| changes.act(parts, stamp));
    }

    /// What older stamps say of these names is outdated. When too many are remembered, the older
    /// half is merged into one stamp for all names.
    pub fn act_on_names<'a>(&mut self, names: impl IntoIterator<Item = &'a [u8]>, stamp: Stamp) {
        self.seen = self.seen.max(stamp);
        let merged = self.change(|changes| changes.act_on_names(names, stamp));
        if let Some(merged) = merged {
            self.act(Parts::NAMES, merged);
        }
    }

    /// Newest stamp acted on in any part.
    pub fn newest_acted(&self) -> Stamp {
        let parts = self.changes.iter().flat_map(|changes| changes.acted);
        let names = self.names().into_iter();
        let names = names.flat_map(|names| names.acted.values().copied());
        parts.chain(names).max().unwrap_or_default()
    }

    /// Whether nothing is held and nothing is under way: only stamps are remembered.
    pub fn is_idle(&self) -> bool {
        let busy = self.is_busy(Parts::ALL) || self.has_busy_name();
        self.held.is_empty() && !self.yielding && !busy
    }

    /// Forgets what was held and every stamp; what is under way stays.
    pub fn reset(&mut self) {
        let changes = self.changes.take();
        *self = Self {
            changes,
            ..Self::default()
        };
        self.change(Changes::reset_stamps);
    }

    /// As [`Object::reset`], but what is held stays.
    pub fn reset_stamps(&mut self) {
        let (held, write, tenure) = (self.held, self.write, self.tenure);
        self.reset();
        (self.held, self.write, self.tenure) = (held, write, tenure);
    }

    fn names(&self) -> Option<&Names> {
        self.changes.as_ref()?.names.as_deref()
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut Changes) -> R) -> R {
        let changes = self.changes.get_or_insert_default();
        let result = change(changes);
        if **changes == Changes::default() {
            self.changes = None;
        }
        result
    }
}

impl Changes {
    fn is_busy(&self, parts: Parts) -> bool {
        slots(parts).any(|(slot, _)| self.busy.get(slot).is_some_and(|count| *count > 0))
    }

    fn block<'a>(&mut self, parts: Parts, names: impl IntoIterator<Item = &'a [u8]>) {
        for (slot, _) in slots(parts) {
            if let Some(count) = self.busy.get_mut(slot) {
                *count += 1;
            }
        }
        for name in names {
            let all = &mut self.names.get_or_insert_default().busy;
            *all.entry(name.into()).or_default() += 1;
        }
    }

    fn unblock<'a>(&mut self, parts: Parts, names: impl IntoIterator<Item = &'a [u8]>) {
        for (slot, _) in slots(parts) {
            if let Some(count) = self.busy.get_mut(slot) {
                *count = count.saturating_sub(1);
            }
        }
        let Some(all) = &mut self.names else { return };
        for name in names {
            if let Some(count) = all.busy.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    all.busy.remove(name);
                }
            }
        }
    }

    fn act(&mut self, parts: Parts, stamp: Stamp) {
        for (slot, _) in slots(parts) {
            if let Some(acted) = self.acted.get_mut(slot) {
                *acted = stamp.max(*acted);
            }
        }
    }

    /// Returns the stamp of those that aren't remembered singly any more.
    fn act_on_names<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a [u8]>,
        stamp: Stamp,
    ) -> Option<Stamp> {
        for name in names {
            let all = self.names.get_or_insert_default();
            let acted = all.acted.entry(name.into()).or_default();
            *acted = stamp.max(*acted);
        }
        let all = self.names.as_mut()?;
        (all.acted.len() > MAX_NAMES).then(|| forget_older_half(&mut all.acted))
    }

    fn reset_stamps(&mut self) {
        self.acted = [Stamp::default(); 4];
        if let Some(names) = &mut self.names {
            names.acted.clear();
        }
        self.names.take_if(|names| names.busy.is_empty());
    }
}

fn forget_older_half(acted: &mut BTreeMap<Box<[u8]>, Stamp>) -> Stamp {
    let mut stamps: Vec<Stamp> = acted.values().copied().collect();
    let middle = stamps.len() / 2;
    let (_, merged, _) = stamps.select_nth_unstable(middle);
    let merged = *merged;
    acted.retain(|_, stamp| *stamp > merged);
    merged
}
