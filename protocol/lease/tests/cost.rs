//! What a lease costs. Memory is counted, so its bound is a test; times are printed only
//! (`--nocapture`), since they are the machine's as much as ours.

use leasefs_lease::server::{Action, Config, Core, Event, OpId, ReadItem, ReadKind};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Handle, KeyHash, Parts, SessionId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEASES: u64 = 1_000_000;

fn session(of: u8) -> SessionId {
    SessionId([of; 16])
}

fn object(number: u64) -> Handle {
    let mut bytes = [0xa5; 40];
    bytes[32..].copy_from_slice(&number.to_be_bytes());
    Handle::new(&bytes).expect("40 bytes")
}

fn read(core: &mut Core, of: u8, number: u64) {
    let item = ReadItem {
        object: object(number),
        parts: Parts::ATTRS,
        name: None,
    };
    let event = Event::AdmitRead {
        op: OpId(u64::from(of) << 32 | number),
        session: session(of),
        kind: ReadKind::Metadata,
        items: vec![item],
    };
    core.handle(BootTime::ZERO, event);
    while let Some(action) = core.poll_action() {
        assert!(!matches!(action, Action::Recall { .. }));
    }
}

fn timed<R>(what: &str, count: u64, run: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = run();
    let each = started.elapsed() / u32::try_from(count).expect("a small number");
    println!("{what}: {each:?} each, {:?} in all", started.elapsed());
    result
}

/// One test, since it counts what the whole process allocates.
#[test]
fn a_million_leases_cost_less_than_176_bytes_each_and_leave_nothing_behind() {
    let before = IN_USE.load(Ordering::Relaxed);
    let mut core = Core::new(Config::default(), BootTime::ZERO, None);
    for of in [1, 2] {
        let session = session(of);
        core.handle(
            BootTime::ZERO,
            Event::SessionOpened {
                session,
                client: KeyHash([of; 32]),
                drift_ppm: 0,
            },
        );
    }
    timed("grant", LEASES, || {
        (0..LEASES).for_each(|n| read(&mut core, 1, n))
    });
    let one = IN_USE.load(Ordering::Relaxed) - before;
    println!("{} bytes per lease", one / LEASES as usize);
    assert!(
        one < 176 * LEASES as usize,
        "{one} bytes for {LEASES} leases"
    );

    timed("second holder", LEASES, || {
        (0..LEASES).for_each(|n| read(&mut core, 2, n))
    });
    let two = IN_USE.load(Ordering::Relaxed) - before;
    println!("{} bytes per further holder", (two - one) / LEASES as usize);
    assert_eq!(core.lease_count(), 2 * LEASES as usize);

    timed("renewal", LEASES, || {
        (0..LEASES).for_each(|n| assert!(core.renew(BootTime::from_nanos(n), session(1))));
    });
    let later = BootTime::ZERO + Duration::from_secs(60);
    timed("expiry", 2 * LEASES, || core.handle(later, Event::Tick));
    assert_eq!(core.lease_count(), 0);
    drop(core);
    assert!(IN_USE.load(Ordering::Relaxed) < before + 64 * 1024);
}
