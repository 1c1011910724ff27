//! What a writer's journal says its files may hold.

use super::journal::{Entry, FileId, LOG, Op, STRIPES};
use super::register::{Floor, Register};
use super::stamp::CELL;
use std::collections::BTreeMap;

/// The cells that `len` bytes at `offset` are.
pub fn cells(offset: u64, len: u64) -> impl Iterator<Item = u64> {
    (offset..offset + len).step_by(CELL)
}

/// A file's content. A cell is the call that wrote it, or `None` for zeros.
#[derive(Debug, Clone)]
pub struct FileModel {
    size: Register<u64>,
    cells: BTreeMap<u64, Register<Option<u64>>>,
}

impl FileModel {
    /// A durable file of zeros.
    pub fn zeros(size: u64) -> Self {
        Self {
            size: Register::new(size),
            cells: BTreeMap::new(),
        }
    }

    fn newest_size(&self) -> u64 {
        self.size.newest().copied().unwrap_or_default()
    }

    fn write(&mut self, seq: u64, offset: u64, len: u64) {
        for place in cells(offset, len) {
            let cell = self.cells.entry(place);
            cell.or_insert_with(|| Register::new(None))
                .begin(seq, Some(seq));
        }
        if offset + len > self.newest_size() {
            self.size.begin(seq, offset + len);
        }
    }

    fn truncate(&mut self, seq: u64, size: u64) {
        for (_, cell) in self.cells.range_mut(size..) {
            cell.begin(seq, None);
        }
        self.size.begin(seq, size);
    }

    fn returned(&mut self, seq: u64) {
        self.size.returned(seq);
        self.cells.values_mut().for_each(|cell| cell.returned(seq));
    }

    fn range_synced(&mut self, offset: u64, len: u64) {
        self.size.synced();
        let range = self.cells.range_mut(offset..offset + len);
        range.for_each(|(_, cell)| cell.synced());
    }

    fn synced(&mut self) {
        self.range_synced(0, u64::MAX);
    }

    fn doubtful(&mut self) {
        self.size.doubtful();
        self.cells.values_mut().for_each(Register::doubtful);
    }

    /// The smallest and the largest size it may have.
    pub fn sizes(&self, floor: Floor) -> (u64, u64) {
        let sizes = self.size.may_be(floor);
        let bound = |size: Option<&u64>| size.copied().unwrap_or_default();
        (bound(sizes.iter().min()), bound(sizes.iter().max()))
    }

    /// What the cell at `place` may be.
    pub fn cell(&self, place: u64, floor: Floor) -> Vec<Option<u64>> {
        let cell = self.cells.get(&place);
        cell.map_or_else(|| vec![None], |cell| cell.may_be(floor))
    }

    /// Where cells have been written, and up to where.
    pub fn end_of_cells(&self) -> u64 {
        let last = self.cells.last_key_value();
        last.map_or(0, |(place, _)| place + CELL as u64)
    }
}

/// A record of the common log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Its bytes.
    pub len: u64,
    /// Its write has succeeded.
    pub returned: bool,
    /// It was acknowledged as durable.
    pub durable: bool,
}

/// All that a writer has changed.
#[derive(Debug, Clone)]
pub struct WriterModel {
    /// Names in its directory.
    pub names: BTreeMap<String, Register<Option<FileId>>>,
    /// Its files, and its part of [`STRIPES`].
    pub files: BTreeMap<FileId, FileModel>,
    /// Its records in [`LOG`], by their calls.
    pub records: BTreeMap<u64, Record>,
    /// Calls that have failed, with what they asked for.
    pub failures: Vec<(u64, Op, i32)>,
    open: BTreeMap<u64, Op>,
}

impl WriterModel {
    /// What a journal says. `stripes` is the size of [`STRIPES`].
    pub fn new(entries: &[Entry], stripes: u64) -> Self {
        let mut model = Self {
            names: BTreeMap::new(),
            files: BTreeMap::from([(STRIPES, FileModel::zeros(stripes))]),
            records: BTreeMap::new(),
            failures: Vec::new(),
            open: BTreeMap::new(),
        };
        entries.iter().for_each(|entry| model.take(entry));
        model
    }

    fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Begin { seq, op } => {
                self.begin(*seq, op);
                self.open.insert(*seq, op.clone());
            }
            Entry::Done { seq } => {
                if let Some(op) = self.open.remove(seq) {
                    self.done(*seq, &op);
                }
            }
            Entry::Failed { seq, errno } => {
                if let Some(op) = self.open.remove(seq) {
                    self.failed(&op);
                    self.failures.push((*seq, op, *errno));
                }
            }
        }
    }

    fn file(&mut self, file: FileId) -> &mut FileModel {
        let made = self.files.entry(file);
        made.or_insert_with(|| FileModel::zeros(0))
    }

    fn name(&mut self, name: &str) -> &mut Register<Option<FileId>> {
        let known = self.names.entry(name.to_owned());
        known.or_insert_with(|| Register::new(None))
    }

    fn begin(&mut self, seq: u64, op: &Op) {
        match op {
            Op::Create { name, file } => {
                self.file(*file);
                self.name(name).begin(seq, Some(*file));
            }
            Op::Write {
                file, offset, len, ..
            } => self.file(*file).write(seq, *offset, *len),
            Op::Append { len } => {
                let record = Record {
                    len: *len,
                    returned: false,
                    durable: false,
                };
                self.records.insert(seq, record);
            }
            Op::Truncate { file, size } => self.file(*file).truncate(seq, *size),
            Op::Rename { from, to } => {
                let moved = self.name(from).newest().copied().flatten();
                self.name(from).begin(seq, None);
                self.name(to).begin(seq, moved);
            }
            Op::Unlink { name } => self.name(name).begin(seq, None),
            Op::Open { .. } | Op::Sync { .. } | Op::SyncDir => {}
        }
    }

    fn done(&mut self, seq: u64, op: &Op) {
        match op {
            Op::Write {
                file,
                offset,
                len,
                synced,
            } => {
                self.file(*file).returned(seq);
                if *synced {
                    self.file(*file).range_synced(*offset, *len);
                }
            }
            Op::Truncate { file, .. } => self.file(*file).returned(seq),
            Op::Append { .. } => {
                let record = self.records.get_mut(&seq);
                record.into_iter().for_each(|record| record.returned = true);
            }
            Op::Sync { file: LOG } => {
                let all = self.records.values_mut();
                all.for_each(|record| record.durable |= record.returned);
            }
            Op::Sync { file } => self.file(*file).synced(),
            Op::SyncDir => self.names.values_mut().for_each(Register::synced),
            Op::Open { .. } => {}
            Op::Create { .. } | Op::Rename { .. } | Op::Unlink { .. } => {
                self.names.values_mut().for_each(|name| name.returned(seq));
            }
        }
    }

    fn failed(&mut self, op: &Op) {
        match op {
            Op::Sync { file: LOG } => {
                let all = self.records.values_mut();
                all.for_each(|record| record.returned = record.durable);
            }
            Op::Sync { file } => self.file(*file).doubtful(),
            Op::SyncDir => self.names.values_mut().for_each(Register::doubtful),
            // It may or may not have happened, as if it had never ended.
            _ => {}
        }
    }
}
