//! The client of leasefs without I/O: everything that a mount knows and promises.
//!
//! [`ClientCore`] is told what happens ([`Event`]) and says what is to be done ([`Action`]). Requests of
//! the kernel, messages of the server, the passing of time come in; answers, requests, invalidations go
//! out. It reads no clock and waits for nobody, so a daemon and a simulator drive it alike.
//!
//! Imports run one way: memory, listing, [`call`] ← [`api`] ← run ← opens ← inode ← cache ← outside, session ← writeback ←
//! recall ← ops, life ← core.

pub mod api;
mod cache;
pub mod call;
mod core;
mod inode;
mod life;
mod listing;
mod locks;
mod memory;
mod opens;
mod ops;
mod outside;
mod recall;
mod run;
mod session;
mod writeback;

pub use api::{
    Action, CallId, ConnectionId, Effect, EffectId, Event, Notice, Noticed, Now, Signals,
    Unconnected, Undelivered, WhyNot,
};
pub use cache::{CacheStatus, HeldHere};
pub use call::{Answer, Asker, Call, NodeId};
pub use core::{ClientCore, Config};
pub use life::{Pause, refused_for_good};
pub use locks::LockStatus;
pub use memory::{Memory, MemoryUse};
pub use ops::Owner;
pub use recall::Fault;
pub use run::repeat_tables;
pub use session::{SessionStatus, Timeout, Waits};
pub use writeback::WriteBackStatus;
