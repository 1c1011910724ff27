//! Changes that no commit covers yet: a crash of the server's host may undo them.
//!
//! The host of before the crash can't be asked any more, and the one of after it knows nothing
//! of them: it would find nothing to commit, and say that all is well. So bytes that were written
//! are kept until a commit under the same life of the host, and written again otherwise; what
//! can't be done again (a truncation, a mode, a name) makes the next commit of the object fail.

mod kept;

pub use kept::Wrote;

use crate::cache::Undone;
use crate::run::{Map, Part};
use atomic_refcell::AtomicRefMut;
use kept::Kept;
use leasefs_protocol::{BootId, Handle, OpenId};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that kept bytes may use, in bytes.
const MOST_BYTES: usize = 512 << 20;
/// With so many it is time for a commit.
const MANY_BYTES: usize = MOST_BYTES / 4;
/// With so many objects that were changed it is time for a commit too.
const MANY_OBJECTS: usize = 65_536;
/// Of so many files bytes are kept: each holds an open at the server.
const MOST_FILES: usize = 16_384;

/// An object that has been changed.
#[derive(Debug, Default)]
struct Changed {
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
pub struct Life(Option<BootId>);

/// What there is to commit when a commit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    changes: u64,
    life: Life,
    /// Bytes, and what is needed to read them, alone (`fdatasync`).
    data_only: bool,
}

/// What a commit was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Everything asked for is on the server's disk.
    Durable,
    /// The host has crashed meanwhile: what it has lost must be flushed again, and committed.
    Again,
    /// Something can't be done again, and may be gone. Each open is told once.
    Lost,
}

/// Losses of its object that an open has no more to be told of.
#[derive(Debug)]
pub struct Told(AtomicU64);

/// What has been noted, and what follows.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Noted {
    /// The host has crashed since it answered: the bytes are not kept, and must be sent again.
    pub undone: bool,
    /// Opens to be closed at the server.
    pub closes: Vec<OpenId>,
    /// It is time for a commit.
    pub many: bool,
}

#[derive(Debug, Default)]
struct Inner {
    objects: Map<Handle, Changed>,
    /// Changes answered so far.
    changes: u64,
    /// Kept of all files.
    bytes: usize,
    /// Files of which bytes are kept.
    files: usize,
    /// The present life of the server's host, and the one before.
    host: Option<BootId>,
    before: Option<BootId>,
}

/// All objects that have been changed; no more than the kernel knows, and those of which bytes are
/// kept.
#[derive(Debug, Default)]
pub struct Uncommitted(Part<Inner>);

impl Inner {
    /// Changes an object's entry and what is counted over all.
    fn with<R>(&mut self, object: &Handle, change: impl FnOnce(&mut Changed) -> R) -> Option<R> {
        let changed = self.objects.get_mut(object)?;
        let (bytes, empty) = (changed.kept.bytes(), changed.kept.is_empty());
        let result = change(changed);
        self.bytes = self.bytes + changed.kept.bytes() - bytes;
        self.files = self.files + usize::from(empty) - usize::from(changed.kept.is_empty());
        if changed.is_over() {
            self.objects.remove(object);
        }
        Some(result)
    }

    /// The entry of an object that is about to be changed, or has been.
    fn touch(&mut self, object: Handle) -> &mut Changed {
        let changed = self.objects.entry(object).or_default();
        changed.forgotten = false;
        changed
    }

    fn next(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

impl Life {
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

impl Changed {
    /// Whether there is nothing to be noted of it any more. What is out of reach is noted until its
    /// bytes are flushed.
    fn is_over(&self) -> bool {
        let says_nothing = self.since.is_none() && self.losses == 0;
        self.kept.is_empty() && !self.out_of_reach && (self.forgotten || says_nothing)
    }

    /// A commit of this life of the host covers changes up to a number.
    fn committed(&mut self, covered: Covered, host: BootId) -> Vec<OpenId> {
        if self.since.is_some_and(|since| since != host) {
            self.losses += 1;
            self.since = Some(host);
        }
        if self.last <= covered.changes && !(covered.data_only && self.attributes) {
            self.since = None;
            self.attributes = false;
        }
        self.kept.committed(covered.changes, host)
    }
}

impl Uncommitted {
    /// A change of the object was answered in this life of the host, which can't be done again.
    /// `content`: it was one of its bytes.
    pub fn changed(&self, object: Handle, host: BootId, content: bool) -> Noted {
        let mut inner = self.inner();
        let number = inner.next();
        inner.touch(object);
        let closes = inner.with(&object, |changed| {
            changed.since.get_or_insert(host);
            changed.last = number;
            changed.attributes |= !content;
            // Written again, they would come behind it.
            match content {
                true => changed.kept.drop_all(),
                false => Vec::new(),
            }
        });
        Noted {
            closes: closes.unwrap_or_default(),
            ..Noted::default()
        }
    }

    /// The object is about to be changed by bytes that are flushed later.
    pub fn buffered(&self, object: Handle) {
        self.inner().touch(object);
    }

    /// Bytes were written in this life of the host. They are kept, within bounds.
    pub fn wrote(&self, wrote: Wrote, host: BootId) -> Noted {
        let mut inner = self.inner();
        if inner.before == Some(host) {
            return Noted {
                undone: true,
                ..Noted::default()
            };
        }
        let number = inner.next();
        let object = wrote.object;
        inner.objects.entry(object).or_default();
        let more = inner.bytes + wrote.run.data.len();
        let room = more <= MOST_BYTES && inner.files < MOST_FILES;
        let closes = inner.with(&object, |changed| {
            if changed.out_of_reach {
                return Vec::new();
            }
            let tenure = wrote.tenure.filter(|_| room);
            let durable = wrote.durable;
            let alone = match tenure {
                Some(tenure) if changed.kept.goes_with(tenure) => {
                    changed.kept.keep(wrote, tenure, number, host);
                    return Vec::new();
                }
                _ => changed.kept.is_empty(),
            };
            let closes = changed.kept.drop_all();
            if !alone {
                changed.since.get_or_insert(host);
                changed.last = number;
            }
            match tenure {
                Some(tenure) => changed.kept.keep(wrote, tenure, number, host),
                None if durable => {}
                None => {
                    changed.since.get_or_insert(host);
                    changed.last = number;
                }
            }
            closes
        });
        Noted {
            undone: false,
            closes: closes.unwrap_or_default(),
            many: inner.bytes > MANY_BYTES || inner.files > MOST_FILES / 4,
        }
    }

    /// Nobody here can reach the file any more: nothing of it is kept from now on, until
    /// [`Uncommitted::flushed`]. Returns the opens to be closed at the server.
    pub fn out_of_reach(&self, object: &Handle) -> Vec<OpenId> {
        let mut inner = self.inner();
        inner.touch(*object);
        let closes = inner.with(object, |changed| {
            changed.out_of_reach = true;
            changed.kept.drop_all()
        });
        closes.unwrap_or_default()
    }

    /// No bytes of the file are to be flushed.
    pub fn flushed(&self, object: &Handle) {
        let mut inner = self.inner();
        if inner.objects.get(object).is_some_and(|c| c.out_of_reach) {
            inner.objects.remove(object);
        }
    }

    /// Whether an open that is closed here must stay open at the server until a commit.
    pub fn close_later(&self, object: &Handle, open: OpenId) -> bool {
        let mut inner = self.inner();
        let later = inner.with(object, |changed| changed.kept.close_later(open));
        later.unwrap_or(false)
    }

    /// For a new open of the object, which earlier losses don't concern, unless nobody was told of them.
    pub fn told(&self, object: &Handle) -> Told {
        let mut inner = self.inner();
        let known = inner.objects.get_mut(object).map_or(0, |changed| {
            changed.out_of_reach = false;
            changed.known
        });
        Told(AtomicU64::new(known))
    }

    /// To be asked before what is to be committed is flushed.
    pub fn life(&self) -> Life {
        Life(self.inner().host)
    }

    /// A commit is about to be sent; `data_only`: as `fdatasync`.
    pub fn commits(&self, life: Life, data_only: bool) -> Covered {
        Covered {
            changes: self.inner().changes,
            life,
            data_only,
        }
    }

    /// The commit that was asked for through an open has succeeded in this life of the host.
    /// Returns the opens to be closed at the server.
    pub fn committed(
        &self,
        object: &Handle,
        covered: Covered,
        host: BootId,
        told: &Told,
    ) -> (Vec<OpenId>, Committed) {
        if covered.is_of_another(host) {
            return (Vec::new(), Committed::Again);
        }
        let mut inner = self.inner();
        let done = inner.with(object, |changed| {
            let closes = changed.committed(covered, host);
            let known = told.0.swap(changed.losses, Ordering::Relaxed);
            changed.known = changed.losses;
            (closes, Committed::of(known != changed.losses))
        });
        done.unwrap_or((Vec::new(), Committed::Durable))
    }

    /// A commit of everything has succeeded in this life of the host. Returns the opens to be
    /// closed at the server.
    pub fn all_committed(&self, covered: Covered, host: BootId) -> (Vec<OpenId>, Committed) {
        if covered.is_of_another(host) {
            return (Vec::new(), Committed::Again);
        }
        let mut inner = self.inner();
        let objects: Vec<Handle> = inner.objects.keys().copied().collect();
        let (mut closes, mut lost) = (Vec::new(), false);
        for object in objects {
            let done = inner.with(&object, |changed| {
                let losses = changed.losses;
                let closes = changed.committed(covered, host);
                (closes, changed.losses > losses)
            });
            let (more, loses) = done.unwrap_or_default();
            closes.extend(more);
            lost |= loses;
        }
        (closes, Committed::of(lost))
    }

    /// Whether a commit would let go of anything that matters.
    pub fn keeps(&self) -> bool {
        let inner = self.inner();
        inner.files > 0 || inner.objects.len() > MANY_OBJECTS
    }

    /// The server's host is in this life. Returns what was written in another and no commit covers.
    pub fn host_is(&self, host: BootId) -> Vec<Undone> {
        let mut inner = self.inner();
        if inner.host == Some(host) {
            return Vec::new();
        }
        inner.before = inner.host.replace(host);
        inner.undone(Some(host))
    }

    /// What was written in another life of the host can't be written again: others may have changed the
    /// file since. The next commit of it fails.
    pub fn is_lost(&self, object: Handle) {
        let mut inner = self.inner();
        inner.touch(object);
        inner.with(&object, |changed| {
            changed.losses += 1;
        });
    }

    /// Takes out everything that is kept: nobody will commit it any more.
    pub fn give_up(&self) -> Vec<Undone> {
        self.inner().undone(None)
    }

    /// The kernel doesn't know the object any more: nobody has it open.
    pub fn forget(&self, object: &Handle) {
        let mut inner = self.inner();
        inner.with(object, |changed| changed.forgotten = true);
    }

    fn inner(&self) -> AtomicRefMut<'_, Inner> {
        self.0.borrow_mut()
    }
}

impl Inner {
    fn undone(&mut self, host: Option<BootId>) -> Vec<Undone> {
        let kept = |(_, changed): &(&Handle, &Changed)| !changed.kept.is_empty();
        let objects: Vec<Handle> = self.objects.iter().filter(kept).map(|(o, _)| *o).collect();
        let take = |object: Handle| self.with(&object, |c| c.kept.undone(object, host))?;
        objects.into_iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests;
