//! The control socket: one line of JSON each way.

use crate::state::{Enrolled, Location, Role};
use crate::status::Status;
use leasefs_host::control::{Address, Caller, Listener};
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

const NAME: &str = "control.sock";
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
    /// Its socket is not for everybody.
    #[error("the server of {0} answers only the user that it runs as, and root")]
    NotAllowed(PathBuf),
    /// There is one, but something is wrong.
    #[error(
        "the server of {path} gives no answer ({source}): is it stopped? What it was asked to do it may do yet"
    )]
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

/// Asks the server of a state directory.
///
/// # Errors
/// [`AskError::NotRunning`] if there is none.
pub fn ask(location: &Location, request: &Request) -> Result<Reply, AskError> {
    let no_answer = |source| AskError::NoAnswer {
        path: location.path().to_owned(),
        source,
    };
    let asked = address(location).and_then(|address| address.ask(request, PATIENCE));
    let mut asked = asked.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            AskError::NotRunning(location.path().to_owned())
        }
        io::ErrorKind::PermissionDenied => AskError::NotAllowed(location.path().to_owned()),
        _ => no_answer(e),
    })?;
    let reply: Result<Reply, String> = asked.answer().map_err(no_answer)?;
    reply.map_err(AskError::Refused)
}

/// Whose folder it is, the state directory named by its user says.
fn address(location: &Location) -> io::Result<Address> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(location.own(), flags, Mode::empty())?;
    Ok(Address::new(folder, NAME.to_owned()))
}

/// Listens in the server's folder, which this process has for itself. Must be called within a tokio
/// runtime.
///
/// # Errors
/// If the socket can't be made.
pub fn bind(folder: BorrowedFd<'_>) -> io::Result<Listener> {
    Address::new(folder.try_clone_to_owned()?, NAME.to_owned()).bind()
}

/// Answers until it is dropped.
pub async fn serve<A, F>(listener: Listener, answer: A)
where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Reply, String>> + Send,
{
    loop {
        let caller = listener.next().await;
        let answer = answer.clone();
        tokio::spawn(async move {
            let done = tokio::time::timeout(PATIENCE, attend(caller, answer)).await;
            if let Ok(Err(error)) = done {
                tracing::debug!(%error, "a command has hung up");
            }
        });
    }
}

async fn attend<A, F>(mut caller: Caller, answer: A) -> io::Result<()>
where
    A: Fn(Request) -> F,
    F: Future<Output = Result<Reply, String>>,
{
    let reply = match serde_json::from_slice(&caller.question().await?) {
        Ok(request) => answer(request).await,
        Err(error) => Err(format!(
            "the server doesn't understand the command ({error}): \
             use the fsserver that it was started with"
        )),
    };
    caller.answer(&reply).await
}
