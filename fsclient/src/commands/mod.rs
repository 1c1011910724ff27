//! The command line.

mod doctor;
mod elect;
mod helper;
mod mount;
mod progress;
mod recover;
mod status;
mod top;
mod umount;
mod why;

use crate::daemon;
use clap::{Args, Parser, Subcommand};
use leasefs_protocol::printable;
use std::path::PathBuf;
use std::process::ExitCode;

/// A coherent network file system: this is its client.
#[derive(Debug, Parser)]
#[command(name = "fsclient", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount what a server serves; returns once the mount is usable
    Mount(mount::MountArgs),
    /// Unmount, and wait until it is done
    Umount(umount::UmountArgs),
    /// Run a command while holding a lock that no other machine holds, and end it before the lock can be lost
    Elect(elect::ElectArgs),
    /// Show the mounts of this user
    Status(status::StatusArgs),
    /// Show the mounts of this user as they get on
    Top(top::ClientTopArgs),
    /// Tell what an access to a file waits for, or would
    Why(why::WhyArgs),
    /// Look whether this machine is fit, and whether its servers can be reached
    Doctor(doctor::DoctorArgs),
    /// Data that could not be brought in and is kept on this machine
    Recover(recover::RecoverArgs),
    /// What `mount` becomes when it goes to the background; reads its job from standard input
    #[command(hide = true)]
    Daemon {
        /// The mount point, for the process list
        dir: PathBuf,
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
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Elect(args) => return elect::run(&args),
        Command::Daemon { .. } => return daemon::run_detached(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

/// Tells people. What a server or a file's name has put into the text is not obeyed by the terminal.
fn say(message: &str) {
    message
        .lines()
        .for_each(|line| eprintln!("fsclient: {}", printable(line)));
}
