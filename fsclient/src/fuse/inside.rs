//! Whether anything is mounted inside our mount.
//!
//! Dropping the name under a mount point, or making the kernel look all names up again, takes
//! away what is mounted there. So it must be known before either is done.

use leasefs_host::mounts::{Device, Mount, TABLE, parse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::{Mutex, PoisonError};

/// Watches the mount table of this process's namespace.
#[derive(Debug)]
pub struct Inside {
    device: Device,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    table: File,
    inside: bool,
}

impl Inside {
    /// Watches for mounts inside the file system of this device number.
    ///
    /// # Errors
    /// If the mount table can't be read.
    pub fn watch((major, minor): (u32, u32)) -> io::Result<Self> {
        let device = Device { major, minor };
        let mut seen = Seen {
            table: File::open(TABLE)?,
            inside: false,
        };
        seen.read(device)?;
        Ok(Self {
            device,
            seen: Mutex::new(seen),
        })
    }

    /// Whether anything is mounted inside now. Costs a microsecond unless the table changed.
    ///
    /// A table that can't be read counts as a mount inside: the careful answer.
    pub fn any(&self) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.has_changed() && seen.read(self.device).is_err() {
            return true;
        }
        seen.inside
    }
}

impl Seen {
    fn has_changed(&self) -> bool {
        let mut table = [PollFd::new(&self.table, PollFlags::PRI)];
        let at_once = Timespec::default();
        !matches!(poll(&mut table, Some(&at_once)), Ok(0))
    }

    fn read(&mut self, device: Device) -> io::Result<()> {
        let mut text = Vec::new();
        self.table.rewind()?;
        self.table.read_to_end(&mut text)?;
        self.inside = has_mount_inside(&parse(&text), device);
        Ok(())
    }
}

/// A mount is inside if its parent is a mount of this device.
fn has_mount_inside(table: &[Mount], device: Device) -> bool {
    let ours = table.iter().filter(|mount| mount.device == device);
    let ours: HashSet<u64> = ours.map(|mount| mount.id).collect();
    table.iter().any(|mount| ours.contains(&mount.parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "40 1 0:50 / /mnt/a rw - fuse.leasefs nas:/ rw\n";

    fn inside(table: &str) -> bool {
        let device = Device {
            major: 0,
            minor: 50,
        };
        has_mount_inside(&parse(table.as_bytes()), device)
    }

    #[test]
    fn a_mount_alone_has_nothing_inside() {
        assert!(!inside(OURS));
    }

    #[test]
    fn a_bind_mount_of_ours_elsewhere_is_not_inside() {
        let table = format!("{OURS}41 1 0:50 /sub /other rw - fuse.leasefs nas:/ rw\n");
        assert!(!inside(&table));
    }

    #[test]
    fn a_mount_on_one_of_our_directories_is_inside() {
        let bind = format!("{OURS}41 40 0:50 /x /mnt/a/y rw - fuse.leasefs nas:/ rw\n");
        assert!(inside(&bind));
        let tmpfs = format!("{OURS}41 40 0:60 / /mnt/a/y rw - tmpfs tmpfs rw\n");
        assert!(inside(&tmpfs));
    }

    #[test]
    fn the_mount_table_of_this_host_can_be_watched() {
        let inside = Inside::watch((u32::MAX, 0)).expect("the mount table");
        assert!(!inside.any());
    }
}
