//! Locks: asked for by a query, decided by the core.

use super::{Server, Sink, Work, refused};
use crate::sim::cx::{Cx, Down};
use crate::sim::net::{LinkId, Stream};
use bytes::Bytes;
use leasefs_lease::server::{Event, LockAnswer, LockAsk, OpId};
use leasefs_protocol::lock::{LockGranted, LockOutcome};
use leasefs_protocol::{Handle, OpenId, Query, Refusal, Reply, Response, SessionId};

/// A query about locks in the core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub session: SessionId,
    pub sink: Sink,
}

impl Asked {
    pub fn link(&self) -> LinkId {
        self.sink.link
    }
}

impl Server {
    /// What is asked of which file's locks; `None` if it is none of locks.
    pub(super) fn lock_ask(
        &self,
        session: SessionId,
        query: &Query,
    ) -> Option<Result<(Handle, LockAsk), Refusal>> {
        let opened = |open: OpenId| Ok(self.opened(session, open)?.object.handle());
        LockAsk::of(query, opened).transpose()
    }

    pub(super) fn ask_lock(
        &mut self,
        cx: &mut Cx,
        op: OpId,
        asked: Asked,
        ask: Result<(Handle, LockAsk), Refusal>,
    ) {
        let (object, ask) = match ask {
            Ok(ask) => ask,
            Err(refusal) => {
                return self.send(cx, asked.sink, refused(refusal), Bytes::new());
            }
        };
        self.works.insert(op, Work::Lock(asked));
        let session = asked.session;
        self.step(
            cx,
            Event::Lock {
                op,
                session,
                object,
                ask,
            },
        );
    }

    pub(super) fn lock_decided(&mut self, cx: &mut Cx, op: OpId, answer: LockAnswer) {
        let Some(Work::Lock(asked)) = self.works.remove(&op) else {
            return;
        };
        if let LockAnswer::Locked(locked) = &answer {
            match locked.outcome {
                LockOutcome::Waits => cx.stats.locks_waited += 1,
                LockOutcome::Deadlock => cx.stats.deadlocks += 1,
                LockOutcome::Granted { .. } | LockOutcome::Conflicts => {}
            }
        }
        let session = asked.session;
        cx.trace(None, || format!("server: to {session}: {answer:?}"));
        let result = match answer {
            LockAnswer::Locked(locked) => Ok(Response::Locked(locked)),
            LockAnswer::Unlocked(unlocked) => Ok(Response::Unlocked(unlocked)),
            LockAnswer::Found(found) => Ok(Response::LockFound(found)),
            LockAnswer::TooMany => Err(Refusal::TooMany),
            LockAnswer::Ended => Err(Refusal::LockLost),
        };
        let reply = Reply {
            result,
            ..refused(Refusal::Internal)
        };
        self.send(cx, asked.sink, reply, Bytes::new());
    }

    pub(super) fn lock_granted(&mut self, cx: &mut Cx, session: SessionId, granted: LockGranted) {
        cx.trace(None, || format!("server: to {session}: {granted:?}"));
        if let Some(link) = self.sessions.get(&session).and_then(|s| s.link) {
            cx.down(link, Stream::Push, Down::LockGranted(granted));
        }
    }
}
