//! A network namespace without a name.

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;

/// Lives as long as this, or a process in it.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new one, with nothing in it.
    ///
    /// # Errors
    /// If there may be none.
    pub fn new() -> io::Result<Self> {
        apart(|| {
            // SAFETY: only a namespace of this thread is exchanged, which ends at once.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net").map(Self)
        })
    }

    /// A path to it that other programs can open while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Does something inside: what it opens stays there, wherever it is used.
    ///
    /// # Errors
    /// If it fails, or can't be done there.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        apart(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        })
    }

    /// The program and the arguments that run `program` with `arguments` inside. Mounts stay those of this
    /// process.
    pub fn command(&self, program: &OsStr, arguments: &[OsString]) -> (OsString, Vec<OsString>) {
        let mut all = vec![
            format!("--net={}", self.path()).into(),
            "--".into(),
            program.into(),
        ];
        all.extend_from_slice(arguments);
        ("nsenter".into(), all)
    }

    /// `ip` with these arguments, inside.
    pub(super) fn ip(&self, arguments: &[&str]) -> io::Result<()> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let (program, arguments) = self.command("ip".as_ref(), &arguments);
        let output = Command::new(program).args(&arguments).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "{arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
        }
    }
}

/// In a thread that ends with it: nothing would bring one back out of a namespace.
fn apart<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let done = scope.spawn(work).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
