//! What the work is done with: made once, on a local file system.

use super::programs;
use super::scale::Scale;
use super::work::{MIB, create, write_new};
use crate::rng::Rng;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The source tree's directories.
const FOLDERS: usize = 40;

/// A source tree, packed and as a repository.
#[derive(Debug)]
pub struct Inputs {
    /// Packed.
    pub archive: PathBuf,
    /// A bare repository.
    pub repository: PathBuf,
}

impl Inputs {
    /// Makes them in an empty directory.
    ///
    /// # Errors
    /// If that fails.
    pub fn make(dir: &Path, scale: &Scale) -> io::Result<Self> {
        let inputs = Self {
            archive: dir.join("tree.tar"),
            repository: dir.join("tree.git"),
        };
        let tree = dir.join("tree");
        let mut chance = Rng::new(1);
        for number in 0..scale.tree {
            let folder = tree.join(format!(
                "part-{}/module-{}",
                number % FOLDERS / 8,
                number % FOLDERS
            ));
            fs::create_dir_all(&folder)?;
            fs::write(
                folder.join(format!("source-{number}.txt")),
                source(&mut chance)?,
            )?;
        }
        programs::tar(&tree, &inputs.archive)?;
        programs::git_import(&tree, &inputs.repository)?;
        Ok(inputs)
    }

    /// Puts into an empty directory what is read there.
    ///
    /// # Errors
    /// If that fails.
    pub fn fill(&self, dir: &Path, scale: &Scale) -> io::Result<()> {
        write_new(&dir.join("large"), scale.large, MIB, true)?;
        fs::create_dir(dir.join("small"))?;
        create(&dir.join("small"), scale.small, 1)?;
        fs::create_dir(dir.join("many"))?;
        for number in 0..scale.many {
            fs::write(dir.join(format!("many/entry-{number}")), b"")?;
        }
        programs::git_clone(&self.repository, &dir.join("repository"))
    }
}

/// Lines of words; some 3 KiB, seldom many more.
fn source(chance: &mut Rng) -> io::Result<Vec<u8>> {
    let length =
        (200 << chance.below(5)) + chance.below(2000) + 20_000 * usize::from(chance.chance(3));
    let mut text = Vec::new();
    while text.len() < length {
        for _ in 0..chance.between(3, 10) {
            write!(text, "word{} ", chance.below(800))?;
        }
        text.push(b'\n');
    }
    Ok(text)
}
