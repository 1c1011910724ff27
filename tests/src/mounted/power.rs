//! Power cuts of the storage host, as far as one machine can have them: the server's process and
//! the storage die together, and the server finds another boot id.

use super::storage::Storage;
use super::world::{World, WorldOptions};
use rustix::process::Signal;
use std::fs;

/// Size of the storage.
const DISK_MIB: u64 = 256;
/// By which a debug build of the server is told its host's boot id.
const BOOT_ID: &str = "LEASEFS_TEST_BOOT_ID";

/// Where the server's state directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateOn {
    /// On the storage that loses its power with the export.
    TheStorage,
    /// On another, which loses nothing.
    AnotherDisk,
}

impl World {
    /// As [`World::start`], the export on a storage of its own.
    ///
    /// # Panics
    /// As [`World::start`]; also without root or loop devices.
    pub fn start_on_storage(name: &str, options: &WorldOptions, state: StateOn) -> Self {
        let storage = Storage::new(name, DISK_MIB);
        let folder = |name: &str| {
            let path = storage.dir().join(name);
            fs::create_dir(&path).expect("a folder on the storage");
            path
        };
        let mut options = options.clone().export(&folder("export"));
        options.server.state = (state == StateOn::TheStorage).then(|| folder("state"));
        storage.sync();
        let mut world = Self::start(name, &options);
        world.storage = Some(storage);
        world
    }

    /// The storage under the export.
    ///
    /// # Panics
    /// Unless started by [`World::start_on_storage`].
    pub fn storage(&self) -> &Storage {
        self.storage.as_ref().expect("a world on a storage")
    }

    /// The server's host has no power any more.
    ///
    /// # Panics
    /// As [`World::storage`], and if the server does not end.
    pub fn power_fails(&mut self) {
        // The server first: what the kernel says on a storage that is gone, nobody is told.
        self.server.daemon.signal(Signal::KILL);
        self.storage().shut_down();
        self.server.daemon.kill();
    }

    /// It has power again, and its storage is mounted; the server is not started yet.
    ///
    /// # Panics
    /// As [`Storage::mount_again`].
    pub fn power_returns(&mut self) {
        self.storage().mount_again();
        self.power_cuts += 1;
        let boot_id = format!("{:032x}", self.power_cuts);
        let env = &mut self.server.options.env;
        env.retain(|(name, _)| name != BOOT_ID);
        env.push((BOOT_ID.to_owned(), boot_id));
    }
}
