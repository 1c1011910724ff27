//! A register: part of a page that is written and read as one value.

use crate::lin::Spec;
use std::fmt;

/// Holds the last value written; 0 at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Register;

/// An operation on a [`Register`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterOp {
    /// Puts a value (unique in the run) there.
    Write(u64),
    /// Found this value.
    Read(u64),
}

impl Spec for Register {
    type State = u64;
    type Op = RegisterOp;

    fn initial(&self) -> u64 {
        0
    }

    fn step(&self, state: &u64, op: &RegisterOp) -> Option<u64> {
        match *op {
            RegisterOp::Write(value) => Some(value),
            RegisterOp::Read(value) => (value == *state).then_some(value),
        }
    }

    fn is_read(&self, op: &RegisterOp) -> bool {
        matches!(op, RegisterOp::Read(_))
    }
}

impl fmt::Display for RegisterOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(value) => write!(f, "write {value}"),
            Self::Read(value) => write!(f, "read -> {value}"),
        }
    }
}
