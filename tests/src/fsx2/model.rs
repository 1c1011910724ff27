//! What the file should contain.

use std::ops::Range;

/// The content of a file in memory.
#[derive(Debug, Default)]
pub(super) struct Model {
    bytes: Vec<u8>,
}

impl Model {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What a read of `len` bytes at `offset` returns.
    pub(super) fn read(&self, offset: usize, len: usize) -> &[u8] {
        &self.bytes[self.inside(offset, len)]
    }

    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        self.extend(offset + data.len());
        self.bytes[offset..offset + data.len()].copy_from_slice(data);
    }

    pub(super) fn truncate(&mut self, size: usize) {
        self.bytes.resize(size, 0);
    }

    /// Makes the file at least `size` bytes long.
    pub(super) fn extend(&mut self, size: usize) {
        self.bytes.resize(self.bytes.len().max(size), 0);
    }

    /// Zeroes what lies inside the file.
    pub(super) fn zero(&mut self, offset: usize, len: usize) {
        let inside = self.inside(offset, len);
        self.bytes[inside].fill(0);
    }

    fn inside(&self, offset: usize, len: usize) -> Range<usize> {
        let from = offset.min(self.bytes.len());
        from..(from + len).min(self.bytes.len())
    }
}
