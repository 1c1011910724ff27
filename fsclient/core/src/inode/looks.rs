//! What goes on in a directory that the kernel knows: who looks its names up, who goes through its listing, who changes it.

use super::Inodes;
use super::newest::Newest;
use super::standing::KeptName;
use crate::call::NodeId;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{FileKind, Handle};
use std::time::Duration;

/// How long the names of a directory are left alone after one was changed here.
const CALM: Duration = Duration::from_secs(2);

/// Who has looked into a directory, and into another one beside it within this time, goes through a tree.
const GOES_ON: Duration = Duration::from_secs(10);

/// So many entries may be looked up in any order before more is asked for than they are.
const MOST_STRAY: usize = 8;
/// For each entry that is looked up so many may be asked for ahead.
const WORTH: usize = 8;

/// What goes on in a directory.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The name that was looked up in it last since [`Inodes::take_searched`].
    searched: Option<Box<[u8]>>,
    /// A name was looked up here in it since [`Inodes::take_looked_at`].
    looked_at: bool,
    /// If its listing came without what all of its entries denote.
    walk: Option<Walk>,
    /// The directory in it that was looked into last, and when.
    entered: Option<(KeptName, BootTime)>,
    /// That in which another was, and when.
    deeper: Option<(NodeId, BootTime)>,
    /// When another mount last changed what is in it.
    recalled: Option<BootTime>,
    /// The name that another mount has changed last, as long as nobody has looked for any since.
    changed: Option<Changed>,
    /// The name that another had changed was the next to be looked for.
    follows: bool,
    /// When a name of it was last changed here.
    stirred: Option<BootTime>,
    /// The file that was made in it last here.
    pub(super) newest: Newest,
}

/// A directory of which nothing is known is looked into by who goes through a tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    /// The one that it is in.
    pub parent: Handle,
    pub name: Box<[u8]>,
    /// Another one there was looked into before.
    pub beside: bool,
    /// What is in those there is looked into, too.
    pub deeper: bool,
}

/// Another mount has changed a name.
#[derive(Debug)]
struct Changed {
    name: Box<[u8]>,
    /// It had been looked for here, and wasn't there.
    missed: bool,
    /// It has been looked up ahead.
    asked: bool,
}

/// Somebody may go through a directory's listing.
#[derive(Debug)]
struct Walk {
    /// Another for each listing.
    number: u64,
    /// Whose turn it is then.
    at: usize,
    /// An entry some way before that: who looks at it will come there.
    near: Option<Box<[u8]>>,
    /// What those behind denote is being asked for.
    asks: bool,
    /// Names that were looked up, and entries that it was asked for ahead.
    looked: usize,
    ahead: usize,
}

impl Looks {
    /// A name is looked for; `told`: and its answer is cached. Else it is asked for again, as long as the change waits.
    fn is_looked_for(&mut self, name: &[u8], told: bool) {
        let Some(changed) = &mut self.changed else {
            return;
        };
        self.follows = *changed.name == *name;
        changed.asked = false;
        self.changed.take_if(|_| told || !self.follows);
    }
}

impl Inodes {
    /// A name that exists had to be looked up at the server.
    pub fn search(&mut self, id: NodeId, name: &[u8]) {
        if let Some(looks) = self.looks_mut(id) {
            looks.searched = Some(name.into());
        }
    }

    /// Whether another name than this one was, and nobody changes names there.
    pub fn is_explored(&self, id: NodeId, name: &[u8], now: BootTime) -> bool {
        let looks = self.looks(id);
        let another = |looks: &Looks| looks.searched.as_deref().is_some_and(|last| last != name);
        looks.is_some_and(another) && self.is_left_alone(id, now)
    }

    /// Whether no name of a directory was changed lately, here or elsewhere.
    pub fn is_left_alone(&self, id: NodeId, now: BootTime) -> bool {
        let recalled = self.looks(id).and_then(|looks| looks.recalled);
        recalled.is_none_or(|at| now.since(at) > GOES_ON) && self.is_calm(id, now)
    }

    /// What [`Inodes::is_next`] has told of is cached already.
    pub fn next_is_known(&mut self, id: NodeId) {
        let looks = self.refs_mut(id).and_then(|refs| refs.looks.as_mut());
        if let Some(looks) = looks {
            looks.changed = None;
        }
    }

    /// Another mount changes what is in a directory, and this name if it may be known here.
    pub fn entries_are_recalled(&mut self, dir: &Handle, name: Option<&[u8]>, now: BootTime) {
        let Some(inode) = self.get_mut(dir) else {
            return;
        };
        let cached = inode.cached.as_deref();
        let missed = name.is_some_and(|name| cached.is_some_and(|c| c.is_missed(name)));
        let refs = inode.kernel.as_deref_mut();
        if let Some(refs) = refs.filter(|refs| refs.kind == FileKind::Directory) {
            let looks = refs.looks.get_or_insert_default();
            looks.recalled = Some(now);
            let before = looks.changed.take();
            looks.follows &= before.is_none_or(|changed| !changed.asked);
            looks.changed = name.map(|name| Changed {
                name: name.into(),
                missed,
                asked: false,
            });
        }
    }

    /// A name has to be looked up at the server.
    pub fn is_looked_for(&mut self, id: NodeId, name: &[u8]) {
        let looks = self.refs_mut(id).and_then(|refs| refs.looks.as_mut());
        if let Some(looks) = looks {
            looks.is_looked_for(name, false);
        }
    }

    /// Somebody is about to look for a name: which one it probably is, since another mount has changed it, and it was looked for in
    /// vain before, or the last one of these was looked for at once.
    pub fn is_next(&mut self, id: NodeId) -> Option<Box<[u8]>> {
        let looks = self.refs_mut(id)?.looks.as_mut()?;
        let follows = looks.follows;
        let changed = looks.changed.as_mut().filter(|c| follows || c.missed)?;
        let asked = std::mem::replace(&mut changed.asked, true);
        (!asked).then(|| changed.name.clone())
    }

    /// Whether names of a directory were looked up at the server whose listing didn't bring what they denote.
    pub fn is_searched(&self, id: NodeId) -> bool {
        let searched = |looks: &Looks| looks.searched.is_some();
        self.looks(id).is_some_and(searched) && !self.came_whole(id)
    }

    /// Whether the listing of a directory is here, and came with what its entries denote.
    fn came_whole(&self, id: NodeId) -> bool {
        let inode = self.nodes.get(&id).and_then(|dir| self.get(dir));
        let listing = inode.and_then(|inode| inode.cached.as_deref()?.listing());
        listing.is_some() && self.walk(id).is_none()
    }

    /// Whether names of a directory were looked up at the server since this was asked last:
    /// whoever lists it wants to know more of its entries than their names.
    pub fn take_searched(&mut self, id: NodeId) -> bool {
        let looks = self.refs_mut(id).and_then(|refs| refs.looks.as_mut());
        looks.is_some_and(|looks| looks.searched.take().is_some())
    }

    /// A directory is looked into of which nothing is known; by who goes through a tree if another one there was lately, or
    /// one that is in another directory there where its own is.
    pub fn enters(&mut self, id: NodeId, now: BootTime) -> Option<Entered> {
        let place = self.known(id)?.stands.last()?.clone();
        let lately = |at: BootTime| now.since(at) <= GOES_ON;
        let looks = self.looks_mut(place.parent)?;
        let before = looks.entered.replace((place.name.clone(), now));
        let beside = before.is_some_and(|(name, at)| name != place.name && lately(at));
        let deeper = looks.deeper.is_some_and(|(_, at)| lately(at));
        let within = self.goes_deeper(place.parent, now);
        let inside = within.is_some_and(|(dir, at)| dir != place.parent && lately(at));
        let parent = **self.nodes.get(&place.parent)?;
        (beside || inside).then(|| Entered {
            parent,
            name: place.name.into_boxed_slice(),
            beside,
            deeper,
        })
    }

    /// Something in this directory is looked into: in which one beside it something was before.
    fn goes_deeper(&mut self, id: NodeId, now: BootTime) -> Option<(NodeId, BootTime)> {
        let above = self.known(id)?.stands.last()?.parent;
        self.looks_mut(above)?.deeper.replace((id, now))
    }

    /// A directory has been listed; `at`: the first entry of which it isn't known what it denotes, and one before it.
    /// `number`: of no walk before.
    pub fn walks_from(&mut self, id: NodeId, at: Option<(usize, Option<Box<[u8]>>)>, number: u64) {
        if let Some(looks) = self.looks_mut(id) {
            looks.walk = at.map(|(at, near)| Walk {
                number,
                at,
                near,
                asks: false,
                looked: 0,
                ahead: 0,
            });
        }
    }

    /// Whether names of a directory were looked up here since this was asked last: whoever lists it looks at its entries.
    pub fn take_looked_at(&mut self, id: NodeId) -> bool {
        let looks = self.looks_mut(id);
        looks.is_some_and(|looks| std::mem::take(&mut looks.looked_at))
    }

    /// A name is looked up here. Whose turn it is soon if a walk comes by it now, once.
    pub fn looks_at(&mut self, id: NodeId, name: &[u8]) -> Option<usize> {
        let looks = self.refs_mut(id)?.looks.as_mut()?;
        looks.looked_at = true;
        looks.is_looked_for(name, true);
        let walk = looks.walk.as_mut()?;
        walk.looked += 1;
        walk.near.take_if(|near| **near == *name)?;
        Some(walk.at)
    }

    /// Whose turn it is if whoever looks at a directory's entries goes on in their order.
    pub fn walk(&self, id: NodeId) -> Option<usize> {
        self.looks(id)?.walk.as_ref().map(|walk| walk.at)
    }

    /// An entry is looked up that isn't next. Whether so many are that all will be, in another order (by inode numbers,
    /// as `find` has it).
    pub fn strays(&mut self, id: NodeId) -> bool {
        let walk = self.looks_mut(id).and_then(|looks| looks.walk.as_mut());
        walk.is_some_and(|walk| {
            walk.looked += 1;
            walk.looked >= MOST_STRAY && walk.ahead <= walk.looked * WORTH
        })
    }

    /// The walk has come to an entry, which is asked for. Its number, if those behind are to be asked for, too.
    pub fn walks_on(&mut self, id: NodeId, here: usize) -> Option<u64> {
        let walk = self.looks_mut(id)?.walk.as_mut()?;
        walk.at = here + 1;
        (!std::mem::replace(&mut walk.asks, true)).then_some(walk.number)
    }

    /// What those entries denote has been told up to this one; `near` as in [`Inodes::walks_from`].
    pub fn walked(&mut self, id: NodeId, number: u64, (to, near): (usize, Option<Box<[u8]>>)) {
        let walk = self.looks_mut(id).and_then(|looks| looks.walk.as_mut());
        if let Some(walk) = walk.filter(|walk| walk.number == number) {
            walk.asks = false;
            walk.ahead += to.saturating_sub(walk.at);
            if walk.at <= to {
                (walk.at, walk.near) = (to, near);
            }
        }
    }

    /// A name of a directory is being changed here.
    pub fn stir(&mut self, id: NodeId, now: BootTime) {
        if let Some(looks) = self.looks_mut(id) {
            looks.stirred = Some(now);
            looks.newest.others_follow();
        }
    }

    /// Whether no name of a directory was changed here lately. Where names come and go the kernel
    /// had better not know them: it can only be made to forget all at once.
    pub fn is_calm(&self, id: NodeId, now: BootTime) -> bool {
        let calm = |at: BootTime| now.since(at) > CALM;
        let stirred = self.looks(id).and_then(|looks| looks.stirred);
        self.refs(id).is_some() && stirred.is_none_or(calm)
    }

    fn looks(&self, id: NodeId) -> Option<&Looks> {
        self.refs(id)?.looks.as_deref()
    }

    pub(super) fn looks_mut(&mut self, id: NodeId) -> Option<&mut Looks> {
        Some(self.refs_mut(id)?.looks.get_or_insert_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Dentry;
    use crate::memory::Memory;

    /// The root alone.
    fn inodes() -> Inodes {
        let root = Handle::new(&[0]).expect("one byte");
        Inodes::new(root, Memory::default())
    }

    #[test]
    fn a_directory_is_searched_until_that_was_asked() {
        let mut inodes = inodes();
        let id = NodeId::ROOT;
        assert!(!inodes.take_searched(id));
        inodes.search(id, b"a");
        assert!(inodes.is_searched(id) && inodes.take_searched(id));
        assert!(!inodes.take_searched(id));
    }

    #[test]
    fn a_walk_asks_once_at_a_time_and_never_goes_back() {
        let (mut inodes, root) = (inodes(), NodeId::ROOT);
        inodes.walks_from(root, Some((5, None)), 1);
        assert_eq!(inodes.walks_on(root, 5), Some(1));
        assert_eq!(inodes.walks_on(root, 40), None);
        inodes.walked(root, 1, (20, None));
        assert_eq!(inodes.walk(root), Some(41));
        assert_eq!(inodes.walks_on(root, 41), Some(1));
        inodes.walks_from(root, Some((7, None)), 2);
        inodes.walked(root, 1, (90, None));
        assert_eq!(inodes.walk(root), Some(7), "of another listing");
        inodes.walks_from(root, None, 3);
        assert_eq!(inodes.walks_on(root, 8), None);
    }

    #[test]
    fn who_looks_at_entries_in_any_order_is_told_of_more_in_proportion() {
        let (mut inodes, root) = (inodes(), NodeId::ROOT);
        inodes.walks_from(root, Some((5, None)), 1);
        let asks = (1..).find(|_| inodes.strays(root));
        assert_eq!(asks, Some(MOST_STRAY));
        inodes.walks_on(root, 4);
        inodes.walked(root, 1, (5 + 80 * WORTH, None));
        let further = (1..).find(|_| inodes.strays(root));
        assert_eq!(further, Some(80 - MOST_STRAY));
    }

    #[test]
    fn a_walk_is_near_once_each_time_it_was_told_how_far_it_can_go() {
        let (mut inodes, root) = (inodes(), NodeId::ROOT);
        inodes.walks_from(root, Some((5, Some(b"c".as_slice().into()))), 1);
        assert_eq!(inodes.looks_at(root, b"b"), None);
        assert_eq!(inodes.looks_at(root, b"c"), Some(5));
        assert_eq!(inodes.looks_at(root, b"c"), None);
        inodes.walked(root, 1, (9, Some(b"g".as_slice().into())));
        assert_eq!(inodes.looks_at(root, b"g"), Some(9));
    }

    #[test]
    fn what_others_change_is_next_where_it_was_looked_for_before() {
        let (mut inodes, id, dir) = (inodes(), NodeId::ROOT, Handle::new(&[0]).expect("short"));
        let changed = |inodes: &mut Inodes, name: &[u8]| {
            inodes.entries_are_recalled(&dir, Some(name), BootTime::ZERO);
        };
        changed(&mut inodes, b"a");
        assert_eq!(inodes.is_next(id), None, "nobody has looked for any");
        inodes.is_looked_for(id, b"a");
        changed(&mut inodes, b"b");
        inodes.is_looked_for(id, b"x");
        changed(&mut inodes, b"c");
        assert_eq!(inodes.is_next(id), None, "it was another");
        inodes.is_looked_for(id, b"c");
        assert!(inodes.is_next(id).is_some(), "it wasn't to be cached");
        inodes.looks_at(id, b"c");
        assert_eq!(inodes.is_next(id), None, "none has changed since");
        changed(&mut inodes, b"d");
        assert_eq!(inodes.is_next(id).as_deref(), Some(&b"d"[..]));
        assert_eq!(inodes.is_next(id), None, "it is asked for");
        inodes.looks_at(id, b"d");
        changed(&mut inodes, b"e");
        assert!(inodes.is_next(id).is_some());
        changed(&mut inodes, b"f");
        assert_eq!(inodes.is_next(id), None, "in vain");
    }

    #[test]
    fn what_was_looked_for_in_vain_is_next_once_another_mount_changes_it() {
        let (mut inodes, id, dir) = (inodes(), NodeId::ROOT, Handle::new(&[0]).expect("short"));
        inodes.put_name(dir, b"a", Dentry::Absent);
        for (name, next) in [(b"b", false), (b"a", true)] {
            inodes.entries_are_recalled(&dir, Some(name), BootTime::ZERO);
            assert_eq!(inodes.is_next(id).is_some(), next);
        }
    }

    #[test]
    fn a_directory_is_calm_again_a_while_after_its_last_change() {
        let mut inodes = inodes();
        let now = BootTime::ZERO;
        let id = NodeId::ROOT;
        assert!(inodes.is_calm(id, now));
        inodes.stir(id, now);
        assert!(!inodes.is_calm(id, now + CALM));
        assert!(inodes.is_calm(id, now + CALM + CALM));
    }
}
