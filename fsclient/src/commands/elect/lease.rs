//! For how long the lock is held at least.

use leasefs_host::clock::boot_time;
use leasefs_lease::time::BootTime;
use rustix::fs::fgetxattr;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often it is asked.
const ASK: Duration = Duration::from_millis(200);

/// The lock's number; `None` if the file system doesn't tell one.
pub(super) fn token(file: BorrowedFd<'_>) -> rustix::io::Result<Option<String>> {
    match text(file, "user.leasefs.lock") {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        result => result.map(Some),
    }
}

fn text(file: BorrowedFd<'_>, name: &str) -> rustix::io::Result<String> {
    let mut value = [0; 32];
    let len = fgetxattr(file, name, &mut value)?;
    let value = value.get(..len).unwrap_or_default();
    Ok(String::from_utf8_lossy(value).into_owned())
}

/// When it was asked, and for how long the lock lasted from then on at least.
#[derive(Clone, Copy, Debug)]
struct Told {
    asked: BootTime,
    lasts: Duration,
}

impl Told {
    fn ask(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let asked = boot_time();
        let lasts = text(file, "user.leasefs.lock_ms")?;
        let lasts = Duration::from_millis(lasts.parse().unwrap_or(0));
        Ok(Self { asked, lasts })
    }

    fn nothing() -> Self {
        Self {
            asked: boot_time(),
            lasts: Duration::ZERO,
        }
    }

    fn left(&self) -> Duration {
        (self.asked + self.lasts).left_at(boot_time())
    }
}

/// A lock's time. Asked by a thread of its own: a daemon that stands still doesn't answer.
#[derive(Debug)]
pub(super) struct Lease {
    told: Arc<Mutex<Told>>,
    /// The longest that was ever told: about a term.
    term: Duration,
}

impl Lease {
    pub(super) fn watched(file: Arc<OwnedFd>) -> rustix::io::Result<Self> {
        let first = Told::ask(file.as_fd())?;
        let told = Arc::new(Mutex::new(first));
        let newest = Arc::clone(&told);
        thread::spawn(move || {
            loop {
                thread::sleep(ASK);
                let told = match Told::ask(file.as_fd()) {
                    Ok(told) => told,
                    Err(Errno::INTR | Errno::AGAIN) => continue,
                    // Of a lost lock nothing is told, nor of any by a mount that has ended.
                    Err(_) => Told::nothing(),
                };
                *newest.lock().unwrap_or_else(PoisonError::into_inner) = told;
            }
        });
        Ok(Self {
            told,
            term: first.lasts,
        })
    }

    fn left(&self) -> Duration {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .left()
    }

    /// Whether the holder must come to an end.
    pub(super) fn is_nearly_over(&self) -> bool {
        self.left() <= self.term / 3
    }

    /// When it has to have, as far as is known.
    pub(super) fn over_at(&self) -> BootTime {
        boot_time() + self.left().saturating_sub(self.term / 10)
    }
}
