//! Uses several mounts of one export at once and checks that no read was stale.

use clap::Parser;
use leasefs_tests::coherence::{Config, Family, run};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Uses the given directories (mounts of one export) at the same time and checks
/// that everything read and written through them is linearizable.
#[derive(Parser)]
#[command(name = "leasefs-coherence", version)]
struct Arguments {
    /// Mounts of one export. A single directory is used as two.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Operations per family.
    #[arg(long, default_value_t = 40_000)]
    ops: usize,
    /// Repeats the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this family (may be given again): registers, appends, names, directories or attributes.
    #[arg(long, value_parser = family)]
    family: Vec<Family>,
    /// Worker threads per directory.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=32))]
    workers: u16,
    /// Seconds after which an operation counts as stuck.
    #[arg(long, default_value_t = 30)]
    limit: u64,
    /// For file systems whose single reads and stats are not atomic (most local
    /// ones): check words of registers and attributes one by one.
    #[arg(long)]
    not_atomic: bool,
}

fn family(name: &str) -> Result<Family, String> {
    Family::named(name).ok_or_else(|| {
        let known: Vec<&str> = Family::ALL.iter().map(|family| family.name()).collect();
        format!("expected one of {}", known.join(", "))
    })
}

impl Arguments {
    fn config(self) -> Config {
        let mut dirs = self.dirs;
        if let [only] = dirs.as_slice() {
            dirs.push(only.clone());
        }
        let mut config = Config::new(dirs);
        config.operations = self.ops;
        config.seed = self.seed.unwrap_or(config.seed);
        if !self.family.is_empty() {
            config.families = self.family;
        }
        config.workers_per_dir = usize::from(self.workers);
        config.limit = Duration::from_secs(self.limit);
        config.atomic = !self.not_atomic;
        config
    }
}

fn main() -> ExitCode {
    let config = Arguments::parse().config();
    println!(
        "seed {}: {} operations per family",
        config.seed, config.operations
    );
    match run(&config) {
        Ok(report) => {
            println!("{report}");
            ExitCode::from(u8::from(!report.passed()))
        }
        Err(error) => {
            eprintln!("leasefs-coherence: {error}");
            ExitCode::from(2)
        }
    }
}
