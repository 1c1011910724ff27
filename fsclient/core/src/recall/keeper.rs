//! The task that watches: the clock, drops that are stuck, the memory budget.

use super::EngineInner;
use crate::api::{Notice, Noticed};
use crate::inode::{Dropped, Outcome};
use leasefs_lease::client::ChangeOf;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{Handle, Parts, Stamp};
use std::sync::Arc;
use std::time::Duration;

/// How often it looks while something is being dropped.
const BUSY: Duration = Duration::from_millis(2);
/// How often it looks else. A suspend is noticed this late at most, or by the first request.
const CALM: Duration = Duration::from_millis(100);
/// A drop that lasts longer waits for something in flight.
const STUCK: Duration = Duration::from_millis(3);
/// A drop that lasts longer than requests may take, and this much more, never ends.
const BEYOND: Duration = Duration::from_secs(30);
/// Between two releases of leases that nobody needs.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
/// Objects evicted at a time.
const EVICTED: usize = 256;
/// How often in one look. What has local users stays, so the budget can't always be kept.
const ROUNDS: usize = 64;

/// Keeps the caches of an engine.
pub(super) async fn keep(inner: Arc<EngineInner>) {
    let mut released = inner.cx.monotonic();
    loop {
        let called = inner.cache.keeper_called();
        let pause = match inner.look() {
            true => BUSY,
            false => CALM,
        };
        let releases = inner.cx.monotonic().since(released) >= RELEASE_EVERY;
        if inner.begin_to_tidy(releases) && releases {
            released = inner.cx.monotonic();
        }
        // Either is reason to look.
        let _ = inner.cx.timeout(pause, called).await;
    }
}

impl EngineInner {
    /// Looks after everything that time brings. True if it should look again soon.
    fn look(self: &Arc<Self>) -> bool {
        let mut outcome = Outcome::default();
        let (under_way, wedged) = {
            let mut state = self.cache.state();
            let now = self.cache.look(&mut state);
            let due = state.session.sweep_at();
            if due.is_some_and(|due| due <= now) && !planted::is(Bug::NoSweep) {
                tracing::warn!("no contact with the server: everything cached is dropped");
                state.expire(now);
            }
            let under_way = state.inodes.unblock(now - STUCK, &mut outcome);
            let since = state.inodes.longest_drop();
            let live = state.session.witness(now).is_some();
            let moved = self.cx.monotonic().since(state.pace.progress());
            let lasts = since.map(|since| now.since(since).min(moved));
            let wedged = live && self.is_wedged(lasts);
            (under_way, wedged)
        };
        self.perform(outcome);
        if wedged {
            self.give_up();
        }
        self.begin_due_sweep();
        under_way
    }

    /// While no bytes come through, every request is answered in bounded time, so every drop ends, unless
    /// the kernel waits for itself. `lasts`: how long one has, without such.
    fn is_wedged(&self, lasts: Option<Duration>) -> bool {
        let bound = self.rpc.longest_wait().map(|longest| longest + BEYOND);
        bound.zip(lasts).is_some_and(|(bound, lasts)| lasts > bound)
    }

    /// Callers get errors rather than stay stuck for ever, unkillable.
    fn give_up(&self) {
        if std::mem::replace(&mut *self.gave_up.borrow_mut(), true) {
            return;
        }
        tracing::error!(
            "the kernel doesn't drop pages although nothing is under way: the mount ends"
        );
        drop(self.outside.tell(Notice::End));
    }

    /// Begins to give back what nobody needs, if that isn't under way: it may wait for the kernel, which the clock doesn't.
    fn begin_to_tidy(self: &Arc<Self>, releases: bool) -> bool {
        let due = releases || self.cache.is_over_budget(&self.cache.state());
        if !due || std::mem::replace(&mut *self.tidies.borrow_mut(), true) {
            return false;
        }
        let inner = Arc::clone(self);
        self.cx.spawn(async move {
            if releases {
                inner.release_idle().await;
            }
            inner.keep_budget().await;
            *inner.tidies.borrow_mut() = false;
        });
        true
    }

    async fn release_idle(self: &Arc<Self>) {
        // What leaves the tables has left the kernel when this can be had.
        let _dropping = self.dropping().await;
        let releases = self.cache.state().release_idle();
        if !releases.is_empty() {
            self.rpc.release(releases);
        }
        let rights = self.cache.state().locks.give_idle_rights_back();
        if !rights.is_empty() {
            self.rpc.release_locks(&rights);
        }
    }

    /// Evicts what was not used for the longest time, and gives its leases back.
    async fn keep_budget(self: &Arc<Self>) {
        for _ in 0..ROUNDS {
            if !self.cache.is_over_budget(&self.cache.state()) {
                return;
            }
            let _dropping = self.dropping().await;
            let (victims, mut dropped) = self.evict();
            if victims.is_empty() {
                return;
            }
            dropped.opens.clear();
            let gone = self.drop_at_once(&dropped).await == Noticed::Done;
            self.give_back(&victims, gone);
        }
    }

    /// Gives back what is held of a closed file, as far as it covers nothing that only its maker has.
    pub(super) async fn leave(self: &Arc<Self>, object: Handle) {
        let _dropping = self.dropping().await;
        let victims = [ChangeOf::whole(object)];
        let mut dropped = Dropped::default();
        {
            let mut state = self.cache.state();
            if state.inodes.is_open(&object) || state.inodes.is_dirty(&object) {
                return;
            }
            state
                .inodes
                .drop_parts(&object, Parts::ALL, [], &mut dropped);
            state.leases.begin_change(&victims);
        }
        let gone = self.drop_at_once(&dropped).await == Noticed::Done;
        self.give_back(&victims, gone);
    }

    /// Takes victims out of the tables; until [`EngineInner::give_back`] nothing of them is cacheable.
    fn evict(&self) -> (Vec<ChangeOf>, Dropped) {
        let mut dropped = Dropped::default();
        let mut victims = Vec::new();
        let mut state = self.cache.state();
        let state = &mut *state;
        while victims.len() < EVICTED && !self.cache.has_room(state) {
            let Some(object) = state.inodes.evict(&mut dropped) else {
                break;
            };
            victims.push(ChangeOf::whole(object));
        }
        state.leases.begin_change(&victims);
        (victims, dropped)
    }

    pub(super) fn give_back(&self, victims: &[ChangeOf], gone: bool) {
        let mut releases = Vec::new();
        {
            let mut state = self.cache.state();
            state.leases.end_change(victims, Some(Stamp::default()));
            for victim in victims.iter().filter(|_| gone) {
                let object = &victim.object;
                let parts = state.uncovering(object);
                releases.extend(state.leases.release(object, parts));
            }
        }
        self.rpc.release(releases);
    }
}
