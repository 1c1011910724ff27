//! The coherence programs: several workers use the same objects through several
//! mounts of one export at once, and the history of each object is checked for
//! linearizability.
//!
//! There are five families: [`Family::Registers`], [`Family::Appends`],
//! [`Family::Names`], [`Family::Directories`] and [`Family::Attributes`]. Everything goes through ordinary
//! system calls on directories, so the same run works on any file system: one
//! directory given three times is the easy case, three mounts the real one.

mod appends;
mod attributes;
mod directories;
mod files;
mod judge;
mod names;
mod registers;
mod report;
mod run;
#[cfg(test)]
mod tests;
mod watchdog;
mod worker;

pub use report::{FamilyReport, Report};
pub use run::run;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Which objects a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Single-page registers: descriptors fresh and long-held, `pread`, mmap,
    /// `sendfile`; written by `pwrite` and through a shared mapping.
    Registers,
    /// Logs that several writers append to with `O_APPEND`.
    Appends,
    /// Names: create, exclusive create, unlink, rename, link, readdir, stat.
    Names,
    /// Names of directories: make, remove, rename, readdir, stat.
    Directories,
    /// Size, mode, mtime and link count.
    Attributes,
}

impl Family {
    /// All families, in the order in which they run.
    pub const ALL: [Self; 5] = [
        Self::Registers,
        Self::Appends,
        Self::Names,
        Self::Directories,
        Self::Attributes,
    ];

    /// The name used on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Appends => "appends",
            Self::Names => "names",
            Self::Directories => "directories",
            Self::Attributes => "attributes",
        }
    }

    /// The family with this [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// How many requests the mount with this index has sent to its server so far on
/// behalf of reads (renewals and changes apart); `None` when it can't be told.
pub type ReadRequests = Arc<dyn Fn(usize) -> Option<u64> + Send + Sync>;

/// What to run.
#[derive(Clone)]
pub struct Config {
    /// Mounts of the same export (or the same directory several times).
    pub dirs: Vec<PathBuf>,
    /// Which families.
    pub families: Vec<Family>,
    /// Operations per family, at least.
    pub operations: usize,
    /// Names the run; the same seed makes the same choices (not the same timing).
    pub seed: u64,
    /// Worker threads per entry of `dirs`.
    pub workers_per_dir: usize,
    /// An operation that takes longer fails the run.
    pub limit: Duration,
    /// Whether one `read` of part of a page and one `stat` are expected to be
    /// atomic. leasefs is; many local file systems are not.
    pub atomic: bool,
    /// Tells which reads were answered by a cache.
    pub read_requests: Option<ReadRequests>,
    /// Replaces this percentage of what is read by what the same mount read there
    /// before: a faulty mount, for tests of this program itself.
    pub pretend_stale: usize,
}

impl Config {
    /// All families over `dirs`, 40,000 operations each.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self {
            dirs,
            families: Family::ALL.to_vec(),
            operations: 40_000,
            seed: crate::rng::fresh_seed(),
            workers_per_dir: 2,
            limit: Duration::from_secs(30),
            atomic: true,
            read_requests: None,
            pretend_stale: 0,
        }
    }
}
