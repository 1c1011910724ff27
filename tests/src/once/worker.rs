//! What the workers do. Each stops at the first answer that can't be true.

use super::Mark;
use super::model::Model;
use crate::rng::Rng;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXCLUSIVE: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::WRONLY);
/// Names a worker has at most.
const MOST_NAMES: usize = 24;
/// Longest a file grows.
const MOST_BYTES: u64 = 4096;
/// Objects that may be replaced under a watcher before its name must lead to one.
const STALE_IN_A_ROW: usize = 3;
/// After so many records a log's writer pauses.
const RECORDS: u64 = 32;
/// Between two looks of a watcher, and between the records of a log's writer.
const PAUSE: Duration = Duration::from_millis(2);

/// An answer that can't be true.
pub type Wrong = String;

fn right<T>(what: impl FnOnce() -> String, result: io::Result<T>) -> Result<T, Wrong> {
    result.map_err(|error| format!("{}: {error}", what()))
}

/// Makes, links, renames, appends to and removes names of its own.
pub fn tree(dir: &Path, prefix: &str, mut rng: Rng, mark: &Mark) -> Result<Model, Wrong> {
    let mut tree = Tree {
        dir,
        prefix,
        model: Model::default(),
    };
    while mark.goes_on() {
        tree.step(&mut rng)?;
        mark.done();
    }
    Ok(tree.model)
}

struct Tree<'a> {
    dir: &'a Path,
    prefix: &'a str,
    model: Model,
}

impl Tree<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn fresh(&mut self) -> String {
        format!("{}-{}", self.prefix, self.model.fresh())
    }

    fn step(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        let (files, folders) = (self.model.of_kind(false), self.model.of_kind(true));
        let full = files.len() + folders.len() >= MOST_NAMES;
        let any = |rng: &mut Rng, of: &[String]| of[rng.below(of.len())].clone();
        match rng.below(11) {
            0 | 1 if !full => self.create(),
            2 if !full => self.mkdir(),
            3 if !folders.is_empty() => self.rmdir(&any(rng, &folders)),
            4 if !files.is_empty() && !full => self.link(&any(rng, &files)),
            5 if !files.is_empty() => self.unlink(&any(rng, &files)),
            6 if !files.is_empty() => self.rename(&any(rng, &files), None),
            7 if files.len() > 1 => {
                let new = any(rng, &files);
                self.rename(&any(rng, &files), Some(new))
            }
            8 if files.len() > 1 => self.exchange(&any(rng, &files), &any(rng, &files)),
            9 if !files.is_empty() => self.unlink_open(&any(rng, &files)),
            _ if !files.is_empty() => self.append(&any(rng, &files)),
            _ => self.create(),
        }
    }

    fn create(&mut self) -> Result<(), Wrong> {
        let name = self.fresh();
        // The standard library would ask again after EINTR.
        let created = rustix::fs::open(self.path(&name), EXCLUSIVE, 0o644.into());
        right(|| format!("create {name}"), created.map_err(Into::into))?;
        self.model.made(&name, false);
        Ok(())
    }

    fn mkdir(&mut self) -> Result<(), Wrong> {
        let name = self.fresh();
        right(|| format!("mkdir {name}"), fs::create_dir(self.path(&name)))?;
        self.model.made(&name, true);
        Ok(())
    }

    fn rmdir(&mut self, name: &str) -> Result<(), Wrong> {
        right(|| format!("rmdir {name}"), fs::remove_dir(self.path(name)))?;
        self.model.removed(name);
        Ok(())
    }

    fn link(&mut self, old: &str) -> Result<(), Wrong> {
        let new = self.fresh();
        let linked = fs::hard_link(self.path(old), self.path(&new));
        right(|| format!("link {old} {new}"), linked)?;
        self.model.linked(old, &new);
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> Result<(), Wrong> {
        right(
            || format!("unlink {name}"),
            fs::remove_file(self.path(name)),
        )?;
        self.model.removed(name);
        Ok(())
    }

    /// To a name that is free, or replacing what it denotes.
    fn rename(&mut self, old: &str, new: Option<String>) -> Result<(), Wrong> {
        let flags = match new {
            Some(_) => RenameFlags::empty(),
            None => RenameFlags::NOREPLACE,
        };
        let new = new.unwrap_or_else(|| self.fresh());
        let renamed = renameat_with(CWD, self.path(old), CWD, self.path(&new), flags);
        right(
            || format!("rename {old} {new}"),
            renamed.map_err(Into::into),
        )?;
        self.model.renamed(old, &new);
        Ok(())
    }

    fn exchange(&mut self, one: &str, other: &str) -> Result<(), Wrong> {
        let (a, b) = (self.path(one), self.path(other));
        let exchanged = renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
        right(
            || format!("exchange {one} {other}"),
            exchanged.map_err(Into::into),
        )?;
        self.model.exchanged(one, other);
        Ok(())
    }

    /// A file that is open stays what it is when its name goes.
    fn unlink_open(&mut self, name: &str) -> Result<(), Wrong> {
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .open(self.path(name));
        let mut file = right(|| format!("open {name}"), opened)?;
        let record = format!("{}.", self.model.fresh());
        self.model.appended(name, &record);
        let expected = self.model.content(name).unwrap_or_default().to_owned();
        self.unlink(name)?;
        let written = file.write_all(record.as_bytes());
        right(|| format!("append to {name}, unlinked"), written)?;
        let mut found = String::new();
        let read = file.rewind().and_then(|()| file.read_to_string(&mut found));
        right(|| format!("read {name}, unlinked"), read)?;
        match found == expected {
            true => Ok(()),
            false => Err(format!(
                "{name}, unlinked: expected {expected:?}, found {found:?}"
            )),
        }
    }

    fn append(&mut self, name: &str) -> Result<(), Wrong> {
        let path = self.path(name);
        let opened = OpenOptions::new().append(true).open(&path);
        let mut file = right(|| format!("open {name}"), opened)?;
        let meta = right(|| format!("stat {name}"), file.metadata())?;
        if meta.len() > MOST_BYTES {
            return Ok(());
        }
        let record = format!("{}.", self.model.fresh());
        let written = file.write_all(record.as_bytes());
        right(|| format!("append to {name}"), written)?;
        self.model.appended(name, &record);
        Ok(())
    }
}

/// Appends numbered records to a log that others append to. Returns how many, and whether it was told
/// that some could not be brought in.
pub fn log(dir: &Path, number: usize, mark: &Mark) -> Result<(u64, bool), Wrong> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("log"));
    let mut file = right(|| "open the log".to_owned(), opened)?;
    let mut records: u64 = 0;
    while mark.goes_on() {
        let record = format!("{number} {records}\n");
        let written = file.write_all(record.as_bytes());
        right(|| "append to the log".to_owned(), written)?;
        records += 1;
        mark.done();
        if records.is_multiple_of(RECORDS) {
            std::thread::sleep(PAUSE);
        }
    }
    match file.sync_all() {
        Ok(()) => Ok((records, false)),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok((records, true)),
        Err(error) => Err(format!("fsync the log: {error}")),
    }
}

/// Creates names exclusively that another creates too. Returns for each whether it won.
pub fn race(dir: &Path, mark: &Mark) -> Result<Vec<bool>, Wrong> {
    let mut won = Vec::new();
    while mark.goes_on() {
        let name = format!("race-{}", won.len());
        // The standard library would ask again after EINTR.
        let created = rustix::fs::open(dir.join(&name), EXCLUSIVE, 0o644.into());
        match created {
            Ok(_) => won.push(true),
            Err(Errno::EXIST) => won.push(false),
            Err(error) => return Err(format!("create {name}: {error}")),
        }
        mark.done();
    }
    Ok(won)
}

/// Replaces a file again and again, as an editor saves. Returns the last number in it.
pub fn replace(dir: &Path, mark: &Mark) -> Result<u64, Wrong> {
    let (draft, file) = (dir.join("draft"), dir.join("current"));
    let mut number = 0;
    while mark.goes_on() {
        number += 1;
        let drafted = fs::write(&draft, format!("{number}.\n"));
        right(|| format!("write draft {number}"), drafted)?;
        let renamed = fs::rename(&draft, &file);
        right(|| format!("rename draft {number}"), renamed)?;
        mark.done();
    }
    Ok(number)
}

/// Looks at the file that is replaced: it is never missing, never in part, and never goes back.
pub fn watch(dir: &Path, mark: &Mark) -> Result<(), Wrong> {
    let file = dir.join("current");
    let mut newest = 0;
    while mark.goes_on() {
        let text = right(|| "read the replaced file".to_owned(), read_fresh(&file))?;
        let number = text.strip_suffix(".\n").and_then(|n| n.parse::<u64>().ok());
        let number = number.ok_or_else(|| format!("the replaced file holds {text:?}"))?;
        if number < newest {
            return Err(format!("the replaced file went from {newest} to {number}"));
        }
        newest = number;
        mark.done();
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A file that is replaced while its reader is cut off longer than the term, and the server crashes
/// besides, goes stale in the reader's hand (ESTALE, or EIO by way of readahead). Its name doesn't.
fn read_fresh(file: &Path) -> io::Result<String> {
    for _ in 0..STALE_IN_A_ROW {
        match fs::read_to_string(file) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESTALE | libc::EIO)) => {}
            read => return read,
        }
    }
    fs::read_to_string(file)
}
