//! Real daemons and real mounts for the suites in `tests/tests/`.
//!
//! A [`World`] is one server, its clients' mounts and one temporary folder with all
//! they write. Dropping it ends everything, also after a panic, and fails the test
//! if a daemon does not end or leaves a mount behind. Every wait is bounded and
//! says what it waited for; a failing test prints the tails of the daemons' logs.

mod binaries;
mod caller;
mod daemon;
mod mount;
mod power;
mod relay;
mod sandbox;
mod server;
mod storage;
mod wait;
mod world;

pub use binaries::Binaries;
pub use caller::Caller;
pub use daemon::Daemon;
pub use mount::{Mount, MountOptions, READ_KINDS, Requests, Writes, requests};
pub use power::StateOn;
pub use relay::{Relay, Slow};
pub use sandbox::{Sandbox, mounts_below};
pub use server::{Server, ServerOptions};
pub use storage::Storage;
pub use wait::{Background, eventually, in_background, within};
pub use world::{World, WorldOptions};

/// Fails with what is missing when this machine can't mount: a suite that needs
/// FUSE is never skipped.
///
/// # Panics
/// As said.
pub fn require_fuse() {
    let open = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if let Err(error) = open {
        panic!(
            "this suite mounts file systems and needs /dev/fuse ({error}): load the fuse module, \
             or run as a user who may open it"
        );
    }
}
