//! The daemon's end of the control socket.

use super::assemble::Assembled;
use super::control::{self, LONGEST_LINE, Request, Response};
use leasefs_transport::private;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
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

/// The socket of one mount point. It also keeps two daemons from mounting there at a time.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// Takes the mount point's socket.
pub(super) fn bind(mount: &Path) -> Result<Listener, String> {
    let failed = |e: io::Error| format!("can't make the control socket: {e}");
    let path = control::socket(mount).map_err(failed)?;
    // What earlier daemons left that were killed.
    control::sockets().map_err(failed)?;
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let socket = UnixListener::bind(&draft).map_err(failed)?;
    let named = renameat_with(CWD, &draft, CWD, &path, RenameFlags::NOREPLACE);
    if let Err(error) = named {
        let _ = std::fs::remove_file(&draft);
        return Err(match error {
            Errno::EXIST => format!(
                "another daemon is mounting, or unmounting, {}",
                mount.display()
            ),
            other => failed(other.into()),
        });
    }
    Ok(Listener { socket, path })
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers as long as it is held.
#[derive(Debug)]
pub(super) struct Answering(JoinHandle<()>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    /// Begins to answer.
    pub(super) fn serve(
        self,
        assembled: Arc<Assembled>,
        unmounts: mpsc::Sender<Unmount>,
    ) -> Answering {
        Answering(tokio::spawn(async move {
            loop {
                match self.socket.accept().await {
                    Ok((stream, _)) if private::own_peer(&stream).is_err() => drop(stream),
                    Ok((stream, _)) => {
                        tokio::spawn(answer(stream, assembled.clone(), unmounts.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "control socket");
                        tokio::time::sleep(PATIENCE).await;
                    }
                }
            }
        }))
    }
}

async fn answer(stream: UnixStream, assembled: Arc<Assembled>, unmounts: mpsc::Sender<Unmount>) {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(LONGEST_LINE));
    let Ok(Ok(_)) = timeout(PATIENCE, reader.read_line(&mut line)).await else {
        return;
    };
    let response = match serde_json::from_str(&line) {
        Ok(Request::Status) => Response::Status(Box::new(assembled.status())),
        Ok(Request::Umount { force }) => unmount(force, &unmounts).await,
        Err(error) => Response::Error(format!("malformed question: {error}")),
    };
    let done = matches!(response, Response::Done);
    if let Ok(mut text) = serde_json::to_vec(&response) {
        text.push(b'\n');
        // Whoever asked may have gone.
        let _ = writer.write_all(&text).await;
    }
    if done {
        // The end of the connection tells that the process has ended.
        std::future::pending::<()>().await;
    }
}

async fn unmount(force: bool, unmounts: &mpsc::Sender<Unmount>) -> Response {
    let (reply, answer) = oneshot::channel();
    // If nobody receives, the mount is ending already.
    let _ = unmounts.send(Unmount { force, reply }).await;
    match answer.await {
        Ok(Ok(())) | Err(_) => Response::Done,
        Ok(Err(error)) => Response::Error(error),
    }
}
