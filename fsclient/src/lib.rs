//! The leasefs client: a FUSE mount whose caches never lie.
//!
//! Data runs one way: kernel request → [`fuse`] (the only part that names fuser) → [`ops`]
//! (what it means) → caches and leases → [`rpc`] → server.

pub mod cache;
pub mod commands;
pub mod daemon;
pub mod fuse;
pub mod nodes;
pub mod ops;
pub mod recall;
pub mod recovery;
pub mod rpc;
pub mod uncommitted;
pub mod writeback;
