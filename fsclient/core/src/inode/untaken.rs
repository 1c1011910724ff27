//! Which names the kernel may know of those that it was told, and answers to READDIRPLUS that it may not have taken up.
//!
//! The kernel is made to look all names up again by a new epoch (`FUSE_NOTIFY_INC_EPOCH`). A name that a LOOKUP has brought is of the
//! epoch in which that was asked for. Of an entry in an answer to READDIRPLUS the kernel samples the epoch when it takes that up, and whoever
//! reads the directory may put that off for as long as he likes: by memory that isn't there when the name is copied to it. So what was told of a
//! directory along with such an answer counts as known until a new epoch has begun after the answer was taken up. Who has to take back names that
//! are in one *owes* them: they are no longer in the tables, and whatever takes back names of that directory waits for the same.
//!
//! The kernel reads a directory by one open of it once at a time, so the next request by that, or its end, shows that the last answer was taken
//! up. Before that its last node does, once the kernel knows it by this answer: entries are taken up in their order. And as long as a
//! directory is read it is locked, so that none of its names is changed, nor dropped.

use super::Inodes;
use crate::call::{Fh, NodeId};
use crate::run::{Map, Set};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::Handle;

/// How often the kernel had been made to forget names.
type Count = u64;

/// One time that the kernel is made to forget all names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgetting(Count);

/// When names were told to the kernel, and what it was told along with listings.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// How often it was told to forget all names, and which of these times it had done so last.
    begun: Count,
    done: Count,
    /// The last answers to READDIRPLUS that it may not have taken up.
    untaken: Map<Fh, ToldListing>,
    /// Directories of which it has taken up such an answer after it may have forgotten names.
    late: Map<Handle, Late>,
    /// Those whose owed names somebody takes back.
    watched: Set<Handle>,
}

/// An answer to READDIRPLUS.
#[derive(Clone, Copy, Debug)]
struct ToldListing {
    dir: NodeId,
    object: Handle,
    /// What was told last in it.
    node: NodeId,
    told: Count,
    owed: bool,
}

/// Names that were taken up at last.
#[derive(Clone, Copy, Debug)]
struct Late {
    told: Count,
    /// They are known no more once the kernel has forgotten names another time than those.
    taken_up: Count,
    owed: bool,
}

/// What shows that an answer was taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// That the kernel knows this node.
    Known(NodeId),
    /// That this directory isn't locked: the kernel may know its last node otherwise.
    Unlocked(NodeId),
}

/// What stands between a directory's names that are owed and their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// An answer that is to be taken up.
    Untaken(Fh, Shows),
    /// The kernel has to forget names once more.
    ToForget,
}

impl Epochs {
    /// With this count a name is told now; never 0.
    fn telling(&self) -> Count {
        self.begun + 1
    }

    /// The kernel may know a name of a directory that it was told with a higher count than this.
    pub fn forgotten(&self, dir: &Handle) -> Count {
        let untaken = self.untaken_of(dir).map(|listing| listing.told);
        let late = self.late.get(dir).map(|late| late.told);
        untaken.chain(late).fold(self.done, Count::min)
    }

    fn untaken_of(&self, dir: &Handle) -> impl Iterator<Item = &ToldListing> {
        let untaken = self.untaken.values();
        untaken.filter(move |listing| listing.object == *dir)
    }

    fn taken_up(&mut self, listing: Fh) {
        let Some(listing) = self.untaken.remove(&listing) else {
            return;
        };
        if self.begun == listing.told && !listing.owed {
            // Known as any name is that was told then.
            return;
        }
        let late = self.late.entry(listing.object).or_insert(Late {
            told: listing.told,
            taken_up: self.begun,
            owed: false,
        });
        late.told = late.told.min(listing.told);
        late.taken_up = self.begun;
        late.owed |= listing.owed;
    }

    fn forgets(&mut self) -> Forgetting {
        self.begun += 1;
        Forgetting(self.begun)
    }

    fn has_forgotten(&mut self, Forgetting(count): Forgetting) {
        self.done = self.done.max(count);
        self.late.retain(|_, late| late.taken_up >= count);
    }

    /// Names of a directory that the kernel may know leave the tables, if there are `some`. Whether any are owed.
    pub fn owes(&mut self, dir: &Handle, some: bool) -> bool {
        let untaken = self.untaken.values_mut();
        let untaken = untaken.filter(|listing| listing.object == *dir);
        let untaken = untaken.map(|listing| &mut listing.owed);
        let late = self.late.get_mut(dir).map(|late| &mut late.owed);
        untaken.chain(late).fold(false, |owes, owed| {
            *owed |= some;
            owes | *owed
        })
    }

    fn are_owed(&self, dir: &Handle) -> bool {
        let late = self.late.get(dir).is_some_and(|late| late.owed);
        late || self.untaken_of(dir).any(|listing| listing.owed)
    }

    fn owing(&self) -> Set<Handle> {
        let untaken = self.untaken.values().filter(|listing| listing.owed);
        let late = self.late.iter().filter(|(_, late)| late.owed);
        let untaken = untaken.map(|listing| listing.object);
        untaken.chain(late.map(|(dir, _)| *dir)).collect()
    }

    fn pay(&mut self, dir: &Handle) {
        let untaken = self.untaken.values_mut();
        let untaken = untaken.filter(|listing| listing.object == *dir);
        untaken.for_each(|listing| listing.owed = false);
        if let Some(late) = self.late.get_mut(dir) {
            late.owed = false;
        }
    }
}

impl Inodes {
    /// The kernel is told nodes along with a listing of `dir`, this one last.
    pub fn told_with_listing(&mut self, listing: Fh, dir: NodeId, object: Handle, node: NodeId) {
        self.epochs.taken_up(listing);
        if planted::is(Bug::UntakenNames) {
            return;
        }
        let told = ToldListing {
            dir,
            object,
            node,
            told: self.epochs.begun,
            owed: false,
        };
        self.epochs.untaken.insert(listing, told);
    }

    /// The kernel has taken up what it was told along with a listing.
    pub fn listing_is_taken_up(&mut self, listing: Fh) {
        self.epochs.taken_up(listing);
    }

    /// A name of a directory is changed: nobody reads that now.
    pub fn listings_are_taken_up(&mut self, dir: NodeId) {
        let untaken = self.epochs.untaken.iter();
        let of_it = untaken.filter(|(_, listing)| listing.dir == dir);
        let of_it: Vec<Fh> = of_it.map(|(listing, _)| *listing).collect();
        for listing in of_it {
            self.epochs.taken_up(listing);
        }
    }

    /// With this count a name is told to the kernel now; never 0.
    pub(super) fn telling(&self) -> u64 {
        self.epochs.telling()
    }

    /// The kernel is about to be told to forget all names.
    pub fn begins_to_forget(&mut self) -> Forgetting {
        self.epochs.forgets()
    }

    /// It has.
    pub fn has_forgotten(&mut self, forgetting: Forgetting) {
        self.epochs.has_forgotten(forgetting);
    }

    /// The kernel has forgotten a directory, and with it the names below it.
    pub(super) fn names_are_forgotten(&mut self, dir: &Handle) {
        self.epochs.late.remove(dir);
    }

    /// Whether names are owed of a directory.
    pub fn owes_names(&self, dir: &Handle) -> bool {
        self.epochs.are_owed(dir)
    }

    /// Directories of which names are owed.
    pub(super) fn owing(&self) -> Set<Handle> {
        self.epochs.owing()
    }

    /// What the tables knew of a directory's names has been dropped by its lock, one name after the other.
    pub fn dropped_singly(&mut self, dir: &Handle) {
        self.epochs.pay(dir);
    }

    /// Somebody is about to take back the names that are owed of a directory. False if that is under way.
    pub fn is_first_to_watch(&mut self, dir: Handle) -> bool {
        self.epochs.watched.insert(dir)
    }

    /// Whoever watches a directory asks for what is to be done. None: he has done it.
    pub fn next_owed(&mut self, dir: &Handle) -> Option<Owed> {
        loop {
            let mut untaken = self.epochs.untaken.iter();
            let owed = untaken.find(|(_, listing)| listing.object == *dir && listing.owed);
            let Some((listing, &ToldListing { dir, node, .. })) = owed else {
                break;
            };
            let listing = *listing;
            match self.known(node).map(|known| known.lookups) {
                Some(1) => return Some(Owed::Untaken(listing, Shows::Known(node))),
                Some(_) => return Some(Owed::Untaken(listing, Shows::Unlocked(dir))),
                // Given back, so it was taken up.
                None => self.epochs.taken_up(listing),
            }
        }
        let owed = self.epochs.late.get(dir).is_some_and(|late| late.owed);
        if !owed {
            self.epochs.watched.remove(dir);
        }
        owed.then_some(Owed::ToForget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fixtures::object;

    const LISTING: Fh = Fh(1);

    /// What was told with a listing, and with which count.
    fn told() -> (Inodes, Count) {
        let mut inodes = Inodes::default();
        let telling = inodes.telling();
        inodes.told_with_listing(LISTING, NodeId(5), object(), NodeId(6));
        (inodes, telling)
    }

    fn forget(inodes: &mut Inodes) {
        let forgetting = inodes.begins_to_forget();
        inodes.has_forgotten(forgetting);
    }

    fn may_know(inodes: &Inodes, told: Count) -> bool {
        told > inodes.epochs.forgotten(&object())
    }

    #[test]
    fn a_name_is_known_until_the_kernel_has_forgotten_names_after_it_was_told() {
        let mut inodes = Inodes::default();
        let before = inodes.telling();
        let forgetting = inodes.begins_to_forget();
        let meanwhile = inodes.telling();
        assert!(may_know(&inodes, before) && may_know(&inodes, meanwhile));
        inodes.has_forgotten(forgetting);
        assert!(!may_know(&inodes, before) && may_know(&inodes, meanwhile));
        forget(&mut inodes);
        assert!(!may_know(&inodes, meanwhile));
    }

    #[test]
    fn a_name_told_with_a_listing_is_known_until_names_are_forgotten_after_that_was_taken_up() {
        let (mut inodes, name) = told();
        forget(&mut inodes);
        assert!(may_know(&inodes, name));
        inodes.listing_is_taken_up(LISTING);
        assert!(may_know(&inodes, name));
        forget(&mut inodes);
        assert!(!may_know(&inodes, name));
    }

    #[test]
    fn what_is_taken_up_while_names_are_being_forgotten_is_known_until_the_next_time() {
        let (mut inodes, name) = told();
        let forgetting = inodes.begins_to_forget();
        inodes.listing_is_taken_up(LISTING);
        inodes.has_forgotten(forgetting);
        assert!(may_know(&inodes, name));
        forget(&mut inodes);
        assert!(!may_know(&inodes, name));
    }

    #[test]
    fn what_is_taken_up_in_time_is_forgotten_like_any_name() {
        let (mut inodes, name) = told();
        inodes.listings_are_taken_up(NodeId(5));
        assert!(inodes.epochs.late.is_empty());
        forget(&mut inodes);
        assert!(!may_know(&inodes, name));
    }

    #[test]
    fn names_are_owed_until_they_are_forgotten_after_they_were_taken_up() {
        let (mut inodes, _) = told();
        assert!(!inodes.epochs.owes(&object(), false));
        assert!(inodes.epochs.owes(&object(), true));
        forget(&mut inodes);
        assert!(inodes.owes_names(&object()) && inodes.owing().contains(&object()));
        inodes.listing_is_taken_up(LISTING);
        assert!(inodes.owes_names(&object()));
        forget(&mut inodes);
        assert!(!inodes.owes_names(&object()));
    }

    #[test]
    fn what_is_told_later_isnt_owed() {
        let (mut inodes, _) = told();
        inodes.epochs.owes(&object(), true);
        inodes.told_with_listing(Fh(2), NodeId(5), object(), NodeId(7));
        inodes.listing_is_taken_up(LISTING);
        forget(&mut inodes);
        assert!(!inodes.owes_names(&object()));
    }

    #[test]
    fn one_watches_until_nothing_is_owed() {
        let (mut inodes, _) = told();
        inodes.epochs.owes(&object(), true);
        assert!(inodes.is_first_to_watch(object()));
        assert!(!inodes.is_first_to_watch(object()));
        // The node isn't known here any more.
        assert_eq!(inodes.next_owed(&object()), Some(Owed::ToForget));
        forget(&mut inodes);
        assert_eq!(inodes.next_owed(&object()), None);
        assert!(inodes.is_first_to_watch(object()));
    }
}
