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

fn fail() -> ! {
    tracing::error!(
        "a panic has left shared state half changed: ending, so that a restart can recover"
    );
    std::process::abort()
}
