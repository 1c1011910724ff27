//! The daemon's control socket: one line of JSON asks, one line answers.
//!
//! The sockets of a user's daemons lie in one folder that only the user may enter, so that
//! `status` and `umount` find them whatever the state directory.

use super::status::MountStatus;
use super::why::Why;
use leasefs_host::control::Address;
use leasefs_host::{paths, private};
use ring::digest;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

/// What the name of a socket ends with.
const SUFFIX: &str = ".sock";
/// How long a daemon may take to answer.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether a daemon that unmounts lives: that lasts as long as bytes get to the server.
const LOOK: Duration = Duration::from_secs(1);

/// What a daemon is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Its state.
    Status,
    /// What an access to a path below the mount point waits for, or would.
    Why {
        /// From the mount point on.
        path: Vec<u8>,
    },
    /// To unmount and end; answered when it is unmounted.
    Umount {
        /// Even if it is in use.
        force: bool,
    },
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Response {
    Status(Box<MountStatus>),
    Why(Box<Why>),
    Done,
    Error(String),
}

/// The name under which files belong to the daemon of a mount point.
pub(super) fn name_of(mount: &Path) -> String {
    let hash = digest::digest(&digest::SHA256, mount.as_os_str().as_bytes());
    let name = hash.as_ref().iter().take(10);
    name.map(|byte| format!("{byte:02x}")).collect()
}

/// The socket of a mount point's daemon; its folder is made if there is none. One that others may
/// write, or have made, is refused.
pub(super) fn address(mount: &Path) -> io::Result<Address> {
    let folder = paths::runtime();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let folder = private::own_folder(&folder)?;
    Ok(Address::new(folder, format!("{}{SUFFIX}", name_of(mount))))
}

/// An answer that is coming, or has come.
#[derive(Debug)]
pub struct Asked(leasefs_host::control::Asked);

/// Asks the daemon of a mount point.
///
/// # Errors
/// If it can't be reached.
pub fn ask(mount: &Path, request: &Request) -> Result<Asked, AskError> {
    let patience = match request {
        Request::Status | Request::Why { .. } => STATUS_TIMEOUT,
        Request::Umount { .. } => LOOK,
    };
    ask_at(&address(mount)?, request, patience)
}

fn ask_at(address: &Address, request: &Request, patience: Duration) -> Result<Asked, AskError> {
    Ok(Asked(address.ask(request, patience)?))
}

/// Why there is no answer, or not the one wanted.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It can't be reached, or has ended, or hangs.
    #[error("the daemon does not answer: {0}")]
    Silent(#[from] io::Error),
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

impl Asked {
    /// The answer, with a status if that was asked for.
    ///
    /// # Errors
    /// That there is none, or the daemon's refusal, for people.
    pub fn result(&mut self) -> Result<Option<MountStatus>, AskError> {
        match self.0.answer()? {
            Response::Status(status) => Ok(Some(*status)),
            Response::Done | Response::Why(_) => Ok(None),
            Response::Error(error) => Err(AskError::Refused(error)),
        }
    }

    /// The answer to [`Request::Why`].
    ///
    /// # Errors
    /// As [`Asked::result`].
    pub fn why(&mut self) -> Result<Why, AskError> {
        match self.0.answer()? {
            Response::Why(why) => Ok(*why),
            Response::Error(error) => Err(AskError::Refused(error)),
            Response::Status(_) | Response::Done => Err(AskError::Refused(
                "the daemon answers something else".into(),
            )),
        }
    }

    /// As [`Asked::result`] of what takes as long as it takes: `lives` is asked now and then whether to wait
    /// on.
    ///
    /// # Errors
    /// As [`Asked::result`].
    pub fn result_while(&mut self, mut lives: impl FnMut() -> bool) -> Result<(), AskError> {
        loop {
            match self.result() {
                Err(AskError::Silent(error)) if is_timeout(&error) && lives() => {}
                result => return result.map(drop),
            }
        }
    }

    /// Waits until the daemon has ended.
    pub fn wait_for_end(self) {
        self.0.wait_for_end();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Whether a daemon of the mount point is there.
pub(super) fn is_listening(mount: &Path) -> bool {
    address(mount).is_ok_and(|address| address.is_listening())
}

/// Removes the socket that a dead daemon of the mount point left.
pub(super) fn forget(mount: &Path) {
    if let Ok(address) = address(mount) {
        address.remove_if_dead();
    }
}

/// The sockets of all daemons of this user. Those that dead ones left are removed.
///
/// # Errors
/// That somebody else has made their folder, or may write there.
pub(super) fn addresses() -> io::Result<Vec<Address>> {
    let path = paths::runtime();
    let folder = match private::own_folder(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    };
    let names = fs::read_dir(path)?.flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let sockets = names.filter(|name| name.ends_with(SUFFIX));
    let mut addresses = Vec::new();
    for name in sockets {
        let address = Address::new(folder.try_clone()?, name);
        address.remove_if_dead();
        if address.exists() {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// The state of all daemons of this user, by mount point; an error for one that doesn't answer.
pub fn all() -> Vec<Result<MountStatus, String>> {
    all_within(STATUS_TIMEOUT)
}

/// The same, if they answer within that time. They are asked side by side.
pub fn all_within(patience: Duration) -> Vec<Result<MountStatus, String>> {
    let status = |address: &Address| {
        let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", address.name());
        ask_at(address, &Request::Status, patience)
            .and_then(|mut asked| asked.result())
            .map_err(|e| failed(&e))?
            .ok_or_else(|| failed(&"the daemon gave no status"))
    };
    let addresses = match addresses() {
        Ok(addresses) => addresses,
        Err(error) => return vec![Err(error.to_string())],
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let asked = addresses
            .iter()
            .map(|address| scope.spawn(move || status(address)));
        let asked: Vec<_> = asked.collect();
        asked
            .into_iter()
            .filter_map(|asked| asked.join().ok())
            .collect()
    });
    all.sort_by_key(|status| status.as_ref().ok().map(|status| status.dir.clone()));
    all
}
