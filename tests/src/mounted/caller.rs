//! Processes that use a mount and can be killed.

use super::wait::eventually;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A process that carries out one file operation (`leasefs-caller`).
#[derive(Debug)]
pub struct Caller {
    what: String,
    child: Child,
}

impl Caller {
    /// Starts `program` (the path of `leasefs-caller`) and waits until it has prepared
    /// `operation` on `path`; its output goes to `folder`.
    ///
    /// # Panics
    /// When it is not prepared in time.
    pub fn prepare(program: &str, folder: &Path, operation: &str, path: &Path) -> Self {
        let what = format!("{operation} of {}", path.display());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let output: PathBuf = folder.join(format!("caller-{operation}-{name}.log"));
        let file = File::create(&output).expect("a file for its output");
        let child = Command::new(program)
            .arg(operation)
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(file.try_clone().expect("a second descriptor"))
            .stderr(file)
            .spawn()
            .expect("leasefs-caller can be started");
        let caller = Self { what, child };
        let told = || fs::read_to_string(&output).unwrap_or_default();
        let prepared = || told().contains("prepared").then_some(());
        eventually(
            &format!("{} to be prepared", caller.what),
            LIMIT,
            prepared,
            told,
        );
        caller
    }

    /// Lets it carry out its operation.
    ///
    /// # Panics
    /// When it does not listen.
    pub fn go(&mut self) {
        let input = self.child.stdin.as_mut().expect("its input is a pipe");
        input.write_all(b"\n").expect("it listens");
    }

    /// Fails unless it is still busy after `time`.
    ///
    /// # Panics
    /// As said.
    pub fn is_busy_for(&mut self, time: Duration) {
        std::thread::sleep(time);
        if let Some(status) = self.exited() {
            panic!("{} did not wait: {status}", self.what);
        }
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
    }

    /// How it ended, and how long that took from now.
    ///
    /// # Panics
    /// When it does not end within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        let started = Instant::now();
        let what = format!("{} (process {}) to end", self.what, self.child.id());
        let kernel = format!("/proc/{}/stack", self.child.id());
        let why = move || fs::read_to_string(kernel).unwrap_or_default();
        let status = eventually(&what, limit, || self.exited(), why);
        (status, started.elapsed())
    }

    fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_default()
    }
}

const LIMIT: Duration = Duration::from_secs(20);

impl Drop for Caller {
    fn drop(&mut self) {
        // Not waited for: it may be stuck in the kernel until its mount is gone.
        let _ = self.child.kill();
    }
}
