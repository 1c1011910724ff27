//! The state directory: this client's key, the keys of its servers, logs, the recovery folder.

use super::pins::Pins;
use crate::recovery::Recovery;
use leasefs_host::{mounts, paths, private};
use leasefs_transport::Identity;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A log over this size is set aside when a daemon starts.
const LARGE_LOG: u64 = 4 << 20;

/// A client's state directory. All of it lies in the folder `client`, of mode 0700, so that a
/// server may have the same state directory.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// Where a daemon logs to.
#[derive(Debug)]
pub struct LogFile {
    /// Its name.
    pub path: PathBuf,
    /// Open for appending.
    pub file: File,
}

impl StateDir {
    /// The directory at `path`, or the user's; made if there is none. One below the mount point is
    /// refused: it couldn't be reached without itself.
    ///
    /// # Errors
    /// A message for people.
    pub fn open(path: Option<&Path>, mount: &Path) -> Result<Self, String> {
        let state = Self::find(path)?;
        must_be_outside(&state.path, mount)?;
        let own = state.path.join("client");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&own)
            .map_err(|e| format!("can't make the state directory {}: {e}", own.display()))?;
        private::own_folder_within(&state.path, &own)
            .map_err(|e| format!("the state directory can't be used: {e}"))?;
        Ok(state)
    }

    /// The directory at `path`, or the user's, whether there is one or not.
    ///
    /// # Errors
    /// A message for people.
    pub fn find(path: Option<&Path>) -> Result<Self, String> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => paths::state().map_err(|e| e.to_string())?,
        };
        let path = std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self { path })
    }

    /// Its path, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn own(&self, name: &str) -> PathBuf {
        self.path.join("client").join(name)
    }

    /// This client's key, made on first use.
    ///
    /// # Errors
    /// A message for people.
    pub fn identity(&self) -> Result<Identity, String> {
        Identity::load_or_create(&self.own("client.key")).map_err(|e| e.to_string())
    }

    /// This client's key, or one of the moment if it has none yet: nothing is made.
    ///
    /// # Errors
    /// A message for people.
    pub fn known_identity(&self) -> Result<Identity, String> {
        match self.own("client.key").exists() {
            true => self.identity(),
            false => Identity::generate().map_err(|e| e.to_string()),
        }
    }

    /// Whether it is there, and this user's alone.
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn check(&self) -> Result<bool, String> {
        let own = self.path.join("client");
        match private::own_folder(&own) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The pinned keys of servers.
    pub fn pins(&self) -> Pins {
        Pins::new(self.own("servers.json"))
    }

    /// Where data is kept that could not be brought in.
    pub fn recovery(&self) -> Recovery {
        let is_default = paths::state().is_ok_and(|default| default == self.path);
        Recovery::of(&self.path, is_default.then_some(Path::new(paths::ROOTS)))
    }

    /// The log of the daemon of a mount point.
    ///
    /// # Errors
    /// A message for people.
    pub fn log_file(&self, mount: &Path) -> Result<LogFile, String> {
        let name = super::control::name_of(mount);
        let path = self.own(&format!("{name}.log"));
        if fs::metadata(&path).is_ok_and(|log| log.len() > LARGE_LOG) {
            // If it can't be set aside it only grows.
            let _ = fs::rename(&path, path.with_extension("log.old"));
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| format!("can't open the log {}: {e}", path.display()))?;
        Ok(LogFile { path, file })
    }
}

/// Judged by the part of the path that exists.
fn must_be_outside(path: &Path, mount: &Path) -> Result<(), String> {
    let real = path
        .ancestors()
        .find_map(|ancestor| fs::canonicalize(ancestor).ok())
        .unwrap_or_default();
    if real.starts_with(mount) {
        return Err(format!(
            "the state directory {} lies in the mount point {}: choose another with --state",
            path.display(),
            mount.display()
        ));
    }
    let table = mounts::table().map_err(|e| format!("the mount table: {e}"))?;
    match mounts::of(&table, &real) {
        Some(lies_in) if lies_in.is_leasefs => Err(format!(
            "the state directory {} lies on the leasefs mount {}: choose one on this machine with --state",
            path.display(),
            lies_in.point.display()
        )),
        _ => Ok(()),
    }
}
