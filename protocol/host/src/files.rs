//! Files that survive a crash of the host, whole or not at all. All are of mode 0600.

use crate::random::random;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Replaces a file, durably: after a crash it has its old or its new content. One at a time per file.
///
/// # Errors
/// The kernel's.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = draft(path);
    remove_if_there(&draft)?;
    write_new(&draft, |file| file.write_all(content))?;
    fs::rename(&draft, path)?;
    sync_parent(path)
}

/// Makes a file, durably; of several at once one wins, and one that is there already stays.
///
/// # Errors
/// The kernel's.
pub fn make(path: &Path, content: &[u8]) -> io::Result<()> {
    let number = u64::from_le_bytes(random()?);
    let draft = with_suffix(path, &format!(".{number:016x}.new"));
    let linked = write_new(&draft, |file| file.write_all(content))
        .and_then(|()| fs::hard_link(&draft, path));
    // The draft of a process that was killed stays; its name is nobody else's.
    let _ = fs::remove_file(&draft);
    match linked {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_parent(path),
    }
}

/// Writes a new file; its content survives the host when this returns, its name not yet.
///
/// # Errors
/// The kernel's, or that of `write`.
pub fn write_new(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let create = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    create.and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()
    })
}

/// An empty file in place of whatever has the name, for appending.
///
/// # Errors
/// The kernel's.
pub fn create(path: &Path) -> io::Result<File> {
    remove_if_there(path)?;
    OpenOptions::new()
        .read(true)
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Where a new version of a file is written.
pub fn draft(path: &Path) -> PathBuf {
    with_suffix(path, ".new")
}

/// Makes durable that a file has its name.
///
/// # Errors
/// The kernel's.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder),
        _ => sync_folder(Path::new(".")),
    }
}

/// Makes durable which names a folder has.
///
/// # Errors
/// The kernel's.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes a folder of mode 0700 and those above it that don't exist, durably.
///
/// # Errors
/// The kernel's.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    let new = folder.ancestors().take_while(|above| !above.exists());
    let new: Vec<&Path> = new.collect();
    let mut maker = DirBuilder::new();
    maker.recursive(true).mode(0o700).create(folder)?;
    new.into_iter().rev().try_for_each(sync_parent)
}

/// Removes a file, if there is one.
///
/// # Errors
/// The kernel's.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_replaced_file_has_the_new_content_for_its_owner_alone_and_leaves_no_draft() {
        let scratch = Scratch::new();
        let path = scratch.path("f");
        fs::write(draft(&path), "of a crash").expect("written");
        for content in ["one", "two"] {
            replace(&path, content.as_bytes()).expect("replaced");
            assert_eq!(fs::read_to_string(&path).expect("there"), content);
        }
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o600);
        assert!(!draft(&path).exists());
    }

    #[test]
    fn of_two_who_make_a_file_the_first_wins_and_nothing_else_is_left() {
        let scratch = Scratch::new();
        let path = scratch.path("f");
        make(&path, b"one").expect("made");
        make(&path, b"two").expect("it is there");
        assert_eq!(fs::read(&path).expect("there"), b"one");
        assert_eq!(fs::read_dir(scratch.path(".")).expect("read").count(), 1);
    }

    #[test]
    fn folders_are_made_with_all_above_them() {
        let scratch = Scratch::new();
        let deep = scratch.path("a/b/c");
        make_folder(&deep).expect("made");
        make_folder(&deep).expect("there already");
        assert_eq!(fs::metadata(deep).expect("there").mode() & 0o7777, 0o700);
    }
}
