//! The recall engine: takes back from the kernel what the leases no longer cover, then approves.
//!
//! # Why nothing stale survives an approval
//!
//! *Mark, then drop.* A recall first marks its object, under the cache's lock: from then on no
//! reply gives the kernel a timeout for it. Then the kernel is told to drop. (Both together under a
//! lock of their own: a second recall or own change of the object, which finds that the kernel was
//! told nothing of it, must not go on before the first one's drop is done.) Whatever the kernel got
//! by a reply that was decided before the mark was asked for before the drop:
//!
//! - *Attributes:* the kernel ignores a GETATTR reply that was asked for before an invalidation
//!   (`attr_version`), and only GETATTR replies carry attribute timeouts.
//! - *Names:* an entry carries the epoch sampled before its LOOKUP was sent. Negative entries are
//!   never given a timeout.
//! - *Pages:* see [`leasefs_lease::client::PageGate`]. The recall is approved when nothing of the
//!   file is in the kernel and no READ is in flight that would bring something back.
//!
//! *Grant and recall on different streams:* judged by stamps ([`leasefs_lease::client::Leases`]).
//!
//! *A READ and an approval on different streams:* a READ that is sent after the approval may arrive
//! before it. The server then grants nothing, since the session still owes. A reply without a lease
//! is handed to the kernel only if a recall of the file was open here when that READ was sent, and
//! still is; else the server is asked again.
//!
//! # Own changes
//!
//! The server doesn't recall from the sender what the sender has dropped. So [`Engine::own_change`]
//! does what a recall does, *before* the change is sent: otherwise a second local process could
//! read the old state after another mount has read the new. While it is unanswered nothing of what
//! it changes is cached, and READs of the range wait. A file held exclusively (Write lease) may
//! keep its pages until the answer: nobody else can see the change before that lease is recalled.
//! There they must even stay: dropping a dirty page under a truncation would wait for a WRITE that
//! the kernel holds back until the truncation is answered.
//!
//! A change holds locks in the kernel. So on its behalf nothing is done that takes them: names are
//! taken back by epoch, never one by one.
//!
//! # Expiry
//!
//! A client out of contact drops everything shortly before its leases end by its own clock, and at
//! once after a suspend. Replies that were under way are not cached any more. A file that could not
//! be dropped yet (a READ is in flight) is *unclean*: GETATTR, OPEN and READ wait for
//! [`Engine::clean`].
//!
//! # Threads
//!
//! Dropping pages may block in the kernel, so it runs on threads of its own, one file at a time on
//! each; when all are blocked there will be more. A keeper thread watches the clock, finds drops
//! that are stuck, and sweeps. Everything else is done where it is asked for, without waiting.

mod faults;
mod keeper;
mod kernel;
mod own;
mod read;
mod session;
mod store;
mod threads;

pub use faults::{Fault, fault};
pub use kernel::{KernelCache, Server};
pub use own::{ChangeScope, OwnChange, PageChange};
pub use read::PageRead;

pub use leasefs_lease::client::{ChangeOf, Span, Verdict};

use crate::cache::{Cache, Dropped, Outcome, State};
use leasefs_lease::client::{PageGate, Step};
use leasefs_protocol::{Handle, Parts, Refusal};
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use threads::Threads;
use tokio::sync::oneshot;

/// How long a failed drop waits before it is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// How often a failed drop is tried again.
const RETRIES: u32 = 50;

/// The recall engine of one mount. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    cache: Arc<Cache>,
    kernel: Arc<dyn KernelCache>,
    server: Arc<dyn Server>,
    threads: Threads,
    /// Held from marking an object until the kernel has dropped what never blocks: whoever finds
    /// that the kernel knows nothing of it (any more) can rely on that.
    dropping: Mutex<()>,
    fault: Option<Fault>,
    /// Whether the connection was ended because nothing else helped.
    gave_up: AtomicBool,
    /// How long a request waits here at most; `None` is for ever.
    timeout: Option<Duration>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// The engine of a mount; there is one to a cache. `timeout` bounds how long a request waits in
    /// here. Its keeper thread ends with the last clone.
    pub fn new(
        cache: Arc<Cache>,
        kernel: Arc<dyn KernelCache>,
        server: Arc<dyn Server>,
        timeout: Option<Duration>,
    ) -> Self {
        let fault = fault();
        let engine = Self(Arc::new(Inner {
            cache,
            kernel: faults::kernel(fault, kernel),
            server,
            threads: Threads::default(),
            dropping: Mutex::default(),
            fault,
            gave_up: AtomicBool::new(false),
            timeout,
        }));
        keeper::start(&engine.0);
        engine
    }

    /// Waits for something as long as a request may wait in here.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub async fn in_time<T>(&self, wait: impl Future<Output = T>) -> Result<T, Refusal> {
        match self.0.timeout {
            None => Ok(wait.await),
            Some(timeout) => tokio::time::timeout(timeout, wait)
                .await
                .map_err(|_| Refusal::TimedOut),
        }
    }

    /// The cache whose leases it keeps.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.0.cache
    }

    /// Waits until the kernel holds no page of the file that isn't covered by a lease. To be
    /// awaited before a GETATTR or OPEN is answered from the server's reply. Usually there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub async fn clean(&self, object: &Handle) -> Result<(), Refusal> {
        let told = self.0.cache.lock().pages.wait_clean(object);
        match told {
            Some(told) => self.0.wait(told).await,
            None => Ok(()),
        }
    }

    /// Makes the kernel ignore attributes in answers that it has not taken in yet. Never blocks.
    pub fn ignore_attrs(&self, object: &Handle) {
        if self.0.fault == Some(Fault::LookupAttrTimeout) {
            return;
        }
        self.0.drop_attrs(object);
    }

    /// The kernel has forgotten an inode, and with it its pages. `is_unknown` must say whether it
    /// still has (it may have looked it up again meanwhile); it is called under the cache's lock.
    pub fn forgotten(&self, object: &Handle, is_unknown: impl FnOnce() -> bool) {
        self.0.with(|state, out| {
            if !is_unknown() {
                return;
            }
            state.forgotten(object);
            state.pages.with(*object, out, PageGate::forgotten);
            if state.leases.held(object).contains(Parts::DATA) {
                state.idle.push(*object);
            }
        });
    }

    /// Drops every page of a file from the kernel: before the first open that may store into shared
    /// mappings of it is answered.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub async fn drop_pages(&self, object: &Handle) -> Result<(), Refusal> {
        if !self.0.cache.lock().pages.may_hold(object) {
            return Ok(());
        }
        let scope = ChangeScope::default().pages(*object, PageChange::Drop(Span::ALL));
        self.own_change(scope).await?.never_sent();
        Ok(())
    }
}

impl Inner {
    /// Does what has become possible. Without the lock.
    fn perform(self: &Arc<Self>, outcome: Outcome) {
        let Outcome {
            approve,
            wake,
            passes,
        } = outcome;
        if !approve.is_empty() {
            // Before it is sent: a recall repeated on a new connection must not be taken for one
            // that is still under way.
            self.cache.lock().approved(&approve);
            self.server.approve(approve);
        }
        for tell in wake {
            // Whoever waited may be gone.
            let _ = tell.send(());
        }
        if !passes.is_empty() {
            self.cache.call_keeper();
        }
        for object in passes {
            let inner = Arc::clone(self);
            self.threads.run(move || inner.pass(&object));
        }
    }

    /// Changes state under the lock and does what follows.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, &mut Outcome) -> R) -> R {
        let mut outcome = Outcome::default();
        let result = change(&mut self.cache.lock(), &mut outcome);
        self.perform(outcome);
        result
    }

    /// Drops the pages of a file, range by range. Blocks.
    fn pass(self: &Arc<Self>, object: &Handle) {
        loop {
            let now = self.cache.now();
            let step = self.with(|state, out| state.pages.next_step(object, now, out));
            let Step::Drop(span) = step else { return };
            let (start, len) = (span.start(), span.len_or_rest());
            let dropped = self.insist("pages", || self.kernel.drop_pages(object, start, len));
            if !dropped {
                // Never reported as done: the recall isn't approved.
                return;
            }
            self.with(|state, out| state.pages.dropped(object, out));
        }
    }

    /// Tries again until it works; false if it doesn't.
    fn insist(&self, what: &str, drop: impl Fn() -> std::io::Result<()>) -> bool {
        for _ in 0..RETRIES {
            match drop() {
                Ok(()) => return true,
                Err(error) => {
                    tracing::warn!(%error, "the kernel doesn't drop {what}; trying again")
                }
            }
            std::thread::sleep(RETRY);
        }
        tracing::error!("the kernel doesn't drop {what}: the lease is left to expire");
        false
    }

    /// Drops from the kernel what never blocks. False if the kernel may still hold something.
    fn drop_at_once(&self, dropped: &Dropped) -> bool {
        let mut done = true;
        for object in &dropped.attrs {
            done &= self.drop_attrs(object);
        }
        done & (dropped.names.is_empty() || self.forget_names())
    }

    fn drop_attrs(&self, object: &Handle) -> bool {
        let dropped = self.kernel.drop_attrs(object);
        if let Err(error) = &dropped {
            tracing::warn!(%error, "the kernel doesn't drop attributes");
        }
        dropped.is_ok()
    }

    fn dropping(&self) -> MutexGuard<'_, ()> {
        self.dropping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the kernel look all names up again.
    fn forget_names(&self) -> bool {
        // Before the kernel is told: what is given out from now on counts as known.
        self.cache.lock().tables.next_epoch();
        match self.kernel.forget_names() {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the kernel doesn't forget names");
                false
            }
        }
    }

    /// Drops names one by one. Blocks.
    fn drop_names(&self, dropped: &Dropped) -> bool {
        dropped
            .names
            .iter()
            .all(|(dir, name)| self.insist("a name", || self.kernel.drop_name(dir, name)))
    }

    async fn wait(&self, mut told: oneshot::Receiver<()>) -> Result<(), Refusal> {
        if told.try_recv().is_ok() {
            return Ok(());
        }
        // The sender goes away only together with what was waited for.
        match self.timeout {
            None => drop(told.await),
            Some(timeout) => drop(
                tokio::time::timeout(timeout, told)
                    .await
                    .map_err(|_| Refusal::TimedOut)?,
            ),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
