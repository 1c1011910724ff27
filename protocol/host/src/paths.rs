//! Where a user's state and sockets are.

use rustix::process::geteuid;
use std::path::{Path, PathBuf};

/// There is no default place.
#[derive(Debug, thiserror::Error)]
#[error(
    "no state directory: neither XDG_STATE_HOME nor HOME is set; name one with --state (state= in fstab)"
)]
pub struct NoPlace;

/// Root's state directory.
pub const ROOTS: &str = "/var/lib/leasefs";

/// This user's state directory: /var/lib/leasefs as root, else in `$XDG_STATE_HOME`.
///
/// # Errors
/// That the environment names no place.
pub fn state() -> Result<PathBuf, NoPlace> {
    if geteuid().is_root() {
        return Ok(ROOTS.into());
    }
    absolute("XDG_STATE_HOME")
        .or_else(|| home().map(|home| home.join(".local/state")))
        .map(|base| base.join("leasefs"))
        .ok_or(NoPlace)
}

/// Where this user's sockets may be, the preferred folder first: `$LEASEFS_RUNTIME_DIR` alone if it is set, /run/leasefs
/// alone as root, else folders in `$XDG_RUNTIME_DIR` and where [those of another user](runtimes_of) may be: what was
/// begun in one session is asked for in another, by cron or after `su`, too.
pub fn runtimes() -> Vec<PathBuf> {
    let user = geteuid();
    if let Some(folder) = absolute("LEASEFS_RUNTIME_DIR") {
        return vec![folder];
    }
    if user.is_root() {
        return vec!["/run/leasefs".into()];
    }
    let session = absolute("XDG_RUNTIME_DIR").map(|runtime| runtime.join("leasefs"));
    let mut folders: Vec<PathBuf> = session.into_iter().collect();
    for folder in runtimes_of(user.as_raw()) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Where the sockets of a user may be, whose environment isn't known.
pub fn runtimes_of(user: u32) -> [PathBuf; 3] {
    let name = format!("leasefs-{user}");
    [
        format!("/run/user/{user}/leasefs").into(),
        std::env::temp_dir().join(&name),
        Path::new("/tmp").join(&name),
    ]
}

/// mount(8) clears the environment of what it runs.
fn home() -> Option<PathBuf> {
    let recorded = || {
        nix::unistd::User::from_uid(nix::unistd::geteuid())
            .ok()
            .flatten()
    };
    absolute("HOME").or_else(|| recorded().map(|user| user.dir))
}

/// A path of the environment; one that depends on where the process stands is none.
fn absolute(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}
