//! Changes that no commit covers yet: a crash of the server's host may undo them.
//!
//! The host of before the crash can't be asked any more, and the one of after it knows nothing
//! of them: it would find nothing to commit, and say that all is well. So bytes that were written
//! are kept until a commit under the same life of the host, and written again otherwise; what
//! can't be done again (a truncation, a mode, a name) makes the next commit of the object fail.

mod kept;

pub(crate) use kept::{Undone, Wrote};

use super::Writer;
use kept::{Kept, Last};
use leasefs_protocol::{BootId, Handle, OpenId, Refusal};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

/// With so many objects that were changed it is time for a commit.
pub(super) const MANY_OBJECTS: usize = 65_536;
/// So many files are kept open at the server for what was written to them.
pub(super) const MOST_FILES: usize = 16_384;
/// So many bytes of a file are made durable along with its last write. More may take a disk long, and nobody else gets
/// at the file meanwhile.
pub(super) const SYNCED_AT_ONCE: u64 = 1 << 20;

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
    /// How often something was lost so far: commits that have come too late, bytes that were refused.
    pub(super) losses: u64,
    /// Of these, those that somebody was told of.
    pub(super) known: u64,
    /// Why something was lost last, unless a crash of the host has undone it.
    pub(super) why: Option<Refusal>,
    /// What can be done again.
    pub(super) kept: Kept,
    /// Through which it was written last, as long as there is anything that a commit covers.
    pub(super) writer: Option<Writer>,
    /// How many bytes the server's disk may not have, as far as they were written here; `u64::MAX` if nobody knows.
    pub(super) written: u64,
    /// Nobody has it open.
    pub(super) forgotten: bool,
    /// Nor ever will.
    pub(super) out_of_reach: bool,
}

/// The life of the server's host that is known before what is to be committed is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostLife(pub(super) Option<BootId>);

/// What there is to commit when a commit is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    /// Changes up to this number.
    pub(super) changes: u64,
    /// Later ones: those of the round whose last request was the commit too.
    pub(super) with: Vec<u64>,
    pub(super) life: HostLife,
    /// Bytes, and what is needed to read them, alone (`fdatasync`).
    pub(super) data_only: bool,
}

/// A flush has made everything durable that was written to its file before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Durably {
    /// The changes answered when it was sent, as [`Covered`] counts them.
    pub(super) changes: u64,
    /// As `fdatasync`.
    pub(super) data_only: bool,
    /// Through which open at the server: its disk's failures are told to each once.
    pub(super) open: OpenId,
    /// In which life of the host.
    pub host: BootId,
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
    /// The number of the change, unless it is undone.
    pub number: Option<u64>,
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
    /// Objects of which something was lost that nobody has been told of, the last ones, in their order.
    pub(super) untold: VecDeque<Handle>,
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
    /// A flush that is to be durable has come behind these changes, and is in this life of the host.
    pub fn along_with(&mut self, round: Vec<u64>, open: OpenId, host: BootId) -> Durably {
        self.with = round;
        Durably {
            changes: self.changes,
            data_only: self.data_only,
            open,
            host,
        }
    }

    /// Whether a flush was sent later, through this open, and made as much durable.
    pub fn is_within(&self, flushed: Durably, open: OpenId) -> bool {
        let as_much = self.data_only || !flushed.data_only;
        flushed.changes >= self.changes && as_much && flushed.open == open
    }

    /// Whether it is durable what was the change of this number.
    pub(super) fn covers(&self, change: u64) -> bool {
        change <= self.changes || self.with.contains(&change)
    }

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
    pub fn memory(&self) -> usize {
        self.kept.memory()
    }

    /// Whether bytes are kept.
    pub fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether its writer's open is kept.
    pub fn keeps_open(&self) -> bool {
        self.writer.is_some()
    }

    /// Nothing that was written is kept from now on, nor is its writer's open.
    pub(super) fn drop_written(&mut self) {
        self.kept.drop_all();
        self.writer = None;
    }

    /// Takes out the bytes that were written by these changes, each in a life of the host.
    pub(super) fn take_out(
        &mut self,
        object: Handle,
        which: impl Fn(u64, BootId) -> bool,
    ) -> Option<Undone> {
        let undone = self.kept.take_out(object, self.writer.as_ref()?, which);
        self.let_writer_go();
        undone
    }

    /// Whether a commit is to cover some of it.
    pub(super) fn waits_for(&self, covered: &Covered) -> bool {
        self.since.is_some() || self.kept.waits_for(covered)
    }

    /// Of what nothing is to be committed, the writer's open isn't kept.
    fn let_writer_go(&mut self) {
        if self.since.is_none() && self.kept.is_empty() {
            self.writer = None;
        }
    }

    /// Bytes were written.
    pub(super) fn wrote(&mut self, wrote: Wrote, at: WroteIn) {
        // Of a page behind the file's end the server takes nothing; and nothing can't be written again.
        if self.out_of_reach || wrote.batch.is_empty() {
            return;
        }
        self.written = self.written.saturating_add(wrote.batch.len() as u64);
        let WroteIn { number, host, room } = at;
        let tenure = wrote.tenure.filter(|_| room);
        if !tenure.is_some_and(|tenure| self.kept.goes_with(tenure)) {
            let alone = self.kept.is_empty();
            self.kept.drop_all();
            if !alone || (tenure.is_none() && !wrote.durable) {
                self.since.get_or_insert(host);
                self.last = number;
            }
        }
        if let Some(tenure) = tenure {
            let (base, path) = (wrote.version, wrote.path);
            let written = (wrote.batch, wrote.writer.caller.uid, &wrote.hearers);
            let last = Last { base, path };
            self.kept.keep(written, last, tenure, (number, host));
        }
        self.writer = room.then_some(wrote.writer);
        self.let_writer_go();
    }

    /// Whether there is nothing to be noted of it any more. What is out of reach is noted until its
    /// bytes are flushed, and what the kernel has forgotten until it is durable: who opens it next may ask.
    pub(super) fn is_over(&self) -> bool {
        let is_durable = self.since.is_none() && self.kept.is_empty();
        is_durable && !self.out_of_reach && (self.forgotten || self.losses == 0)
    }

    /// Whether nobody who asks for a commit of it has it open.
    pub(super) fn waits_alone(&self) -> bool {
        self.forgotten && self.since.is_some()
    }

    /// A commit of this life of the host covers changes up to a number.
    pub(super) fn committed(&mut self, covered: &Covered, host: BootId) {
        if self.since.is_some_and(|since| since != host) {
            self.losses += 1;
            self.forgotten = false;
            self.since = Some(host);
        }
        if covered.covers(self.last) && !(covered.data_only && self.attributes) {
            self.since = None;
            self.attributes = false;
        }
        self.kept.committed(covered, host);
        self.let_writer_go();
        if self.since.is_none() && self.kept.is_empty() {
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests;
