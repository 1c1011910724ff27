//! Open files and directories of this mount, by the number the kernel knows them by.

use super::stream::Stream;
use crate::cache::{Writer, Written};
use crate::call::{Fh, NodeId};
use crate::run::{Map, Part};
use crate::uncommitted::Told;
use atomic_refcell::AtomicRefMut;
use leasefs_protocol::request::Durability;
use leasefs_protocol::{Caller, Handle, OpenId};
use std::sync::Arc;

/// What an open allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `O_RDONLY`: cached by the kernel.
    Read,
    /// `O_WRONLY`.
    Write,
    /// `O_RDWR`: a shared mapping may store through it.
    ReadWrite,
}

impl Access {
    /// Of `open(2)` flags. `O_ACCMODE` itself (3) asks for both.
    pub fn of(flags: u32) -> Self {
        match (flags as i32) & libc::O_ACCMODE {
            libc::O_RDONLY => Self::Read,
            libc::O_WRONLY => Self::Write,
            _ => Self::ReadWrite,
        }
    }

    /// Whether it may write.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

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
pub struct OpenFile {
    /// Its node.
    pub node: NodeId,
    /// The object.
    pub object: Handle,
    /// The server's number of it; several opens here may share one there.
    pub server: OpenId,
    /// What it allows.
    pub access: Access,
    /// Whose verdict allowed it.
    pub caller: Caller,
    /// What became of the bytes it wrote.
    pub written: Arc<Written>,
    /// Losses it has been told of.
    pub told: Told,
}

impl OpenFile {
    /// As the one who writes.
    pub fn writer(&self) -> Writer {
        Writer {
            open: self.server,
            caller: self.caller.clone(),
            written: self.written.clone(),
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub struct OpenDir {
    /// Its node.
    pub node: NodeId,
    /// The object.
    pub object: Handle,
    /// The server's number of it.
    pub server: OpenId,
    /// Whose verdict allowed it.
    pub caller: Caller,
    /// Losses it has been told of.
    pub told: Told,
    /// What has been read of it since the last rewind.
    pub stream: futures_util::lock::Mutex<Stream>,
}

#[derive(Debug, Default)]
struct Tables {
    last: u64,
    files: Map<Fh, Arc<OpenFile>>,
    dirs: Map<Fh, Arc<OpenDir>>,
    /// Files that are open, or about to be.
    used: Map<Handle, Used>,
}

#[derive(Debug, Default)]
struct Used {
    opens: usize,
    /// Those of them whose mappings may store.
    stores: usize,
    /// It has no name any more.
    unlinked: bool,
}

/// All opens of the mount.
#[derive(Debug, Default)]
pub struct Opens {
    tables: Part<Tables>,
}

impl Opens {
    /// Takes in an open file.
    pub fn add_file(&self, open: OpenFile) -> Fh {
        let fh = self.next();
        self.tables().files.insert(fh, Arc::new(open));
        fh
    }

    /// Takes in an open directory.
    pub fn add_dir(&self, open: OpenDir) -> Fh {
        let fh = self.next();
        self.tables().dirs.insert(fh, Arc::new(open));
        fh
    }

    /// The open file of a number.
    pub fn file(&self, fh: Fh) -> Option<Arc<OpenFile>> {
        self.tables().files.get(&fh).cloned()
    }

    /// The open directory of a number.
    pub fn dir(&self, fh: Fh) -> Option<Arc<OpenDir>> {
        self.tables().dirs.get(&fh).cloned()
    }

    /// The last descriptor is closed and the last mapping gone.
    pub fn remove_file(&self, fh: Fh) -> Option<Arc<OpenFile>> {
        self.tables().files.remove(&fh)
    }

    /// The last descriptor is closed.
    pub fn remove_dir(&self, fh: Fh) -> Option<Arc<OpenDir>> {
        self.tables().dirs.remove(&fh)
    }

    /// Before the server is asked for an open: from now on pages of the file may be used, and
    /// (O_RDWR) stored into.
    pub fn begin(&self, object: Handle, access: Access) {
        let mut tables = self.tables();
        let used = tables.used.entry(object).or_default();
        used.opens += 1;
        used.stores += usize::from(access == Access::ReadWrite);
    }

    /// The last name of an object is gone; false if it isn't open here.
    pub fn unlinked(&self, object: &Handle) -> bool {
        let mut tables = self.tables();
        let used = tables.used.get_mut(object);
        used.map(|used| used.unlinked = true).is_some()
    }

    /// The open has ended, or never came to be. True if it was the last of an object that has no
    /// name: nobody here can reach it any more.
    pub fn end(&self, object: &Handle, access: Access) -> bool {
        let mut tables = self.tables();
        let Some(used) = tables.used.get_mut(object) else {
            return false;
        };
        used.opens = used.opens.saturating_sub(1);
        let stores = usize::from(access == Access::ReadWrite);
        used.stores = used.stores.saturating_sub(stores);
        let (ended, unlinked) = (used.opens == 0, used.unlinked);
        if ended {
            tables.used.remove(object);
        }
        ended && unlinked
    }

    /// Whether a file is open.
    pub fn is_open(&self, object: &Handle) -> bool {
        self.tables().used.contains_key(object)
    }

    /// Whether a shared mapping of this mount may store into pages of the object.
    pub fn may_store(&self, object: &Handle) -> bool {
        let tables = self.tables();
        tables.used.get(object).is_some_and(|used| used.stores > 0)
    }

    fn next(&self) -> Fh {
        let mut tables = self.tables();
        tables.last += 1;
        Fh(tables.last)
    }

    fn tables(&self) -> AtomicRefMut<'_, Tables> {
        self.tables.borrow_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_read_as_open_means_them() {
        let extra = (libc::O_APPEND | libc::O_SYNC) as u32;
        assert_eq!(Access::of(libc::O_RDONLY as u32 | extra), Access::Read);
        assert_eq!(Access::of(libc::O_WRONLY as u32), Access::Write);
        assert_eq!(Access::of(libc::O_RDWR as u32), Access::ReadWrite);
        assert_eq!(Access::of(3), Access::ReadWrite);
    }

    #[test]
    fn o_sync_is_more_than_o_dsync() {
        assert_eq!(durability(libc::O_SYNC as u32), Durability::All);
        assert_eq!(durability(libc::O_DSYNC as u32), Durability::Data);
        assert_eq!(durability(libc::O_APPEND as u32), Durability::None);
    }

    fn object() -> Handle {
        Handle::new(&[1]).expect("one byte")
    }

    #[test]
    fn an_object_without_a_name_is_out_of_reach_at_its_last_close() {
        let opens = Opens::default();
        assert!(!opens.unlinked(&object()), "it isn't open");
        opens.begin(object(), Access::Read);
        opens.begin(object(), Access::Write);
        assert!(opens.unlinked(&object()));
        assert!(!opens.end(&object(), Access::Read));
        assert!(opens.end(&object(), Access::Write));
    }

    #[test]
    fn stores_are_possible_until_the_last_read_write_open_ends() {
        let opens = Opens::default();
        opens.begin(object(), Access::ReadWrite);
        opens.begin(object(), Access::Write);
        assert!(opens.may_store(&object()));
        opens.end(&object(), Access::ReadWrite);
        assert!(!opens.may_store(&object()) && opens.is_open(&object()));
        opens.end(&object(), Access::Write);
        assert!(!opens.is_open(&object()));
    }
}
