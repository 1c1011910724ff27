//! Changes that no commit covers yet: a crash of the server's host may undo them.
//!
//! The host of before the crash can't be asked any more, and the one of after it knows nothing
//! of them: it would find nothing to commit, and say that all is well. So bytes that were written
//! are kept until a commit under the same life of the host, and written again otherwise; what
//! can't be done again (a truncation, a mode, a name) makes the next commit of the object fail.

mod kept;

pub(crate) use kept::{Undone, Wrote};

use super::{Inode, Inodes, Weight};
use kept::Kept;
use leasefs_protocol::{BootId, Handle};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that kept bytes may use, in bytes.
const MOST_BYTES: usize = 512 << 20;
/// With so many it is time for a commit.
const MANY_BYTES: usize = MOST_BYTES / 4;
/// With so many objects that were changed it is time for a commit too.
const MANY_OBJECTS: usize = 65_536;
/// Of so many files bytes are kept: each holds an open at the server.
const MOST_FILES: usize = 16_384;

/// Changes of an object that no commit covers yet.
#[derive(Debug, Default)]
pub(super) struct Unstable {
    /// The life of the host in which the first change since the last commit was answered that
    /// can't be done again.
    since: Option<BootId>,
    /// The number of the last such change.
    last: u64,
    /// One of these was not of bytes: `fdatasync` doesn't cover it.
    attributes: bool,
    /// Commits that have come too late so far.
    losses: u64,
    /// Of these, those that somebody was told of.
    known: u64,
    /// What can be done again.
    kept: Kept,
    /// Nobody has it open.
    forgotten: bool,
    /// Nor ever will.
    out_of_reach: bool,
}

/// The life of the server's host that is known before what is to be committed is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostLife(Option<BootId>);

/// What there is to commit when a commit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    changes: u64,
    life: HostLife,
    /// Bytes, and what is needed to read them, alone (`fdatasync`).
    data_only: bool,
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
pub(crate) struct LossesTold(AtomicU64);

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
    changes: u64,
    /// The present life of the server's host, and the one before.
    host: Option<BootId>,
    before: Option<BootId>,
}

impl Commits {
    fn next(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

/// When a write was answered, and whether there is room to keep it.
#[derive(Clone, Copy, Debug)]
struct WroteIn {
    number: u64,
    host: BootId,
    room: bool,
}

impl HostLife {
    /// The host's boot id, if it is known by now.
    pub fn host(self) -> Option<BootId> {
        self.0
    }
}

impl Covered {
    /// Whether the commit was answered in another life than what it covers was flushed in.
    fn is_of_another(&self, host: BootId) -> bool {
        self.life.0.is_some_and(|life| life != host)
    }
}

impl Committed {
    fn of(lost: bool) -> Self {
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
    fn wrote(&mut self, wrote: Wrote, at: WroteIn) {
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
    fn is_over(&self) -> bool {
        let says_nothing = self.since.is_none() && self.losses == 0;
        self.kept.is_empty() && !self.out_of_reach && (self.forgotten || says_nothing)
    }

    /// A commit of this life of the host covers changes up to a number.
    fn committed(&mut self, covered: Covered, host: BootId) {
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

impl Inodes {
    /// A change of the object was answered in this life of the host, which can't be done again.
    /// `content`: it was one of its bytes.
    pub fn unstable_change(&mut self, object: Handle, host: BootId, content: bool) {
        let number = self.commits.next();
        self.make_unstable(object, |unstable| {
            unstable.forgotten = false;
            unstable.since.get_or_insert(host);
            unstable.last = number;
            unstable.attributes |= !content;
            // Written again, they would come behind it.
            if content {
                unstable.kept.drop_all();
            }
        });
    }

    /// The object is about to be changed by bytes that are flushed later.
    pub fn will_be_unstable(&mut self, object: &Handle) {
        self.change_unstable(object, |unstable| unstable.forgotten = false);
    }

    /// Bytes were written in this life of the host. They are kept, within bounds.
    pub fn unstable_write(&mut self, wrote: Wrote, host: BootId) -> Noted {
        if self.commits.before == Some(host) {
            return Noted {
                undone: true,
                ..Noted::default()
            };
        }
        let number = self.commits.next();
        let more = self.weight.kept + wrote.run.data.len();
        let room = more <= MOST_BYTES && self.weight.kept_files < MOST_FILES;
        let object = wrote.object;
        self.make_unstable(object, |unstable| {
            unstable.wrote(wrote, WroteIn { number, host, room })
        });
        let Weight {
            kept, kept_files, ..
        } = self.weight;
        Noted {
            undone: false,
            many: kept > MANY_BYTES || kept_files > MOST_FILES / 4,
        }
    }

    /// Nobody here can reach the file any more: nothing of it is kept from now on, until
    /// [`Inodes::nothing_to_flush`].
    pub fn out_of_reach(&mut self, object: &Handle) {
        self.make_unstable(*object, |unstable| {
            unstable.forgotten = false;
            unstable.out_of_reach = true;
            unstable.kept.drop_all();
        });
    }

    /// No bytes of the file are to be flushed.
    pub fn nothing_to_flush(&mut self, object: &Handle) {
        self.change(object, |inode| {
            inode.unstable.take_if(|unstable| unstable.out_of_reach);
        });
    }

    /// For a new open of the object, which earlier losses don't concern, unless nobody was told of them.
    pub fn losses_told(&mut self, object: &Handle) -> LossesTold {
        let known = self.change_unstable(object, |unstable| {
            unstable.out_of_reach = false;
            unstable.known
        });
        LossesTold(AtomicU64::new(known.unwrap_or(0)))
    }

    /// The life of the server's host; to be asked before what is to be committed is flushed.
    pub fn host_life(&self) -> HostLife {
        HostLife(self.commits.host)
    }

    /// A commit is about to be sent; `data_only`: as `fdatasync`.
    pub fn commit_covers(&self, life: HostLife, data_only: bool) -> Covered {
        Covered {
            changes: self.commits.changes,
            life,
            data_only,
        }
    }

    /// The commit that was asked for through an open has succeeded in this life of the host.
    pub fn committed(
        &mut self,
        object: &Handle,
        covered: Covered,
        host: BootId,
        told: &LossesTold,
    ) -> Committed {
        if covered.is_of_another(host) {
            return Committed::Again;
        }
        let done = self.change_unstable(object, |unstable| {
            unstable.committed(covered, host);
            let known = told.0.swap(unstable.losses, Ordering::Relaxed);
            unstable.known = unstable.losses;
            Committed::of(known != unstable.losses)
        });
        done.unwrap_or(Committed::Durable)
    }

    /// A commit of everything has succeeded in this life of the host.
    pub fn all_committed(&mut self, covered: Covered, host: BootId) -> Committed {
        if covered.is_of_another(host) {
            return Committed::Again;
        }
        let mut lost = false;
        for object in self.unstable_objects(|_| true) {
            let loses = self.change_unstable(&object, |unstable| {
                let losses = unstable.losses;
                unstable.committed(covered, host);
                unstable.losses > losses
            });
            lost |= loses.unwrap_or(false);
        }
        Committed::of(lost)
    }

    /// Whether a commit would let go of anything that matters.
    pub fn has_to_commit(&self) -> bool {
        self.weight.kept_files > 0 || self.weight.unstable > MANY_OBJECTS
    }

    /// The server's host is in this life. Returns what was written in another and no commit covers.
    pub fn server_host_is(&mut self, host: BootId) -> Vec<Undone> {
        if self.commits.host == Some(host) {
            return Vec::new();
        }
        self.commits.before = self.commits.host.replace(host);
        self.undone(Some(host))
    }

    /// What was written in another life of the host can't be written again: others may have changed the
    /// file since. The next commit of it fails.
    pub fn is_lost(&mut self, object: Handle) {
        self.make_unstable(object, |unstable| {
            unstable.forgotten = false;
            unstable.losses += 1;
        });
    }

    /// Takes out everything that is kept: nobody will commit it any more.
    pub fn give_up_unstable(&mut self) -> Vec<Undone> {
        self.undone(None)
    }

    /// The kernel doesn't know the object any more: nobody has it open.
    pub fn nobody_commits(&mut self, object: &Handle) {
        self.change_unstable(object, |unstable| unstable.forgotten = true);
    }

    fn undone(&mut self, host: Option<BootId>) -> Vec<Undone> {
        let keeping = self.unstable_objects(|unstable| !unstable.kept.is_empty());
        let take = |object: Handle| {
            self.change_unstable(&object, |unstable| unstable.kept.undone(object, host))?
        };
        keeping.into_iter().filter_map(take).collect()
    }

    fn unstable_objects(&self, which: impl Fn(&Unstable) -> bool) -> Vec<Handle> {
        let unstable = |inode: &Inode| inode.unstable.as_deref().is_some_and(&which);
        let objects = self.iter().filter(|(_, inode)| unstable(inode));
        objects.map(|(object, _)| *object).collect()
    }

    fn change_unstable<R>(
        &mut self,
        object: &Handle,
        change: impl FnOnce(&mut Unstable) -> R,
    ) -> Option<R> {
        self.change(object, |inode| {
            let result = change(inode.unstable.as_mut()?);
            inode.unstable.take_if(|unstable| unstable.is_over());
            Some(result)
        })?
    }

    fn make_unstable<R>(&mut self, object: Handle, change: impl FnOnce(&mut Unstable) -> R) -> R {
        self.make(object, |inode| {
            let result = change(inode.unstable.get_or_insert_default());
            inode.unstable.take_if(|unstable| unstable.is_over());
            result
        })
    }
}

#[cfg(test)]
mod tests;
