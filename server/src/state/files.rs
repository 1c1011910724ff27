//! Small files that may not be there.

use super::error::StateError;
use leasefs_host::files::replace;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io;
use std::path::Path;

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
    leasefs_host::random::random().map_err(StateError::Random)
}
