//! What several mounts do with the same files.

use super::trial::{Sample, Trial};
use super::work::{PIECE, spread};
use crate::rng::Rng;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a mount that is right may take to see something.
const LIMIT: Duration = Duration::from_secs(30);
/// Files that all read.
const FILES: usize = 64;
/// Pieces of each.
const PIECES: usize = 16;
/// How often one of them is written.
const PAUSE: Duration = Duration::from_millis(50);

/// The middle one.
pub fn median<T: Copy + PartialOrd>(mut values: Vec<T>) -> Option<T> {
    values.sort_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

/// The time from `begin` until `probe` is true.
fn until(begin: Instant, mut probe: impl FnMut() -> io::Result<bool>) -> io::Result<Duration> {
    while !probe()? {
        if begin.elapsed() > LIMIT {
            return Err(io::Error::other("the other mount doesn't see it"));
        }
    }
    Ok(begin.elapsed())
}

fn read_number(path: &Path) -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Two paths of one file. One opens, writes and closes it; the other opens, reads and closes it until it sees what
/// was written; then they change roles. How long each turn took.
///
/// # Errors
/// The first.
pub fn ping_pong(paths: [&Path; 2], turns: usize) -> io::Result<Vec<Duration>> {
    let [mut writer, mut reader] = paths;
    let mut took = Vec::new();
    for number in 1..=turns as u64 {
        let begin = Instant::now();
        let file = OpenOptions::new().write(true).open(writer)?;
        file.write_all_at(&number.to_le_bytes(), 0)?;
        drop(file);
        took.push(until(begin, || Ok(read_number(reader)? == number))?);
        (writer, reader) = (reader, writer);
    }
    Ok(took)
}

/// Two paths of one directory. One creates files that the other has looked for in vain, which looks until it finds
/// them. How long that took.
///
/// # Errors
/// The first.
pub fn appearing(paths: [&Path; 2], turns: usize) -> io::Result<Vec<Duration>> {
    let turn = |number| {
        let [here, there] = paths.map(|dir| dir.join(format!("new-{number}")));
        if fs::exists(&there)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::write(here, b"x")?;
        until(Instant::now(), || fs::exists(&there))
    };
    (0..turns).map(turn).collect()
}

/// Paths of one empty directory: puts there what is read, and reads it through each.
///
/// # Errors
/// The first.
pub fn prepare_read(dirs: &[PathBuf]) -> io::Result<()> {
    let [first, ..] = dirs else { return Ok(()) };
    spread(FILES, 8, |number| {
        fs::write(file(first, number), [1; PIECES * PIECE])
    })?;
    let each = FILES * dirs.len();
    spread(each, 16, |number| {
        fs::read(file(&dirs[number / FILES], number % FILES)).map(drop)
    })
}

fn file(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("read-{number}"))
}

/// Paths of a directory as [`prepare_read`] leaves it. All read its files at random while the first has a piece of one written now and then. How
/// long each time took.
///
/// # Errors
/// The first.
pub fn written_while_read(dirs: &[PathBuf], writes: usize) -> io::Result<Vec<Duration>> {
    let [first, ..] = dirs else {
        return Ok(Vec::new());
    };
    let ended = AtomicBool::new(false);
    let read = |seed: usize, dir: &Path| {
        let mut chance = Rng::new(seed as u64);
        while !ended.load(Ordering::Relaxed) {
            let file = File::open(file(dir, chance.below(FILES)))?;
            for _ in 0..PIECES {
                file.read_exact_at(&mut [0; PIECE], (chance.below(PIECES) * PIECE) as u64)?;
            }
        }
        io::Result::Ok(())
    };
    let write = || {
        let (mut chance, mut took) = (Rng::new(99), Vec::new());
        for _ in 0..writes {
            thread::sleep(PAUSE);
            let one = Instant::now();
            let file = OpenOptions::new()
                .write(true)
                .open(file(first, chance.below(FILES)))?;
            file.write_all_at(&[2; PIECE], 0)?;
            drop(file);
            took.push(one.elapsed());
        }
        io::Result::Ok(took)
    };
    thread::scope(|scope| {
        let readers: Vec<_> = dirs
            .iter()
            .enumerate()
            .map(|(seed, dir)| scope.spawn(move || read(seed, dir)))
            .collect();
        let took = write();
        ended.store(true, Ordering::Relaxed);
        for reader in readers {
            reader
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        took
    })
}

// ---- rows ----------------------------------------------------------------

/// The median of what each of `count` operations has taken.
fn each_took(
    trial: &mut Trial,
    count: usize,
    work: impl FnOnce() -> io::Result<Vec<Duration>>,
) -> io::Result<Sample> {
    let mut took = Vec::new();
    let timed = trial.timed(|| {
        took = work()?;
        Ok(count as u64)
    })?;
    Ok(timed.median(took))
}

pub(super) fn pingpong(trial: &mut Trial) -> io::Result<Sample> {
    let (name, turns) = (trial.fresh("ball"), trial.scale.turns);
    let paths = [0, 1].map(|mount| trial.through(mount, &name));
    fs::write(&paths[0], [0; 8])?;
    each_took(trial, turns, || ping_pong([&paths[0], &paths[1]], turns))
}

pub(super) fn appear(trial: &mut Trial) -> io::Result<Sample> {
    let (name, turns) = (trial.fresh("appear"), trial.scale.turns);
    let dirs = [0, 1].map(|mount| trial.through(mount, &name));
    fs::create_dir(&dirs[0])?;
    each_took(trial, turns, || appearing([&dirs[0], &dirs[1]], turns))
}

pub(super) fn while_read(trial: &mut Trial) -> io::Result<Sample> {
    let (name, writes) = (trial.fresh("read"), trial.scale.writes);
    let dirs: Vec<PathBuf> = (0..trial.system.dirs().len())
        .map(|mount| trial.through(mount, &name))
        .collect();
    fs::create_dir(&dirs[0])?;
    prepare_read(&dirs)?;
    each_took(trial, writes, || written_while_read(&dirs, writes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted::Sandbox;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![9, 1, 5]), Some(5));
        assert_eq!(median::<u8>(vec![]), None);
    }

    #[test]
    fn on_one_directory_under_two_names_everything_is_seen() {
        let sandbox = Sandbox::new("sharing");
        let dir = sandbox.folder("shared");
        let file = dir.join("file");
        fs::write(&file, [0; 8]).expect("a file");
        assert_eq!(ping_pong([&file, &file], 5).expect("seen").len(), 5);
        assert_eq!(appearing([&dir, &dir], 5).expect("seen").len(), 5);
        let dirs = [dir.clone(), dir];
        prepare_read(&dirs).expect("files");
        let took = written_while_read(&dirs, 2).expect("written");
        assert_eq!(took.len(), 2);
        assert_eq!(sandbox.clean(), Vec::<String>::new());
    }
}
