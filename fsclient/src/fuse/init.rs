//! What is asked of the kernel when the mount begins.

use fuser::{InitFlags, KernelConfig};
use leasefs_protocol::limits::MAX_PAYLOAD;
use std::fmt;
use std::fs;
use std::io;

/// Oldest kernel whose FUSE keeps the promises the caches are built on
/// (`FUSE_DIRECT_IO_ALLOW_MMAP`, first in 6.6).
const OLDEST: Release = Release(6, 6);
/// First kernel with `FUSE_NOTIFY_INC_EPOCH`.
const EPOCHS: Release = Release(6, 16);

/// READs may be parked behind a recall while the kernel counts them as background
/// requests; RELEASE and write-back need room beside them.
const BACKGROUND: u16 = 1024;

/// Version of the running kernel: major, minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32, u32);

impl Release {
    /// Of this host.
    ///
    /// # Errors
    /// If the kernel's release can't be read or isn't a version.
    pub fn of_host() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::other(format!("kernel release {:?}", text.trim())))
    }

    /// As the kernel writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??))
    }

    /// Refuses a kernel that is too old.
    ///
    /// # Errors
    /// With the reason.
    pub fn check(self) -> io::Result<()> {
        if self >= OLDEST {
            return Ok(());
        }
        let Release(major, minor) = self;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "this is Linux {major}.{minor}; leasefs needs 6.6 or newer, whose FUSE allows shared \
                 mappings of files that are written past the page cache (FUSE_DIRECT_IO_ALLOW_MMAP)"
            ),
        ))
    }

    /// Whether the kernel can be told to look all names up again.
    pub fn has_epochs(self) -> bool {
        self >= EPOCHS
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Without these nothing is mounted.
const REQUIRED: InitFlags = InitFlags::FUSE_AUTO_INVAL_DATA
    .union(InitFlags::FUSE_ASYNC_READ)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_POSIX_LOCKS)
    .union(InitFlags::FUSE_FLOCK_LOCKS)
    .union(InitFlags::FUSE_BIG_WRITES);

/// Where names can be taken back they come along with listings whose entries are looked at.
const LISTINGS: InitFlags = InitFlags::FUSE_DO_READDIRPLUS.union(InitFlags::FUSE_READDIRPLUS_AUTO);

/// Sets up the connection.
///
/// With `ASYNC_DIO`, since without it an asynchronous read that ends short is gone on with at the place where it began
/// (`fuse_direct_IO` moves no position), and brings bytes twice.
///
/// Left off: `WRITEBACK_CACHE` (the kernel would trust its own size), `EXPLICIT_INVAL_DATA` (a
/// stopped daemon would leave stale pages readable), `CACHE_SYMLINKS` (no timeout bounds the kernel's copy), `ATOMIC_O_TRUNC` (the kernel would ask for `O_RDONLY|O_TRUNC`
/// before it looks whether the file is being executed).
///
/// # Errors
/// If the kernel lacks a capability, which it names.
pub(super) fn configure(config: &mut KernelConfig, posix_acl: bool) -> io::Result<()> {
    let mut wanted = REQUIRED;
    wanted.set(InitFlags::FUSE_POSIX_ACL, posix_acl);
    wanted.set(LISTINGS, Release::of_host()?.has_epochs());
    config.add_capabilities(wanted).map_err(|missing| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel's FUSE lacks {missing:?}"),
        )
    })?;
    let refused = |nearest: u32| io::Error::other(format!("FUSE takes {nearest} at most"));
    config.set_max_write(MAX_PAYLOAD as u32).map_err(refused)?;
    config
        .set_max_background(BACKGROUND)
        .and_then(|_| config.set_congestion_threshold(BACKGROUND / 4 * 3))
        .map_err(|nearest| refused(u32::from(nearest)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        assert_eq!(Release::parse("6.18.44-fc-v657\n"), Some(Release(6, 18)));
        assert_eq!(Release::parse("6.6-rc1"), Some(Release(6, 6)));
        assert_eq!(Release::parse("garbage"), None);
    }

    #[test]
    fn a_kernel_before_6_6_is_refused_with_the_reason() {
        let refusal = Release(6, 1).check().expect_err("too old").to_string();
        assert!(refusal.contains("6.1") && refusal.contains("6.6"));
        assert!(Release(6, 6).check().is_ok());
        assert!(Release(6, 15) < EPOCHS && Release(7, 0).has_epochs());
    }
}
