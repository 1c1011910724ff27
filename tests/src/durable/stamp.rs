//! Bytes that say who wrote them.
//!
//! A file is a row of cells, each a zero or a stamp: the run, the file, the writer, its call and
//! a checksum of these with the cell's place. A cell that is torn, misplaced or of another run
//! matches none that is expected.

use super::journal::FileId;

/// Bytes of a cell. Every offset and length is a multiple of it.
pub const CELL: usize = 32;
const MAGIC: u64 = 0x6c65_6173_6566_7331;

/// Who wrote a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The run's seed.
    pub seed: u64,
    /// The file it was meant for.
    pub file: FileId,
    /// The writer.
    pub writer: u16,
    /// The writer's call.
    pub seq: u64,
}

/// One cell's bytes.
pub type Cell = [u8; CELL];

impl Stamp {
    /// The cell at `place` bytes (from the file's begin, or the record's).
    pub fn cell(&self, place: u64) -> Cell {
        let who = (u64::from(self.file.0) << 16) | u64::from(self.writer);
        let run = self.seed ^ MAGIC;
        let sum = [who, self.seq, place].iter().fold(run, |sum, word| {
            (sum ^ word)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        });
        let mut cell = [0; CELL];
        let words = cell.chunks_exact_mut(8).zip([run, who, self.seq, sum]);
        words.for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        cell
    }

    /// What a write of `len` bytes at `place` carries.
    pub fn bytes(&self, place: u64, len: u64) -> Vec<u8> {
        let cells = (0..len / CELL as u64).map(|index| self.cell(place + index * CELL as u64));
        cells.flatten().collect()
    }

    /// Whose stamp a cell carries, its checksum unseen; `None` if it is of no writer of the run.
    pub fn claimed(seed: u64, cell: &Cell) -> Option<Self> {
        let mut words = cell
            .as_chunks::<8>()
            .0
            .iter()
            .copied()
            .map(u64::from_le_bytes);
        let (run, who, seq) = (words.next()?, words.next()?, words.next()?);
        let file = FileId(u32::try_from(who >> 16).ok()?);
        let writer = (who & 0xffff) as u16;
        (run == seed ^ MAGIC).then_some(Self {
            seed,
            file,
            writer,
            seq,
        })
    }
}

/// What a cell holds, in words.
pub fn describe(seed: u64, cell: &Cell) -> String {
    match Stamp::claimed(seed, cell) {
        _ if *cell == [0; CELL] => "zeros".to_owned(),
        Some(stamp) => format!(
            "a stamp of writer {} call {} file {}",
            stamp.writer, stamp.seq, stamp.file.0
        ),
        None => format!("{cell:02x?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        seed: 7,
        file: FileId(0x20003),
        writer: 2,
        seq: 9,
    };

    #[test]
    fn a_cell_says_who_wrote_it_and_differs_by_each_part_and_by_its_place() {
        let cell = STAMP.cell(64);
        assert_eq!(Stamp::claimed(7, &cell), Some(STAMP));
        assert_eq!(Stamp::claimed(8, &cell), None);
        let others = [
            Stamp { seed: 8, ..STAMP },
            Stamp { writer: 3, ..STAMP },
            Stamp { seq: 10, ..STAMP },
            Stamp {
                file: FileId(1),
                ..STAMP
            },
        ];
        assert!(others.iter().all(|other| other.cell(64) != cell));
        assert_ne!(STAMP.cell(96), cell);
        assert_eq!(STAMP.bytes(32, 64)[32..], cell);
    }
}
