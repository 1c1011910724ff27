//! Directories are listed before anybody asks where somebody goes through a tree: for each name looked up there it would cost a
//! round trip, for each directory two more, one after the other.

use super::dir::Listed;
use super::names::NameIn;
use super::stream::Stream;
use super::{Ask, Ops};
use crate::cache::Tier;
use crate::call::{Asker, Listing, NodeId};
use crate::run::Map;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Caller, FileKind, Handle, Refusal};
use std::sync::Arc;
use std::time::Duration;

/// Pages of a directory that are asked for.
const PAGES: u32 = 4;
/// Directories beside one that is entered: so many that follow it in its parent's listing, and so many by their names.
const BESIDE: usize = 8;
/// Where what is in such is looked into, too, so many further down from each.
const DEEPER: usize = 2;
/// Directories that are being listed at a time.
const AT_A_TIME: usize = 16;
/// Among so many entries neighbours are looked for.
const LONGEST: usize = 4096;
/// A directory that was listed isn't listed again for so long: what others change there again and again is of no use.
const AGAIN: Duration = Duration::from_secs(10);
/// So many are remembered.
const REMEMBERED: usize = 4096;

/// Who was listed lately, and how many are being listed.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    listed: Map<Handle, BootTime>,
    under_way: usize,
}

impl Ahead {
    fn begins(&mut self, now: BootTime, dir: Handle) -> bool {
        let lately = |at: &BootTime| now.since(*at) <= AGAIN;
        if self.under_way >= AT_A_TIME || self.listed.get(&dir).is_some_and(lately) {
            return false;
        }
        if self.listed.len() >= REMEMBERED {
            self.listed.retain(|_, at| lately(at));
        }
        if self.listed.len() < REMEMBERED {
            self.listed.insert(dir, now);
        }
        self.under_way += 1;
        true
    }
}

impl Ops {
    /// A name of a directory has to be asked for. Who has asked for another one, or has entered another directory beside
    /// this one, will probably want more of its names.
    pub(super) fn searches(self: &Arc<Self>, caller: &Caller, at: NameIn<'_>) {
        let now = self.cx.monotonic();
        let goes_through = self.enters(caller, at.parent);
        let explored = self.inodes().is_explored(at.parent, at.name, now);
        if explored || goes_through && self.inodes().is_left_alone(at.parent, now) {
            self.list_ahead(caller, at.dir, 0);
        }
    }

    /// A directory of which nothing is known is looked into. True if somebody goes through a tree: then the directories that
    /// follow it are listed, and if he looks into those in them, the first of these.
    pub(super) fn enters(self: &Arc<Self>, caller: &Caller, dir: NodeId) -> bool {
        let entered = self.inodes().enters(dir, self.cx.monotonic());
        let Some(entered) = entered else {
            return false;
        };
        if entered.beside {
            let levels = if entered.deeper { DEEPER } else { 0 };
            for object in self.beside(&entered.parent, &entered.name) {
                self.list_ahead(caller, object, levels);
            }
        }
        true
    }

    /// The directories that follow one in its parent, if that has been listed.
    fn beside(&self, parent: &Handle, name: &[u8]) -> Vec<Handle> {
        let Some(mut tier) = self.cache().live() else {
            return Vec::new();
        };
        let listing = tier.listing(parent).filter(|all| all.len() <= LONGEST);
        let following = listing.map_or(Vec::new(), |listing| following(&listing, name));
        denoted(&mut tier, parent, following)
    }

    /// Lists a directory, and the first in it, and in that, so many `levels` down.
    fn list_ahead(self: &Arc<Self>, caller: &Caller, dir: Handle, levels: usize) {
        let has_room = self.cache().has_room(&self.cache().state());
        // Without leases it would be of no use.
        let tier = self.cache().live();
        let is_unknown = tier.is_some_and(|mut tier| tier.listing(&dir).is_none());
        if !has_room || !is_unknown || !self.ahead.borrow_mut().begins(self.cx.monotonic(), dir) {
            return;
        }
        let (ops, caller) = (Arc::clone(self), caller.clone());
        self.cx.spawn(async move {
            // Who comes there asks himself, and is told what stands against it.
            let listed = ops.list(&caller, dir).await;
            ops.ahead.borrow_mut().under_way -= 1;
            if let (Ok(listing), Some(levels)) = (listed, levels.checked_sub(1)) {
                for object in ops.first_in(&dir, &listing) {
                    ops.list_ahead(&caller, object, levels);
                }
            }
        });
    }

    /// The directories in another one that are come to first.
    fn first_in(&self, dir: &Handle, listing: &Listing) -> Vec<Handle> {
        let first = first(listing);
        let tier = self.cache().live();
        tier.map_or(Vec::new(), |mut tier| denoted(&mut tier, dir, first))
    }

    async fn list(&self, caller: &Caller, dir: Handle) -> Result<Listing, Refusal> {
        let nobody = Ask::new(Asker::default());
        let server = self.open_directory(&nobody, caller, dir).await?;
        let of = Listed {
            dir,
            open: &server,
            caller,
        };
        let (mut stream, mut listed) = (Stream::default(), Ok(()));
        while listed.is_ok() && !stream.complete && stream.pages < PAGES {
            let told = self.page(&nobody, of, stream.cookie, true).await;
            listed = told.and_then(|told| self.take_page(&of, &mut stream, &told));
        }
        self.inodes().open_is_left(&dir, &server);
        listed.map(|()| stream.entries)
    }
}

/// What names of a directory denote, as far as it is known.
fn denoted(tier: &mut Tier<'_>, dir: &Handle, names: Vec<Box<[u8]>>) -> Vec<Handle> {
    let known = names.iter().filter_map(|name| tier.denoted(dir, name));
    known.collect()
}

fn directories(listing: &Listing) -> impl Iterator<Item = &[u8]> {
    let directories = listing.iter().filter(|e| e.kind == FileKind::Directory);
    directories.map(|entry| entry.name)
}

/// The names of the first directories, in a listing's order and by their names.
fn first(listing: &Listing) -> Vec<Box<[u8]>> {
    let first = directories(listing).next().into_iter();
    let first = first.chain(directories(listing).min());
    first.map(Into::into).collect()
}

/// The names of directories that follow one, in a listing's order and by their names.
fn following(listing: &Listing, name: &[u8]) -> Vec<Box<[u8]>> {
    let behind = directories(listing).skip_while(|other| *other != name);
    let behind = behind.skip(1).take(BESIDE);
    let mut later: Vec<&[u8]> = directories(listing).filter(|other| *other > name).collect();
    later.sort_unstable();
    later.truncate(BESIDE);
    let mut all: Vec<Box<[u8]>> = later.into_iter().map(Into::into).collect();
    all.extend(behind.map(Into::into));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::{DirEntry, RawName};

    fn listing(names: &[(&str, FileKind)]) -> Listing {
        let mut listing = Listing::default();
        for (at, (name, kind)) in names.iter().enumerate() {
            Arc::make_mut(&mut listing).push(&DirEntry {
                name: RawName((*name).into()),
                ino: at as u64,
                kind: *kind,
                cookie: at as u64 + 1,
                node: None,
            });
        }
        listing
    }

    #[test]
    fn directories_follow_in_either_order() {
        let (dir, file) = (FileKind::Directory, FileKind::File);
        let names = [("d", dir), ("b", dir), ("c", file), ("a", dir), ("e", dir)];
        let listing = listing(&names);
        let follow = |name: &[u8]| following(&listing, name).concat();
        assert_eq!(follow(b"b"), b"deae");
        assert_eq!(follow(b"e"), b"");
        assert_eq!(follow(b"x"), b"");
    }

    #[test]
    fn a_directory_is_listed_again_after_a_while_and_few_at_a_time() {
        let (mut ahead, now) = (Ahead::default(), BootTime::ZERO);
        let dir = |number: u8| Handle::new(&[number]).expect("short");
        assert!(ahead.begins(now, dir(0)) && !ahead.begins(now, dir(0)));
        let begun = (1..100).filter(|number| ahead.begins(now, dir(*number)));
        assert_eq!(begun.count(), AT_A_TIME - 1);
        ahead.under_way = 0;
        let later = now + AGAIN + AGAIN;
        assert!(!ahead.begins(now, dir(0)) && ahead.begins(later, dir(0)));
    }
}
