//! The daemon's end of the control socket.

use super::assemble::Assembled;
use super::control::{self, Request, Response};
use leasefs_client::Asker;
use leasefs_host::control::{Address, Caller};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a question may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody wants the mount to end.
#[derive(Debug)]
pub(super) struct Unmount {
    pub(super) force: bool,
    /// Takes what became of it.
    pub(super) reply: oneshot::Sender<Result<(), String>>,
}

/// How often it is looked whether the socket still has its name: a session's folder goes with the session.
const LOOK: Duration = Duration::from_secs(5);

/// The socket of one mount point. It also keeps two daemons from mounting there at a time.
#[derive(Debug)]
pub(super) struct Listener {
    socket: leasefs_host::control::Listener,
    mount: PathBuf,
}

/// Takes the mount point's socket; `None` as long as another daemon has it.
pub(super) fn bind(mount: &Path) -> Result<Option<Listener>, String> {
    let failed = |e: io::Error| format!("can't make the control socket: {e}");
    // What earlier daemons left that were killed.
    control::addresses().map_err(failed)?;
    if control::is_listening(mount) {
        return Ok(None);
    }
    let address = control::new_address(mount).map_err(failed)?;
    match address.bind() {
        Ok(socket) => Ok(Some(Listener {
            socket,
            mount: mount.to_owned(),
        })),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// Answers until it is ended.
#[derive(Debug)]
pub(super) struct Answering {
    accepting: JoinHandle<()>,
    /// Its end comes when nobody is owed an answer any more.
    owed: mpsc::Receiver<Infallible>,
}

impl Answering {
    /// Takes no more questions. Returns when those that came are answered, which a process that ended first would cut off.
    pub(super) async fn end(mut self) {
        self.accepting.abort();
        // Who asks and doesn't listen is not waited for.
        let _ = timeout(PATIENCE, self.owed.recv()).await;
    }
}

impl Listener {
    /// Begins to answer.
    pub(super) fn serve(
        mut self,
        assembled: Arc<Assembled>,
        unmounts: mpsc::Sender<Unmount>,
    ) -> Answering {
        let (owes, owed) = mpsc::channel(1);
        let accepting = tokio::spawn(async move {
            loop {
                let caller = self.next().await;
                let (assembled, unmounts) = (assembled.clone(), unmounts.clone());
                tokio::spawn(answer(caller, assembled, unmounts, owes.clone()));
            }
        });
        Answering { accepting, owed }
    }

    async fn next(&mut self) -> Caller {
        loop {
            match timeout(LOOK, self.socket.next()).await {
                Ok(caller) => return caller,
                Err(_) if self.is_found() => {}
                Err(_) => self.take_a_new_place(),
            }
        }
    }

    fn is_found(&self) -> bool {
        let places = control::own_addresses(&self.mount);
        places.is_ok_and(|mut all| all.any(|address| self.socket.is_at(&address)))
    }

    fn take_a_new_place(&mut self) {
        match control::new_address(&self.mount).and_then(Address::bind) {
            Ok(socket) => {
                tracing::info!("the control socket was removed, and is there again");
                self.socket = socket;
            }
            // Tried again; status says that the daemon isn't found.
            Err(error) => tracing::debug!(%error, "the control socket was removed"),
        }
    }
}

async fn answer(
    mut caller: Caller,
    assembled: Arc<Assembled>,
    unmounts: mpsc::Sender<Unmount>,
    owes: mpsc::Sender<Infallible>,
) {
    let Ok(Ok(line)) = timeout(PATIENCE, caller.question()).await else {
        return;
    };
    let response = match serde_json::from_slice(&line) {
        Ok(Request::Status) => Response::Status(Box::new(assembled.status())),
        Ok(Request::Why { path }) => why(&caller, &assembled, &path).await,
        Ok(Request::Umount { force }) => unmount(force, &unmounts).await,
        Err(error) => Response::Error(format!("malformed question: {error}")),
    };
    let done = matches!(response, Response::Done);
    // Whoever asked may have gone.
    let _ = caller.answer(&response).await;
    drop(owes);
    if done {
        // The end of the connection tells that the process has ended.
        std::future::pending::<()>().await;
    }
}

/// What may be told is what whoever asks may look up.
async fn why(caller: &Caller, assembled: &Assembled, path: &[u8]) -> Response {
    let Ok((uid, gid, pid)) = caller.who() else {
        return Response::Error("the kernel doesn't say who asks".into());
    };
    match assembled
        .why(Asker { uid, gid, pid }, Path::new(OsStr::from_bytes(path)))
        .await
    {
        Ok(why) => Response::Why(Box::new(why)),
        Err(error) => Response::Error(error),
    }
}

async fn unmount(force: bool, unmounts: &mpsc::Sender<Unmount>) -> Response {
    let (reply, answer) = oneshot::channel();
    // If nobody receives, the mount is ending already.
    let _ = unmounts.send(Unmount { force, reply }).await;
    match answer.await {
        Ok(Ok(())) => Response::Done,
        Ok(Err(error)) => Response::Error(error),
        Err(_) => Response::Error("the mount has just ended: its log says how".to_owned()),
    }
}
