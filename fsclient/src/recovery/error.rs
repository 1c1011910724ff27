//! What can go wrong with the recovery folder.

use super::id::RecoveryId;
use leasefs_protocol::limits::{MAX_RECOVERY_ITEMS, MAX_RECOVERY_RANGES};
use std::io;
use std::path::{Path, PathBuf};

/// Why data can't be kept, read back or discarded.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// Data could not be kept: it is gone when its writer's memory is.
    #[error("{bytes} bytes of {file} ({source_name}) can't be kept and are lost: {why}")]
    NotKept {
        /// The file they were written to.
        file: String,
        /// The mount's source.
        source_name: String,
        /// How many they are.
        bytes: u64,
        /// Why.
        #[source]
        why: Box<RecoveryError>,
    },
    /// The local disk fails or is full.
    #[error("{}: {error}{}", path.display(), hint(error))]
    Disk {
        /// What could not be read or written.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The folder's bound is reached.
    #[error(
        "the recovery folder holds {MAX_RECOVERY_ITEMS} items: `fsclient recover` restores and discards them"
    )]
    TooManyItems,
    /// The bound of what root keeps for another user is reached.
    #[error(
        "as much is kept for user {0} as is left on the disk: `fsclient recover` restores and discards it"
    )]
    TooMuch(u32),
    /// The item's bound is reached.
    #[error("more than {MAX_RECOVERY_RANGES} separate byte ranges")]
    TooManyRanges,
    /// A range reaches beyond the largest file.
    #[error("the range at offset {0} reaches beyond 2^63 - 1")]
    RangeTooFar(u64),
    /// There is no such item.
    #[error("there is no item {0}: `fsclient recover list` shows what is kept")]
    NoItem(RecoveryId),
    /// The item isn't what was written.
    #[error("{} is damaged ({why}): look at it by hand, or discard it", path.display())]
    Damaged {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            " (free some space on the disk of the state directory)"
        }
        _ => "",
    }
}

/// For `map_err`: the system's error at a path.
pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> RecoveryError + '_ {
    move |error| RecoveryError::Disk {
        path: path.to_owned(),
        error,
    }
}
