//! A process that increments a counter under a lock, and says what it does.
//!
//! Each increment is `begin V` once the lock is there and V, the value to be, is known; `wrote V` when it
//! is in the file, before the lock is given up. What fails says `lost STEP ERROR`, and the file is opened anew.

use super::process::{Process, say, value_at};
use super::sys::{self, Kind, Type, errno_name};
use leasefs_host::clock::monotonic_time;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Before the file is opened again, whose mount may be gone for a while.
const PAUSE: Duration = Duration::from_millis(20);

/// What is to be done.
#[derive(Debug)]
pub struct Count {
    /// The counter: eight bytes.
    pub path: PathBuf,
    /// By which lock.
    pub kind: Kind,
    /// How often, unless a command comes first.
    pub times: u64,
    /// How long it stays between reading and writing.
    pub linger: Duration,
    /// Whether it counts as written only when it is at the server.
    pub sync: bool,
}

type Step<T> = Result<T, (&'static str, io::Error)>;

fn step<T>(name: &'static str, result: io::Result<T>) -> Step<T> {
    result.map_err(|error| (name, error))
}

impl Count {
    /// Does it.
    pub fn run(&self, process: &Process) {
        let (mut file, mut done) = (None, 0);
        while done < self.times && !process.is_told() {
            match self.increment(&mut file) {
                Ok(()) => done += 1,
                Err((name, error)) => {
                    file = None;
                    say(now(), &format!("lost {name} {}", errno_name(&error)));
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn increment(&self, kept: &mut Option<File>) -> Step<()> {
        let file = match kept {
            Some(file) => file,
            None => kept.insert(step("open", self.open())?),
        };
        step("lock", sys::set(file.as_fd(), self.kind, Type::Write, true))?;
        let value = 1 + step("read", value_at(file, 0))?;
        let began = now();
        say(began, &format!("begin {value}"));
        if !self.linger.is_zero() {
            thread::sleep(self.linger);
        }
        step("write", file.write_all_at(&value.to_le_bytes(), 0))?;
        if self.sync {
            step("sync", file.sync_data())?;
        }
        say(began, &format!("wrote {value}"));
        let unlocked = sys::set(file.as_fd(), self.kind, Type::Unlock, false);
        step("unlock", unlocked)
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.path)
    }
}

fn now() -> u64 {
    monotonic_time().as_nanos()
}
