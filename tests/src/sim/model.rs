//! What everything in the simulation speaks of: objects, the bytes of files, what can be observed.

use leasefs_protocol::{Attr, Handle, RawName, SessionId, Timestamp};
use std::fmt;

/// A moment of true time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// A microsecond.
pub const US: Nanos = 1_000;
/// A millisecond.
pub const MS: Nanos = 1_000_000;
/// A second.
pub const S: Nanos = 1_000_000_000;

/// Bytes that are written together, and all alike: a value of a file.
pub const CELL: u64 = 1024;
/// Who owns all files, and is everybody but those who have an id for what they do.
pub const OWNER: u32 = 500;
/// Cells of a page of the kernel's.
pub const CELLS: u32 = 4;
/// A page of the kernel's.
pub const PAGE: u64 = CELL * CELLS as u64;
/// Pages that files have as a rule.
pub const PAGES: u32 = 4;
/// Names a directory can have.
pub const NAMES: u8 = 4;

/// The value of a cell behind the end of its file.
pub const ABSENT: u64 = u64::MAX;
/// The value of bytes that were not written together.
pub const TORN: u64 = u64::MAX - 1;

/// A file or directory of the storage host; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Obj(pub u32);

impl Obj {
    /// Its handle.
    pub fn handle(self) -> Handle {
        Handle::new(&self.0.to_be_bytes()).expect("four bytes fit")
    }

    /// The object with this handle.
    pub fn of(handle: &Handle) -> Self {
        let bytes = handle.as_bytes().try_into().unwrap_or_default();
        Self(u32::from_be_bytes(bytes))
    }
}

impl fmt::Debug for Obj {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o{}", self.0)
    }
}

/// One thing that can be observed, and that changes as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A cell of a file; its value is the last one written.
    Cell(Obj, u32),
    /// Attributes; their value is the time of their last change.
    Attrs(Obj),
    /// What of them stays when the contents change.
    Rights(Obj),
    /// A name; its value is the number of the object, 0 for none.
    Name(Obj, u8),
    /// A directory's listing; its value is a digest.
    Listing(Obj),
}

impl Item {
    /// The object it is part of.
    pub fn object(self) -> Obj {
        match self {
            Self::Cell(object, _)
            | Self::Attrs(object)
            | Self::Rights(object)
            | Self::Name(object, _)
            | Self::Listing(object) => object,
        }
    }
}

/// A change as the judge knows it; unique in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeedId(pub u32);

/// The bytes of cells.
pub fn bytes_of(cells: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(cells.len() * CELL as usize);
    for cell in cells {
        bytes.extend_from_slice(&cell.to_le_bytes().repeat(CELL as usize / 8));
    }
    bytes
}

/// The cells of bytes.
pub fn cells_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(CELL as usize).map(cell_of).collect()
}

fn cell_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let first = words.first().copied().unwrap_or_default();
    let whole = bytes.len() == CELL as usize && rest.is_empty();
    match whole && words.iter().all(|word| *word == first) {
        true => u64::from_le_bytes(first),
        false => TORN,
    }
}

/// A name as it goes on the wire.
pub fn raw_name(name: u8) -> RawName {
    RawName(vec![b'a' + name])
}

/// The number of a name.
pub fn name_of(raw: &[u8]) -> u8 {
    raw.first().map_or(0, |byte| byte.wrapping_sub(b'a'))
}

/// A time of the server's clock.
pub fn timestamp(nanos: Nanos) -> Timestamp {
    Timestamp {
        seconds: (nanos / S) as i64,
        nanos: (nanos % S) as u32,
    }
}

/// The nanoseconds of a time.
pub fn nanos_of(time: Timestamp) -> Nanos {
    time.seconds as u64 * S + u64::from(time.nanos)
}

/// The value of attributes.
pub fn value_of(attr: &Attr) -> u64 {
    nanos_of(attr.ctime)
}

/// The value of what of attributes stays when the contents change.
pub fn rights_of(attr: &Attr) -> u64 {
    u64::from(attr.nlink) << 16 | u64::from(attr.mode)
}

/// A value that only this write has.
pub fn unique_value(life: u64, process: usize, number: u64) -> u64 {
    (life << 44) | ((process as u64 & 0xff) << 36) | (number & 0xf_ffff_ffff)
}

/// The process that wrote a value.
pub fn process_of(value: u64) -> usize {
    (value >> 36 & 0xff) as usize
}

/// The mount that wrote a value.
pub fn life_of(value: u64) -> u64 {
    value >> 44
}

/// The session numbered `number`.
pub fn session(number: u64) -> SessionId {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}

/// What a digest makes of a listing; the order of entries doesn't count.
pub fn digest<'a>(entries: impl Iterator<Item = (&'a [u8], u64)>) -> u64 {
    let mut all: Vec<(Vec<u8>, u64)> = entries.map(|(name, ino)| (name.to_vec(), ino)).collect();
    all.sort();
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for (name, ino) in all {
        for byte in name.into_iter().chain(ino.to_le_bytes()) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_read_back_and_mixed_bytes_are_torn() {
        let cells = [7, 0, unique_value(3, 2, 9)];
        let mut bytes = bytes_of(&cells);
        assert_eq!(cells_of(&bytes), cells);
        bytes[100] ^= 1;
        assert_eq!(cells_of(&bytes)[0], TORN);
        assert_eq!(cells_of(&bytes[..100]), [TORN]);
        assert_eq!((process_of(cells[2]), life_of(cells[2])), (2, 3));
    }
}
