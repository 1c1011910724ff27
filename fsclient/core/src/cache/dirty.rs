//! Files with bytes that the server doesn't have yet.
//!
//! A file is *dirty* from its first buffered write until the last of its bytes is answered. All
//! that time it counts as being changed by an own change: its attributes are not cached, here or
//! in the kernel, and whoever asks for them has it flushed first.

use crate::run::{Bell, Map, Part};
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_lease::client::{Buffer, ChangeOf, Known, Run, Tenure};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::ROOM_LASTS;
use leasefs_protocol::request::WriteAt;
use leasefs_protocol::{Attr, Caller, Handle, OpenId, Parts, Refusal, Reply, Timestamp, Version};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What a descriptor must be told: bytes it wrote could not be brought to the server.
#[derive(Debug, Default)]
pub struct Written(Part<Option<Refusal>>);

impl Written {
    /// Bytes can't be brought to the server. The first failure counts.
    pub fn failed(&self, refusal: Refusal) {
        self.0.borrow_mut().get_or_insert(refusal);
    }

    /// Fails if bytes were lost that [`Written::check`] hasn't told of.
    ///
    /// # Errors
    /// Why they were.
    pub fn known(&self) -> Result<(), Refusal> {
        self.0.borrow().map_or(Ok(()), Err)
    }

    /// Fails, once, if bytes were lost since it was asked last.
    ///
    /// # Errors
    /// Why they were.
    pub fn check(&self) -> Result<(), Refusal> {
        self.0.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// A descriptor that writes.
#[derive(Clone, Debug)]
pub struct Writer {
    /// The server's number of its open.
    pub open: OpenId,
    /// Whose verdict allowed it.
    pub caller: Caller,
    /// Hears what became of its bytes.
    pub written: Arc<Written>,
}

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

#[derive(Debug)]
pub(super) struct File {
    pub(super) buffer: Buffer,
    /// Below the mount's root, as far as it was known.
    pub(super) path: Option<PathBuf>,
    /// When it was written last, by the server's clock.
    pub(super) date: Option<Timestamp>,
    pub(super) writers: Vec<Writer>,
    /// Closed here; to be closed at the server when what was written through them is there.
    pub(super) closing: Vec<OpenId>,
    /// Of these, those that were closed before the round under way began.
    pub(super) ending: Vec<OpenId>,
    /// Some of what is here may have been written already.
    pub(super) repeated: bool,
    /// Wait for the round under way, or else for the next.
    pub(super) this_round: Vec<oneshot::Sender<()>>,
    /// Wait for the round after the one under way.
    pub(super) next_round: Vec<oneshot::Sender<()>>,
    /// Some of the round under way has to be sent again.
    pub(super) again: bool,
    /// Wakes the flusher before the bytes are old.
    pub(super) hurry: Arc<Bell>,
}

/// Requests that bring bytes to the server.
#[derive(Debug)]
pub struct Round {
    /// What to write where.
    pub runs: Vec<Run>,
    /// Through which open.
    pub writer: Writer,
    /// Who may have written it.
    pub writers: Arc<[Writer]>,
    /// Clear setuid and setgid bits.
    pub kill_priv: bool,
    /// What the file was before.
    pub base: Version,
    /// Some of it may have been written already.
    pub repeated: bool,
    /// When the last of it was written, by the server's clock.
    pub date: Option<Timestamp>,
}

/// What became of a request of a round.
#[derive(Debug)]
pub enum Flushed {
    /// Carried out; the file's attributes after it.
    Answered(Run, Box<Reply>, Option<Attr>),
    /// To be sent again.
    Again(Run),
    /// Never to be carried out.
    Failed(Run, Refusal),
}

impl Flushed {
    /// Whether it was carried out.
    pub fn is_answered(&self) -> bool {
        matches!(self, Self::Answered(..))
    }
}

/// A dirty file.
#[derive(Debug)]
pub struct DirtyFile {
    /// Below the mount's root, as far as it is known.
    pub path: Option<PathBuf>,
    /// As the writer knows it.
    pub size: u64,
}

/// Bytes of a file that the server had, and that a crash of its host may have undone.
#[derive(Debug)]
pub struct Undone {
    /// The file.
    pub object: Handle,
    /// The bytes, the oldest first.
    pub runs: Vec<Run>,
    /// As the last of them left the file.
    pub base: Version,
    /// Who wrote them, all of whom hear what becomes of them; the last is the one to write them again
    /// through.
    pub writers: Vec<Writer>,
    /// Where the file is, as far as it is known.
    pub path: Option<PathBuf>,
    /// Opens that were closed here, and are to be closed at the server when it has the bytes.
    pub closing: Vec<OpenId>,
    /// Under which lease they were written.
    pub tenure: Tenure,
}

/// Follows from the end of a request, to be done without the lock.
#[derive(Debug, Default)]
pub struct Ended {
    pub wake: Vec<oneshot::Sender<()>>,
    pub closes: Vec<OpenId>,
}

/// All dirty files of a mount.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(super) files: Map<Handle, File>,
    pub(super) bytes: usize,
    /// How many bytes of one file are flushed within half a term, as far as has been measured.
    pub(super) bound: Option<usize>,
    /// What the server had room for, and when it said so.
    pub(super) room: Option<(BootTime, u64)>,
    /// How many own changes of a file's bytes are under way: a write that is buffered meanwhile
    /// could be read after one of them that came behind it.
    pub(super) changing: Map<Handle, u32>,
}

/// What a buffered write changes besides the bytes.
pub(super) fn attrs(object: Handle) -> [ChangeOf; 1] {
    [ChangeOf {
        object,
        parts: Parts::ATTRS,
        names: Vec::new(),
    }]
}

/// A flush of fewer bytes says nothing of how fast more would be.
const MEASURED: usize = 1 << 20;

/// Beyond this no host's limit is met here unknowingly: such writes go through.
pub(super) const MAX_END: u64 = 1 << 40;

impl Dirty {
    /// Until it ends nothing is buffered of the file.
    pub fn change_begins(&mut self, object: Handle) {
        *self.changing.entry(object).or_default() += 1;
    }

    /// It has ended.
    pub fn change_ends(&mut self, object: &Handle) {
        if let Some(count) = self.changing.get_mut(object) {
            *count -= 1;
            if *count == 0 {
                self.changing.remove(object);
            }
        }
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the file has bytes that the server may not have.
    pub fn contains(&self, object: &Handle) -> bool {
        self.files.contains_key(object)
    }

    /// The size of a dirty file, as its writer knows it.
    pub fn size(&self, object: &Handle) -> Option<u64> {
        self.files.get(object).map(|file| file.buffer.size())
    }

    /// Copies what is buffered of the bytes from `offset` on into place.
    pub fn overlay(&self, object: &Handle, offset: u64, into: &mut [u8], known: &mut Known) {
        if let Some(file) = self.files.get(object) {
            file.buffer.overlay(offset, into, known);
        }
    }

    /// The dirty files.
    pub fn objects(&self) -> Vec<Handle> {
        self.files.keys().copied().collect()
    }

    /// What the server has said it has room for, if it has.
    pub fn told_room(&mut self, now: BootTime, room: Option<u64>) {
        if let Some(room) = room {
            self.room = Some((now, room));
        }
    }

    /// Whether the server can be expected to have room for further bytes.
    pub(super) fn has_room(&self, now: BootTime, len: usize) -> bool {
        self.room.is_some_and(|(told, room)| {
            now.since(told) < ROOM_LASTS && (self.bytes + len) as u64 <= room
        })
    }

    /// Bytes were flushed in this time, of a term.
    pub fn measured(&mut self, bytes: usize, took: Duration, term: Duration) {
        if bytes >= MEASURED {
            let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
            let fresh = rate * term.as_secs_f64() / 2.0;
            let known = self.bound.map_or(fresh, |bound| bound as f64);
            self.bound = Some(((known + fresh) / 2.0) as usize);
        }
    }

    /// Whether a recall of the file might take longer than it may to be flushed.
    pub(super) fn is_at_bound(&self, object: &Handle, len: usize) -> bool {
        let bound = self.bound.unwrap_or(usize::MAX).max(4 * MEASURED);
        let held = self.files.get(object).map_or(0, |file| file.buffer.bytes());
        held > 0 && held + len > bound
    }

    pub(super) fn count(&mut self, object: &Handle, change: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(object) {
            let before = file.buffer.bytes();
            change(file);
            self.bytes = self.bytes - before + file.buffer.bytes();
        }
    }
}

impl File {
    pub(super) fn new(base: Version) -> Self {
        Self {
            buffer: Buffer::new(base),
            path: None,
            date: None,
            writers: Vec::new(),
            closing: Vec::new(),
            ending: Vec::new(),
            repeated: false,
            this_round: Vec::new(),
            next_round: Vec::new(),
            again: false,
            hurry: Arc::default(),
        }
    }

    pub(super) fn written_by(&mut self, writer: &Writer) {
        if self.writers.iter().all(|known| known.open != writer.open) {
            self.writers.push(writer.clone());
        }
    }
}
