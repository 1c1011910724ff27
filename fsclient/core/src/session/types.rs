//! What those who ask the server give and get.

use crate::opens::ServerOpen;
use crate::run::Bell;
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_protocol::{Answer, BootId, LockEpoch, Refusal, Reply, Response};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// A server's answer.
#[derive(Debug)]
pub struct Answered<A = Response> {
    /// The reply; its `result` may be a refusal.
    pub reply: Reply<A>,
    /// File data behind it.
    pub payload: Bytes,
    /// The life of the server's host in which it was given.
    pub host: BootId,
    /// What it has opened.
    pub open: Option<ServerOpen>,
}

impl Answered {
    /// As that of the operation that was asked for: nothing else has come through the border.
    pub fn typed<A: Answer>(self) -> Answered<A> {
        Answered {
            reply: self.reply.typed(Refusal::Internal),
            payload: self.payload,
            host: self.host,
            open: self.open,
        }
    }
}

/// The outcome of a change as its caller is told.
#[derive(Debug)]
pub struct Changed<A = Response> {
    /// The server's answer; or why there is none: `TimedOut`, `Cancelled` (abandoned), `Lost`.
    pub result: Result<Answered<A>, Refusal>,
    /// Present if the change may still happen: its objects must not be cached before this is
    /// resolved.
    pub unsettled: Option<Unsettled>,
    /// It was not sent, since the server's host has crashed or has forgotten the session: what it
    /// must come behind may have to be written again first. Then it may be asked for anew.
    pub overtaken: bool,
}

impl Changed {
    pub(super) fn typed<A: Answer>(self) -> Changed<A> {
        Changed {
            result: self.result.map(Answered::typed),
            unsettled: self.unsettled,
            overtaken: self.overtaken,
        }
    }

    /// A change that was never sent.
    pub(super) fn never(refusal: Refusal) -> Self {
        Self {
            result: Err(refusal),
            unsettled: None,
            overtaken: false,
        }
    }

    /// The storage host's disk is full, or its owner's quota used up.
    pub(super) fn finds_no_room(&self) -> bool {
        const NO_ROOM: [i32; 2] = [libc::ENOSPC, libc::EDQUOT];
        let answer = self.result.as_ref().ok();
        matches!(
            answer.map(|answer| &answer.reply.result),
            Some(Err(Refusal::Host(errno))) if NO_ROOM.contains(&i32::from(*errno))
        )
    }
}

/// Resolves when it is known what became of a change whose caller has gone.
#[derive(Debug)]
pub struct Unsettled(pub(super) oneshot::Receiver<Settlement>);

impl Future for Unsettled {
    type Output = Settlement;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Settlement> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|settled| settled.unwrap_or(Settlement::SessionLost))
    }
}

/// What became of a change whose caller has gone.
#[derive(Debug)]
pub enum Settlement {
    /// It ran; this is its answer. An open it has made is closed again.
    Answered(Box<Answered>),
    /// It never runs.
    NeverHappens,
    /// The server has forgotten the session: it may have run, but does not run any more.
    SessionLost,
}

/// How a request is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions<'a> {
    /// Lets the caller leave early.
    pub abandon: Option<&'a Abandon>,
    /// For `status`: the process that waits.
    pub pid: Option<u32>,
    /// Of a change: the life of the server's host that was known when what it must come behind was
    /// settled. It is sent in no other.
    pub life: Option<BootId>,
    /// Of a change: the tenure of the locks under which it is made.
    pub locked: Option<LockEpoch>,
    /// Of a change: told when it has its number. Those that are asked for then come behind it.
    pub numbered: Option<&'a Bell>,
}

/// Tells a waiting request that its caller leaves. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Abandon(Arc<Leaving>);

#[derive(Debug, Default)]
struct Leaving {
    set: AtomicBool,
    bell: Bell,
}

impl Abandon {
    /// The caller leaves: its request ends with [`Refusal::Cancelled`].
    pub fn trigger(&self) {
        self.0.set.store(true, Ordering::Relaxed);
        self.0.bell.ring_all();
    }

    /// Whether the caller has left.
    pub fn is_triggered(&self) -> bool {
        self.0.set.load(Ordering::Relaxed)
    }

    /// Waits until the caller leaves.
    pub async fn triggered(&self) {
        let told = self.0.bell.listen();
        if !self.is_triggered() {
            told.await;
        }
    }
}
