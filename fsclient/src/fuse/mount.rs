//! Mounting, and what holds a mount together until it ends.

use super::answer::Waiter;
use super::dispatch::Dispatch;
use super::init::Release;
use super::kernel::Kernel;
use crate::driver;
use fuser::{Config, MountOption, Session, SessionACL};
use leasefs_protocol::control::IdentityPolicy;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use tokio::sync::watch;

/// The kernel reads ahead this much of a file at least, and at most, where the daemon may say so.
const READ_AHEAD_KIB: (u64, u64) = (1024, 4096);
/// Of a link of 1 Gbit/s, in a microsecond.
const BYTES_PER_US: u64 = 125;

/// What answers the kernel.
pub type Driver = driver::Driver<Waiter>;

/// How a mount is made.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// What is mounted, for people and without commas: `HOST:/SUBDIR`.
    pub source: String,
    /// Where.
    pub mountpoint: PathBuf,
    /// No changes.
    pub read_only: bool,
    /// The server's policy: decides whether the kernel checks permissions.
    pub identity: IdentityPolicy,
    /// What the files may do to this machine.
    pub allow: Allowed,
}

/// What files of a mount may do to this machine beyond being read and written: be run with their user's rights, and no
/// more unless root asks for it. Whoever may write to the export, and the server itself, could use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// Set-user-id and set-group-id bits and file capabilities give a program other rights.
    pub suid: bool,
    /// Device nodes lead to this machine's devices.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
}

impl Allowed {
    /// Whether it is anything that root alone may allow.
    pub fn anything(self) -> bool {
        self.suid || self.dev
    }
}

/// A mount that the kernel knows. Dropping it doesn't end it.
#[derive(Debug)]
pub struct Mounted {
    mountpoint: PathBuf,
    kernel: Arc<Kernel>,
    ended: watch::Receiver<bool>,
}

/// Mounts and begins to answer requests.
///
/// `kernel` is connected on the way: before that, invalidations have nothing to drop.
///
/// # Errors
/// If the kernel is too old or refuses the mount; the reason is for people.
pub fn mount(
    config: &MountConfig,
    driver: Arc<Driver>,
    kernel: Arc<Kernel>,
) -> io::Result<Mounted> {
    Release::of_host()?.check()?;
    let mountpoint = fs::canonicalize(&config.mountpoint)?;
    // Whoever may change a directory above could have root mount where he likes.
    if mountpoint != config.mountpoint {
        let changed = "it is another directory by now: something above it has been replaced";
        return Err(io::Error::other(changed));
    }
    let (end, ended) = watch::channel(false);
    let posix_acl = checks_permissions(config.identity);
    let round_trip = driver.status().rtt_us.unwrap_or_default();
    let dispatch = Dispatch::new(Arc::clone(&driver), posix_acl, end);
    let session = Session::new(dispatch, &mountpoint, &session_options(config))?;
    let descriptor = session.as_fd().try_clone_to_owned()?;
    kernel.connect(session.notifier(), descriptor, &mountpoint)?;
    driver.kernel_connected();
    let background = session.spawn()?;
    // Its drop would unmount whatever is mounted there by then, ours or not: fuser can't tell
    // (it takes a dead connection for a live mount). Unmounting is `Mounted::unmount`.
    std::mem::forget(background);
    read_ahead(&kernel, round_trip);
    Ok(Mounted {
        mountpoint,
        kernel,
        ended,
    })
}

impl Mounted {
    /// Takes the mount out of the file tree. With `lazy`, open files live on.
    ///
    /// # Errors
    /// `EBUSY` if it is in use (and not `lazy`).
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        if *self.ended.borrow() {
            return Ok(());
        }
        self.kernel.unmount(lazy)
    }

    /// Ends the connection: everything the kernel waits for fails, nothing stays stuck.
    ///
    /// # Errors
    /// If the control file system isn't mounted or may not be written, nor may anything be unmounted by force; the end of the process
    /// has the same effect.
    pub fn abort(&self) -> io::Result<()> {
        self.kernel.abort()
    }

    /// Waits until the kernel has ended the connection (unmounted, or aborted).
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the dispatcher is gone, which is the end as well.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

/// With ids of its own (no squash) the kernel checks permissions from cached attributes.
fn checks_permissions(identity: IdentityPolicy) -> bool {
    identity != IdentityPolicy::Squash
}

/// How fuser is asked for such a mount.
fn session_options(config: &MountConfig) -> Config {
    let root = rustix::process::geteuid().is_root();
    let mut options = Config::default();
    options.mount_options = vec![
        MountOption::FSName(config.source.clone()),
        // fuser passes its own `Subtype` to the set-user-id helper alone.
        MountOption::CUSTOM("subtype=leasefs".into()),
    ];
    if checks_permissions(config.identity) {
        options.mount_options.push(MountOption::DefaultPermissions);
    }
    if root {
        options.acl = SessionACL::All;
    }
    options.mount_options.push(match config.allow.suid {
        true => MountOption::Suid,
        false => MountOption::NoSuid,
    });
    options.mount_options.push(match config.allow.dev {
        true => MountOption::Dev,
        false => MountOption::NoDev,
    });
    if !config.allow.exec {
        options.mount_options.push(MountOption::NoExec);
    }
    if config.read_only {
        options.mount_options.push(MountOption::RO);
    }
    options.n_threads = Some(dispatchers());
    options
}

fn dispatchers() -> usize {
    thread::available_parallelism()
        .map_or(2, NonZero::get)
        .max(2)
}

/// As much as such a link has under way. (On a near one more would only make each fault of a mapping bring in more.)
fn read_ahead_kib(round_trip_us: u64) -> u64 {
    let (least, most) = READ_AHEAD_KIB;
    let under_way = round_trip_us.saturating_mul(BYTES_PER_US) / 1024;
    under_way.next_multiple_of(least).clamp(least, most)
}

/// Only root may; without it the kernel's default stands.
fn read_ahead(kernel: &Kernel, round_trip_us: u64) {
    let Some((major, minor)) = kernel.device() else {
        return;
    };
    let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let kib = read_ahead_kib(round_trip_us).to_string();
    if let Err(error) = fs::write(&file, kib) {
        tracing::debug!(%file, %error, "read-ahead stays at the kernel's default");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reads_as_far_ahead_as_a_far_link_holds_within_bounds() {
        assert_eq!(read_ahead_kib(0), 1024);
        assert_eq!(read_ahead_kib(100), 1024);
        assert_eq!(read_ahead_kib(20_000), 3072);
        assert_eq!(read_ahead_kib(u64::MAX), 4096);
    }
}
