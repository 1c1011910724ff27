//! Listing directories.
//!
//! An open directory is a stream: a rewind (offset 0) begins it anew, and what was read since
//! stays as it was, so that offsets mean the same entry until the next rewind.

use super::names::NameIn;
use super::opens::OpenDir;
use super::stream::Stream;
use super::{Ask, Ops, Told};
use crate::call::{Asker, Fh, Listing, ListingFrom, NodeId};
use crate::inode::Dentry;
use crate::opens::ServerOpen;
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
            stream: futures_util::lock::Mutex::default(),
        })
    }

    /// Entries from `offset` on, if that needs no request.
    pub fn readdir_cached(&self, fh: Fh, offset: u64) -> Option<ListingFrom> {
        let open = self.opens.dir(fh)?;
        let mut stream = open.stream.try_lock()?;
        if self.inodes().is_searched(open.node) {
            // Its entries' names may be cached, but not what they denote.
            return None;
        }
        if offset == 0 {
            *stream = Stream::cached(self.cache().live()?.listing(&open.object)?);
        } else if !stream.complete && !stream.reaches(offset) {
            return None;
        }
        Some(stream.from(open.node, offset))
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
    ) -> Result<ListingFrom, Refusal> {
        let open = self.opens.dir(fh).ok_or(Refusal::BadOpen)?;
        let mut stream = open.stream.lock().await;
        if offset == 0 {
            *stream = Stream::default();
        }
        if stream.complete && stream.reaches(offset) && self.inodes().take_searched(open.node) {
            let of = Listed::by(&open);
            self.look_ahead(ask, of, stream.cookie_at(offset)).await;
        }
        while !stream.complete && !stream.reaches(offset) {
            self.read_page(ask, &open, &mut stream).await?;
        }
        if !stream.complete && stream.is_in_last_page(offset) {
            self.read_ahead(&open);
        }
        Ok(stream.from(open.node, offset))
    }

    /// Asks for the next page while the entries before it are looked at.
    fn read_ahead(self: &Arc<Self>, open: &Arc<OpenDir>) {
        let (ops, open) = (Arc::clone(self), Arc::clone(open));
        self.cx.spawn(async move {
            let mut stream = open.stream.lock().await;
            if !stream.complete {
                let nobody = Ask::new(Asker::default());
                // Who comes there asks again, and is told why it can't be had.
                let _ = ops.read_page(&nobody, &open, &mut stream).await;
            }
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

    async fn read_page(
        &self,
        ask: &Ask,
        open: &OpenDir,
        stream: &mut Stream,
    ) -> Result<(), Refusal> {
        let first = stream.pages == 0;
        let looked_at = self.inodes().take_looked_at(open.node) && !first;
        stream.nodes |= self.inodes().take_searched(open.node) || looked_at;
        let nodes = stream.nodes || stream.pages < PAGES_WITH_NODES;
        if !nodes {
            stream.plain_from.get_or_insert(stream.entries.len());
        }
        let of = Listed::by(open);
        self.take_page(ask, of, stream, nodes).await?;
        if stream.complete {
            let number = self.cx.number();
            let from = stream.plain_from;
            let from = from.map(|at| (at, near(&stream.entries, at)));
            self.inodes().walks_from(open.node, from, number);
        }
        Ok(())
    }

    /// Reads the next page of a listing; with what its entries denote, if `nodes`.
    pub(super) async fn take_page(
        &self,
        ask: &Ask,
        of: Listed<'_>,
        stream: &mut Stream,
        nodes: bool,
    ) -> Result<(), Refusal> {
        let told = self.page(ask, of, stream.cookie, nodes).await?;
        if stream.pages == 0 {
            stream.lease = told.learn(self.cache()).listing(&of.dir);
        }
        stream.extend(&told.answer.entries, told.answer.end, &self.listing_room)?;
        self.keep_listing(stream);
        Ok(())
    }

    /// A page of a listing; what its entries denote is cached, if it came with them.
    async fn page(
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
        if let Some(open) = self.opens.remove_dir(fh) {
            self.inodes().open_is_left(&open.object, &open.server);
        }
    }
}
