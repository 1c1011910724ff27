//! Whether the kernel has taken up what it was answered: what is on its way to it can't be taken back yet.

use super::{EngineInner, RETRIES, RETRY};
use crate::api::{Notice, Noticed};
use crate::call::NodeId;
use crate::inode::{Owed, Shows};
use crate::run::first;
use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;
use std::sync::Arc;
use std::time::Duration;

/// How long whoever has asked the kernel takes to go on with the answer, usually.
const ARRIVES: Duration = Duration::from_micros(50);
/// How often it is looked whether names that are owed have been taken up, at least. What the kernel takes up in between after its lease has
/// ended is stale until then.
const LOOKS: Duration = Duration::from_millis(10);
/// Dropped of a directory so as to have its lock once. There may be such a name; it is looked up again then.
const ANY: &[u8] = b"\xff";

impl EngineInner {
    /// Objects' attributes were dropped: insists until the kernel knows each id with which it may have been told some. False if that takes
    /// too long.
    pub(super) async fn unseen_has_left(&self, objects: &[Handle]) -> bool {
        for object in objects {
            let unseen: Vec<NodeId> = self.cache.inodes().unseen(object).collect();
            for node in unseen {
                if !self.until_known(node, Noticed::Unknown).await {
                    return false;
                }
                self.cache.inodes().is_seen(node);
            }
        }
        true
    }

    /// The kernel was told to drop a node's attributes, with this result: insists until it knows the node, or has given it
    /// back. False if that takes too long.
    async fn until_known(&self, node: NodeId, mut told: Noticed) -> bool {
        let (begin, mut pause) = (self.cx.monotonic(), ARRIVES);
        while told == Noticed::Unknown && self.cache.inodes().node(node).is_some() {
            if self.is_too_late(begin) {
                return false;
            }
            self.pause(&mut pause, RETRY).await;
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

    /// Waits until no names of these directories are owed. False if that takes too long.
    pub(super) async fn owed_has_left(&self, owing: &[Handle]) -> bool {
        let begin = self.cx.monotonic();
        loop {
            let paid = self.paid.listen();
            if !owing.iter().any(|dir| self.cache.inodes().owes_names(dir)) {
                return true;
            }
            if self.is_too_late(begin) {
                return false;
            }
            first(paid, self.cx.sleep(RETRY)).await;
        }
    }

    /// Takes back what is owed of a directory's names as soon as the kernel has taken them up, however long that takes.
    pub(super) fn watch(self: &Arc<Self>, dir: Handle) {
        if !self.cache.inodes().is_first_to_watch(dir) {
            return;
        }
        let inner = Arc::clone(self);
        self.cx.spawn(async move {
            let mut pause = ARRIVES;
            loop {
                let owed = inner.cache.inodes().next_owed(&dir);
                let Some(owed) = owed else { break };
                if !inner.is_paid(owed).await {
                    inner.pause(&mut pause, LOOKS).await;
                }
            }
            inner.paid.ring_all();
        });
    }

    /// Takes the next step towards the end of what is owed. False if it can't be taken yet.
    async fn is_paid(&self, owed: Owed) -> bool {
        let (listing, taken_up) = match owed {
            Owed::ToForget => return self.forget_names().await == Noticed::Done,
            Owed::Untaken(listing, Shows::Known(node)) => {
                let told = self.outside.tell(Notice::DropAttrs(node)).await;
                (listing, told != Noticed::Unknown)
            }
            Owed::Untaken(listing, Shows::Unlocked(dir)) => {
                let name = ANY.into();
                let told = self.outside.tell(Notice::DropName { dir, name }).await;
                (listing, told == Noticed::Done)
            }
        };
        if taken_up {
            self.cache.inodes().listing_is_taken_up(listing);
        }
        taken_up
    }

    /// Whether the kernel has had long enough since `begin` to take up an answer.
    fn is_too_late(&self, begin: BootTime) -> bool {
        let late = self.is_over(Some(begin), RETRY * RETRIES);
        if late {
            tracing::error!("the kernel doesn't take up an answer: the lease is left to expire");
        }
        late
    }

    /// Waits until it is worth looking again, longer each time.
    async fn pause(&self, pause: &mut Duration, at_most: Duration) {
        self.cx.sleep(*pause).await;
        *pause = (*pause * 2).min(at_most);
    }
}
