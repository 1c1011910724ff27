//! What of a file is locked, apart from the rest.

use crate::sim::model::CELL;
use leasefs_protocol::LockRange;

/// Parts of a file that are locked apart: its first cells, and all the rest.
pub const ZONES: u32 = 16;

/// Some zones of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zones(u16);

impl Zones {
    /// All of them.
    pub const ALL: Self = Self(u16::MAX);

    /// From the first to the last.
    pub fn between(first: u32, last: u32) -> Self {
        let bits = (first..=last.min(ZONES - 1)).map(|zone| 1 << zone);
        Self(bits.fold(0, |all, bit: u16| all | bit))
    }

    /// Those of cells.
    pub fn of_cells(first: u32, count: usize) -> Self {
        let last = first.saturating_add(count as u32).saturating_sub(1);
        Self::between(first.min(ZONES - 1), last)
    }

    /// Those of bytes.
    pub fn of(range: LockRange) -> Self {
        let zone = |byte: u64| (byte / CELL).min(u64::from(ZONES) - 1) as u32;
        Self::between(zone(range.first()), zone(range.last()))
    }

    /// The bytes of zones.
    pub fn bytes(first: u32, last: u32) -> LockRange {
        let end = match last + 1 >= ZONES {
            true => LockRange::END,
            false => u64::from(last + 1) * CELL - 1,
        };
        LockRange::new(u64::from(first) * CELL, end).unwrap_or(LockRange::ALL)
    }

    /// The first and the last.
    pub fn ends(self) -> Option<(u32, u32)> {
        let last = u16::BITS.checked_sub(self.0.leading_zeros() + 1)?;
        Some((self.0.trailing_zeros(), last))
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of either.
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that the other hasn't.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of the other are among them.
    pub fn contains(self, other: Self) -> bool {
        other.without(self).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_those_of_their_bytes() {
        assert_eq!(Zones::of(Zones::bytes(2, 5)), Zones::between(2, 5));
        assert_eq!(Zones::of(LockRange::ALL), Zones::ALL);
        assert_eq!(Zones::of_cells(40, 3), Zones::between(15, 15));
        assert_eq!(Zones::between(2, 5).ends(), Some((2, 5)));
        assert_eq!(Zones::default().ends(), None);
    }
}
