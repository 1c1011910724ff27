//! One worker thread: carries out operations and keeps their history.

use super::watchdog::{Current, Slot};
use crate::lin::{Entry, Who};
use crate::rng::Rng;
use leasefs_host::clock::monotonic_time;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a run can't go on: something that no history is needed to call wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct Problem(pub String);

/// An operation's place: which object, through which mount.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub mount: usize,
    pub object: usize,
}

/// A worker of a family with operations `Op`.
pub(super) struct Worker<Op> {
    pub id: u16,
    /// The mount it mostly uses.
    pub home: usize,
    pub rng: Rng,
    pub slot: Arc<Slot>,
    pub pretend_stale: usize,
    pub record: Record<Op>,
    remembered: HashMap<(usize, usize, &'static str), Vec<Op>>,
}

/// What a worker hands back.
pub(super) struct Record<Op> {
    /// Operations with the object they were done to.
    pub entries: Vec<(usize, Entry<Op>)>,
    /// Reads that failed without an answer.
    pub lost_reads: usize,
    /// The longest operation.
    pub slowest: (Duration, &'static str),
}

impl<Op: Clone> Worker<Op> {
    pub(super) fn new(id: u16, home: usize, rng: Rng, pretend_stale: usize) -> Self {
        let record = Record {
            entries: Vec::new(),
            lost_reads: 0,
            slowest: (Duration::ZERO, ""),
        };
        let slot = Arc::default();
        Self {
            id,
            home,
            rng,
            slot,
            pretend_stale,
            record,
            remembered: HashMap::new(),
        }
    }

    /// Carries out a change; true if it was answered. `attempted` is what has happened
    /// if it happened without an answer; `call` returns what it did.
    pub(super) fn change(
        &mut self,
        at: At,
        how: &'static str,
        attempted: Op,
        call: impl FnOnce() -> io::Result<Op>,
    ) -> Result<bool, Problem> {
        let (start, end, result) = self.timed(at, how, call);
        let (end, op) = match result {
            Ok(op) => (Some(end), op),
            Err(error) if is_lost(&error) => (None, attempted),
            Err(error) => return Err(unexpected(at, how, &error)),
        };
        self.push(
            at,
            Entry {
                who: self.who(at),
                how,
                start,
                end,
                op,
            },
        );
        Ok(end.is_some())
    }

    /// Carries out a read; what it saw may concern several operations at once.
    pub(super) fn read(
        &mut self,
        at: At,
        how: &'static str,
        call: impl FnOnce() -> io::Result<Vec<Op>>,
    ) -> Result<(), Problem> {
        let (start, end, result) = self.timed(at, how, call);
        let seen = match result {
            Ok(seen) => seen,
            Err(error) if is_lost(&error) => {
                self.record.lost_reads += 1;
                return Ok(());
            }
            Err(error) => return Err(unexpected(at, how, &error)),
        };
        for op in self.perhaps_stale(at, how, seen) {
            self.push(
                at,
                Entry {
                    who: self.who(at),
                    how,
                    start,
                    end: Some(end),
                    op,
                },
            );
        }
        Ok(())
    }

    fn timed<T>(
        &mut self,
        at: At,
        how: &'static str,
        call: impl FnOnce() -> io::Result<T>,
    ) -> (u64, u64, io::Result<T>) {
        let since = monotonic_time().as_nanos();
        let current = Current {
            worker: self.id,
            mount: at.mount,
            object: at.object,
            how,
            since,
        };
        self.slot.set(Some(current));
        let start = monotonic_time().as_nanos();
        let result = call();
        let end = monotonic_time().as_nanos();
        self.slot.set(None);
        let took = Duration::from_nanos(end - start);
        if took > self.record.slowest.0 {
            self.record.slowest = (took, how);
        }
        (start, end, result)
    }

    fn who(&self, at: At) -> Who {
        Who {
            mount: at.mount as u16,
            worker: self.id,
        }
    }

    fn push(&mut self, at: At, entry: Entry<Op>) {
        self.record.entries.push((at.object, entry));
    }

    fn perhaps_stale(&mut self, at: At, how: &'static str, seen: Vec<Op>) -> Vec<Op> {
        if self.pretend_stale == 0 {
            return seen;
        }
        let key = (at.mount, at.object, how);
        if self.rng.chance(self.pretend_stale) {
            return self.remembered.get(&key).cloned().unwrap_or(seen);
        }
        self.remembered.insert(key, seen.clone());
        seen
    }
}

/// Whether an error leaves open if the operation has happened.
fn is_lost(error: &io::Error) -> bool {
    let lost = [
        libc::ETIMEDOUT,
        libc::EIO,
        libc::ENOTCONN,
        libc::ECONNABORTED,
    ];
    error
        .raw_os_error()
        .is_some_and(|errno| lost.contains(&errno))
}

fn unexpected(at: At, how: &'static str, error: &io::Error) -> Problem {
    Problem(format!(
        "{how} on object {} through mount {} failed: {error}",
        at.object, at.mount
    ))
}
