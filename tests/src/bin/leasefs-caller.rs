//! One blocking file operation in a process of its own, for tests that kill it.

use clap::{Parser, ValueEnum};
use leasefs_tests::mapping::Mapping;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;

/// Prepares an operation, prints `prepared`, waits for a line on standard input,
/// carries the operation out and exits with its errno (0 if it worked).
#[derive(Parser)]
#[command(name = "leasefs-caller", version)]
struct Arguments {
    /// What to do.
    operation: Operation,
    /// To which file.
    path: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Operation {
    /// Open and read it.
    Read,
    /// Read it past the page cache; it is opened before.
    ReadDirect,
    /// Stat it.
    Stat,
    /// Create it.
    Create,
    /// Write to it.
    Write,
    /// Store into a shared mapping of its first page, then wait for `msync`.
    Msync,
}

/// What is left to do once it is prepared.
type Rest = Box<dyn FnOnce() -> io::Result<()>>;

fn prepare(operation: Operation, path: PathBuf) -> io::Result<Rest> {
    Ok(match operation {
        Operation::Read => Box::new(move || fs::read(path).map(drop)),
        Operation::ReadDirect => {
            let mut options = OpenOptions::new();
            let file = options.read(true).custom_flags(libc::O_DIRECT).open(path)?;
            Box::new(move || file.read_at(&mut [0; 4096], 0).map(drop))
        }
        Operation::Stat => Box::new(move || fs::metadata(path).map(drop)),
        Operation::Create => Box::new(move || File::create_new(path).map(drop)),
        Operation::Write => Box::new(move || fs::write(path, b"written")),
        Operation::Msync => {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            let map = Mapping::new(&file, 0, 4096, true)?;
            // The page is there and writable before the server goes away.
            map.store(0, 1);
            map.sync()?;
            map.store(0, 2);
            Box::new(move || map.sync())
        }
    })
}

fn run(arguments: Arguments) -> io::Result<()> {
    let rest = prepare(arguments.operation, arguments.path)?;
    println!("prepared");
    io::stdin().lock().read_line(&mut String::new())?;
    rest()
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasefs-caller: {error}");
            ExitCode::from(
                error
                    .raw_os_error()
                    .and_then(|errno| errno.try_into().ok())
                    .unwrap_or(1),
            )
        }
    }
}
