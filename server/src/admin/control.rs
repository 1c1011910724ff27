//! The control socket: one line of JSON each way.

use crate::state::{Enrolled, Location, Role};
use crate::status::Status;
use leasefs_protocol::limits::MAX_CALLERS;
use leasefs_transport::private;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

const NAME: &str = "control.sock";
/// Longest question.
const MAX_REQUEST: u64 = 64 * 1024;
/// Longest answer: the status of as many sessions as there may be.
const MAX_REPLY: u64 = 64 * 1024 * 1024;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a running server is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// For a fresh ticket.
    Ticket {
        /// What its client may do.
        role: Role,
        /// Where it is to be confined.
        subdir: Option<String>,
    },
    /// For all clients.
    Clients,
    /// To revoke one.
    Revoke(String),
    /// How it is.
    Status,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The ticket.
    Ticket(String),
    /// The clients.
    Clients {
        /// All of them.
        clients: Vec<Enrolled>,
        /// What is wrong with the list.
        note: Option<String>,
    },
    /// The one that was revoked.
    Revoked {
        /// The client.
        client: Enrolled,
        /// Calls of the host for it that were waited for in vain.
        under_way: usize,
    },
    /// How it is.
    Status(Box<ServerStatus>),
}

/// A running server, for people and their programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerStatus {
    /// What it serves.
    pub export: PathBuf,
    /// The address it listens on.
    pub address: String,
    /// Its process.
    pub pid: u32,
    /// What is wrong with its list of clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its sessions.
    #[serde(flatten)]
    pub status: Status,
}

/// Why a server gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is none.
    #[error("no server is running with the state directory {0}")]
    NotRunning(PathBuf),
    /// There is one, but something is wrong.
    #[error("the server of {path} gives no answer: {source}")]
    NoAnswer {
        /// The state directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It refuses.
    #[error("{0}")]
    Refused(String),
}

/// Path of the socket that is short however long the state directory's is: socket addresses
/// have room for 108 bytes.
fn short_path(folder: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()).into()
}

/// Asks the server of a state directory.
///
/// # Errors
/// [`AskError::NotRunning`] if there is none.
pub fn ask(location: &Location, request: &Request) -> Result<Reply, AskError> {
    let no_answer = |source| AskError::NoAnswer {
        path: location.path().to_owned(),
        source,
    };
    let not_running = || AskError::NotRunning(location.path().to_owned());
    let stream = match connect(location) {
        Ok(stream) => stream,
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Err(not_running());
        }
        Err(e) => return Err(no_answer(e)),
    };
    let reply = exchange(stream, request).map_err(no_answer)?;
    reply.map_err(AskError::Refused)
}

fn connect(location: &Location) -> io::Result<UnixStream> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder: OwnedFd = rustix::fs::open(location.own(), flags, Mode::empty())?;
    let stream = UnixStream::connect(short_path(folder.as_fd()))?;
    is_of(&folder, &stream)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Refuses a socket that another has put into the folder of a server. Whose folder that is, the state
/// directory named by its user says.
fn is_of(folder: &OwnedFd, socket: &UnixStream) -> io::Result<()> {
    let owner = rustix::fs::fstat(folder)?.st_uid;
    private::peer_is(socket, owner)
}

fn exchange(mut stream: UnixStream, request: &Request) -> io::Result<Result<Reply, String>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = Vec::new();
    BufReader::new(stream.take(MAX_REPLY)).read_until(b'\n', &mut reply)?;
    Ok(serde_json::from_slice(&reply)?)
}

/// The server's side of the socket. Must live within a tokio runtime.
pub struct Control {
    listener: UnixListener,
    /// The server's folder, open: the socket's path goes by it.
    folder: OwnedFd,
}

impl Drop for Control {
    fn drop(&mut self) {
        // A leftover is recognised: nobody listens on it.
        let _ = std::fs::remove_file(short_path(self.folder.as_fd()));
    }
}

impl Control {
    /// Listens in the server's folder, which this process has for itself.
    ///
    /// # Errors
    /// If the socket can't be made.
    pub fn bind(folder: BorrowedFd<'_>) -> io::Result<Self> {
        let path = short_path(folder);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private)?;
        Ok(Self {
            listener,
            folder: folder.try_clone_to_owned()?,
        })
    }

    /// Answers until it is dropped.
    pub async fn serve<A, F>(self, answer: A)
    where
        A: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Reply, String>> + Send,
    {
        let callers = std::sync::Arc::new(Semaphore::new(MAX_CALLERS));
        loop {
            let Ok(caller) = std::sync::Arc::clone(&callers).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) if private::own_peer(&stream).is_err() => drop(stream),
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    tokio::spawn(async move {
                        let done = tokio::time::timeout(PATIENCE, attend(stream, answer)).await;
                        if let Ok(Err(error)) = done {
                            tracing::debug!(%error, "a command has hung up");
                        }
                        drop(caller);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the control socket fails");
                    tokio::time::sleep(PATIENCE).await;
                }
            }
        }
    }
}

async fn attend<A, F>(stream: tokio::net::UnixStream, answer: A) -> io::Result<()>
where
    A: Fn(Request) -> F,
    F: Future<Output = Result<Reply, String>>,
{
    let (reader, mut writer) = stream.into_split();
    let mut line = Vec::new();
    let mut reader = tokio::io::BufReader::new(reader.take(MAX_REQUEST));
    reader.read_until(b'\n', &mut line).await?;
    let reply = match serde_json::from_slice(&line) {
        Ok(request) => answer(request).await,
        Err(error) => Err(format!(
            "the server doesn't understand the command ({error}): \
             use the fsserver that it was started with"
        )),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    writer.shutdown().await
}
