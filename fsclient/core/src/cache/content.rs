//! Bytes of files as the server has them, for reads that come to the daemon: those on descriptors
//! that may write. Covered by a lease on DATA.

use crate::run::Map;
use bytes::Bytes;
use leasefs_lease::client::Extents;
use leasefs_protocol::Handle;
use leasefs_protocol::limits::MAX_PAYLOAD;
use std::collections::BTreeMap;

/// Memory that all files together may use, in bytes.
const BUDGET: usize = 128 << 20;

/// What is asked for when a file is read in sequence, in bytes.
const AHEAD: usize = 512 << 10;
/// What is asked for around a byte, in bytes: the kernel's pages.
const PAGE: u64 = 4 << 10;

/// When bytes of a file were asked for: they are worth nothing here once the file has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    epoch: u64,
    /// First byte to ask for.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

#[derive(Debug)]
struct File {
    bytes: Extents,
    /// From when on nothing of it was dropped.
    epoch: u64,
    /// Own changes of its bytes under way: nothing comes in.
    changes: u32,
    /// Where a read in sequence would begin.
    next: u64,
    used: u64,
}

/// The cached bytes of all files.
#[derive(Debug, Default)]
pub(super) struct Content {
    files: Map<Handle, File>,
    by_use: BTreeMap<u64, Handle>,
    bytes: usize,
    /// Last number given as an epoch or use.
    last: u64,
}

impl Content {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// What is cached of a file.
    pub fn of(&self, object: &Handle) -> Option<&Extents> {
        self.files.get(object).map(|file| &file.bytes)
    }

    /// Whether anything is cached of a file.
    pub fn holds(&self, object: &Handle) -> bool {
        self.of(object).is_some_and(|bytes| !bytes.is_empty())
    }

    /// Memory in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A file is read here.
    pub fn used(&mut self, object: &Handle, end: u64) {
        let now = self.next();
        if let Some(file) = self.files.get_mut(object) {
            self.by_use.remove(&file.used);
            self.by_use.insert(now, *object);
            (file.used, file.next) = (now, end);
        }
    }

    /// Bytes are about to be asked for.
    pub fn fetch(&mut self, object: Handle, offset: u64, len: usize) -> Fetch {
        let (epoch, used) = (self.next(), self.next());
        let file = self.files.entry(object).or_insert_with(|| {
            self.by_use.insert(used, object);
            File {
                bytes: Extents::default(),
                epoch,
                changes: 0,
                next: 0,
                used,
            }
        });
        let ahead = file.next == offset && offset > 0;
        let (offset, len) = around(offset, len, ahead);
        Fetch {
            epoch: file.epoch,
            offset,
            len,
        }
    }

    /// Takes in bytes that were asked for, below what is here; false if they are worth nothing.
    pub fn fetched(&mut self, object: &Handle, fetch: Fetch, data: &Bytes) -> bool {
        let Some(file) = self.files.get_mut(object) else {
            return false;
        };
        if file.epoch != fetch.epoch || file.changes > 0 {
            return false;
        }
        let before = file.bytes.bytes();
        file.bytes.put_under(fetch.offset, data);
        self.bytes = self.bytes - before + file.bytes.bytes();
        true
    }

    /// The server has these bytes now.
    pub fn flushed(&mut self, object: &Handle, offset: u64, data: Bytes) {
        if let Some(file) = self.files.get_mut(object) {
            let before = file.bytes.bytes();
            file.bytes.put(offset, data);
            self.bytes = self.bytes - before + file.bytes.bytes();
            self.keep_budget(object);
        }
    }

    /// Drops the files not used for longest, this one last.
    pub fn keep_budget(&mut self, but: &Handle) {
        while self.bytes > BUDGET {
            let oldest = self.by_use.values().find(|object| *object != but);
            let object = oldest.copied().unwrap_or(*but);
            self.drop_file(&object);
            if object == *but {
                return;
            }
        }
    }

    /// An own change of a file's bytes begins.
    pub fn begin_change(&mut self, object: Handle) {
        self.drop_file(&object);
        // Makes an entry.
        let _ = self.fetch(object, 0, 0);
        if let Some(file) = self.files.get_mut(&object) {
            file.changes += 1;
        }
    }

    /// It has ended.
    pub fn end_change(&mut self, object: &Handle) {
        if let Some(file) = self.files.get_mut(object) {
            file.changes = file.changes.saturating_sub(1);
        }
        self.drop_file(object);
    }

    /// Drops what is cached of a file; what was asked for before doesn't come in.
    pub fn drop_file(&mut self, object: &Handle) {
        let epoch = self.next();
        let Some(file) = self.files.get_mut(object) else {
            return;
        };
        self.bytes -= file.bytes.bytes();
        if file.changes > 0 {
            (file.bytes, file.epoch) = (Extents::default(), epoch);
            return;
        }
        self.by_use.remove(&file.used);
        self.files.remove(object);
    }

    /// Drops everything.
    pub fn drop_all(&mut self) {
        let files: Vec<Handle> = self.files.keys().copied().collect();
        files.iter().for_each(|object| self.drop_file(object));
    }
}

/// Whole pages, unless that is more than one answer can hold.
fn around(offset: u64, len: usize, ahead: bool) -> (u64, usize) {
    let from = offset / PAGE * PAGE;
    let until = offset
        .saturating_add(len as u64)
        .div_ceil(PAGE)
        .saturating_mul(PAGE);
    let whole = usize::try_from(until - from).unwrap_or(usize::MAX);
    match (whole > MAX_PAYLOAD, ahead) {
        (true, _) => (offset, len),
        (false, true) => (from, whole.max(AHEAD)),
        (false, false) => (from, whole),
    }
}
