//! The commands of `fsserver`: serving, and what its people do beside it.
//!
//! A running server answers commands on a control socket in its state directory. Those that only
//! concern what is on disk work without one as well.

mod commands;
pub mod control;
mod present;
mod serve;

use crate::state::{Policy, User};
use clap::{Args, Parser, Subcommand};
use leasefs_protocol::limits::{MAX_TERM, MIN_TERM};
use leasefs_protocol::ticket::ServerAddr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

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
}

#[derive(Debug, Args)]
struct StateArg {
    /// State directory: the server's keys and clients [default: /var/lib/leasefs as root, else
    /// $XDG_STATE_HOME/leasefs]
    #[arg(long = "state", value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// The directory to serve
    dir: PathBuf,
    /// UDP address to listen on; by default `[::]:4430`, else `0.0.0.0:4430`
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// How clients reach this server, for tickets [default: the address listened on, or the name
    /// of this host]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertised)]
    advertise: Option<ServerAddr>,
    #[command(flatten)]
    state: StateArg,
    /// How long a client's leases last without a word from it: a duration as 10s or 1500ms
    #[arg(long, default_value = "10s", value_parser = parse_term)]
    term: Duration,
    /// Whose rights clients have [default: root_squash as root, else squash]
    #[arg(long)]
    identity: Option<Policy>,
    /// On the first start, write the ticket to this file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    ticket_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct TicketArgs {
    /// Its client may only read
    #[arg(long)]
    read_only: bool,
    /// Its client's user ids are believed, root's too
    #[arg(long)]
    trust: bool,
    /// Everybody on its client's machine acts as this one user of the server's host
    #[arg(long = "as", value_name = "UID:GID", conflicts_with = "trust")]
    acts_as: Option<User>,
    /// Its client is confined to this directory below the served one
    #[arg(long, value_name = "PATH")]
    subdir: Option<String>,
    #[command(flatten)]
    state: StateArg,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Its name, or the beginning of its key (`fsserver clients` lists both)
    client: String,
    #[command(flatten)]
    state: StateArg,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// In JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArg,
}

fn parse_advertised(text: &str) -> Result<ServerAddr, String> {
    text.parse().map_err(|e| format!("{e}"))
}

fn parse_term(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("ms") => 1,
        Some("s" | "") => 1_000,
        Some("m") => 60_000,
        _ => 0,
    };
    let term = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .map(Duration::from_millis);
    match term {
        Some(term) if (MIN_TERM..=MAX_TERM).contains(&term) => Ok(term),
        _ => Err(format!(
            "expected a duration as 10s or 1500ms, from {MIN_TERM:?} to {MAX_TERM:?}"
        )),
    }
}

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Ticket(args) => commands::ticket(&args),
        Command::Clients(args) => commands::clients(&args),
        Command::Revoke(args) => commands::revoke(&args),
        Command::Status(args) => commands::status(&args),
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

    #[test]
    fn terms_are_durations_within_their_bounds() {
        assert_eq!(parse_term("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_term("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_term("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "0s", "999ms", "301s", "10h", "-1s", "1.5s"] {
            assert!(parse_term(bad).is_err(), "{bad}");
        }
    }
}
