//! An append log whose final content is known: the order of the appends is read
//! off it, so that its state is just how many of them have happened.

use crate::lin::Spec;
use std::collections::HashMap;
use std::fmt;

/// What identifies a record; unique in the run.
pub type RecordId = u64;

/// A log of equally long records, first record first.
#[derive(Debug, Clone, Default)]
pub struct Log {
    place: HashMap<RecordId, usize>,
    at_first: usize,
}

/// An operation on a [`Log`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogOp {
    /// Adds a record at the end.
    Append(RecordId),
    /// Found this many records (which ones is checked against the final content).
    Length(usize),
    /// Found this many records in a part that holds at most `limit` of them.
    LengthUpTo {
        /// Records found.
        found: usize,
        /// Records the part can hold.
        limit: usize,
    },
}

impl Log {
    /// The log that ends as `records`, the first `at_first` of which were there
    /// before the history began.
    pub fn ending_as(records: &[RecordId], at_first: usize) -> Self {
        let place = records
            .iter()
            .enumerate()
            .map(|(index, id)| (*id, index))
            .collect();
        Self { place, at_first }
    }
}

impl Spec for Log {
    type State = usize;
    type Op = LogOp;

    fn initial(&self) -> usize {
        self.at_first
    }

    fn step(&self, state: &usize, op: &LogOp) -> Option<usize> {
        let fits = match op {
            LogOp::Append(id) => return (self.place.get(id) == Some(state)).then_some(state + 1),
            LogOp::Length(found) => found == state,
            LogOp::LengthUpTo { found, limit } => found == state.min(limit),
        };
        fits.then_some(*state)
    }

    fn is_read(&self, op: &LogOp) -> bool {
        !matches!(op, LogOp::Append(_))
    }
}

impl fmt::Display for LogOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append(id) => write!(f, "append record {id:#x}"),
            Self::Length(found) => write!(f, "length -> {found} records"),
            Self::LengthUpTo { found, limit } => {
                write!(f, "length of the first {limit} records -> {found}")
            }
        }
    }
}
