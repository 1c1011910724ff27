//! Bytes of files.

use super::attr::MOST_OUTDATED;
use super::opens::{OpenFile, durability};
use super::{Ask, Ops};
use crate::cache::{Fetched, Here, Range};
use crate::call::{At, Fh, Writing};
use crate::inode::Heard;
use crate::recall::{ChangeScope, PageChange, PageRead, Span, Verdict};
use crate::session::Answered;
use bytes::Bytes;
use futures_util::future::join;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::limits::MAX_PAYLOAD;
use leasefs_protocol::query::Fill;
use leasefs_protocol::{Attr, Durability, Handle, LockEpoch, Mode, Refusal, change, query};
use std::sync::Arc;

/// How often the server is asked for pages that come without a lease: more than a minute.
const MOST_ASKED: u32 = 1000;

/// How often bytes are asked for that are outdated when they come.
const MOST_FETCHED: usize = 3;

impl Writing {
    /// Where it goes. The server finds the end of the file; the kernel only believes it knows.
    pub(super) fn at(&self) -> WriteAt {
        let appends = self.flags & libc::O_APPEND as u32 != 0;
        match appends && !self.writeback {
            true => WriteAt::Append,
            false => WriteAt::Offset(self.offset),
        }
    }

    /// Which pages in the kernel it makes outdated.
    fn pages(&self) -> PageChange {
        let span = Span::new(self.offset, self.data.len() as u64);
        match self.at().first() {
            None => PageChange::Drop(Span::ALL),
            Some(_) if self.writeback => PageChange::WriteBack(span),
            Some(_) => PageChange::Drop(span),
        }
    }

    /// What must be durable. Written-back pages are committed by the FSYNC that follows.
    pub(super) fn durability(&self) -> Durability {
        match self.writeback {
            true => Durability::None,
            false => durability(self.flags),
        }
    }
}

/// How much of a read lies where files can have bytes: the kernel asks for whole pages.
fn within_files(offset: u64, len: u32) -> u32 {
    let left = (i64::MAX as u64).saturating_sub(offset);
    len.min(u32::try_from(left).unwrap_or(u32::MAX))
}

/// The bytes that `fallocate(2)` changes; with a length of 0 up to the end.
fn allocated(mode: u32, offset: u64, len: u64) -> Span {
    let moves = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    match mode as i32 & moves {
        0 => Span::new(offset, len),
        _ => Span::new(offset, 0),
    }
}

/// Whether the host has not taken all of it.
fn falls_short(written: Result<u32, Refusal>, writing: &Writing) -> bool {
    match written {
        Ok(len) => (len as usize) < writing.data.len(),
        Err(refusal) => matches!(refusal, Refusal::Host(_) | Refusal::TooBig),
    }
}

impl Ops {
    pub(super) fn file(&self, fh: Fh) -> Result<Arc<OpenFile>, Refusal> {
        self.opens.file(fh).ok_or(Refusal::BadOpen)
    }

    /// Bytes of a file for a caller; fewer than asked for only at its end.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn read(&self, ask: &Ask, at: At, len: u32) -> Result<Bytes, Refusal> {
        let open = self.file(at.fh)?;
        let len = within_files(at.offset, len);
        let range = Range {
            offset: at.offset,
            len: len as usize,
        };
        for _ in 0..MOST_FETCHED {
            let asking = match self.cache().read_here(&open.object, range) {
                Here::All(data) => return Ok(data),
                Here::Fetch(asking) => asking,
                Here::Unsettled => break,
            };
            let (from, count) = (asking.fetch.offset, asking.fetch.len as u32);
            let answer = self.ask_bytes(ask, &open, from, count, Fill::Cache).await?;
            answer.reply.result?;
            let (grants, data) = (&answer.reply.grants, answer.payload);
            let fetched = Fetched { grants, data };
            let fetched = self.cache().fetched(&open.object, range, asking, fetched);
            if let Some(data) = fetched {
                return Ok(data);
            }
        }
        self.settle(ask, &open.object).await?;
        let answer = self.ask_bytes(ask, &open, at.offset, len, Fill::Nothing);
        let answer = answer.await?;
        answer.reply.result?;
        Ok(answer.payload)
    }

    /// Bytes of a file for the page cache, under a lease.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn read_pages(&self, ask: &Ask, at: At, len: u32) -> Result<Bytes, Refusal> {
        let open = self.file(at.fh)?;
        let len = within_files(at.offset, len);
        let range = Range {
            offset: at.offset,
            len: len as usize,
        };
        let (mut read, mut fill) = self.begin_read(ask, &open, at.offset, len).await?;
        for _ in 0..MOST_ASKED {
            // Behind the gate: a write that comes later waits for this READ to be gone.
            self.settle(ask, &open.object).await?;
            if fill == Fill::Pages && self.inodes().has_clean_bytes(&open.object) {
                self.know_size(ask, &open, range).await;
                if let Some(data) = read.answered_here(range) {
                    return Ok(self.fills_pages(&open, at, len, data));
                }
            }
            let bytes = self.ask_bytes(ask, &open, at.offset, len, fill);
            let (answer, ()) = join(bytes, self.know_size(ask, &open, range)).await;
            let answer = answer?;
            let end = at.offset.saturating_add(answer.payload.len() as u64);
            let ends = match fill == Fill::PagesForStore {
                true => self.known_end(ask, &open, end).await,
                false => None,
            };
            let refused = answer.reply.result.is_err();
            if refused || read.judge(&answer.reply) == Verdict::Deliver {
                answer.reply.result?;
                if let Some((attr, known)) = ends {
                    self.grow((open.node, &open.object), &attr, known).await;
                }
                return Ok(self.fills_pages(&open, at, len, answer.payload));
            }
            ask.unless_left(read.again()).await?;
            // The server gives nothing exclusive to who has no open for writing any more. One that
            // comes now finds the READ in line.
            if fill == Fill::PagesForStore && !self.inodes().may_store(&open.object) {
                read.stores_no_more();
                fill = Fill::Pages;
            }
        }
        Err(Refusal::TimedOut)
    }

    /// The kernel is about to be answered. What is shorter than it has asked for tells it the size.
    fn fills_pages(&self, open: &OpenFile, at: At, len: u32, data: Bytes) -> Bytes {
        if data.len() < len as usize {
            let end = at.offset.saturating_add(data.len() as u64);
            self.inodes().told_size(open.node, end);
        }
        *self.filled.borrow_mut() += 1;
        data
    }

    /// Who reads by a mapping, `splice` or `sendfile` asks nobody for the size first, and goes no further than what
    /// the kernel has known of it. So it gets to know that with the first page that is read in after it was
    /// recalled; and when that lease is recalled because the file grows.
    async fn know_size(&self, ask: &Ask, open: &OpenFile, range: Range) {
        let (node, object) = (open.node, &open.object);
        if !self.inodes().is_outdated(node) {
            return;
        }
        // The READ says what is wrong.
        let Ok((attr, known)) = self.size_here(ask, open).await else {
            return;
        };
        if attr.size > range.offset.saturating_add(range.len as u64) {
            self.grow((node, object), &attr, known).await;
        }
    }

    /// Pages of a range that may be stored into have come, up to this end, of which the kernel is to know first: it clears what lies behind the
    /// size it knows when it writes such a page back (`iomap_writeback_handle_eof`, Linux 6.17), and writes that back, too, once it
    /// knows better. Nobody else changes the size any more before these pages have been dropped. To be asked for while the READ counts as
    /// under way: a page that the kernel is about to have, and doesn't get as long as the server isn't heard, is in the way of all drops.
    async fn known_end(&self, ask: &Ask, open: &OpenFile, end: u64) -> Option<(Attr, Heard)> {
        if !self.inodes().may_be_short(open.node, end) || planted::is(Bug::EndCleared) {
            return None;
        }
        self.size_here(ask, open).await.ok()
    }

    /// A write fails, or is short. To an asynchronous one behind the end the kernel cuts the file off where it believes it to end
    /// (`fuse_direct_IO`), though others may have appended to it.
    async fn know_cut(&self, ask: &Ask, open: &OpenFile) {
        let Ok((attr, known)) = self.size_here(ask, open).await else {
            return;
        };
        self.grow((open.node, &open.object), &attr, known).await;
    }

    /// Attributes from after the file was cut off here last, and what the kernel had heard when they were asked for.
    async fn size_here(&self, ask: &Ask, open: &OpenFile) -> Result<(Attr, Heard), Refusal> {
        let mut asked = 0;
        loop {
            let known = self.inodes().heard(open.node);
            let attr = self.attr_here(ask, &open.object).await?;
            asked += 1;
            if !self.inodes().was_cut(open.node, known) || asked == MOST_OUTDATED {
                return Ok((attr, known));
            }
        }
    }

    /// Attributes that are cached, or what the server says.
    async fn attr_here(&self, ask: &Ask, object: &Handle) -> Result<Attr, Refusal> {
        let cached = self.cache().live().and_then(|mut tier| tier.attr(object));
        if let Some(attr) = cached {
            return Ok(attr);
        }
        let told = self.call(ask, query::GetAttr { object: *object }).await?;
        told.learn(self.cache()).attr(object, &told.answer);
        Ok(told.answer)
    }

    /// Brings the READ into line. Whether pages may be stored into is looked at before and after:
    /// an open that comes in between finds the READ in line and waits for it.
    async fn begin_read(
        &self,
        ask: &Ask,
        open: &OpenFile,
        offset: u64,
        len: u32,
    ) -> Result<(PageRead, Fill), Refusal> {
        loop {
            let stores = self.inodes().may_store(&open.object);
            let (mode, fill) = match stores {
                true => (Mode::Write, Fill::PagesForStore),
                false => (Mode::Read, Fill::Pages),
            };
            let read = self.engine.page_read(open.object, offset, len, mode);
            let read = ask.unless_left(read).await?;
            if self.inodes().may_store(&open.object) == stores {
                return Ok((read, fill));
            }
        }
    }

    async fn ask_bytes(
        &self,
        ask: &Ask,
        open: &OpenFile,
        offset: u64,
        len: u32,
        fill: Fill,
    ) -> Result<Answered<()>, Refusal> {
        let request = query::Read {
            open: open.server.id(),
            offset,
            len: len.min(MAX_PAYLOAD as u32),
            fill,
        };
        let answer = self.ask_server(ask, open.caller.clone(), request).await?;
        Ok(answer.1)
    }

    /// Writes; returns how many bytes.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn write(&self, ask: &Ask, fh: Fh, writing: Writing) -> Result<u32, Refusal> {
        let open = self.file(fh)?;
        let locked = self.locked(&open, fh, &writing)?;
        if let Some(len) = self.buffer(ask, &open, &writing, locked).await? {
            return Ok(len);
        }
        if writing.writeback {
            return self.write_pages(ask, &open, &writing, locked).await;
        }
        let written = self.write_through(ask, &open, &writing, locked).await;
        if falls_short(written, &writing) {
            self.know_cut(ask, &open).await;
        }
        written
    }

    pub(super) async fn write_through(
        &self,
        ask: &Ask,
        open: &OpenFile,
        writing: &Writing,
        locked: Option<LockEpoch>,
    ) -> Result<u32, Refusal> {
        // A mapped page too comes behind what a crash of the server's host makes to be written again.
        self.settle(ask, &open.object).await?;
        let request = change::Write {
            open: open.server.id(),
            at: writing.at(),
            kill_priv: writing.kill_priv,
            durability: writing.durability(),
            kind: self.kind(writing),
        };
        let scope = ChangeScope::default().pages(open.object, writing.pages());
        let scope = scope.under(locked);
        let caller = open.caller.clone();
        let data = writing.data.clone();
        let before = self.cache().tenure(&open.object);
        let told = self.change_as(ask, caller, scope, request, data).await?;
        self.wrote(open, writing, before, &told)?;
        u32::try_from(told.answer.len).map_err(|_| Refusal::Internal)
    }

    /// Allocates, punches, zeroes, collapses or inserts; `mode` as `fallocate(2)` has it.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn fallocate(
        &self,
        ask: &Ask,
        At { fh, offset }: At,
        len: u64,
        mode: u32,
    ) -> Result<(), Refusal> {
        let open = self.file(fh)?;
        let locked = self.keeps_locks(&open.object, Some(fh), None)?;
        self.settle(ask, &open.object).await?;
        let request = change::Fallocate {
            open: open.server.id(),
            mode,
            offset,
            len,
        };
        let pages = PageChange::Drop(allocated(mode, offset, len));
        let scope = ChangeScope::default().pages(open.object, pages);
        let scope = scope.under(locked);
        // Not who has opened it: it goes by who writes whether set-id bits stay.
        let caller = self.caller(ask);
        self.change_as(ask, caller, scope, request, Bytes::new())
            .await?;
        Ok(())
    }

    /// Where data or a hole begins.
    ///
    /// # Errors
    /// The server's refusal (`ENXIO` behind the end).
    pub async fn seek(
        &self,
        ask: &Ask,
        At { fh, offset }: At,
        whence: u32,
    ) -> Result<u64, Refusal> {
        let open = self.file(fh)?;
        // The kernel writes nothing back for who asks where data is.
        if self.inodes().may_store(&open.object) {
            let dropped = self.engine.drop_pages(&open.object, Span::new(offset, 0));
            ask.unless_left(dropped).await?;
        }
        self.settle(ask, &open.object).await?;
        let request = query::Seek {
            open: open.server.id(),
            offset,
            whence,
        };
        let told = self.call_as(ask, open.caller.clone(), request).await?;
        Ok(told.answer.0)
    }

    /// Copies within the server; returns how many bytes.
    ///
    /// # Errors
    /// The server's refusal; `Unsupported`, upon which the kernel copies by itself, where a mapping may store into the target. Of a page that is
    /// copied into in part the kernel would throw away what has been stored beside it meanwhile (`__fuse_copy_file_range`).
    pub async fn copy_range(&self, ask: &Ask, from: At, to: At, len: u64) -> Result<u32, Refusal> {
        let (source, target) = (self.file(from.fh)?, self.file(to.fh)?);
        if self.inodes().may_store(&target.object) {
            return Err(Refusal::Unsupported);
        }
        self.keeps_locks(&source.object, Some(from.fh), None)?;
        let locked = self.keeps_locks(&target.object, Some(to.fh), None)?;
        self.settle(ask, &source.object).await?;
        self.settle(ask, &target.object).await?;
        // FUSE counts the answer in 32 bits; the caller goes on from there.
        let len = len.min(u64::from(u32::MAX >> 1));
        let request = change::CopyRange {
            from: source.server.id(),
            from_offset: from.offset,
            to: target.server.id(),
            to_offset: to.offset,
            len,
        };
        let pages = PageChange::Drop(Span::new(to.offset, len));
        let scope = ChangeScope::default().pages(target.object, pages);
        let scope = scope.under(locked);
        // As in [`Ops::fallocate`].
        let caller = self.caller(ask);
        let behind = [source.object];
        let told = self
            .change_behind(ask, caller, scope, &behind, request, Bytes::new())
            .await?;
        u32::try_from(told.answer.len).map_err(|_| Refusal::Internal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writing(flags: i32, writeback: bool) -> Writing {
        Writing {
            offset: 7,
            data: Bytes::new(),
            flags: flags as u32,
            writeback,
            kill_priv: false,
            owner: None,
        }
    }

    #[test]
    fn the_server_decides_where_an_append_goes() {
        assert_eq!(writing(libc::O_APPEND, false).at(), WriteAt::Append);
        assert_eq!(writing(0, false).at(), WriteAt::Offset(7));
    }

    #[test]
    fn a_page_at_the_end_of_the_largest_file_is_asked_for_up_to_there() {
        let end = i64::MAX as u64;
        assert_eq!(within_files(end - 4095, 4096), 4095);
        assert_eq!(within_files(end - 4096, 4096), 4096);
        assert_eq!(within_files(end, 4096), 0);
        assert_eq!(within_files(0, u32::MAX), u32::MAX);
    }

    #[test]
    fn bytes_that_move_are_changed_to_the_end_of_the_file() {
        let collapse = libc::FALLOC_FL_COLLAPSE_RANGE as u32;
        assert_eq!(allocated(collapse, 8, 4), Span::new(8, 0));
        let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        assert_eq!(allocated(punch, 8, 4), Span::new(8, 4));
    }

    #[test]
    fn a_mapped_page_goes_back_where_it_was_whatever_the_descriptor_says() {
        let page = writing(libc::O_APPEND | libc::O_SYNC, true);
        assert_eq!(page.at(), WriteAt::Offset(7));
        assert_eq!(page.durability(), Durability::None);
    }
}
