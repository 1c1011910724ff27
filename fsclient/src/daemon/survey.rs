//! All mounts there are, and what their daemons say.

use super::control::{self, AskError, Request};
use super::mounts;
use super::status::{MountStatus, Unanswered};
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
}

/// All mounts of this user, of every user for root, by mount point; and those of daemons that are ending.
///
/// # Errors
/// If the mount table can't be read, or that somebody else may write where this user's sockets are.
pub fn survey() -> Result<Survey, String> {
    let own = geteuid().as_raw();
    let sockets = control::addresses().map_err(|e| e.to_string())?;
    let answer = |socket| control::ask_at(socket, &Request::Status)?.status();
    let answers = sockets.iter().filter_map(|socket| answer(socket).ok());
    let mut survey = Survey {
        mounts: answers.collect(),
        ..Survey::default()
    };
    for mount in mounts::all()? {
        let known = survey.mounts.iter().any(|known| known.dir == mount.point);
        let user = mount.user.unwrap_or(own);
        if known || (user != own && own != 0) {
            continue;
        }
        match control::ask(&mount.point, &Request::Status).and_then(|mut asked| asked.status()) {
            Ok(status) => survey.mounts.push(status),
            Err(error) => survey.unanswered.push(Unanswered {
                state: state(&error, &mount.point).to_owned(),
                dir: mount.point,
                source: mount.source,
                user,
            }),
        }
    }
    survey.mounts.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(survey)
}

/// Of a daemon that doesn't answer, in a word.
fn state(error: &AskError, dir: &Path) -> &'static str {
    match error {
        AskError::Stopped(_) => "stopped",
        AskError::Refused(_) => "refuses",
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
