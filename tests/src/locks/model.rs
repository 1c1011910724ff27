//! Which locks of ranges a file has, by what was asked and granted. Of `flock` it knows nothing: who
//! asks which locks there are is told of ranges alone.

use super::sys::{Range, Type, Whence};
use std::collections::BTreeMap;

/// Bytes that are told apart; the last one stands for all that follow.
pub const CELLS: usize = 48;
/// The size of the file.
pub const SIZE: i64 = 16;

/// Who owns a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A process: its number.
    Process(usize),
    /// An open file description.
    Description(usize),
}

/// Bytes of a file, as the first and the last of the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cells {
    first: usize,
    last: usize,
}

impl Cells {
    /// Those of a range, where the descriptor stands at `position`; none if there is no such range.
    ///
    /// # Panics
    /// If it ends at a byte that is not told apart.
    pub fn of(range: Range, position: i64) -> Option<Self> {
        let base = match range.whence {
            Whence::Set => 0,
            Whence::Cur => position,
            Whence::End => SIZE,
        };
        let start = base + range.start;
        let (first, end) = if range.len < 0 {
            (start + range.len, Some(start))
        } else {
            (start, (range.len > 0).then_some(start + range.len))
        };
        let first = usize::try_from(first).ok().filter(|_| start >= 0)?;
        let last = end.map_or(CELLS - 1, |end| end as usize - 1);
        assert!(first < CELLS - 1 && (end.is_none() || last < CELLS - 1));
        Some(Self { first, last })
    }
}

/// Bytes that one owner has locked in one way, from and up to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Whose they are.
    pub owner: Owner,
    /// How they are locked.
    pub what: Type,
    /// The first one.
    pub start: i64,
    /// How many; 0 if all that follow.
    pub len: i64,
}

type Row = [Option<Type>; CELLS];

/// The locks of one file.
#[derive(Debug, Default)]
pub struct Locks {
    rows: BTreeMap<Owner, Row>,
}

impl Locks {
    /// What was granted.
    pub fn set(&mut self, owner: Owner, what: Type, cells: Cells) {
        let row = self.rows.entry(owner).or_insert([None; CELLS]);
        let held = (what != Type::Unlock).then_some(what);
        row[cells.first..=cells.last].fill(held);
    }

    /// An owner has closed the file.
    pub fn forget(&mut self, owner: Owner) {
        self.rows.remove(&owner);
    }

    /// What others have locked there that `owner` can't have this beside.
    pub fn in_the_way(&self, owner: Owner, what: Type, cells: Cells) -> Vec<Run> {
        let others = self.rows.iter().filter(|(other, _)| **other != owner);
        let runs = others.flat_map(|(other, row)| runs_of(*other, row));
        let conflicts = |run: &Run| {
            let last = if run.len == 0 {
                CELLS
            } else {
                (run.start + run.len) as usize
            };
            let apart = last <= cells.first || run.start as usize > cells.last;
            !apart && (run.what == Type::Write || what == Type::Write)
        };
        let asked = what != Type::Unlock;
        runs.filter(|run| asked && conflicts(run)).collect()
    }
}

fn runs_of(owner: Owner, row: &Row) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut before = None;
    for (cell, held) in row.iter().enumerate() {
        match (*held, runs.last_mut()) {
            (Some(_), Some(run)) if *held == before => run.len += 1,
            (Some(what), _) => runs.push(Run {
                owner,
                what,
                start: cell as i64,
                len: 1,
            }),
            (None, _) => {}
        }
        before = *held;
    }
    if let (Some(_), Some(run)) = (before, runs.last_mut()) {
        run.len = 0;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(start: i64, len: i64) -> Cells {
        let range = Range {
            whence: Whence::Set,
            start,
            len,
        };
        Cells::of(range, 0).expect("a range")
    }

    #[test]
    fn neighbours_are_one_and_what_is_unlocked_between_makes_two() {
        let (mut locks, one) = (Locks::default(), Owner::Process(0));
        locks.set(one, Type::Read, cells(0, 4));
        locks.set(one, Type::Read, cells(4, 0));
        let starts = |locks: &Locks| {
            let runs = locks.in_the_way(Owner::Process(1), Type::Write, cells(0, 0));
            runs.iter()
                .map(|run| (run.start, run.len))
                .collect::<Vec<_>>()
        };
        assert_eq!(starts(&locks), [(0, 0)]);
        locks.set(one, Type::Unlock, cells(2, 3));
        assert_eq!(starts(&locks), [(0, 2), (5, 0)]);
        locks.forget(one);
        assert_eq!(starts(&locks), []);
    }

    #[test]
    fn readers_are_in_the_way_of_a_writer_alone() {
        let mut locks = Locks::default();
        locks.set(Owner::Process(0), Type::Read, cells(3, 2));
        let other = Owner::Description(0);
        assert!(locks.in_the_way(other, Type::Read, cells(0, 0)).is_empty());
        assert!(locks.in_the_way(other, Type::Write, cells(0, 3)).is_empty());
        assert_eq!(locks.in_the_way(other, Type::Write, cells(0, 4)).len(), 1);
        assert!(
            locks
                .in_the_way(Owner::Process(0), Type::Write, cells(0, 0))
                .is_empty()
        );
    }

    #[test]
    fn ranges_are_counted_from_where_they_say() {
        let of = |whence, start, len| Cells::of(Range { whence, start, len }, 5);
        assert_eq!(of(Whence::Cur, -2, 4), of(Whence::Set, 3, 4));
        assert_eq!(of(Whence::End, 0, -4), of(Whence::Set, 12, 4));
        assert_eq!(of(Whence::Cur, -6, 4), None);
        assert_eq!(of(Whence::Set, 2, -3), None);
    }
}
