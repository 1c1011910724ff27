//! Where a user's state and sockets are.

use rustix::process::geteuid;
use std::path::PathBuf;

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

/// The folder of this user's sockets: `$LEASEFS_RUNTIME_DIR`, else /run/leasefs as root, else a
/// folder in `$XDG_RUNTIME_DIR` or the temporary directory.
pub fn runtime() -> PathBuf {
    let user = geteuid();
    if let Some(folder) = absolute("LEASEFS_RUNTIME_DIR") {
        return folder;
    }
    if user.is_root() {
        return "/run/leasefs".into();
    }
    match absolute("XDG_RUNTIME_DIR") {
        Some(runtime) => runtime.join("leasefs"),
        None => std::env::temp_dir().join(format!("leasefs-{}", user.as_raw())),
    }
}

/// Where the sockets of another user may be, whose environment isn't known.
pub fn runtimes_of(user: u32) -> [PathBuf; 2] {
    [
        format!("/run/user/{user}/leasefs").into(),
        std::env::temp_dir().join(format!("leasefs-{user}")),
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
