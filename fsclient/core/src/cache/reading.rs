//! Reads that the daemon answers: what the server has, below what is buffered of the file.

use super::state::State;
use super::{Asked, Cache};
use crate::inode::Fetch;
use bytes::Bytes;
use leasefs_lease::client::{Extents, Known};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::OPEN_DATA;
use leasefs_protocol::{Attr, FileKind, Grant, Handle, Parts};

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// How many, or up to the end of the file.
    pub len: usize,
}

/// What a read finds here.
#[derive(Debug)]
pub enum Here {
    /// All that was asked for.
    All(Bytes),
    /// The server must be asked; the answer is for [`Cache::fetched`].
    Fetch(Asking),
    /// Bytes are buffered without a lease: they must be flushed, then the server be asked.
    Unsettled,
}

/// A question to the server.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    asked: Asked,
    /// What to ask for.
    pub fetch: Fetch,
    clean: bool,
}

/// What a READ was answered.
#[derive(Debug)]
pub struct Fetched<'a> {
    /// The leases that came with it.
    pub grants: &'a [Grant],
    /// The bytes; fewer than asked for only at the end of the file.
    pub data: Bytes,
}

impl Cache {
    /// Looks whether a read can be answered from here.
    pub fn read_here(&self, object: &Handle, range: Range) -> Here {
        let mut state = self.state();
        let now = self.look(&mut state);
        state.read_here(now, object, range)
    }

    /// What to ask for along with an open for reading, if its bytes are worth having.
    pub fn fetch_opened(&self, object: &Handle) -> Option<Fetch> {
        let mut state = self.state();
        let now = self.look(&mut state);
        state.fetch_opened(now, object)
    }

    /// The answer to a read with what the server has told; `None` if that is outdated.
    pub fn fetched(
        &self,
        object: &Handle,
        range: Range,
        asking: Asking,
        fetched: Fetched<'_>,
    ) -> Option<Bytes> {
        let mut state = self.state();
        let now = self.look(&mut state);
        state.fetched(now, object, range, asking, fetched)
    }
}

impl State {
    /// Whether what is here of a file's bytes may be used: a live lease covers them.
    fn may_read(&self, now: BootTime, object: &Handle) -> bool {
        let live = self.session.witness(now).is_some();
        live && match self.inodes.is_dirty(object) {
            true => self.leases.may_buffer(object),
            false => self.leases.held(object).contains(Parts::DATA),
        }
    }

    /// Whether a file is small enough is known as a rule; the server knows it anyway.
    fn fetch_opened(&mut self, now: BootTime, object: &Handle) -> Option<Fetch> {
        let live = self.session.witness(now)?;
        let known = self.inodes.peek_attr(&live, object);
        let small =
            |attr: Attr| attr.kind == FileKind::File && (1..=OPEN_DATA as u64).contains(&attr.size);
        let inodes = &mut self.inodes;
        let paged = inodes.may_hold_pages(object) && !inodes.is_unclean(object);
        let here = paged || inodes.has_clean_bytes(object);
        let changes = inodes.is_dirty(object) || inodes.may_store(object);
        (known.is_none_or(small) && !here && !changes).then(|| inodes.fetch(*object, 0, OPEN_DATA))
    }

    /// Bytes for pages of the kernel: all that was asked for, up to the end of the file. The lease that covers them
    /// stands. Pages hold the bytes from now on, if these were the last.
    pub fn read_pages(&mut self, now: BootTime, object: &Handle, range: Range) -> Option<Bytes> {
        if self.inodes.is_dirty(object) || !self.may_read(now, object) {
            return None;
        }
        let data = self.read_held(now, object, range)?;
        let here = self.inodes.clean(object).map_or(0, Extents::end);
        if range.offset + data.len() as u64 >= here {
            self.inodes.drop_clean(object);
        }
        Some(data)
    }

    fn read_here(&mut self, now: BootTime, object: &Handle, range: Range) -> Here {
        let (dirty, may) = (self.inodes.is_dirty(object), self.may_read(now, object));
        if dirty && !may {
            return Here::Unsettled;
        }
        if may && let Some(data) = self.read_held(now, object, range) {
            self.inodes
                .read_up_to(object, range.offset + range.len as u64);
            return Here::All(data);
        }
        Here::Fetch(Asking {
            asked: self.leases.ask(),
            fetch: self.inodes.fetch(*object, range.offset, range.len),
            clean: !dirty,
        })
    }

    fn read_held(&self, now: BootTime, object: &Handle, range: Range) -> Option<Bytes> {
        let Range { offset, len } = range;
        let live = self.session.witness(now)?;
        let attr = self.inodes.peek_attr(&live, object);
        let size = self
            .inodes
            .dirty_size(object)
            .or(attr.map(|attr| attr.size));
        let want = size.map_or(len, |size| within(size, range));
        let (mut data, mut known) = (vec![0; want], Known::default());
        self.overlay(object, offset, &mut data, &mut known);
        known.covers(want).then(|| data.into())
    }

    /// What is here of the bytes from `offset` on, the newest last.
    fn overlay(&self, object: &Handle, offset: u64, data: &mut [u8], known: &mut Known) {
        if let Some(content) = self.inodes.clean(object) {
            content.overlay(offset, data, known);
        }
        self.inodes.overlay_dirty(object, offset, data, known);
    }

    fn fetched(
        &mut self,
        now: BootTime,
        object: &Handle,
        range: Range,
        asking: Asking,
        Fetched { grants, data }: Fetched<'_>,
    ) -> Option<Bytes> {
        let fetch = asking.fetch;
        let plain = asking.clean && !self.inodes.is_dirty(object);
        self.granted(asking.asked, grants);
        let covered = self.covered(asking.asked, grants, object, Parts::DATA)
            && self.may_read(now, object)
            && self.inodes.fetched(object, fetch, &data);
        if !covered {
            // All that had been written when it was asked for was at the server.
            return plain.then(|| part(&data, fetch.offset, range));
        }
        let told = fetch.offset + data.len() as u64;
        let here = self.inodes.clean(object).map_or(0, |content| content.end());
        let end = self.inodes.dirty_size(object).unwrap_or(told.max(here));
        let mut answer = vec![0; within(end, range)];
        let old = part(&data, fetch.offset, range);
        let len = old.len().min(answer.len());
        answer[..len].copy_from_slice(&old[..len]);
        self.overlay(object, range.offset, &mut answer, &mut Known::default());
        self.inodes
            .read_up_to(object, range.offset + range.len as u64);
        self.inodes.keep_clean_budget(object);
        Some(answer.into())
    }
}

/// How many bytes of a range lie before the end of the file.
fn within(size: u64, Range { offset, len }: Range) -> usize {
    let rest = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    len.min(rest)
}

/// The bytes of a range among those that begin at `at`.
fn part(data: &Bytes, at: u64, Range { offset, len }: Range) -> Bytes {
    let begin = ((offset - at) as usize).min(data.len());
    let end = begin.saturating_add(len).min(data.len());
    data.slice(begin..end)
}

#[cfg(test)]
mod tests;
