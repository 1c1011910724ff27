//! Panics end where they belong to one request: whoever waits for its answer still gets one.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Runs `work` to its end; `None` if it panicked. Turns, latches and rights are given back as they go out
/// of scope. A panic under a lock leaves what is shared half changed, and ends the process (see
/// [`crate::sync`]).
pub async fn caught<F: Future>(work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Ok(Poll::Pending) => Poll::Pending,
            // The panic's message has been printed where it happened.
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

/// As [`caught`], of something that doesn't wait.
pub fn caught_now<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
