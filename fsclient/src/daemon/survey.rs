//! All mounts there are, and what their daemons say.

use super::control::{self, Request};
use super::mounts;
use super::status::{MountStatus, Unanswered};
use rustix::process::geteuid;

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
                state: error.state().to_owned(),
                dir: mount.point,
                source: mount.source,
                user,
            }),
        }
    }
    survey.mounts.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(survey)
}
