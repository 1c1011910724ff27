//! Reading back what is kept.

use super::error::{RecoveryError, at};
use super::item::ByteRange;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Largest piece.
const PIECE: u64 = 1 << 20;

/// The kept bytes of an item, in order: offset in the file and at most 1 MiB. Where pieces overlap a
/// later one covers an earlier one.
#[derive(Debug)]
pub struct Pieces {
    pub(super) path: PathBuf,
    pub(super) data: File,
    pub(super) ranges: std::vec::IntoIter<ByteRange>,
    /// What is left of the range that is being read.
    pub(super) rest: ByteRange,
}

impl Iterator for Pieces {
    type Item = Result<(u64, Vec<u8>), RecoveryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.length == 0 {
            self.rest = self.ranges.next()?;
        }
        let (offset, length) = (self.rest.offset, self.rest.length.min(PIECE));
        self.rest.offset += length;
        self.rest.length -= length;
        let mut piece = vec![0; length as usize];
        let read = self.data.read_exact(&mut piece);
        Some(read.map(|()| (offset, piece)).map_err(at(&self.path)))
    }
}
