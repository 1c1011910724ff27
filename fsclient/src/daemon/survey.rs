//! All mounts there are, and what their daemons say.

use super::control::{self, AskError, Request};
use super::mounts;
use super::status::{MountStatus, Unanswered};
use leasefs_host::mounts::Mount;
use rustix::process::geteuid;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a mount without a socket may take to show whether it is dead.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of all mounts.
#[derive(Debug, Default)]
pub struct Survey {
    /// Those whose daemons answer.
    pub mounts: Vec<MountStatus>,
    /// Those whose daemons don't.
    pub unanswered: Vec<Unanswered>,
    /// What is wrong with sockets of no mount, for people.
    pub troubles: Vec<String>,
}

/// All mounts of this user, of every user for root, by mount point; and those of daemons that are ending. Daemons are
/// asked side by side, and may each take so long to answer.
///
/// # Errors
/// If the mount table can't be read, or that somebody else may write where this user's sockets are.
pub fn survey(patience: Duration) -> Result<Survey, String> {
    let own = geteuid().as_raw();
    let sockets = control::addresses().map_err(|e| e.to_string())?;
    let asked = side_by_side(sockets, |socket| {
        let asked = control::ask_at(&socket, &Request::Status, patience);
        let answer = asked.and_then(|mut asked| asked.status());
        answer.map_err(|error| (socket.name().to_owned(), error))
    });
    let (mut mounts, mut failed) = (Vec::new(), Vec::new());
    for answer in asked {
        match answer {
            Ok(status) => mounts.push(status),
            Err(why) => failed.push(why),
        }
    }
    let is_other = |mount: &Mount| {
        !mounts
            .iter()
            .any(|known: &MountStatus| known.dir == mount.point)
    };
    let is_ours = |mount: &Mount| own == 0 || mount.user.is_none_or(|user| user == own);
    let table = mounts::all()?.into_iter();
    let others: Vec<Mount> = table.filter(|m| is_ours(m) && is_other(m)).collect();
    let mut unanswered = Vec::new();
    for asked in side_by_side(others, |mount| ask(mount, patience)) {
        match asked {
            Ok(status) => mounts.push(status),
            Err(silent) => unanswered.push(silent),
        }
    }
    mounts.retain(|mount| !is_over(mount));
    mounts.sort_by(|a, b| a.dir.cmp(&b.dir));
    let is_told = |name: &str| {
        let mut silent = unanswered.iter();
        silent.any(|mount| control::socket_name(&mount.dir) == name)
    };
    failed.retain(|(name, _)| !is_told(name));
    let troubles = failed.iter().map(|(name, why)| format!("{name}: {why}"));
    Ok(Survey {
        troubles: troubles.collect(),
        mounts,
        unanswered,
    })
}

/// It is unmounted, and its daemon is about to end.
fn is_over(mount: &MountStatus) -> bool {
    let left = mount.dirty.bytes > 0 || mount.memory.unstable > 0;
    mount.unmounting && !left && mounts::is_leasefs(&mount.dir) == Ok(false)
}

fn side_by_side<Q: Send, A: Send>(all: Vec<Q>, ask: impl Fn(Q) -> A + Sync) -> Vec<A> {
    let ask = &ask;
    thread::scope(|scope| {
        let begin = |one| scope.spawn(move || ask(one));
        let begun: Vec<_> = all.into_iter().map(begin).collect();
        begun
            .into_iter()
            .filter_map(|one| one.join().ok())
            .collect()
    })
}

fn ask(mount: Mount, patience: Duration) -> Result<MountStatus, Unanswered> {
    let asked = control::ask_within(&mount.point, &Request::Status, patience);
    let answer = asked.and_then(|mut asked| asked.status());
    // Another user's daemon may say what it likes: what the kernel knows goes first.
    let known = |told: MountStatus| MountStatus {
        user: mount.user.unwrap_or_default(),
        dir: mount.point.clone(),
        ..told
    };
    answer.map(known).map_err(|error| Unanswered {
        state: state(&error, &mount.point).to_owned(),
        dir: mount.point,
        source: mount.source,
        user: mount.user.unwrap_or_default(),
    })
}

/// Of a daemon that doesn't answer, in a word.
fn state(error: &AskError, dir: &Path) -> &'static str {
    match error {
        AskError::Stopped(_) => "stopped",
        AskError::Refused(_) | AskError::Foreign(_) => "refuses",
        AskError::Silent(error) if control::is_timeout(error) => "hangs",
        AskError::Silent(_) => without_socket(dir),
    }
}

/// It may be dead, or have its socket where it isn't looked for. The mount tells, if it doesn't hang.
fn without_socket(dir: &Path) -> &'static str {
    let (tell, told) = mpsc::channel();
    let dir = dir.to_owned();
    thread::spawn(move || tell.send(mounts::is_dead(&dir)));
    match told.recv_timeout(PATIENCE) {
        Ok(true) => "dead",
        Ok(false) => "hidden",
        Err(_) => "hangs",
    }
}
