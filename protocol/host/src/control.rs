//! Control sockets: commands of this user, or of root, ask a daemon. One line of JSON each way.

use crate::private;
use leasefs_protocol::limits::MAX_CALLERS;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, chmod, fstat, openat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest question.
const LONGEST_QUESTION: u64 = 64 * 1024;
/// Longest answer: the state of as many sessions as there may be.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;
/// What may come behind it.
const LONGEST_REST: u64 = 64 * 1024;
/// How long a daemon that has answered may take to end.
const LAST: Duration = Duration::from_secs(120);
/// How long nobody is taken in after the kernel has failed to give a caller.
const PAUSE: Duration = Duration::from_secs(5);

/// Where a socket is: in a folder that its daemon's user has alone.
#[derive(Debug)]
pub struct Address {
    folder: OwnedFd,
    name: String,
}

impl Address {
    /// The socket `name` in a folder, which is open.
    pub fn new(folder: OwnedFd, name: String) -> Self {
        Self { folder, name }
    }

    /// A path that is short however long the folder's is: socket addresses have room for 108 bytes.
    fn path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd()).into()
    }

    /// One that has too many callers waiting doesn't answer: that isn't waited for. A link isn't followed: it would lead to
    /// another daemon.
    fn dial(&self) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.folder, &self.name, flags, Mode::empty())?;
        if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_socket() {
            let what = format!("{} is no socket", self.name);
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Reaches who listens, and asks nothing yet. Refuses a socket that another than the folder's owner listens on; in one's own
    /// folder it may be root.
    ///
    /// # Errors
    /// The kernel's; `NotFound` or `ConnectionRefused` if nobody listens.
    pub fn reach(&self) -> io::Result<Reached> {
        let stream = self.dial()?;
        let owner = fstat(&self.folder)?.st_uid;
        match owner == geteuid().as_raw() {
            true => private::own_peer(&stream)?,
            false => private::peer_is(&stream, owner)?,
        }
        Ok(Reached(stream))
    }

    /// Asks who listens. The answer may take as long as `patience`.
    ///
    /// # Errors
    /// As [`Address::reach`].
    pub fn ask(&self, question: &impl Serialize, patience: Duration) -> io::Result<Asked> {
        self.reach()?.ask(question, patience)
    }

    /// Its name in the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether anything has its name.
    pub fn exists(&self) -> bool {
        self.found().is_some()
    }

    /// Which file has its name.
    fn found(&self) -> Option<(u64, u64)> {
        self.file(&self.name).ok()
    }

    /// Whether anybody who is to be believed listens.
    pub fn is_listening(&self) -> bool {
        self.reach().is_ok()
    }

    /// Removes the socket if its daemon is dead: it gets its name only when somebody listens, so one that
    /// refuses is dead.
    pub fn remove_if_dead(&self) {
        let found = statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        let is_socket = found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_socket());
        if is_socket
            && self
                .dial()
                .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
        {
            self.remove(&self.name);
        }
    }

    fn remove(&self, name: &str) {
        // What can't be removed is only in the way of nobody.
        let _ = unlinkat(&self.folder, name, AtFlags::empty());
    }

    /// Listens, for this user and root. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `AlreadyExists` if another listens there, or the kernel's.
    pub fn bind(self) -> io::Result<Listener> {
        let (socket, bound) = self.bind_for(Mode::RUSR | Mode::WUSR)?;
        Ok(Listener {
            socket,
            callers: Arc::new(Semaphore::new(MAX_CALLERS)),
            bound,
        })
    }

    /// Listens, for whom the folder and the socket's mode let come. As [`Address::bind`].
    ///
    /// # Errors
    /// As [`Address::bind`].
    pub fn bind_for(self, mode: Mode) -> io::Result<(UnixListener, Bound)> {
        self.remove_if_dead();
        let draft = format!("{}.{}.new", self.name, std::process::id());
        self.remove(&draft);
        let socket = UnixListener::bind(self.path(&draft))?;
        let named = chmod(self.path(&draft), mode).and_then(|()| {
            let (dir, name) = (self.folder.as_fd(), self.name.as_str());
            let file = self.file(&draft)?;
            renameat_with(dir, draft.as_str(), dir, name, RenameFlags::NOREPLACE)?;
            Ok(file)
        });
        match named {
            Ok(file) => Ok((
                socket,
                Bound {
                    address: self,
                    file,
                },
            )),
            Err(error) => {
                self.remove(&draft);
                Err(match error {
                    Errno::EXIST => ErrorKind::AlreadyExists.into(),
                    other => other.into(),
                })
            }
        }
    }

    /// Which file has a name in its folder.
    fn file(&self, name: &str) -> rustix::io::Result<(u64, u64)> {
        let stat = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

/// The name of a socket on which somebody listens: others can't take it as long as this is held.
#[derive(Debug)]
pub struct Bound {
    address: Address,
    /// Which socket it is: somebody may have removed the name, and another have taken it.
    file: (u64, u64),
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.address.found() == Some(self.file) {
            self.address.remove(&self.address.name);
        }
    }
}

/// Somebody who listens.
#[derive(Debug)]
pub struct Reached(UnixStream);

impl Reached {
    /// His process.
    ///
    /// # Errors
    /// The kernel's.
    pub fn process(&self) -> io::Result<u32> {
        let peer = socket_peercred(&self.0)?;
        Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Asks him. The answer may take as long as `patience`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(self, question: &impl Serialize, patience: Duration) -> io::Result<Asked> {
        let mut stream = self.0;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&line(question)?)?;
        Ok(Asked {
            stream: BufReader::new(stream),
            patience,
            line: Vec::new(),
        })
    }
}

/// An answer that is coming, or has come.
#[derive(Debug)]
pub struct Asked {
    stream: BufReader<UnixStream>,
    patience: Duration,
    /// What has come of it.
    line: Vec<u8>,
}

impl Asked {
    /// The answer.
    ///
    /// # Errors
    /// That not all of it is there in time, or none that can be read.
    pub fn answer<A: DeserializeOwned>(&mut self) -> io::Result<A> {
        let deadline = Instant::now() + self.patience;
        while self.line.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.line.len() > LONGEST_ANSWER {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.get_ref().set_read_timeout(Some(left))?;
            let come = match self.stream.fill_buf() {
                // By the signal of a Ctrl-C that is being told.
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                come => come?,
            };
            let end = come.iter().position(|byte| *byte == b'\n');
            let part = come.get(..end.map_or(come.len(), |end| end + 1));
            let part = part.unwrap_or_default();
            if part.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.line.extend_from_slice(part);
            let taken = part.len();
            self.stream.consume(taken);
        }
        let answer = serde_json::from_slice(&self.line)?;
        self.line.clear();
        Ok(answer)
    }

    /// Waits until the daemon has hung up.
    pub fn wait_for_end(mut self) {
        let (begun, mut come) = (Instant::now(), 0);
        while come < LONGEST_REST {
            let left = LAST.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            // If it can't be set, the time that an answer may take counts.
            let _ = self.stream.get_ref().set_read_timeout(Some(left));
            // Its end closes or resets the connection; either will do.
            match self.stream.fill_buf() {
                Ok([]) | Err(_) => return,
                Ok(rest) => {
                    let taken = rest.len();
                    come += taken as u64;
                    self.stream.consume(taken);
                }
            }
        }
    }
}

/// A daemon's end of a socket. Whoever holds it keeps others from listening there.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    callers: Arc<Semaphore>,
    bound: Bound,
}

impl Listener {
    /// Whether whoever looks there finds this socket.
    pub fn is_at(&self, address: &Address) -> bool {
        let own = self.bound.address.found();
        own.is_some() && own == address.found()
    }

    /// The next caller, who is this user or root. Of as many as are answered at a time one must have gone before.
    pub async fn next(&self) -> Caller {
        loop {
            let place = Arc::clone(&self.callers).acquire_owned().await;
            match self.socket.accept().await {
                Ok((stream, _)) if private::own_peer(&stream).is_err() => drop(stream),
                Ok((stream, _)) => {
                    return Caller {
                        stream,
                        _place: place.ok(),
                    };
                }
                Err(error) => {
                    tracing::warn!(%error, "the control socket fails");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Who asks. Sees the daemon hang up when dropped.
#[derive(Debug)]
pub struct Caller {
    stream: tokio::net::UnixStream,
    _place: Option<OwnedSemaphorePermit>,
}

impl Caller {
    /// Its user, group and process.
    ///
    /// # Errors
    /// The kernel's.
    pub fn who(&self) -> io::Result<(u32, u32, u32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream)?;
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or_default();
        Ok((peer.uid.as_raw(), peer.gid.as_raw(), pid))
    }

    /// What is asked, in JSON.
    ///
    /// # Errors
    /// If the caller has gone.
    pub async fn question(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut reader = tokio::io::BufReader::new((&mut self.stream).take(LONGEST_QUESTION));
        reader.read_until(b'\n', &mut line).await?;
        Ok(line)
    }

    /// Answers.
    ///
    /// # Errors
    /// If the caller has gone.
    pub async fn answer(&mut self, answer: &impl Serialize) -> io::Result<()> {
        self.stream.write_all(&line(answer)?).await
    }
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs;
    use std::path::Path;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn address(folder: &Path) -> Address {
        let folder = private::own_folder(folder).expect("a folder of one's own");
        Address::new(folder, "control.sock".to_owned())
    }

    fn folder(scratch: &Scratch, name: &str) -> PathBuf {
        let folder = scratch.path(name);
        fs::create_dir(&folder).expect("made");
        folder
    }

    #[tokio::test]
    async fn a_question_gets_its_answer_however_long_the_path_is() {
        let scratch = Scratch::new();
        let folder = folder(&scratch, &"long".repeat(50));
        let listener = address(&folder).bind().expect("bound");
        let asked = tokio::task::spawn_blocking(move || {
            let mut asked = address(&folder).ask(&"how", PATIENCE).expect("asked");
            let answer: String = asked.answer().expect("answered");
            asked.wait_for_end();
            answer
        });
        let mut caller = listener.next().await;
        assert_eq!(caller.question().await.expect("a line"), b"\"how\"\n");
        caller.answer(&"so").await.expect("taken");
        drop(caller);
        assert_eq!(asked.await.expect("no panic"), "so");
    }

    #[tokio::test]
    async fn who_lets_his_name_go_leaves_it_to_who_has_taken_it_since() {
        let scratch = Scratch::new();
        let folder = folder(&scratch, "f");
        let first = address(&folder).bind().expect("bound");
        fs::remove_file(folder.join("control.sock")).expect("somebody tidies up");
        let second = address(&folder).bind().expect("bound anew");
        drop(first);
        assert!(folder.join("control.sock").exists());
        drop(second);
        assert!(!folder.join("control.sock").exists());
    }

    #[tokio::test]
    async fn a_link_leads_to_no_other_socket() {
        let scratch = Scratch::new();
        let (here, there) = (folder(&scratch, "here"), folder(&scratch, "there"));
        let _listener = address(&there).bind().expect("bound");
        let link = here.join("control.sock");
        std::os::unix::fs::symlink(there.join("control.sock"), link).expect("a link");
        assert!(address(&there).is_listening());
        let refused = address(&here).reach().map(drop);
        let refused = refused.expect_err("it leads elsewhere");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }

    #[test]
    fn who_takes_no_callers_or_says_little_at_a_time_is_not_waited_for() {
        let scratch = Scratch::new();
        let folder = folder(&scratch, "f");
        let socket = std::os::unix::net::UnixListener::bind(folder.join("control.sock"));
        let socket = socket.expect("bound");
        let little = Duration::from_millis(300);
        let mut asked = address(&folder).ask(&"how", little).expect("asked");
        let trickle = std::thread::spawn(move || {
            let (mut stream, _) = socket.accept().expect("a caller");
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
            socket
        });
        let begun = Instant::now();
        let answer: io::Result<String> = asked.answer();
        let kind = answer.expect_err("no answer").kind();
        assert!(matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock));
        drop(asked);
        let _listens = trickle.join().expect("it ends");
        // Until its queue is full.
        let crowd: Vec<_> = (0..10_000)
            .map_while(|_| address(&folder).reach().ok())
            .collect();
        assert!(address(&folder).ask(&"how", PATIENCE).is_err());
        assert!(!crowd.is_empty());
        assert!(begun.elapsed() < PATIENCE);
    }

    #[tokio::test]
    async fn a_listener_whose_folder_was_replaced_is_not_where_it_is_looked_for() {
        let scratch = Scratch::new();
        let path = folder(&scratch, "f");
        let listener = address(&path).bind().expect("bound");
        fs::rename(&path, scratch.path("gone")).expect("renamed");
        folder(&scratch, "f");
        assert!(!listener.is_at(&address(&path)));
        let another = address(&path).bind().expect("bound");
        assert!(!listener.is_at(&address(&path)) && another.is_at(&address(&path)));
    }

    #[tokio::test]
    async fn one_daemon_listens_and_what_a_dead_one_left_is_in_nobodys_way() {
        let scratch = Scratch::new();
        let folder = folder(&scratch, "f");
        let dead = std::os::unix::net::UnixListener::bind(folder.join("control.sock"));
        drop(dead.expect("bound"));
        assert!(!address(&folder).is_listening());
        let listener = address(&folder).bind().expect("bound");
        let second = address(&folder).bind().expect_err("taken");
        assert_eq!(second.kind(), ErrorKind::AlreadyExists);
        assert!(address(&folder).is_listening());
        address(&folder).remove_if_dead();
        assert!(address(&folder).is_listening());
        assert!(listener.is_at(&address(&folder)));
        drop(listener);
        assert_eq!(fs::read_dir(&folder).expect("read").count(), 0);
    }
}
