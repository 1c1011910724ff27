//! Whether the kernel has taken up what it was answered: what is on its way to it can't be taken back yet.

use super::{EngineInner, RETRIES, RETRY};
use crate::api::{Notice, Noticed};
use crate::call::NodeId;
use crate::inode::{ARRIVES_WITHIN, Shows};
use crate::run::first;
use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;
use std::time::Duration;

/// How long whoever has asked the kernel takes to go on with the answer, usually.
const ARRIVES: Duration = Duration::from_micros(50);
/// Dropped of a directory so as to have its lock once. There may be such a name; it is looked up again then.
const ANY: &[u8] = b"\xff";

impl EngineInner {
    /// The kernel was told to drop an object's attributes, with this result: insists until it knows each id with which
    /// it may have been told some. False if that takes too long.
    pub(super) async fn drop_unseen(&self, object: &Handle, told: Noticed) -> bool {
        let unseen = self.cache.inodes().unseen(object);
        for node in unseen {
            if !self.until_known(node, told).await {
                return false;
            }
            self.cache.inodes().is_seen(node);
        }
        true
    }

    /// The kernel was told to drop a node's attributes, with this result: insists until it knows the node, or has given it
    /// back. False if that takes too long.
    async fn until_known(&self, node: NodeId, mut told: Noticed) -> bool {
        let (begin, mut pause) = (self.cx.monotonic(), ARRIVES);
        while told == Noticed::Unknown && self.cache.inodes().node(node).is_some() {
            if !self.is_taken_up_later(begin, &mut pause).await {
                return false;
            }
            told = self.outside.tell(Notice::DropAttrs(node)).await;
        }
        true
    }

    /// Waits until the kernel has taken up that something was made, of which it can't know otherwise.
    pub(super) async fn comes_to_know(&self, node: NodeId) {
        let told = self.outside.tell(Notice::DropAttrs(node)).await;
        self.until_known(node, told).await;
        self.cache.inodes().is_asked_for(node);
    }

    /// Waits until the kernel has taken up what it was told along with listings. False if that takes too long.
    pub(super) async fn listings_are_taken_up(&self) -> bool {
        let (begin, mut pause) = (self.cx.monotonic(), ARRIVES);
        loop {
            let untaken = self.cache.inodes().untaken();
            let Some((listing, shows)) = untaken else {
                return true;
            };
            let taken_up = match shows {
                Shows::Known(node) => {
                    self.outside.tell(Notice::DropAttrs(node)).await != Noticed::Unknown
                }
                Shows::Unlocked(dir, given) => self.is_unlocked(dir, given).await,
            };
            if taken_up {
                self.cache.inodes().listing_is_taken_up(listing);
                continue;
            }
            if !self.is_taken_up_later(begin, &mut pause).await {
                return false;
            }
        }
    }

    /// Waits until it is worth looking again whether the kernel has taken up an answer, longer each time. False if it has
    /// had long enough since `begin`.
    async fn is_taken_up_later(&self, begin: BootTime, pause: &mut Duration) -> bool {
        if self.is_over(Some(begin), RETRY * RETRIES) {
            tracing::error!("the kernel doesn't take up an answer: the lease is left to expire");
            return false;
        }
        self.cx.sleep(*pause).await;
        *pause = (*pause * 2).min(RETRY);
        true
    }

    /// Whether nobody reads a directory, or an answer that was given then must have been taken up. Waits for no longer than that.
    async fn is_unlocked(&self, dir: NodeId, given: BootTime) -> bool {
        if self.is_over(Some(given), ARRIVES_WITHIN) {
            return true;
        }
        let left = (given + ARRIVES_WITHIN).since(self.cx.monotonic());
        let name = ANY.into();
        let dropped = self.outside.tell(Notice::DropName { dir, name });
        let late = async {
            self.cx.sleep(left).await;
            Noticed::Done
        };
        first(dropped, late).await == Noticed::Done
    }
}
