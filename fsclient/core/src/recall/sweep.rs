//! What a loss of leases has left in the kernel.

use super::EngineInner;
use crate::api::Noticed;
use crate::cache::Work;
use crate::inode::Dropped;
use crate::run::{Bell, Part};
use futures_channel::oneshot;
use futures_util::lock::OwnedMutexGuard;
use std::future::Future;
use std::sync::Arc;

/// Sweeps under way: nothing is known here any more of what they take back, and the kernel may have it still.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    under_way: Part<usize>,
    over: Bell,
}

impl EngineInner {
    /// Has the kernel drop what has been dropped here.
    pub(super) fn begin_sweep(self: &Arc<Self>, work: Work) {
        *self.sweeps.under_way.borrow_mut() += 1;
        let inner = Arc::clone(self);
        self.cx.spawn(async move { inner.sweep(work).await });
    }

    async fn sweep(self: Arc<Self>, work: Work) {
        let Work {
            mut dropped,
            outcome,
        } = work;
        dropped.opens.clear();
        let noticed = self.drop_at_once(&dropped).await;
        // Names that have to be dropped one by one wait for requests of their directories, which may wait for this.
        *self.sweeps.under_way.borrow_mut() -= 1;
        self.sweeps.over.ring_all();
        if !self.have_left(&dropped, noticed).await {
            tracing::error!("the kernel keeps what is no longer leased, until its timeouts end");
        }
        self.perform(outcome);
    }

    /// As [`EngineInner::begin_sweep`].
    pub(super) fn sweep_until(
        self: &Arc<Self>,
        work: Work,
        done: oneshot::Receiver<()>,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.begin_sweep(work);
        async move {
            // The sender goes away only together with what was waited for.
            let _ = done.await;
        }
    }

    /// Whether all that was dropped at once, with this result, has left the kernel, what it comes to know meanwhile, too; names that
    /// can't be forgotten together go one by one. May wait for local users.
    pub(super) async fn have_left(&self, dropped: &Dropped, noticed: Noticed) -> bool {
        noticed != Noticed::Failed
            && self.unseen_has_left(&dropped.attrs).await
            && (noticed != Noticed::Unable || self.drop_names(dropped).await)
            && self.owed_has_left(&dropped.owing).await
    }

    /// Has the kernel drop what was dropped here when leases ended, if nobody has yet.
    pub(super) fn begin_due_sweep(self: &Arc<Self>) {
        let work = self.cache.state().swept.take();
        if let Some(work) = work {
            self.begin_sweep(work);
        }
    }

    /// The right to drop. What is no longer known here has left the kernel by then, unless pages are in the way or it is owed.
    pub(super) async fn dropping(self: &Arc<Self>) -> OwnedMutexGuard<()> {
        loop {
            let dropping = Arc::clone(&self.dropping).lock_owned().await;
            self.begin_due_sweep();
            if self.is_swept() {
                return dropping;
            }
            drop(dropping);
            self.sweeps.over.listen().await;
        }
    }

    /// As [`EngineInner::dropping`], if nothing has to be waited for.
    pub(super) fn dropping_at_once(self: &Arc<Self>) -> Option<OwnedMutexGuard<()>> {
        let dropping = self.dropping.try_lock_owned()?;
        self.begin_due_sweep();
        self.is_swept().then_some(dropping)
    }

    /// Whether no sweep is under way.
    fn is_swept(&self) -> bool {
        *self.sweeps.under_way.borrow() == 0
    }
}
