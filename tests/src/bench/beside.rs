//! What a mount is measured beside.

use super::System;
use super::counts::{Counters, resident};
use super::programs::run;
use crate::link::{Link, Namespace, SERVER};
use crate::mounted::{Daemon, Sandbox, eventually, mounts_below};
use rustix::fs::{Advice, fadvise};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const START: Duration = Duration::from_secs(20);
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";
/// How long it believes what it has cached, unless a file's attributes show that it has changed.
const BELIEF: &str = "auto_cache,dcache_timeout=60,entry_timeout=60,attr_timeout=60";

/// A directory of this machine, without network or FUSE.
#[derive(Debug)]
pub struct Local([PathBuf; 1]);

impl Local {
    /// That one.
    pub fn new(dir: &Path) -> Self {
        Self([dir.to_owned()])
    }
}

/// Takes what its files contain out of the page cache. Dropping all caches would empty those of the others' servers.
fn evict(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            evict(&path)?;
        } else if kind.is_file() {
            let file = fs::File::open(path)?;
            file.sync_data()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

impl System for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn dirs(&self) -> &[PathBuf] {
        &self.0
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn remount(&mut self) -> io::Result<()> {
        evict(&self.0[0])
    }

    fn settled(&mut self) -> io::Result<Option<Counters>> {
        Ok(None)
    }

    fn resident(&self) -> Option<u64> {
        None
    }
}

/// sshfs on the same link. What it would pay for encryption it is spared.
#[derive(Debug)]
pub struct Sshfs {
    sandbox: Sandbox,
    client: Arc<Namespace>,
    source: OsString,
    port: u16,
    dirs: [PathBuf; 1],
    daemon: Option<Daemon>,
}

impl Sshfs {
    /// Serves a directory across the link and mounts it.
    ///
    /// # Errors
    /// If it can't be served.
    pub fn start(link: &Link, export: &Path) -> io::Result<Self> {
        let any = SocketAddr::new(SERVER, 0);
        let listener = link.server.inside(|| TcpListener::bind(any))?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || serve(&listener));
        let sandbox = Sandbox::new("sshfs");
        let mut source = OsString::from(format!("{SERVER}:"));
        source.push(export);
        let mut sshfs = Self {
            client: link.client.clone(),
            dirs: [sandbox.folder("mount")],
            sandbox,
            source,
            port,
            daemon: None,
        };
        sshfs.mount();
        Ok(sshfs)
    }

    fn mount(&mut self) {
        let dir = &self.dirs[0];
        let options = format!("directport={},{BELIEF}", self.port).into();
        let arguments = [
            self.source.clone(),
            dir.into(),
            "-f".into(),
            "-o".into(),
            options,
        ];
        let (program, arguments) = self.client.command("sshfs".as_ref(), &arguments);
        self.daemon = Some(Daemon::start(
            "sshfs",
            self.sandbox.root(),
            &program,
            &arguments,
            &[],
        ));
        let mounted = || mounts_below(dir).contains(dir).then_some(());
        let log = self.sandbox.root().join("sshfs.log");
        eventually("sshfs to mount", START, mounted, || {
            fs::read_to_string(log).unwrap_or_default()
        });
    }

    fn unmount(&mut self) -> io::Result<()> {
        run(Command::new("umount").arg(&self.dirs[0]))?;
        if let Some(mut daemon) = self.daemon.take() {
            daemon.ends_within(START);
        }
        Ok(())
    }
}

/// A process for each connection.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        // Requests and answers are small, and each waits for the other.
        let _ = stream.set_nodelay(true);
        let Ok(output) = stream.try_clone() else {
            continue;
        };
        let mut server = Command::new(SFTP_SERVER);
        server
            .stdin(OwnedFd::from(stream))
            .stdout(OwnedFd::from(output))
            .stderr(Stdio::null());
        // A mount that finds nobody says so.
        if let Ok(mut server) = server.spawn() {
            thread::spawn(move || server.wait());
        }
    }
}

impl System for Sshfs {
    fn name(&self) -> &'static str {
        "sshfs"
    }

    fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    fn is_coherent(&self) -> bool {
        false
    }

    fn remount(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.mount();
        Ok(())
    }

    fn settled(&mut self) -> io::Result<Option<Counters>> {
        Ok(None)
    }

    fn resident(&self) -> Option<u64> {
        self.daemon
            .as_ref()
            .and_then(|daemon| resident(daemon.pid()).ok())
    }
}

impl Drop for Sshfs {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error}");
        }
        for left in self.sandbox.clean() {
            eprintln!("left behind: {left}");
        }
    }
}
