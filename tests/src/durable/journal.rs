//! What a writer has asked for and been told, kept outside the mount it writes to.

use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// A file by its creation: names come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// The file whose stripes belong to all writers in turn.
pub const STRIPES: FileId = FileId(0);
/// The file to which all writers append.
pub const LOG: FileId = FileId(1);

/// What a writer asks for. Offsets and lengths in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// An exclusive create in the writer's directory.
    Create {
        /// The name.
        name: String,
        /// What it is the name of.
        file: FileId,
    },
    /// An open of a file that is there.
    Open {
        /// Which.
        file: FileId,
    },
    /// A write at an offset.
    Write {
        /// Where to.
        file: FileId,
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Durable when it returns: `O_SYNC`, `O_DSYNC`, or a store with its `msync`.
        synced: bool,
    },
    /// A write at the end of [`LOG`].
    Append {
        /// How many bytes.
        len: u64,
    },
    /// `ftruncate`.
    Truncate {
        /// Of what.
        file: FileId,
        /// The new size.
        size: u64,
    },
    /// `fsync` or `fdatasync`.
    Sync {
        /// Of what.
        file: FileId,
    },
    /// `fsync` of the writer's directory.
    SyncDir,
    /// A rename in the writer's directory.
    Rename {
        /// The old name.
        from: String,
        /// The new one, whose file it replaces.
        to: String,
    },
    /// An unlink in the writer's directory.
    Unlink {
        /// The name.
        name: String,
    },
}

/// A line of the journal. `seq` is the writer's number of the call, from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The call is about to be made.
    Begin {
        /// Its number.
        seq: u64,
        /// What is asked.
        op: Op,
    },
    /// It has succeeded.
    Done {
        /// Its number.
        seq: u64,
    },
    /// It has failed: it may have happened, in whole or in part.
    Failed {
        /// Its number.
        seq: u64,
        /// The kernel's reason.
        errno: i32,
    },
}

/// A journal that is being written. A line is in the kernel's hands before the writer goes on,
/// so that it survives the writer.
#[derive(Debug)]
pub struct Journal {
    file: File,
}

impl Journal {
    /// Begins a journal.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)?;
        Ok(Self { file })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// The kernel's.
    pub fn note(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// The whole lines of a journal; none if there is none yet.
///
/// # Errors
/// The kernel's, or of a line that is none.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let parse = |line: &str| serde_json::from_str(line).map_err(io::Error::from);
    whole.lines().map(parse).collect()
}
