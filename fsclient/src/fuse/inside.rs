//! Whether anything is mounted inside our mount.
//!
//! Dropping the name under a mount point, or making the kernel look all names up again, takes
//! away what is mounted there. So it must be known before either is done.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::{Mutex, PoisonError};

const TABLE: &str = "/proc/self/mountinfo";

/// Watches the mount table of this process's namespace.
#[derive(Debug)]
pub struct Inside {
    device: (u32, u32),
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
    pub fn watch(device: (u32, u32)) -> io::Result<Self> {
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

    fn read(&mut self, device: (u32, u32)) -> io::Result<()> {
        let mut text = Vec::new();
        self.table.rewind()?;
        self.table.read_to_end(&mut text)?;
        self.inside = has_mount_inside(&String::from_utf8_lossy(&text), device);
        Ok(())
    }
}

/// `ID PARENT MAJ:MIN …`: a mount is inside if its parent is a mount of this device.
fn has_mount_inside(table: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    let mounts = || {
        table.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            Some((fields.next()?, fields.next()?, fields.next()?))
        })
    };
    let ours: HashSet<&str> = mounts()
        .filter(|(_, _, found)| *found == device)
        .map(|(id, _, _)| id)
        .collect();
    mounts().any(|(_, parent, _)| ours.contains(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "40 1 0:50 / /mnt/a rw - fuse.leasefs nas:/ rw\n";

    #[test]
    fn a_mount_alone_has_nothing_inside() {
        assert!(!has_mount_inside(OURS, (0, 50)));
    }

    #[test]
    fn a_bind_mount_of_ours_elsewhere_is_not_inside() {
        let table = format!("{OURS}41 1 0:50 /sub /other rw - fuse.leasefs nas:/ rw\n");
        assert!(!has_mount_inside(&table, (0, 50)));
    }

    #[test]
    fn a_mount_on_one_of_our_directories_is_inside() {
        let bind = format!("{OURS}41 40 0:50 /x /mnt/a/y rw - fuse.leasefs nas:/ rw\n");
        assert!(has_mount_inside(&bind, (0, 50)));
        let tmpfs = format!("{OURS}41 40 0:60 / /mnt/a/y rw - tmpfs tmpfs rw\n");
        assert!(has_mount_inside(&tmpfs, (0, 50)));
    }

    #[test]
    fn the_mount_table_of_this_host_can_be_watched() {
        let inside = Inside::watch((u32::MAX, 0)).expect("the mount table");
        assert!(!inside.any());
    }
}
