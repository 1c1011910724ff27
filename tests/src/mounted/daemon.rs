//! A daemon as a child process.

use super::wait::eventually;
use crate::link::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What is to be started so that a program runs in that network, if it is not this one.
pub(super) fn within_network(
    namespace: &Option<Arc<Namespace>>,
    program: &OsStr,
    arguments: Vec<OsString>,
) -> (OsString, Vec<OsString>) {
    match namespace {
        Some(namespace) => namespace.command(program, &arguments),
        None => (program.to_owned(), arguments),
    }
}

/// A child process whose output goes to files.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    stdout: PathBuf,
    log: PathBuf,
    /// Bytes of `stdout` that an earlier process of this name has written.
    stdout_from: usize,
}

fn append_to(path: &Path) -> File {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What each thread of a process does in the kernel, as far as that is told (to root).
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let of = |task: io::Result<fs::DirEntry>| {
        let task = task?.path();
        let read = |what| fs::read_to_string(task.join(what)).unwrap_or_default();
        Ok(read("stat") + &read("stack"))
    };
    let told = tasks.and_then(|tasks| tasks.map(of).collect::<io::Result<String>>());
    told.unwrap_or_else(|error| format!("{pid}: {error}\n"))
}

impl Daemon {
    /// Starts `program`; its output goes to `NAME.out` and `NAME.log` in `folder`.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(
        name: &str,
        folder: &Path,
        program: &OsStr,
        arguments: &[OsString],
        env: &[(String, String)],
    ) -> Self {
        let (stdout, log) = (
            folder.join(format!("{name}.out")),
            folder.join(format!("{name}.log")),
        );
        let stdout_from = fs::read(&stdout).map_or(0, |bytes| bytes.len());
        // A test process that dies (of SIGBUS in a mapping, say) must not leave daemons: they get SIGTERM when
        // the test's thread, which starts them, is gone. By a program, since what is to be done between fork and
        // exec has the memory copied, which waits for other threads' faults in mappings; and these, for the server.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(program)
            .args(arguments)
            .envs(env.iter().cloned())
            .stdin(Stdio::null());
        command.stdout(append_to(&stdout)).stderr(append_to(&log));
        let child = command.spawn();
        let child =
            child.unwrap_or_else(|error| panic!("{}: {error}", Path::new(program).display()));
        Self {
            name: name.to_owned(),
            child,
            stdout,
            log,
            stdout_from,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output.
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.stdout).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.stdout_from..).unwrap_or_default()).into_owned()
    }

    /// The first complete line it prints that starts with `prefix`.
    ///
    /// # Panics
    /// When it prints none within `limit`, or ends first.
    pub fn line_with(&mut self, prefix: &str, limit: Duration) -> String {
        let what = format!("the line {prefix:?} of {}", self.name);
        let (stdout, log, pid) = (self.stdout.clone(), self.log.clone(), self.pid());
        let probe = || {
            let output = self.output();
            let complete = output
                .rsplit_once('\n')
                .map_or("", |(complete, _)| complete);
            let line = complete
                .lines()
                .find(|line| line.starts_with(prefix))
                .map(str::to_owned);
            if line.is_none()
                && let Some(status) = self.exited()
            {
                panic!(
                    "{} ended ({status}) instead of printing {prefix:?}\n{}",
                    self.name,
                    tail(&log)
                );
            }
            line
        };
        let why = || {
            format!(
                "it printed {:?}\n{}{}",
                fs::read_to_string(stdout),
                threads(pid),
                tail(&log)
            )
        };
        eventually(&what, limit, probe, why)
    }

    /// Its status if it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_default()
    }

    /// Sends a signal; nothing if it has ended already.
    pub fn signal(&mut self, signal: Signal) {
        if self.exited().is_none() {
            // Not reaped, so the id is still its own.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} (process {}) to end", self.name, self.pid());
        let (log, pid) = (self.log.clone(), self.pid());
        let why = || threads(pid) + &tail(&log);
        eventually(&what, limit, || self.exited(), why)
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ends_within(Duration::from_secs(10));
    }

    /// Asks it to end and kills it if it has not within `limit`; false in that case.
    pub fn end_or_kill(&mut self, limit: Duration) -> bool {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        let started = std::time::Instant::now();
        while self.exited().is_none() {
            if started.elapsed() > limit {
                self.signal(Signal::KILL);
                let _ = self.child.wait();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.exited().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(20);
    format!("its log ends:\n{}", lines[from..].join("\n"))
}
