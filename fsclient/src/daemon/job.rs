//! What a daemon is told to do.

use crate::fuse::Allowed;
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
    /// What the files may do to this machine.
    pub allow: Allowed,
    /// Whose everything is shown as where all users are one; the mounting user's if it isn't said.
    pub uid: Option<u32>,
    /// The same of the group.
    pub gid: Option<u32>,
}
