//! `fsserver`: serves a directory to leasefs clients.

use std::process::ExitCode;

fn main() -> ExitCode {
    fsserver::admin::run()
}
