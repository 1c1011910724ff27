//! Failures to make something durable, until whom they concern has heard of them.
//!
//! The host tells each descriptor once (`errseq_t`, Linux's `lib/errseq.c`), and who has asked may be cut off before he
//! hears it: then he asks again, and would be told that all is well.

use crate::sync;
use leasefs_protocol::{Refusal, RequestId};
use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::Mutex;
use tokio::sync::Notify;

/// So many failures of a session are told again, the last ones.
const MOST_FAILED: usize = 64;

/// What the host has said of the whole export (`syncfs`).
#[derive(Debug, Default)]
pub struct Failures(Mutex<(u64, Option<Refusal>)>);

impl Failures {
    /// How often it has failed.
    pub fn count(&self) -> u64 {
        sync::lock(&self.0).0
    }

    /// It was asked for everything.
    pub fn asked(&self, done: Result<(), Refusal>) {
        if let Err(refusal) = done {
            let mut failures = sync::lock(&self.0);
            *failures = (failures.0 + 1, Some(refusal));
        }
    }
}

/// What a session asks to be made durable.
#[derive(Debug, Default)]
pub struct Syncs {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    under_way: HashSet<RequestId>,
    failed: VecDeque<(RequestId, Refusal)>,
    /// How many of the export's failures it has been told of, or came before it.
    heard: Option<u64>,
}

/// A request that is being carried out.
#[derive(Debug)]
pub struct Syncing<'a> {
    syncs: &'a Syncs,
    request: Option<RequestId>,
}

impl Syncs {
    /// A request begins, when no other copy of it is being carried out.
    ///
    /// # Errors
    /// If an earlier copy has failed: what the host said.
    pub async fn begin(&self, request: Option<RequestId>) -> Result<Syncing<'_>, Refusal> {
        let Some(id) = request else {
            return Ok(Syncing {
                syncs: self,
                request,
            });
        };
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            {
                let mut state = sync::lock(&self.state);
                if let Some((_, refusal)) = state.failed.iter().find(|(failed, _)| *failed == id) {
                    return Err(*refusal);
                }
                if state.under_way.insert(id) {
                    return Ok(Syncing {
                        syncs: self,
                        request,
                    });
                }
            }
            ended.await;
        }
    }

    /// The session begins: what has failed before doesn't concern it.
    pub fn begins(&self, failures: &Failures) {
        let count = failures.count();
        sync::lock(&self.state).heard.get_or_insert(count);
    }

    /// The session is of the server's earlier life: all that has failed in this one concerns it.
    pub fn goes_on(&self) {
        sync::lock(&self.state).heard = Some(0);
    }

    /// The host was asked for everything, by whomever. Each session is told once that it has failed.
    ///
    /// # Errors
    /// Why it has.
    pub fn hears(&self, failures: &Failures) -> Result<(), Refusal> {
        let (count, why) = *sync::lock(&failures.0);
        let before = sync::lock(&self.state).heard.replace(count).unwrap_or(0);
        match why.filter(|_| before < count) {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }
}

impl Syncing<'_> {
    /// It has been carried out.
    pub fn ends(self, done: Result<(), Refusal>) -> Result<(), Refusal> {
        if let (Some(id), Err(refusal)) = (self.request, done) {
            let mut state = sync::lock(&self.syncs.state);
            state.failed.push_back((id, refusal));
            if state.failed.len() > MOST_FAILED {
                state.failed.pop_front();
            }
        }
        done
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.request {
            sync::lock(&self.syncs.state).under_way.remove(&id);
            self.syncs.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Waker};

    const EIO: Refusal = Refusal::Host(libc::EIO as u16);

    fn begins(syncs: &Syncs, request: u64) -> Option<Result<Syncing<'_>, Refusal>> {
        let mut begin = pin!(syncs.begin(Some(RequestId(request))));
        match begin.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(begun) => Some(begun),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn who_asks_again_hears_what_the_host_has_said_once() {
        let syncs = Syncs::default();
        let first = begins(&syncs, 1).expect("alone").expect("not failed");
        assert!(begins(&syncs, 1).is_none(), "its copy waits");
        assert!(begins(&syncs, 2).is_some_and(|begun| begun.is_ok()));
        assert_eq!(first.ends(Err(EIO)), Err(EIO));
        for _ in 0..2 {
            let again = begins(&syncs, 1).expect("it has ended");
            assert_eq!(again.err(), Some(EIO));
        }
        let other = begins(&syncs, 3).expect("alone").expect("not failed");
        assert_eq!(other.ends(Ok(())), Ok(()));
    }

    #[test]
    fn that_the_export_could_not_be_made_durable_each_session_hears_once() {
        let failures = Failures::default();
        failures.asked(Err(EIO));
        let [here, there] = [Syncs::default(), Syncs::default()];
        for session in [&here, &there] {
            session.begins(&failures);
        }
        assert_eq!(here.hears(&failures), Ok(()), "before it began");
        let earlier = Syncs::default();
        earlier.goes_on();
        earlier.begins(&failures);
        assert_eq!(earlier.hears(&failures), Err(EIO));
        failures.asked(Err(EIO));
        failures.asked(Ok(()));
        for session in [&here, &there] {
            assert_eq!(session.hears(&failures), Err(EIO));
            assert_eq!(session.hears(&failures), Ok(()));
        }
    }
}
