//! Notices that are done once whoever carries them out waits in the kernel, which doesn't say that it does. What it waits for may wait
//! for just that: the READ of a page for the size that the kernel takes in before it waits for the page. So the
//! thread is looked at.

use super::{Driver, Waiter};
use leasefs_client::{EffectId, Event, Noticed};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) struct UnderWay {
    id: EffectId,
    /// Who carries it out; 0 as long as nobody does.
    thread: AtomicU32,
    /// It has been said what has come of it.
    settled: AtomicBool,
}

impl UnderWay {
    /// This thread carries it out from now on.
    pub fn begins(&self) {
        self.thread.store(this_thread(), Ordering::Release);
    }

    fn blocks(&self) -> bool {
        match self.thread.load(Ordering::Acquire) {
            0 => false,
            thread => sleeps_in_a_call(thread),
        }
    }

    /// True for who asks first.
    pub fn settle(&self) -> bool {
        !self.settled.swap(true, Ordering::AcqRel)
    }
}

/// Those of which nothing has been said.
#[derive(Default)]
pub(super) struct AllUnderWay(Mutex<Vec<Arc<UnderWay>>>);

impl AllUnderWay {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<UnderWay>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, id: EffectId) -> Arc<UnderWay> {
        let added = Arc::new(UnderWay {
            id,
            thread: AtomicU32::new(0),
            settled: AtomicBool::new(false),
        });
        self.lock().push(Arc::clone(&added));
        added
    }

    /// Takes out those that block.
    fn take_blocking(&self) -> Vec<EffectId> {
        let mut blocking = Vec::new();
        self.lock().retain(|under_way| {
            if under_way.blocks() && under_way.settle() {
                blocking.push(under_way.id);
            }
            !under_way.settled.load(Ordering::Acquire)
        });
        blocking
    }
}

impl<W: Waiter> Driver<W> {
    /// To be called every few milliseconds while it returns true.
    pub(super) fn look_at_what_is_under_way(&self) -> bool {
        for id in self.under_way.take_blocking() {
            self.drive(Event::Notified(id, Noticed::Done));
        }
        !self.under_way.lock().is_empty()
    }
}

/// Where the kernel doesn't tell, it is believed to.
fn sleeps_in_a_call(thread: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
    call.map_or(true, |call| is_a_call_slept_in(&call))
}

/// `proc_pid_syscall`: `running`, or the number of the system call, -1 if it sleeps in none (it is handed a page).
fn is_a_call_slept_in(call: &str) -> bool {
    call.starts_with(|first: char| first.is_ascii_digit())
}

fn this_thread() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn who_waits_in_the_kernel_is_told_from_who_runs_and_who_is_handed_a_page() {
        assert!(is_a_call_slept_in(
            "20 0x5 0x7f0 0x2 0x0 0x0 0x0 0x7f1 0x7f2\n"
        ));
        assert!(!is_a_call_slept_in("running\n"));
        assert!(!is_a_call_slept_in("-1 0x7f1 0x7f2\n"));
    }

    #[test]
    fn what_is_under_way_is_done_when_its_thread_sleeps_and_that_is_said_once() {
        let all = AllUnderWay::default();
        let under_way = all.add(EffectId(1));
        assert!(all.take_blocking().is_empty(), "nobody carries it out");
        let (go, wait) = mpsc::channel::<()>();
        let carried_out = Arc::clone(&under_way);
        let sleeper = thread::spawn(move || {
            carried_out.begins();
            let _ = wait.recv();
        });
        while !under_way.blocks() {
            thread::yield_now();
        }
        assert_eq!(all.take_blocking(), [EffectId(1)]);
        assert!(all.lock().is_empty());
        assert!(!under_way.settle(), "told a second time");
        drop(go);
        sleeper.join().expect("no panic");
    }
}
