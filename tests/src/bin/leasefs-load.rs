//! Many sessions on one server, without a mount. See `scripts/load`.

use clap::Parser;
use leasefs_tests::load::{Plan, run};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Starts a server of its own, has many sessions take leases of it, keep them alive, give one up together and
/// claim all of them back after a restart, and prints what that costs beside what it may.
#[derive(Parser)]
#[command(name = "leasefs-load", version)]
struct Arguments {
    /// Sessions.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u16).range(2..=9000))]
    sessions: u16,
    /// Leases of each.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
    leases: u16,
    /// Sessions of one client, which has one key.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    of_one_client: u16,
    /// Sessions that hold the file that is recalled.
    #[arg(long, default_value_t = 1000)]
    holders: u16,
    /// For how many seconds keep-alives alone are measured.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    idle: u16,
    /// Where the server listens.
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let plan = Plan {
        sessions: arguments.sessions.into(),
        files: arguments.leases.into(),
        of_one_client: arguments.of_one_client.into(),
        holders: arguments.holders.min(arguments.sessions - 1).into(),
        idle: Duration::from_secs(arguments.idle.into()),
        address: arguments.address,
    };
    match run(plan) {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("leasefs-load: {error}");
            ExitCode::FAILURE
        }
    }
}
