//! Locks on several mounts of one export: `fcntl`'s, those of open file descriptions and `flock`'s.
//!
//! All is done by processes of their own ([`Locker`]), since a `fcntl` lock belongs to a process and
//! what waits must be seen waiting. A [`Stage`] is where they do it: several mounts, or, with
//! `LEASEFS_LOCKS_LOCAL` set, one directory of the local file system under several names, which shows that what
//! is asked of mounts is what Linux does; or, with `LEASEFS_LOCKS_ONE_MOUNT`, one mount under several names.
//!
//! - [`model`]: which locks there are, by what was asked; pure
//! - [`random`]: random operations, here and on the local file system
//! - [`ledger`]: what processes that increment one counter may say
//! - [`crew`]: these processes, and what befalls them
//!
//! `LEASEFS_LOCKS_SEQUENCES`, `LEASEFS_LOCKS_INCREMENTS` and `LEASEFS_LOCKS_FAULTS` make runs longer;
//! `LEASEFS_SEED` repeats the choices of one.

mod counting;
pub mod crew;
pub mod ledger;
mod locker;
pub mod model;
pub mod process;
mod program;
pub mod random;
mod stage;
pub mod sys;

pub use locker::{Answer, Locker, SOON, now};
pub use program::Program;
pub use stage::{Stage, count_from_env};
pub use sys::{Kind, Range, Type, Whence};
