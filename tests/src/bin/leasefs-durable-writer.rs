//! A writer of the durability tests, in a process of its own: it may be killed with its mount.

use clap::Parser;
use leasefs_tests::durable::writer::{Assignment, Trouble, Writer};
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Works in a mount until standard input ends, and keeps a journal of it elsewhere. Ends well
/// too when the mount's daemon dies.
#[derive(Parser)]
#[command(name = "leasefs-durable-writer", version)]
struct Arguments {
    /// The directory of all writers' work.
    root: PathBuf,
    /// Its journal, outside the mount.
    journal: PathBuf,
    /// Which of the writers it is, from 0.
    #[arg(long)]
    writer: u16,
    /// How many there are.
    #[arg(long)]
    writers: u16,
    /// The run's seed.
    #[arg(long)]
    seed: u64,
}

fn work(arguments: Arguments, stop: &AtomicBool) -> Result<(), Trouble> {
    let mut writer = Writer::new(Assignment {
        root: arguments.root,
        writer: arguments.writer,
        writers: arguments.writers,
        seed: arguments.seed,
        journal: arguments.journal,
    })?;
    while !stop.load(Ordering::Relaxed) {
        writer.step()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    thread::spawn(move || {
        // It ends when whoever started this closes it, or dies.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    match work(Arguments::parse(), &stop) {
        Ok(()) | Err(Trouble::Gone) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("leasefs-durable-writer: {trouble}");
            ExitCode::FAILURE
        }
    }
}
