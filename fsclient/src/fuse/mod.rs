//! The FUSE skin: the only part of the client that names fuser.
//!
//! A request is answered on the dispatcher thread if the cache can, else a task on the runtime
//! takes it over together with fuser's reply. No dispatcher thread ever waits.

mod answer;
mod convert;
mod dispatch;
mod init;
mod inside;
mod kernel;
mod mount;
mod patience;

pub use init::configure;
pub use kernel::Kernel;
pub use mount::{Allowed, MountConfig, Mounted, mount, session_options};

/// Refuses a kernel that can't keep the caches' promises.
///
/// # Errors
/// With the reason.
pub fn check_kernel() -> std::io::Result<()> {
    init::Release::of_host()?.check()
}
