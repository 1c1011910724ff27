//! The daemon's cache tier: attributes, names, listings, link targets, xattrs and opens, each
//! covered by a lease; and the state of the session's leases.
//!
//! - Reading: [`Cache::live`] gives a [`Tier`], which exists only while the session's leases are
//!   valid and can't be held over an `.await`.
//! - Filling: [`Cache::ask`] before a request is sent; [`Cache::learn`] with the reply's grants
//!   gives a [`Learned`], which caches what the reply says if nothing newer is known to contradict
//!   it.
//! - Dropping is the recall engine's (`crate::recall`).
//!
//! A recall marks its object, drops what is cached of it and closes its page gate in one step, so no reply
//! can slip in between.

mod change;
#[cfg(test)]
pub(crate) mod fixtures;
mod held;
mod learned;
mod pace;
mod reading;
mod rounds;
mod state;
mod status;
mod storing;
mod tier;

pub use held::HeldHere;
pub use learned::{Learned, ListingLease};
pub use leasefs_lease::client::Asked;
pub use reading::{Fetched, Here, Range};
pub use status::CacheStatus;
pub use tier::Tier;

pub(crate) use change::{ChangeScope, ChangedPages, PageChange};
pub(crate) use pace::{Pace, Sending};
pub(crate) use rounds::{Flushed, Round};
pub(crate) use state::{State, Work};
pub(crate) use storing::{DirtyFile, Store, Stored};

use crate::call::Listing;
use crate::inode::{Inodes, Kept};
use crate::locks::LockStatus;
use crate::memory::Memory;
use crate::run::{Bell, Cx, Part};
use atomic_refcell::AtomicRefMut;
use leasefs_lease::client::Tenure;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Grant, Handle};
use status::Counters;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The cache of one mount.
pub struct Cache {
    cx: Cx,
    state: Part<State>,
    counters: Counters,
    /// Whether names may be given to the kernel with a timeout.
    names_in_kernel: AtomicBool,
    /// Wakes the recall engine's keeper, which sweeps, keeps the budget, and watches the clock.
    keeper: Bell,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl Cache {
    /// An empty cache of a mount of this directory, in a session that has no leases yet.
    pub fn new(cx: Cx, root: Handle, memory: Memory) -> Arc<Self> {
        let mut state = State::new(root, memory);
        state.pace.begins(cx.monotonic());
        Arc::new(Self {
            cx,
            state: Part::new(state),
            counters: Counters::default(),
            names_in_kernel: AtomicBool::new(false),
            keeper: Bell::default(),
        })
    }

    /// What is cached, if the session's leases are valid now.
    ///
    /// The clock is read under the lock: what is cached at that moment is covered then, so an
    /// operation that has begun before may be answered from it, however long the answer takes.
    pub fn live(&self) -> Option<Tier<'_>> {
        let mut state = self.state();
        let now = self.look(&mut state);
        Tier::new(self, state, now)
    }

    /// To be called before a request is sent; shown to [`Cache::learn`] with its reply.
    pub fn ask(&self) -> Asked {
        self.state().leases.ask()
    }

    /// Takes in the grants of a reply; what the reply says can then be cached. The guard must not
    /// be held for longer than that takes.
    pub fn learn<'a>(&'a self, asked: Asked, grants: &'a [Grant]) -> Learned<'a> {
        let mut state = self.state();
        state.granted(asked, grants);
        Learned::new(self, state, asked, grants)
    }

    /// Caches a whole listing under the lease of its first page, if that still stands.
    pub fn keep_listing(&self, lease: ListingLease, listing: Listing) {
        let mut state = self.state();
        lease.keep(&mut state, listing);
        self.check_budget(&state);
    }

    /// Whether what was kept back of a file has outlived its lease.
    pub fn is_late(&self, file: &Handle, kept: Kept) -> bool {
        self.state().inodes.is_late(file, kept)
    }

    /// Since when the file is held exclusively, if it is.
    pub fn tenure(&self, object: &Handle) -> Option<Tenure> {
        self.state().leases.tenure(object)
    }

    /// Whether the file has bytes that the server may not have.
    pub fn is_dirty(&self, object: &Handle) -> bool {
        self.state().inodes.is_dirty(object)
    }

    /// For `fsclient status`.
    pub fn status(&self) -> CacheStatus {
        let state = self.state();
        let now = self.cx.boot();
        CacheStatus {
            leases: state.leases.len(),
            parts: status::by_part(state.leases.reclaim_list().map(|lease| lease.parts)),
            recalls: state.leases.open_recalls().count(),
            remaining: state.session.remaining(now),
            memory: state.inodes.memory_use(),
            answers: self.counters.all(),
        }
    }

    /// Whether names may be given to the kernel with a timeout.
    pub(crate) fn set_names_in_kernel(&self, may: bool) {
        self.names_in_kernel.store(may, Ordering::Release);
    }

    pub(crate) fn names_in_kernel(&self) -> bool {
        self.names_in_kernel.load(Ordering::Acquire)
    }

    /// How long the kernel may believe a name that it is told now in the reply to a LOOKUP.
    fn name_timeout(
        &self,
        state: &mut State,
        now: BootTime,
        dir: &Handle,
        name: &[u8],
    ) -> Duration {
        let State {
            session, inodes, ..
        } = state;
        let live = session.witness(now).filter(|_| self.names_in_kernel());
        live.map_or(Duration::ZERO, |live| inodes.name_timeout(&live, dir, name))
    }

    /// Resolves when something must be dropped.
    pub(crate) fn keeper_called(&self) -> impl Future<Output = ()> + use<> {
        self.keeper.listen()
    }

    pub(crate) fn call_keeper(&self) {
        self.keeper.ring_one();
    }

    pub(crate) fn state(&self) -> AtomicRefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// All inodes. Not to be kept.
    pub(crate) fn inodes(&self) -> AtomicRefMut<'_, Inodes> {
        AtomicRefMut::map(self.state(), |state| &mut state.inodes)
    }

    /// How fast bytes go to the server. Not to be kept.
    pub(crate) fn pace(&self) -> AtomicRefMut<'_, Pace> {
        AtomicRefMut::map(self.state(), |state| &mut state.pace)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.cx.boot()
    }

    /// What time it is. After a suspend everything goes: the kernel's timeouts stood still.
    pub(crate) fn look(&self, state: &mut State) -> BootTime {
        let now = self.cx.now();
        if state.session.has_jumped(now.boot, now.monotonic) {
            state.expire(now.boot);
            self.call_keeper();
        }
        now.boot
    }

    /// Locks that are held or waited for, and where their files are.
    pub(crate) fn locks(&self) -> Vec<(LockStatus, Option<PathBuf>)> {
        let mut state = self.state();
        let now = self.look(&mut state);
        let locks = state.locks_at(now).status();
        let at = |lock: LockStatus| {
            let path = state.path_of(&lock.object);
            (lock, path)
        };
        locks.into_iter().map(at).collect()
    }

    /// Where an object was found last, for people.
    pub(crate) fn path_of(&self, object: &Handle) -> Option<PathBuf> {
        self.state().path_of(object)
    }

    /// Locks that are held at `now`; `None` if the session's leases aren't valid then.
    pub(crate) fn held_locks(&self, now: BootTime) -> Option<Vec<LockStatus>> {
        let state = self.state();
        state.session.witness(now)?;
        Some(state.locks.held())
    }

    /// See [`Cache::look`].
    pub(crate) fn look_at_clock(&self) {
        self.look(&mut self.state());
    }

    /// A reply renews the session's leases.
    pub(crate) fn renew(&self, sent: BootTime, term: Duration, drift_ppm: u32) {
        let mut state = self.state();
        state.renewed(sent, term, drift_ppm);
        if state.swept.is_some() {
            self.call_keeper();
        }
    }

    pub(crate) fn is_over_budget(&self, state: &State) -> bool {
        state.inodes.cached_bytes() > state.inodes.memory().for_cached()
    }

    /// Eviction goes on until there is some room.
    pub(crate) fn has_room(&self, state: &State) -> bool {
        state.inodes.cached_bytes() <= state.inodes.memory().for_cached() / 16 * 15
    }

    fn check_budget(&self, state: &State) {
        if self.is_over_budget(state) {
            self.call_keeper();
        }
    }
}
