//! The lease state machines of both sides.
//!
//! Pure: no I/O, no threads, no async, no clock. Time is an argument ([`time::BootTime`]);
//! effects are values the caller polls. All states are `Clone + Eq + Hash + Debug`, so that a
//! model checker can explore them.

pub mod client;
pub mod locks;
pub mod planted;
pub mod server;
pub mod time;
