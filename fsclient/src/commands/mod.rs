//! The command line.

mod doctor;
mod elect;
mod examples;
mod forget;
mod helper;
mod mount;
mod progress;
mod recover;
mod status;
mod top;
mod umount;
mod why;

use crate::daemon::{self, Failure};
use clap::{Args, CommandFactory, Parser, Subcommand};
use leasefs_host::manual;
use leasefs_protocol::printable;
use leasefs_protocol::ticket::ServerAddr;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of a mount in the foreground that was unmounted, although not all that was written is on the server's disk. It
/// is not to be mounted again as one that has failed is: whoever has unmounted it meant it.
const LEFT_BEHIND: u8 = 3;

/// A coherent network file system: this is its client.
#[derive(Debug, Parser)]
#[command(name = "fsclient", version, about, after_long_help = examples::PROGRAM)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount what a server serves; returns once the mount is usable
    #[command(after_long_help = examples::MOUNT)]
    Mount(mount::MountArgs),
    /// Unmount, and wait until it is done
    #[command(after_long_help = examples::UMOUNT)]
    Umount(umount::UmountArgs),
    /// Run a command while holding a lock that no other machine holds, and end it before the lock can be lost
    #[command(after_long_help = examples::ELECT)]
    Elect(elect::ElectArgs),
    /// Show the mounts of this user
    #[command(after_long_help = examples::STATUS)]
    Status(status::StatusArgs),
    /// Show the mounts of this user as they get on
    #[command(after_long_help = examples::TOP)]
    Top(top::ClientTopArgs),
    /// Tell what an access to a file waits for, or would
    #[command(after_long_help = examples::WHY)]
    Why(why::WhyArgs),
    /// Look whether this machine is fit, and whether its servers can be reached
    #[command(after_long_help = examples::DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Forget a server with which this client is enrolled
    #[command(after_long_help = examples::FORGET)]
    Forget(forget::ForgetArgs),
    /// Data that could not be brought in and is kept on this machine
    #[command(after_long_help = examples::RECOVER)]
    Recover(recover::RecoverArgs),
    /// What `mount` becomes when it goes to the background; reads its job from standard input
    #[command(hide = true)]
    Daemon {
        /// The mount point, for the process list
        dir: PathBuf,
    },
    /// Write man pages and completions into a `share` folder
    #[command(hide = true)]
    Manual {
        /// As /usr/local/share
        share: PathBuf,
    },
}

/// Where the state directory is.
#[derive(Debug, Args)]
struct StateArg {
    /// State directory: this client's key, the keys of its servers, logs, the recovery folder
    /// [default: /var/lib/leasefs as root, else $XDG_STATE_HOME/leasefs]
    #[arg(long = "state", value_name = "DIR", global = true)]
    state: Option<PathBuf>,
}

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    if let Some(code) = helper::by_name() {
        return code;
    }
    let result = match Cli::parse().command {
        Command::Mount(args) => match mount::run(args) {
            Err(Failure::LeftBehind(message)) => return failed(&message, LEFT_BEHIND),
            other => other.map_err(|failure| failure.to_string()),
        },
        Command::Umount(args) => umount::run_all(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Forget(args) => forget::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Elect(args) => return elect::run(&args),
        Command::Daemon { .. } => return daemon::run_detached(),
        Command::Manual { share } => {
            let written = manual::write(&Cli::command(), &share)
                .and_then(|()| manual::write_helper(&helper::description(), &share));
            written.map_err(|e| format!("{}: {e}", share.display()))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => failed(&message, 1),
    }
}

fn parse_server(text: &str) -> Result<ServerAddr, String> {
    text.parse().map_err(|e| format!("{e}"))
}

fn failed(message: &str, code: u8) -> ExitCode {
    say(message);
    ExitCode::from(code)
}

/// Tells people. What a server or a file's name has put into the text is not obeyed by the terminal.
fn say(message: &str) {
    message
        .lines()
        .for_each(|line| eprintln!("fsclient: {}", printable(line)));
}

/// Shows people a text on standard output, as [`say`] does on the other.
fn show(text: &str) -> Result<(), String> {
    let lines = text.lines().map(|line| format!("{}\n", printable(line)));
    print(&lines.collect::<String>())
}

fn print(text: &str) -> Result<(), String> {
    leasefs_host::output::print(text).map_err(|e| format!("standard output: {e}"))
}

/// Shows programs a document.
fn show_json(document: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(document).map_err(|e| e.to_string())?;
    print(&format!("{text}\n"))
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
