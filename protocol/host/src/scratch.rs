//! A folder for a test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A scratch folder, removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-host-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a scratch folder");
        Self(path)
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
