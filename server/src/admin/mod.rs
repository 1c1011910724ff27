//! The commands of `fsserver`: serving, and what its people do beside it.
//!
//! A running server answers commands on a control socket in its state directory. Those that only
//! concern what is on disk work without one as well.

mod args;
mod commands;
pub mod control;
mod desk;
mod present;
mod serve;
mod top;

use args::{RevokeArgs, ServeArgs, StateArg, StatusArgs, TicketArgs};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A coherent network file system: this is its server.
#[derive(Debug, Parser)]
#[command(name = "fsserver", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a directory until SIGTERM or Ctrl-C
    Serve(ServeArgs),
    /// Print a fresh ticket, which lets one more client mount
    Ticket(TicketArgs),
    /// List the clients that may mount
    Clients(StateArg),
    /// Lock a client out, at once if it is connected
    Revoke(RevokeArgs),
    /// Show sessions, leases, and who waits for whom
    Status(StatusArgs),
    /// Show how they get on
    Top(top::ServerTopArgs),
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
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
