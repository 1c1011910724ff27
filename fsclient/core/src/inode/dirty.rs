//! Files with bytes that the server doesn't have yet.
//!
//! A file is *dirty* from its first buffered write until the last of its bytes is answered. All
//! that time it counts as being changed by an own change: its attributes are not cached, here or
//! in the kernel, and whoever asks for them has it flushed first.

use super::Inodes;
use super::sets::Sets;
use super::table::ServersRoom;
use super::unstable::Durably;
use super::writer::{Hearers, Writer};
use crate::run::Bell;
use futures_channel::oneshot;
use leasefs_lease::client::{Buffer, Known};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::ROOM_LASTS;
use leasefs_protocol::{
    Attr, Caller, Durability, Handle, LockEpoch, Refusal, SetAttr, Timestamp, Version,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Who waits for bytes to be flushed. He is told whether they are durable.
pub(crate) type Tell = oneshot::Sender<Option<Durably>>;

/// Bytes of a file that the server may not have, and who waits for them.
#[derive(Debug)]
pub(crate) struct Dirty {
    pub buffer: Buffer,
    /// Below the mount's root, as far as it was known.
    pub path: Option<PathBuf>,
    /// When it was written last, by the server's clock.
    pub date: Option<Timestamp>,
    /// As it was when its first bytes were buffered, with what was set since and is at the server, if that is known.
    /// Nothing else changes it.
    clean: Option<Attr>,
    /// What is set with the bytes.
    pub sets: Sets,
    /// Through which it is written: the last to write. Its open stands as long as there is anything here.
    pub writer: Writer,
    /// Who may have written it.
    pub hearers: Hearers,
    /// Some of what is here may have been written already.
    pub repeated: bool,
    /// Some of what is here was written under a lease that has ended.
    pub late: bool,
    /// Some of it was written under locks of this tenure: once they are lost none of it may come to the server.
    pub locked: Option<LockEpoch>,
    /// Some of it was appended: so it may be to a file that takes nothing else (`chattr +a`).
    pub appended: bool,
    /// Not all that is here was written by one user: it is written again after a crash of the server's host.
    pub of_several: bool,
    /// Wait for the round under way, or else for the next.
    pub this_round: Vec<Tell>,
    /// Wait for the round after the one under way.
    pub next_round: Vec<Tell>,
    /// What must be on the server's disk when the next round to begin is answered.
    pub durability: Durability,
    /// Some of the round under way has to be sent again.
    pub again: bool,
    /// Each run of the next round goes alone: of a request with several the server has refused one.
    pub apart: bool,
    /// Wakes the flusher before the bytes are old.
    pub hurry: Arc<Bell>,
}

/// Beyond this no host's limit is met here unknowingly: such writes go through.
pub(crate) const MAX_END: u64 = 1 << 40;

impl Dirty {
    /// Nothing is written yet to a file with these attributes, or else of this version.
    pub fn new(clean: Option<Attr>, base: Version, writer: Writer) -> Self {
        Self {
            buffer: Buffer::new(base),
            path: None,
            date: None,
            clean,
            sets: Sets::default(),
            hearers: Hearers::of(&writer),
            writer,
            repeated: false,
            late: false,
            locked: None,
            appended: false,
            of_several: false,
            this_round: Vec::new(),
            next_round: Vec::new(),
            durability: Durability::None,
            again: false,
            apart: false,
            hurry: Arc::default(),
        }
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Memory in use.
    pub fn memory(&self) -> usize {
        self.buffer.memory()
    }

    /// Whether there was nothing in it before what is here was written.
    pub fn was_empty(&self) -> bool {
        self.clean.is_some_and(|attr| attr.size == 0)
    }

    /// Whether it is of another user than this.
    pub fn is_of_other(&self, caller: &Caller) -> bool {
        self.writer.caller.uid != caller.uid
    }

    /// Whose bytes they are: `None` if several users'.
    pub fn owner(&self) -> Option<Caller> {
        (!self.of_several).then(|| self.writer.caller.clone())
    }

    /// A descriptor has written.
    pub fn written_by(&mut self, writer: &Writer) {
        self.hearers.add(&writer.written);
        self.writer = writer.clone();
    }

    /// Its attributes as those know them who have written and set what is here, if they are known.
    pub fn attr(&self) -> Option<Attr> {
        let clean = self.clean.filter(|_| !self.late)?;
        let written = Attr {
            size: self.buffer.size(),
            mtime: self.date.unwrap_or(clean.mtime),
            ..clean
        };
        Some(self.sets.applied(written))
    }

    /// The round under way has ended; `again`: some of it goes once more with the next.
    pub fn round_ended(&mut self, again: bool) {
        let set = self.sets.end_round(again);
        self.clean = self.clean.and_then(|clean| set.applied(clean));
    }

    /// Some of the round under way was refused: what the file is nobody here knows any more.
    pub fn round_failed(&mut self) {
        self.clean = None;
    }

    /// Sets attributes along with the bytes that are here. False if none of them are still to be sent.
    pub fn set(&mut self, set: SetAttr) -> bool {
        let goes_along = self.buffer.has_unsent();
        if goes_along {
            self.sets.set(set);
        }
        goes_along
    }
}

impl Inodes {
    /// A clean file becomes dirty that has these attributes, or else is of this version.
    pub fn becomes_dirty(
        &mut self,
        file: Handle,
        (clean, base): (Option<Attr>, Version),
        writer: Writer,
    ) {
        self.make_content(file, |content| {
            assert!(content.dirty.is_none(), "a dirty file becomes dirty");
            content.dirty = Some(Box::new(Dirty::new(clean, base, writer)));
        });
        self.dirty.insert(file);
    }

    /// Bytes of a dirty file can't be brought to the server: who may have written them is told, and who syncs, renames or
    /// links the file next, since the writer may be gone.
    pub fn bytes_failed(&mut self, file: &Handle, refusal: Refusal) {
        let hearers = self.dirty(file).map(|dirty| &dirty.hearers);
        hearers.inspect(|hearers| hearers.failed(refusal));
        self.is_lost(*file, refusal);
    }

    /// What was set of a dirty file isn't set at the server: who may have done it is told, and who syncs the file next.
    pub fn not_set(&mut self, file: &Handle, refusal: Refusal) {
        tracing::warn!(object = %file, %refusal, "what was set of a file that was just written is not set at the server");
        self.with_dirty(file, |dirty| {
            dirty.hearers.failed(refusal);
            dirty.round_failed();
        });
        self.is_lost(*file, refusal);
    }

    /// A file is clean again.
    pub fn becomes_clean(&mut self, file: &Handle) {
        let dirty = self
            .change_content(file, |content| content.dirty.take())
            .flatten();
        let clean = dirty.is_some_and(|dirty| {
            let waits = !dirty.this_round.is_empty() || !dirty.next_round.is_empty();
            dirty.buffer.is_clean() && !waits
        });
        assert!(
            clean,
            "a file is forgotten that has dirty bytes, or for which somebody waits"
        );
        self.dirty.remove(file);
    }

    /// What there is of a dirty file.
    pub fn dirty(&self, file: &Handle) -> Option<&Dirty> {
        self.content(file)?.dirty.as_deref()
    }

    /// Changes what there is of a dirty file.
    pub fn with_dirty<R>(
        &mut self,
        file: &Handle,
        change: impl FnOnce(&mut Dirty) -> R,
    ) -> Option<R> {
        self.change_content(file, |content| Some(change(content.dirty.as_mut()?)))?
    }

    /// The server's host has crashed: what clean files were may never have reached its disk.
    pub fn forget_clean_attrs(&mut self) {
        for file in self.dirty_files() {
            self.with_dirty(&file, |dirty| dirty.clean = None);
        }
    }

    /// Whether the file has bytes that the server may not have.
    pub fn is_dirty(&self, file: &Handle) -> bool {
        self.dirty(file).is_some()
    }

    /// The dirty files.
    pub fn dirty_files(&self) -> Vec<Handle> {
        self.dirty.iter().copied().collect()
    }

    /// How many dirty bytes are held.
    pub fn dirty_bytes(&self) -> usize {
        self.weight.dirty
    }

    /// Whether memory has room for so many more, or holds none.
    pub fn may_hold_dirty(&self, len: usize) -> bool {
        let held = self.weight.dirty_memory;
        held == 0 || held + len <= self.memory.for_dirty()
    }

    /// Whether dirty bytes take up more than a fourth of the memory that is there for them.
    pub fn holds_many_dirty(&self) -> bool {
        self.weight.dirty_memory > self.memory.for_dirty() / 4
    }

    /// The size of a dirty file, as its writer knows it.
    pub fn dirty_size(&self, file: &Handle) -> Option<u64> {
        self.dirty(file).map(|dirty| dirty.buffer.size())
    }

    /// Copies what is buffered of the bytes from `offset` on into place.
    pub fn overlay_dirty(&self, file: &Handle, offset: u64, into: &mut [u8], known: &mut Known) {
        if let Some(dirty) = self.dirty(file) {
            dirty.buffer.overlay(offset, into, known);
        }
    }

    /// What the server has said it has room for, if it has.
    pub fn told_room(&mut self, now: BootTime, room: Option<u64>) {
        if let Some(bytes) = room {
            self.room = Some(ServersRoom { bytes, told: now });
        }
    }

    /// Whether the server can be expected to have room for further bytes.
    pub fn has_room(&self, now: BootTime, len: usize) -> bool {
        self.room.is_some_and(|room| {
            let more = (self.dirty_bytes() + len) as u64;
            now.since(room.told) < ROOM_LASTS && more <= room.bytes
        })
    }
}
