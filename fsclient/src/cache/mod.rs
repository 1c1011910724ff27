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
//! One mutex holds everything that must change together: a recall marks its object, drops what is
//! cached of it and closes its page gate in one step, so no reply can slip in between.

mod clock;
mod content;
mod dirty;
mod entry;
#[cfg(test)]
pub(crate) mod fixtures;
mod learned;
mod opens;
mod pages;
mod reading;
mod state;
mod status;
mod tables;
mod tier;

pub use clock::{Clock, SystemClock};
pub use dirty::{Store, Stored, Undone, Writer, Written};
pub use entry::{Dropped, Known, ListedName, Listing};
pub use learned::{Learned, ListingLease};
pub use leasefs_lease::client::Asked;
pub use reading::{Fetched, Here, Range};
pub use status::{CacheStatus, Kind};
pub use tier::Tier;

pub(crate) use dirty::{DirtyFile, Ended, Flushed, Round};
pub(crate) use pages::{Outcome, Pages, Then};
pub(crate) use state::{State, Work};

use leasefs_lease::client::Tenure;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Grant, Handle, OpenId};
use status::Counters;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// Memory the daemon's tier may use, in bytes (approximately), unless told otherwise.
pub const DEFAULT_BUDGET: usize = 256 << 20;

/// The cache of one mount.
pub struct Cache {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    counters: Counters,
    budget: usize,
    /// Whether names may be given to the kernel with a timeout.
    names_in_kernel: AtomicBool,
    /// The recall engine's thread, which sweeps, keeps the budget, and watches the clock.
    keeper: OnceLock<Thread>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl Cache {
    /// An empty cache of a session that has no leases yet.
    pub fn new(clock: Arc<dyn Clock>, budget: usize) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::new(State::new()),
            counters: Counters::default(),
            budget,
            names_in_kernel: AtomicBool::new(false),
            keeper: OnceLock::new(),
        })
    }

    /// What is cached, if the session's leases are valid now.
    ///
    /// The clock is read under the lock: what is cached at that moment is covered then, so an
    /// operation that has begun before may be answered from it, however long the answer takes.
    pub fn live(&self) -> Option<Tier<'_>> {
        let mut state = self.lock();
        let now = self.look(&mut state);
        Tier::new(self, state, now)
    }

    /// To be called before a request is sent; shown to [`Cache::learn`] with its reply.
    pub fn ask(&self) -> Asked {
        self.lock().leases.ask()
    }

    /// Takes in the grants of a reply; what the reply says can then be cached. The guard must not
    /// be held for longer than that takes.
    pub fn learn<'a>(&'a self, asked: Asked, grants: &'a [Grant]) -> Learned<'a> {
        let mut state = self.lock();
        state.granted(asked, grants);
        Learned::new(self, state, asked, grants)
    }

    /// Caches a whole listing under the lease of its first page, if that still stands.
    pub fn keep_listing(&self, lease: ListingLease, listing: Listing) {
        let mut state = self.lock();
        lease.keep(&mut state, listing);
        self.check_budget(&state);
    }

    /// A local user of a shared open has closed it. True if the open is of no use any more and the
    /// server must be told to close it.
    #[must_use]
    pub fn close(&self, object: &Handle, open: OpenId) -> bool {
        self.lock().tables.close(object, open)
    }

    /// Forgets the opens that nobody uses. The server must be told to close them.
    #[must_use]
    pub fn give_up_unused_opens(&self) -> Vec<OpenId> {
        self.lock().tables.give_up_unused_opens()
    }

    /// Whether the file may still have pages in the kernel without a lease; then nothing is told of
    /// it before the recall engine's `clean`.
    pub fn is_unclean(&self, object: &Handle) -> bool {
        self.lock().pages.is_unclean(object)
    }

    /// Leaves closing a server's open to the flusher of the file; false if it isn't needed there.
    pub fn close_when_clean(&self, object: &Handle, open: OpenId) -> bool {
        self.lock().close_when_clean(object, open)
    }

    /// Since when the file is held exclusively, if it is.
    pub fn tenure(&self, object: &Handle) -> Option<Tenure> {
        self.lock().leases.tenure(object)
    }

    /// Whether the file has bytes that the server may not have.
    pub fn is_dirty(&self, object: &Handle) -> bool {
        self.lock().dirty.contains(object)
    }

    /// For `fsclient status`.
    pub fn status(&self) -> CacheStatus {
        let state = self.lock();
        let now = self.clock.boot();
        CacheStatus {
            leases: state.leases.len(),
            parts: status::by_part(state.leases.reclaim_list().map(|lease| lease.parts)),
            recalls: state.leases.open_recalls().count(),
            remaining: state.session.remaining(now),
            bytes: state.tables.bytes() + state.content.bytes(),
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

    /// Names the thread that is woken when something must be dropped.
    pub(crate) fn set_keeper(&self, keeper: Thread) {
        // A second engine on one cache would be a mistake; the first keeps its place.
        let _ = self.keeper.set(keeper);
    }

    pub(crate) fn call_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves at worst too little cached.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.clock.boot()
    }

    /// Reads the clocks under the lock. After a suspend everything goes: the kernel's timeouts
    /// stood still.
    pub(crate) fn look(&self, state: &mut State) -> BootTime {
        let now = self.clock.boot();
        if state.session.has_jumped(now, self.clock.monotonic()) {
            state.expire(now);
            self.call_keeper();
        }
        now
    }

    /// A reply renews the session's leases.
    pub(crate) fn renew(&self, sent: BootTime, term: Duration, drift_ppm: u32) {
        let mut state = self.lock();
        state.renewed(sent, term, drift_ppm);
        if state.swept.is_some() {
            self.call_keeper();
        }
    }

    pub(crate) fn is_over_budget(&self, state: &State) -> bool {
        state.tables.bytes() > self.budget
    }

    /// Eviction goes on until there is some room.
    pub(crate) fn has_room(&self, state: &State) -> bool {
        state.tables.bytes() <= self.budget / 16 * 15
    }

    fn check_budget(&self, state: &State) {
        if self.is_over_budget(state) {
            self.call_keeper();
        }
    }
}
