//! The thread that watches: the clock, drops that are stuck, the memory budget.

use super::Inner;
use crate::cache::{Dropped, Outcome};
use leasefs_lease::client::ChangeOf;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Parts, Stamp};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often it looks while something is being dropped.
const BUSY: Duration = Duration::from_millis(2);
/// How often it looks else. A suspend is noticed this late at most, or by the first request.
const CALM: Duration = Duration::from_millis(100);
/// A drop that lasts longer waits for something in flight.
const STUCK: Duration = Duration::from_millis(3);
/// A drop that lasts longer than requests may take, and this much more, never ends.
const BEYOND: Duration = Duration::from_secs(30);
/// Calm looks between two releases of leases that nobody needs.
const RELEASE_EVERY: u32 = 10;
/// Objects evicted at a time.
const EVICTED: usize = 256;
/// How often in one look. What has local users stays, so the budget can't always be kept.
const ROUNDS: usize = 64;

/// Starts the keeper of an engine; it ends with the engine.
pub(super) fn start(inner: &Arc<Inner>) {
    let engine = Arc::downgrade(inner);
    let thread = std::thread::Builder::new()
        .name("leasefs-keeper".into())
        .spawn(move || keep(&engine));
    match thread {
        Ok(handle) => inner.cache.set_keeper(handle.thread().clone()),
        // Without it nothing is swept in time, and nothing may be cached.
        Err(error) => tracing::error!(%error, "no thread to keep the caches"),
    }
}

fn keep(engine: &Weak<Inner>) {
    let mut pause = Duration::ZERO;
    let mut looks = 0;
    loop {
        std::thread::park_timeout(pause);
        let Some(inner) = engine.upgrade() else {
            return;
        };
        looks += 1;
        pause = match inner.look() {
            true => BUSY,
            false => CALM,
        };
        if looks % RELEASE_EVERY == 0 {
            inner.release_idle();
        }
        inner.keep_budget();
    }
}

impl Inner {
    /// Looks after everything that time brings. True if it should look again soon.
    fn look(self: &Arc<Self>) -> bool {
        let may = self.kernel.can_forget_names();
        self.cache.set_names_in_kernel(may);
        let mut outcome = Outcome::default();
        let (swept, under_way, wedged) = {
            let mut state = self.cache.lock();
            let now = self.cache.look(&mut state);
            let due = state.session.sweep_at();
            if due.is_some_and(|due| due <= now) {
                tracing::warn!("no contact with the server: everything cached is dropped");
                state.expire(now);
            }
            let under_way = state.pages.unblock(before(now), &mut outcome);
            let since = state.pages.longest_since();
            let live = state.session.witness(now).is_some();
            let wedged = live && self.is_wedged(since, now);
            (state.swept.take(), under_way, wedged)
        };
        self.perform(outcome);
        if wedged {
            self.give_up();
        }
        if let Some(work) = swept {
            let inner = Arc::clone(self);
            self.threads.run(move || inner.sweep(work));
        }
        self.threads.look() || under_way
    }

    /// Every request is answered in bounded time, so every drop ends, unless the kernel waits for
    /// itself.
    fn is_wedged(&self, since: Option<BootTime>, now: BootTime) -> bool {
        let bound = self.timeout.map(|timeout| timeout + BEYOND);
        let lasts = since.map(|since| now.since(since));
        bound.zip(lasts).is_some_and(|(bound, lasts)| lasts > bound)
    }

    /// Callers get errors rather than stay stuck for ever, unkillable.
    fn give_up(&self) {
        if self.gave_up.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::error!(
            "the kernel doesn't drop pages although nothing is under way: the mount ends"
        );
        if let Err(error) = self.kernel.end() {
            tracing::error!(%error, "the connection can't be ended: write 1 to its abort file in /sys/fs/fuse/connections");
        }
    }

    fn release_idle(&self) {
        // What leaves the tables has left the kernel when this can be had.
        let _dropping = self.dropping();
        let releases = self.cache.lock().release_idle();
        if !releases.is_empty() {
            self.server.release(releases);
        }
    }

    /// Evicts what was not used for the longest time, and gives its leases back.
    fn keep_budget(&self) {
        for _ in 0..ROUNDS {
            if !self.cache.is_over_budget(&self.cache.lock()) {
                return;
            }
            let _dropping = self.dropping();
            let (victims, dropped) = self.evict();
            if victims.is_empty() {
                return;
            }
            let names_gone = dropped.names.is_empty() || self.kernel.can_forget_names();
            for open in &dropped.closes {
                self.server.close(*open);
            }
            let told = Dropped {
                names: if names_gone {
                    dropped.names
                } else {
                    Vec::new()
                },
                ..dropped
            };
            let gone = self.drop_at_once(&told) && names_gone;
            self.give_back(&victims, gone);
        }
    }

    /// Takes victims out of the tables; until [`Inner::give_back`] nothing of them is cacheable.
    fn evict(&self) -> (Vec<ChangeOf>, Dropped) {
        let mut dropped = Dropped::default();
        let mut victims = Vec::new();
        let mut state = self.cache.lock();
        let state = &mut *state;
        while victims.len() < EVICTED && !self.cache.has_room(state) {
            let Some(object) = state.tables.evict(&mut dropped) else {
                break;
            };
            victims.push(ChangeOf {
                object,
                parts: Parts::ALL,
                names: Vec::new(),
            });
        }
        state.leases.begin_change(&victims);
        (victims, dropped)
    }

    fn give_back(&self, victims: &[ChangeOf], gone: bool) {
        let mut releases = Vec::new();
        {
            let mut state = self.cache.lock();
            state.leases.end_change(victims, Some(Stamp::default()));
            for victim in victims.iter().filter(|_| gone) {
                let object = &victim.object;
                let parts = match state.pages.may_hold(object) {
                    true => Parts::ALL - Parts::DATA,
                    false => Parts::ALL,
                };
                releases.extend(state.leases.release(object, parts));
            }
        }
        self.server.release(releases);
    }
}

fn before(now: BootTime) -> BootTime {
    now - STUCK
}
