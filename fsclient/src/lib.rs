//! The leasefs client: a FUSE mount whose caches never lie.
//!
//! What it knows and promises is [`leasefs_client`]'s, without any I/O. Here are its surroundings: the
//! kernel's requests ([`fuse`], the only part that names fuser), the server's words ([`session`]), the
//! clocks and the disk; [`driver`] brings what happens to the core and carries out what it wants done.

mod clock;
pub mod commands;
pub mod daemon;
pub mod driver;
mod faults;
pub mod fuse;
pub mod recovery;
pub mod session;
