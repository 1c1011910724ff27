//! Counts what is allocated, so that a target can bound what its input makes us allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// A block of zeros of this size takes no memory before it is used, and QUIC reserves such for the
/// datagrams of a socket. Whatever else is so large is a finding.
const HUGE: usize = 100 << 20;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn grown(bytes: usize) {
    if bytes >= HUGE {
        PEAK.fetch_max(usize::MAX / 2, Ordering::Relaxed);
        return;
    }
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: everything is the system allocator's; only numbers are kept beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() < HUGE {
            grown(layout.size());
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        shrunk(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        grown(new_size);
        shrunk(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

fn shrunk(bytes: usize) {
    if bytes < HUGE {
        LIVE.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes allocated now, by all threads.
pub fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// What `work` comes to, and how many bytes more than before were allocated at its worst moment.
/// Other threads count too: a process measures one thing at a time.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = live();
    PEAK.store(before, Ordering::Relaxed);
    let outcome = work();
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    (outcome, peak)
}
