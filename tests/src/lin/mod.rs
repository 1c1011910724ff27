//! Histories and the linearizability checker.
//!
//! A history is what the threads of one machine did to *one* object, stamped
//! with `CLOCK_MONOTONIC` before the call and after its return. It is
//! linearizable if every operation can be given one moment between its two
//! stamps such that the operations, in the order of these moments, are what a
//! single sequential object ([`Spec`]) would have answered. Objects are checked
//! one by one: a set of histories is linearizable iff each of them is.
//!
//! An operation without an answer (a timeout, a lost connection) has no end: it
//! may have happened at any later time, or never.

mod explain;
mod history;
mod search;
pub mod specs;
#[cfg(test)]
mod tests;

pub use explain::{Explanation, explain};
pub use history::{Entry, Who};
pub use search::{Verdict, check, check_from};

use std::fmt::Debug;
use std::hash::Hash;

/// A sequential object: what an operation may answer in which state.
pub trait Spec {
    /// All of the object that operations can see or change.
    type State: Clone + Eq + Hash + Debug;
    /// One operation together with the answer it got (if it got one).
    type Op: Clone;

    /// The state before the first operation.
    fn initial(&self) -> Self::State;

    /// The state after `op` took effect in `state`, or `None` when it could not
    /// have answered in this state what it did answer.
    fn step(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;

    /// True when `op`, having answered what it did, changes the object in no
    /// state at all. It may narrow down what is known of the state.
    fn is_read(&self, op: &Self::Op) -> bool;

    /// False for what stands in the history beside the operation it is part of.
    fn is_whole(&self, _op: &Self::Op) -> bool {
        true
    }
}
