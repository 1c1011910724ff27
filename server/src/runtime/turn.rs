//! An operation's way through the lease core: it enters, waits, has its turn, and ends.
//!
//! Whatever is dropped on the way is withdrawn.

use super::Leases;
use super::progress::Mark;
use super::snapshot::OpLabel;
use super::state::{Admission, LockLost, Waiter, Wake};
use leasefs_lease::server::{Event, LockAnswer, LockAsk, OpId, ReadItem, ReadKind, Touch, Wanted};
use leasefs_protocol::{Grant, Handle, LockEpoch, SessionId, Stamp};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What the lease core says, or a place in its queue.
#[derive(Debug)]
pub enum Entry<T = Admission> {
    /// It has been said.
    Now(T),
    /// It waits.
    Later(Pending<T>),
}

impl<T> Entry<T> {
    /// What is said, once it is; `None` if the server ends before.
    pub async fn decided(self) -> Option<T> {
        match self {
            Self::Now(decided) => Some(decided),
            Self::Later(pending) => pending.decided().await,
        }
    }
}

/// What waits, a read or something with locks. Withdrawn when dropped.
#[derive(Debug)]
pub struct Pending<T> {
    leases: Arc<Leases>,
    op: OpId,
    awaited: Option<oneshot::Receiver<T>>,
}

impl<T> Pending<T> {
    /// See [`Entry::decided`].
    pub async fn decided(mut self) -> Option<T> {
        let decided = self.awaited.as_mut()?.await.ok()?;
        self.awaited = None;
        Some(decided)
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.awaited.is_some() {
            self.leases.withdraw(self.op);
        }
    }
}

fn enter<T>(
    leases: &Arc<Leases>,
    label: OpLabel,
    wake: impl FnOnce(oneshot::Sender<T>) -> Wake,
    event: impl FnOnce(OpId) -> Event,
) -> Entry<T> {
    let (tell, mut awaited) = oneshot::channel();
    let op = leases.new_op();
    leases.with(|state, now| {
        let wake = wake(tell);
        state.wait(op, Waiter { label, wake });
        state.step(&leases.progress, now, event(op));
    });
    match awaited.try_recv() {
        Ok(decided) => Entry::Now(decided),
        Err(_) => Entry::Later(Pending {
            leases: Arc::clone(leases),
            op,
            awaited: Some(awaited),
        }),
    }
}

/// What a finished change's reply carries.
#[derive(Debug)]
pub struct Finished {
    /// Its place in its session's stream.
    pub stamp: Stamp,
    /// What of the reply may be cached.
    pub grants: Vec<Grant>,
    /// No other change has begun since this one had its turn: what it has made is as it was made.
    pub undisturbed: bool,
}

/// A change in the lease core: waiting, then running. Withdrawn when dropped unfinished.
#[derive(Debug)]
pub struct Turn {
    leases: Arc<Leases>,
    op: OpId,
    label: OpLabel,
    number: u64,
    finished: bool,
}

impl Turn {
    /// Waits for the change's turn. `None` if the server ends before.
    pub async fn take(
        leases: &Arc<Leases>,
        (session, label): (SessionId, OpLabel),
        touches: Vec<Touch>,
        dropped: Vec<Handle>,
        writeback: bool,
        locked: Option<LockEpoch>,
    ) -> Option<Result<Self, LockLost>> {
        let op = leases.new_op();
        let mut turn = Self {
            leases: Arc::clone(leases),
            op,
            label,
            number: 0,
            finished: false,
        };
        let event = Event::AdmitChange {
            op,
            session,
            touches,
            dropped,
            writeback,
            locked,
        };
        Some(turn.wait(event).await?.map(|()| turn))
    }

    /// The change turns out to touch other objects: waits again, at its old place in the order.
    pub async fn requeue(
        &mut self,
        touches: Vec<Touch>,
        dropped: Vec<Handle>,
    ) -> Option<Result<(), LockLost>> {
        let op = self.op;
        let event = Event::Requeue {
            op,
            touches,
            dropped,
        };
        self.wait(event).await
    }

    async fn wait(&mut self, event: Event) -> Option<Result<(), LockLost>> {
        let (wake, mut admission) = oneshot::channel();
        let waiter = Waiter {
            label: self.label,
            wake: Wake::Change(wake),
        };
        let (leases, op) = (&self.leases, self.op);
        leases.with(|state, now| {
            state.stops(&leases.progress, op);
            state.wait(op, waiter);
            state.step(&leases.progress, now, event);
        });
        let admitted = match admission.try_recv() {
            Ok(admitted) => admitted,
            Err(_) => admission.await.ok()?,
        };
        Some(admitted.map(|number| self.number = number))
    }

    /// Whether no other change has run since `mark`: what was read since is as it was.
    pub fn follows(&self, mark: Mark) -> bool {
        mark.precedes(self.number)
    }

    /// Ends the change. `wants` is what its reply shows and the client would cache.
    pub fn finish(mut self, wants: Vec<Wanted>) -> Finished {
        self.finished = true;
        let (leases, op, number) = (&self.leases, self.op, self.number);
        leases.with(|state, now| {
            state.stops(&leases.progress, op);
            let event = Event::FinishChange { op, wants };
            let outcome = state.step(&leases.progress, now, event);
            let (stamp, grants) = outcome.finished.unwrap_or_default();
            Finished {
                stamp,
                grants,
                undisturbed: leases.progress.is_last(number),
            }
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.finished {
            self.leases.withdraw(self.op);
        }
    }
}

impl Leases {
    /// A session wants to do something with locks of a file. `label` is for people.
    pub fn ask_lock(
        self: &Arc<Self>,
        (session, label): (SessionId, OpLabel),
        object: Handle,
        ask: LockAsk,
    ) -> Entry<LockAnswer> {
        enter(self, label, Wake::Lock, |op| Event::Lock {
            op,
            session,
            object,
            ask,
        })
    }

    /// A read wants to look at the store. `label` is for people.
    pub fn read(
        self: &Arc<Self>,
        session: SessionId,
        label: OpLabel,
        kind: ReadKind,
        items: Vec<ReadItem>,
    ) -> Entry {
        enter(self, label, Wake::Read, |op| Event::AdmitRead {
            op,
            session,
            kind,
            items,
        })
    }

    /// This moment, as far as changes go.
    pub fn mark(&self) -> Mark {
        self.progress.mark()
    }

    fn withdraw(&self, op: OpId) {
        self.with(|state, now| state.withdraw(&self.progress, now, op));
    }
}
