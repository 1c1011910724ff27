//! An operation's way through the lease core: it enters, waits, has its turn, and ends.
//!
//! Whatever is dropped on the way is withdrawn.

use super::Leases;
use super::progress::Mark;
use super::state::{Admitted, LockLost, OpLabel, Waiter, Wake};
use leasefs_lease::server::{Event, LockAnswer, LockAsk, OpId, ReadItem, ReadKind, Touch, Wanted};
use leasefs_protocol::{Grant, Handle, LockEpoch, SessionId, Stamp};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A read may look at the store: what it sees from now on is covered by its grants.
#[derive(Debug)]
pub struct Admission {
    /// What of its answer may be cached.
    pub grants: Vec<Grant>,
}

/// A read's admission, or its place in the queue.
#[derive(Debug)]
pub enum Entry {
    /// It may go on.
    Now(Admission),
    /// It waits.
    Later(Pending),
}

impl Entry {
    /// The admission, once it comes; `None` if the server ends before.
    pub async fn admitted(self) -> Option<Admission> {
        match self {
            Self::Now(admission) => Some(admission),
            Self::Later(pending) => pending.admitted().await,
        }
    }
}

/// A read that waits. Withdrawn when dropped.
#[derive(Debug)]
pub struct Pending {
    leases: Arc<Leases>,
    op: OpId,
    admission: Option<oneshot::Receiver<Admitted>>,
}

impl Pending {
    async fn admitted(mut self) -> Option<Admission> {
        let admitted = self.admission.as_mut()?.await.ok()?;
        self.admission = None;
        Some(Admission {
            grants: admitted.grants,
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.admission.is_some() {
            self.leases.withdraw(self.op);
        }
    }
}

fn enter(
    leases: &Arc<Leases>,
    session: SessionId,
    label: OpLabel,
    kind: ReadKind,
    items: Vec<ReadItem>,
) -> Entry {
    let (wake, mut admission) = oneshot::channel();
    let op = leases.new_op();
    leases.with(|state, now| {
        let wake = Wake::Read(wake);
        state.wait(op, Waiter { label, wake });
        let event = Event::AdmitRead {
            op,
            session,
            kind,
            items,
        };
        state.step(&leases.progress, now, event);
    });
    match admission.try_recv() {
        Ok(Admitted { grants, .. }) => Entry::Now(Admission { grants }),
        Err(_) => Entry::Later(Pending {
            leases: Arc::clone(leases),
            op,
            admission: Some(admission),
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
        Some(admitted.map(|admitted| self.number = admitted.number))
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

/// What is decided of locks, or will be.
#[derive(Debug)]
pub enum LockEntry {
    /// It has been.
    Now(LockAnswer),
    /// It waits.
    Later(PendingLock),
}

/// Something with locks that waits for who decides them. Withdrawn when dropped.
#[derive(Debug)]
pub struct PendingLock {
    leases: Arc<Leases>,
    op: OpId,
    answer: Option<oneshot::Receiver<LockAnswer>>,
}

impl PendingLock {
    /// What is decided; `None` if the server ends before.
    pub async fn decided(mut self) -> Option<LockAnswer> {
        let answer = self.answer.as_mut()?.await.ok()?;
        self.answer = None;
        Some(answer)
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if self.answer.is_some() {
            self.leases.withdraw(self.op);
        }
    }
}

impl Leases {
    /// A session wants to do something with locks of a file.
    pub fn ask_lock(
        self: &Arc<Self>,
        (session, label): (SessionId, OpLabel),
        object: Handle,
        ask: LockAsk,
    ) -> LockEntry {
        let (wake, mut answer) = oneshot::channel();
        let op = self.new_op();
        self.with(|state, now| {
            let wake = Wake::Lock(wake);
            state.wait(op, Waiter { label, wake });
            let event = Event::Lock {
                op,
                session,
                object,
                ask,
            };
            state.step(&self.progress, now, event);
        });
        match answer.try_recv() {
            Ok(answer) => LockEntry::Now(answer),
            Err(_) => LockEntry::Later(PendingLock {
                leases: Arc::clone(self),
                op,
                answer: Some(answer),
            }),
        }
    }

    /// A read wants to look at the store. `label` is for people.
    pub fn read(
        self: &Arc<Self>,
        session: SessionId,
        label: OpLabel,
        kind: ReadKind,
        items: Vec<ReadItem>,
    ) -> Entry {
        enter(self, session, label, kind, items)
    }

    /// This moment, as far as changes go.
    pub fn mark(&self) -> Mark {
        self.progress.mark()
    }

    fn withdraw(&self, op: OpId) {
        self.with(|state, now| state.withdraw(&self.progress, now, op));
    }
}
