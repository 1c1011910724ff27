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
//! - *Attributes:* the kernel ignores attributes that were asked for before an invalidation
//!   (`attr_version`), and those of a LOOKUP reply also if it has dropped any inode meanwhile (`evict_ctr`, Linux 6.13).
//!   But an inode that it doesn't know yet it can't invalidate: the LOOKUP or READDIRPLUS reply may still be on its way. So a drop
//!   isn't done before the kernel knows the inode, or has given all references back
//!   ([`EngineInner::unseen_has_left`]).
//! - *Names:* an entry carries the epoch sampled before its LOOKUP was sent. One of a READDIRPLUS reply carries that of the
//!   moment in which it is taken up; so names are forgotten once more when it has been ([`crate::inode::Owed`]).
//!   Negative entries are never given a timeout.
//! - *Pages:* see [`leasefs_lease::client::PageGate`]. The recall is approved when nothing of the
//!   file is in the kernel and no READ is in flight that would bring something back. Or when nobody here can see
//!   pages of it: they are reached by a descriptor that may read, or a mapping, which keeps its descriptor, and each
//!   counts from before its OPEN is sent until its RELEASE. They go behind the approval, the file is *unclean* until
//!   they have, and whoever opens it waits for that ([`Engine::clean`]).
//!
//! When a reply is taken up may be for a local user to say. Who has marked waits for it without the lock, so that nobody has to wait
//! with him who drops something else: what isn't gone yet stays known ([`crate::inode::Inodes::is_unseen`],
//! [`crate::inode::Inodes::owes_names`]), and whoever drops it again waits as well.
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
//! [`Engine::clean`]. Leases that end here may stand at the server, and what they covered be recalled before the kernel has
//! dropped it: recalls and own changes wait for such sweeps, too.
//!
//! # Waiting
//!
//! Dropping pages may block in the kernel, so it is asked for and awaited, one range of a file at a
//! time. A keeper watches the clock, finds drops that are stuck, and sweeps. Everything else is done where
//! it is asked for, without waiting.

mod arrival;
mod faults;
mod keeper;
mod own;
mod read;
mod restless;
mod session;
mod store;
mod sweep;

pub(crate) use crate::cache::{ChangeScope, PageChange};
pub use faults::Fault;
pub(crate) use read::PageRead;

pub(crate) use leasefs_lease::client::{Span, Verdict};

use crate::api::{Notice, Noticed};
use crate::cache::{Cache, State};
use crate::call::NodeId;
use crate::inode::{Dropped, Outcome, PagesOf, ToldName};
use crate::outside::{Outside, Pending};
use crate::run::{Bell, Cx, Part, Set, first};
use crate::session::{Patience, Rpc};
use crate::writeback::Writeback;
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::lock::Mutex;
use leasefs_lease::client::{PageGate, Step};
use leasefs_lease::planted::{self, Bug};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Handle, Parts, Refusal};
use restless::Restless;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use sweep::Sweeps;

/// How long a failed drop waits before it is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// How often a failed drop is tried again.
const RETRIES: u32 = 50;
/// For how long the kernel is told no names after it had to forget them for another mount, or twice within that time
/// for this one.
const CALM: Duration = Duration::from_secs(1);
/// For how long after it forgot some for another mount, or one of a directory for this one, it is told none where names
/// come and go.
const STEADY: Duration = Duration::from_secs(10);

/// The recall engine of one mount. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Engine(Arc<EngineInner>);

struct EngineInner {
    cx: Cx,
    cache: Arc<Cache>,
    outside: Outside,
    rpc: Rpc,
    writeback: Writeback,
    /// Held from marking an object until the kernel has dropped what never blocks: whoever finds
    /// that the kernel knows nothing of it (any more) can rely on that.
    dropping: Arc<Mutex<()>>,
    sweeps: Sweeps,
    /// Names of a directory are owed no more, or attributes.
    paid: Bell,
    fault: Option<Fault>,
    /// When the kernel was last made to forget all names, and the time before.
    forgot: Part<[Option<BootTime>; 2]>,
    /// When names that the kernel knew were last taken back for another mount.
    recalled_names: Part<Option<BootTime>>,
    /// When a directory's name that the kernel knew was last taken back for this one.
    changed_directory: Part<Option<BootTime>>,
    restless: Part<Restless>,
    /// Whether the kernel's connection was ended because nothing else helped.
    gave_up: Part<bool>,
    /// Whether leases that nobody needs are being given back.
    tidies: Part<bool>,
}

/// What the engine works on.
pub(crate) struct EngineParts {
    pub cx: Cx,
    pub cache: Arc<Cache>,
    pub outside: Outside,
    pub rpc: Rpc,
    pub writeback: Writeback,
    /// How long a name isn't told to the kernel that had to be taken back from it.
    pub restless_for: Duration,
}

impl Engine {
    /// The engine of a mount; there is one to a cache.
    pub fn new(on: EngineParts, fault: Option<Fault>) -> Self {
        let engine = Self(Arc::new(EngineInner {
            cx: on.cx.clone(),
            cache: on.cache,
            outside: on.outside,
            rpc: on.rpc,
            writeback: on.writeback,
            dropping: Arc::default(),
            sweeps: Sweeps::default(),
            paid: Bell::default(),
            fault,
            forgot: Part::default(),
            recalled_names: Part::default(),
            changed_directory: Part::default(),
            restless: Part::new(Restless::new(on.restless_for)),
            gave_up: Part::default(),
            tidies: Part::default(),
        }));
        on.cx.spawn(keeper::keep(Arc::clone(&engine.0)));
        engine
    }

    /// Waits for something as long as a request may wait in here: while bytes come through, to the server
    /// or from it, that has no end.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub fn in_time<T>(
        &self,
        wait: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Refusal>> {
        self.0.in_time(wait, Patience::Usual)
    }

    /// As [`Engine::in_time`], for what a disk may take long for: as long as the server isn't silent.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub fn while_heard<T>(
        &self,
        wait: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Refusal>> {
        self.0.in_time(wait, Patience::WhileHeard)
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
        let told = self.0.cache.state().inodes.wait_clean(object);
        match told {
            Some(told) => self.0.wait(told).await,
            None => Ok(()),
        }
    }

    /// A node is about to be told under a name of a directory: before that it shows whether the kernel has taken up what a listing told of it
    /// last, if it was the last in that.
    pub fn is_told_by_name(&self, dir: &Handle, node: NodeId) {
        self.0.is_told_by_name(dir, node);
    }

    /// See [`EngineInner::comes_to_know`].
    pub async fn comes_to_know(&self, node: NodeId) {
        self.0.comes_to_know(node).await;
    }

    /// Makes the kernel ignore attributes in answers that it has not taken in yet.
    pub fn ignore_attrs(&self, object: &Handle) {
        if self.0.fault != Some(Fault::LookupAttrTimeout) {
            drop(self.0.drop_attrs(object));
        }
    }

    /// Whether the kernel isn't made to forget all names again and again: then it is better told none.
    pub fn is_calm(&self) -> bool {
        let again = match *self.0.forgot.borrow() {
            [Some(last), Some(before)] if last.since(before) <= CALM => Some(last),
            _ => None,
        };
        self.0.is_over(again, CALM) && self.0.is_over(*self.0.recalled_names.borrow(), CALM)
    }

    /// Whether names of directories can be told it also where names come and go: none that it knew was changed lately, nor
    /// any by another mount.
    pub fn is_steady(&self) -> bool {
        let last = [&self.0.recalled_names, &self.0.changed_directory];
        last.iter().all(|at| self.0.is_over(*at.borrow(), STEADY))
    }

    /// A name will probably have to be taken back if it is told to the kernel.
    pub fn is_replaced_often(&self, dir: Handle, name: &[u8]) {
        self.0.are_restless([(dir, name)].into_iter());
    }

    /// Whether a name is better not told to the kernel.
    pub fn is_restless(&self, dir: &Handle, name: &[u8]) -> bool {
        let now = self.0.cx.monotonic();
        self.0.restless.borrow().has(now, dir, name)
    }

    /// The kernel has forgotten an inode, and with it its pages.
    pub fn forgotten(&self, object: &Handle) {
        self.0.with(|state, out| {
            state.forgotten(object);
            state.inodes.with_pages(*object, out, PageGate::forgotten);
            if state.leases.held(object).contains(Parts::DATA) {
                state.idle.push(*object);
            }
        });
    }

    /// A file has been closed that others are expected to look for: they needn't have its lease recalled.
    pub fn leave(&self, object: Handle) {
        let inner = Arc::clone(&self.0);
        self.0.cx.spawn(async move { inner.leave(object).await });
    }

    /// See [`crate::inode::Inodes::sweep_pages`].
    pub fn sweep_pages(&self, object: &Handle) {
        self.0
            .with(|state, out| state.inodes.sweep_pages(*object, out));
    }

    /// Drops pages of a file from the kernel, which writes back what is stored in them: all before the first open that may store
    /// into shared mappings of it is answered.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub async fn drop_pages(&self, object: &Handle, span: Span) -> Result<(), Refusal> {
        if !self.0.cache.state().inodes.may_hold_pages(object) {
            return Ok(());
        }
        let scope = ChangeScope::default().pages(*object, PageChange::Drop(span));
        self.own_change(scope).await?.never_sent();
        Ok(())
    }
}

impl EngineInner {
    /// Does what has become possible.
    fn perform(self: &Arc<Self>, outcome: Outcome) {
        let Outcome {
            approve,
            wake,
            passes,
        } = outcome;
        if !approve.is_empty() && !planted::is(Bug::NeverApprove) {
            // Before it is sent: a recall repeated on a new connection must not be taken for one
            // that is still under way.
            self.cache.state().approved(&approve);
            self.rpc.approve(approve);
        }
        for tell in wake {
            // Whoever waited may be gone.
            let _ = tell.send(());
        }
        if !passes.is_empty() {
            self.cache.call_keeper();
        }
        for object in passes {
            self.cx.spawn(Arc::clone(self).pass(object));
        }
    }

    /// Changes state and does what follows.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, &mut Outcome) -> R) -> R {
        let mut outcome = Outcome::default();
        let result = change(&mut self.cache.state(), &mut outcome);
        self.perform(outcome);
        result
    }

    /// Drops the pages of a file, range by range.
    async fn pass(self: Arc<Self>, object: Handle) {
        loop {
            let now = self.cache.now();
            let step = self.with(|state, out| state.inodes.next_step(object, now, out));
            let Step::Drop(span) = step else { return };
            let drop = || {
                self.outside.tell_of(&object, |node| Notice::DropPages {
                    node,
                    offset: span.start(),
                    len: span.len_or_rest(),
                })
            };
            if !self.insist("pages", drop).await {
                // Never reported as done: the recall isn't approved.
                return;
            }
            let pages = PagesOf { file: object, span };
            self.with(|state, out| state.inodes.pages_dropped(pages, out));
        }
    }

    /// Tries again until it works; false if it doesn't.
    async fn insist<F>(&self, what: &str, drop: impl Fn() -> F) -> bool
    where
        F: Future<Output = Noticed>,
    {
        for _ in 0..RETRIES {
            if drop().await == Noticed::Done {
                return true;
            }
            self.cx.sleep(RETRY).await;
        }
        tracing::error!("the kernel doesn't drop {what}: the lease is left to expire");
        false
    }

    /// Drops from the kernel what it knows and what never blocks. Returns what of it the kernel may still hold: everything
    /// (`Failed`), or the names (`Unable`). What it may come to know is waited for by [`EngineInner::have_left`].
    async fn drop_at_once(self: &Arc<Self>, dropped: &Dropped) -> Noticed {
        let attrs: Vec<_> = dropped.attrs.iter().map(|o| self.drop_attrs(o)).collect();
        let told = !dropped.names.is_empty() && !planted::is(Bug::KeepNames);
        let names = told.then(|| self.forget_names());
        let mut failed = false;
        for (object, told) in dropped.attrs.iter().zip(attrs) {
            let told = told.await;
            failed |= told == Noticed::Failed;
            if told == Noticed::Done || planted::is(Bug::UnseenIsGone) {
                self.cache.inodes().is_seen_as_all(object);
            } else {
                self.watch_attrs(*object);
            }
        }
        let names = match names {
            Some(names) => names.await,
            None => Noticed::Done,
        };
        for dir in &dropped.owing {
            self.watch_names(*dir);
        }
        if failed { Noticed::Failed } else { names }
    }

    /// Whether something happened longer ago than this, or never.
    fn is_over(&self, at: Option<BootTime>, age: Duration) -> bool {
        at.is_none_or(|at| self.cx.monotonic().since(at) > age)
    }

    /// Names are changed for their own sake, and may be again soon.
    fn are_restless<'a>(&self, names: impl ExactSizeIterator<Item = (Handle, &'a [u8])>) {
        let now = self.cx.monotonic();
        self.restless.borrow_mut().taken_back(now, names);
    }

    fn drop_attrs(&self, object: &Handle) -> Pending {
        self.cache.inodes().outdates(object);
        self.outside.tell_of(object, Notice::DropAttrs)
    }

    /// Makes the kernel look all names up again that it has taken up.
    async fn forget_names(&self) -> Noticed {
        let forgetting = self.cache.inodes().begins_to_forget();
        let noticed = self.outside.tell(Notice::ForgetNames).await;
        if noticed == Noticed::Done {
            self.cache.inodes().has_forgotten(forgetting);
            let mut forgot = self.forgot.borrow_mut();
            *forgot = [Some(self.cx.monotonic()), forgot[0]];
        }
        noticed
    }

    /// Drops names one by one; waits for requests of their directories, and who reads them.
    async fn drop_names(&self, dropped: &Dropped) -> bool {
        for ToldName { dir, name, .. } in &dropped.names {
            let drop = || {
                self.outside.tell_of(dir, |dir| Notice::DropName {
                    dir,
                    name: name.clone(),
                })
            };
            if !self.insist("a name", drop).await {
                return false;
            }
        }
        self.pays(dropped);
        true
    }

    /// What was told of names that were dropped here is dropped there, or left to its timeouts.
    fn pays(&self, dropped: &Dropped) {
        let dirs: Set<Handle> = dropped.names.iter().map(|told| told.dir).collect();
        let mut inodes = self.cache.inodes();
        dirs.iter().for_each(|dir| inodes.names_are_paid(dir));
    }

    async fn wait(&self, told: oneshot::Receiver<()>) -> Result<(), Refusal> {
        // The sender goes away only together with what was waited for.
        self.in_time(told, Patience::Usual).await.map(drop)
    }

    fn in_time<T>(
        &self,
        wait: impl Future<Output = T>,
        patience: Patience,
    ) -> impl Future<Output = Result<T, Refusal>> {
        let late = self.rpc.wait(patience);
        let late = async move {
            self.rpc.too_late(late).await;
            Err(Refusal::TimedOut)
        };
        first(wait.map(Ok), late)
    }
}

#[cfg(test)]
mod tests;
