//! The core of a client.

use crate::api::{Action, CallId, Effect, Event, Noticed, Now, Signals, Undelivered};
use crate::cache::{Cache, CacheStatus, HeldHere};
use crate::call::{Answer, Asker, Call, NodeId};
use crate::life::{Happened, Life};
use crate::locks::LockStatus;
use crate::memory::Memory;
use crate::ops::{self, Ask, Manner, Ops, Owner};
use crate::outside::Outside;
use crate::recall::{self, Engine, Fault};
use crate::run::{Cx, Map, Task, Tasks};
use crate::session::{Abandon, Rpc, SessionStatus, Timeout};
use crate::writeback::{WriteBackStatus, Writeback};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{Handle, Refusal};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a caller waits before it is looked at, and between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// What a core is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mounted directory.
    pub root: Handle,
    /// The server's policy.
    pub identity: IdentityPolicy,
    /// Shown as the owner of everything where that is squash.
    pub owner: Owner,
    /// Whether writes are buffered.
    pub buffers: bool,
    /// How long requests wait.
    pub timeout: Timeout,
    /// How much it may use.
    pub memory: Memory,
    /// Supplementary groups of a process whose request is unanswered.
    pub groups: fn(u32) -> Vec<u32>,
    /// Whether [`crate::Notice::ForgetNames`] works.
    pub can_forget_names: bool,
    /// How long a name isn't told to the kernel that had to be taken back from it.
    pub restless_for: Duration,
    /// Put in on purpose.
    pub fault: Option<Fault>,
}

/// What a call has come to.
type CallOutcome = Result<Answer, Refusal>;

/// A task that ends with an answer, for who waits for it; or with nothing.
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
enum Ended {
    Call(CallId, CallOutcome),
    Background,
}

/// A call that waits.
struct WaitingCall<W> {
    waiter: W,
    abandon: Abandon,
    interrupt: Abandon,
}

/// Everything that a mount knows and promises. See the crate's description.
pub struct ClientCore<W> {
    cx: Cx,
    cache: Arc<Cache>,
    outside: Outside,
    rpc: Rpc,
    writeback: Writeback,
    ops: Arc<Ops>,
    life: Arc<Life>,
    tasks: Tasks<Ended>,
    waiting: Map<CallId, WaitingCall<W>>,
    actions: VecDeque<Action<W>>,
}

impl<W> fmt::Debug for ClientCore<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCore")
            .field("tasks", &self.tasks.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<W> ClientCore<W> {
    /// The core of a session that isn't connected: [`Event::Connected`] follows.
    pub fn new(config: Config, now: Now) -> Self {
        let cx = Cx::default();
        cx.passed(now);
        let cache = Cache::new(cx.clone(), config.root, config.memory);
        cache.set_names_in_kernel(config.can_forget_names);
        let outside = Outside::new(cx.clone(), Arc::clone(&cache));
        let rpc = Rpc::new(cx.clone(), Arc::clone(&cache), config.timeout);
        let writeback =
            Writeback::new(cx.clone(), Arc::clone(&cache), rpc.clone(), outside.clone());
        let parts = recall::EngineParts {
            cx: cx.clone(),
            cache: Arc::clone(&cache),
            outside: outside.clone(),
            rpc: rpc.clone(),
            writeback: writeback.clone(),
            restless_for: config.restless_for,
        };
        let engine = Engine::new(parts, config.fault);
        let parts = ops::OpsParts {
            cx: cx.clone(),
            rpc: rpc.clone(),
            engine: engine.clone(),
            outside: outside.clone(),
            writeback: writeback.clone(),
        };
        let manner = Manner {
            identity: config.identity,
            owner: config.owner,
            buffers: config.buffers,
            groups: config.groups,
        };
        let ops = Arc::new(Ops::new(parts, manner));
        cx.spawn(Arc::clone(&ops).attend_locks());
        Self {
            ops,
            life: Life::begin(cx.clone(), rpc.clone(), engine),
            cx,
            cache,
            outside,
            rpc,
            writeback,
            tasks: Tasks::default(),
            waiting: Map::default(),
            actions: VecDeque::new(),
        }
    }

    /// Takes in what has happened. The clocks must be read when nobody can tell the core anything before
    /// this.
    pub fn handle(&mut self, now: Now, event: Event<W>) {
        self.cx.passed(now);
        // Whatever wakes this process first after a suspend: nothing is answered before the drop has begun.
        self.cache.look_at_clock();
        self.take_in(event);
        self.run();
    }

    /// The next thing to be done.
    pub fn poll_action(&mut self) -> Option<Action<W>> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due, by the clock that stands still in suspend.
    pub fn next_deadline(&self) -> Option<BootTime> {
        self.cx.next_due()
    }

    /// What is cached, for people.
    pub fn cache_status(&self) -> CacheStatus {
        self.cache.status()
    }

    /// How the session stands, for people.
    pub fn session_status(&self) -> SessionStatus {
        self.rpc.status()
    }

    /// How many requests are not answered.
    pub fn requests_under_way(&self) -> usize {
        self.rpc.under_way()
    }

    /// What waits to be written back, and how it gets on.
    pub fn write_back_status(&self) -> WriteBackStatus {
        self.writeback.status()
    }

    /// Whether the session has changed anything.
    pub fn has_changed(&self) -> bool {
        self.rpc.has_changed()
    }

    /// What there is here of an object, for people.
    pub fn held_here(&self, object: &Handle) -> HeldHere {
        self.cache.held_here(object)
    }

    /// What a path below the mount's root denotes, as far as that is cached.
    pub fn cached_path(&self, path: &[Box<[u8]>]) -> Option<Handle> {
        let root = self.cache.inodes().node(NodeId::ROOT)?.handle;
        self.cache.cached_path(root, path)
    }

    /// Locks that are held or waited for, and where their files are, as far as it is known.
    pub fn locks(&self) -> Vec<(LockStatus, Option<PathBuf>)> {
        self.cache.locks()
    }

    /// Locks that are held at this moment, which need not be one at which the core is told something; `None` if the
    /// session's leases aren't valid then. Looks at them, and changes nothing.
    pub fn held_locks(&self, now: Now) -> Option<Vec<LockStatus>> {
        self.cache.held_locks(now.boot)
    }

    /// The files that are not flushed, and where they are, as far as it is known.
    pub fn dirty_files(&self) -> Vec<(Handle, Option<PathBuf>)> {
        self.writeback.dirty_files()
    }

    /// Everything that the server, or its disk, may not have: to be kept when the mount ends.
    pub fn take_undelivered(&mut self) -> Vec<Undelivered> {
        self.writeback.take_undelivered()
    }

    fn take_in(&mut self, event: Event<W>) {
        match event {
            Event::Tick => {}
            Event::Call {
                waiter,
                asker,
                call,
            } => self.call(waiter, asker, call),
            Event::Forget { node, count } => self.ops.forget(node, count),
            Event::Left(call) => {
                if let Some(waiting) = self.waiting.get(&call) {
                    waiting.abandon.trigger();
                }
            }
            Event::Interrupted(call) => {
                if let Some(waiting) = self.waiting.get(&call) {
                    waiting.interrupt.trigger();
                }
            }
            Event::Notified(id, noticed) => self.outside.done(id, noticed),
            Event::CanForgetNames(can) => self.cache.set_names_in_kernel(can),
            Event::Kept(id) => self.outside.done(id, Noticed::Done),
            Event::Connected {
                connection,
                welcome,
                sent,
            } => self.life.happened(Happened::Connected {
                connection,
                welcome,
                sent,
            }),
            Event::NotConnected(why) => self.life.happened(Happened::NotConnected(why)),
            Event::Control(on, message) => self.life.happened(Happened::Control(on, message)),
            Event::Heard(on, datagrams) => self.life.happened(Happened::Heard(on, datagrams)),
            Event::Lost(on, reason) => self.life.happened(Happened::Lost(on, reason)),
            Event::Reply {
                connection,
                reply,
                payload,
            } => self.rpc.deliver(connection, reply, payload),
            Event::Recall(connection, recall) => self.life.recalled(connection, recall),
            Event::LockGranted(connection, granted) => self.life.lock_granted(connection, granted),
            Event::Unlinked(connection, object) => {
                if self.life.is_on(connection) {
                    self.ops.unlinked_elsewhere(&object);
                }
            }
            Event::Unsendable(id) => self.rpc.unsendable(id),
            Event::Goodbye => self.life.goodbye(),
        }
    }

    fn call(&mut self, waiter: W, asker: Asker, call: Call) {
        if let Some(answer) = self.ops.at_once(asker, &call) {
            self.settle();
            self.actions.push_back(Action::Answer(waiter, answer));
            return;
        }
        let id = CallId(self.tasks.next_id());
        let ask = Ask::new(asker);
        let waiting = WaitingCall {
            waiter,
            abandon: ask.abandon.clone(),
            interrupt: ask.interrupt.clone(),
        };
        self.waiting.insert(id, waiting);
        let (ops, cx) = (Arc::clone(&self.ops), self.cx.clone());
        self.tasks.add(Box::pin(async move {
            let answer = pin!(ops.answer(&ask, call));
            Ended::Call(id, patiently(&cx, id, &ask, answer).await)
        }));
    }

    /// Lets go on what can.
    fn run(&mut self) {
        loop {
            for task in self.cx.take_spawned() {
                self.tasks.add(background(task));
            }
            let Some(ended) = self.tasks.step() else {
                break;
            };
            self.settle();
            if let Some(Ended::Call(id, outcome)) = ended
                && let Some(waiting) = self.waiting.remove(&id)
            {
                let answer = Action::Answer(waiting.waiter, outcome);
                self.actions.push_back(answer);
            }
        }
        self.settle();
    }

    /// Takes up what tasks have asked for.
    fn settle(&mut self) {
        while let Some(effect) = self.cx.next_effect() {
            self.actions.push_back(Action::Do(effect));
        }
    }
}

fn background(task: Task) -> Task<Ended> {
    Box::pin(async move {
        task.await;
        Ended::Background
    })
}

/// Runs what a caller waits for, and has the caller looked at now and then: FUSE_INTERRUPT doesn't come
/// through, so nobody can leave before it is answered. What an abandoned operation has begun is followed
/// up elsewhere; it ends soon by itself.
async fn patiently(
    cx: &Cx,
    id: CallId,
    ask: &Ask,
    mut answer: Pin<&mut impl Future<Output = CallOutcome>>,
) -> CallOutcome {
    while !ask.abandon.is_triggered() && ask.asker.pid != 0 {
        match cx.timeout(LOOK, answer.as_mut()).await {
            Ok(outcome) => return outcome,
            Err(_) => {
                let signals = match ask.yields.load(Ordering::Relaxed) {
                    true => Signals::All,
                    false => Signals::Fatal,
                };
                cx.effect(Effect::Watch(id, ask.asker.pid, signals));
            }
        }
    }
    answer.await
}
