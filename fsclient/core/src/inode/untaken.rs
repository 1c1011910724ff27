//! Which names the kernel may know of those that it was told, and answers to READDIRPLUS that it may not have taken up.
//!
//! The kernel is made to look all names up again by a new epoch (`FUSE_NOTIFY_INC_EPOCH`). A name that a LOOKUP has brought is of the
//! epoch in which that was asked for. Of an entry in an answer to READDIRPLUS the kernel samples the epoch when it takes that up, and whoever
//! reads the directory may put that off for as long as he likes: by memory that isn't there when the name is copied to it. So what was told of a
//! directory along with such an answer counts as known until a new epoch has begun after the answer was taken up. Who has to take back names that
//! are in one *owes* them: they are no longer in the tables, and whatever takes back names of that directory waits for the same.
//!
//! The kernel reads a directory by one open of it once at a time, so the next request by that, or its end, shows that the last answer was taken
//! up. Before that its last node does, once the kernel knows it by this answer: entries are taken up in their order. (Before it may know it by a
//! LOOKUP's it is asked whether it does.) And as long as a directory is read it is locked, so that nothing of it is changed, nor any of its names
//! dropped.

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
    directories: Map<Handle, Listed>,
    /// Whose the last answers to READDIRPLUS are that it may not have taken up.
    listings: Map<Fh, Handle>,
    /// Directories whose owed names somebody takes back.
    watched: Set<Handle>,
}

/// What the kernel was told of a directory along with listings of it.
#[derive(Debug, Default)]
struct Listed {
    /// The last answers that it may not have taken up.
    untaken: Vec<Untaken>,
    /// It has taken up such an answer after it may have forgotten names.
    late: Option<Late>,
}

/// An answer to READDIRPLUS.
#[derive(Clone, Copy, Debug)]
struct Untaken {
    listing: Fh,
    dir: NodeId,
    /// What was told last in it.
    node: NodeId,
    told: Count,
    /// How many have taken back names since that are not gone yet.
    owed: u32,
}

/// Names that were taken up at last.
#[derive(Clone, Copy, Debug)]
struct Late {
    told: Count,
    /// They are known no more once the kernel has forgotten names another time than those.
    taken_up: Count,
    owed: u32,
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
    /// An answer that is to be taken up, of this listing.
    Untaken(Fh, Shows),
    /// The kernel has to forget names once more.
    ToForget,
}

impl Listed {
    fn told(&self) -> impl Iterator<Item = Count> {
        let untaken = self.untaken.iter().map(|untaken| untaken.told);
        untaken.chain(self.late.map(|late| late.told))
    }

    fn owed(&mut self) -> impl Iterator<Item = &mut u32> {
        let untaken = self.untaken.iter_mut().map(|untaken| &mut untaken.owed);
        untaken.chain(self.late.as_mut().map(|late| &mut late.owed))
    }

    fn is_owed(&self) -> bool {
        let untaken = self.untaken.iter().any(|untaken| untaken.owed > 0);
        untaken || self.late.is_some_and(|late| late.owed > 0)
    }

    fn is_late(&mut self, untaken: Untaken, taken_up: Count) {
        let late = self.late.get_or_insert(Late {
            told: untaken.told,
            taken_up,
            owed: 0,
        });
        late.told = late.told.min(untaken.told);
        late.taken_up = taken_up;
        late.owed = late.owed.max(untaken.owed);
    }
}

impl Epochs {
    /// With this count a name is told now; never 0.
    fn telling(&self) -> Count {
        self.begun + 1
    }

    /// The kernel may know a name of a directory that it was told with a higher count than this.
    pub fn forgotten(&self, dir: &Handle) -> Count {
        let listed = self.directories.get(dir);
        let told = listed.into_iter().flat_map(Listed::told);
        told.fold(self.done, Count::min)
    }

    fn is_told(&mut self, object: Handle, untaken: Untaken) {
        self.taken_up(untaken.listing);
        self.listings.insert(untaken.listing, object);
        let listed = self.directories.entry(object).or_default();
        listed.untaken.push(untaken);
    }

    fn taken_up(&mut self, listing: Fh) {
        let Some(object) = self.listings.remove(&listing) else {
            return;
        };
        let begun = self.begun;
        self.change(&object, |listed| {
            let mut untaken = listed.untaken.iter();
            let Some(at) = untaken.position(|untaken| untaken.listing == listing) else {
                return;
            };
            let untaken = listed.untaken.swap_remove(at);
            // Else it is known as any name is that was told then.
            if begun != untaken.told || untaken.owed > 0 {
                listed.is_late(untaken, begun);
            }
        });
    }

    fn change<R>(&mut self, dir: &Handle, change: impl FnOnce(&mut Listed) -> R) -> Option<R> {
        let listed = self.directories.get_mut(dir)?;
        let result = change(listed);
        if listed.untaken.is_empty() && listed.late.is_none() {
            self.directories.remove(dir);
        }
        Some(result)
    }

    fn forgets(&mut self) -> Forgetting {
        self.begun += 1;
        Forgetting(self.begun)
    }

    fn has_forgotten(&mut self, Forgetting(count): Forgetting) {
        self.done = self.done.max(count);
        self.directories.retain(|_, listed| {
            listed.late.take_if(|late| late.taken_up < count);
            !listed.untaken.is_empty() || listed.late.is_some()
        });
    }

    /// Names of a directory that the kernel may know leave the tables, if there are `some`. Whether any are owed.
    pub fn owes(&mut self, dir: &Handle, some: bool) -> bool {
        let owes = |listed: &mut Listed| {
            listed.owed().for_each(|owed| *owed += u32::from(some));
            listed.is_owed()
        };
        self.change(dir, owes).unwrap_or(false)
    }

    fn are_owed(&self, dir: &Handle) -> bool {
        self.directories.get(dir).is_some_and(Listed::is_owed)
    }
}

impl Inodes {
    /// The kernel is told nodes along with a listing of `dir`, this one last.
    pub fn told_with_listing(&mut self, listing: Fh, dir: NodeId, object: Handle, node: NodeId) {
        if planted::is(Bug::UntakenNames) {
            return;
        }
        let untaken = Untaken {
            listing,
            dir,
            node,
            told: self.epochs.begun,
            owed: 0,
        };
        self.epochs.is_told(object, untaken);
    }

    /// The kernel has taken up what it was told along with a listing.
    pub fn listing_is_taken_up(&mut self, listing: Fh) {
        self.epochs.taken_up(listing);
    }

    /// Something of a directory is changed: nobody reads it now.
    pub fn listings_are_taken_up(&mut self, dir: NodeId) {
        let Some(object) = self.node(dir).map(|node| node.handle) else {
            return;
        };
        let listed = self.epochs.directories.get(&object);
        let untaken = listed.into_iter().flat_map(|listed| &listed.untaken);
        let of_it = untaken.filter(|untaken| untaken.dir == dir);
        let of_it: Vec<Fh> = of_it.map(|untaken| untaken.listing).collect();
        for listing in of_it {
            self.epochs.taken_up(listing);
        }
    }

    /// Whether this listing's last answer may not have been taken up.
    pub fn is_untaken(&self, listing: Fh) -> bool {
        self.epochs.listings.contains_key(&listing)
    }

    /// The listing of a directory in whose last answer, which may not have been taken up, this node is the last.
    pub fn is_last_of(&self, dir: &Handle, node: NodeId) -> Option<Fh> {
        let listed = self.epochs.directories.get(dir)?;
        let mut untaken = listed.untaken.iter();
        let last = untaken.find(|untaken| untaken.node == node);
        last.map(|untaken| untaken.listing)
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
        self.epochs.change(dir, |listed| listed.late = None);
    }

    /// Whether names are owed of a directory.
    pub fn owes_names(&self, dir: &Handle) -> bool {
        self.epochs.are_owed(dir)
    }

    /// Directories of which names are owed.
    pub(super) fn owing(&self) -> Set<Handle> {
        let directories = self.epochs.directories.iter();
        let owing = directories.filter(|(_, listed)| listed.is_owed());
        owing.map(|(dir, _)| *dir).collect()
    }

    /// Who has taken back names of a directory has dropped them by its lock, one after the other, or leaves them to their timeouts.
    pub fn names_are_paid(&mut self, dir: &Handle) {
        let pay = |owed: &mut u32| *owed = owed.saturating_sub(1);
        self.epochs
            .change(dir, |listed| listed.owed().for_each(pay));
    }

    /// The timeouts of all that was owed of a directory, and has been taken up, are over.
    pub fn late_names_are_over(&mut self, dir: &Handle) {
        self.epochs.change(dir, |listed| listed.late = None);
    }

    /// Somebody is about to take back the names that are owed of a directory. False if that is under way.
    pub fn is_first_to_watch(&mut self, dir: Handle) -> bool {
        self.epochs.watched.insert(dir)
    }

    /// Whoever watches a directory asks for what is to be done. None: he has done it.
    pub fn next_owed(&mut self, dir: &Handle) -> Option<Owed> {
        loop {
            let listed = self.epochs.directories.get(dir);
            let mut untaken = listed.into_iter().flat_map(|listed| &listed.untaken);
            let Some(&owed) = untaken.find(|untaken| untaken.owed > 0) else {
                break;
            };
            match self.known(owed.node).map(|known| known.lookups) {
                Some(1) => return Some(Owed::Untaken(owed.listing, Shows::Known(owed.node))),
                Some(_) => return Some(Owed::Untaken(owed.listing, Shows::Unlocked(owed.dir))),
                // Given back, so it was taken up.
                None => self.epochs.taken_up(owed.listing),
            }
        }
        let owed = self.epochs.are_owed(dir);
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
        inodes.listing_is_taken_up(LISTING);
        assert!(inodes.epochs.directories.is_empty());
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
    #[test]
    fn what_one_has_dropped_singly_another_may_still_owe() {
        let (mut inodes, _) = told();
        inodes.epochs.owes(&object(), true);
        inodes.epochs.owes(&object(), true);
        inodes.names_are_paid(&object());
        assert!(inodes.owes_names(&object()));
        inodes.names_are_paid(&object());
        assert!(!inodes.owes_names(&object()));
    }
}
