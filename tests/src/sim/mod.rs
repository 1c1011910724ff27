//! The shipped cores of both sides against each other, without kernel, network or disk: a seeded simulation.
//!
//! One server ([`leasefs_lease::server::Core`] with the shipped table of accesses, the shipped answers of
//! changes, intents and interrupted changes, around a host in memory) and two to four clients
//! ([`leasefs_client::ClientCore`], whole), each beside a model of its kernel, speak the protocol's own
//! messages. Clocks run at different rates within the drift bound, and one of each host stands still while
//! it sleeps; messages are slow and overtake each other across streams; connections break; daemons stop,
//! go on, die; the server crashes, also in the middle of a change and with its host, ends in order, comes
//! back.
//!
//! Checked in every run:
//!
//! - what any process saw was current at the server at some moment of its operation, and every change
//!   happened as often as its caller was told ([`judge`]);
//! - a write that is kept at its client, or stored into a mapped page, counts from then, is never put over
//!   what others have stored later, and is in the store in the end or its writer was told; what a sync
//!   acknowledged survives (`ledger`);
//! - no kernel believes what another mount has changed;
//! - in every fourth run processes lock files: who is told that he has a lock has it, and nobody else one that stands
//!   against it; what was written under a lock that another has by now never takes effect; nobody is told of a loss
//!   where there is none, or waits for what nobody holds ([`judge`]);
//! - the lease core's invariants;
//! - every operation of a client that is well ends within the bound of docs/design.md §1, and no recall
//!   stays open, and no session alive, for longer than that;
//! - in the end nothing is left.
//!
//! A run is named by its seed. A failure prints what was wrong, the last events that concern the object,
//! and the command that shows it again:
//!
//! ```text
//! LEASEFS_SIM_SEED=17 LEASEFS_SIM_STEPS=20000 cargo test -p leasefs-tests --test simulation
//! ```

pub(crate) mod client;
mod clock;
pub(crate) mod cx;
pub(crate) mod host;
pub mod judge;
pub(crate) mod kernel;
mod ledger;
pub mod model;
pub(crate) mod nemesis;
pub(crate) mod net;
pub(crate) mod procs;
pub(crate) mod server;
pub(crate) mod world;

pub use cx::Stats;
pub use nemesis::KINDS;
pub use world::{Failure, Plan, run};
