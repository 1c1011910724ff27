//! Writes that are kept here, and what becomes of them at the end.

use super::state::State;
use crate::call::NodeId;
use crate::inode::{Dirty, Dropped, MAX_END, Undone, Writer};
use bytes::Bytes;
use leasefs_lease::client::{ChangeOf, Run};
use leasefs_lease::time::BootTime;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::{
    Attr, Caller, Handle, LockEpoch, Parts, Refusal, SetAttr, Timestamp, Version,
};
use std::path::PathBuf;

/// A write that its caller need not wait for.
#[derive(Clone, Debug)]
pub struct Store {
    /// The file.
    pub object: Handle,
    /// Where it goes.
    pub at: WriteAt,
    /// The bytes.
    pub data: Bytes,
    /// Clear setuid and setgid bits.
    pub kill_priv: bool,
    /// When, by the server's clock.
    pub date: Option<Timestamp>,
    /// On whose behalf.
    pub writer: Writer,
    /// The tenure of the locks under which it is written.
    pub locked: Option<LockEpoch>,
}

/// What becomes of a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is kept here.
    Done {
        /// The file was clean before.
        first: bool,
    },
    /// Pages of the file in the kernel have to be dropped before.
    Pages,
    /// There is no room until something has been flushed.
    Full,
    /// It must go to the server.
    Through,
}

/// A dirty file.
#[derive(Debug)]
pub struct DirtyFile {
    /// Below the mount's root, as far as it is known.
    pub path: Option<PathBuf>,
    /// Whose its bytes are: `None` if several users'.
    pub owner: Option<Caller>,
    /// As the writer knows it.
    pub size: u64,
}

/// What a buffered write changes besides the bytes.
pub(super) fn attrs(object: Handle) -> [ChangeOf; 1] {
    [ChangeOf {
        object,
        parts: Parts::ATTRS,
        names: Vec::new(),
    }]
}

impl State {
    /// Keeps a write here if a live Write lease allows it. `clear`: no page of its range is in the kernel,
    /// nor can one come in. What the kernel has to drop goes into `dropped`.
    pub fn store(
        &mut self,
        now: BootTime,
        store: &Store,
        clear: bool,
        dropped: &mut Dropped,
    ) -> Stored {
        let object = store.object;
        let live = self.session.witness(now);
        let Some(live) = live.filter(|_| !self.session.is_asleep()) else {
            return Stored::Through;
        };
        let attr = self.inodes.peek_attr(&live, &object);
        let size = self.inodes.dirty_size(&object);
        let Some(size) = size.or(attr.map(|attr| attr.size)) else {
            return Stored::Through;
        };
        let offset = store.at.first().unwrap_or(size);
        let end = offset.saturating_add(store.data.len() as u64);
        let changing = self.inodes.is_changing(&object);
        // What is set goes under the identity of who has written, and what can't be brought in is kept for him alone.
        let of_other = |file: &Dirty| file.is_of_other(&store.writer.caller);
        let of_other = self.inodes.dirty(&object).is_some_and(of_other);
        if of_other || changing || !self.leases.may_buffer(&object) || end > MAX_END {
            return Stored::Through;
        }
        let len = store.data.len();
        // First: while that is flushed, what the server has told of its room grows old, and is told anew.
        if self.is_full(len) {
            return Stored::Full;
        }
        if !self.inodes.has_room(now, len) {
            return Stored::Through;
        }
        if !clear && self.inodes.may_hold_pages(&object) {
            return Stored::Pages;
        }
        let base = attr.map(|attr| attr.version()).unwrap_or_default();
        let first = self.becomes_dirty(object, (attr, base), &store.writer, dropped);
        self.inodes.with_dirty(&object, |file| {
            file.buffer.put(offset, store.data.clone(), store.kill_priv);
            file.date = store.date;
            file.sets.written();
            file.locked = file.locked.or(store.locked);
            file.appended |= store.at == WriteAt::Append;
            file.written_by(&store.writer);
        });
        Stored::Done { first }
    }

    /// Keeps what is set of a dirty file here, to go to the server with the bytes that are still to be sent; under
    /// the lease under which they are kept, and if `may` says that nothing will stand against it there. Returns the
    /// file's attributes with it.
    pub fn set(
        &mut self,
        now: BootTime,
        object: &Handle,
        set: SetAttr,
        may: impl FnOnce(&Dirty, &Attr) -> bool,
    ) -> Option<Attr> {
        self.session.witness(now)?;
        if !self.may_set(object) {
            return None;
        }
        let kept = self.inodes.with_dirty(object, |file| {
            let attr = file.attr()?;
            (may(file, &attr) && file.set(set)).then(|| file.attr())?
        });
        kept.flatten()
    }

    /// The attributes of a file with nothing to be flushed, if it has all that is set, nobody else can change it without
    /// recalling a lease, and `may` says that nothing stands against it.
    pub fn has(
        &self,
        now: BootTime,
        object: &Handle,
        set: &SetAttr,
        may: impl FnOnce(&Attr) -> bool,
    ) -> Option<Attr> {
        let live = self.session.witness(now)?;
        let attr = self.inodes.peek_attr(&live, object)?;
        let same = set.applied(attr) == Some(attr) && attr.has_no_xattrs();
        (self.may_set(object) && same && may(&attr)).then_some(attr)
    }

    /// Whether nothing but what is done here now changes what is set of a file.
    fn may_set(&self, object: &Handle) -> bool {
        let held_up = self.session.is_asleep() || self.inodes.is_changing(object);
        !held_up && self.leases.may_buffer(object)
    }

    /// Whether there is no room for so many more bytes until some have been flushed.
    fn is_full(&self, len: usize) -> bool {
        let held = self.inodes.dirty_bytes();
        // What is written at once can't be bounded here.
        held > 0 && held + len > self.in_time() || !self.inodes.may_hold_dirty(len)
    }

    /// Whether so much is dirty that it is time to send it, however young it is.
    pub fn has_many_dirty(&self) -> bool {
        self.inodes.dirty_bytes() > self.in_time() / 4 || self.inodes.holds_many_dirty()
    }

    /// How many bytes of all files a recall leaves time for.
    fn in_time(&self) -> usize {
        self.pace.may_be_dirty(self.session.term())
    }

    /// False if the file is dirty already.
    fn becomes_dirty(
        &mut self,
        object: Handle,
        was: (Option<Attr>, Version),
        writer: &Writer,
        dropped: &mut Dropped,
    ) -> bool {
        if self.inodes.is_dirty(&object) {
            return false;
        }
        self.leases.begin_change(&attrs(object));
        self.inodes.drop_parts(&object, Parts::ATTRS, [], dropped);
        self.inodes.becomes_dirty(object, was, writer.clone());
        true
    }

    /// Takes in bytes that are to be written again, below what is here. True if the file was clean
    /// before. What the kernel has to drop of it is left to whoever sweeps.
    pub fn restore(&mut self, undone: Undone) -> bool {
        let mut work = self.swept.take().unwrap_or_default();
        let (object, writer) = (undone.object, &undone.writer);
        let was = (None, undone.base);
        let first = self.becomes_dirty(object, was, writer, &mut work.dropped);
        self.swept = Some(work);
        self.inodes.with_dirty(&undone.object, |file| {
            file.of_several |= undone.owner.is_none_or(|owner| file.is_of_other(&owner));
            file.buffer.restore(undone.runs);
            file.hearers.add_all(&undone.hearers);
            match file.sets.is_empty() {
                true => file.written_by(&undone.writer),
                false => file.hearers.add(&undone.writer.written),
            }
            file.repeated = true;
            file.path = file.path.take().or(undone.path);
        });
        first
    }

    /// Takes out everything that no round has taken: it will not be flushed.
    pub fn abandon(&mut self, object: &Handle, refusal: Refusal) -> Vec<Run> {
        let unsent = |file: &mut Dirty| {
            let sets = !file.sets.is_empty();
            file.sets.give_up();
            (file.buffer.take_unsent(), sets)
        };
        let unsent = self.inodes.with_dirty(object, unsent);
        let (runs, sets) = unsent.unwrap_or_default();
        self.inodes.bytes_failed(object, refusal);
        if sets {
            self.inodes.not_set(object, refusal);
        }
        runs
    }

    /// What a dirty file is, for people.
    pub fn dirty_file(&self, object: &Handle) -> Option<DirtyFile> {
        let file = self.inodes.dirty(object)?;
        Some(DirtyFile {
            path: file.path.clone(),
            owner: file.owner(),
            size: file.buffer.size(),
        })
    }

    /// Where a dirty file is, as far as it is known.
    pub fn dirty_path(&self, object: &Handle) -> Option<PathBuf> {
        self.inodes.dirty(object)?.path.clone()
    }

    /// All bytes of a file that the server may not have. Copies them.
    pub fn buffered(&self, object: &Handle) -> Vec<Run> {
        let file = self.inodes.dirty(object);
        file.map_or(Vec::new(), |file| file.buffer.everything())
    }

    /// A file has just become dirty that the kernel knows by this node.
    pub fn is_dirty_at(&mut self, object: &Handle, node: NodeId) {
        let path = self.inodes.path(node);
        self.inodes.with_dirty(object, |file| file.path = path);
    }
}

#[cfg(test)]
mod tests;
