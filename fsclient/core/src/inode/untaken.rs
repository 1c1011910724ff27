//! Answers to READDIRPLUS that the kernel may not have taken up.
//!
//! Of an entry in one it samples the epoch when it takes that up, not when it asks: that all names are to be looked up again is
//! lost on an answer that is on its way. The kernel reads a directory by one open of it once at a time, so the next request by that, or its end,
//! shows that the last answer was taken up. Before that its last node does, once the kernel knows it by this answer: entries are
//! taken up in their order.

use super::Inodes;
use crate::call::{Fh, NodeId};
use crate::run::Map;
use leasefs_lease::time::BootTime;

/// Of each listing the last node that was told along with it, and when.
pub(super) type Untaken = Map<Fh, (NodeId, BootTime)>;

/// What shows that an answer was taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// That the kernel knows this node.
    Known(NodeId),
    /// Nothing yet: the kernel may know its last node otherwise. The answer was given then.
    Time(BootTime),
}

impl Inodes {
    /// The kernel is told nodes along with a listing, this one last.
    pub fn told_with_listing(&mut self, listing: Fh, last: NodeId, now: BootTime) {
        self.untaken.insert(listing, (last, now));
    }

    /// The kernel has taken up what it was told along with a listing.
    pub fn listing_is_taken_up(&mut self, listing: Fh) {
        self.untaken.remove(&listing);
    }

    /// A listing of which the kernel may not have taken up the last answer.
    pub fn untaken(&mut self) -> Option<(Fh, Shows)> {
        loop {
            let (listing, (last, told)) = self.untaken.iter().next()?;
            let (listing, last, told) = (*listing, *last, *told);
            match self.known(last).map(|known| known.lookups) {
                Some(1) => return Some((listing, Shows::Known(last))),
                Some(_) => return Some((listing, Shows::Time(told))),
                // Given back, so it was taken up.
                None => self.listing_is_taken_up(listing),
            }
        }
    }
}
