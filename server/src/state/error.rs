//! Why a state directory can't be used.

use std::io;
use std::path::{Path, PathBuf};

/// Why a state directory can't be used. The texts say what to do.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A file isn't what this version writes.
    #[error(
        "{path} is damaged ({why}): restore it, or move the state directory away to start anew"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another process has the state directory.
    #[error(
        "another fsserver is using the state directory {0}: stop it, or choose another with --state"
    )]
    InUse(PathBuf),
    /// Clients could reach the keys.
    #[error(
        "the state directory {state} lies inside the served directory {export}: choose another with --state"
    )]
    InsideExport {
        /// The state directory.
        state: PathBuf,
        /// What is to be served.
        export: PathBuf,
    },
    /// A disk isn't mounted, or the directory was made anew.
    #[error(
        "{export} is not the directory that was served here before, but another in its place: is its file system mounted? \
         If it is to be served instead, remove {record}; whoever has the other one mounted then has to mount anew"
    )]
    Replaced {
        /// What is to be served.
        export: PathBuf,
        /// Where it is on record what was.
        record: PathBuf,
    },
    /// The state would depend on a server.
    #[error("{0} is on a leasefs mount: choose a directory of a local file system")]
    OnLeasefs(PathBuf),
    /// What another server lets others change would be cached here without its leases.
    #[error(
        "{export} can't be served: it is on a leasefs mount ({source_shown}), and what other mounts of that server \
         change would be served stale. Serve the directory on the storage host, or mount that server directly"
    )]
    ExportOnLeasefs {
        /// What is to be served.
        export: PathBuf,
        /// What is mounted there, fit for a terminal.
        source_shown: String,
    },
    /// The same objects would have two servers, which know nothing of each other's leases.
    #[error("{export} can't be served: another fsserver serves {what}")]
    Served {
        /// What is to be served.
        export: PathBuf,
        /// What is served already, in words.
        what: String,
    },
    /// There is no default place.
    #[error(transparent)]
    NoPlace(#[from] leasefs_host::paths::NoPlace),
    /// The server's key can't be had.
    #[error(transparent)]
    Key(#[from] leasefs_transport::IdentityError),
    /// No keys can be made.
    #[error("no keys can be made: {0}")]
    Random(io::Error),
}

impl StateError {
    /// For `map_err` of what was done to a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
