//! What is used of the simulation, in one place.

pub(super) use crate::sim::client::ClientEv;
pub(super) use crate::sim::cx::{Down, Ev, Line, Up};
pub(super) use crate::sim::host::FILES;
pub(super) use crate::sim::judge::Violation;
pub(super) use crate::sim::kernel::{Kernel, KernelEv};
pub(super) use crate::sim::model::{Item, MS, Nanos, Obj, S};
pub(super) use crate::sim::nemesis::Blow;
pub(super) use crate::sim::net::LinkId;
pub(super) use crate::sim::procs::Told;
pub(super) use crate::sim::server::ServerEv;
pub(super) use crate::sim::world::World;
