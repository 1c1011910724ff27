//! Tasks that run at once, on the thread that wakes them.
//!
//! What is sent on a connection passes two tasks, an outbox's and QUIC's own. Were they the runtime's alone, each
//! small request would wait for another thread to be woken before a packet goes out, and so would its answer: that
//! takes as long as the packet itself. A thread that has something to send says so by [`promptly`], and runs them
//! itself. All other wake-ups (what has come in, timers) go to the runtime as ever.

use crate::socket::Socket;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Sleep;

/// How many turns a thread gives to what it has woken; what then still has something to do is the runtime's.
const TURNS: usize = 6;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// Within [`promptly`]: what this thread has woken.
    static WOKEN: RefCell<Option<Vec<Arc<Task>>>> = const { RefCell::new(None) };
}

/// Does `work`, and then sends what it has put into outboxes, on this thread. To be called without locks that
/// anybody needs who sends or receives.
pub fn promptly<T>(work: impl FnOnce() -> T) -> T {
    let outermost = WOKEN.with_borrow_mut(|woken| match woken {
        Some(_) => false,
        None => woken.insert(Vec::new()).is_empty(),
    });
    if !outermost {
        return work();
    }
    let scope = Scope;
    let result = work();
    scope.run();
    result
}

/// As [`promptly`], each time that `work` goes on.
pub async fn prompt<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| promptly(|| work.as_mut().poll(cx))).await
}

/// The outermost call of [`promptly`] on this thread.
struct Scope;

impl Scope {
    fn run(&self) {
        for _ in 0..TURNS {
            let Some(task) = next() else { return };
            // Its home sees whether it is done.
            let _ = task.run();
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let left = WOKEN.with_borrow_mut(Option::take);
        for task in left.into_iter().flatten() {
            task.home.notify_one();
        }
    }
}

/// In the order in which they were woken.
fn next() -> Option<Arc<Task>> {
    WOKEN.with_borrow_mut(|woken| {
        let woken = woken.as_mut().filter(|woken| !woken.is_empty())?;
        Some(woken.remove(0))
    })
}

/// Runs `work` to its end, on the runtime or on whichever thread wakes it [`promptly`].
pub(crate) fn spawn(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let task = Arc::new(Task {
        work: Mutex::new(Some(Box::pin(work))),
        due: AtomicBool::new(true),
        home: Notify::new(),
        runtime: runtime.clone(),
    });
    runtime.spawn(Home(task).serve());
}

struct Task {
    /// `None` once it is done.
    work: Mutex<Option<Work>>,
    /// It is to run, and somebody is going to see to that: whoever has set this, or who runs it just now.
    due: AtomicBool,
    /// Notified when the runtime is to run it, or it is done.
    home: Notify,
    runtime: Handle,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.due.swap(true, Ordering::SeqCst) {
            return;
        }
        // A thread that ends has no such list any more.
        let left = WOKEN.try_with(|woken| match woken.borrow_mut().as_mut() {
            Some(woken) => {
                woken.push(Arc::clone(&self));
                false
            }
            None => true,
        });
        if left.unwrap_or(true) {
            self.home.notify_one();
        }
    }
}

impl Task {
    /// Gives it a turn, if it is due and nobody does; what is due then is the runtime's. Ready once it is done.
    fn run(self: &Arc<Self>) -> Poll<()> {
        // Between `due` and the look at the lock, as between the lock and the look at `due` below: of two
        // threads one at least sees what the other has done.
        fence(Ordering::SeqCst);
        let mut work = match self.work.try_lock() {
            Ok(work) => work,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Poll::Pending,
        };
        if self.due.swap(false, Ordering::SeqCst) {
            self.turn(&mut work);
        }
        let done = work.is_none();
        // The runtime must not find it taken.
        drop(work);
        fence(Ordering::SeqCst);
        if done || self.due.load(Ordering::SeqCst) {
            self.home.notify_one();
        }
        match done {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn turn(self: &Arc<Self>, slot: &mut Option<Work>) {
        let waker = Waker::from(Arc::clone(self));
        let turn = AssertUnwindSafe(|| {
            let Some(work) = slot else { return };
            let mut context = Context::from_waker(&waker);
            if self.bounded(|| work.as_mut().poll(&mut context)).is_ready() {
                *slot = None;
            }
        });
        if catch_unwind(turn).is_ok() {
            return;
        }
        tracing::error!("a task of a connection failed inside");
        let failed = slot.take();
        if catch_unwind(AssertUnwindSafe(|| drop(failed))).is_err() {
            tracing::error!("what it held could not be let go");
        }
    }

    /// The runtime bounds what one turn does. Where there is none, as much is allowed.
    fn bounded<T>(&self, turn: impl FnOnce() -> T) -> T {
        match Handle::try_current() {
            Ok(_) => turn(),
            Err(_) => self.runtime.block_on(async { turn() }),
        }
    }
}

/// The task's part of the runtime: it ends with it.
struct Home(Arc<Task>);

impl Home {
    async fn serve(self) {
        while self.0.run().is_pending() {
            if self.0.due.load(Ordering::SeqCst) {
                // Others are to have their turn.
                tokio::task::yield_now().await;
            }
            self.0.home.notified().await;
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let work = self
            .0
            .work
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(work);
    }
}

/// What QUIC's own tasks, timers and sockets are.
#[derive(Debug)]
pub(crate) struct Prompt(Handle);

impl Prompt {
    /// The runtime this is called in.
    pub(crate) fn current() -> Arc<Self> {
        Arc::new(Self(Handle::current()))
    }
}

impl Runtime for Prompt {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _runtime = self.0.enter();
        Box::pin(Timer {
            sleep: Box::pin(tokio::time::sleep_until(deadline.into())),
            deadline,
        })
    }

    fn spawn(&self, future: Work) {
        spawn(&self.0, future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(Socket::new(socket, self.0.clone())?))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// A timer that is put off without a word to the runtime. QUIC's is moved with every packet, mostly to a later
/// moment, and each time it is set to an earlier one by another thread the runtime's is woken for it.
#[derive(Debug)]
struct Timer {
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.deadline = deadline;
        if deadline < self.sleep.deadline().into_std() {
            self.sleep.as_mut().reset(deadline.into());
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Future::poll(self.sleep.as_mut(), cx));
            let deadline = self.deadline;
            if deadline <= self.sleep.deadline().into_std() {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(deadline.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread::{self, ThreadId};
    use std::time::Duration;
    use tokio::runtime::Builder;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime")
    }

    /// Notes who runs it each time it is notified.
    fn noting(bell: &Arc<Notify>) -> (Work, std::sync::mpsc::Receiver<ThreadId>) {
        let (ran, by) = std::sync::mpsc::channel();
        let bell = Arc::clone(bell);
        let work = async move {
            loop {
                // Only while the test looks.
                let _ = ran.send(thread::current().id());
                bell.notified().await;
            }
        };
        (Box::pin(work), by)
    }

    #[test]
    fn a_task_runs_on_the_thread_that_wakes_it_promptly_and_else_on_the_runtimes() {
        let (runtime, bell) = (runtime(), Arc::new(Notify::new()));
        let (work, by) = noting(&bell);
        spawn(runtime.handle(), work);
        let home = by.recv().expect("it begins");
        let here = thread::current().id();
        assert_ne!(home, here);
        // Its home may be in the middle of the turn before.
        let at_once = (0..1000).any(|_| {
            let early = promptly(|| {
                bell.notify_one();
                promptly(|| ());
                by.try_recv().ok()
            });
            assert_ne!(early, Some(here), "not before the outermost call ends");
            early.or_else(|| by.recv().ok()) == Some(here)
        });
        assert!(at_once, "it never runs here");
        bell.notify_one();
        assert_eq!(by.recv(), Ok(home));
    }

    #[test]
    fn nothing_woken_is_missed_by_whom_ever_it_is_woken() {
        const WAKES: u64 = 20_000;
        let (runtime, bell) = (runtime(), Arc::new(Notify::new()));
        let (wanted, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (all, done) = std::sync::mpsc::channel();
        let work = {
            let (bell, wanted, seen) = (bell.clone(), wanted.clone(), seen.clone());
            async move {
                loop {
                    let now = wanted.load(Ordering::SeqCst);
                    seen.store(now, Ordering::SeqCst);
                    if now == 3 * WAKES {
                        return all.send(()).expect("the test waits");
                    }
                    bell.notified().await;
                }
            }
        };
        spawn(runtime.handle(), work);
        let wake = || {
            wanted.fetch_add(1, Ordering::SeqCst);
            bell.notify_one();
        };
        thread::scope(|scope| {
            scope.spawn(|| (0..WAKES).for_each(|_| promptly(wake)));
            scope.spawn(|| (0..WAKES).for_each(|_| promptly(wake)));
            scope.spawn(|| (0..WAKES).for_each(|_| wake()));
        });
        let within = Duration::from_secs(60);
        done.recv_timeout(within).expect("it has seen every wake");
        assert_eq!(seen.load(Ordering::SeqCst), 3 * WAKES);
    }

    #[test]
    fn a_task_that_never_rests_is_left_to_the_runtime() {
        let (runtime, bell) = (runtime(), Arc::new(Notify::new()));
        let (ran, by) = std::sync::mpsc::channel();
        let starts = Arc::clone(&bell);
        spawn(runtime.handle(), async move {
            starts.notified().await;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                match ran.send(thread::current().id()) {
                    Ok(()) => Poll::Pending,
                    // The test has seen enough.
                    Err(_) => Poll::Ready(()),
                }
            })
            .await;
        });
        let here = thread::current().id();
        promptly(|| bell.notify_one());
        let first: Vec<ThreadId> = by.iter().take(2 * TURNS).collect();
        assert!(
            first.iter().any(|thread| *thread != here),
            "it goes on there"
        );
    }

    #[test]
    fn a_task_ends_with_its_runtime() {
        let (runtime, bell) = (runtime(), Arc::new(Notify::new()));
        let (work, by) = noting(&bell);
        spawn(runtime.handle(), work);
        by.recv().expect("it begins");
        drop(runtime);
        promptly(|| bell.notify_one());
        assert!(by.recv().is_err(), "it has been dropped");
    }

    #[test]
    fn nothing_is_left_of_tasks_that_have_ended_on_other_threads() {
        for fails in [false, true] {
            let (runtime, bell) = (runtime(), Arc::new(Notify::new()));
            let (begun, begins) = std::sync::mpsc::channel();
            let waits = Arc::clone(&bell);
            spawn(runtime.handle(), async move {
                begun.send(()).expect("the test waits");
                waits.notified().await;
                assert!(!fails, "planted");
            });
            begins.recv().expect("it begins");
            promptly(|| bell.notify_one());
            assert!(begins.recv().is_err(), "it has ended");
            let alive = || runtime.metrics().num_alive_tasks();
            let since = Instant::now();
            while alive() > 0 && since.elapsed() < Duration::from_secs(60) {
                thread::yield_now();
            }
            assert_eq!(alive(), 0);
        }
    }
}
