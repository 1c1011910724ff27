//! Threads for what may block in the kernel. They grow: whatever is blocked never holds up the rest
//! for longer than a few milliseconds.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that are always there once they were needed.
const BASE: usize = 2;
/// How long a further thread lives without work.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Jobs taken so far.
    taken: u64,
    /// `taken` at the last look.
    seen: u64,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// A growing set of threads. Its drop lets them end after the jobs at hand.
#[derive(Default)]
pub(super) struct Threads(Arc<Shared>);

impl Threads {
    /// Runs a job on one of the threads. True if [`Threads::look`] is to be called soon: perhaps there is
    /// none for it.
    #[must_use]
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queue = self.0.lock();
        queue.jobs.push_back(Box::new(job));
        if queue.idle == 0 && queue.threads < BASE {
            self.grow(&mut queue);
        }
        let crowded = queue.jobs.len() > queue.idle;
        drop(queue);
        self.0.more.notify_one();
        crowded
    }

    /// To be called every few milliseconds while it returns true (jobs wait). If none was taken
    /// since the last call, all threads are blocked: their number is doubled.
    pub fn look(&self) -> bool {
        let mut queue = self.0.lock();
        let stalled = queue.taken == queue.seen && queue.idle == 0;
        queue.seen = queue.taken;
        if stalled && !queue.jobs.is_empty() {
            for _ in 0..queue.threads.max(1).min(queue.jobs.len()) {
                self.grow(&mut queue);
            }
        }
        !queue.jobs.is_empty()
    }

    fn grow(&self, queue: &mut Queue) {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new()
            .name("leasefs-drop".into())
            .spawn(move || shared.work());
        match thread {
            Ok(_) => queue.threads += 1,
            Err(error) => tracing::warn!(%error, "no thread to drop pages with"),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.more.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                queue.taken += 1;
                return Some(job);
            }
            if queue.ended || queue.idle >= BASE.max(1) && queue.threads > BASE {
                queue.threads -= 1;
                return None;
            }
            queue.idle += 1;
            let waited = self.more.wait_timeout(queue, IDLE);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn blocked_jobs_dont_hold_up_the_others() {
        let threads = Threads::default();
        let (free, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        for _ in 0..20 {
            let blocked = Arc::clone(&blocked);
            let _ = threads.run(move || drop(blocked.lock().map(|b| b.recv())));
        }
        let (done, finished) = mpsc::channel();
        let crowded = threads.run(move || done.send(()).expect("awaited"));
        assert!(crowded, "nobody looks after a job that has no thread");
        while finished.try_recv().is_err() {
            threads.look();
            std::thread::yield_now();
        }
        drop(free);
    }
}
