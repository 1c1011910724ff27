//! Listing directories.
//!
//! An open directory is a stream: a rewind (offset 0) begins it anew, and what was read since
//! stays as it was, so that offsets mean the same entry until the next rewind.

use super::names::NameIn;
use super::opens::OpenDir;
use super::stream::Stream;
use super::{Ask, Ops, Told};
use crate::call::{Answer, Asker, EntriesFrom, Fh, Listing, NodeId};
use crate::inode::Dentry;
use crate::opens::ServerOpen;
use crate::run::Part;
use leasefs_protocol::answer::Entries;
use leasefs_protocol::{Caller, Handle, Refusal, query};
use std::sync::Arc;

/// The attributes of the entries on so many pages come with them unasked: most of those who list a
/// directory look at its entries next, one round trip each otherwise.
const PAGES_WITH_NODES: u32 = 16;

/// Pages that are looked at ahead of a reader; about as many entries as the kernel asks for at once.
const LOOK_AHEAD: u32 = 3;

/// So many entries before those that it isn't told yet what they denote, a walk asks for more: they are told meanwhile.
const NEAR: usize = 512;

/// The entry at which more is asked for of those from `at` on, if there are any.
fn near(listing: &Listing, at: usize) -> Option<Box<[u8]>> {
    listing.get(at)?;
    Some(listing.get(at.checked_sub(NEAR)?)?.name.into())
}

/// A directory that is listed by an open of it.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a> {
    pub dir: Handle,
    pub open: &'a Arc<ServerOpen>,
    /// Whose verdict allowed the open.
    pub caller: &'a Caller,
}

impl<'a> Listed<'a> {
    fn by(open: &'a OpenDir) -> Self {
        Self {
            dir: open.object,
            open: &open.server,
            caller: &open.caller,
        }
    }
}

impl Ops {
    /// Opens a directory that this identity has open already, or had until lately.
    pub fn opendir_cached(&self, asker: Asker, node: NodeId) -> Option<Fh> {
        let object = self.inodes().node(node)?.handle;
        let caller = self.caller_of(asker);
        let server = self.cache().live()?.reuse_open(&object, &caller)?;
        Some(self.add_dir(node, object, server, caller))
    }

    /// Opens a directory at the server.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn opendir(self: &Arc<Self>, ask: &Ask, node: NodeId) -> Result<Fh, Refusal> {
        let object = self.node(node)?.handle;
        let caller = self.caller(ask);
        self.enters(&caller, node);
        let server = self.open_directory(ask, &caller, object).await?;
        Ok(self.add_dir(node, object, server, caller))
    }

    pub(super) async fn open_directory(
        &self,
        ask: &Ask,
        caller: &Caller,
        object: Handle,
    ) -> Result<Arc<ServerOpen>, Refusal> {
        let flags = (libc::O_RDONLY | libc::O_DIRECTORY) as u32;
        self.open_shared(ask, caller, object, flags).await
    }

    fn add_dir(&self, node: NodeId, object: Handle, server: Arc<ServerOpen>, caller: Caller) -> Fh {
        let told = self.inodes().losses_told(&object);
        self.opens.add_dir(OpenDir {
            node,
            object,
            server,
            caller,
            told,
            stream: Part::default(),
            turn: futures_util::lock::Mutex::default(),
        })
    }

    /// Entries from `offset` on, if that needs no request.
    pub fn readdir_cached(
        self: &Arc<Self>,
        asker: Asker,
        fh: Fh,
        offset: u64,
        plus: Option<u32>,
    ) -> Option<Answer> {
        self.inodes().listing_is_taken_up(fh);
        let open = self.opens.dir(fh)?;
        if self.inodes().is_searched(open.node) {
            // Its entries' names may be cached, but not what they denote.
            return None;
        }
        if offset == 0 {
            let listing = self.cache().live()?.listing(&open.object)?;
            let stream = Stream::cached(listing, &self.listing_room)?;
            *open.stream.borrow_mut() = stream;
        }
        self.at_hand(asker, (fh, &open), offset, plus)
    }

    /// Entries from `offset` on, as many as are at hand.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn readdir(
        self: &Arc<Self>,
        ask: &Ask,
        fh: Fh,
        offset: u64,
        plus: Option<u32>,
    ) -> Result<Answer, Refusal> {
        let open = self.opens.dir(fh).ok_or(Refusal::BadOpen)?;
        if offset == 0 {
            *open.stream.borrow_mut() = Stream::default();
        }
        let searched = {
            let stream = open.stream.borrow();
            let complete = stream.complete && stream.reaches(offset);
            complete.then(|| stream.cookie_at(offset))
        };
        if let Some(cookie) = searched.filter(|_| self.inodes().take_searched(open.node)) {
            self.look_ahead(ask, Listed::by(&open), cookie).await;
        }
        loop {
            if let Some(answer) = self.at_hand(ask.asker, (fh, &open), offset, plus) {
                return Ok(answer);
            }
            self.read_page(ask, &open).await?;
        }
    }

    /// Entries from `offset` on, if those have been read.
    fn at_hand(
        self: &Arc<Self>,
        asker: Asker,
        (fh, open): (Fh, &Arc<OpenDir>),
        offset: u64,
        plus: Option<u32>,
    ) -> Option<Answer> {
        let listing = {
            let stream = open.stream.borrow();
            (stream.complete || stream.reaches(offset)).then(|| stream.from(open.node, offset))?
        };
        let (answer, next) = match plus {
            Some(room) => {
                // Behind the first the kernel wants them since those before were looked at.
                let on = offset > 0;
                let files = on || self.walkers.borrow_mut().lists(asker.pid, open.node);
                let entries = self.entries((fh, open), listing, room, files);
                let next = offset.saturating_add(entries.len() as u64);
                if on {
                    self.walk_along(asker, open.node, &entries);
                }
                (Answer::Entries(entries), next)
            }
            None => (Answer::Listing(listing), offset),
        };
        self.read_ahead(open, next);
        Some(answer)
    }

    /// Asks for the next page while the entries before it are looked at.
    fn read_ahead(self: &Arc<Self>, open: &Arc<OpenDir>, from: u64) {
        let is_near = {
            let stream = open.stream.borrow();
            !stream.complete && stream.is_in_last_page(from)
        };
        if !is_near || open.turn.try_lock().is_none() {
            return;
        }
        let (ops, open) = (Arc::clone(self), Arc::clone(open));
        self.cx.spawn(async move {
            let nobody = Ask::new(Asker::default());
            // Who comes there asks again, and is told why it can't be had.
            let _ = ops.read_page(&nobody, &open).await;
        });
    }

    /// Caches what some entries denote: their names are known, but whoever reads them looks at each.
    /// Returns how many it was told of.
    async fn look_ahead(&self, ask: &Ask, of: Listed<'_>, mut cookie: u64) -> usize {
        let mut entries = 0;
        for _ in 0..LOOK_AHEAD {
            // It only saves requests: without it each entry is looked up for itself.
            let Ok(told) = self.page(ask, of, cookie, true).await else {
                break;
            };
            entries += told.answer.entries.len();
            match told.answer.entries.last() {
                Some(last) if !told.answer.end => cookie = last.cookie,
                _ => break,
            }
        }
        entries
    }

    /// Who has listed a directory, and then looks at its entries in their order, is told of pages of them at a
    /// time. To be called when `at` is looked up at the server, which doesn't wait for it: a page may have to wait
    /// for others' write-back.
    pub(super) fn walk(self: &Arc<Self>, caller: &Caller, at: NameIn<'_>) {
        let Some(turn) = self.inodes().walk(at.parent) else {
            return;
        };
        let tier = self.cache().live();
        let next = tier.and_then(|mut tier| tier.place(&at.dir, turn, at.name));
        let here = match next {
            Some(here) => Some(here),
            None => turn
                .checked_sub(1)
                .filter(|_| self.inodes().strays(at.parent)),
        };
        if let Some(here) = here {
            self.walk_ahead(caller.clone(), at.parent, at.dir, here);
        }
    }

    /// As [`Ops::walk`], when an entry is looked up here: once some way before those of which more than the name isn't
    /// known.
    pub(super) fn walk_here(self: &Arc<Self>, asker: Asker, parent: NodeId, name: &[u8]) {
        let turn = self.inodes().looks_at(parent, name);
        self.walk_from(asker, parent, turn);
    }

    /// As [`Ops::walk_here`], of entries that come along with their listing.
    fn walk_along(self: &Arc<Self>, asker: Asker, parent: NodeId, entries: &EntriesFrom) {
        let mut turn = None;
        entries.hand_on(|entry, _| {
            turn = turn.or_else(|| self.inodes().looks_at(parent, entry.name));
        });
        self.walk_from(asker, parent, turn);
    }

    /// `turn`: whose turn it is soon in a walk that comes by.
    fn walk_from(self: &Arc<Self>, asker: Asker, parent: NodeId, turn: Option<usize>) {
        let Some(here) = turn.and_then(|turn| turn.checked_sub(1)) else {
            return;
        };
        let dir = self.inodes().node(parent).map(|node| node.handle);
        if let Some(dir) = dir {
            self.walk_ahead(self.caller_of(asker), parent, dir, here);
        }
    }

    /// Asks for what is behind this entry, unless that is being done.
    fn walk_ahead(self: &Arc<Self>, caller: Caller, parent: NodeId, dir: Handle, here: usize) {
        let tier = self.cache().live();
        let found = tier.and_then(|mut tier| tier.cookie_of(&dir, here, &caller));
        let Some((cookie, open)) = found else {
            return;
        };
        let Some(number) = self.inodes().walks_on(parent, here) else {
            return;
        };
        let ops = Arc::clone(self);
        self.cx.spawn(async move {
            let (nobody, caller) = (Ask::new(Asker::default()), &caller);
            let of = Listed {
                dir,
                open: &open,
                caller,
            };
            let to = here + 1 + ops.look_ahead(&nobody, of, cookie).await;
            let listing = ops.cache().live().and_then(|mut t| t.listing(&dir));
            let near = listing.and_then(|listing| near(&listing, to));
            ops.inodes().walked(parent, number, (to, near));
        });
    }

    fn learn_nodes(&self, told: &Told<Entries>, dir: &Handle) {
        let mut learned = told.learn(self.cache());
        for entry in &told.answer.entries {
            if let Some((handle, attr)) = &entry.node {
                learned.attr(handle, attr);
                learned.name(dir, &entry.name.0, Dentry::Object(*handle));
            }
        }
    }

    /// Reads the next page of a directory, unless somebody has or it has been rewound meanwhile.
    async fn read_page(&self, ask: &Ask, open: &OpenDir) -> Result<(), Refusal> {
        let (pages, of) = (open.stream.borrow().pages, Listed::by(open));
        let turn = async { Ok(open.turn.lock().await) };
        let _turn = ask.unless_left(turn).await?;
        if open.stream.borrow().pages != pages {
            return Ok(());
        }
        let (cookie, nodes) = {
            let mut stream = open.stream.borrow_mut();
            let looked_at = self.inodes().take_looked_at(open.node) && pages > 0;
            stream.nodes |= self.inodes().take_searched(open.node) || looked_at;
            (stream.cookie, stream.nodes || pages < PAGES_WITH_NODES)
        };
        let told = self.page(ask, of, cookie, nodes).await?;
        let mut stream = open.stream.borrow_mut();
        if (stream.pages, stream.cookie) != (pages, cookie) {
            return Ok(());
        }
        if !nodes {
            let at = stream.entries.len();
            stream.plain_from.get_or_insert(at);
        }
        self.take_page(&of, &mut stream, &told)?;
        if stream.complete {
            let number = self.cx.number();
            let from = stream.plain_from;
            let from = from.map(|at| (at, near(&stream.entries, at)));
            self.inodes().walks_from(open.node, from, number);
        }
        Ok(())
    }

    /// Takes in the next page of a listing.
    pub(super) fn take_page(
        &self,
        of: &Listed<'_>,
        stream: &mut Stream,
        told: &Told<Entries>,
    ) -> Result<(), Refusal> {
        if stream.pages == 0 {
            stream.lease = told.learn(self.cache()).listing(&of.dir);
        }
        stream.extend(&told.answer.entries, told.answer.end, &self.listing_room)?;
        self.keep_listing(stream);
        Ok(())
    }

    /// A page of a listing; with what its entries denote, which is cached, if `nodes`.
    pub(super) async fn page(
        &self,
        ask: &Ask,
        of: Listed<'_>,
        cookie: u64,
        nodes: bool,
    ) -> Result<Told<Entries>, Refusal> {
        let request = query::ReadDir {
            open: of.open.id(),
            cookie,
            nodes,
        };
        let told = self.call_as(ask, of.caller.clone(), request).await?;
        self.learn_nodes(&told, &of.dir);
        Ok(told)
    }

    /// Caches a listing that is complete.
    fn keep_listing(&self, stream: &mut Stream) {
        let Some(lease) = stream.lease.filter(|_| stream.complete) else {
            return;
        };
        self.cache()
            .keep_listing(lease, Listing::clone(&stream.entries));
        stream.lease = None;
    }

    /// Ends an open of a directory. The server is told in the background.
    pub fn releasedir(&self, fh: Fh) {
        self.inodes().listing_is_taken_up(fh);
        if let Some(open) = self.opens.remove_dir(fh) {
            self.inodes().open_is_left(&open.object, &open.server);
        }
    }
}
