//! One server per object: the lock that an export holds on the host.
//!
//! A server holds an exclusive `flock` on the directory it serves and a shared one on each
//! enclosing directory of the same file system. So a second server on the same directory, on an
//! enclosing or on an enclosed one meets a lock that it can't have. The kernel binds the locks to
//! the inodes, whatever path or bind mount leads to them, and ends them with the process.
//!
//! Enclosing directories are found in the widest mount of the file system that shows the export
//! ([`inner_path`]), so bind mounts don't hide them. Two limits remain: an enclosing directory that
//! the server may not read can't be locked (a server that isn't root), and servers in different
//! mount namespaces see only the mounts of their own.

use super::error::StateError;
use leasefs_host::mounts::{self, Device, Mount};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// The locks of an export; ended when dropped.
#[derive(Debug)]
pub struct ExportLock(#[allow(dead_code, reason = "held, not used")] Vec<OwnedFd>);

impl ExportLock {
    /// Locks a directory for this process.
    ///
    /// # Errors
    /// [`StateError::Served`] if another server serves it, or what encloses it, or a part of it.
    pub fn take(export: &Path) -> Result<Self, StateError> {
        let failed = StateError::file(export);
        let own = open_dir(export).map_err(|e| failed(e.into()))?;
        let served = |what: String| StateError::Served {
            export: export.to_owned(),
            what,
        };
        if !lock(&own, FlockOperation::NonBlockingLockExclusive) {
            return Err(served("it, or a directory in it".to_owned()));
        }
        let mut locks = vec![own];
        for (path, dir) in enclosing(export) {
            if !lock(&dir, FlockOperation::NonBlockingLockShared) {
                return Err(served(format!("{}, which encloses it", path.display())));
            }
            locks.push(dir);
        }
        Ok(Self(locks))
    }
}

/// Whether the lock could be had; a file system without locks has no second server to refuse.
fn lock(dir: &OwnedFd, operation: FlockOperation) -> bool {
    match rustix::fs::flock(dir, operation) {
        Err(Errno::WOULDBLOCK) => false,
        Err(error) => {
            tracing::warn!(%error, "a directory can't be locked against a second server");
            true
        }
        Ok(()) => true,
    }
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// The directories of the same file system that enclose the export, as far as they can be opened.
fn enclosing(export: &Path) -> Vec<(PathBuf, OwnedFd)> {
    let paths = enclosing_paths(export).unwrap_or_else(|error| {
        tracing::warn!(%error, "enclosing directories can't be locked against a second server");
        Vec::new()
    });
    paths
        .into_iter()
        .filter_map(|path| match open_dir(&path) {
            Ok(dir) => Some((path, dir)),
            Err(error) => {
                tracing::info!(path = %path.display(), %error, "an enclosing directory can't be locked against a second server");
                None
            }
        })
        .collect()
}

fn enclosing_paths(export: &Path) -> io::Result<Vec<PathBuf>> {
    let export = export.canonicalize()?;
    let mounts = mounts::table()?;
    let mount = mount_id(&export)?;
    let Some((device, inner)) = inner_path(&mounts, mount, &export) else {
        return Ok(Vec::new());
    };
    let mut shown: Vec<(&Mount, PathBuf)> = mounts
        .iter()
        .filter(|mount| mount.device == device)
        .filter_map(|mount| {
            let below = inner.strip_prefix(&mount.root).ok()?;
            Some((mount, mount.point.join(below)))
        })
        // What else is mounted there may hide it.
        .filter(|(_, path)| same_object(path, &export))
        .collect();
    shown.sort_by_key(|(mount, _)| mount.root.components().count());
    let widest = shown.into_iter().next();
    Ok(widest.map_or_else(Vec::new, |(mount, path)| {
        path.ancestors()
            .skip(1)
            .take_while(|path| path.starts_with(&mount.point))
            .map(Path::to_owned)
            .collect()
    }))
}

pub(super) fn mount_id(path: &Path) -> io::Result<u64> {
    let dir = open_dir(path)?;
    let stat = rustix::fs::statx(
        dir.as_fd(),
        c"",
        AtFlags::EMPTY_PATH,
        StatxFlags::INO | StatxFlags::MNT_ID,
    )?;
    Ok(stat.stx_mnt_id)
}

fn same_object(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let object = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    object(a).is_some_and(|found| Some(found) == object(b))
}

/// The device of the export's file system and the export's path within it.
fn inner_path(mounts: &[Mount], id: u64, export: &Path) -> Option<(Device, PathBuf)> {
    let mount = mounts::with_id(mounts, id)?;
    let below = export.strip_prefix(&mount.point).ok()?;
    let inner: PathBuf = mount.root.join(below).components().collect();
    Some((mount.device, inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    fn refused(path: &Path) -> bool {
        matches!(ExportLock::take(path), Err(StateError::Served { .. }))
    }

    #[test]
    fn the_same_an_enclosing_and_an_enclosed_directory_are_refused_and_a_neighbour_is_not() {
        let scratch = Scratch::new();
        let deep = scratch.path("a/b/c");
        std::fs::create_dir_all(&deep).expect("mkdir");
        std::fs::create_dir_all(scratch.path("a/x")).expect("mkdir");
        let lock = ExportLock::take(&scratch.path("a/b")).expect("lock");
        for (path, expected) in [
            ("a/b", true),
            ("a", true),
            ("a/b/c", true),
            ("a/x", false),
            ("a/../a/b", true),
        ] {
            assert_eq!(refused(&scratch.path(path)), expected, "{path}");
        }
        drop(lock);
        assert!(!refused(&scratch.path("a")));
    }

    #[test]
    fn a_bind_mount_hides_nothing() {
        let scratch = Scratch::new();
        let (inner, bind) = (scratch.path("a/b"), scratch.path("bind"));
        std::fs::create_dir_all(&inner).expect("mkdir");
        std::fs::create_dir_all(&bind).expect("mkdir");
        let mounted = std::process::Command::new("mount")
            .arg("--bind")
            .args([&inner, &bind])
            .status();
        assert!(mounted.expect("mount").success(), "mounting needs root");
        let lock = ExportLock::take(&bind);
        let (same, enclosing) = (refused(&inner), refused(&scratch.path("a")));
        drop(lock);
        let unmounted = std::process::Command::new("umount").arg(&bind).status();
        assert!(unmounted.expect("umount").success());
        assert!(same && enclosing);
    }
}
