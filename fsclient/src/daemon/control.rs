//! The daemon's control socket: one line of JSON asks, one line answers.
//!
//! The sockets of a user's daemons lie in folders that only the user may enter, so that
//! `status` and `umount` find them whatever the state directory.

use super::status::MountStatus;
use super::why::Why;
use leasefs_host::control::Address;
use leasefs_host::{mounts, paths, private};
use ring::digest;
use rustix::fd::OwnedFd;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the name of a socket ends with.
const SUFFIX: &str = ".sock";
/// How long a daemon may take to answer.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
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

/// Where the socket of a new daemon goes: its folder is made if there is none, in the first place that there is. One
/// that others may write, or have made, is refused.
pub(super) fn new_address(mount: &Path) -> io::Result<Address> {
    let mut there_is_none = io::ErrorKind::NotFound.into();
    for folder in paths::runtimes() {
        match DirBuilder::new().mode(0o700).create(&folder) {
            // A session's folders go with it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => there_is_none = e,
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => return Ok(socket_in(private::own_folder(&folder)?, mount)),
        }
    }
    Err(there_is_none)
}

/// Where sockets of this user are. Folders that others have made don't count.
///
/// # Errors
/// That there are none but such.
fn own_folders() -> io::Result<Vec<(PathBuf, OwnedFd)>> {
    let (mut folders, mut refused) = (Vec::new(), None);
    for path in paths::runtimes() {
        match private::own_folder(&path) {
            Ok(folder) => folders.push((path, folder)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => refused = Some(e),
        }
    }
    match refused.filter(|_| folders.is_empty()) {
        Some(refused) => Err(refused),
        None => Ok(folders),
    }
}

/// Where the socket of a mount point's daemon may be.
pub(super) fn own_addresses(mount: &Path) -> io::Result<impl Iterator<Item = Address>> {
    let folders = own_folders()?.into_iter();
    Ok(folders.map(|(_, folder)| socket_in(folder, mount)))
}

/// Others may lie there too.
fn is_socket_name(name: &str) -> bool {
    let digits = name.strip_suffix(SUFFIX).unwrap_or_default();
    digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What the socket of a mount point's daemon is called.
pub(super) fn socket_name(mount: &Path) -> String {
    format!("{}{SUFFIX}", name_of(mount))
}

fn socket_in(folder: OwnedFd, mount: &Path) -> Address {
    Address::new(folder, socket_name(mount))
}

/// The user who has mounted there, if it is another than this process's.
///
/// # Errors
/// If the mount table can't be read.
pub fn other_user(mount: &Path) -> io::Result<Option<u32>> {
    let user = mounts::mounted_by(&mounts::table()?, mount);
    Ok(user.filter(|user| *user != geteuid().as_raw()))
}

/// The socket of whoever has mounted there: root may ask other users' daemons, nobody else does.
fn address_of_anybody(mount: &Path) -> Result<Address, AskError> {
    match other_user(mount)? {
        None => own_addresses(mount)?
            .find(Address::exists)
            .ok_or_else(|| AskError::Silent(io::ErrorKind::NotFound.into())),
        Some(user) if !geteuid().is_root() => Err(AskError::Foreign(user)),
        Some(user) => paths::runtimes_of(user)
            .iter()
            .filter_map(|folder| private::folder_of(folder, user).ok())
            .map(|folder| socket_in(folder, mount))
            .find(Address::exists)
            .ok_or_else(|| AskError::Silent(io::ErrorKind::NotFound.into())),
    }
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
    ask_within(mount, request, patience)
}

/// The same of one that may take so long.
///
/// # Errors
/// As [`ask`].
pub(super) fn ask_within(
    mount: &Path,
    request: &Request,
    patience: Duration,
) -> Result<Asked, AskError> {
    ask_at(&address_of_anybody(mount)?, request, patience)
}

/// Asks whoever listens there.
///
/// # Errors
/// As [`ask`].
pub(super) fn ask_at(
    address: &Address,
    request: &Request,
    patience: Duration,
) -> Result<Asked, AskError> {
    let daemon = address.reach()?;
    let pid = daemon.process()?;
    if is_stopped(pid) {
        // Asked now, it would do it when it goes on.
        return Err(AskError::Stopped(pid));
    }
    Ok(Asked(daemon.ask(request, patience)?))
}

/// Why there is no answer, or not the one wanted.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It can't be reached, or has ended, or hangs.
    #[error("the daemon does not answer{}", why_silent(.0))]
    Silent(#[from] io::Error),
    /// It would answer if it were let go on.
    #[error("the daemon is stopped: `kill -CONT {0}` lets it go on")]
    Stopped(u32),
    /// It answers its own user, and root.
    #[error("it is a mount of user {0}: only that user and root may ask its daemon")]
    Foreign(u32),
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

impl Asked {
    fn answer(&mut self) -> Result<Response, AskError> {
        match self.0.answer()? {
            // A line of its own might be taken for another's.
            Response::Error(error) => Err(AskError::Refused(error.replace('\n', "; "))),
            response => Ok(response),
        }
    }

    /// The answer to [`Request::Status`].
    ///
    /// # Errors
    /// That there is none, or the daemon's refusal, for people.
    pub fn status(&mut self) -> Result<MountStatus, AskError> {
        match self.answer()? {
            Response::Status(status) => Ok(*status),
            _ => Err(something_else()),
        }
    }

    /// The answer to [`Request::Why`].
    ///
    /// # Errors
    /// As [`Asked::status`].
    pub fn why(&mut self) -> Result<Why, AskError> {
        match self.answer()? {
            Response::Why(why) => Ok(*why),
            _ => Err(something_else()),
        }
    }

    /// That what takes as long as it takes is done: `lives` is asked now and then whether to wait on.
    ///
    /// # Errors
    /// As [`Asked::status`].
    pub fn done_while(&mut self, mut lives: impl FnMut() -> bool) -> Result<(), AskError> {
        loop {
            match self.answer() {
                Ok(Response::Done) => return Ok(()),
                Err(AskError::Silent(error)) if is_timeout(&error) && lives() => {}
                Ok(_) => return Err(something_else()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the daemon has ended.
    pub fn wait_for_end(self) {
        self.0.wait_for_end();
    }
}

fn something_else() -> AskError {
    AskError::Refused("the daemon answers something else".to_owned())
}

fn why_silent(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ": nobody listens where its socket should be".to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => String::new(),
        io::ErrorKind::UnexpectedEof => ": it has ended meanwhile, its log says how".to_owned(),
        _ => format!(": {error}"),
    }
}

/// Whether a process was stopped, by a signal or a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may have anything in it.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Whether it would have answered later.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Whether a daemon of the mount point is there.
pub(super) fn is_listening(mount: &Path) -> bool {
    own_addresses(mount).is_ok_and(|mut all| all.any(|address| address.is_listening()))
}

/// Removes the socket that a dead daemon of the mount point left.
pub(super) fn forget(mount: &Path) {
    for address in own_addresses(mount).into_iter().flatten() {
        address.remove_if_dead();
    }
}

/// The sockets of all daemons of this user. Those that dead ones left are removed.
///
/// # Errors
/// That somebody else has made their folder, or may write there.
pub(super) fn addresses() -> io::Result<Vec<Address>> {
    let mut addresses = Vec::new();
    for (path, folder) in own_folders()? {
        let names = fs::read_dir(path)?.flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        for name in names.filter(|name| is_socket_name(name)) {
            let address = Address::new(folder.try_clone()?, name);
            address.remove_if_dead();
            if address.exists() {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}
