//! Why an export can't be opened.

use std::io;
use std::path::PathBuf;

/// Why an export can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory can't be opened.
    #[error("can't open the directory {path}: {source}")]
    Directory {
        /// As given.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// `/proc` is missing.
    #[error("/proc is not mounted, but the server reaches open files through /proc/self/fd: {0}")]
    NoProc(io::Error),
    /// Threads can't have a umask of their own.
    #[error(
        "the host refuses unshare(CLONE_FS), which gives each thread its own umask ({0}): \
         allow it in the container's seccomp profile"
    )]
    NoUmask(io::Error),
    /// Rights can't be switched although the server is root.
    #[error(
        "the server is root but may not take on callers' rights: give it CAP_SETUID and \
         CAP_SETGID, or run it as an unprivileged user"
    )]
    NoSwitch,
    /// Switching rights takes nothing away: every caller would have root's.
    #[error(
        "the server is root and keeps root's rights over files when it takes on a caller's: start it \
         without securebits that keep capabilities (no-setuid-fixup), or as an unprivileged user"
    )]
    KeepsRights,
    /// Another failure of the host.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// The host's error.
        source: io::Error,
    },
}
