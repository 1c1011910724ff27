//! What is there: all that the writers have left, read in one go.

use super::journal::FileId;
use super::stamp::CELL;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name of [`super::journal::STRIPES`].
const STRIPES_NAME: &str = "stripes";
/// Name of [`super::journal::LOG`].
const LOG_NAME: &str = "log";
/// Bytes of a stripe; it belongs to the writer whose turn it is.
pub const STRIPE: u64 = 16 * CELL as u64;

/// The directory of a writer.
pub fn home(root: &Path, writer: u16) -> PathBuf {
    root.join(format!("w{writer}"))
}

/// The file that all writers share by stripes.
pub fn stripes(root: &Path) -> PathBuf {
    root.join(STRIPES_NAME)
}

/// The file to which all append.
pub fn log(root: &Path) -> PathBuf {
    root.join(LOG_NAME)
}

/// The name that a writer gives a new file.
pub fn name_of(file: FileId) -> String {
    format!("f{}", file.0 & 0xffff)
}

/// Content of a writer's directory, by name.
pub type Home = BTreeMap<String, Vec<u8>>;

/// All that the writers have left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Each writer's directory.
    pub homes: Vec<Home>,
    /// The file shared by stripes.
    pub stripes: Vec<u8>,
    /// The common log.
    pub log: Vec<u8>,
}

impl Snapshot {
    /// Reads everything below `root`.
    ///
    /// # Errors
    /// The kernel's, with the path.
    pub fn take(root: &Path, writers: u16) -> io::Result<Self> {
        let homes = (0..writers).map(|writer| read_home(&home(root, writer)));
        Ok(Self {
            homes: homes.collect::<io::Result<_>>()?,
            stripes: read(&stripes(root))?,
            log: read(&log(root))?,
        })
    }

    /// The first difference, in words.
    pub fn difference(&self, other: &Self) -> Option<String> {
        for (writer, (here, there)) in self.homes.iter().zip(&other.homes).enumerate() {
            let names = |home: &Home| home.keys().cloned().collect::<Vec<_>>();
            if names(here) != names(there) {
                let (here, there) = (names(here), names(there));
                return Some(format!("names of writer {writer}: {here:?} and {there:?}"));
            }
            let mut both = here.iter().zip(there.values());
            if let Some(found) = both.find_map(|((name, a), b)| differ(name, a, b)) {
                return Some(format!("writer {writer}: {found}"));
            }
        }
        differ(STRIPES_NAME, &self.stripes, &other.stripes)
            .or_else(|| differ(LOG_NAME, &self.log, &other.log))
    }
}

fn differ(name: &str, here: &[u8], there: &[u8]) -> Option<String> {
    if here == there {
        return None;
    }
    let same = here.iter().zip(there).take_while(|(a, b)| a == b).count();
    let (a, b) = (here.len(), there.len());
    Some(format!("{name}: {a} and {b} bytes, the first {same} equal"))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::read(path).map_err(named)
}

fn read_home(dir: &Path) -> io::Result<Home> {
    let mut home = Home::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        home.insert(name, read(&entry.path())?);
    }
    Ok(home)
}
