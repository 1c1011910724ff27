//! What the server says unasked.

use super::faults::LATE;
use super::{Engine, EngineInner, Fault};
use crate::cache::{State, Work};
use crate::inode::{Approvable, PagesOf, Then};
use futures_channel::oneshot;
use leasefs_lease::client::DropKind;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::control::{ReclaimLease, Standing, Welcome};
use leasefs_protocol::lock::{FileLocks, LockGranted};
use leasefs_protocol::{Handle, LockEpoch, OpenId, Parts, Recall, Scope};
use std::future::Future;
use std::sync::Arc;

impl Engine {
    /// Acts on a recall. The approval follows when the kernel holds nothing any more.
    pub fn recalled(&self, recall: Recall) {
        let inner = Arc::clone(&self.0);
        self.0.cx.spawn(async move {
            if inner.fault == Some(Fault::ApproveEarly) {
                inner.rpc.approve(vec![Approvable {
                    recall: recall.id,
                    opens: Vec::new(),
                    locks: Vec::new(),
                }]);
                inner.cx.sleep(LATE).await;
            }
            inner.take_back(recall).await;
        });
    }

    /// A lock that was waited for is held, as long as the session's leases are valid.
    pub fn lock_granted(&self, granted: LockGranted) {
        let cache = &self.0.cache;
        let mut state = cache.state();
        let now = cache.look(&mut state);
        state.locks_at(now).granted(granted);
    }

    /// A connection stands.
    pub fn connected(&self, welcome: &Welcome) {
        let inner = &self.0;
        let now = inner.cache.now();
        // First: what is to be written again keeps its lease.
        inner.writeback.host_is(welcome.host);
        inner.with(|state, out| {
            if matches!(welcome.standing, Standing::New | Standing::Expired) {
                // A renewal that came with it has dropped everything already if it began anew.
                if !state.leases.is_empty() {
                    state.expire(now);
                }
                state.locks.lose_all();
                state.ended(out);
            }
            if welcome.standing == Standing::New {
                state.leases.begin_anew();
            }
            state.restarted(welcome.process, out);
            state.host_is(welcome.host);
            // Nobody is told twice that his lock has been granted.
            state.locks.wake_all();
        });
        inner.cache.call_keeper();
    }

    /// The server's host has crashed. Resolves when what was cached before has left the kernel.
    pub fn host_crashed(&self) -> impl Future<Output = ()> + Send + use<> {
        let (done, is_done) = oneshot::channel();
        let work = {
            let mut state = self.0.cache.state();
            let mut work = state.swept.take().unwrap_or_default();
            let filled = state.inodes.filled();
            let (inodes, then) = (&mut state.inodes, Then::Wake(done));
            inodes.drop_pages(&filled, DropKind::Sweep, then, &mut work.outcome);
            work
        };
        self.0.sweep_until(work, is_done)
    }

    /// The machine is about to sleep: what the kernel is told now would still count when it wakes, whatever
    /// has happened meanwhile. Done when what was cached before has left the kernel, and its leases are given
    /// back: nobody is to wait for who sleeps. Until [`Engine::wake`] the kernel is told nothing to believe, and
    /// nothing is buffered.
    pub async fn sleep(&self) {
        let inner = &self.0;
        let dropping = inner.dropping().await;
        let (dropped, given_back) = inner.cache.state().sleep();
        let noticed = inner.drop_at_once(&dropped).await;
        drop(dropping);
        let gone = inner.have_left(&dropped, noticed).await;
        inner.drop_all_pages().await;
        inner.give_back(&given_back, gone);
    }

    /// The server lets the session in no more: nothing that it was leased is used from here on.
    pub fn shut_out(&self) {
        let cache = &self.0.cache;
        let mut state = cache.state();
        let now = cache.look(&mut state);
        state.expire(now);
        drop(state);
        cache.call_keeper();
    }

    /// The machine is awake.
    pub fn wake(&self) {
        self.0.cache.state().session.set_asleep(false);
    }

    /// The leases alive by the own clock. There is no use of the others any more. Without any the
    /// session begins anew: the server's new life may promise less than is left of the old promise.
    pub fn reclaim(&self) -> Vec<ReclaimLease> {
        let cache = &self.0.cache;
        let mut state = cache.state();
        let now = cache.look(&mut state);
        let nothing = state.leases.is_empty() && !state.locks.holds_any();
        if nothing || state.session.witness(now).is_none() {
            state.expire(now);
            cache.call_keeper();
        }
        state.leases.reclaim_list().collect()
    }

    /// The locks held by the own clock, and in which tenure.
    pub fn reclaim_locks(&self) -> (Vec<FileLocks>, LockEpoch) {
        let cache = &self.0.cache;
        let mut state = cache.state();
        let now = cache.look(&mut state);
        state.locks_at(now).claims()
    }

    /// Locks of these files could not be reclaimed.
    pub fn lost_locks(&self, files: &[Handle]) {
        let mut state = self.0.cache.state();
        files.iter().for_each(|file| state.locks.lost(file));
    }

    /// Drops what was cached under leases that could not be reclaimed; resolves when it has left the
    /// kernel.
    pub fn lost(
        &self,
        leases: &[Handle],
        opens: &[OpenId],
    ) -> impl Future<Output = ()> + Send + use<> {
        let (done, is_done) = oneshot::channel();
        let mut work = Work::default();
        {
            let mut state = self.0.cache.state();
            state.inodes.opens_lost(opens);
            for object in leases {
                state.lost(object, &mut work.dropped);
            }
            let pages: Vec<PagesOf> = leases.iter().copied().map(PagesOf::all).collect();
            let (inodes, then) = (&mut state.inodes, Then::Wake(done));
            inodes.drop_pages(&pages, DropKind::Sweep, then, &mut work.outcome);
        }
        self.0.sweep_until(work, is_done)
    }
}

impl Engine {
    /// The session is taken up again, and what was leased to it and could be claimed back has been. What is
    /// kept back of other files was stored under leases that have ended.
    pub fn kept_outlives(&self) {
        let mut state = self.0.cache.state();
        let State { inodes, leases, .. } = &mut *state;
        inodes.outlives_lease(|file| !leases.is_exclusive(file));
    }
}

/// The directory of which a recall says that entries are changed, and one of these if it names any.
fn changes_entries(recall: &Recall) -> Option<(&Handle, Option<&[u8]>)> {
    match &recall.scope {
        Scope::Object {
            object,
            parts,
            names,
        } => {
            let name = names.last().map(|name| name.0.as_slice());
            (name.is_some() || parts.contains(Parts::LISTING)).then_some((object, name))
        }
        Scope::Everything => None,
    }
}

impl EngineInner {
    async fn take_back(self: Arc<Self>, recall: Recall) {
        let dropping = self.dropping().await;
        let recalled = {
            let mut state = self.cache.state();
            if let Some((dir, name)) = changes_entries(&recall) {
                let (inodes, now) = (&mut state.inodes, self.cx.monotonic());
                inodes.entries_are_recalled(dir, name, now);
            }
            let dropped = state.recall(&recall);
            dropped.map(|dropped| (dropped, state.locks.recalled(&recall)))
        };
        let Some((mut dropped, locks)) = recalled else {
            return;
        };
        if !dropped.names.is_empty() {
            *self.recalled_names.borrow_mut() = Some(self.cx.monotonic());
            self.are_restless(dropped.told_names());
        }
        let noticed = self.drop_at_once(&dropped).await;
        drop(dropping);
        let dirty = self.cache.state().recalled_dirty(&recall);
        for file in dirty
            .iter()
            .filter(|_| !planted::is(Bug::ApproveBeforeFlush))
        {
            self.writeback.flush(file).await;
        }
        if !self.have_left(&dropped, noticed).await {
            return;
        }
        let approvable = Approvable {
            recall: recall.id,
            opens: std::mem::take(&mut dropped.opens),
            locks,
        };
        self.drop_recalled_pages(&recall, approvable);
    }

    fn drop_recalled_pages(self: &Arc<Self>, recall: &Recall, approvable: Approvable) {
        self.with(|state, out| {
            // Void meanwhile: the session has ended, or the server is another one.
            if !state.leases.open_recalls().any(|open| open == recall) {
                return;
            }
            let (mut pages, inodes) = (state.recalled_pages(recall), &mut state.inodes);
            pages.retain(|pages| !inodes.sweep_unseen(pages.file, out));
            inodes.drop_pages(&pages, DropKind::Recall, Then::Approve(approvable), out);
        });
    }

    /// Drops all pages from the kernel, those too that READs in flight are about to bring.
    async fn drop_all_pages(self: &Arc<Self>) {
        let (done, is_done) = oneshot::channel();
        let drop = self.with(|state, out| {
            let filled = state.inodes.filled();
            let (inodes, then) = (&mut state.inodes, Then::Wake(done));
            inodes.drop_pages(&filled, DropKind::Change, then, out)
        });
        // The sender goes away only together with what was waited for.
        let _ = is_done.await;
        self.with(|state, out| state.inodes.end_drop(drop, out));
    }
}
