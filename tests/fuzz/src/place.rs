//! A directory for what a target needs on a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes with its owner, in memory unless told otherwise (`TMPDIR`).
#[derive(Debug)]
pub struct Place(PathBuf);

fn base() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match std::env::var_os("TMPDIR") {
        None if memory.is_dir() => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

impl Place {
    /// A fresh one.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = base().join(format!("leasefs-fuzz-{}-{number}", std::process::id()));
        fs::create_dir(&place).expect("a fresh directory");
        Self(place)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of something in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
