//! Files with bytes that the server doesn't have yet.
//!
//! A file is *dirty* from its first buffered write until the last of its bytes is answered. All
//! that time it counts as being changed by an own change: its attributes are not cached, here or
//! in the kernel, and whoever asks for them has it flushed first.

use super::Inodes;
use super::table::ServersRoom;
use super::writer::{Hearers, Writer};
use crate::run::Bell;
use futures_channel::oneshot;
use leasefs_lease::client::{Buffer, Known};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::ROOM_LASTS;
use leasefs_protocol::{Handle, Refusal, Timestamp, Version};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a file that the server may not have, and who waits for them.
#[derive(Debug)]
pub(crate) struct Dirty {
    pub buffer: Buffer,
    /// Below the mount's root, as far as it was known.
    pub path: Option<PathBuf>,
    /// When it was written last, by the server's clock.
    pub date: Option<Timestamp>,
    /// Through which it is written: the last to write. Its open stands as long as there is anything here.
    pub writer: Writer,
    /// Who may have written it.
    pub hearers: Hearers,
    /// Some of what is here may have been written already.
    pub repeated: bool,
    /// Some of what is here was written under a lease that has ended.
    pub late: bool,
    /// Wait for the round under way, or else for the next.
    pub this_round: Vec<oneshot::Sender<()>>,
    /// Wait for the round after the one under way.
    pub next_round: Vec<oneshot::Sender<()>>,
    /// Some of the round under way has to be sent again.
    pub again: bool,
    /// Wakes the flusher before the bytes are old.
    pub hurry: Arc<Bell>,
}

/// Beyond this no host's limit is met here unknowingly: such writes go through.
pub(crate) const MAX_END: u64 = 1 << 40;

impl Dirty {
    /// Nothing is written yet to a file of this version.
    pub fn new(base: Version, writer: Writer) -> Self {
        Self {
            buffer: Buffer::new(base),
            path: None,
            date: None,
            hearers: Hearers::of(&writer),
            writer,
            repeated: false,
            late: false,
            this_round: Vec::new(),
            next_round: Vec::new(),
            again: false,
            hurry: Arc::default(),
        }
    }

    /// Memory in use.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// A descriptor has written.
    pub fn written_by(&mut self, writer: &Writer) {
        self.hearers.add(&writer.written);
        self.writer = writer.clone();
    }
}

impl Inodes {
    /// A clean file becomes dirty.
    pub fn becomes_dirty(&mut self, file: Handle, base: Version, writer: Writer) {
        self.make(file, |inode| {
            assert!(inode.dirty.is_none(), "a dirty file becomes dirty");
            inode.dirty = Some(Box::new(Dirty::new(base, writer)));
        });
        self.dirty.insert(file);
    }

    /// Bytes of a dirty file can't be brought to the server: who may have written them is told.
    pub fn bytes_failed(&mut self, file: &Handle, refusal: Refusal) {
        let hearers = self.dirty(file).map(|dirty| &dirty.hearers);
        hearers.inspect(|hearers| hearers.failed(refusal));
        if hearers.is_some_and(Hearers::are_all) {
            self.is_lost(*file);
        }
    }

    /// A file is clean again.
    pub fn becomes_clean(&mut self, file: &Handle) {
        let dirty = self.change(file, |inode| inode.dirty.take()).flatten();
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
        self.get(file)?.dirty.as_deref()
    }

    /// Changes what there is of a dirty file.
    pub fn with_dirty<R>(
        &mut self,
        file: &Handle,
        change: impl FnOnce(&mut Dirty) -> R,
    ) -> Option<R> {
        self.change(file, |inode| Some(change(inode.dirty.as_mut()?)))?
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
