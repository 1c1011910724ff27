//! Listing directories.
//!
//! An open directory is a stream: a rewind (offset 0) begins it anew, and what was read since
//! stays as it was, so that offsets mean the same entry until the next rewind.

use super::expect::unexpected;
use super::listing_room::{ListingRoom, Reserved};
use super::opens::{Fh, OpenDir};
use super::{Ask, Asker, Ops, Told};
use crate::cache::{Known, ListedName, Listing, ListingLease};
use crate::nodes::NodeId;
use leasefs_protocol::{Caller, DirEntry, FileKind, Handle, OpenId, Refusal, Request, Response};

/// Offset of the first entry behind `.` and `..`.
const OWN_ENTRIES: u64 = 2;

/// The attributes of the entries on so many pages come with them unasked: most of those who list a
/// directory look at its entries next, one round trip each otherwise.
const PAGES_WITH_NODES: u32 = 16;

/// Pages that are looked at ahead of a reader; about as many entries as the kernel asks for at once.
const LOOK_AHEAD: u32 = 3;

const DIR: FileKind = FileKind::Directory;

/// An entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
    /// Where the listing goes on behind it.
    pub next: u64,
}

/// What has been read of a directory since the last rewind.
#[derive(Debug, Default)]
pub struct Stream {
    read: Read,
    /// Where the server goes on.
    cookie: u64,
    /// Pages read from the server.
    pages: u32,
    /// Whoever reads it looks at the entries, too.
    nodes: bool,
    complete: bool,
    /// To be cached when it is complete.
    lease: Option<ListingLease>,
    /// Where the server went on some pages ago: it must not come there again.
    mark: u64,
    reserved: Reserved,
}

/// The entries behind `.` and `..`.
#[derive(Debug)]
enum Read {
    Own(Vec<ListedName>),
    Cached(Listing),
}

impl Default for Read {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Stream {
    fn cached(listing: Listing) -> Self {
        Self {
            read: Read::Cached(listing),
            complete: true,
            ..Self::default()
        }
    }

    fn entries(&self) -> &[ListedName] {
        match &self.read {
            Read::Own(entries) => entries,
            Read::Cached(listing) => listing,
        }
    }

    /// Whether there is an entry at `offset`, as far as it has been read.
    fn reaches(&self, offset: u64) -> bool {
        offset.saturating_sub(OWN_ENTRIES) < self.entries().len() as u64
    }

    /// Where the server goes on at `offset`, as far as it has been read.
    fn cookie_at(&self, offset: u64) -> u64 {
        let before = offset.checked_sub(OWN_ENTRIES + 1);
        before
            .and_then(|at| self.entries().get(usize::try_from(at).ok()?))
            .map_or(0, |entry| entry.cookie)
    }

    /// Takes in a page.
    ///
    /// # Errors
    /// `ENOMEM` for a listing that is too long; `Internal` for one that goes round in circles.
    fn extend(&mut self, more: &[DirEntry], end: bool, room: &ListingRoom) -> Result<(), Refusal> {
        let more: Vec<ListedName> = more.iter().map(ListedName::from).collect();
        let cost = more.iter().map(ListedName::cost).sum();
        self.reserved.grow(room, cost)?;
        // A page without entries that isn't the last would be asked for for ever.
        self.complete = end || more.is_empty();
        self.pages = self.pages.saturating_add(1);
        if let (Read::Own(entries), Some(last)) = (&mut self.read, more.last()) {
            self.cookie = last.cookie;
            entries.extend(more);
        }
        if !self.complete && self.cookie == self.mark {
            return Err(Refusal::Internal);
        }
        // A circle of any length closes at a mark that stays for long enough (Brent).
        if self.pages.is_power_of_two() {
            self.mark = self.cookie;
        }
        Ok(())
    }

    /// Hands on the entries from `offset` until `take` says that it is full.
    fn hand_on(&self, own: u64, offset: u64, mut take: impl FnMut(Listed<'_>) -> bool) {
        let dots = [&b"."[..], b".."].into_iter().map(|name| (own, DIR, name));
        let others = self
            .entries()
            .iter()
            .map(|entry| (entry.ino, entry.kind, &*entry.name));
        let all = dots.chain(others).zip(1..);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for ((ino, kind, name), next) in all.skip(from) {
            let entry = Listed {
                ino,
                kind,
                name,
                next,
            };
            if take(entry) {
                return;
            }
        }
    }
}

impl Ops {
    /// Opens a directory that this identity has open already, or had until lately.
    pub fn opendir_cached(&self, asker: Asker, node: NodeId) -> Option<Fh> {
        let object = self.nodes.get(node)?.handle;
        let caller = asker.caller(self.identity);
        let server = self.cache().live()?.reuse_open(&object, &caller)?;
        Some(self.add_dir(node, object, server, caller))
    }

    /// Opens a directory at the server.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn opendir(&self, ask: &Ask, node: NodeId) -> Result<Fh, Refusal> {
        let object = self.node(node)?.handle;
        let caller = self.caller(ask);
        let flags = (libc::O_RDONLY | libc::O_DIRECTORY) as u32;
        let server = self.open_shared(ask, &caller, object, flags).await?;
        Ok(self.add_dir(node, object, server, caller))
    }

    fn add_dir(&self, node: NodeId, object: Handle, server: OpenId, caller: Caller) -> Fh {
        self.opens.add_dir(OpenDir {
            node,
            object,
            server,
            caller,
            told: self.uncommitted.told(&object),
            stream: tokio::sync::Mutex::default(),
        })
    }

    /// Hands entries from `offset` on to `take` until it says that it is full, if that needs no
    /// request. False if it does, with nothing handed on.
    pub fn readdir_cached(
        &self,
        fh: Fh,
        offset: u64,
        take: impl FnMut(Listed<'_>) -> bool,
    ) -> bool {
        let Some(open) = self.opens.dir(fh) else {
            return false;
        };
        let Ok(mut stream) = open.stream.try_lock() else {
            return false;
        };
        if offset == 0 {
            // Its entries' names are cached, but not what they denote.
            if self.nodes.is_searched(open.node) {
                return false;
            }
            let listing = self
                .cache()
                .live()
                .and_then(|mut tier| tier.listing(&open.object));
            match listing {
                Some(listing) => *stream = Stream::cached(listing),
                None => return false,
            }
        } else if !stream.complete && !stream.reaches(offset) || self.nodes.is_searched(open.node) {
            return false;
        }
        stream.hand_on(open.node.0, offset, take);
        true
    }

    /// Hands entries from `offset` on to `take`, until it says that it is full or they end.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn readdir(
        &self,
        ask: &Ask,
        fh: Fh,
        offset: u64,
        take: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Result<(), Refusal> {
        let open = self.opens.dir(fh).ok_or(Refusal::BadOpen)?;
        let mut stream = open.stream.lock().await;
        if offset == 0 {
            *stream = Stream::default();
        }
        if stream.complete && stream.reaches(offset) && self.nodes.take_searched(open.node) {
            self.look_ahead(ask, &open, stream.cookie_at(offset)).await;
        }
        while !stream.complete && !stream.reaches(offset) {
            self.read_page(ask, &open, &mut stream).await?;
        }
        stream.hand_on(open.node.0, offset, take);
        Ok(())
    }

    /// Caches what entries behind `cookie` denote: their names are known, but whoever reads them
    /// looks at each.
    async fn look_ahead(&self, ask: &Ask, open: &OpenDir, mut cookie: u64) {
        for _ in 0..LOOK_AHEAD {
            let request = Request::ReadDir {
                open: open.server,
                cookie,
                nodes: true,
            };
            // It only saves requests: without it each entry is looked up for itself.
            let Ok(told) = self.call_as(ask, open.caller.clone(), request).await else {
                return;
            };
            let Response::Entries { entries, end } = &told.response else {
                return;
            };
            self.learn_nodes(&told, &open.object, entries);
            match entries.last() {
                Some(last) if !end => cookie = last.cookie,
                _ => return,
            }
        }
    }

    fn learn_nodes(&self, told: &Told, dir: &Handle, entries: &[DirEntry]) {
        let mut learned = told.learn(self.cache());
        for entry in entries {
            if let Some((handle, attr)) = &entry.node {
                learned.attr(handle, attr);
                learned.name(dir, &entry.name.0, Known::Object(*handle));
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
        stream.nodes |= self.nodes.take_searched(open.node);
        let request = Request::ReadDir {
            open: open.server,
            cookie: stream.cookie,
            nodes: stream.nodes || stream.pages < PAGES_WITH_NODES,
        };
        let told = self.call_as(ask, open.caller.clone(), request).await?;
        let (entries, end) = match &told.response {
            Response::Entries { entries, end } => (entries, *end),
            other => return Err(unexpected("entries", other)),
        };
        if first {
            stream.lease = told.learn(self.cache()).listing(&open.object);
        }
        self.learn_nodes(&told, &open.object, entries);
        stream.extend(entries, end, &self.listing_room)?;
        self.keep_listing(stream);
        Ok(())
    }

    /// Caches a listing that is complete.
    fn keep_listing(&self, stream: &mut Stream) {
        let Some(lease) = stream.lease.filter(|_| stream.complete) else {
            return;
        };
        if let Read::Own(entries) = &mut stream.read {
            let listing = Listing::new(std::mem::take(entries));
            self.cache().keep_listing(lease, Listing::clone(&listing));
            stream.read = Read::Cached(listing);
        }
    }

    /// Ends an open of a directory. The server is told in the background.
    pub fn releasedir(&self, fh: Fh) {
        if let Some(open) = self.opens.remove_dir(fh) {
            self.close(&open.object, open.server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::RawName;

    fn entry(name: &str, cookie: u64) -> DirEntry {
        DirEntry {
            name: RawName(name.into()),
            ino: cookie + 100,
            kind: FileKind::File,
            cookie,
            node: None,
        }
    }

    fn extend(stream: &mut Stream, more: &[DirEntry], end: bool) {
        let room = ListingRoom::new(1 << 20);
        stream.extend(more, end, &room).expect("room");
    }

    /// Pages that a listing takes in before it fails.
    fn pages_until_refused(room: usize, cookie: impl Fn(u64) -> u64) -> (u64, Refusal) {
        let (mut stream, room) = (Stream::default(), ListingRoom::new(room));
        let page = |n| [entry("a", cookie(2 * n)), entry("b", cookie(2 * n + 1))];
        let refused = (0..).find_map(|n| Some((n, stream.extend(&page(n), false, &room).err()?)));
        refused.expect("it ends")
    }

    #[test]
    fn a_listing_that_never_ends_is_cut_off() {
        let (pages, refusal) = pages_until_refused(1 << 16, |n| n + 1);
        assert_eq!(refusal.errno(), libc::ENOMEM);
        assert!((200..1000).contains(&pages), "{pages}");
    }

    #[test]
    fn a_listing_that_goes_round_in_circles_is_refused() {
        for length in [2, 6, 500] {
            let (pages, refusal) = pages_until_refused(1 << 20, |n| n % length + 1);
            assert_eq!(refusal, Refusal::Internal);
            assert!(pages <= 4 * length, "{pages} of {length}");
        }
    }

    #[test]
    fn what_a_listing_takes_is_given_back() {
        let room = ListingRoom::new(1 << 10);
        for _ in 0..100 {
            let mut stream = Stream::default();
            let page = [entry("a", 1), entry("b", 2)];
            stream.extend(&page, false, &room).expect("room");
        }
    }

    fn names(stream: &Stream, offset: u64, room: usize) -> Vec<(String, u64)> {
        let mut taken = Vec::new();
        stream.hand_on(7, offset, |entry| {
            if taken.len() == room {
                return true;
            }
            let name = String::from_utf8_lossy(entry.name).into_owned();
            taken.push((name, entry.next));
            false
        });
        taken
    }

    #[test]
    fn a_listing_goes_on_where_the_reader_ran_out_of_room() {
        let mut stream = Stream::default();
        extend(&mut stream, &[entry("a", 1), entry("b", 2)], true);
        let first = names(&stream, 0, 3);
        assert_eq!(first.last(), Some(&("a".to_owned(), 3)));
        assert_eq!(names(&stream, 3, 9), [("b".to_owned(), 4)]);
        assert!(names(&stream, 4, 9).is_empty());
        assert_eq!([2, 3, 4].map(|offset| stream.cookie_at(offset)), [0, 1, 2]);
    }

    #[test]
    fn more_is_read_once_the_entries_at_hand_are_used_up() {
        let mut stream = Stream::default();
        assert!(!stream.reaches(0));
        extend(&mut stream, &[entry("a", 5)], false);
        assert!(stream.reaches(2) && !stream.reaches(3));
        assert_eq!((stream.cookie, stream.complete), (5, false));
    }

    #[test]
    fn a_page_without_entries_ends_the_listing() {
        let mut stream = Stream::default();
        extend(&mut stream, &[], false);
        assert!(stream.complete);
        assert_eq!(names(&stream, 0, 9).len(), 2);
    }
}
