//! What the heap has no use for goes back to the system.
//!
//! glibc gives back what is free at the end of its heap only. Behind what a burst of writes has left there may
//! lie a hundred megabytes that nobody uses, as long as the daemon lives. Mapping large buffers one by one
//! would give them back at once, but costs as much as copying them: each page is cleared by a fault.

use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);
/// As much isn't worth giving back.
const LEAST: usize = 8 << 20;
/// So much the heap's use may change from one look to the next when nothing much goes on.
const QUIET: usize = 1 << 20;
/// So many looks one after another find it like that: between bursts of a stream the memory will be used again.
const LOOKS: u32 = 2;

/// One heap for all threads, to be called before there are any. With one for each, what a burst has left in one isn't
/// found by the thread that takes in the next: half as much again was resident, and nothing faster.
pub fn unite() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator's.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Sees to it for as long as the runtime lives.
pub async fn watch() {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heap = Heap::default();
    loop {
        looks.tick().await;
        let Some(resident) = resident() else { return };
        if !heap.has_grown(resident) {
            continue;
        }
        let Some(now) = Counts::of_heap(resident) else {
            return;
        };
        if heap.look(now) {
            // It takes milliseconds, in which the runtime's threads have better to do.
            let _ = tokio::task::spawn_blocking(give_back).await;
            heap.given_back(self::resident());
        }
    }
}

/// What was seen.
#[derive(Default)]
struct Heap {
    /// The least that was resident since the last time that something was given back. What is free and was
    /// given back counts as free still, and part of what is used was never touched: only what is resident
    /// beyond this can be had.
    floor: Option<usize>,
    used: usize,
    looks: u32,
}

impl Heap {
    /// Whether there may be something to give back. To look costs more the more pieces there are.
    fn has_grown(&mut self, resident: usize) -> bool {
        let floor = self.floor.unwrap_or(resident).min(resident);
        self.floor = Some(floor);
        resident - floor > LEAST
    }

    /// Whether it is time to give back what is free.
    fn look(&mut self, now: Counts) -> bool {
        let quiet = now.used.abs_diff(self.used) <= QUIET;
        self.used = now.used;
        self.looks = match quiet && self.has_grown(now.resident) && now.free > LEAST {
            true => self.looks + 1,
            false => 0,
        };
        self.looks >= LOOKS
    }

    fn given_back(&mut self, resident: Option<usize>) {
        self.floor = resident;
        self.looks = 0;
    }
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// What the process has to itself.
    resident: usize,
    /// What of the heap is in use, mapped pieces among them.
    used: usize,
    /// What of the heap is not, given back or not.
    free: usize,
}

impl Counts {
    /// `None` with another C library than glibc.
    #[cfg(target_env = "gnu")]
    fn of_heap(resident: usize) -> Option<Self> {
        // SAFETY: it only reads the allocator's counts, under the allocator's own locks.
        let counts = unsafe { libc::mallinfo2() };
        Some(Self {
            resident,
            used: counts.uordblks + counts.hblkhd,
            free: counts.fordblks,
        })
    }

    #[cfg(not(target_env = "gnu"))]
    fn of_heap(_: usize) -> Option<Self> {
        None
    }
}

/// Bytes of memory that this process has to itself: `resident` less `shared` of `/proc/self/statm` (proc(5)).
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split(' ').skip(1).map(|field| field.parse::<usize>());
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared) * rustix::param::page_size())
}

fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches what is free only, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn counts(resident: usize, used: usize, free: usize) -> Counts {
        Counts {
            resident: resident * MIB,
            used: used * MIB,
            free: free * MIB,
        }
    }

    fn heap() -> Heap {
        let mut heap = Heap::default();
        assert!(!heap.has_grown(5 * MIB));
        assert!(!heap.look(counts(5, 150, 1)));
        heap
    }

    #[test]
    fn what_is_free_for_a_while_is_given_back_once() {
        let mut heap = heap();
        assert!(!heap.look(counts(100, 150, 90)));
        assert!(heap.look(counts(100, 150, 90)));
        heap.given_back(Some(12 * MIB));
        assert!((0..9).all(|_| !heap.look(counts(12, 150, 90))));
    }

    #[test]
    fn what_is_used_again_is_given_back_again() {
        let mut heap = heap();
        heap.given_back(Some(12 * MIB));
        assert!(!heap.look(counts(80, 230, 10)));
        assert!(!heap.look(counts(80, 150, 90)));
        assert!(!heap.look(counts(80, 150, 90)));
        assert!(heap.look(counts(80, 150, 90)));
    }

    #[test]
    fn nothing_is_given_back_between_bursts_of_a_stream() {
        let mut heap = heap();
        for _ in 0..9 {
            assert!(!heap.look(counts(100, 150, 90)));
            assert!(!heap.look(counts(100, 200, 40)));
        }
    }

    #[test]
    fn memory_in_use_is_not_looked_for_again_and_again() {
        let mut heap = heap();
        assert!((0..9).all(|_| !heap.look(counts(200, 190, 4))));
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn bytes_behind_one_in_use_are_given_back() {
        // Much more than what the tests beside this one can take meanwhile.
        const ALL: usize = 128 * MIB;
        const BLOCK: usize = 64 << 10;
        let now = || Counts::of_heap(resident().expect("counted")).expect("counted");
        let mut blocks: Vec<Vec<u8>> = (0..ALL / BLOCK).map(|_| vec![1; BLOCK]).collect();
        let last = blocks.pop();
        let before = now();
        assert!(before.used >= ALL - BLOCK);
        drop(blocks);
        assert!(now().free >= ALL / 2);
        give_back();
        assert!(now().resident + ALL / 2 < before.resident);
        drop(last);
    }
}
