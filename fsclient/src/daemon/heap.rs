//! What the heap has no use for goes back to the system.
//!
//! glibc gives back what is free at the end of its heap only. Behind what a burst of writes has left there may
//! lie a hundred megabytes that nobody uses, as long as the daemon lives. Mapping large buffers one by one
//! would give them back at once, but costs as much as copying them: each page is cleared by a fault.

use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);
/// So many bytes are left to it at least.
const LEAST: usize = 8 << 20;
/// So often more must be free one look after another: between bursts of a stream it will be used again.
const LOOKS: u32 = 2;

/// Sees to it for as long as the runtime lives.
pub async fn watch() {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut idle = Idle::default();
    loop {
        looks.tick().await;
        let (Some(resident), Some(used)) = (resident(), used()) else {
            return;
        };
        if idle.look(resident, used) {
            // It takes milliseconds, in which the runtime's threads have better to do.
            let _ = tokio::task::spawn_blocking(give_back).await;
        }
    }
}

/// How often one after another too much was free.
#[derive(Default)]
struct Idle(u32);

impl Idle {
    /// Whether to give back what is resident and not used, in bytes.
    fn look(&mut self, resident: usize, used: usize) -> bool {
        let free = resident.saturating_sub(used);
        self.0 = match free > used.max(LEAST) {
            true => self.0 + 1,
            false => 0,
        };
        let is_time = self.0 >= LOOKS;
        if is_time {
            self.0 = 0;
        }
        is_time
    }
}

/// Bytes of memory that this process has to itself: `resident` less `shared` of `/proc/self/statm` (proc(5)).
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split(' ').skip(1).map(|field| field.parse::<usize>());
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared) * rustix::param::page_size())
}

/// Bytes of the heap in use, mapped ones among them; `None` with another C library than glibc.
#[cfg(target_env = "gnu")]
fn used() -> Option<usize> {
    // SAFETY: it only reads the allocator's counts, under the allocator's own locks.
    let counts = unsafe { libc::mallinfo2() };
    Some(counts.uordblks + counts.hblkhd)
}

#[cfg(not(target_env = "gnu"))]
fn used() -> Option<usize> {
    None
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

    #[test]
    fn what_is_free_for_a_while_is_given_back_once() {
        let mut idle = Idle::default();
        assert!(!idle.look(100 * MIB, 5 * MIB));
        assert!(idle.look(100 * MIB, 5 * MIB));
        assert!(!idle.look(100 * MIB, 5 * MIB));
    }

    #[test]
    fn what_was_free_between_two_bursts_is_not() {
        let mut idle = Idle::default();
        for _ in 0..9 {
            assert!(!idle.look(100 * MIB, 5 * MIB));
            assert!(!idle.look(100 * MIB, 60 * MIB));
        }
    }

    #[test]
    fn little_is_left_to_the_heap() {
        let mut idle = Idle::default();
        assert!((0..9).all(|_| !idle.look(12 * MIB, 5 * MIB)));
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn bytes_behind_one_in_use_are_given_back() {
        // Much more than what the tests beside this one can take meanwhile.
        const ALL: usize = 128 * MIB;
        const BLOCK: usize = 64 << 10;
        let mut blocks: Vec<Vec<u8>> = (0..ALL / BLOCK).map(|_| vec![1; BLOCK]).collect();
        let last = blocks.pop();
        let before = resident().expect("counted");
        assert!(used().expect("counted") >= ALL - BLOCK);
        drop(blocks);
        give_back();
        assert!(resident().expect("counted") + ALL / 2 < before);
        drop(last);
    }
}
