//! One live screen of tables, for the `top` of both sides: what stands in them is the caller's.
//!
//! A look is taken once an interval; what is shown of it is a pure function of it and the one before ([`Sample`]).

mod draw;
mod lines;
mod live;
mod view;

pub use live::{TopArgs, run};
pub use view::{Cell, Column, Sample, Table, View};
