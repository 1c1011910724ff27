//! Which names the kernel may know of those that it was told, and when answers to READDIRPLUS were taken up.
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

use crate::call::{Fh, NodeId};
use crate::run::{Map, Set};
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
pub(super) struct Untaken {
    pub listing: Fh,
    pub dir: NodeId,
    /// What was told last in it.
    pub node: NodeId,
    told: Count,
    /// How many have taken back names since that are not gone yet.
    pub owed: u32,
}

/// Names that were taken up at last.
#[derive(Clone, Copy, Debug)]
struct Late {
    told: Count,
    /// They are known no more once the kernel has forgotten names another time than those.
    taken_up: Count,
    owed: u32,
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
    pub fn telling(&self) -> Count {
        self.begun + 1
    }

    /// The kernel may know a name of a directory that it was told with a higher count than this.
    pub fn forgotten(&self, dir: &Handle) -> Count {
        let listed = self.directories.get(dir);
        let told = listed.into_iter().flat_map(Listed::told);
        told.fold(self.done, Count::min)
    }

    /// The kernel has taken up a listing's last answer.
    pub fn taken_up(&mut self, listing: Fh) {
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

    /// The kernel is about to be told to forget all names.
    pub fn forgets(&mut self) -> Forgetting {
        self.begun += 1;
        Forgetting(self.begun)
    }

    /// It has.
    pub fn has_forgotten(&mut self, Forgetting(count): Forgetting) {
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

    /// Whether names are owed of a directory.
    pub fn are_owed(&self, dir: &Handle) -> bool {
        self.directories.get(dir).is_some_and(Listed::is_owed)
    }

    /// The kernel is told nodes along with a listing of `object`, this one last.
    pub fn told_with_listing(&mut self, listing: Fh, dir: NodeId, object: Handle, node: NodeId) {
        let untaken = Untaken {
            listing,
            dir,
            node,
            told: self.begun,
            owed: 0,
        };
        self.taken_up(listing);
        self.listings.insert(listing, object);
        let listed = self.directories.entry(object).or_default();
        listed.untaken.push(untaken);
    }

    /// Whether this listing's last answer may not have been taken up.
    pub fn is_untaken(&self, listing: Fh) -> bool {
        self.listings.contains_key(&listing)
    }

    /// The answers about a directory that may not have been taken up.
    pub fn untaken_of(&self, dir: &Handle) -> impl Iterator<Item = &Untaken> {
        let listed = self.directories.get(dir);
        listed.into_iter().flat_map(|listed| &listed.untaken)
    }

    /// Directories of which names are owed.
    pub fn owing(&self) -> impl Iterator<Item = Handle> {
        let directories = self.directories.iter();
        let owing = directories.filter(|(_, listed)| listed.is_owed());
        owing.map(|(dir, _)| *dir)
    }

    /// One who has taken back names of a directory owes them no more.
    pub fn pay(&mut self, dir: &Handle) {
        let pay = |owed: &mut u32| *owed = owed.saturating_sub(1);
        self.change(dir, |listed| listed.owed().for_each(pay));
    }

    /// The kernel has nothing any more of what it has taken up of a directory.
    pub fn late_is_over(&mut self, dir: &Handle) {
        self.change(dir, |listed| listed.late = None);
    }

    /// Somebody is about to take back what is owed of a directory. False if that is under way.
    pub fn is_first_to_watch(&mut self, dir: Handle) -> bool {
        self.watched.insert(dir)
    }

    /// Nobody does any more.
    pub fn watches_no_more(&mut self, dir: &Handle) {
        self.watched.remove(dir);
    }

    /// Whether nothing is kept of any directory.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }
}
