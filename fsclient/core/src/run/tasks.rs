//! Tasks, and which of them can go on.

use super::hash::Map;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Something that goes on by itself.
pub(crate) type Task<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Which tasks can go on, in order.
#[derive(Debug, Default)]
struct Ready(Mutex<VecDeque<u64>>);

impl Ready {
    fn queue(&self) -> MutexGuard<'_, VecDeque<u64>> {
        // A queue of numbers is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Awake {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.queue().push_back(self.id);
        }
    }
}

struct Slot<T> {
    task: Task<T>,
    awake: Arc<Awake>,
    waker: Waker,
}

/// Tasks that end with a `T`.
pub(crate) struct Tasks<T> {
    entries: Map<u64, Slot<T>>,
    ready: Arc<Ready>,
    last: u64,
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self {
            entries: Map::default(),
            ready: Arc::default(),
            last: 0,
        }
    }
}

impl<T> Tasks<T> {
    /// The number of the next task.
    pub fn next_id(&self) -> u64 {
        self.last + 1
    }

    /// Takes in a task, which can go on at once.
    pub fn add(&mut self, task: Task<T>) {
        self.last += 1;
        let awake = Arc::new(Awake {
            id: self.last,
            queued: AtomicBool::new(false),
            ready: Arc::clone(&self.ready),
        });
        awake.wake_by_ref();
        let waker = Waker::from(Arc::clone(&awake));
        let entry = Slot { task, awake, waker };
        self.entries.insert(self.last, entry);
    }

    /// Lets the first task that can go on do so; `None` if none can. With what it has ended, if it has.
    pub fn step(&mut self) -> Option<Option<T>> {
        let id = self.ready.queue().pop_front()?;
        let Some(entry) = self.entries.get_mut(&id) else {
            return Some(None);
        };
        entry.awake.queued.store(false, Ordering::Relaxed);
        let polled = entry
            .task
            .as_mut()
            .poll(&mut Context::from_waker(&entry.waker));
        let Poll::Ready(end) = polled else {
            return Some(None);
        };
        self.entries.remove(&id);
        Some(Some(end))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
