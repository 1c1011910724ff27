//! The content of files: what the host has, what clients have kept over it, what is on the disk; and
//! what became of each write.
//!
//! A buffered write takes effect when it is answered under its lease, a store into a mapped page when it
//! is made, although the host knows nothing of them. Once the server holds nobody back any more (the
//! lease has ended there) what was buffered doesn't count, until it is flushed after all: the exception
//! of DESIGN §1.1.

use super::judge::Judge;
use super::model::{ABSENT, Item, Nanos, Obj, TORN, life_of, session};
use leasefs_protocol::SessionId;
use std::collections::{BTreeMap, BTreeSet};

/// Attributes of a file with buffered bytes: no value that anybody has seen so far.
const NOT_YET: u64 = u64::MAX;

/// A descriptor of a process, which writes and asks for durability; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FdId(pub u64);

/// A write that only its client has.
#[derive(Clone, Copy, Debug)]
struct Held {
    object: Obj,
    cell: u32,
    since: Nanos,
    session: SessionId,
    /// What a crash of the host has undone there: nobody misses it once this is stored.
    instead: Option<u64>,
}

/// The content of a file.
#[derive(Clone, Debug, Default)]
struct Content {
    /// What the host has.
    host: Vec<u64>,
    attrs: u64,
    /// What a client has kept over it.
    over: BTreeMap<u32, u64>,
    /// Those of them that were stored into mapped pages: attributes don't tell of them yet.
    mapped: BTreeSet<u32>,
    owner: Option<SessionId>,
    /// Attributes as they are told now.
    told: u64,
    /// Attributes of the host that were told of last.
    shown: u64,
    /// When the host's file was last changed.
    changed: Nanos,
    len: u32,
    /// How long it was before a crash of the host, while what that has undone may be written again.
    undone: u32,
}

impl Content {
    fn effective(&self, cell: u32) -> u64 {
        if let Some(over) = self.over.get(&cell) {
            return *over;
        }
        match self.host.get(cell as usize) {
            Some(value) => *value,
            None if cell < self.size() => 0,
            None => ABSENT,
        }
    }

    fn size(&self) -> u32 {
        let over = self.over.last_key_value();
        let over = over.map_or(0, |(cell, _)| cell + 1);
        over.max(self.host.len() as u32)
    }
}

/// Who wrote a value, and how.
#[derive(Clone, Copy, Debug)]
struct Writing {
    fd: FdId,
    object: Obj,
    acknowledged: bool,
    /// Its writer was told that it isn't written.
    refused: bool,
    appended: bool,
}

/// All that is known of writes.
#[derive(Debug, Default)]
pub struct Ledger {
    contents: BTreeMap<Obj, Content>,
    writings: BTreeMap<u64, Writing>,
    /// By value, which is unique: those that the host doesn't have.
    held: BTreeMap<u64, Held>,
    /// What the host had of a cell, and since when.
    stored: BTreeMap<Item, Vec<(Nanos, u64)>>,
    /// When each value was stored first.
    first: BTreeMap<u64, Nanos>,
    /// When each cell was last stored, and by whom.
    last: BTreeMap<Item, (Nanos, SessionId)>,
    /// Cells that have what a crash of the host has put back.
    put_back: BTreeSet<Item>,
    /// Since when at least what was current is on the disk.
    floor: BTreeMap<Item, Nanos>,
    /// Values that are gone, and whom that has to be told.
    lost: BTreeMap<u64, FdId>,
    /// What a client still had when a file was committed for it.
    uncommitted: BTreeMap<(SessionId, Obj), Vec<(u64, Nanos)>>,
    host_crashed: bool,
    /// What a crash of the host has undone and may be written again.
    unsettled: BTreeSet<Obj>,
    /// Values of mapped pages that could not be written back, and of which nobody was told.
    silent: BTreeSet<u64>,
    /// Changes that whoever made them need not show yet.
    pub(super) pending: BTreeSet<(SessionId, Item)>,
    /// What a client shows as long as it is putting it aside.
    aside: BTreeMap<(SessionId, Item), u64>,
}

impl Ledger {
    /// Whether the host had a value at some moment from `since` on.
    fn had(&self, item: Item, value: u64, since: Nanos) -> bool {
        let all = self.stored.get(&item).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|(at, _)| *at <= since);
        let late = &all[first.saturating_sub(1)..];
        (first == 0 && value == ABSENT) || late.iter().any(|(_, known)| *known == value)
    }
}

impl Judge {
    /// A process is about to write a value.
    pub fn writes(&mut self, value: u64, fd: FdId, object: Obj) {
        let writing = Writing {
            fd,
            object,
            acknowledged: false,
            refused: false,
            appended: false,
        };
        self.ledger.writings.insert(value, writing);
    }

    /// Brings the history up to what counts now.
    fn refresh(&mut self, now: Nanos, object: Obj, by: Option<SessionId>) {
        let content = self.ledger.contents.entry(object).or_default();
        let size = content.size();
        let most = size.max(content.len);
        content.len = size;
        let cells: Vec<u64> = (0..most).map(|cell| content.effective(cell)).collect();
        let over = &content.over;
        content.mapped.retain(|cell| over.contains_key(cell));
        let told = match content.over.len() == content.mapped.len() {
            true => content.attrs,
            false => NOT_YET,
        };
        let attrs_changed = std::mem::replace(&mut content.told, told) != told;
        let attrs = content.attrs;
        let moved = std::mem::replace(&mut content.shown, attrs) != attrs;
        for (cell, value) in (0..).zip(cells) {
            let item = Item::Cell(object, cell);
            if self.current(item) == value {
                continue;
            }
            // A gap, where what a crash of the host has undone may come back.
            let undone = match value {
                0 => self.undone(item),
                _ => Vec::new(),
            };
            match by {
                Some(by) if value != TORN => self.own_effect(now, item, value, by),
                _ => self.effect(now, item, value, by),
            }
            self.may_come_back(item, undone);
        }
        if moved && told != attrs {
            // Of what was flushed, before the rest was kept.
            self.note(now, Item::Attrs(object), attrs, Vec::new());
        }
        if attrs_changed || moved {
            self.effect(now, Item::Attrs(object), told, by);
        }
    }

    /// A client keeps a write: at a cell, or at the end.
    pub fn buffered(&mut self, now: Nanos, object: Obj, at: Option<u32>, values: &[u64]) {
        let Some(by) = values.first().map(|value| session(life_of(*value))) else {
            return;
        };
        let first = at.unwrap_or_else(|| self.end_for(object, by));
        let cells = (first..).take(values.len());
        let undone = cells.filter_map(|cell| {
            let undone = self.undone(Item::Cell(object, cell));
            Some((cell, *undone.last()?))
        });
        let undone: BTreeMap<u32, u64> = undone.collect();
        let content = self.ledger.contents.entry(object).or_default();
        let other = content
            .owner
            .filter(|owner| *owner != by && !content.over.is_empty());
        content.owner = Some(by);
        for (cell, value) in (first..).zip(values) {
            let before = content.over.insert(cell, *value);
            let before = before.map(|before| {
                self.ledger.silent.remove(&before);
                self.ledger.held.remove(&before)
            });
            let held = Held {
                object,
                cell,
                since: now,
                session: by,
                instead: match before {
                    Some(before) => before.and_then(|before| before.instead),
                    None => undone.get(&cell).copied(),
                },
            };
            self.ledger.held.insert(*value, held);
        }
        if let Some(other) = other {
            let item = Item::Cell(object, first);
            self.accuse(Some(item), || {
                format!("{by} keeps a write while {other} does")
            });
        }
        self.refresh(now, object, Some(by));
    }

    /// Where a file ends to this session: what it has written last, and a crash of the host has undone, it writes again.
    fn end_for(&self, object: Obj, by: SessionId) -> u32 {
        let content = self.ledger.contents.get(&object);
        let (size, undone) = content.map_or((0, 0), |content| (content.size(), content.undone));
        let last = Item::Cell(object, undone.saturating_sub(1));
        let stored = self.ledger.last.get(&last);
        match stored.is_some_and(|(_, of)| *of == by) {
            true => size.max(undone),
            false => size,
        }
    }

    /// A process stores into a mapped page.
    pub fn mapped(&mut self, now: Nanos, object: Obj, cell: u32, value: u64) {
        let content = self.ledger.contents.entry(object).or_default();
        if !content.over.contains_key(&cell) {
            content.mapped.insert(cell);
        }
        self.buffered(now, object, Some(cell), &[value]);
    }

    /// Whether the host ever had a value.
    pub fn was_stored(&self, value: u64) -> bool {
        self.ledger.first.contains_key(&value)
    }

    /// Whether a client alone has it.
    pub fn is_held(&self, value: u64) -> bool {
        self.ledger.held.contains_key(&value)
    }

    /// A write reaches the host, which has these cells then.
    pub fn stored(
        &mut self,
        now: Nanos,
        (object, by): (Obj, SessionId),
        (first, values): (u32, &[u64]),
        host: &[u64],
        attrs: u64,
    ) {
        for (cell, value) in (first..).zip(values) {
            self.check_order((object, cell), *value, by);
            self.check_guards(Item::Cell(object, cell), *value, by);
        }
        for (cell, value) in (first..).zip(values) {
            let item = Item::Cell(object, cell);
            self.ledger.silent.remove(value);
            self.ledger.first.entry(*value).or_insert(now);
            let content = self.ledger.contents.get(&object);
            let before = content.and_then(|content| content.host.get(cell as usize).copied());
            if before != Some(*value) {
                self.ledger.last.insert(item, (now, by));
            }
            let held = self.ledger.held.remove(value);
            let was_held = held.is_some();
            let instead = held.and_then(|held| held.instead);
            for value in instead.iter().chain([value]) {
                self.ledger.lost.remove(value);
            }
            let content = self.ledger.contents.entry(object).or_default();
            let before = content.host.get(cell as usize).copied();
            let over = content.over.get(&cell).copied();
            match (over, content.owner) {
                // Written back along with what was stored into the same page.
                _ if *value == 0 || before == Some(*value) => {}
                (None, _) => {}
                (Some(over), _) if over == *value => {
                    content.over.remove(&cell);
                }
                (Some(over), owner) if owner == Some(by) => {
                    // Written through by one process while another's write is buffered: the older one.
                    if !was_held && self.current(item) == over {
                        self.effect(now, item, *value, Some(by));
                    }
                }
                (Some(over), owner) => self.accuse(Some(item), || {
                    format!("{by} stores {value:x} over {over:x}, which {owner:?} has buffered")
                }),
            }
        }
        // What was to be written again has been.
        self.ledger.contents.entry(object).or_default().undone = 0;
        self.host_has(now, object, host, attrs, Some(by));
    }

    /// A value is put at the end of a file by the host.
    pub fn appended(&mut self, value: u64, object: Obj) {
        let writing = self.ledger.writings.get_mut(&value);
        let twice = writing.is_some_and(|w| std::mem::replace(&mut w.appended, true));
        if twice {
            self.accuse(Some(Item::Attrs(object)), || {
                format!("{value:x} is appended twice")
            });
        }
    }

    /// What was put at the end of a file is taken away again: nobody was told of it.
    pub fn taken_back(&mut self, values: &[u64]) {
        for value in values {
            if let Some(writing) = self.ledger.writings.get_mut(value) {
                writing.appended = false;
            }
        }
    }

    /// The host has these cells and attributes of a file from now on.
    pub fn host_has(
        &mut self,
        now: Nanos,
        object: Obj,
        host: &[u64],
        attrs: u64,
        by: Option<SessionId>,
    ) {
        let ledger = &mut self.ledger;
        let content = ledger.contents.entry(object).or_default();
        let most = content.host.len().max(host.len()) as u32;
        for cell in 0..most {
            let value = host.get(cell as usize).copied().unwrap_or(ABSENT);
            let item = Item::Cell(object, cell);
            let all = ledger.stored.entry(item).or_default();
            if all.last().is_none_or(|(_, known)| *known != value) {
                all.push((now, value));
                ledger.put_back.remove(&item);
            }
        }
        content.host = host.to_vec();
        content.attrs = attrs;
        content.changed = now;
        self.refresh(now, object, by);
    }

    /// A session cuts a file off: what it has kept beyond is discarded.
    pub fn truncated(&mut self, object: Obj, size: u32, by: SessionId) {
        let Some(content) = self.ledger.contents.get_mut(&object) else {
            return;
        };
        content.undone = 0;
        if content.owner == Some(by) {
            let beyond = content.over.split_off(&size);
            for value in beyond.values() {
                self.ledger.held.remove(value);
            }
        }
    }

    /// Nothing older than what another session has stored may be put over it.
    fn check_order(&mut self, (object, cell): (Obj, u32), value: u64, session: SessionId) {
        let item = Item::Cell(object, cell);
        let ledger = &self.ledger;
        let content = ledger.contents.get(&object);
        let before = content.and_then(|content| content.host.get(cell as usize).copied());
        if before == Some(value) || before.is_none() {
            return;
        }
        let held_here = ledger.held.contains_key(&value);
        let mut had = ledger.stored.get(&item).into_iter().flatten();
        let again = had.any(|(_, known)| *known == value) && !held_here;
        // What a crash of the host has put back hasn't come behind what it has undone, and what its writer was told
        // isn't written may be gone again.
        let writing = before.and_then(|before| ledger.writings.get(&before));
        let may_go = writing.is_some_and(|writing| writing.refused);
        let behind = !may_go && !ledger.put_back.contains(&item);
        if again && behind && !ledger.unsettled.contains(&object) {
            let before = before.unwrap_or_default();
            return self.accuse(Some(item), || {
                format!("{session} puts {value:x} back over {before:x}, which came behind it")
            });
        }
        if value == 0 {
            return;
        }
        let held = ledger.held.get(&value).map(|held| held.since);
        let since = held.or_else(|| ledger.first.get(&value).copied());
        let (Some(since), Some((at, by))) = (since, ledger.last.get(&item)) else {
            return;
        };
        if *by != session && *at > since {
            let (since, at, by) = (since as f64 / 1e6, *at as f64 / 1e6, *by);
            self.accuse(Some(item), || {
                format!("{value:x}, written at {since:.3} ms, is put over what {by} has stored at {at:.3} ms")
            });
        }
    }

    /// The server holds nobody back any more for the sake of what `ended` says.
    pub fn lease_ended(&mut self, now: Nanos, ended: impl Fn(SessionId, Obj) -> bool) {
        let contents = self.ledger.contents.iter_mut();
        let gone = contents.filter_map(|(object, content)| {
            let owner = content.owner.filter(|_| !content.over.is_empty())?;
            ended(owner, *object).then(|| {
                content.over.clear();
                *object
            })
        });
        let gone: Vec<Obj> = gone.collect();
        for object in gone {
            self.refresh(now, object, None);
        }
    }

    /// Files of which writes are kept, and by whom.
    pub fn buffering(&self) -> Vec<(SessionId, Obj)> {
        let contents = self.ledger.contents.iter();
        let kept = contents.filter(|(_, content)| !content.over.is_empty());
        kept.filter_map(|(object, content)| Some((content.owner?, *object)))
            .collect()
    }

    /// What a crash of the host has left of a file.
    pub fn found(&mut self, now: Nanos, object: Obj, host: &[u64], attrs: u64) {
        let content = self.ledger.contents.entry(object).or_default();
        let before = content.clone();
        if before.host == host && before.attrs == attrs {
            return;
        }
        self.ledger.unsettled.insert(object);
        let content = self.ledger.contents.entry(object).or_default();
        content.undone = content.undone.max(content.host.len() as u32);
        let most = before.host.len().max(host.len()) as u32;
        let mut undone = Vec::new();
        for cell in 0..most {
            let item = Item::Cell(object, cell);
            let of = |cells: &[u64]| cells.get(cell as usize).copied().unwrap_or(ABSENT);
            let (was, is) = (of(&before.host), of(host));
            if was == is {
                continue;
            }
            let floor = self.ledger.floor.get(&item).copied().unwrap_or_default();
            if !self.ledger.had(item, is, floor) {
                self.accuse(Some(item), || {
                    format!("the crash has left {is:x} of {item:?}, older than what was synced, or never written")
                });
            }
            // Any of what came since may be all that its client can write again.
            let all = self.ledger.stored.get(&item).into_iter().flatten();
            let since = all.rev().take(8).map(|(_, value)| *value);
            let since = since.take_while(|value| *value != is).chain([was]);
            undone.push((item, since.collect::<Vec<_>>()));
            // What its client has written over it since counts, once it is written back.
            let over = before.over.contains_key(&cell);
            if let Some(writing) = self.ledger.writings.get(&was).filter(|_| !over) {
                self.ledger.lost.insert(was, writing.fd);
            }
        }
        let told = self.current(Item::Attrs(object));
        self.host_has(now, object, host, attrs, None);
        let cells = undone.iter().map(|(item, _)| *item);
        self.ledger.put_back.extend(cells);
        for (item, was) in undone {
            let is = self.current(item);
            self.note(now, item, is, was);
        }
        let is = self.current(Item::Attrs(object));
        self.note(now, Item::Attrs(object), is, vec![told]);
    }

    /// What a crash of the host has undone is not written again any more, but of files of which `may_be`
    /// says so.
    pub fn reveal(&mut self, now: Nanos, may_be: impl Fn(Obj) -> bool) {
        let objects: Vec<Obj> = self.ledger.unsettled.iter().copied().collect();
        for object in objects {
            if may_be(object) {
                continue;
            }
            self.ledger.unsettled.remove(&object);
            let content = self.ledger.contents.entry(object).or_default();
            content.undone = 0;
            let cells = content.host.len().max(64) as u32;
            let cells = (0..cells).map(|cell| Item::Cell(object, cell));
            for item in cells.chain([Item::Attrs(object)]) {
                if self.is_unsettled(item) {
                    let value = self.current(item);
                    self.note(now, item, value, Vec::new());
                }
            }
        }
    }

    /// Whether a crash of the host may be told of a file in two ways.
    pub fn is_undone(&self, object: Obj) -> bool {
        self.ledger.unsettled.contains(&object)
    }

    /// The writer of a value is told that it is written.
    pub fn acknowledged(&mut self, value: u64) {
        if let Some(writing) = self.ledger.writings.get_mut(&value) {
            writing.acknowledged = true;
        }
    }

    /// The writer of a value is told that it isn't.
    pub fn refused(&mut self, value: u64) {
        if let Some(writing) = self.ledger.writings.get_mut(&value) {
            writing.refused = true;
        }
    }

    /// A value can't be brought in and is kept beside. Returns since when its client alone had it.
    pub fn kept(&mut self, now: Nanos, value: u64) -> Option<Nanos> {
        let held = self.ledger.held.remove(&value);
        self.ledger.silent.remove(&value);
        let writing = self.ledger.writings.get(&value).copied();
        let content = writing.and_then(|w| self.ledger.contents.get_mut(&w.object));
        if let Some(content) = content {
            // Nor is what a crash of the host has undone brought in again.
            content.undone = 0;
        }
        // Else the host had it: a page is kept with all that was in it.
        let (held, writing) = held.zip(writing)?;
        self.ledger.lost.insert(value, writing.fd);
        if let Some(content) = self.ledger.contents.get_mut(&held.object)
            && content.over.get(&held.cell) == Some(&value)
        {
            content.over.remove(&held.cell);
            self.refresh(now, held.object, None);
            let (by, item) = (held.session, Item::Cell(held.object, held.cell));
            self.ledger.aside.insert((by, item), value);
            for (item, value) in self.aside(by, held.object) {
                self.still_shows(item, value, by);
            }
        }
        Some(held.since)
    }

    fn aside(&self, by: SessionId, object: Obj) -> Vec<(Item, u64)> {
        let of = |session, item: Item| session == by && item.object() == object;
        let aside = self.ledger.aside.iter();
        let aside = aside.filter(|((session, item), _)| of(*session, *item));
        aside.map(|((_, item), value)| (*item, *value)).collect()
    }

    /// What a client couldn't bring in of a file it has put aside.
    pub fn no_more_shown(&mut self, now: Nanos, by: SessionId, object: Obj) {
        for (item, _) in self.aside(by, object) {
            self.ledger.aside.remove(&(by, item));
            self.settles(now, item);
        }
    }

    /// Whether the host's file is what it was at a moment; not where the host has ever crashed, which may
    /// have made it so.
    pub fn is_unchanged(&self, object: Obj, since: Nanos) -> bool {
        let known = self.ledger.contents.get(&object);
        let unchanged = known.is_some_and(|content| content.changed < since);
        unchanged && !self.ledger.host_crashed
    }

    /// The host has crashed.
    pub fn host_crashes(&mut self) {
        self.ledger.host_crashed = true;
    }

    /// A mapped page could not be written back; the kernel believes that it is clean.
    pub fn page_failed(&mut self, value: u64) {
        if self.ledger.held.contains_key(&value)
            && let Some(writing) = self.ledger.writings.get(&value)
        {
            self.ledger.lost.insert(value, writing.fd);
            self.ledger.silent.insert(value);
        }
    }

    /// A mapped page has left the kernel without having been written.
    pub fn page_gone(&mut self, now: Nanos, value: u64) {
        let Some(held) = self.ledger.held.get(&value).copied() else {
            return;
        };
        if let Some(content) = self.ledger.contents.get_mut(&held.object)
            && content.over.get(&held.cell) == Some(&value)
        {
            content.over.remove(&held.cell);
            self.refresh(now, held.object, None);
        }
    }

    /// A file is committed for a client.
    pub fn commits(&mut self, by: SessionId, file: Obj) {
        let held = self.ledger.held.iter();
        let here = |h: &Held| h.session == by && h.object == file;
        let held = held.filter(|(_, h)| here(h));
        let held = held.map(|(value, h)| (*value, h.since)).collect();
        self.ledger.uncommitted.insert((by, file), held);
    }

    /// A sync that began at `start` has succeeded.
    pub fn synced(&mut self, (by, fd, file): (SessionId, FdId, Obj), start: Nanos) {
        let ledger = &mut self.ledger;
        let cells = ledger
            .contents
            .get(&file)
            .map_or(0, |c| c.host.len().max(64));
        for cell in 0..cells as u32 {
            let floor = ledger.floor.entry(Item::Cell(file, cell)).or_default();
            *floor = start.max(*floor);
        }
        let held = ledger.uncommitted.get(&(by, file));
        let mut held = held.into_iter().flatten();
        let held = held.find(|(value, since)| {
            *since < start && ledger.writings.get(value).is_some_and(|w| w.acknowledged)
        });
        let held = held.map(|(value, _)| *value);
        let told = |value: &u64| {
            ledger
                .writings
                .get(value)
                .is_some_and(|w| w.acknowledged && w.object == file)
        };
        let mut lost = ledger.lost.iter();
        let lost = lost.find(|(value, of)| **of == fd && told(value));
        let lost = lost.map(|(value, _)| *value);
        if let Some(value) = held.or(lost) {
            let item = Some(Item::Cell(file, 0));
            self.accuse(item, || {
                format!("{fd:?} of {by} was told that all is synced, {value:x} is not")
            });
        }
    }

    /// A cell is on the disk that was written from `start` on.
    pub fn synced_cell(&mut self, item: Item, start: Nanos) {
        let floor = self.ledger.floor.entry(item).or_default();
        *floor = start.max(*floor);
    }

    /// A descriptor is told that something was lost, or is closed.
    pub fn told_loss(&mut self, fd: FdId) {
        self.ledger.lost.retain(|_, of| *of != fd);
        let ledger = &mut self.ledger;
        let of = |value: &u64| ledger.writings.get(value).is_some_and(|w| w.fd == fd);
        ledger
            .held
            .retain(|value, _| !(ledger.silent.contains(value) && of(value)));
        ledger.silent.retain(|value| !of(value));
    }

    /// A descriptor is closed: what is lost later has nobody to be told.
    pub fn closed(&mut self, fd: FdId) {
        self.ledger.lost.retain(|_, of| *of != fd);
    }

    /// A client is gone with all that it held.
    pub fn gone(&mut self, now: Nanos, by: SessionId) {
        self.lease_ended(now, |of, _| of == by);
        self.ledger.held.retain(|_, held| held.session != by);
        self.ledger
            .silent
            .retain(|value| session(life_of(*value)) != by);
        let of = |value: &u64| session(life_of(*value)) == by;
        self.ledger.lost.retain(|value, _| !of(value));
    }

    /// Values that a client alone has, of a mount.
    pub fn held_by(&self, by: SessionId) -> Vec<u64> {
        let held = self.ledger.held.iter();
        held.filter(|(_, h)| h.session == by)
            .map(|(value, _)| *value)
            .collect()
    }

    /// In the end every write that was acknowledged is in the store, or kept beside.
    pub fn check_nothing_is_held(&mut self, still: impl Fn(SessionId) -> bool) {
        let ledger = &self.ledger;
        let told = |value: &u64| ledger.writings.get(value).is_some_and(|w| w.acknowledged);
        let held = ledger
            .held
            .iter()
            .find(|(value, held)| told(value) && still(held.session));
        if let Some((value, held)) = held.map(|(value, held)| (*value, *held)) {
            let item = Item::Cell(held.object, held.cell);
            self.accuse(Some(item), || {
                format!("{value:x} is neither stored nor kept: {held:?}")
            });
        }
    }
}
