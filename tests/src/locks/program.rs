//! Programs that others wrote.

use super::locker::SOON;
use crate::mounted::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A program that was started here, and says what it does. Dropped, it is killed.
#[derive(Debug)]
pub struct Program {
    child: Child,
    said: PathBuf,
}

impl Program {
    /// Its output goes to a file `said`.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(command: &mut Command, said: PathBuf) -> Self {
        let output = fs::File::create(&said).expect("a file for what it says");
        let errors = output.try_clone().expect("the file again");
        let child = command
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, said }
    }

    /// All it has said.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until it says this.
    ///
    /// # Panics
    /// When it doesn't within `limit`.
    pub fn says(&self, line: &str, limit: Duration) {
        let found = || self.said().lines().any(|said| said == line).then_some(());
        eventually(
            &format!("{line:?} of {}", self.said.display()),
            limit,
            found,
            || self.said(),
        );
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.said.display());
        let child = &mut self.child;
        let said = &self.said;
        eventually(
            &what,
            limit,
            || child.try_wait().unwrap_or_default(),
            || fs::read_to_string(said).unwrap_or_default(),
        )
    }

    /// Kills it and waits for its end.
    ///
    /// # Panics
    /// When it doesn't end.
    pub fn kill(&mut self) {
        // Not reaped before, so the id is its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        self.ends_within(SOON);
    }

    /// Lets a program go on that waits for a line.
    ///
    /// # Panics
    /// When it doesn't listen.
    pub fn tell(&mut self) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(b"\n").expect("it listens");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let until = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
