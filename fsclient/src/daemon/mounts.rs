//! Mount points: what is mounted there, what is left of a daemon that died, who uses it.

use leasefs_host::mounts::{self, Mount};
use leasefs_protocol::escaped;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// More processes than this are not named.
const HOLDERS: usize = 8;

/// The mount point, absolute and without symlinks, usable for a new mount. What a dead daemon
/// left there is removed.
///
/// # Errors
/// A message for people.
pub fn prepare(dir: &Path) -> Result<PathBuf, String> {
    let dir = locate(dir)?;
    if is_leasefs(&dir)? {
        if !is_dead(&dir) {
            return Err(format!(
                "{} is a leasefs mount already: `fsclient umount {}` first",
                dir.display(),
                dir.display()
            ));
        }
        detach(&dir)?;
        eprintln!(
            "fsclient: removed the dead mount that an earlier daemon left on {}",
            dir.display()
        );
    }
    let metadata = fs::metadata(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    if !metadata.is_dir() {
        return Err(format!("{} is not a directory", dir.display()));
    }
    Ok(dir)
}

/// The path, absolute and without symlinks. The mount itself is not asked: it may be dead.
///
/// # Errors
/// A message for people.
pub fn locate(dir: &Path) -> Result<PathBuf, String> {
    let failed = |e: io::Error| format!("{}: {e}", dir.display());
    let absolute = std::path::absolute(dir).map_err(failed)?;
    // As the mount table has it, if the daemon doesn't answer.
    let table = table()?;
    let mut ours = table.iter().filter(|mount| mount.is_leasefs);
    // Without the slash that the shell may have put behind it.
    if let Some(mount) = ours.find(|mount| mount.point == absolute) {
        return Ok(mount.point.clone());
    }
    match (
        fs::canonicalize(&absolute),
        absolute.parent(),
        absolute.file_name(),
    ) {
        (Ok(real), _, _) => Ok(real),
        (Err(e), Some(parent), Some(name)) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            Ok(fs::canonicalize(parent).map_err(failed)?.join(name))
        }
        (Err(e), _, _) => Err(failed(e)),
    }
}

/// The options of what is mounted there, as mount(8) takes them.
///
/// # Errors
/// A message for people.
pub fn options_at(dir: &Path) -> Result<String, String> {
    let dir = locate(dir)?;
    let table = table()?;
    let mount = mounts::at(&table, &dir)
        .ok_or_else(|| format!("{} is not a mount point", dir.display()))?;
    Ok(mount.options.clone())
}

fn table() -> Result<Vec<Mount>, String> {
    mounts::table().map_err(|e| format!("the mount table: {e}"))
}

/// All mounts of ours. Of those on one point the topmost.
///
/// # Errors
/// If the mount table can't be read.
pub fn all() -> Result<Vec<Mount>, String> {
    let table = table()?;
    let topmost = |mount: &&Mount| mounts::at(&table, &mount.point) == Some(mount);
    let ours = table.iter().filter(|mount| mount.is_leasefs);
    Ok(ours.filter(topmost).cloned().collect())
}

/// A source as the mount table has it: commas would end an option of the set-user-id helper.
pub fn source_shown(source: &str) -> String {
    source.replace([',', '\\'], "_")
}

/// Whether the topmost mount there is one of ours.
///
/// # Errors
/// If the mount table can't be read.
pub fn is_leasefs(dir: &Path) -> Result<bool, String> {
    Ok(mounted_by(dir)?.is_some())
}

/// Which mount of ours is the topmost there, if one is.
///
/// # Errors
/// If the mount table can't be read.
pub fn which(dir: &Path) -> Result<Option<u64>, String> {
    let table = table()?;
    let mount = mounts::at(&table, dir).filter(|mount| mount.is_leasefs);
    Ok(mount.map(|mount| mount.id))
}

/// Whose mount it is, if the topmost one there is one of ours.
///
/// # Errors
/// If the mount table can't be read.
pub fn mounted_by(dir: &Path) -> Result<Option<u32>, String> {
    Ok(mounts::mounted_by(&table()?, dir))
}

/// Whether the mount's daemon is gone.
pub fn is_dead(dir: &Path) -> bool {
    // A daemon that lives but hangs would hang us too: one that listens isn't asked that way.
    if super::control::is_listening(dir) {
        return false;
    }
    // Attributes the kernel may have cached.
    let asked = rustix::fs::statfs(dir);
    asked.is_err_and(|e| matches!(e, Errno::NOTCONN | Errno::CONNABORTED))
}

/// Takes the mount out of the file tree, whoever uses it. Nothing else that may be found at its path by now.
///
/// # Errors
/// A message for people.
pub fn detach(dir: &Path) -> Result<(), String> {
    super::control::forget(dir);
    let failed = |e: &dyn std::fmt::Display| format!("can't unmount {}: {e}", dir.display());
    let mount = opened(dir).map_err(|e| failed(&e))?;
    // The descriptor stays at what was looked at, whatever its path means to whoever may change that.
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let helper = Command::new("fusermount3")
                .args(["-uz", "--"])
                .arg(dir)
                .output();
            let output = helper.map_err(|e| failed(&format!("fusermount3: {e}")))?;
            match output.status.success() {
                true => Ok(()),
                false => Err(failed(&String::from_utf8_lossy(&output.stderr).trim())),
            }
        }
        Err(e) => Err(failed(&e)),
    }
}

/// The mount's root, without asking it anything.
fn opened(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty())?;
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd()))?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    let table = mounts::table()?;
    let found = id.and_then(|id| mounts::with_id(&table, id));
    match found.is_some_and(|found| found.is_leasefs && found.point == dir) {
        true => Ok(root),
        false => Err(io::Error::other(
            "what is there is no leasefs mount any more",
        )),
    }
}

/// Processes that use what is mounted there, for people, as far as this user may see them. Reads
/// links of /proc only, never the mount.
pub fn holders(dir: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter(|entry| uses(&entry.path(), dir))
        .take(HOLDERS)
        .map(|entry| {
            let name = fs::read(entry.path().join("comm")).unwrap_or_default();
            let name = String::from_utf8_lossy(&name);
            let name = escaped(name.trim());
            format!("{} ({name})", entry.file_name().to_string_lossy())
        })
        .collect()
}

fn uses(process: &Path, dir: &Path) -> bool {
    let points_there = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(dir));
    let open = || {
        fs::read_dir(process.join("fd")).map(|all| all.flatten().any(|fd| points_there(fd.path())))
    };
    points_there(process.join("cwd"))
        || points_there(process.join("root"))
        || open().unwrap_or(false)
        || fs::read_dir(process.join("map_files"))
            .map(|all| all.flatten().any(|map| points_there(map.path())))
            .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_mount_of_ours_is_not_detached() {
        let dir = std::env::temp_dir();
        let refused = detach(&dir).expect_err("it is none");
        assert!(refused.contains("no leasefs mount"), "{refused}");
    }
}
