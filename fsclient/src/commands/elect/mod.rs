//! `fsclient elect`: runs a command for as long as it holds a lock, as flock(1) does, and no longer.
//!
//! The lock is a `flock` of the file. What holds it is a descriptor that the command inherits: it is held until the last of its
//! processes has closed it. It can be lost: when this machine is cut off from the server for a term. So it is looked at all
//! the time for how long it lasts at least (the xattr `user.leasefs.lock_ms`), and the command is ended before that: SIGTERM when a
//! third of the term is left, SIGKILL when a tenth is. That counts from when it was asked, by a clock that goes on while the machine
//! sleeps; so it holds too where the mount's daemon doesn't answer.
//!
//! What is beyond the file, another service for one, can tell a holder that doesn't know yet from its successor by the lock's
//! number, which is greater for each that comes later (a fencing token): the command has it in `LEASEFS_LOCK`.

mod child;
mod lease;

use super::mount::parse_duration;
use super::say;
use child::Child;
use clap::Args;
use lease::{Lease, token};
use leasefs_host::clock::boot_time;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Another holds the lock, as flock(1) has it.
const HELD_ELSEWHERE: u8 = 1;
/// The command was ended because the lock could have been lost (`EX_TEMPFAIL`).
const LOST: u8 = 75;
/// How often the command and the lease are looked at.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct ElectArgs {
    /// Exit with 1 if another holds the lock, rather than wait
    #[arg(short, long)]
    nonblock: bool,
    /// Wait at most so long for the lock, then exit with 1: a duration as 10s, 500ms or 2m
    #[arg(short, long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "nonblock")]
    wait: Option<Duration>,
    /// A file on a leasefs mount; it is made if there is none
    path: PathBuf,
    /// What to run while the lock is held; `LEASEFS_LOCK` is its number, greater for each holder
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(super) fn run(args: &ElectArgs) -> ExitCode {
    match elected(args) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

fn elected(args: &ElectArgs) -> Result<u8, String> {
    let path = &args.path;
    let failed = |error: rustix::io::Errno| format!("{}: {error}", path.display());
    // The command inherits it.
    let flags = OFlags::RDWR | OFlags::CREATE;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map_err(failed)?;
    let file = Arc::new(file);
    if !has_lock(args, &file).map_err(failed)? {
        return Ok(HELD_ELSEWHERE);
    }
    let Some(token) = token(file.as_fd()).map_err(failed)? else {
        return Err(not_ours(path));
    };
    let lease = Lease::watched(Arc::clone(&file)).map_err(failed)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("can't begin: {e}"))?;
    let child = match Child::begin(&args.command, &token, path) {
        Ok(child) => child,
        Err(error) => {
            let program = args.command.first().map(|name| name.to_string_lossy());
            say(&format!("{}: {error}", program.unwrap_or_default()));
            return Ok(child::not_run(&error));
        }
    };
    let attended = runtime.block_on(attend(child, lease, path));
    attended.map_err(|e| format!("can't take signals: {e}"))
}

fn not_ours(path: &Path) -> String {
    format!(
        "{} is not on a leasefs mount, where a lock ends unseen: for a local file use flock(1)",
        path.display()
    )
}

/// Whether the lock is held now. A signal ends this process while it waits, and with it the wait.
fn has_lock(args: &ElectArgs, file: &Arc<OwnedFd>) -> rustix::io::Result<bool> {
    if args.nonblock {
        return match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            result => result.map(|()| true),
        };
    }
    let Some(most) = args.wait else {
        return flock(file, FlockOperation::LockExclusive).map(|()| true);
    };
    let (tell, told) = channel();
    let file = Arc::clone(file);
    thread::spawn(move || {
        // Who doesn't wait any more ends this process.
        let _ = tell.send(flock(&file, FlockOperation::LockExclusive));
    });
    match told.recv_timeout(most) {
        Ok(locked) => locked.map(|()| true),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(false),
    }
}

/// Until the command has ended, or is ended. What this process is sent goes on to the command.
async fn attend(mut child: Child, lease: Lease, path: &Path) -> io::Result<u8> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut look = tokio::time::interval(LOOK);
    let mut ends = None;
    loop {
        tokio::select! {
            _ = terminate.recv() => child.signal(Signal::TERM),
            _ = interrupt.recv() => child.signal(Signal::INT),
            _ = hangup.recv() => child.signal(Signal::HUP),
            _ = look.tick() => {}
        }
        let ended = child.has_ended();
        if ends.is_none() && !ended && lease.is_nearly_over() {
            ends = Some(lease.over_at());
            say(&format!(
                "the lock of {} may soon be lost, since the server doesn't answer: ending the command",
                path.display()
            ));
            child.signal(Signal::TERM);
        }
        // Whether the server answers again meanwhile or not.
        let over = ends.is_some_and(|at| at.min(lease.over_at()).has_come(boot_time()));
        if over {
            // What it leaves behind holds the lock, too.
            child.signal(Signal::KILL);
        }
        if ended && (over || ends.is_none()) {
            let code = child.code().unwrap_or(LOST);
            return Ok(if over { LOST } else { code });
        }
    }
}
