//! The shipped lease cores against each other, without kernel, network or disk: a seeded simulation.
//!
//! One server ([`leasefs_lease::server::Core`] with the shipped table of accesses and the shipped answers
//! of changes, around a store in memory) and two to four clients ([`leasefs_lease::client`] with a small
//! copy of what the real daemon does around it), each beside a model of its kernel. Clocks run at
//! different rates within the drift bound; messages are slow and overtake each other across streams;
//! connections break; daemons stop, go on, die; the server crashes, also in the middle of a change and
//! with its host, ends in order, comes back. Clients buffer what they write under Write leases and flush
//! it when it is old, asked for or recalled; a crash of the host undoes what no commit covers.
//!
//! Checked in every run:
//!
//! - what any process saw was current at the server at some moment of its operation, and every change
//!   happened as often as its caller was told ([`judge`]);
//! - a buffered write counts from when it was kept, is never put over what others have stored later, and
//!   is in the store in the end or its writer was told; what a sync acknowledged survives ([`judge`]);
//! - the lease core's invariants, after every event;
//! - every operation of a client that is well ends within the bound of DESIGN §1.3, and no recall
//!   stays open, and no session alive, for longer than that;
//! - in the end nothing is left.
//!
//! A run is named by its seed. A failure prints what was wrong, the last events that concern the object,
//! and the command that shows it again:
//!
//! ```text
//! LEASEFS_SIM_SEED=17 LEASEFS_SIM_STEPS=20000 cargo test -p leasefs-tests --test simulation
//! ```

pub mod bug;
mod client;
mod clock;
mod cx;
pub mod judge;
mod kernel;
mod ledger;
pub mod model;
mod nemesis;
mod net;
mod procs;
mod server;
mod store;
mod world;

pub use bug::Bug;
pub use cx::Stats;
pub use world::{Failure, Plan, run};
