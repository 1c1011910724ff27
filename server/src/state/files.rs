//! Small files that are whole or not there.

use super::error::StateError;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces a file, durably: after a crash it has its old or its new content. Mode 0600.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = draft(path);
    let mut file = create(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    sync_folder(path)
}

/// Where a new version of a file is written.
pub fn draft(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    draft.into()
}

/// An empty file of mode 0600.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new()
        .read(true)
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Makes durable that a file has its name.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// The content of a file; `None` if there is none.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StateError::file(path)(e)),
    }
}

/// What a JSON file says; `None` if there is none.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let damaged = |e: serde_json::Error| StateError::Damaged {
        path: path.to_owned(),
        why: e.to_string(),
    };
    read(path)?
        .map(|content| serde_json::from_slice(&content).map_err(damaged))
        .transpose()
}

/// Replaces a JSON file, durably.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut content = serde_json::to_vec_pretty(value)?;
    content.push(b'\n');
    replace(path, &content)
}

/// Random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| StateError::Random)?;
    Ok(bytes)
}
