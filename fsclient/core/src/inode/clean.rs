//! Bytes of files as the server has them, for reads that come to the daemon: those on descriptors
//! that may write. Covered by a lease on DATA.

use super::{Content, Inodes};
use bytes::Bytes;
use leasefs_lease::client::Extents;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::Handle;
use leasefs_protocol::limits::MAX_PAYLOAD;

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

/// Bytes of a file as the server has them, or room for what was asked for.
#[derive(Debug)]
pub(super) struct Clean {
    bytes: Extents,
    /// From when on nothing of it was dropped.
    epoch: u64,
    /// Where a read in sequence would begin.
    next: u64,
    used: u64,
}

impl Clean {
    /// Memory in use.
    pub fn memory(&self) -> usize {
        self.bytes.memory()
    }
}

impl Inodes {
    pub(super) fn next_use(&mut self) -> u64 {
        self.last_use += 1;
        self.last_use
    }

    /// What there is of a file.
    pub fn clean(&self, object: &Handle) -> Option<&Extents> {
        Some(&self.content(object)?.clean.as_ref()?.bytes)
    }

    /// Whether there is anything of a file.
    pub fn has_clean_bytes(&self, object: &Handle) -> bool {
        self.clean(object).is_some_and(|bytes| !bytes.is_empty())
    }

    /// A file is read here up to `end`.
    pub fn read_up_to(&mut self, object: &Handle, end: u64) {
        let now = self.next_use();
        if let Some(clean) = self
            .content_mut(object)
            .and_then(|content| content.clean.as_mut())
        {
            let before = std::mem::replace(&mut clean.used, now);
            clean.next = end;
            self.by_use.remove(&before);
            self.by_use.insert(now, *object);
        }
    }

    /// Bytes are about to be asked for.
    pub fn fetch(&mut self, object: Handle, offset: u64, len: usize) -> Fetch {
        let (epoch, next) = self.make_clean(object);
        let ahead = next == offset && offset > 0;
        let (offset, len) = around(offset, len, ahead);
        Fetch { epoch, offset, len }
    }

    /// Takes in bytes that were asked for, below what is here; false if they are worth nothing.
    pub fn fetched(&mut self, object: &Handle, fetch: Fetch, data: &Bytes) -> bool {
        let taken = self.change_content(object, |content| {
            let changing = content.changing.bytes > 0;
            let clean = content.clean.as_mut();
            let clean = clean.filter(|clean| {
                clean.epoch == fetch.epoch && !changing || planted::is(Bug::FetchStale)
            });
            clean.map(|clean| clean.bytes.put_under(fetch.offset, data))
        });
        taken.flatten().is_some()
    }

    /// Makes no room for what doesn't come.
    pub fn drop_unfetched(&mut self, object: &Handle) {
        if !self.has_clean_bytes(object) {
            self.drop_clean(object);
        }
    }

    /// Bytes of a file are about to be at the server: there is room for them, if nothing else is changing them.
    pub fn keeps_flushed(&mut self, object: Handle) {
        let changing = |content: &Content| content.changing.bytes > 0;
        if !self.content(&object).is_some_and(changing) {
            self.make_clean(object);
        }
    }

    /// The server has these bytes now.
    pub fn flushed_clean(&mut self, object: &Handle, offset: u64, data: Bytes) {
        let taken = self.change_content(object, |content| {
            let clean = content.clean.as_mut();
            clean.map(|clean| clean.bytes.put(offset, data))
        });
        if taken.flatten().is_some() {
            self.keep_clean_budget(object);
        }
    }

    /// Drops the bytes of the files not used for longest, of this one last.
    pub fn keep_clean_budget(&mut self, but: &Handle) {
        while self.weight.clean > self.memory.for_clean() {
            let others = |object: &&Handle| *object != but && self.has_clean_bytes(object);
            let oldest = self.by_use.values().find(others);
            let object = oldest.copied().unwrap_or(*but);
            self.drop_clean(&object);
            if object == *but {
                return;
            }
        }
    }

    /// Drops what there is of a file; what was asked for before doesn't come in.
    pub fn drop_clean(&mut self, object: &Handle) {
        let epoch = self.next_use();
        let dropped = self.change_content(object, |content| {
            let clean = content.clean.as_mut()?;
            if content.changing.bytes > 0 {
                (clean.bytes, clean.epoch) = (Extents::default(), epoch);
                return None;
            }
            content.clean.take()
        });
        if let Some(clean) = dropped.flatten() {
            self.by_use.remove(&clean.used);
        }
    }

    /// Drops the bytes of all files.
    pub fn drop_all_clean(&mut self) {
        let files: Vec<Handle> = self.by_use.values().copied().collect();
        files.iter().for_each(|object| self.drop_clean(object));
    }

    /// Makes room for bytes of a file, if there is none. Returns its epoch, and where a read in sequence
    /// would begin.
    pub(super) fn make_clean(&mut self, object: Handle) -> (u64, u64) {
        let (epoch, used) = (self.next_use(), self.next_use());
        let (made, known) = self.make_content(object, |content| {
            let made = content.clean.is_none();
            let clean = content.clean.get_or_insert_with(|| {
                Box::new(Clean {
                    bytes: Extents::default(),
                    epoch,
                    next: 0,
                    used,
                })
            });
            (made, (clean.epoch, clean.next))
        });
        if made {
            self.by_use.insert(used, object);
        }
        known
    }
}

/// Whole pages, unless that is more than one answer can hold.
fn around(offset: u64, len: usize, ahead: bool) -> (u64, usize) {
    let from = offset / PAGE * PAGE;
    // No file goes on behind that, and nobody may ask for it.
    let up_to = |end: u64| usize::try_from(end.min(i64::MAX as u64).saturating_sub(from));
    let end = offset.saturating_add(len as u64);
    let whole = up_to(end.div_ceil(PAGE).saturating_mul(PAGE)).unwrap_or(usize::MAX);
    match (whole > MAX_PAYLOAD, ahead) {
        (true, _) => (offset, len),
        (false, true) => {
            let ahead = up_to(from.saturating_add(AHEAD as u64)).unwrap_or(AHEAD);
            (from, whole.max(ahead))
        }
        (false, false) => (from, whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Changing;

    fn file(byte: u8) -> Handle {
        Handle::new(&[byte]).expect("one byte")
    }

    fn reads(inodes: &mut Inodes, byte: u8, len: usize) {
        let fetch = inodes.fetch(file(byte), 0, len);
        assert!(inodes.fetched(&file(byte), fetch, &Bytes::from(vec![0; len])));
        inodes.read_up_to(&file(byte), len as u64);
    }

    #[test]
    fn nothing_behind_the_largest_file_is_asked_for() {
        let end = i64::MAX as u64;
        for (offset, len, ahead) in [(end - 1, 1, false), (end - 5000, 4096, true)] {
            let (from, len) = around(offset, len, ahead);
            assert_eq!((from % PAGE, from + len as u64), (0, end));
            assert!(from <= offset);
        }
        assert_eq!(around(5000, 10, false), (4096, 4096));
        assert_eq!(around(5000, 10, true), (4096, AHEAD));
    }

    #[test]
    fn over_the_budget_the_bytes_of_the_longest_unused_go_whatever_is_being_changed() {
        let mut inodes = Inodes::default();
        inodes.change_begins(file(1), Changing::BYTES);
        reads(&mut inodes, 2, 1 << 20);
        let share = inodes.memory().for_clean();
        reads(&mut inodes, 3, share - 1024);
        inodes.keep_clean_budget(&file(3));
        assert!(!inodes.has_clean_bytes(&file(2)) && inodes.has_clean_bytes(&file(3)));
        reads(&mut inodes, 4, 1 << 20);
        inodes.keep_clean_budget(&file(4));
        assert!(!inodes.has_clean_bytes(&file(3)) && inodes.has_clean_bytes(&file(4)));
        inodes.change_ends(&file(1), Changing::BYTES);
        inodes.check();
    }
}
