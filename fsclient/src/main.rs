//! `fsclient`: mounts what a leasefs server serves.

use std::process::ExitCode;

fn main() -> ExitCode {
    fsclient::commands::run()
}
