//! Answers to READDIRPLUS that the kernel may not have taken up, and the names that are owed of them ([`super::epochs`]).

use super::Inodes;
use super::epochs::{Forgetting, Untaken};
use crate::call::{Fh, NodeId};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::Handle;

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

impl Inodes {
    /// The kernel is told nodes along with a listing of `dir`, this one last.
    pub fn told_with_listing(&mut self, listing: Fh, dir: NodeId, object: Handle, node: NodeId) {
        if !planted::is(Bug::UntakenNames) {
            self.epochs.told_with_listing(listing, dir, object, node);
        }
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
        let untaken = self.epochs.untaken_of(&object);
        let of_it = untaken.filter(|untaken| untaken.dir == dir);
        let of_it: Vec<Fh> = of_it.map(|untaken| untaken.listing).collect();
        for listing in of_it {
            self.epochs.taken_up(listing);
        }
    }

    /// Whether this listing's last answer may not have been taken up.
    pub fn is_untaken(&self, listing: Fh) -> bool {
        self.epochs.is_untaken(listing)
    }

    /// The listing of a directory in whose last answer, which may not have been taken up, this node is the last.
    pub fn is_last_of(&self, dir: &Handle, node: NodeId) -> Option<Fh> {
        let mut untaken = self.epochs.untaken_of(dir);
        let last = untaken.find(|untaken| untaken.node == node);
        last.map(|untaken| untaken.listing)
    }

    /// The kernel is about to be told to forget all names.
    pub fn begins_to_forget(&mut self) -> Forgetting {
        self.epochs.forgets()
    }

    /// It has.
    pub fn has_forgotten(&mut self, forgetting: Forgetting) {
        self.epochs.has_forgotten(forgetting);
    }

    /// Whether names are owed of a directory.
    pub fn owes_names(&self, dir: &Handle) -> bool {
        self.epochs.are_owed(dir)
    }

    /// Who has taken back names of a directory has dropped them by its lock, one after the other, or leaves them to their timeouts.
    pub fn names_are_paid(&mut self, dir: &Handle) {
        self.epochs.pay(dir);
    }

    /// The timeouts of all that was owed of a directory, and has been taken up, are over.
    pub fn late_names_are_over(&mut self, dir: &Handle) {
        self.epochs.late_is_over(dir);
    }

    /// Somebody is about to take back the names that are owed of a directory. False if that is under way.
    pub fn is_first_to_watch(&mut self, dir: Handle) -> bool {
        self.epochs.is_first_to_watch(dir)
    }

    /// Whoever watches a directory asks for what is to be done. None: he has done it.
    pub fn next_owed(&mut self, dir: &Handle) -> Option<Owed> {
        loop {
            let owed = |untaken: &&Untaken| untaken.owed > 0;
            let Some(&owed) = self.epochs.untaken_of(dir).find(owed) else {
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
            self.epochs.watches_no_more(dir);
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
    fn told() -> (Inodes, u64) {
        let mut inodes = Inodes::default();
        let telling = inodes.epochs.telling();
        inodes.told_with_listing(LISTING, NodeId(5), object(), NodeId(6));
        (inodes, telling)
    }

    fn forget(inodes: &mut Inodes) {
        let forgetting = inodes.begins_to_forget();
        inodes.has_forgotten(forgetting);
    }

    fn may_know(inodes: &Inodes, told: u64) -> bool {
        told > inodes.epochs.forgotten(&object())
    }

    #[test]
    fn a_name_is_known_until_the_kernel_has_forgotten_names_after_it_was_told() {
        let mut inodes = Inodes::default();
        let before = inodes.epochs.telling();
        let forgetting = inodes.begins_to_forget();
        let meanwhile = inodes.epochs.telling();
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
        assert!(inodes.epochs.is_empty());
        forget(&mut inodes);
        assert!(!may_know(&inodes, name));
    }

    #[test]
    fn names_are_owed_until_they_are_forgotten_after_they_were_taken_up() {
        let (mut inodes, _) = told();
        assert!(!inodes.epochs.owes(&object(), false));
        assert!(inodes.epochs.owes(&object(), true));
        forget(&mut inodes);
        assert!(inodes.owes_names(&object()) && inodes.epochs.owing().any(|dir| dir == object()));
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
