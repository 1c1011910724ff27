//! The loops that are measured.

use rustix::fs::{Advice, fadvise};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// One.
pub const MIB: usize = 1 << 20;
/// A small file, and what is read at random.
pub const PIECE: usize = 4 << 10;
/// Coprime to every power of two: multiples of it, modulo one, come to each number once.
const STRIDE: usize = 0x9E37_79B1;

/// Has `threads` do `act` with each of `0..count`; tells the first error.
///
/// # Errors
/// As said.
pub fn spread(
    count: usize,
    threads: usize,
    act: impl Fn(usize) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            act(number)?;
        }
    };
    if threads == 1 {
        return work();
    }
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// File `number` of a directory.
pub fn numbered(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("file-{number}"))
}

/// Creates so many small files in an empty directory.
///
/// # Errors
/// The first.
pub fn create(dir: &Path, count: usize, threads: usize) -> io::Result<()> {
    spread(count, threads, |number| create_one(&numbered(dir, number)))
}

/// Creates, writes and closes a small file.
///
/// # Errors
/// If it can't.
pub fn create_one(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&[7; PIECE])
}

/// Opens, reads and closes a file.
///
/// # Errors
/// If it can't.
pub fn open_and_read(path: &Path) -> io::Result<()> {
    let mut buffer = [0; 2 * PIECE];
    let mut file = File::open(path)?;
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Does something to each of a directory's files once, and then for so long over and over. How often that was.
///
/// # Errors
/// The first.
pub fn over_and_over(
    files: &[PathBuf],
    time: Duration,
    act: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<u64> {
    let begin = Instant::now();
    let mut count = 0;
    for path in files.iter().cycle() {
        act(path)?;
        count += 1;
        // Telling the time costs about as much as what is measured.
        if count % 16 == 0 && begin.elapsed() > time {
            break;
        }
    }
    Ok(count)
}

/// What `ls -l` does: its names, and the attributes of each. How many there were.
///
/// # Errors
/// The first.
pub fn list(dir: &Path) -> io::Result<usize> {
    let mut entries = 0;
    for entry in fs::read_dir(dir)? {
        fs::symlink_metadata(entry?.path())?;
        entries += 1;
    }
    Ok(entries)
}

/// Reads a file from one end to the other; its length.
///
/// # Errors
/// If it can't.
pub fn read_through(path: &Path) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; MIB];
    let mut length = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(length),
            got => length += got,
        }
    }
}

/// Reads so many pieces of a file, each another, in no order.
///
/// # Errors
/// The first.
pub fn read_at_random(path: &Path, count: usize, threads: usize) -> io::Result<()> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::Random)?;
    let pieces = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX) / PIECE;
    spread(count, threads, |number| {
        let piece = number.wrapping_mul(STRIDE) % pieces;
        file.read_exact_at(&mut [0; PIECE], (piece * PIECE) as u64)
    })
}

/// Writes a new file in blocks of that size, and has it synced or not.
///
/// # Errors
/// If it can't.
pub fn write_new(path: &Path, mib: usize, block: usize, sync: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let block = vec![0x5a; block];
    for _ in 0..mib * MIB / block.len() {
        file.write_all(&block)?;
    }
    match sync {
        true => file.sync_all(),
        false => Ok(()),
    }
}

/// Appends a piece to a file and has it synced, so many times.
///
/// # Errors
/// The first.
pub fn append_and_sync(path: &Path, count: usize) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    for _ in 0..count {
        file.write_all(&[9; PIECE])?;
        file.sync_all()?;
    }
    Ok(())
}

/// Appends a line to a log, as `echo >>` in a script does.
///
/// # Errors
/// The first.
pub fn append_line(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(b"something has happened\n")
}

/// Pieces of a file that are written before it is synced.
const PIECES_APART: usize = 32;

/// Writes pieces that lie apart and has them synced, so many times.
///
/// # Errors
/// The first.
pub fn scatter_and_sync(path: &Path, count: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    for round in 0..count {
        for place in 0..PIECES_APART {
            let piece = round % 2 + 2 * ((place * 13) % PIECES_APART);
            file.write_all_at(&[9; PIECE], (piece * PIECE) as u64)?;
        }
        file.sync_data()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Mutex;

    #[test]
    fn work_that_is_spread_is_done_once_each_and_its_error_told() {
        let done = Mutex::new(Vec::new());
        let act = |number| {
            done.lock().expect("no thread has panicked").push(number);
            if number == 70 {
                Err(io::ErrorKind::NotFound.into())
            } else {
                Ok(())
            }
        };
        let error = spread(100, 4, act).expect_err("one has failed");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let done = done.into_inner().expect("no thread has panicked");
        assert_eq!(done.iter().collect::<HashSet<_>>().len(), done.len());
        assert!(done.contains(&99), "the others have gone on");
    }

    #[test]
    fn random_reads_come_to_each_piece_once() {
        let pieces = 4096;
        let seen: HashSet<usize> = (0..pieces)
            .map(|number: usize| number.wrapping_mul(STRIDE) % pieces)
            .collect();
        assert_eq!(seen.len(), pieces);
    }
}
