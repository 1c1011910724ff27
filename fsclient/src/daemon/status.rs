//! `fsclient status`, as people and programs get it.
//!
//! `--json` prints a [`StatusDocument`]: `{"mounts": [MountStatus, ..], "unanswered": [Unanswered, ..], "kept": [Kept, ..]}`. Field
//! names don't change; fields may be added. Durations are in the unit their names end with.
//!
//! | field of a mount | meaning |
//! | --- | --- |
//! | `dir`, `source`, `state_dir`, `pid`, `read_only`, `write_through` | the mount point, what is mounted (never a ticket), its state directory, the daemon's process, how it is mounted |
//! | `session`, `server`, `state`, `trouble`, `standing`, `identity`, `server_process` | the session: see [`crate::session::Status`] |
//! | `term_ms`, `lease_ms_left` | the leases' term, and what is left of it by the client's clock |
//! | `leases` | leases held, by kind: `attrs`, `data`, `listing`, `names`, and `objects` that have any |
//! | `recalls_open` | recalls not approved yet |
//! | `memory` | memory in use, in bytes: see [`MemoryStatus`] |
//! | `requests`, `requests_total`, `renewals` | requests sent by kind, their sum, and keep-alives (in neither) |
//! | `kernel_requests` | requests of the kernel so far, forgets apart |
//! | `cache_answers` | requests of the kernel that were answered without asking the server, by kind |
//! | `dirty` | buffered `bytes` of `files` that the server doesn't have yet; `bytes_per_second` it takes in, as far as measured; `still_ms`: for how long no bytes have come through, to or fro |
//! | `unmounting` | it is being unmounted, or has been and what is left of it is brought in |
//! | `opens` | opens the server has for this session, retained ones included |
//! | `waiting` | who waits for the server: see [`crate::session::Waiting`] |
//! | `locks` | locks that are held or waited for: see [`Lock`] |

use crate::recovery::Item;
use crate::session;
use leasefs_client::{LockStatus, MemoryUse};
use leasefs_protocol::{LockKind, LockMode, LockRange};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// All mounts that were asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusDocument {
    /// One each.
    pub mounts: Vec<MountStatus>,
    /// Those whose daemons don't answer.
    #[serde(default)]
    pub unanswered: Vec<Unanswered>,
    /// What is kept in the recovery folders of their state directories, and of the one asked for.
    pub kept: Vec<Kept>,
}

/// A mount whose daemon doesn't answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unanswered {
    /// The mount point.
    pub dir: PathBuf,
    /// What is mounted.
    pub source: String,
    /// Whose it is.
    pub user: u32,
    /// Of its daemon: `dead`, `stopped`, `hangs`, `refuses` what this command asks, or `hidden`: its socket isn't found.
    pub state: String,
}

/// Data that could not be brought in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The state directory that has it.
    pub state_dir: PathBuf,
    /// What it is.
    #[serde(flatten)]
    pub item: Item,
}

/// One mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// The mount point.
    pub dir: PathBuf,
    /// What is mounted: `HOST:PORT:/SUBDIR`.
    pub source: String,
    /// The state directory.
    pub state_dir: PathBuf,
    /// The daemon's process.
    pub pid: u32,
    /// Whose mount it is.
    #[serde(default)]
    pub user: u32,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether writes go to the server before they return.
    #[serde(default)]
    pub write_through: bool,
    /// The session with the server.
    #[serde(flatten)]
    pub session: session::Status,
    /// What is left of the leases' time.
    pub lease_ms_left: u64,
    /// Leases held, by kind.
    pub leases: BTreeMap<String, u64>,
    /// Recalls not approved yet.
    pub recalls_open: u64,
    /// Memory in use.
    pub memory: MemoryStatus,
    /// Requests of the kernel.
    #[serde(default)]
    pub kernel_requests: u64,
    /// Answers without asking the server, by kind.
    pub cache_answers: BTreeMap<String, u64>,
    /// Whether it is being unmounted, or has been and what is left of it is brought in.
    #[serde(default)]
    pub unmounting: bool,
    /// What the server doesn't have yet.
    #[serde(default)]
    pub dirty: Dirty,
    /// Locks that this mount's processes hold or wait for.
    #[serde(default)]
    pub locks: Vec<Lock>,
}

/// A lock of a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// Where the file is below the mount point, or its handle if that isn't known.
    pub file: String,
    /// The process.
    pub pid: u32,
    /// `fcntl` (of open file descriptions too) or `flock`.
    pub kind: String,
    /// Whether others may hold one beside it.
    pub shared: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte; absent to the end of the file, however long it gets.
    pub last: Option<u64>,
    /// Its number; absent while it is waited for.
    pub token: Option<u64>,
    /// Whether this mount decides the file's locks, without asking the server.
    pub decided_here: bool,
    /// While it is waited for: who holds it up.
    pub holder: Option<LockHolder>,
}

/// Who holds a lock up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Its session, in hexadecimal.
    pub session: String,
    /// Host and mount point.
    pub mount: String,
    /// The process there.
    pub pid: u32,
    /// If it is never heard of again its locks end then.
    pub ends_in_ms: u64,
}

impl From<(LockStatus, Option<PathBuf>)> for Lock {
    fn from((lock, path): (LockStatus, Option<PathBuf>)) -> Self {
        let (range, object) = (lock.lock.range, lock.object);
        Self {
            file: path.map_or_else(|| object.to_string(), |path| path.display().to_string()),
            pid: lock.lock.pid,
            kind: match lock.lock.kind {
                LockKind::Posix => "fcntl".to_owned(),
                LockKind::Flock => "flock".to_owned(),
            },
            shared: lock.lock.mode == LockMode::Shared,
            first: range.first(),
            last: (range.last() != LockRange::END).then(|| range.last()),
            token: lock.fence.map(|fence| fence.0),
            decided_here: lock.decided_here,
            holder: lock.holder.map(|holder| LockHolder {
                session: holder.session.to_string(),
                mount: holder.mount,
                pid: holder.pid,
                ends_in_ms: holder.ends_ms,
            }),
        }
    }
}

/// Buffered bytes that the server doesn't have yet, and how fast they go.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Dirty {
    /// How many files.
    pub files: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Bytes a second that the server was seen to take in; absent if nothing was sent.
    pub bytes_per_second: Option<u64>,
    /// For how long no bytes have come through, to the server or from it.
    pub still_ms: u64,
}

/// Memory of a mount, in bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// What it may use.
    pub limit: u64,
    /// In use by attributes, names and listings.
    pub cached: u64,
    /// In use by bytes of files as the server has them.
    pub clean: u64,
    /// In use by bytes that the server doesn't have yet.
    pub dirty: u64,
    /// In use by bytes that the server's disk doesn't have yet.
    pub unstable: u64,
}

impl From<MemoryUse> for MemoryStatus {
    fn from(memory: MemoryUse) -> Self {
        Self {
            limit: memory.limit as u64,
            cached: memory.cached as u64,
            clean: memory.clean as u64,
            dirty: memory.dirty as u64,
            unstable: memory.unstable as u64,
        }
    }
}
