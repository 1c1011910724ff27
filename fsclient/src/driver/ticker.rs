//! The thread that looks at the clock, at threads that are stuck, and at what is mounted inside the mount.

use super::{Driver, Waiter};
use crate::clock;
use leasefs_client::Event;
use leasefs_lease::time::BootTime;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How often it looks while something waits for a thread.
const BUSY: Duration = Duration::from_millis(2);
/// How often it looks else. A suspend is noticed this late at most, or by the first request.
const CALM: Duration = Duration::from_millis(100);
/// It never looks more often: whoever has set a time a moment ago can wait so long.
const BREATH: Duration = Duration::from_micros(100);

/// How others get it to look in time.
#[derive(Default)]
pub(super) struct Ticker {
    thread: OnceLock<Thread>,
    /// When it will look, in nanoseconds of the clock that stands still in suspend; 0 is at once.
    looks_at: AtomicU64,
    /// The kernel has just been connected.
    connected: AtomicBool,
}

impl Ticker {
    /// Something is due then. The core is locked.
    pub fn due(&self, at: Option<BootTime>) {
        let Some(at) = at else { return };
        if at.as_nanos() < self.looks_at.load(Ordering::Relaxed) {
            self.looks_at.store(at.as_nanos(), Ordering::Relaxed);
            self.hurry();
        }
    }

    /// It is to look at the kernel, which has just been connected.
    pub fn connected(&self) {
        self.connected.store(true, Ordering::Release);
        self.hurry();
    }

    /// It is to look now.
    pub fn hurry(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Starts it; it ends with the driver.
pub(super) fn start<W: Waiter>(driver: &Arc<Driver<W>>, can_forget_names: bool) -> io::Result<()> {
    let weak = Arc::downgrade(driver);
    let thread = std::thread::Builder::new()
        .name("leasefs-keeper".into())
        .spawn(move || run(&weak, can_forget_names))?;
    // Nobody else sets it.
    let _ = driver.ticker.thread.set(thread.thread().clone());
    Ok(())
}

fn run<W: Waiter>(driver: &Weak<Driver<W>>, mut can_forget_names: bool) {
    let mut calm = BootTime::ZERO;
    loop {
        let Some(driver) = driver.upgrade() else {
            return;
        };
        let connected = driver.ticker.connected.swap(false, Ordering::AcqRel);
        if connected || calm.has_come(clock::monotonic()) {
            calm = clock::monotonic() + CALM;
            let can = driver.kernel.can_forget_names();
            if can != can_forget_names {
                can_forget_names = can;
                driver.drive(Event::CanForgetNames(can));
            }
        }
        let busy = driver.threads.look() | driver.look_at_what_is_under_way();
        let most = match busy {
            true => BUSY,
            false => calm.left_at(clock::monotonic()),
        };
        let pause = driver.tick(most);
        drop(driver);
        std::thread::park_timeout(pause);
    }
}

impl<W: Waiter> Driver<W> {
    /// How long until the next, but not longer than `most`.
    fn tick(&self, most: Duration) -> Duration {
        // Until there is another time nobody need hurry it.
        self.ticker.looks_at.store(0, Ordering::Relaxed);
        self.drive(Event::Tick);
        self.with(|core| {
            let now = clock::monotonic();
            let due = core.next_deadline().map(|at| at.left_at(now));
            let pause = due.map_or(most, |due| due.min(most)).max(BREATH);
            // The core is locked: whoever has something due earlier comes later, and sees this.
            let looks_at = (now + pause).as_nanos();
            self.ticker.looks_at.store(looks_at, Ordering::Relaxed);
            pause
        })
    }
}
