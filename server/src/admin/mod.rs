//! The commands of `fsserver`: serving, and what its people do beside it.
//!
//! A running server answers commands on a control socket in its state directory. Those that only
//! concern what is on disk work without one as well.

mod args;
mod commands;
pub mod control;
mod desk;
mod examples;
mod manager;
mod present;
mod serve;
mod top;

use args::{RevokeArgs, ServeArgs, StateArg, StatusArgs, TicketArgs};
use clap::{CommandFactory, Parser, Subcommand};
use leasefs_host::manual;
use std::path::PathBuf;
use std::process::ExitCode;

/// A coherent network file system: this is its server.
#[derive(Debug, Parser)]
#[command(name = "fsserver", version, about, after_long_help = examples::PROGRAM)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a directory until SIGTERM or Ctrl-C
    #[command(after_long_help = examples::SERVE)]
    Serve(ServeArgs),
    /// Print a fresh ticket, which lets one more client mount
    #[command(after_long_help = examples::TICKET)]
    Ticket(TicketArgs),
    /// List the clients that may mount
    #[command(after_long_help = examples::CLIENTS)]
    Clients(StateArg),
    /// Lock a client out, at once if it is connected
    #[command(after_long_help = examples::REVOKE)]
    Revoke(RevokeArgs),
    /// Show sessions, leases, and who waits for whom
    #[command(after_long_help = examples::STATUS)]
    Status(StatusArgs),
    /// Show how they get on
    #[command(after_long_help = examples::TOP)]
    Top(top::ServerTopArgs),
    /// Write man pages and completions into a `share` folder
    #[command(hide = true)]
    Manual {
        /// As /usr/local/share
        share: PathBuf,
    },
}

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Ticket(args) => commands::ticket(&args),
        Command::Clients(args) => commands::clients(&args),
        Command::Revoke(args) => commands::revoke(&args),
        Command::Status(args) => commands::status(&args),
        Command::Top(args) => top::run(&args),
        Command::Manual { share } => {
            manual::write(&Cli::command(), &share).map_err(|e| format!("{}: {e}", share.display()))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fsserver: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_page_tells_what_the_command_does_with_examples_that_are_understood() {
        assert_eq!(manual::flaws(&Cli::command()), Vec::<String>::new());
    }
}
