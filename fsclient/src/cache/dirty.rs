//! Files with bytes that the server doesn't have yet.
//!
//! A file is *dirty* from its first buffered write until the last of its bytes is answered. All
//! that time it counts as being changed by an own change: its attributes are not cached, here or
//! in the kernel, and whoever asks for them has it flushed first.

use super::entry::Dropped;
use super::state::State;
use bytes::Bytes;
use leasefs_lease::client::{Buffer, ChangeOf, Known, Run, Tenure};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::ROOM_LASTS;
use leasefs_protocol::request::WriteAt;
use leasefs_protocol::{
    Attr, Caller, Grant, Handle, OpenId, Parts, Refusal, Reply, Stamp, Timestamp, Version,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// What a descriptor must be told: bytes it wrote could not be brought to the server.
#[derive(Debug, Default)]
pub struct Written(Mutex<Option<Refusal>>);

impl Written {
    /// Bytes can't be brought to the server. The first failure counts.
    pub fn failed(&self, refusal: Refusal) {
        self.lock().get_or_insert(refusal);
    }

    /// Fails if bytes were lost that [`Written::check`] hasn't told of.
    ///
    /// # Errors
    /// Why they were.
    pub fn known(&self) -> Result<(), Refusal> {
        self.lock().map_or(Ok(()), Err)
    }

    /// Fails, once, if bytes were lost since it was asked last.
    ///
    /// # Errors
    /// Why they were.
    pub fn check(&self) -> Result<(), Refusal> {
        self.lock().take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
struct File {
    buffer: Buffer,
    /// Below the mount's root, as far as it was known.
    path: Option<PathBuf>,
    /// When it was written last, by the server's clock.
    date: Option<Timestamp>,
    writers: Vec<Writer>,
    /// Closed here; to be closed at the server when what was written through them is there.
    closing: Vec<OpenId>,
    /// Of these, those that were closed before the round under way began.
    ending: Vec<OpenId>,
    /// Some of what is here may have been written already.
    repeated: bool,
    /// Wait for the round under way, or else for the next.
    this_round: Vec<oneshot::Sender<()>>,
    /// Wait for the round after the one under way.
    next_round: Vec<oneshot::Sender<()>>,
    /// Some of the round under way has to be sent again.
    again: bool,
    /// Wakes the flusher before the bytes are old.
    hurry: Arc<Notify>,
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
    files: HashMap<Handle, File>,
    bytes: usize,
    /// How many bytes of one file are flushed within half a term, as far as has been measured.
    bound: Option<usize>,
    /// What the server had room for, and when it said so.
    room: Option<(BootTime, u64)>,
    /// How many own changes of a file's bytes are under way: a write that is buffered meanwhile
    /// could be read after one of them that came behind it.
    changing: HashMap<Handle, u32>,
}

/// What a buffered write changes besides the bytes.
fn attrs(object: Handle) -> [ChangeOf; 1] {
    [ChangeOf {
        object,
        parts: Parts::ATTRS,
        names: Vec::new(),
    }]
}

/// A flush of fewer bytes says nothing of how fast more would be.
const MEASURED: usize = 1 << 20;

/// Beyond this no host's limit is met here unknowingly: such writes go through.
const MAX_END: u64 = 1 << 40;

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
    fn has_room(&self, now: BootTime, len: usize) -> bool {
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
    fn is_at_bound(&self, object: &Handle, len: usize) -> bool {
        let bound = self.bound.unwrap_or(usize::MAX).max(4 * MEASURED);
        let held = self.files.get(object).map_or(0, |file| file.buffer.bytes());
        held > 0 && held + len > bound
    }

    fn count(&mut self, object: &Handle, change: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(object) {
            let before = file.buffer.bytes();
            change(file);
            self.bytes = self.bytes - before + file.buffer.bytes();
        }
    }
}

impl State {
    /// Keeps a write here if a live Write lease allows it. `clear`: no page of its range is in the
    /// kernel, nor can one come in. What the kernel has to drop goes into `dropped`.
    pub fn store(
        &mut self,
        now: BootTime,
        store: &Store,
        (budget, clear): (usize, bool),
        dropped: &mut Dropped,
    ) -> Stored {
        let object = store.object;
        let Some(live) = self.session.witness(now) else {
            return Stored::Through;
        };
        let attr = self.tables.peek_attr(&live, &object);
        let known = self.dirty.files.get(&object);
        let size = known.map(|file| file.buffer.size());
        let Some(size) = size.or(attr.map(|attr| attr.size)) else {
            return Stored::Through;
        };
        let offset = match store.at {
            WriteAt::Offset(offset) => offset,
            WriteAt::Append => size,
        };
        let end = offset.saturating_add(store.data.len() as u64);
        let changing = self.dirty.changing.contains_key(&object);
        if changing || !self.leases.may_buffer(&object) || end > MAX_END {
            return Stored::Through;
        }
        let len = store.data.len();
        if !self.dirty.has_room(now, len) {
            return Stored::Through;
        }
        if self.dirty.bytes + len > budget || self.dirty.is_at_bound(&object, len) {
            return Stored::Full;
        }
        if !clear && self.pages.may_hold(&object) {
            return Stored::Pages;
        }
        let base = attr.map(|attr| attr.version()).unwrap_or_default();
        let first = self.becomes_dirty(object, base, dropped);
        self.dirty.count(&object, |file| {
            file.buffer.put(offset, store.data.clone(), store.kill_priv);
            file.date = store.date;
            file.written_by(&store.writer);
        });
        Stored::Done { first }
    }

    /// False if the file is dirty already.
    fn becomes_dirty(&mut self, object: Handle, base: Version, dropped: &mut Dropped) -> bool {
        if self.dirty.contains(&object) {
            return false;
        }
        self.leases.begin_change(&attrs(object));
        self.tables.drop_parts(&object, Parts::ATTRS, [], dropped);
        self.dirty.files.insert(object, File::new(base));
        true
    }

    /// Takes in bytes that are to be written again, below what is here. True if the file was clean
    /// before. What the kernel has to drop of it is left to whoever sweeps.
    pub fn restore(&mut self, undone: Undone) -> bool {
        let mut work = self.swept.take().unwrap_or_default();
        let first = self.becomes_dirty(undone.object, undone.base, &mut work.dropped);
        self.swept = Some(work);
        self.dirty.count(&undone.object, |file| {
            file.buffer.restore(undone.runs);
            // The last stays last: the opens of others may have been closed.
            for writer in undone.writers {
                file.writers.retain(|known| known.open != writer.open);
                file.writers.push(writer);
            }
            file.closing.extend(undone.closing);
            file.repeated = true;
            file.path = file.path.take().or(undone.path);
        });
        first
    }

    /// Waits for all bytes of the file that are here now; `None` if there are none.
    pub fn wait_flushed(&mut self, object: &Handle) -> Option<oneshot::Receiver<()>> {
        let file = self.dirty.files.get_mut(object)?;
        let (tell, told) = oneshot::channel();
        match file.buffer.is_flushing() && file.buffer.has_unsent() {
            true => file.next_round.push(tell),
            false => file.this_round.push(tell),
        }
        file.hurry.notify_one();
        Some(told)
    }

    /// What wakes the flusher of a dirty file early.
    pub fn hurry(&self, object: &Handle) -> Option<Arc<Notify>> {
        Some(self.dirty.files.get(object)?.hurry.clone())
    }

    /// Begins a round. `None` if nothing waits to be sent.
    pub fn begin_round(&mut self, object: &Handle, most: usize) -> Option<Round> {
        let file = self.dirty.files.get_mut(object)?;
        let writer = file.writers.last()?.clone();
        let writers = file.writers.as_slice().into();
        let (base, kill_priv) = (file.buffer.base(), file.buffer.kill_priv());
        let runs = file.buffer.begin_round(most);
        if runs.is_empty() {
            return None;
        }
        file.ending.append(&mut file.closing);
        Some(Round {
            runs,
            writer,
            writers,
            kill_priv,
            base,
            repeated: file.repeated,
            date: file.date,
        })
    }

    /// A request of a round has ended. A file that is clean then is forgotten.
    pub fn flushed(
        &mut self,
        now: BootTime,
        asked: super::Asked,
        object: &Handle,
        flushed: Flushed,
    ) -> Ended {
        let (mut grants, mut after) = (Vec::<Grant>::new(), None);
        match flushed {
            Flushed::Answered(run, reply, attr) => {
                if self.leases.held(object).contains(Parts::DATA) {
                    self.content.flushed(object, run.offset, run.data);
                }
                let version = attr.map(|attr| attr.version());
                self.dirty.count(object, |f| f.buffer.answered(version));
                self.dirty.told_room(now, reply.room);
                (grants, after) = (reply.grants, attr);
                self.granted(asked, &grants);
                self.leases.changed(object, Parts::ATTRS, reply.stamp);
            }
            Flushed::Again(run) => self.dirty.count(object, |file| {
                file.buffer.again(&run);
                file.again = true;
            }),
            Flushed::Failed(_, refusal) => {
                // Some of it may have been taken.
                self.content.drop_file(object);
                self.dirty.count(object, |file| {
                    file.buffer.given_up();
                    file.writers.iter().for_each(|w| w.written.failed(refusal));
                });
            }
        }
        let ended = self.end_of_round(object);
        if !self.dirty.contains(object)
            && let Some(attr) = after
        {
            self.put_attr(asked, &grants, object, &attr);
        }
        ended
    }

    /// A round of so many bytes took so long.
    pub fn measured(&mut self, bytes: usize, took: Duration) {
        let term = self.session.term();
        self.dirty.measured(bytes, took, term);
    }

    fn end_of_round(&mut self, object: &Handle) -> Ended {
        let Some(file) = self.dirty.files.get_mut(object) else {
            return Ended::default();
        };
        if file.buffer.is_flushing() {
            return Ended::default();
        }
        file.repeated = std::mem::take(&mut file.again);
        if file.repeated {
            file.this_round.append(&mut file.next_round);
            return Ended::default();
        }
        let mut ended = Ended {
            wake: std::mem::take(&mut file.this_round),
            closes: std::mem::take(&mut file.ending),
        };
        file.writers.retain(|w| !ended.closes.contains(&w.open));
        file.this_round = std::mem::take(&mut file.next_round);
        if file.buffer.is_clean() {
            ended.wake.append(&mut file.this_round);
            ended.closes.append(&mut file.closing);
            self.dirty.files.remove(object);
            self.leases
                .end_change(&attrs(*object), Some(Stamp::default()));
        }
        ended
    }

    /// Closes a server's open once what was written through it is there; false if it need not wait.
    pub fn close_when_clean(&mut self, object: &Handle, open: OpenId) -> bool {
        let Some(file) = self.dirty.files.get_mut(object) else {
            return false;
        };
        let writes = file.writers.iter().any(|w| w.open == open);
        if writes {
            file.closing.push(open);
        }
        writes
    }

    /// Takes out everything that no round has taken: it will not be flushed.
    pub fn abandon(&mut self, object: &Handle, refusal: Refusal) -> Vec<Run> {
        let mut runs = Vec::new();
        self.dirty.count(object, |file| {
            runs = file.buffer.take_unsent();
            file.writers.iter().for_each(|w| w.written.failed(refusal));
        });
        runs
    }

    /// What a dirty file is, for people.
    pub fn dirty_file(&self, object: &Handle) -> Option<DirtyFile> {
        let file = self.dirty.files.get(object)?;
        Some(DirtyFile {
            path: file.path.clone(),
            size: file.buffer.size(),
        })
    }

    /// Where a dirty file is, as far as it is known.
    pub fn dirty_path(&self, object: &Handle) -> Option<PathBuf> {
        self.dirty.files.get(object)?.path.clone()
    }

    /// All bytes of a file that the server may not have. Copies them.
    pub fn buffered(&self, object: &Handle) -> Vec<Run> {
        let file = self.dirty.files.get(object);
        file.map_or(Vec::new(), |file| file.buffer.everything())
    }

    /// Where a file is that has just become dirty.
    pub fn dirty_at(&mut self, object: &Handle, path: Option<PathBuf>) {
        if let Some(file) = self.dirty.files.get_mut(object) {
            file.path = path;
        }
    }
}

impl File {
    fn new(base: Version) -> Self {
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

    fn written_by(&mut self, writer: &Writer) {
        if self.writers.iter().all(|known| known.open != writer.open) {
            self.writers.push(writer.clone());
        }
    }
}

#[cfg(test)]
mod tests;
