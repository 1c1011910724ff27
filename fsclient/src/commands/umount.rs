//! `fsclient umount`.

use super::progress::Progress;
use super::status::to_write;
use super::{StateArg, say};
use crate::daemon::control::{self, AskError};
use crate::daemon::{Dirty, mounts};
use crate::recovery::path_for_people;
use clap::Args;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a daemon that unmounts may not answer.
const SILENCE: Duration = Duration::from_secs(120);
/// The same by force.
const FORCED_SILENCE: Duration = Duration::from_secs(20);

/// How long another user's daemon is waited for by force, whatever it says.
const FOREIGN: Duration = Duration::from_secs(120);

/// What a shell says of a command that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

#[derive(Debug, Args)]
pub(super) struct UmountArgs {
    /// The mount points, one after the other
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Unmount even if it is in use: what is open fails from then on
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    _state: StateArg,
}

/// One that can't be unmounted doesn't keep the others.
pub(super) fn run_all(args: &UmountArgs) -> Result<(), String> {
    let failed = |dir: &PathBuf| run(dir, args.force).err();
    let failed: Vec<String> = args.dirs.iter().filter_map(failed).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n")),
    }
}

pub(super) fn run(dir: &Path, force: bool) -> Result<(), String> {
    let dir = mounts::locate(dir)?;
    let request = control::Request::Umount { force };
    let other = control::other_user(&dir).map_err(|e| e.to_string())?;
    let foreign = other.is_some();
    let before = mounts::which(&dir)?;
    let mut patience = Patience::new(force, foreign);
    let asked = control::ask(&dir, &request).and_then(|mut asked| {
        leave_it_to_the_daemon(&dir);
        let done = asked.done_while(|| patience.look(&dir));
        // By force it is unmounted, whatever couldn't be brought in.
        if done.is_ok() || force && matches!(done, Err(AskError::Refused(_))) {
            // The daemon keeps the connection until its process ends.
            asked.wait_for_end();
        }
        done
    });
    let answered = matches!(asked, Ok(()) | Err(AskError::Refused(_)));
    // Another user's word is not enough.
    if force && foreign && answered && before.is_some() && mounts::which(&dir)? == before {
        return mounts::detach(&dir);
    }
    match asked {
        Ok(()) => Ok(()),
        Err(AskError::Refused(reason)) => Err(reason),
        Err(AskError::Foreign(user)) => Err(format!(
            "{} is a mount of user {user}: only that user and root may unmount it",
            path_for_people(&dir)
        )),
        Err(error) => without_daemon(&dir, force, &error),
    }
}

/// What is waited for just now.
static WAITED_FOR: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Ctrl-C ends the waiting, not what is waited for: says so.
fn leave_it_to_the_daemon(dir: &Path) {
    let waited_for = || WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
    let before = waited_for().replace(dir.to_owned());
    if before.is_some() {
        return;
    }
    let set = ctrlc::set_handler(move || {
        let dir = waited_for().as_deref().map(path_for_people);
        say(&format!(
            "not waiting any more: {} is unmounted in the background as soon as what was written is on the server's \
             disk, and stays mounted if that can't be reached; `fsclient status` shows it",
            dir.unwrap_or_default()
        ));
        std::process::exit(INTERRUPTED);
    });
    // Without it the signal ends the process, and nothing else.
    let _ = set;
}

/// With a daemon that unmounts. It gives up by itself when nothing gets to the server any more; only one
/// that doesn't answer at all is not waited for.
struct Patience {
    silent: Duration,
    /// In all.
    ends: Option<Instant>,
    lived: Instant,
    said: Option<(u64, u64)>,
    progress: Progress,
}

impl Patience {
    fn new(force: bool, foreign: bool) -> Self {
        Self {
            ends: (force && foreign).then(|| Instant::now() + FOREIGN),
            silent: if force { FORCED_SILENCE } else { SILENCE },
            lived: Instant::now(),
            said: None,
            progress: Progress::new("writing back"),
        }
    }

    /// Says how it gets on. False if the daemon hangs.
    fn look(&mut self, dir: &Path) -> bool {
        match control::ask(dir, &control::Request::Status).and_then(|mut a| a.status()) {
            Ok(status) => {
                self.lived = Instant::now();
                self.tell(&status.dirty);
            }
            Err(AskError::Stopped(_)) => return false,
            Err(_) => {}
        }
        let over = self.ends.is_some_and(|ends| ends <= Instant::now());
        self.lived.elapsed() < self.silent && !over
    }

    fn tell(&mut self, dirty: &Dirty) {
        if stderr().is_terminal() {
            return self.progress.left(dirty.bytes);
        }
        // Again if it has got on, or has not for a while.
        let now = (dirty.bytes, dirty.still_ms / 10_000);
        if dirty.bytes > 0 && self.said != Some(now) {
            say(&format!("writing back: {}", to_write(dirty)));
            self.said = Some(now);
        }
    }
}

/// Removes what a dead daemon left, or by force what a hanging one has.
fn without_daemon(dir: &Path, force: bool, error: &AskError) -> Result<(), String> {
    let shown = path_for_people(dir);
    if !mounts::is_leasefs(dir)? {
        return Err(format!("{shown} is not a leasefs mount"));
    }
    if matches!(error, AskError::Silent(_)) && dies(dir) {
        return mounts::detach(dir);
    }
    if force {
        mounts::detach(dir)?;
        say(&format!(
            "{shown} is unmounted without its daemon ({error}): what it has buffered it brings in, or keeps, if it lives"
        ));
        return Ok(());
    }
    Err(format!(
        "{shown}: {error}; `fsclient umount --force {shown}` unmounts without it"
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
