//! `fsclient umount`.

use super::StateArg;
use crate::daemon::control::{self, AskError};
use crate::daemon::mounts;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct UmountArgs {
    /// The mount point
    dir: PathBuf,
    /// Unmount even if it is in use: what is open fails from then on
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    _state: StateArg,
}

pub(super) fn run(args: &UmountArgs) -> Result<(), String> {
    let dir = mounts::locate(&args.dir)?;
    let request = control::Request::Umount { force: args.force };
    let asked = control::ask(&dir, &request).and_then(|mut asked| {
        asked.result()?;
        Ok(asked)
    });
    match asked {
        Ok(asked) => {
            // The daemon keeps the connection until its process ends.
            asked.wait_for_end();
            Ok(())
        }
        Err(AskError::Refused(reason)) => Err(reason),
        Err(AskError::Silent(error)) => without_daemon(&dir, args.force, &error),
    }
}

/// Removes what a dead daemon left, or by force what a hanging one has.
fn without_daemon(dir: &Path, force: bool, error: &std::io::Error) -> Result<(), String> {
    if !mounts::is_leasefs(dir)? {
        return Err(format!("{} is not a leasefs mount", dir.display()));
    }
    if force || dies(dir) {
        return mounts::detach(dir);
    }
    Err(format!(
        "the daemon of {} does not answer ({error}): `fsclient umount --force {}` unmounts without it",
        dir.display(),
        dir.display()
    ))
}

/// A daemon that was killed this moment needs another to be gone.
fn dies(dir: &Path) -> bool {
    (0..20).any(|_| {
        let dead = mounts::is_dead(dir);
        if !dead {
            std::thread::sleep(Duration::from_millis(50));
        }
        dead
    })
}
