//! Writes that are not in the store yet, or not on its disk: what became of each.
//!
//! A buffered write takes effect when it is kept under its lease, although the store knows nothing
//! of it. Once the server holds nobody back any more (the lease has ended there) what was buffered
//! doesn't count, until it is flushed after all: the exception of DESIGN §1.1.

use super::judge::Judge;
use super::model::{Item, Nanos, Obj, PAGES, process_of};
use leasefs_protocol::SessionId;
use std::collections::{BTreeMap, BTreeSet};

/// Attributes of a file with buffered bytes: no value that anybody has seen so far.
const NOT_YET: u64 = u64::MAX;

/// A descriptor of a process, which writes and asks for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// Its mount.
    pub session: SessionId,
    /// Its process there.
    pub process: usize,
    /// The file.
    pub file: Obj,
}

/// A write that only its client has.
#[derive(Clone, Copy, Debug)]
struct Held {
    item: Item,
    since: Nanos,
    session: SessionId,
    /// The store had it, before its host crashed.
    undone: bool,
}

/// All that is known of writes.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By value, which is unique: those that the store doesn't have.
    held: BTreeMap<u64, Held>,
    /// Those that their client keeps, since it doesn't know that the store has them.
    unanswered: BTreeMap<u64, Held>,
    /// What counts, in place of what the store has.
    over: BTreeMap<Item, (u64, SessionId)>,
    /// What the store had, and since when.
    stored: BTreeMap<Item, Vec<(Nanos, u64)>>,
    /// When each item was last stored, and by whom.
    last: BTreeMap<Item, (Nanos, SessionId)>,
    /// Since when at least what was current is on the disk.
    floor: BTreeMap<Item, Nanos>,
    /// Values that are gone, and whom that has to be told.
    lost: BTreeMap<u64, Writer>,
    acknowledged: BTreeSet<u64>,
    /// What a writer's client still had when it last had the file committed.
    uncommitted: BTreeMap<Writer, Vec<(u64, Nanos)>>,
}

impl Held {
    fn writer(self, value: u64) -> Writer {
        Writer {
            session: self.session,
            process: process_of(value),
            file: self.item.object(),
        }
    }
}

impl Ledger {
    fn in_store(&self, item: Item) -> u64 {
        let last = self.stored.get(&item).and_then(|all| all.last());
        last.map_or(0, |(_, value)| *value)
    }

    /// Whether the store had a value at some moment from `since` on.
    fn had(&self, item: Item, value: u64, since: Nanos) -> bool {
        let all = self.stored.get(&item).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|(at, _)| *at <= since);
        let late = &all[first.saturating_sub(1)..];
        (first == 0 && value == 0) || late.iter().any(|(_, known)| *known == value)
    }

    fn put(&mut self, now: Nanos, item: Item, value: u64) {
        self.stored.entry(item).or_default().push((now, value));
    }

    fn is_buffered(&self, object: Obj) -> bool {
        self.over.keys().any(|over| over.object() == object)
    }
}

impl Judge {
    /// A client keeps a write of a page.
    pub fn buffered(&mut self, now: Nanos, item: Item, value: u64, session: SessionId) {
        // What a crash of the host has undone below it comes before it.
        self.settle(now, item);
        let over = self.ledger.over.insert(item, (value, session));
        if let Some((before, other)) = over {
            self.ledger.held.remove(&before);
            if other != session {
                self.accuse(Some(item), || {
                    format!("{session} buffers what {other} does")
                });
            }
        }
        let since = now;
        let held = Held {
            item,
            since,
            session,
            undone: false,
        };
        self.ledger.unanswered.insert(value, held);
        self.ledger.held.insert(value, held);
        self.effect(now, item, value);
        self.effect(now, Item::Attrs(item.object()), NOT_YET);
    }

    /// A write of a page reaches the store.
    pub fn stored(&mut self, now: Nanos, item: Item, value: u64, session: SessionId) {
        self.check_order(item, value, session);
        self.ledger.put(now, item, value);
        self.ledger.last.insert(item, (now, session));
        let was_held = self.ledger.held.remove(&value).is_some();
        self.ledger.lost.remove(&value);
        match self.ledger.over.get(&item).copied() {
            None => self.effect(now, item, value),
            Some((over, _)) if over == value => drop(self.ledger.over.remove(&item)),
            Some((over, owner)) if owner == session => {
                // Written through by one process while another's write is buffered: the older one.
                if !was_held {
                    self.effect(now, item, value);
                    self.effect(now, item, over);
                }
            }
            Some((over, owner)) => self.accuse(Some(item), || {
                format!("{session} stores {value} over {over}, which {owner} has buffered")
            }),
        }
    }

    /// Nothing older than what another session has stored may be put over it.
    fn check_order(&mut self, item: Item, value: u64, session: SessionId) {
        let ledger = &self.ledger;
        let stored = ledger.stored.get(&item).into_iter().flatten();
        let mut before = stored.filter(|(_, known)| *known == value);
        let held = ledger.held.get(&value).map(|held| held.since);
        let since = held.or_else(|| before.next().map(|(at, _)| *at));
        let (Some(since), Some((at, by))) = (since, ledger.last.get(&item)) else {
            return;
        };
        if *by != session && *at > since {
            let (since, at) = (since as f64 / 1e6, *at as f64 / 1e6);
            let by = *by;
            self.accuse(Some(item), || {
                format!("{value}, written at {since:.3} ms, is put over what {by} has stored at {at:.3} ms")
            });
        }
    }

    /// Attributes change in the store.
    pub fn attrs_stored(&mut self, now: Nanos, object: Obj, value: u64) {
        let item = Item::Attrs(object);
        self.ledger.put(now, item, value);
        self.effect(now, item, value);
        if self.ledger.is_buffered(object) {
            self.effect(now, item, NOT_YET);
        }
    }

    /// The server holds nobody back any more for the sake of what `ended` says.
    pub fn lease_ended(&mut self, now: Nanos, ended: impl Fn(SessionId, Obj) -> bool) {
        let over = self.ledger.over.iter();
        let gone = over.filter(|(item, (_, session))| ended(*session, item.object()));
        let gone: Vec<Item> = gone.map(|(item, _)| *item).collect();
        for item in gone {
            self.ledger.over.remove(&item);
            self.settle(now, item);
            self.settle(now, Item::Attrs(item.object()));
        }
    }

    /// Who has buffered what counts.
    pub fn buffering(&self) -> Vec<(SessionId, Obj)> {
        let over = self.ledger.over.iter();
        over.map(|(item, (_, session))| (*session, item.object()))
            .collect()
    }

    /// What the store has counts from now on.
    fn settle(&mut self, now: Nanos, item: Item) {
        let object = item.object();
        let hidden = match item {
            Item::Attrs(_) => self.ledger.is_buffered(object),
            item => self.ledger.over.contains_key(&item),
        };
        let stored = self.ledger.in_store(item);
        if !hidden && self.current(item) != stored {
            self.effect(now, item, stored);
        }
    }

    /// Everybody may see what a crash of the host has left.
    pub fn reveal(&mut self, now: Nanos) {
        let items: Vec<Item> = self.ledger.stored.keys().copied().collect();
        items.into_iter().for_each(|item| self.settle(now, item));
    }

    /// A client is told that a write is in the store, and keeps it no longer.
    pub fn flushed(&mut self, value: u64) {
        self.ledger.unanswered.remove(&value);
        let Some(held) = self.ledger.held.remove(&value) else {
            return;
        };
        let item = held.item;
        if !held.undone {
            self.accuse(Some(item), || format!("{value} is flushed, but not stored"));
        }
        let over = self.ledger.over.get(&item);
        if over.is_some_and(|(over, _)| *over == value) {
            self.ledger.over.remove(&item);
        }
        self.ledger.lost.insert(value, held.writer(value));
    }

    /// What a crash of the host has left of an item.
    pub fn found(&mut self, now: Nanos, item: Item, value: u64) {
        let before = self.ledger.in_store(item);
        if before == value {
            return;
        }
        let floor = self.ledger.floor.get(&item).copied().unwrap_or_default();
        let is_right = self.ledger.had(item, value, floor);
        self.ledger.put(now, item, value);
        let Item::Page(file, _) = item else { return };
        if !is_right {
            self.accuse(Some(item), || {
                format!("the crash has left {value} of {item:?}, older than what was synced, or never written")
            });
        }
        if let Some(held) = self.ledger.unanswered.get(&before).copied() {
            // Its client has it still and flushes it again, unless something newer is over it.
            let newer = |other: &Held| {
                (other.item, other.session) == (item, held.session) && other.since > held.since
            };
            let is_covered = self.ledger.unanswered.values().any(newer);
            if !is_covered && !self.ledger.over.contains_key(&item) {
                let undone = true;
                self.ledger.held.insert(before, Held { undone, ..held });
                self.ledger.over.insert(item, (before, held.session));
            }
        } else if let Some((_, session)) = self.ledger.last.get(&item).copied() {
            let process = process_of(before);
            let writer = Writer {
                session,
                process,
                file,
            };
            self.ledger.lost.insert(before, writer);
        }
    }

    /// The writer of a value is told that it is written.
    pub fn acknowledged(&mut self, value: u64) {
        self.ledger.acknowledged.insert(value);
    }

    /// A value can't be brought in and is kept beside.
    pub fn kept(&mut self, value: u64, writer: Writer) {
        self.ledger.held.remove(&value);
        self.ledger.unanswered.remove(&value);
        self.ledger.lost.insert(value, writer);
    }

    /// A file is committed for a writer.
    pub fn commits(&mut self, writer: Writer) {
        let held = self.ledger.held.iter();
        let here = |h: &Held| h.session == writer.session && h.item.object() == writer.file;
        let held = held.filter(|(_, h)| here(h));
        let held = held.map(|(value, h)| (*value, h.since)).collect();
        self.ledger.uncommitted.insert(writer, held);
    }

    /// A sync that began at `start` has succeeded.
    pub fn synced(&mut self, writer: Writer, start: Nanos) {
        let file = writer.file;
        let ledger = &mut self.ledger;
        for page in 0..PAGES {
            let floor = ledger.floor.entry(Item::Page(file, page)).or_default();
            *floor = start.max(*floor);
        }
        let held = ledger.uncommitted.remove(&writer).unwrap_or_default();
        let mut held = held.into_iter().filter(|(_, since)| *since < start);
        let held = held.next().map(|(value, _)| value);
        let mut lost = ledger.lost.iter();
        let told = |value: &u64| ledger.acknowledged.contains(value);
        let lost = lost.find(|(value, of)| **of == writer && told(value));
        let lost = lost.map(|(value, _)| *value);
        if let Some(value) = held.or(lost) {
            let item = Some(Item::Page(file, 0));
            self.accuse(item, || {
                format!("{writer:?} was told that all is synced, {value} is not")
            });
        }
    }

    /// A page is on the disk that was written from `start` on.
    pub fn synced_page(&mut self, item: Item, start: Nanos) {
        let floor = self.ledger.floor.entry(item).or_default();
        *floor = start.max(*floor);
    }

    /// A writer is told that something was lost.
    pub fn sync_failed(&mut self, writer: Writer) {
        self.ledger.lost.retain(|_, of| *of != writer);
    }

    /// A client is gone with all that it held.
    pub fn gone(&mut self, session: SessionId) {
        self.ledger.held.retain(|_, held| held.session != session);
        let unanswered = &mut self.ledger.unanswered;
        unanswered.retain(|_, held| held.session != session);
        self.ledger.lost.retain(|_, of| of.session != session);
    }

    /// In the end every write is in the store, or its writer was told.
    pub fn check_nothing_is_held(&mut self) {
        let held = self.ledger.held.iter().next();
        if let Some((value, held)) = held.map(|(value, held)| (*value, *held)) {
            self.accuse(Some(held.item), || {
                format!("{value} is neither stored nor kept: {held:?}")
            });
        }
    }
}
