//! Changes that no commit covers yet: a crash of the server's host may undo them.
//!
//! The host of before the crash can't be asked any more, and the one of after it knows nothing
//! of them: it would find nothing to commit, and say that all is well. So bytes that were written
//! are kept until a commit under the same life of the host, and written again otherwise; what
//! can't be done again (a truncation, a mode, a name) makes the next commit of the object fail.

mod kept;

pub(crate) use kept::{Undone, Wrote};

use kept::Kept;
use leasefs_protocol::BootId;
use std::sync::atomic::AtomicU64;

/// With so many objects that were changed it is time for a commit.
pub(super) const MANY_OBJECTS: usize = 65_536;
/// Of so many files bytes are kept: each holds an open at the server.
pub(super) const MOST_FILES: usize = 16_384;

/// Changes of an object that no commit covers yet.
#[derive(Debug, Default)]
pub(super) struct Unstable {
    /// The life of the host in which the first change since the last commit was answered that
    /// can't be done again.
    pub(super) since: Option<BootId>,
    /// The number of the last such change.
    pub(super) last: u64,
    /// One of these was not of bytes: `fdatasync` doesn't cover it.
    pub(super) attributes: bool,
    /// Commits that have come too late so far.
    pub(super) losses: u64,
    /// Of these, those that somebody was told of.
    pub(super) known: u64,
    /// What can be done again.
    pub(super) kept: Kept,
    /// Nobody has it open.
    pub(super) forgotten: bool,
    /// Nor ever will.
    pub(super) out_of_reach: bool,
}

/// The life of the server's host that is known before what is to be committed is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostLife(pub(super) Option<BootId>);

/// What there is to commit when a commit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(super) changes: u64,
    pub(super) life: HostLife,
    /// Bytes, and what is needed to read them, alone (`fdatasync`).
    pub(super) data_only: bool,
}

/// What a commit was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// Everything asked for is on the server's disk.
    Durable,
    /// The host has crashed meanwhile: what it has lost must be flushed again, and committed.
    Again,
    /// Something can't be done again, and may be gone. Each open is told once.
    Lost,
}

/// Losses of its object that an open has no more to be told of.
#[derive(Debug)]
pub(crate) struct LossesTold(pub(super) AtomicU64);

/// What has been noted, and what follows.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Noted {
    /// The host has crashed since it answered: the bytes are not kept, and must be sent again.
    pub undone: bool,
    /// It is time for a commit.
    pub many: bool,
}

/// What commits of all objects have in common.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// Changes answered so far.
    pub(super) changes: u64,
    /// The present life of the server's host, and the one before.
    pub(super) host: Option<BootId>,
    pub(super) before: Option<BootId>,
}

impl Commits {
    pub(super) fn next(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

/// When a write was answered, and whether there is room to keep it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WroteIn {
    pub(super) number: u64,
    pub(super) host: BootId,
    pub(super) room: bool,
}

impl HostLife {
    /// The host's boot id, if it is known by now.
    pub fn host(self) -> Option<BootId> {
        self.0
    }
}

impl Covered {
    /// Whether the commit was answered in another life than what it covers was flushed in.
    pub(super) fn is_of_another(&self, host: BootId) -> bool {
        self.life.0.is_some_and(|life| life != host)
    }
}

impl Committed {
    pub(super) fn of(lost: bool) -> Self {
        match lost {
            true => Self::Lost,
            false => Self::Durable,
        }
    }
}

impl Unstable {
    /// Memory of what is kept.
    pub fn bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Whether bytes are kept.
    pub fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Bytes were written.
    pub(super) fn wrote(&mut self, wrote: Wrote, at: WroteIn) {
        if self.out_of_reach {
            return;
        }
        let WroteIn { number, host, room } = at;
        let tenure = wrote.tenure.filter(|_| room);
        if let Some(tenure) = tenure.filter(|tenure| self.kept.goes_with(*tenure)) {
            self.kept.keep(wrote, tenure, number, host);
            return;
        }
        let (alone, durable) = (self.kept.is_empty(), wrote.durable);
        self.kept.drop_all();
        if !alone || (tenure.is_none() && !durable) {
            self.since.get_or_insert(host);
            self.last = number;
        }
        if let Some(tenure) = tenure {
            self.kept.keep(wrote, tenure, number, host);
        }
    }

    /// Whether there is nothing to be noted of it any more. What is out of reach is noted until its
    /// bytes are flushed.
    pub(super) fn is_over(&self) -> bool {
        let says_nothing = self.since.is_none() && self.losses == 0;
        self.kept.is_empty() && !self.out_of_reach && (self.forgotten || says_nothing)
    }

    /// A commit of this life of the host covers changes up to a number.
    pub(super) fn committed(&mut self, covered: Covered, host: BootId) {
        if self.since.is_some_and(|since| since != host) {
            self.losses += 1;
            self.since = Some(host);
        }
        if self.last <= covered.changes && !(covered.data_only && self.attributes) {
            self.since = None;
            self.attributes = false;
        }
        self.kept.committed(covered.changes, host);
    }
}

#[cfg(test)]
mod tests;
