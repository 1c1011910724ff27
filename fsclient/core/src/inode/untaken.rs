//! Answers to READDIRPLUS that the kernel may not have taken up.
//!
//! Of an entry in one it samples the epoch when it takes that up, not when it asks: that all names are to be looked up again is
//! lost on an answer that is on its way. The kernel reads a directory by one open of it once at a time, so the next request by that, or its end,
//! shows that the last answer was taken up. Before that its last node does, once the kernel knows it by this answer: entries are
//! taken up in their order. And as long as a directory is read it is locked, so that none of its names is changed, nor dropped.

use super::Inodes;
use super::table::ToldListing;
use crate::call::{Fh, NodeId};
use leasefs_lease::time::BootTime;

/// What shows that an answer was taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// That the kernel knows this node.
    Known(NodeId),
    /// That this directory isn't locked: the kernel may know its last node otherwise. The answer was given then.
    Unlocked(NodeId, BootTime),
}

impl Inodes {
    /// The kernel is told nodes along with a listing of `dir`, this one last.
    pub fn told_with_listing(&mut self, listing: Fh, dir: NodeId, node: NodeId, given: BootTime) {
        self.untaken
            .insert(listing, ToldListing { dir, node, given });
    }

    /// The kernel has taken up what it was told along with a listing.
    pub fn listing_is_taken_up(&mut self, listing: Fh) {
        self.untaken.remove(&listing);
    }

    /// A name of a directory is changed: nobody reads that now.
    pub fn listings_are_taken_up(&mut self, dir: NodeId) {
        self.untaken.retain(|_, last| last.dir != dir);
    }

    /// A listing of which the kernel may not have taken up the last answer.
    pub fn untaken(&mut self) -> Option<(Fh, Shows)> {
        loop {
            let (listing, ToldListing { dir, node, given }) = self.untaken.iter().next()?;
            let (listing, dir, node, given) = (*listing, *dir, *node, *given);
            match self.known(node).map(|known| known.lookups) {
                Some(1) => return Some((listing, Shows::Known(node))),
                Some(_) => return Some((listing, Shows::Unlocked(dir, given))),
                // Given back, so it was taken up.
                None => self.listing_is_taken_up(listing),
            }
        }
    }
}
