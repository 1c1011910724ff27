//! What has been read of an open directory.

use super::listing_room::{ListingRoom, Reserved};
use crate::cache::ListingLease;
use crate::call::{Listing, ListingFrom, NodeId};
use crate::listing::Names;
use leasefs_protocol::{DirEntry, Refusal};
use std::sync::Arc;

/// Offset of the first entry behind `.` and `..`.
const OWN_ENTRIES: u64 = 2;

/// What has been read of a directory since the last rewind.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The entries behind `.` and `..`.
    pub entries: Listing,
    /// Where the server goes on.
    pub cookie: u64,
    /// Pages read from the server.
    pub pages: u32,
    /// Where the last of them begins.
    last_page: usize,
    /// Whoever reads it looks at the entries, too.
    pub nodes: bool,
    /// The first entry that came without what it denotes.
    pub plain_from: Option<usize>,
    pub complete: bool,
    /// To be cached when it is complete.
    pub lease: Option<ListingLease>,
    /// Where the server went on some pages ago: it must not come there again.
    mark: u64,
    reserved: Reserved,
}

impl Stream {
    /// Of a listing that is cached. It may be cached no longer and be held by those alone who read it, so that it is counted as one that
    /// is read; `None` if there is no room.
    pub fn cached(listing: Listing, room: &ListingRoom) -> Option<Self> {
        let reserve = || {
            let mut reserved = Reserved::default();
            reserved.grow(room, listing.cost()).map(|()| reserved)
        };
        listing.count_by(reserve).ok()?;
        Some(Self {
            entries: listing,
            complete: true,
            ..Self::default()
        })
    }

    /// Whether there is an entry at `offset`, as far as it has been read.
    pub fn reaches(&self, offset: u64) -> bool {
        offset.saturating_sub(OWN_ENTRIES) < self.entries.len() as u64
    }

    /// Whether `offset` is in the page that came last.
    pub fn is_in_last_page(&self, offset: u64) -> bool {
        offset.saturating_sub(OWN_ENTRIES) >= self.last_page as u64
    }

    /// Where the server goes on at `offset`, as far as it has been read.
    pub fn cookie_at(&self, offset: u64) -> u64 {
        let before = offset.checked_sub(OWN_ENTRIES + 1);
        before
            .and_then(|at| self.entries.get(usize::try_from(at).ok()?))
            .map_or(0, |entry| entry.cookie)
    }

    /// Takes in a page.
    ///
    /// # Errors
    /// `ENOMEM` for a listing that is too long; `Internal` for one that goes round in circles.
    pub fn extend(
        &mut self,
        more: &[DirEntry],
        end: bool,
        room: &ListingRoom,
    ) -> Result<(), Refusal> {
        let cost = more.iter().map(Names::cost_of).sum();
        self.reserved.grow(room, cost)?;
        // A page without entries that isn't the last would be asked for for ever.
        self.complete = end || more.is_empty();
        self.pages = self.pages.saturating_add(1);
        self.last_page = self.entries.len();
        if let Some(last) = more.last() {
            self.cookie = last.cookie;
            // Copied only if an answer with them is on its way still.
            let entries = Arc::make_mut(&mut self.entries);
            more.iter().for_each(|entry| entries.push(entry));
        }
        if self.complete {
            Arc::make_mut(&mut self.entries).shrink();
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

    pub fn from(&self, own: NodeId, offset: u64) -> ListingFrom {
        ListingFrom {
            own,
            entries: Arc::clone(&self.entries),
            offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::{FileKind, RawName};

    fn entry(name: &str, cookie: u64) -> DirEntry {
        DirEntry {
            name: RawName(name.into()),
            ino: cookie + 100,
            kind: FileKind::File,
            cookie,
            node: None,
        }
    }

    pub fn extend(stream: &mut Stream, more: &[DirEntry], end: bool) {
        let room = ListingRoom::new(1 << 20);
        stream.extend(more, end, &room).expect("room");
    }

    #[test]
    fn what_streams_hold_of_listings_that_were_cached_is_counted_once_however_many_read_it() {
        let listing = || {
            let mut read = Stream::default();
            extend(&mut read, &[entry("a", 1), entry("b", 2)], true);
            read.entries
        };
        let first = listing();
        let room = ListingRoom::new(first.cost() * 3 / 2);
        let cached = |listing: &Listing| Stream::cached(Arc::clone(listing), &room);
        let many = [cached(&first), cached(&first), cached(&first)];
        assert!(many.iter().all(Option::is_some));
        drop(first);
        assert!(cached(&listing()).is_none(), "they have it still");
        drop(many);
        assert!(cached(&listing()).is_some());
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
        let (pages, refusal) = pages_until_refused(1 << 15, |n| n + 1);
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
        stream.from(NodeId(7), offset).hand_on(|entry| {
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
