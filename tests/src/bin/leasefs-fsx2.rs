//! Random operations on a file, checked through read-only descriptors too.

use clap::Parser;
use leasefs_host::clock::monotonic_time;
use leasefs_tests::fsx2::{Config, Progress, run};
use leasefs_tests::rng::fresh_seed;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Changes a file through a read-write descriptor at random and checks after every
/// step what read-only descriptors and mappings show, here and on a second mount.
#[derive(Parser)]
#[command(name = "leasefs-fsx2", version)]
struct Arguments {
    /// Where the file is made and changed.
    dir: PathBuf,
    /// Another mount of the same export; by default the same directory.
    second: Option<PathBuf>,
    /// Operations.
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Repeats an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Greatest size of the file in bytes.
    #[arg(long, default_value_t = 256 * 1024, value_parser = clap::value_parser!(u32).range(8192..))]
    max_len: u32,
    /// Seconds after which an operation counts as stuck.
    #[arg(long, default_value_t = 30)]
    limit: u64,
}

static PROGRESS: Progress = Progress {
    operation: AtomicU64::new(0),
};
static SEED: AtomicU64 = AtomicU64::new(0);

/// A mapped page that can't be had is as much a finding as wrong bytes.
extern "C" fn on_bus_error(_: libc::c_int) {
    let mut line = *b"SIGBUS: a mapped page could not be had, operation 00000000000000000000\n";
    let mut number = PROGRESS.operation.load(Ordering::Relaxed);
    for digit in line.iter_mut().rev().skip(1).take(20) {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // SAFETY: write and _exit may be called in a signal handler.
    unsafe {
        libc::write(2, line.as_ptr().cast(), line.len());
        libc::_exit(1);
    }
}

fn catch_bus_errors() {
    let handler = on_bus_error as extern "C" fn(libc::c_int);
    // SAFETY: the handler only calls what is allowed there.
    unsafe {
        libc::signal(libc::SIGBUS, handler as libc::sighandler_t);
    }
}

/// Ends the process when one operation takes longer than `limit`.
fn watch(limit: Duration) {
    thread::spawn(move || {
        let mut seen = (u64::MAX, monotonic_time().as_nanos());
        loop {
            thread::sleep(Duration::from_millis(200));
            let operation = PROGRESS.operation.load(Ordering::Relaxed);
            if operation != seen.0 {
                seen = (operation, monotonic_time().as_nanos());
            } else if Duration::from_nanos(monotonic_time().as_nanos() - seen.1) > limit {
                let seed = SEED.load(Ordering::Relaxed);
                eprintln!(
                    "FAILED: operation {operation} of seed {seed} took longer than {limit:?}"
                );
                std::process::exit(1);
            }
        }
    });
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = Config {
        second: arguments.second.unwrap_or_else(|| arguments.dir.clone()),
        dir: arguments.dir,
        operations: arguments.ops,
        seed: arguments.seed.unwrap_or_else(fresh_seed),
        max_len: arguments.max_len as usize,
    };
    SEED.store(config.seed, Ordering::Relaxed);
    println!("seed {}: {} operations", config.seed, config.operations);
    catch_bus_errors();
    watch(Duration::from_secs(arguments.limit));
    let started = Instant::now();
    match run(&config, &PROGRESS) {
        Ok(done) => {
            println!(
                "PASSED: {} operations ({} not supported here), {} comparisons, {:.1?}",
                done.operations,
                done.unsupported,
                done.compared,
                started.elapsed()
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}FAILED: seed {}", config.seed);
            ExitCode::FAILURE
        }
    }
}
