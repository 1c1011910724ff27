//! What runs a core: everything that happens goes through [`Driver::drive`], everything it wants done is
//! done here or handed on.
//!
//! Two locks, taken in this order: the core's, and the right to send ([`Wire::out`]). The latter is taken
//! before the former is let go of, so that what is said goes out in the order in which it was decided.
//! Nobody waits for anything while holding either.

mod batch;
pub mod caller;
mod keeping;
#[cfg(test)]
mod tests;
mod threads;
mod ticker;
mod underway;

pub use keeping::Refuge;

use crate::clock;
use crate::session::{Ear, Facts, Link, Status, Wire, nobody_listens};
use batch::{Batch, as_of_now};
use keeping::Keeping;
use leasefs_client::{
    Action, Answer, Asker, CacheStatus, Call, ClientCore, Config, Event, HeldHere, LockStatus,
    Notice, Noticed, Now, SessionStatus, Undelivered, WriteBackStatus,
};
use leasefs_protocol::{Handle, Refusal};
use leasefs_transport::promptly;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use threads::Threads;
use ticker::Ticker;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use underway::AllUnderWay;

/// So many requests under way are few.
const FEW: usize = 3;
/// How long the end of a session may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// Takes the answer to a call.
pub trait Waiter: Send + 'static {
    /// One of the daemon's own.
    fn of_daemon(answer: oneshot::Sender<Result<Answer, Refusal>>) -> Self;

    /// Gives it.
    fn answer(self, answer: Result<Answer, Refusal>);
}

impl Waiter for oneshot::Sender<Result<Answer, Refusal>> {
    fn of_daemon(answer: Self) -> Self {
        answer
    }

    fn answer(self, answer: Result<Answer, Refusal>) {
        // Who has asked may be gone.
        let _ = self.send(answer);
    }
}

/// The kernel, as far as a core may tell it something. Before it is there it knows nothing.
pub trait Kernel: Send + Sync + 'static {
    /// Tells it. Blocks only if [`Notice::never_blocks`] says so.
    fn tell(&self, notice: &Notice) -> Noticed;

    /// Whether [`Notice::ForgetNames`] works now.
    fn can_forget_names(&self) -> bool;

    /// Nothing may wait for this process any more, which ends now.
    fn end_process(&self) -> !;
}

/// What a driver is made with.
pub struct Setup {
    /// Of the core.
    pub core: Config,
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// Takes what can't be brought to the server.
    pub refuge: Refuge,
    /// Runs what waits.
    pub runtime: Runtime,
    /// With whom connections are made.
    pub session: Arc<crate::session::Config>,
}

/// A core, and all that it needs to run.
pub struct Driver<W: Waiter> {
    me: Weak<Self>,
    core: Mutex<ClientCore<W>>,
    calls: AtomicU64,
    /// What the core held when it broke has been kept; changed while it is locked.
    given_up: AtomicBool,
    kernel: Arc<dyn Kernel>,
    wire: Wire<W>,
    keeping: Arc<Keeping>,
    threads: Threads,
    under_way: AllUnderWay,
    ticker: Ticker,
    runtime: Runtime,
    ended: watch::Sender<bool>,
}

impl<W: Waiter> std::fmt::Debug for Driver<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl<W: Waiter> Driver<W> {
    /// Begins a session on its first connection.
    ///
    /// # Errors
    /// If there can be no thread that looks after it.
    pub fn start(setup: Setup, link: Link) -> io::Result<Arc<Self>> {
        let Setup {
            mut core,
            kernel,
            refuge,
            runtime,
            session,
        } = setup;
        core.can_forget_names = kernel.can_forget_names();
        let can_forget_names = core.can_forget_names;
        let driver = Arc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            core: Mutex::new(ClientCore::new(core, clock::now())),
            calls: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            kernel,
            wire: Wire::new(session, runtime.clone(), ear(me.clone())),
            keeping: Arc::new(Keeping::new(refuge)),
            threads: Threads::default(),
            under_way: AllUnderWay::default(),
            ticker: Ticker::default(),
            runtime,
            ended: watch::Sender::new(false),
        });
        ticker::start(&driver, can_forget_names)?;
        driver.wire.stands(link);
        Ok(driver)
    }

    /// The kernel is connected: what it can do is known from now on.
    pub fn kernel_connected(&self) {
        self.ticker.connected();
    }

    /// Tells the core what has happened, and does what it wants done. What it wants sent goes out on this thread
    /// while few requests are under way. Packets of several requests each cost less than a wake-up saved, and the
    /// runtime's threads put into them what has come together.
    pub fn drive(&self, event: Event<W>) {
        if matches!(event, Event::Call { .. }) {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        self.run(event, FEW);
    }

    fn run(&self, event: Event<W>, few: usize) {
        let mut next = Some(event);
        // Empty but for moments: then it allocates nothing.
        let mut more = VecDeque::new();
        while let Some(event) = next.take().or_else(|| more.pop_front()) {
            let mut core = self.lock();
            let now = clock::now();
            let mut batch = Batch::of(now.boot);
            self.guarded(&mut core, |core| self.turn(core, (now, event), &mut batch));
            let at_once = core.requests_under_way() <= few;
            // Nobody is told something else to send before this is on its way.
            let out = batch.has_sends().then(|| self.wire.out());
            drop(core);
            match at_once {
                true => promptly(|| batch.send(out, &mut more)),
                false => batch.send(out, &mut more),
            }
            batch.perform(self);
        }
    }

    fn turn(&self, core: &mut ClientCore<W>, (now, event): (Now, Event<W>), batch: &mut Batch<W>) {
        core.handle(now, event);
        while let Some(action) = core.poll_action() {
            let action = match action {
                Action::Answer(waiter, Ok(answer)) if answer.believed() => {
                    waiter.answer(as_of_now(now.boot, Ok(answer)));
                    continue;
                }
                action => action,
            };
            if let Some((id, notice)) = batch.take_in(action) {
                let noticed = self.kernel.tell(&notice);
                core.handle(clock::now(), Event::Notified(id, noticed));
            }
        }
        self.ticker.due(core.next_deadline());
    }

    fn lock(&self) -> MutexGuard<'_, ClientCore<W>> {
        match self.core.lock() {
            Ok(core) => core,
            // Whoever has panicked while holding it should be gone, and this process with him.
            Err(poisoned) => self.give_up(&mut poisoned.into_inner()),
        }
    }

    fn with<T>(&self, ask: impl FnOnce(&mut ClientCore<W>) -> T) -> T {
        self.guarded(&mut self.lock(), ask)
    }

    /// What the core knows after a panic in it is not to be trusted, so that nobody goes on with it.
    fn guarded<T>(&self, core: &mut ClientCore<W>, ask: impl FnOnce(&mut ClientCore<W>) -> T) -> T {
        match catch_unwind(AssertUnwindSafe(|| ask(core))) {
            Ok(told) => told,
            Err(_) => self.give_up(core),
        }
    }

    fn give_up(&self, core: &mut ClientCore<W>) -> ! {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            tracing::error!("a defect of this program: the mount ends, for it can't be trusted");
            let left = catch_unwind(AssertUnwindSafe(|| core.take_undelivered()));
            for undelivered in left.unwrap_or_default() {
                // What becomes of it is logged there.
                self.keeping.keep(undelivered);
            }
        }
        self.kernel.end_process()
    }

    /// Makes a call of the daemon's own.
    ///
    /// # Errors
    /// As it comes out.
    pub async fn call(&self, call: Call) -> Result<Answer, Refusal> {
        self.call_for(Asker::default(), call).await
    }

    /// Makes a call of the daemon's own on somebody's behalf.
    ///
    /// # Errors
    /// As it comes out.
    pub async fn call_for(&self, asker: Asker, call: Call) -> Result<Answer, Refusal> {
        let (waiter, answer) = oneshot::channel();
        self.drive(Event::Call {
            waiter: W::of_daemon(waiter),
            asker,
            call,
        });
        // Each call is answered once.
        answer.await.unwrap_or(Err(Refusal::Internal))
    }

    /// Ends the session: the server is told that nothing is held any more, if that is possible within
    /// two seconds. Calls that still wait are never answered.
    pub async fn goodbye(&self) {
        let mut ended = self.ended.subscribe();
        self.drive(Event::Goodbye);
        // The sender lives in `self`.
        let _ = timeout(FAREWELL, ended.wait_for(|ended| *ended)).await;
        self.wire.close().await;
    }

    /// The session, for people.
    pub fn status(&self) -> Status {
        Status::new(self.session_status(), &self.wire)
    }

    /// The session, as the core sees it.
    pub fn session_status(&self) -> SessionStatus {
        self.with(|core| core.session_status())
    }

    /// What is told of the connection.
    pub fn facts(&self) -> Facts {
        self.wire.facts()
    }

    /// Whether the server's host says, now, that nobody has its port.
    pub async fn nobody_listens(&self) -> bool {
        nobody_listens(self.wire.config()).await
    }

    /// How many calls it was asked to make, the daemon's own among them.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// What is cached, for people.
    pub fn cache_status(&self) -> CacheStatus {
        self.with(|core| core.cache_status())
    }

    /// What waits to be written back, and how it gets on.
    pub fn write_back_status(&self) -> WriteBackStatus {
        self.with(|core| core.write_back_status())
    }

    /// Whether the session has changed anything.
    pub fn has_changed(&self) -> bool {
        self.with(|core| core.has_changed())
    }

    /// Locks that are held or waited for, and where their files are, as far as it is known.
    pub fn locks(&self) -> Vec<(LockStatus, Option<PathBuf>)> {
        self.with(|core| core.locks())
    }

    /// What there is here of an object, for people.
    pub fn held_here(&self, object: &Handle) -> HeldHere {
        self.with(|core| core.held_here(object))
    }

    /// What a path below the mount's root denotes, as far as that is cached.
    pub fn cached_path(&self, path: &[Box<[u8]>]) -> Option<Handle> {
        self.with(|core| core.cached_path(path))
    }

    /// The files that are not flushed.
    pub fn dirty_files(&self) -> Vec<(Handle, Option<PathBuf>)> {
        self.with(|core| core.dirty_files())
    }

    /// Keeps everything that the server, or its disk, may not have. Blocks on the disk. Returns of how
    /// many files, and of how many that failed: they are lost.
    pub fn keep_all(&self) -> (usize, usize) {
        let left: Vec<Undelivered> = self.with(|core| core.take_undelivered());
        let files = left.len();
        // What becomes of it is logged there.
        let kept = left.into_iter().filter_map(|left| self.keeping.keep(left));
        let kept = kept.count();
        (kept, files - kept)
    }

    /// How often bytes could not be brought in, while it was mounted, of which nobody has disposed since.
    /// Blocks on the disk.
    pub fn left_behind(&self) -> usize {
        self.keeping.left_behind()
    }
}

fn ear<W: Waiter>(driver: Weak<Driver<W>>) -> Ear<W> {
    Arc::new(move |event| {
        if let Some(driver) = driver.upgrade() {
            // On a thread of the runtime, which puts together what there is.
            driver.run(event, 0);
        }
    })
}
