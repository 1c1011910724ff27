//! Whether what was acknowledged as durable survives crashes, and nothing else appears.
//!
//! Writers ([`writer`]) work in a mount and keep a [`journal`] outside it: each call's beginning
//! and its outcome. All they write carries a [`stamp`]. After a crash [`verify`] compares what is
//! there with what the journals allow ([`model`]): every acknowledged byte, and no byte that
//! nobody wrote. [`arena`] brings the crashes about, on real daemons.
//!
//! What is pure (all but [`writer`] and [`arena`]) is tested on planted losses and foreign bytes.

pub mod arena;
mod crew;
pub mod journal;
mod log;
pub mod model;
mod register;
pub mod snapshot;
pub mod stamp;
pub mod verify;
pub mod writer;

pub use crew::program;
pub use register::Floor;

#[cfg(test)]
mod tests;
