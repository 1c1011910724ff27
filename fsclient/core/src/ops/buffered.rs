//! Writes that their callers need not wait for, and what has to wait for them.

use super::opens::{OpenFile, durability};
use super::{Ask, Ops, Told};
use crate::api::Notice;
use crate::cache::{Store, Stored};
use crate::call::{Asker, Fh, NodeId, ShownFor, Writing};
use crate::inode::{Dirty, Durably, Hearers, Wrote};
use crate::writeback::MappedPages;
use bytes::Buf;
use leasefs_lease::client::{Batch, Run, Tenure};
use leasefs_protocol::answer::Written;
use leasefs_protocol::change::WriteKind;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{
    Attr, Durability, Handle, LockEpoch, Mode, Parts, Refusal, SetAttr, SetTime, query,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The mode bits that mean the same to whomever sets them.
const PERMISSIONS: u16 = 0o777;

/// Whether what is set doesn't depend on when, or on what else the file is.
fn is_plain(set: &SetAttr) -> bool {
    let time = |time: Option<SetTime>| match time {
        None => true,
        Some(SetTime::At(at)) => at.nanos < 1_000_000_000,
        Some(SetTime::Now) => false,
    };
    let mode = set.mode.is_none_or(|mode| mode & !PERMISSIONS == 0);
    mode && time(set.atime) && time(set.mtime) && set.size.is_none() && !set.kill_priv
}

/// Whether a user may set this of a file, as the storage host's kernel will decide it, and nobody else may do more
/// afterwards of what the server decides without asking for the file's attributes.
fn may_set(identity: IdentityPolicy, uid: u32, attr: &Attr, set: &SetAttr) -> bool {
    let gives_away = set.uid.is_some() || set.gid.is_some();
    let keeps = |id: Option<u32>, own| id.is_none_or(|id| id == own);
    let same = keeps(set.uid, attr.uid) && keeps(set.gid, attr.gid);
    let opens_up = set.mode.is_some_and(|mode| opens_up(attr.mode, mode));
    let owns = match identity {
        IdentityPolicy::Trust if uid == 0 => true,
        IdentityPolicy::Trust | IdentityPolicy::RootSquash => {
            uid != 0 && uid == attr.uid && !gives_away
        }
        IdentityPolicy::Squash => false,
    };
    owns && same && !opens_up
}

/// Whether somebody may write to the file who might not before, or read it who may write to it (and so link it): what
/// depends on that is refused by the server at once.
fn opens_up(old: u16, new: u16) -> bool {
    let added = new & !old;
    let of = |class: u32| (added >> class & 0o7, new >> class & 0o7);
    [0, 3, 6].map(of).iter().any(|(added, new)| {
        let (writes, reads) = (0o2, 0o4);
        added & writes != 0 || added & reads != 0 && new & writes != 0
    })
}

impl Ops {
    /// Whether the caller of a write need not wait until the server has it.
    fn may_buffer(&self, writing: &Writing) -> bool {
        self.manner.buffers && !writing.writeback && durability(writing.flags) == Durability::None
    }

    /// How a write is sent that isn't kept here.
    pub(super) fn kind(&self, writing: &Writing) -> WriteKind {
        match writing.writeback {
            true => WriteKind::Page { late: false },
            false => WriteKind::Through {
                keep: self.may_buffer(writing),
            },
        }
    }

    /// Keeps a write here if nothing has to be waited for; else `None`, and [`Ops::write`] is asked.
    pub fn write_at_once(&self, fh: Fh, writing: &Writing) -> Option<Result<u32, Refusal>> {
        let open = self.opens.file(fh)?;
        let locked = match self.locked(&open, fh, writing) {
            Ok(locked) => locked,
            Err(refusal) => return Some(Err(refusal)),
        };
        if !self.may_buffer(writing) {
            return None;
        }
        let store = self.to_store(&open, writing, locked);
        let stored = self.engine.store_at_once(&store);
        self.kept(&open, &store, stored).map(Ok)
    }

    /// The tenure of the locks under which a write is made.
    ///
    /// # Errors
    /// As [`Ops::keeps_locks`].
    pub(super) fn locked(
        &self,
        open: &OpenFile,
        fh: Fh,
        writing: &Writing,
    ) -> Result<Option<LockEpoch>, Refusal> {
        match writing.writeback {
            // What the kernel has kept back was stored before.
            true => Ok(self.locked_by_anybody(&open.object)),
            false => self.keeps_locks(&open.object, Some(fh), writing.owner),
        }
    }

    /// Keeps what is set of a file here, with the bytes that are buffered of it, if it is certain that the server
    /// will take it, or finds that nothing has to be; else `None`, and [`Ops::setattr`] is asked.
    pub fn setattr_at_once(&self, asker: Asker, node: NodeId, set: &SetAttr) -> Option<ShownFor> {
        let object = self.inodes().node(node)?.handle;
        if !self.manner.buffers || !is_plain(set) {
            return None;
        }
        let (cache, identity) = (self.cache(), self.manner.identity);
        let may =
            |attr: &Attr| attr.mode & !PERMISSIONS == 0 && may_set(identity, asker.uid, attr, set);
        let now = cache.now();
        let attr = match cache.is_dirty(&object) {
            true => {
                // It goes under the identity of who has written.
                let writes = |file: &Dirty| file.writer.caller.uid == asker.uid && !file.appended;
                let may = |file: &Dirty, attr: &Attr| writes(file) && may(attr);
                cache.state().set(now, &object, *set, may)?
            }
            // It would move the ctime alone.
            false => {
                let may = |attr: &Attr| may(attr) && self.rpc.is_of_now(attr.ctime);
                cache.state().has(now, &object, set, may)?
            }
        };
        self.inodes().told_set(node, &attr, self.cx.monotonic());
        Some(ShownFor {
            shown: self.shown(attr),
            valid: Duration::ZERO,
        })
    }

    fn to_store(&self, open: &OpenFile, writing: &Writing, locked: Option<LockEpoch>) -> Store {
        Store {
            object: open.object,
            at: writing.at(),
            data: writing.data.clone(),
            kill_priv: writing.kill_priv,
            date: self.rpc.date(),
            writer: open.writer(),
            locked,
        }
    }

    /// What follows from a write that was kept; `None` if it wasn't.
    fn kept(&self, open: &OpenFile, store: &Store, stored: Stored) -> Option<u32> {
        self.writeback.stored(open.object, open.node, stored);
        let Stored::Done { first } = stored else {
            return None;
        };
        if first {
            self.inodes().will_be_unstable(&open.object);
        }
        Some(store.data.len() as u32)
    }

    /// Keeps a write here if its lease allows it; `None` if it must go to the server.
    pub(super) async fn buffer(
        &self,
        ask: &Ask,
        open: &OpenFile,
        writing: &Writing,
        locked: Option<LockEpoch>,
    ) -> Result<Option<u32>, Refusal> {
        if !self.may_buffer(writing) {
            return Ok(None);
        }
        let store = self.to_store(open, writing, locked);
        let stored = ask.unless_left(self.engine.store(&store)).await?;
        let stored = match stored {
            Stored::Full => {
                // In all: there may be none at any time, or others may take it over and over.
                let stored = self.engine.in_time(self.stored_when_there_is_room(&store));
                ask.unless_left(stored).await??
            }
            stored => stored,
        };
        Ok(self.kept(open, &store, stored))
    }

    async fn stored_when_there_is_room(&self, store: &Store) -> Result<Stored, Refusal> {
        loop {
            self.writeback.room().await;
            let stored = self.engine.store(store).await?;
            if stored != Stored::Full {
                return Ok(stored);
            }
        }
    }

    /// A write has been answered. One that is durable is kept too: bytes written before it must not
    /// come back over it.
    ///
    /// # Errors
    /// [`Refusal::Lost`] if the server's host has crashed since.
    pub(super) fn wrote(
        &self,
        open: &OpenFile,
        writing: &Writing,
        before: Option<Tenure>,
        told: &Told<Written>,
    ) -> Result<(), Refusal> {
        let Written { len, offset, .. } = told.answer;
        let attr = told.touched.iter().find(|t| t.object == open.object);
        let written = match attr.filter(|_| writing.writeback) {
            // Of a page the server takes what lies in the file.
            Some(touched) => len.min(touched.attr.size.saturating_sub(offset)),
            None => len,
        };
        let written = usize::try_from(written).unwrap_or(usize::MAX);
        let data = (written <= writing.data.len()).then(|| writing.data.slice(..written));
        match (self.manner.buffers, attr, data) {
            (true, Some(touched), Some(data)) => {
                let wrote = Wrote {
                    object: open.object,
                    batch: Batch::from(Run { offset, data }),
                    version: touched.attr.version(),
                    writer: open.writer(),
                    hearers: Arc::new(match writing.writeback {
                        true => Hearers::default(),
                        false => Hearers::of(&open.writer()),
                    }),
                    path: self.path(open),
                    tenure: self.tenure_of(open, before, told),
                    durable: writing.durability() != Durability::None,
                };
                if !self.writeback.wrote(wrote, told.host) {
                    return Err(Refusal::Lost);
                }
            }
            _ if writing.durability() == Durability::None => {
                self.changed(&[open.object], Some(open.object), told.host);
            }
            _ => {}
        }
        Ok(())
    }

    /// Where a file was found last, for people.
    fn path(&self, open: &OpenFile) -> Option<PathBuf> {
        self.inodes().path(open.node)
    }

    /// Under which lease the bytes of an answered write may be written again: that which came with the
    /// answer, or which was held `before` it was sent and is still.
    fn tenure_of(
        &self,
        open: &OpenFile,
        before: Option<Tenure>,
        told: &Told<Written>,
    ) -> Option<Tenure> {
        let granted = told.grants.iter().any(|grant| {
            let content = grant.parts.contains(Parts::DATA);
            grant.object == open.object && grant.mode == Mode::Write && content
        });
        let now = self.cache().tenure(&open.object);
        now.filter(|_| granted || now == before)
    }

    /// Writes mapped pages back. What can't be brought in is kept.
    pub(super) async fn write_pages(
        &self,
        ask: &Ask,
        open: &OpenFile,
        writing: &Writing,
        locked: Option<LockEpoch>,
    ) -> Result<u32, Refusal> {
        let pages = MappedPages {
            object: open.object,
            path: self.path(open),
            writer: open.caller.clone(),
            size: self.inodes().believed_size(open.node),
            run: Run {
                offset: writing.offset,
                data: writing.data.clone(),
            },
        };
        let under_way = self.writeback.pages_leave(pages.clone());
        let written = self.write_whole(ask, open, writing, locked).await;
        if let Err(refusal) = written {
            self.engine.sweep_pages(&open.object);
            self.writeback.keep_pages(pages, refusal).await;
            self.lock_pages(open, writing).await;
        }
        drop(under_way);
        written
    }

    /// The kernel takes pages for clean once their WRITE is answered. What is stored into them then, before they are dropped, would
    /// be lost with them.
    async fn lock_pages(&self, open: &OpenFile, writing: &Writing) {
        let (offset, len) = (writing.offset, writing.data.len() as u64);
        let drop = |node| Notice::DropWritten { node, offset, len };
        self.outside.tell_of(&open.object, drop).await;
    }

    /// Of pages the kernel doesn't look at how much was written. What the host has had no room for it refuses when that comes alone.
    async fn write_whole(
        &self,
        ask: &Ask,
        open: &OpenFile,
        writing: &Writing,
        locked: Option<LockEpoch>,
    ) -> Result<u32, Refusal> {
        let mut rest = writing.clone();
        loop {
            let taken = self.write_through(ask, open, &rest, locked).await?;
            if taken == 0 && !rest.data.is_empty() {
                return Err(Refusal::Internal);
            }
            if rest.data.len() <= taken as usize {
                return Ok(writing.data.len() as u32);
            }
            rest.offset += u64::from(taken);
            rest.data.advance(taken as usize);
        }
    }

    /// Waits until the server has what is buffered of a file.
    ///
    /// # Errors
    /// `TimedOut`, or `Cancelled` if the caller leaves.
    pub(super) async fn settle(&self, ask: &Ask, object: &Handle) -> Result<(), Refusal> {
        if !self.cache().is_dirty(object) {
            return Ok(());
        }
        let flushed = self.engine.in_time(self.writeback.flush(object));
        ask.unless_left(flushed).await
    }

    /// As [`Ops::settle`], for who wants it to be durable: tells if it is already.
    pub(super) async fn settle_durably(
        &self,
        ask: &Ask,
        object: &Handle,
        durability: Durability,
    ) -> Result<Option<Durably>, Refusal> {
        if !self.cache().is_dirty(object) {
            return Ok(None);
        }
        let flushed = self.writeback.flush_durably(object, durability);
        ask.unless_left(self.engine.while_heard(flushed)).await
    }

    /// Waits until the server has what is set of a file with what is buffered of it: an ACL goes by its mode, and its
    /// capabilities by its owner.
    ///
    /// # Errors
    /// As [`Ops::settle`].
    pub(super) async fn settle_sets(&self, ask: &Ask, object: &Handle) -> Result<(), Refusal> {
        let sets = |file: &Dirty| !file.sets.is_empty();
        let is_set = self.inodes().dirty(object).is_some_and(sets);
        match is_set {
            true => self.settle(ask, object).await,
            false => Ok(()),
        }
    }

    /// The attributes of an object as they are with what is buffered of it.
    pub(super) async fn settled_attr(
        &self,
        ask: &Ask,
        object: &Handle,
        attr: Attr,
    ) -> Result<Attr, Refusal> {
        if !self.cache().is_dirty(object) {
            return Ok(attr);
        }
        self.settle(ask, object).await?;
        let cached = self.cache().live().and_then(|mut tier| tier.attr(object));
        match cached {
            Some(attr) => Ok(attr),
            None => {
                let told = self.call(ask, query::GetAttr { object: *object }).await?;
                Ok(told.answer)
            }
        }
    }

    /// A descriptor is closed: it is told of a failure that is known by now. `fsync` is told too: a copy
    /// may be closed that nobody looks at, as when a child process executes another program.
    ///
    /// # Errors
    /// Why bytes it wrote could not be brought to the server.
    pub fn flush(&self, fh: Fh) -> Result<(), Refusal> {
        self.opens
            .file(fh)
            .map_or(Ok(()), |open| open.written.known())
    }
}
