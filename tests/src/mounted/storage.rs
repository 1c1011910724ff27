//! A small file system of its own for an export: it can be filled, and lost.

use super::sandbox::Sandbox;
use super::wait::eventually;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// `EXT4_IOC_SHUTDOWN`: `_IOR('X', 125, __u32)`.
const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
/// Its flag to drop the journal that isn't on the disk.
const NO_LOG_FLUSH: u32 = 2;

/// A loop-mounted ext4, gone when dropped. Declare it before the [`super::World`] that serves it
/// (what is declared first is dropped last).
#[derive(Debug)]
pub struct Storage {
    dir: PathBuf,
    sandbox: Sandbox,
}

impl Storage {
    /// A file system of `mib` MiB.
    ///
    /// # Panics
    /// When it can't be made: this needs root and loop devices.
    pub fn new(name: &str, mib: u64) -> Self {
        let sandbox = Sandbox::new(name);
        let image = sandbox.root().join("image");
        let file = File::create(&image).expect("an image file");
        file.set_len(mib * 1024 * 1024).expect("room for the image");
        let dir = sandbox.folder("disk");
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let storage = Self { dir, sandbox };
        storage.mount();
        storage
    }

    fn mount(&self) {
        let image = self.sandbox.root().join("image");
        let mut command = Command::new("mount");
        run(command.args(["-o", "loop"]).arg(image).arg(&self.dir));
    }

    /// Makes durable all that is on it.
    ///
    /// # Panics
    /// When it can't be.
    pub fn sync(&self) {
        let dir = File::open(&self.dir).expect("the storage");
        rustix::fs::syncfs(dir).expect("it can be synced");
    }

    /// Cuts its power: from now on nothing reaches it any more, and all calls fail.
    ///
    /// # Panics
    /// When the kernel doesn't do it.
    pub fn shut_down(&self) {
        let dir = File::open(&self.dir).expect("the storage");
        let flag = NO_LOG_FLUSH;
        // SAFETY: the call reads one u32, which is there.
        let done = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &raw const flag) };
        assert_eq!(done, 0, "EXT4_IOC_SHUTDOWN: {}", io::Error::last_os_error());
    }

    /// Mounts it again after [`Storage::shut_down`]: with what was durable, and what the kernel had
    /// happened to write besides.
    ///
    /// # Panics
    /// When something on it is in use for longer than a killed process takes to go.
    pub fn mount_again(&self) {
        let unmounted = || {
            let output = Command::new("umount").arg(&self.dir).output();
            output
                .is_ok_and(|output| output.status.success())
                .then_some(())
        };
        let users = || {
            format!(
                "{:?}",
                Command::new("fuser").arg("-vm").arg(&self.dir).output()
            )
        };
        let limit = Duration::from_secs(20);
        eventually("the storage to be free", limit, unmounted, users);
        self.mount();
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        run(Command::new("umount").arg(&self.dir));
        let left = self.sandbox.clean();
        assert!(
            left.is_empty() || std::thread::panicking(),
            "left: {left:?}"
        );
    }
}

fn run(command: &mut Command) {
    let output = command.output();
    let ok = output.as_ref().is_ok_and(|output| output.status.success());
    assert!(ok || std::thread::panicking(), "{command:?}: {output:?}");
}
