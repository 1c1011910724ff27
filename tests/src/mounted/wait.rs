//! Bounded waits.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Something that runs in a thread of its own, so that a test can go on when it
/// never returns.
pub struct Background<T> {
    what: String,
    started: Instant,
    result: Receiver<(T, Duration)>,
    thread: Option<JoinHandle<()>>,
}

/// Starts `work`; `what` names it in failures.
pub fn in_background<T: Send + 'static>(
    what: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Background<T> {
    let (sender, result) = mpsc::sync_channel(1);
    let started = Instant::now();
    let thread = thread::spawn(move || {
        let outcome = work();
        // The test may have given up on it.
        let _ = sender.send((outcome, started.elapsed()));
    });
    Background {
        what: what.into(),
        started,
        result,
        thread: Some(thread),
    }
}

impl<T> Background<T> {
    /// Its result and how long it took from its start.
    ///
    /// # Panics
    /// When it is not done within `limit` from now, or has panicked.
    pub fn done_within(&mut self, limit: Duration) -> (T, Duration) {
        match self.result.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => panic!(
                "{} was not done {:.1?} after it began (waited {limit:.1?})",
                self.what,
                self.started.elapsed()
            ),
            Err(RecvTimeoutError::Disconnected) => self.pass_panic_on(),
        }
    }

    /// True when it is still running after `time`.
    pub fn still_runs_after(&mut self, time: Duration) -> Result<(), (T, Duration)> {
        match self.result.recv_timeout(time) {
            Ok(outcome) => Err(outcome),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => self.pass_panic_on(),
        }
    }

    fn pass_panic_on(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => panic!("{} ended without a result", self.what),
        }
    }
}

/// The result of `work` and how long it took.
///
/// # Panics
/// When that is longer than `limit`.
pub fn within<T: Send + 'static>(
    what: impl Into<String>,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> (T, Duration) {
    in_background(what, work).done_within(limit)
}

/// Asks `probe` again and again until it gives something.
///
/// # Panics
/// When it gives nothing for `limit`; with `why`, what is known by then.
pub fn eventually<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
    why: impl FnOnce() -> String,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        if started.elapsed() > limit {
            panic!("waited {limit:.1?} for {what}\n{}", why());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_fails_the_test_and_says_what_it_was() {
        let (keep, never) = mpsc::channel::<()>();
        let outcome = std::panic::catch_unwind(|| {
            within("a read", Duration::from_millis(20), move || {
                never.recv().is_ok()
            });
        });
        drop(keep);
        let message = *outcome
            .expect_err("it must fail")
            .downcast::<String>()
            .expect("a text");
        assert!(message.contains("a read"), "{message}");
    }

    #[test]
    fn a_panic_in_the_background_reaches_the_test() {
        let outcome = std::panic::catch_unwind(|| {
            within("a check", Duration::from_secs(10), || panic!("wrong bytes"));
        });
        let message = outcome.expect_err("it must fail");
        assert_eq!(message.downcast_ref::<&str>(), Some(&"wrong bytes"));
    }
}
