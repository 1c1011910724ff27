//! The daemon's control socket: one line of JSON asks, one line answers.
//!
//! The sockets of a user's daemons lie in one folder that only the user may enter, so that
//! `status` and `umount` find them whatever the state directory: `$LEASEFS_RUNTIME_DIR`, else
//! /run/leasefs as root, else a folder in `$XDG_RUNTIME_DIR` or the temporary directory.

use super::status::MountStatus;
use leasefs_transport::private;
use ring::digest;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take to answer.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Unmounting writes back mapped pages first.
const UMOUNT_TIMEOUT: Duration = Duration::from_secs(120);
/// By force it is cut short.
const FORCED_UMOUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest line.
pub(super) const LONGEST_LINE: u64 = 16 << 20;

/// What a daemon is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Its state.
    Status,
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
    Done,
    Error(String),
}

/// The folder of the sockets.
fn folder() -> PathBuf {
    let user = rustix::process::geteuid();
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    if let Some(folder) = absolute("LEASEFS_RUNTIME_DIR") {
        return folder;
    }
    if user.is_root() {
        return "/run/leasefs".into();
    }
    match absolute("XDG_RUNTIME_DIR") {
        Some(runtime) => runtime.join("leasefs"),
        None => std::env::temp_dir().join(format!("leasefs-{}", user.as_raw())),
    }
}

/// The name under which files belong to the daemon of a mount point.
pub(super) fn name_of(mount: &Path) -> String {
    let hash = digest::digest(&digest::SHA256, mount.as_os_str().as_bytes());
    let name = hash.as_ref().iter().take(10);
    name.map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of the sockets, which is made if there is none. One that others may write, or have
/// made, is refused.
fn own_folder() -> io::Result<PathBuf> {
    let folder = folder();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    private::own_folder(&folder)?;
    Ok(folder)
}

/// The socket of a mount point's daemon; its folder is made if there is none.
pub(super) fn socket(mount: &Path) -> io::Result<PathBuf> {
    let folder = own_folder()?;
    Ok(folder.join(format!("{}.sock", name_of(mount))))
}

/// An answer that is coming, or has come.
#[derive(Debug)]
pub struct Asked {
    reader: BufReader<UnixStream>,
}

/// Asks the daemon of a mount point.
///
/// # Errors
/// If it can't be reached.
pub fn ask(mount: &Path, request: &Request) -> Result<Asked, AskError> {
    ask_at(&socket(mount)?, request)
}

fn ask_at(socket: &Path, request: &Request) -> Result<Asked, AskError> {
    let mut stream = UnixStream::connect(socket)?;
    private::own_peer(&stream)?;
    stream.set_read_timeout(Some(match request {
        Request::Status => STATUS_TIMEOUT,
        Request::Umount { force: false } => UMOUNT_TIMEOUT,
        Request::Umount { force: true } => FORCED_UMOUNT_TIMEOUT,
    }))?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(Asked {
        reader: BufReader::new(stream),
    })
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
        let mut line = String::new();
        self.reader
            .by_ref()
            .take(LONGEST_LINE)
            .read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match serde_json::from_str(&line).map_err(io::Error::from)? {
            Response::Status(status) => Ok(Some(*status)),
            Response::Done => Ok(None),
            Response::Error(error) => Err(AskError::Refused(error)),
        }
    }

    /// Waits until the daemon has ended.
    pub fn wait_for_end(mut self) {
        let mut rest = Vec::new();
        // Its end closes or resets the connection; either will do.
        let _ = self
            .reader
            .by_ref()
            .take(LONGEST_LINE)
            .read_to_end(&mut rest);
    }
}

/// Whether a daemon of the mount point is there.
pub(super) fn is_listening(mount: &Path) -> bool {
    let connect = |socket| UnixStream::connect(socket).and_then(private::own_peer);
    socket(mount).is_ok_and(|socket| connect(socket).is_ok())
}

/// Removes the socket that a dead daemon of the mount point left.
pub(super) fn forget(mount: &Path) {
    if let Ok(socket) = socket(mount) {
        remove_if_dead(&socket);
    }
}

/// A socket gets its name only when somebody listens on it: one that refuses is dead.
fn remove_if_dead(socket: &Path) {
    let is_socket = fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket());
    let answer = UnixStream::connect(socket);
    if is_socket && answer.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
        // If it can't be removed it is only in the way of nobody.
        let _ = fs::remove_file(socket);
    }
}

/// The sockets of all daemons of this user. Those that dead ones left are removed.
///
/// # Errors
/// That somebody else has made their folder, or may write there.
pub(super) fn sockets() -> io::Result<Vec<PathBuf>> {
    let folder = folder();
    match private::own_folder(&folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => drop(checked?),
    }
    let entries = fs::read_dir(folder)?;
    let mut sockets: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    sockets.retain(|path| path.extension().is_some_and(|kind| kind == "sock"));
    sockets.iter().for_each(|socket| remove_if_dead(socket));
    sockets.retain(|socket| socket.exists());
    Ok(sockets)
}

/// The state of all daemons of this user, by mount point; an error for one that doesn't answer.
pub fn all() -> Vec<Result<MountStatus, String>> {
    let status = |socket: &Path| {
        ask_at(socket, &Request::Status)
            .and_then(|mut asked| asked.result())
            .map_err(|e| format!("{}: {e}", socket.display()))?
            .ok_or_else(|| format!("{}: the daemon gave no status", socket.display()))
    };
    let sockets = match sockets() {
        Ok(sockets) => sockets,
        Err(error) => return vec![Err(error.to_string())],
    };
    let mut all: Vec<_> = sockets.iter().map(|socket| status(socket)).collect();
    all.sort_by_key(|status| status.as_ref().ok().map(|status| status.dir.clone()));
    all
}
