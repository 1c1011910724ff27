//! The FUSE skin: the only part of the client that names fuser.
//!
//! Each request becomes a [`Call`](leasefs_client::Call) that waits with fuser's reply for its answer. No
//! dispatcher thread ever waits.

mod answer;
mod convert;
mod dispatch;
mod init;
mod inside;
mod kernel;
mod mount;

pub use answer::Waiter;
pub use init::Release;
pub use kernel::Kernel;
pub use mount::{Allowed, Driver, MountConfig, Mounted, mount};

/// Refuses a kernel that can't keep the caches' promises.
///
/// # Errors
/// With the reason.
pub fn check_kernel() -> std::io::Result<()> {
    init::Release::of_host()?.check()
}
