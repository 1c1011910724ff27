//! What is asked of the kernel and of the disk, and awaited.

use crate::api::{Effect, EffectId, Notice, Noticed, Undelivered};
use crate::cache::Cache;
use crate::call::NodeId;
use crate::run::{Cx, Map, Part};
use futures_channel::oneshot;
use leasefs_protocol::Handle;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

struct OutsideInner {
    cx: Cx,
    cache: Arc<Cache>,
    awaited: Part<Map<EffectId, oneshot::Sender<Noticed>>>,
}

/// The kernel's caches of this mount, and the recovery folder. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Outside(Arc<OutsideInner>);

impl Outside {
    /// A kernel that knows inodes of this cache.
    pub fn new(cx: Cx, cache: Arc<Cache>) -> Self {
        Self(Arc::new(OutsideInner {
            cx,
            cache,
            awaited: Part::default(),
        }))
    }

    /// Tells the kernel something. It is told when this returns, also if nobody waits.
    pub fn tell(&self, notice: Notice) -> Pending {
        Pending::all(vec![self.tell_one(notice)])
    }

    fn tell_one(&self, notice: Notice) -> oneshot::Receiver<Noticed> {
        let (id, done) = self.await_one();
        self.0.cx.effect(Effect::Notify(id, notice));
        done
    }

    /// As [`Outside::tell`], of an object, of every node by which the kernel knows it.
    pub fn tell_of(&self, object: &Handle, notice: impl Fn(NodeId) -> Notice) -> Pending {
        let nodes = self.0.cache.inodes().nodes_of(object);
        let told = nodes.into_iter().map(|node| self.tell_one(notice(node)));
        Pending::all(told.collect())
    }

    /// Has bytes kept in the recovery folder; resolves when they are, or can't be.
    pub async fn keep(&self, undelivered: Undelivered) {
        let (id, done) = self.await_one();
        self.0.cx.effect(Effect::Keep(id, undelivered));
        // What becomes of it is logged there.
        let _ = done.await;
    }

    /// What was asked for has come to this.
    pub fn done(&self, id: EffectId, noticed: Noticed) {
        let awaited = self.0.awaited.borrow_mut().remove(&id);
        if let Some(tell) = awaited {
            // Nobody may wait.
            let _ = tell.send(noticed);
        }
    }

    fn await_one(&self) -> (EffectId, oneshot::Receiver<Noticed>) {
        let id = EffectId(self.0.cx.number());
        let (tell, told) = oneshot::channel();
        self.0.awaited.borrow_mut().insert(id, tell);
        (id, told)
    }
}

/// Resolves with what has come of a notice, if of several with the worst.
pub(crate) struct Pending {
    told: Vec<oneshot::Receiver<Noticed>>,
    worst: Noticed,
}

impl Pending {
    fn all(told: Vec<oneshot::Receiver<Noticed>>) -> Self {
        let worst = Noticed::Done;
        Self { told, worst }
    }
}

impl Future for Pending {
    type Output = Noticed;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Noticed> {
        while let Some(told) = self.told.last_mut() {
            let Poll::Ready(noticed) = Pin::new(told).poll(context) else {
                return Poll::Pending;
            };
            self.told.pop();
            // Whoever drives the core may have gone: then the kernel's connection has, too.
            self.worst = self.worst.max(noticed.unwrap_or(Noticed::Done));
        }
        Poll::Ready(self.worst)
    }
}
