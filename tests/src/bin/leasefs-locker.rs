//! A process that takes file locks as it is told, for the suites of locks (`locks::process` says how).

use clap::Parser;
use leasefs_tests::locks::process::Process;
use std::path::PathBuf;
use std::process::ExitCode;

/// Obeys the commands on standard input, one a line, with a line for each.
#[derive(Parser)]
#[command(name = "leasefs-locker", version)]
struct Arguments {
    /// Where it works: only said, so that it is found by that.
    folder: PathBuf,
}

fn main() -> ExitCode {
    let Arguments { folder } = Arguments::parse();
    match Process::new().and_then(|mut process| process.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasefs-locker in {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
