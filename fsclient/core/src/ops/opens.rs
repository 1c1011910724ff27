//! Open files and directories of this mount, by the number the kernel knows them by.

use super::stream::Stream;
use crate::call::{Fh, NodeId};
use crate::inode::{Access, LossesTold, Writer, Written};
use crate::opens::ServerOpen;
use crate::run::{Map, Part};
use atomic_refcell::AtomicRefMut;
use leasefs_protocol::Durability;
use leasefs_protocol::{Caller, Handle};
use std::sync::Arc;

/// What `open(2)` flags ask to be durable when a write returns.
pub fn durability(flags: u32) -> Durability {
    let flags = flags as i32;
    if flags & libc::O_SYNC == libc::O_SYNC {
        Durability::All
    } else if flags & libc::O_DSYNC != 0 {
        Durability::Data
    } else {
        Durability::None
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Its node.
    pub node: NodeId,
    /// The object.
    pub object: Handle,
    /// The server's; several opens here may share one there.
    pub server: Arc<ServerOpen>,
    /// What that allows.
    pub allows: Access,
    /// What this one allows.
    pub access: Access,
    /// Whose verdict allowed it.
    pub caller: Caller,
    /// What became of the bytes it wrote.
    pub written: Arc<Written>,
    /// Losses it has been told of.
    pub told: LossesTold,
    /// It was made where others look for what is made.
    pub looked_for: bool,
}

impl OpenFile {
    /// As the one who writes.
    pub fn writer(&self) -> Writer {
        Writer {
            open: Arc::clone(&self.server),
            allows: self.allows,
            caller: self.caller.clone(),
            written: self.written.clone(),
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    /// Its node.
    pub node: NodeId,
    /// The object.
    pub object: Handle,
    /// The server's.
    pub server: Arc<ServerOpen>,
    /// Whose verdict allowed it.
    pub caller: Caller,
    /// Losses it has been told of.
    pub told: LossesTold,
    /// What has been read of it since the last rewind.
    pub stream: Part<Stream>,
    /// Whoever has it reads the next page.
    pub turn: futures_util::lock::Mutex<()>,
}

#[derive(Debug, Default)]
struct Numbered {
    last: u64,
    files: Map<Fh, Arc<OpenFile>>,
    dirs: Map<Fh, Arc<OpenDir>>,
}

/// All opens of the mount.
#[derive(Debug, Default)]
pub(super) struct OpenTable {
    table: Part<Numbered>,
}

impl OpenTable {
    /// Takes in an open file.
    pub fn add_file(&self, open: OpenFile) -> Fh {
        let fh = self.next();
        self.table().files.insert(fh, Arc::new(open));
        fh
    }

    /// Takes in an open directory.
    pub fn add_dir(&self, open: OpenDir) -> Fh {
        let fh = self.next();
        self.table().dirs.insert(fh, Arc::new(open));
        fh
    }

    /// The open file of a number.
    pub fn file(&self, fh: Fh) -> Option<Arc<OpenFile>> {
        self.table().files.get(&fh).cloned()
    }

    /// The open directory of a number.
    pub fn dir(&self, fh: Fh) -> Option<Arc<OpenDir>> {
        self.table().dirs.get(&fh).cloned()
    }

    /// The last descriptor is closed and the last mapping gone.
    pub fn remove_file(&self, fh: Fh) -> Option<Arc<OpenFile>> {
        self.table().files.remove(&fh)
    }

    /// The last descriptor is closed.
    pub fn remove_dir(&self, fh: Fh) -> Option<Arc<OpenDir>> {
        self.table().dirs.remove(&fh)
    }

    fn next(&self) -> Fh {
        let mut table = self.table();
        table.last += 1;
        Fh(table.last)
    }

    fn table(&self) -> AtomicRefMut<'_, Numbered> {
        self.table.borrow_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o_sync_is_more_than_o_dsync() {
        assert_eq!(durability(libc::O_SYNC as u32), Durability::All);
        assert_eq!(durability(libc::O_DSYNC as u32), Durability::Data);
        assert_eq!(durability(libc::O_APPEND as u32), Durability::None);
    }
}
