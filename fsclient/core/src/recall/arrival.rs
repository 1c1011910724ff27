//! Whether the kernel has taken up what it was answered: what is on its way to it can't be taken back yet.

use super::{EngineInner, RETRIES, RETRY};
use crate::api::{Notice, Noticed};
use crate::call::{Fh, NodeId};
use crate::inode::{Owed, Shows};
use crate::outside::Pending;
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
    /// Waits until the kernel has no attributes of these objects that were dropped before it had taken them up. False if that takes too long.
    pub(super) async fn unseen_has_left(&self, objects: &[Handle]) -> bool {
        let unseen = || objects.iter().any(|o| self.cache.inodes().is_unseen(o));
        self.is_paid_in_time(unseen).await
    }

    /// Waits until no names of these directories are owed. False if that takes too long.
    pub(super) async fn owed_has_left(&self, owing: &[Handle]) -> bool {
        let owed = || owing.iter().any(|dir| self.cache.inodes().owes_names(dir));
        self.is_paid_in_time(owed).await
    }

    async fn is_paid_in_time(&self, owes: impl Fn() -> bool) -> bool {
        let begin = self.cx.monotonic();
        loop {
            let paid = self.paid.listen();
            if !owes() {
                return true;
            }
            if self.is_too_late(begin) {
                return false;
            }
            first(paid, self.cx.sleep(RETRY)).await;
        }
    }

    /// Waits until the kernel has taken up that something was made, of which it can't know otherwise.
    pub(super) async fn comes_to_know(&self, node: NodeId) {
        let (begin, mut pause) = (self.cx.monotonic(), ARRIVES);
        while self.drop_attrs_by(node).await == Noticed::Unknown
            && self.cache.inodes().node(node).is_some()
            && !self.is_too_late(begin)
        {
            self.pause(&mut pause, RETRY).await;
        }
        self.cache.inodes().is_asked_for(node);
    }

    /// See [`super::Engine::is_told_by_name`].
    pub(super) fn is_told_by_name(self: &Arc<Self>, dir: &Handle, node: NodeId) {
        let last = self.cache.inodes().is_last_of(dir, node);
        let Some(listing) = last else { return };
        // It is told before the answer, whenever its result is heard.
        let told = self.drop_attrs_by(node);
        let (inner, dir) = (Arc::clone(self), *dir);
        self.cx.spawn(async move {
            let known = told.await == Noticed::Done;
            let mut inodes = inner.cache.inodes();
            if known && inodes.is_last_of(&dir, node) == Some(listing) {
                inodes.listing_is_taken_up(listing);
            }
        });
    }

    /// Drops an object's attributes as soon as the kernel has taken them up, however long that takes.
    pub(super) fn watch_attrs(self: &Arc<Self>, object: Handle) {
        if !self.cache.inodes().owes_attrs(object) {
            return;
        }
        let inner = Arc::clone(self);
        self.cx.spawn(async move {
            let mut pause = ARRIVES;
            loop {
                let owed = inner.cache.inodes().owed_attrs();
                inner.paid.ring_all();
                if owed.is_empty() {
                    break;
                }
                inner.pause(&mut pause, LOOKS).await;
                for node in owed {
                    if inner.drop_attrs_by(node).await == Noticed::Done {
                        inner.cache.inodes().is_seen(node);
                    }
                }
            }
        });
    }

    /// Takes back what is owed of a directory's names as soon as the kernel has taken them up, however long that takes.
    pub(super) fn watch_names(self: &Arc<Self>, dir: Handle) {
        if !self.cache.inodes().is_first_to_watch(dir) {
            return;
        }
        let inner = Arc::clone(self);
        self.cx.spawn(async move {
            let (mut pause, mut late) = (ARRIVES, None);
            loop {
                let owed = inner.cache.inodes().next_owed(&dir);
                let Some(owed) = owed else { break };
                match owed {
                    Owed::ToForget if inner.is_over_by_itself(&dir, &mut late) => continue,
                    Owed::ToForget => {}
                    Owed::Untaken(..) => late = None,
                }
                if !inner.is_paid(owed).await {
                    inner.pause(&mut pause, LOOKS).await;
                }
            }
            inner.paid.ring_all();
        });
    }

    /// Whether what the kernel can't be made to forget has ended with its timeouts: it had taken all of it up when this was asked first.
    fn is_over_by_itself(&self, dir: &Handle, late: &mut Option<BootTime>) -> bool {
        let since = *late.get_or_insert(self.cx.monotonic());
        let over = self.is_over(Some(since), self.rpc.term());
        if over {
            self.cache.inodes().late_names_are_over(dir);
        }
        over
    }

    /// Takes the next step towards the end of what is owed. False if it can't be taken yet.
    async fn is_paid(&self, owed: Owed) -> bool {
        let (listing, taken_up) = match owed {
            Owed::ToForget => return self.forget_names().await == Noticed::Done,
            Owed::Untaken(listing, Shows::Known(node)) => {
                let told = self.drop_attrs_by(node).await;
                (listing, told == Noticed::Done)
            }
            Owed::Untaken(listing, Shows::Unlocked(dir)) => {
                (listing, self.is_unlocked(listing, dir).await)
            }
        };
        if taken_up {
            self.cache.inodes().listing_is_taken_up(listing);
        }
        taken_up
    }

    /// Waits until nobody reads a directory; false if it has been shown otherwise before that the listing's last answer was taken up. (Who has
    /// locked it to change it may wait for this.)
    async fn is_unlocked(&self, listing: Fh, dir: NodeId) -> bool {
        let name = ANY.into();
        let mut dropped = self.outside.tell(Notice::DropName { dir, name });
        while self.cache.inodes().is_untaken(listing) {
            let look = async {
                self.cx.sleep(LOOKS).await;
                None
            };
            let done = async { Some((&mut dropped).await) };
            if let Some(noticed) = first(done, look).await {
                return noticed == Noticed::Done;
            }
        }
        false
    }

    /// Makes the kernel ignore attributes that it has asked for of a node.
    fn drop_attrs_by(&self, node: NodeId) -> Pending {
        self.cache.inodes().hears(node);
        self.outside.tell(Notice::DropAttrs(node))
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
