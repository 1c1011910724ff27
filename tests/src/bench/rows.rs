//! What is measured.

use super::programs::{clone, sqlite, status, status_cold, unpack};
use super::sharing::{appear, pingpong, while_read};
use super::trial::{Sample, Trial};
use super::work::{
    MIB, PIECE, append_and_sync, append_line, create, create_one, list, numbered, open_and_read,
    over_and_over, read_at_random, read_through, scatter_and_sync, spread, write_new,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One kind of work.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// Of its value.
    pub unit: &'static str,
    /// What is one operation.
    pub operation: &'static str,
    /// What is done.
    pub what: &'static str,
    /// Whether it makes sense only where mounts see each other's work.
    pub shared: bool,
    /// Does it.
    pub run: fn(&mut Trial) -> io::Result<Sample>,
}

/// All there are, in the order in which they are run.
pub const ROWS: [Row; 27] = [
    row(
        "open",
        "/s",
        "open",
        "open, read and close files of 4 KiB, cached",
        open,
    ),
    row("stat", "/s", "stat", "stat of files, cached", stat),
    row(
        "read",
        "MB/s",
        "MiB",
        "read a file in sequence, cached",
        read,
    ),
    row(
        "ls-cold",
        "/s",
        "listing",
        "entries of a directory and stat of each, nothing cached",
        ls_cold,
    ),
    row("ls", "/s", "listing", "the same, cached", ls),
    row(
        "ls-new",
        "/s",
        "listing",
        "the same of what another mount has just created",
        ls_new,
    )
    .shared(),
    row(
        "open-cold",
        "/s",
        "file",
        "open, read and close files of 4 KiB, nothing cached",
        open_cold,
    ),
    row(
        "read-cold",
        "MB/s",
        "MiB",
        "read a file in sequence, nothing cached",
        read_cold,
    ),
    row(
        "random-cold",
        "/s",
        "read",
        "read 4 KiB at random, nothing cached",
        random_cold,
    ),
    row(
        "random16-cold",
        "/s",
        "read",
        "the same, 16 threads",
        random16_cold,
    ),
    row(
        "write-sync",
        "MB/s",
        "MiB",
        "write a new file in sequence, fsync",
        write_sync,
    ),
    row(
        "write",
        "MB/s",
        "MiB",
        "the same in pieces of 4 KiB, no fsync",
        write,
    ),
    row(
        "create",
        "/s",
        "file",
        "create, write 4 KiB, close",
        create_alone,
    ),
    row(
        "create4",
        "/s",
        "file",
        "the same, 4 threads",
        create_by_four,
    ),
    row("rename", "/s", "file", "rename", rename),
    row("unlink", "/s", "file", "unlink", unlink),
    row("untar", "s", "file", "tar unpacks a source tree", unpack),
    row(
        "git-clone",
        "s",
        "file",
        "git clone of the same tree",
        clone,
    ),
    row("git-status", "s", "run", "git status, cached", status),
    row(
        "git-status-cold",
        "s",
        "run",
        "git status, nothing cached",
        status_cold,
    ),
    row(
        "sqlite",
        "/s",
        "transaction",
        "transactions of one row, rollback journal, synchronous=FULL",
        sqlite,
    ),
    row(
        "append-sync",
        "/s",
        "append",
        "append 4 KiB, fsync",
        append_sync,
    ),
    row("log", "/s", "line", "open a log, append a line, close", log),
    row(
        "scatter-sync",
        "/s",
        "sync",
        "write 32 pieces of 4 KiB that lie apart, fdatasync",
        scatter_sync,
    ),
    row(
        "ping-pong",
        "ms",
        "turn",
        "one mount writes, another reads: until it sees it, median",
        pingpong,
    )
    .shared(),
    row(
        "appear",
        "ms",
        "file",
        "one mount creates, another's stat finds it, median",
        appear,
    )
    .shared(),
    row(
        "written-while-read",
        "ms",
        "write",
        "one mount writes while all read: a write, median",
        while_read,
    )
    .shared(),
];

const fn row(
    name: &'static str,
    unit: &'static str,
    operation: &'static str,
    what: &'static str,
    run: fn(&mut Trial) -> io::Result<Sample>,
) -> Row {
    Row {
        name,
        unit,
        operation,
        what,
        shared: false,
        run,
    }
}

impl Row {
    /// Of several mounts.
    const fn shared(self) -> Self {
        Self {
            shared: true,
            ..self
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }

    /// Whether less of its unit is better.
    pub fn is_time(&self) -> bool {
        !self.unit.ends_with("/s")
    }
}

// ---- cached ----------------------------------------------------------------

fn small_files(trial: &Trial) -> Vec<PathBuf> {
    let dir = trial.path("small");
    (0..trial.scale.small)
        .map(|number| numbered(&dir, number))
        .collect()
}

/// Once so that all is cached, then over and over.
fn cached(trial: &mut Trial, act: fn(&Path) -> io::Result<()>) -> io::Result<Sample> {
    let (files, time) = (small_files(trial), trial.scale.time);
    files.iter().try_for_each(|path| act(path))?;
    let mut count = 0;
    let timed = trial.timed(|| {
        count = over_and_over(&files, time, act)?;
        Ok(count)
    })?;
    Ok(timed.rate(count as f64))
}

fn open(trial: &mut Trial) -> io::Result<Sample> {
    cached(trial, open_and_read)
}

fn stat(trial: &mut Trial) -> io::Result<Sample> {
    cached(trial, |path| fs::symlink_metadata(path).map(drop))
}

fn read(trial: &mut Trial) -> io::Result<Sample> {
    read_through(&trial.path("large"))?;
    read_large(trial)
}

fn read_large(trial: &mut Trial) -> io::Result<Sample> {
    let path = trial.path("large");
    let mut bytes = 0;
    let timed = trial.timed(|| {
        bytes = read_through(&path)?;
        Ok((bytes / MIB) as u64)
    })?;
    Ok(timed.megabytes(bytes))
}

// ---- listings --------------------------------------------------------------

fn list_of(trial: &mut Trial, dir: &Path) -> io::Result<Sample> {
    let mut entries = 0;
    let timed = trial.timed(|| {
        entries = list(dir)?;
        Ok(1)
    })?;
    Ok(timed.rate(entries as f64))
}

fn ls_cold(trial: &mut Trial) -> io::Result<Sample> {
    trial.system.remount()?;
    list_of(trial, &trial.path("many"))
}

fn ls(trial: &mut Trial) -> io::Result<Sample> {
    let dir = trial.path("many");
    list(&dir)?;
    list_of(trial, &dir)
}

fn ls_new(trial: &mut Trial) -> io::Result<Sample> {
    let name = trial.fresh("new");
    let there = trial.through(1, &name);
    fs::create_dir(&there)?;
    create(&there, trial.scale.created, 4)?;
    list_of(trial, &trial.path(&name))
}

// ---- reading what is not cached --------------------------------------------

fn open_cold(trial: &mut Trial) -> io::Result<Sample> {
    trial.system.remount()?;
    let files = small_files(trial);
    let timed = trial.timed(|| {
        files.iter().try_for_each(|path| open_and_read(path))?;
        Ok(files.len() as u64)
    })?;
    Ok(timed.rate(files.len() as f64))
}

fn read_cold(trial: &mut Trial) -> io::Result<Sample> {
    trial.system.remount()?;
    read_large(trial)
}

fn at_random(trial: &mut Trial, count: usize, threads: usize) -> io::Result<Sample> {
    trial.system.remount()?;
    let path = trial.path("large");
    let timed = trial.timed(|| {
        read_at_random(&path, count, threads)?;
        Ok(count as u64)
    })?;
    Ok(timed.rate(count as f64))
}

fn random_cold(trial: &mut Trial) -> io::Result<Sample> {
    at_random(trial, trial.scale.reads.0, 1)
}

fn random16_cold(trial: &mut Trial) -> io::Result<Sample> {
    at_random(trial, trial.scale.reads.1, 16)
}

// ---- writing ---------------------------------------------------------------

fn written(trial: &mut Trial, mib: usize, block: usize, sync: bool) -> io::Result<Sample> {
    let path = trial.fresh_path("written");
    let timed = trial.timed(|| {
        write_new(&path, mib, block, sync)?;
        Ok(mib as u64)
    })?;
    fs::remove_file(&path)?;
    Ok(timed.megabytes(mib * MIB))
}

fn write_sync(trial: &mut Trial) -> io::Result<Sample> {
    written(trial, trial.scale.large, MIB, true)
}

fn write(trial: &mut Trial) -> io::Result<Sample> {
    written(trial, trial.scale.pieces, PIECE, false)
}

fn append_sync(trial: &mut Trial) -> io::Result<Sample> {
    let (path, count) = (trial.fresh_path("log"), trial.scale.syncs);
    fs::write(&path, b"")?;
    let timed = trial.timed(|| {
        append_and_sync(&path, count)?;
        Ok(count as u64)
    })?;
    Ok(timed.rate(count as f64))
}

fn log(trial: &mut Trial) -> io::Result<Sample> {
    let (path, count) = (trial.fresh_path("log"), trial.scale.syncs);
    append_line(&path)?;
    let timed = trial.timed(|| {
        (0..count).try_for_each(|_| append_line(&path))?;
        Ok(count as u64)
    })?;
    Ok(timed.rate(count as f64))
}

fn scatter_sync(trial: &mut Trial) -> io::Result<Sample> {
    let (path, count) = (trial.fresh_path("pieces"), trial.scale.syncs / 2);
    write_new(&path, 1, PIECE, true)?;
    let timed = trial.timed(|| {
        scatter_and_sync(&path, count)?;
        Ok(count as u64)
    })?;
    Ok(timed.rate(count as f64))
}

// ---- names -----------------------------------------------------------------

/// Something done with each of the files a row is about, which are there or not.
fn files(
    trial: &mut Trial,
    there: bool,
    threads: usize,
    act: fn(&Path) -> io::Result<()>,
) -> io::Result<Sample> {
    let (dir, count) = (trial.fresh_dir("files")?, trial.scale.created);
    if there {
        create(&dir, count, 4)?;
    }
    let timed = trial.timed(|| {
        spread(count, threads, |number| act(&numbered(&dir, number)))?;
        Ok(count as u64)
    })?;
    Ok(timed.rate(count as f64))
}

fn create_alone(trial: &mut Trial) -> io::Result<Sample> {
    files(trial, false, 1, create_one)
}

fn create_by_four(trial: &mut Trial) -> io::Result<Sample> {
    files(trial, false, 4, create_one)
}

fn rename(trial: &mut Trial) -> io::Result<Sample> {
    files(trial, true, 1, |path| {
        fs::rename(path, path.with_extension("renamed"))
    })
}

fn unlink(trial: &mut Trial) -> io::Result<Sample> {
    files(trial, true, 1, |path| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_row_has_a_name_of_its_own_and_is_found_by_it() {
        let names: HashSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        assert!(
            ROWS.iter()
                .all(|row| Row::named(row.name).is_some_and(|found| found.what == row.what))
        );
        assert!(Row::named("nothing").is_none());
    }
}
