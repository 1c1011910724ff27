//! Noticing at once that the machine has slept.
//!
//! The kernel's timeouts stand still in suspend: what it was told before counts on when it wakes, until it is
//! dropped. The kernel wakes who reads a timer that is cancelled when the clock on the wall is set against
//! CLOCK_MONOTONIC, which every suspend does; so the drop need not wait for a tick.

use rustix::fd::OwnedFd;
use rustix::io::{Errno, read};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;

/// Never comes, but for a cancellation.
const NEVER: Itimerspec = Itimerspec {
    it_interval: Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    },
    it_value: Timespec {
        tv_sec: i64::MAX / 1_000_000_000,
        tv_nsec: 0,
    },
};

/// Calls `woken` whenever the machine may have slept, on a thread of its own.
///
/// # Errors
/// If there can be no such timer, or no thread.
pub(super) fn watch(woken: impl Fn() + Send + 'static) -> io::Result<()> {
    let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC)?;
    arm(&timer)?;
    std::thread::Builder::new()
        .name("leasefs-waking".into())
        .spawn(move || attend(&timer, woken))?;
    Ok(())
}

fn arm(timer: &OwnedFd) -> Result<(), Errno> {
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    timerfd_settime(timer, flags, &NEVER).map(drop)
}

fn attend(timer: &OwnedFd, woken: impl Fn()) {
    loop {
        let mut expirations = [0; 8];
        match read(timer, &mut expirations) {
            Err(Errno::CANCELED) => woken(),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "a suspend will be noticed at the next tick");
                return;
            }
        }
        if arm(timer).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_waits_for_a_suspend_can_be_had() {
        watch(|| {}).expect("a timer");
    }
}
