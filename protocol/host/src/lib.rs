//! What both daemons need of the host they run on: its clocks, files that survive it, its mount
//! table, where users keep state, sockets on which commands ask a daemon, and pages in which people look them up.
//!
//! Nothing here knows what a lease or a message means.

pub mod boot;
pub mod clock;
pub mod control;
pub mod files;
pub mod manual;
pub mod mounts;
pub mod output;
pub mod paths;
pub mod private;
pub mod random;
#[cfg(test)]
mod scratch;
