//! What lets operations of several steps be written top to bottom without I/O, threads or clocks: tasks
//! that are polled by [`crate::ClientCore::handle`] alone, the time as it was told last, and timers.
//!
//! A task waits for something that an event brings, for another task, or for a time. Everything happens
//! in the order of the events, so a run is repeated exactly by the same events.

mod hash;
mod race;
mod tasks;
mod wait;

pub use hash::repeat_tables;
pub(crate) use hash::{Map, Set};
pub(crate) use race::{Within, first, within};
pub(crate) use tasks::{Task, Tasks};
pub(crate) use wait::{Bell, Place, Places};

use crate::api::{Effect, Now};
use atomic_refcell::AtomicRefCell;
use leasefs_lease::time::BootTime;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A part of the core's state. Whoever calls the core has it alone, so that no two borrow a part at a time.
pub(crate) type Part<T> = AtomicRefCell<T>;

/// A moment at which a task wants to go on, and its number.
type Due = (BootTime, u64);

#[derive(Default)]
struct Clockwork {
    now: Now,
    timers: BTreeMap<Due, Waker>,
    last: u64,
    effects: VecDeque<Effect>,
}

#[derive(Default)]
struct CxInner {
    world: Part<Clockwork>,
    /// Tasks can't be looked at from two threads at a time, so they aren't in a part.
    spawned: Mutex<Vec<Task>>,
}

/// What all tasks of a core share. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Cx(Arc<CxInner>);

impl Cx {
    /// When the event was that is being handled.
    pub fn now(&self) -> Now {
        self.0.world.borrow().now
    }

    /// As [`Cx::now`], by the clock that goes on while the machine sleeps.
    pub fn boot(&self) -> BootTime {
        self.now().boot
    }

    /// As [`Cx::now`], by the clock that stands still while the machine sleeps.
    pub fn monotonic(&self) -> BootTime {
        self.now().monotonic
    }

    /// To be done by whoever drives the core, behind what was asked for before.
    pub fn effect(&self, effect: Effect) {
        self.0.world.borrow_mut().effects.push_back(effect);
    }

    /// Lets a task run beside the one that calls.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawned().push(Box::pin(task));
    }

    /// A number that was not given before.
    pub fn number(&self) -> u64 {
        let mut world = self.0.world.borrow_mut();
        world.last += 1;
        world.last
    }

    /// Waits.
    pub fn sleep(&self, wait: Duration) -> Sleep {
        self.sleep_until(self.monotonic() + wait)
    }

    /// Waits until a moment of the clock that stands still while the machine sleeps.
    pub fn sleep_until(&self, at: BootTime) -> Sleep {
        Sleep {
            cx: self.clone(),
            due: (at, self.number()),
        }
    }

    /// Waits for something, but not for longer.
    pub fn timeout<F: Future>(&self, most: Duration, wait: F) -> Within<F> {
        within(wait, Some(self.sleep(most)))
    }

    /// It is later now. Wakes whom it was waited for.
    pub fn passed(&self, now: Now) {
        let due = {
            let mut world = self.0.world.borrow_mut();
            world.now = now;
            let first = world.timers.first_key_value();
            if first.is_none_or(|((at, _), _)| *at > now.monotonic) {
                return;
            }
            let later = world.timers.split_off(&(now.monotonic + NANO, 0));
            std::mem::replace(&mut world.timers, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// When the next task wants to go on.
    pub fn next_due(&self) -> Option<BootTime> {
        let world = self.0.world.borrow();
        let ((at, _), _) = world.timers.first_key_value()?;
        Some(*at)
    }

    pub fn take_spawned(&self) -> Vec<Task> {
        std::mem::take(&mut self.spawned())
    }

    fn spawned(&self) -> MutexGuard<'_, Vec<Task>> {
        // A list of tasks is whole at any time.
        self.0
            .spawned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub fn next_effect(&self) -> Option<Effect> {
        self.0.world.borrow_mut().effects.pop_front()
    }
}

const NANO: Duration = Duration::from_nanos(1);

/// Resolves when its time has come.
pub(crate) struct Sleep {
    cx: Cx,
    due: Due,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut world = self.cx.0.world.borrow_mut();
        if self.due.0 <= world.now.monotonic {
            return Poll::Ready(());
        }
        world.timers.insert(self.due, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cx.0.world.borrow_mut().timers.remove(&self.due);
    }
}
