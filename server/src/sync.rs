//! Locks that nothing outlives half changed.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks. A panic under the lock has left its state half changed: a restart with its grace is
/// safe, going on is not.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| fail())
}

/// As [`lock`], shared.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|_| fail())
}

/// As [`lock`], exclusive.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|_| fail())
}

/// Held while shared state is changed: a panic meanwhile ends the process at once, not only when the next
/// one looks.
#[must_use = "it watches until it is dropped"]
pub struct Changing {
    /// What is done while a panic unwinds is done to its end.
    unwinding: bool,
}

impl Changing {
    /// From now on.
    pub fn begins() -> Self {
        Self {
            unwinding: std::thread::panicking(),
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            fail();
        }
    }
}

fn fail() -> ! {
    tracing::error!(
        "a panic has left shared state half changed: ending, so that a restart can recover"
    );
    std::process::abort()
}
