//! Waiting for what comes first.
//!
//! These are types rather than `async` functions, whose futures hold each argument twice: nested, a
//! waiting call would take a hundred kilobytes.

use super::Sleep;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A time that was waited for hasn't brought what it was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

pin_project! {
    /// See [`within`].
    pub(crate) struct Within<F> {
        #[pin]
        wait: F,
        late: Option<Sleep>,
    }
}

/// Resolves with what is waited for, unless that takes too long.
pub(crate) fn within<F: Future>(wait: F, late: Option<Sleep>) -> Within<F> {
    Within { wait, late }
}

impl<F: Future> Future for Within<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.wait.poll(context) {
            return Poll::Ready(Ok(done));
        }
        match this.late {
            Some(late) => Pin::new(late).poll(context).map(|()| Err(Elapsed)),
            None => Poll::Pending,
        }
    }
}

pin_project! {
    /// See [`first`].
    pub(crate) struct First<A, B> {
        #[pin]
        former: A,
        #[pin]
        latter: B,
    }
}

/// What of two comes first; the former if both have come.
pub(crate) fn first<A: Future, B: Future<Output = A::Output>>(former: A, latter: B) -> First<A, B> {
    First { former, latter }
}

impl<A: Future, B: Future<Output = A::Output>> Future for First<A, B> {
    type Output = A::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.former.poll(context) {
            Poll::Pending => this.latter.poll(context),
            ready => ready,
        }
    }
}
