//! Files with bytes that the server doesn't have yet. As in the shipped client, around the shipped
//! [`Buffer`].

use super::cache::Dropped;
use super::pages::{Then, Wake};
use super::tasks::Task;
use super::{Client, ClientEv};
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::kernel::{Told, Unique};
use crate::sim::model::{CELL, Deed, DeedId, Item, MS, Obj, PAGES, process_of};
use crate::sim::model::{span, version};
use leasefs_lease::client::{Asked, Buffer, ChangeOf, DropId, DropKind, Known, Run, Span};
use leasefs_protocol::{BootId, Parts, RecallId, Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// Who waits until bytes are at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Task(Unique),
    Recall(RecallId),
}

/// What a file's flusher does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flusher {
    /// It waits for this alarm, or to be hurried.
    Waits(u64),
    Sends,
}

/// What became of a request of a round.
#[derive(Debug)]
pub(super) enum Came {
    Answered(Box<Reply>, BootId),
    Again,
    Failed(Refusal),
}

/// A dirty file.
#[derive(Debug)]
pub(super) struct File {
    pub buffer: Buffer,
    pub writers: BTreeSet<usize>,
    pub this_round: Vec<Waiter>,
    pub next_round: Vec<Waiter>,
    /// Some of the round under way has to be sent again.
    pub again: bool,
    /// Requests of the round under way that have ended, and how many have not.
    pub ends: Vec<(Asked, Run, Came)>,
    pub left: usize,
    pub flusher: Flusher,
    pub hurried: bool,
}

/// All dirty files.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub files: BTreeMap<Obj, File>,
    /// Whom a loss has to be told: process and file.
    pub failed: BTreeSet<(usize, Obj)>,
    pub alarms: u64,
    /// Own changes under way.
    changing: Vec<Obj>,
}

/// A write of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Store {
    pub id: DeedId,
    pub file: Obj,
    pub page: u8,
    pub value: u64,
    /// An append: wherever the file ends.
    pub appends: bool,
}

impl Store {
    /// A write that its caller need not wait for.
    pub fn of(id: DeedId, deed: Deed) -> Option<Self> {
        let (file, page, value, appends) = match deed {
            Deed::Write(file, page, value) => (file, page, value, false),
            Deed::Append(file, value) => (file, PAGES - 1, value, true),
            _ => return None,
        };
        Some(Self {
            id,
            file,
            page,
            value,
            appends,
        })
    }

    pub fn deed(self) -> Deed {
        match self.appends {
            true => Deed::Append(self.file, self.value),
            false => Deed::Write(self.file, self.page, self.value),
        }
    }

    fn pages(self) -> Span {
        match self.appends {
            true => Span::ALL,
            false => span(self.page, 1),
        }
    }
}

/// What becomes of a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Done,
    /// Pages of the file in the kernel have to be dropped before.
    Pages,
    /// It must go to the server.
    Through,
}

/// What a buffered write changes besides the bytes.
pub(super) fn attrs(file: Obj) -> [ChangeOf; 1] {
    [ChangeOf {
        object: file.handle(),
        parts: Parts::ATTRS,
        names: Vec::new(),
    }]
}

impl Dirty {
    /// Own changes of these begin: until they end nothing of them is kept here.
    pub fn change_begins(&mut self, files: &[Obj]) {
        self.changing.extend(files);
    }

    /// They have ended.
    pub fn change_ends(&mut self, files: &[Obj]) {
        for file in files {
            let at = self.changing.iter().position(|known| known == file);
            at.map(|at| self.changing.swap_remove(at));
        }
    }

    pub fn contains(&self, file: Obj) -> bool {
        self.files.contains_key(&file)
    }

    pub fn objects(&self) -> Vec<Obj> {
        self.files.keys().copied().collect()
    }

    /// A page of a dirty file, if it is here.
    pub fn read(&self, file: Obj, page: u8) -> Option<u64> {
        let file = self.files.get(&file)?;
        let mut cell = [0; CELL as usize];
        let mut known = Known::default();
        let at = u64::from(page) * CELL;
        file.buffer.overlay(at, &mut cell, &mut known);
        known.covers(cell.len()).then(|| u64::from_le_bytes(cell))
    }
}

impl File {
    fn new(attrs: u64, alarm: u64) -> Self {
        Self {
            buffer: Buffer::new(version(attrs)),
            writers: BTreeSet::new(),
            this_round: Vec::new(),
            next_round: Vec::new(),
            again: false,
            ends: Vec::new(),
            left: 0,
            flusher: Flusher::Waits(alarm),
            hurried: false,
        }
    }
}

impl Client {
    /// Whether any file is dirty.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.files.is_empty()
    }

    fn may_buffer(&self, cx: &Cx, file: Obj) -> bool {
        if self.dirty.changing.contains(&file) && !cx.has(Bug::BufferUnderChange) {
            return false;
        }
        let content = Parts::ATTRS | Parts::DATA;
        let handle = file.handle();
        match cx.has(Bug::BufferShared) {
            true => self.leases.held(&handle).contains(content),
            false => self.leases.may_buffer(&handle),
        }
    }

    /// Bytes of a dirty file, if they are here under a live lease.
    pub(super) fn read_stored(&self, cx: &Cx, file: Obj, page: u8) -> Option<u64> {
        self.lease_clock.witness(self.now(cx))?;
        let value = self.dirty.read(file, page)?;
        self.may_buffer(cx, file).then_some(value)
    }

    /// A write that may stay here. `false`: it must go to the server.
    pub(super) fn buffer(&mut self, cx: &mut Cx, unique: Unique, store: Store) -> bool {
        match self.store(cx, store, false) {
            Stored::Done => self.buffered(cx, unique, store),
            Stored::Through => return false,
            Stored::Pages => {
                let then = Then::Wake(Wake::Task(unique));
                let pages = [(store.file, store.pages())];
                let gate = self.with(cx, |all, out| {
                    all.drop_pages(&pages, DropKind::Change, then, out)
                });
                self.tasks.insert(unique, Task::Store(store, gate));
            }
        }
        true
    }

    /// No page of a write's range is in the kernel any more.
    pub(super) fn pages_are_gone(
        &mut self,
        cx: &mut Cx,
        unique: Unique,
        (store, gate): (Store, DropId),
    ) {
        if self.pages.rearm(gate, unique) {
            return;
        }
        let stored = self.store(cx, store, true);
        self.with(cx, |pages, out| pages.close(gate, out));
        match stored {
            Stored::Done => self.buffered(cx, unique, store),
            Stored::Through | Stored::Pages => {
                self.tasks.remove(&unique);
                self.write_through(cx, unique, store);
            }
        }
    }

    fn buffered(&mut self, cx: &mut Cx, unique: Unique, store: Store) {
        cx.stats.buffered += 1;
        cx.judge.happens(store.id, None);
        self.tell(cx, unique, Told::Done(None), true);
    }

    fn store(&mut self, cx: &mut Cx, store: Store, clear: bool) -> Stored {
        let Store {
            file, page, value, ..
        } = store;
        let live = self.lease_clock.witness(self.now(cx)).is_some();
        let first = !self.dirty.contains(file);
        let attrs = self.cache.attr(file);
        if !live || (first && attrs.is_none()) || !self.may_buffer(cx, file) {
            return Stored::Through;
        }
        if !clear && self.pages.may_hold(file) {
            return Stored::Pages;
        }
        if first {
            self.becomes_dirty(cx, file, attrs.unwrap_or_default());
        }
        let process = process_of(value);
        if let Some(known) = self.dirty.files.get_mut(&file) {
            let cell = value.to_le_bytes().to_vec();
            known.buffer.put(u64::from(page) * CELL, cell.into(), false);
            known.writers.insert(process);
        }
        let item = Item::Page(file, page);
        cx.judge.buffered(cx.now, item, value, self.session);
        self.trace(cx, Some(file), || format!("buffers {value} in page {page}"));
        Stored::Done
    }

    fn becomes_dirty(&mut self, cx: &mut Cx, file: Obj, base: u64) {
        self.leases.begin_change(&attrs(file));
        let mut dropped = Dropped::default();
        self.cache.drop_parts(file, Parts::ATTRS, &[], &mut dropped);
        self.drop_at_once(cx, &dropped);
        self.dirty.alarms += 1;
        let alarm = self.dirty.alarms;
        self.dirty.files.insert(file, File::new(base, alarm));
        self.later(cx, self.kernel.habit.age, ClientEv::Flusher(file, alarm));
    }

    /// Waits for all bytes of the file that are here now; `false` if there are none.
    pub(super) fn wait_flushed(&mut self, cx: &mut Cx, file: Obj, waiter: Waiter) -> bool {
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return false;
        };
        match known.buffer.is_flushing() && known.buffer.has_unsent() {
            true => known.next_round.push(waiter),
            false => known.this_round.push(waiter),
        }
        self.hurry(cx, file);
        true
    }

    /// Wakes a file's flusher.
    pub(super) fn hurry(&mut self, cx: &mut Cx, file: Obj) {
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        known.hurried = true;
        if let Flusher::Waits(alarm) = known.flusher {
            let wait = cx.short(MS);
            self.later(cx, wait, ClientEv::Flusher(file, alarm));
        }
    }

    /// Wakes all flushers.
    pub fn hurry_all(&mut self, cx: &mut Cx) {
        for file in self.dirty.objects() {
            self.hurry(cx, file);
        }
    }
}
