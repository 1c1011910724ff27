//! The shipped cores of both sides joined, model checked: every order of every step of a small world.
//!
//! The world is that of the simulation ([`crate::sim`]): the shipped `ClientCore` and the shipped parts of
//! the server, each core in its model of a host. Here nothing is left to chance. Two clients have one file
//! open; the process on each does a few operations ([`Script`]); every order in which messages, requests
//! and the kernel's doings can follow each other is run, and every place in which something may go wrong
//! is tried ([`Faults`]).
//!
//! **How.** A core can't be copied, so a state is the list of choices that led to it, and another branch is
//! run again from the start. A client's state is a function of what it was told, in its order; the server's is
//! read. So the fingerprint is the clients' histories, the server's state, what is under way, the time, and
//! what the order of steps of different hosts means for what processes may see. Nothing of a client's core has
//! to be read for that, and nothing can be forgotten in it.
//! Messages keep their order on a stream and have none across streams. Of steps of different hosts whose
//! order nobody can tell one order is run (sleep sets). Time stands still while something can happen, but
//! where [`Faults::waits`] lets it pass.
//!
//! **Checked**, in every state: what the simulation judges (reads are linearizable; nothing that was
//! synced is lost; nothing that was written is lost without a report or a copy in the recovery folder;
//! nothing old is put over something new), that no kernel believes what isn't so, that who approves holds
//! nothing of what it approves, the lease core's invariants, the assertions of both cores. At each
//! end: that every operation has ended, and every byte is stored or was told of.
//!
//! A violation is shown by the shortest run that leads to it, where that is found among the first few
//! thousand states.

mod check;
mod event;
mod parts;
mod plan;
mod search;
mod state;

pub use plan::{Faults, Grain, Op, Plan, Script};
pub use search::{Explored, Found, explore};
