//! What a daemon is told to do.

use crate::fuse::Allowed;
use leasefs_metrics::Place;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A mount to be made. Holds a secret (the ticket): goes through pipes, never into arguments.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    /// A ticket or `HOST[:PORT]:/[SUBDIR]`.
    pub source: String,
    /// The mount point, absolute.
    pub dir: PathBuf,
    /// The state directory, absolute.
    pub state: PathBuf,
    /// How long requests wait for a server that can't be reached; `None` for ever.
    pub timeout: Option<Duration>,
    /// Memory that the mount may use, in bytes.
    pub memory: usize,
    /// Writes are buffered under Write leases.
    pub write_back: bool,
    /// No changes.
    pub read_only: bool,
    /// It was started by the system's `mount`, and without a terminal: it stays in its process group. Where systemd mounts
    /// on demand no other process gets at the mount point before that is mounted, or while it is unmounted (autofs).
    pub by_system: bool,
    /// What the files may do to this machine.
    pub allow: Allowed,
    /// Whose everything is shown as where all users are one; the mounting user's if it isn't said.
    pub uid: Option<u32>,
    /// The same of the group.
    pub gid: Option<u32>,
    /// Where metrics are told, if anywhere.
    pub metrics: Option<Place>,
}
