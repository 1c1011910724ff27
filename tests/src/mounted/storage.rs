//! A small file system of its own for an export: it can be filled, and lost.

use super::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use std::process::Command;

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
        let file = std::fs::File::create(&image).expect("an image file");
        file.set_len(mib * 1024 * 1024).expect("room for the image");
        let dir = sandbox.folder("disk");
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&dir));
        Self { dir, sandbox }
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
