//! `fcntl(2)` and `flock(2)` locks: decided here where the mount may, else by the server.
//!
//! What the server is asked goes on though who asked has left: it has to be known what became of it. Who can't wait any
//! longer leaves, and what he has been given meanwhile is given back.

use super::opens::OpenFile;
use super::{Ask, Ops};
use crate::call::{Fh, NodeId};
use crate::locks::{Answered, Decision, LockCall, Of, Woken};
use crate::run::{Place, first};
use crate::session::CallOptions;
use futures_channel::oneshot;
use leasefs_protocol::lock::{LockFound, Unlocked};
use leasefs_protocol::{
    Answer, Caller, Handle, LockKind, LockMode, LockOwner, LockRange, LockWait, Operation, Query,
    Refusal, query,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long who closes a descriptor waits for the server to know that its locks are given up.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);
/// How long who is interrupted waits for the server to know that.
const CANCELS_WITHIN: Duration = Duration::from_secs(1);
/// How often who waits asks who holds him up.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Until it is asked again what was lost while it was answered.
const PAUSE: Duration = Duration::from_millis(20);

/// Xattrs that a file has while this mount holds a lock of it, here alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockXattr {
    /// The number of the newest lock that it holds: a fencing token.
    Token,
    /// For how many milliseconds it holds it at least.
    Lasts,
}

impl LockXattr {
    pub fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"user.leasefs.lock" => Some(Self::Token),
            b"user.leasefs.lock_ms" => Some(Self::Lasts),
            _ => None,
        }
    }
}

/// A request about a file's locks, whose turn it is. Given back when it is dropped.
struct InTurn {
    ops: Arc<Ops>,
    object: Handle,
    _place: Option<Place>,
}

impl Drop for InTurn {
    fn drop(&mut self) {
        self.ops.cache().state().locks.leave(&self.object);
    }
}

impl Ops {
    /// Takes or gives up a lock, if that is decided here.
    pub fn lock_at_once(&self, fh: Fh, call: &LockCall) -> Option<Result<(), Refusal>> {
        let object = match self.file(fh) {
            Ok(open) => open.object,
            Err(refusal) => return Some(Err(refusal)),
        };
        self.decided(&object, fh, call)
    }

    fn decided(&self, object: &Handle, fh: Fh, call: &LockCall) -> Option<Result<(), Refusal>> {
        let mut state = self.cache().state();
        let now = self.cache().look(&mut state);
        match state.locks_at(now).decide(object, fh, call) {
            Decision::Done => Some(Ok(())),
            Decision::Refused(refusal) => Some(Err(refusal)),
            Decision::Ask => None,
        }
    }

    /// Takes or gives up a lock; who wants to waits for it.
    ///
    /// # Errors
    /// `EAGAIN` (another stands against it), `EDEADLK`, `ENOLCK`; `Cancelled` for who has left; [`Refusal::LockLost`] if locks
    /// that were taken through this descriptor are lost.
    pub async fn lock(self: &Arc<Self>, ask: &Ask, fh: Fh, call: LockCall) -> Result<(), Refusal> {
        let open = self.file(fh)?;
        let wait =
            (call.wait && call.mode.is_some()).then(|| self.cache().state().locks.next_wait());
        loop {
            let step = Arc::clone(self).step(Arc::clone(&open), fh, call, wait);
            let woken = match self.followed_up(ask, &open, call, step).await? {
                Answered::Done(result) => return result,
                Answered::Waits(woken) => woken,
            };
            let left = async {
                ask.yields();
                ask.abandon.triggered().await;
                None
            };
            let again = async {
                self.cx.sleep(ASK_AGAIN).await;
                Some(Woken::AskAgain)
            };
            let woken = first(async { woken.await.ok() }, again);
            match first(woken, left).await {
                Some(Woken::Granted) => return Ok(()),
                Some(Woken::AskAgain) => {}
                None if ask.abandon.is_triggered() => {
                    return self.interrupted(&open, call, wait).await;
                }
                // Whoever grants has gone: the mount ends.
                None => return Err(Refusal::Cancelled),
            }
        }
    }

    /// Has the server asked, and waits for what it says. Who leaves before gives back what he is given.
    async fn followed_up(
        self: &Arc<Self>,
        ask: &Ask,
        open: &Arc<OpenFile>,
        call: LockCall,
        step: impl Future<Output = Answered> + Send + 'static,
    ) -> Result<Answered, Refusal> {
        let (tell, told) = oneshot::channel();
        let (ops, open) = (Arc::clone(self), Arc::clone(open));
        self.cx.spawn(async move {
            if let Err(answered) = tell.send(step.await) {
                ops.not_wanted(&open, call, answered).await;
            }
        });
        let told = self.engine.in_time(told);
        // Dropped only with the mount.
        ask.unless_left(told).await?.map_err(|_| Refusal::Cancelled)
    }

    /// Nobody waits for it any more: he has died, or was told that the server can't be reached.
    async fn not_wanted(
        self: &Arc<Self>,
        open: &Arc<OpenFile>,
        call: LockCall,
        answered: Answered,
    ) {
        match answered {
            Answered::Done(Ok(())) if call.mode.is_some() => {
                let of = (call.kind, call.owner);
                Arc::clone(self).give_up(open.object, of, call.range).await;
            }
            Answered::Done(_) => {}
            Answered::Waits(woken) => {
                // It is as if its descriptor were closed.
                drop(woken);
                let of = (call.kind, call.owner);
                Arc::clone(self).stop_waiting(open.object, of).await;
            }
        }
    }

    /// A signal has come while it waited: it has the lock, or never gets it.
    async fn interrupted(
        self: &Arc<Self>,
        open: &Arc<OpenFile>,
        call: LockCall,
        wait: Option<LockWait>,
    ) -> Result<(), Refusal> {
        let Some(wait) = wait else {
            return Err(Refusal::Cancelled);
        };
        let (tell, told) = oneshot::channel();
        let (ops, object) = (Arc::clone(self), open.object);
        self.cx.spawn(async move {
            // Who waited may have gone.
            let _ = tell.send(ops.cancel(object, wait).await);
        });
        let cancelled = self.cx.timeout(CANCELS_WITHIN, told).await;
        let held = call.mode.is_some_and(|mode| {
            let lock = call.wanted(mode);
            self.cache().state().locks.holds(&object, &lock)
        });
        match cancelled {
            Ok(_) if held => Ok(()),
            _ => Err(Refusal::Cancelled),
        }
    }

    async fn cancel(self: Arc<Self>, object: Handle, wait: LockWait) {
        let _turn = Arc::clone(&self).turn(object).await;
        let asked = query::CancelLock { object, wait };
        if let Ok(cancelled) = self.ask_of_locks(Caller::default(), asked).await {
            let mut state = self.cache().state();
            state.locks.waits_no_longer(&object, wait, cancelled);
        }
    }

    /// Gives up whatever an owner waits for: he is gone.
    async fn stop_waiting(self: Arc<Self>, object: Handle, of: Of) {
        let waits = self.cache().state().locks.waits_of(&object, of);
        for wait in waits {
            Arc::clone(&self).cancel(object, wait).await;
        }
        self.give_up(object, of, LockRange::ALL).await;
    }

    /// What stands against a lock.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn test_lock(
        &self,
        ask: &Ask,
        fh: Fh,
        call: LockCall,
    ) -> Result<Option<LockFound>, Refusal> {
        let open = self.file(fh)?;
        if let Some(found) = self.tested(&open.object, &call) {
            return Ok(found);
        }
        let mode = call.mode.ok_or(Refusal::Invalid)?;
        let asked = query::TestLock {
            open: open.server.id(),
            owner: call.owner,
            kind: call.kind,
            mode,
            range: call.range,
        };
        Ok(self.call_as(ask, open.caller.clone(), asked).await?.answer)
    }

    fn tested(&self, object: &Handle, call: &LockCall) -> Option<Option<LockFound>> {
        let mut state = self.cache().state();
        let now = self.cache().look(&mut state);
        state.locks_at(now).test(object, call)
    }

    /// A process closes a descriptor: its `fcntl` locks of the file end, whichever descriptor they were taken through.
    pub async fn close_locks(self: &Arc<Self>, fh: Fh, owner: LockOwner) {
        let Some(open) = self.opens.file(fh) else {
            return;
        };
        let given_up = self.ends(open.object, (LockKind::Posix, owner));
        let (tell, told) = oneshot::channel();
        self.cx.spawn(async move {
            given_up.await;
            // Who closes doesn't wait for ever.
            let _ = tell.send(());
        });
        let _ = self.cx.timeout(CLOSES_WITHIN, told).await;
    }

    /// The same, if nothing has to be waited for.
    pub fn close_locks_at_once(&self, fh: Fh, owner: LockOwner) -> bool {
        let Some(open) = self.opens.file(fh) else {
            return true;
        };
        let (object, kind) = (open.object, LockKind::Posix);
        self.cache().state().locks.closes(&object, owner);
        let call = unlock((kind, owner), LockRange::ALL);
        self.decided(&object, fh, &call).is_some()
    }

    /// The last descriptor is closed.
    pub(super) fn release_locks(self: &Arc<Self>, object: Handle, fh: Fh) {
        let ends = self.cache().state().locks.released(&object, fh);
        for of in ends {
            let call = unlock(of, LockRange::ALL);
            if self.decided(&object, fh, &call).is_none() {
                self.cx.spawn(self.ends(object, of));
            }
        }
    }

    fn ends(self: &Arc<Self>, object: Handle, of: Of) -> impl Future<Output = ()> + Send + 'static {
        let ops = Arc::clone(self);
        async move {
            if ops.cache().state().locks.concerns(&object, of) {
                ops.stop_waiting(object, of).await;
            }
        }
    }

    /// # Errors
    /// [`Refusal::LockLost`] if it was asked under a lock that is lost.
    pub(super) fn keeps_locks(
        &self,
        open: &OpenFile,
        fh: Fh,
        owner: Option<LockOwner>,
    ) -> Result<(), Refusal> {
        let mut state = self.cache().state();
        let now = self.cache().look(&mut state);
        match state.locks_at(now).is_lost(&open.object, fh, owner) {
            true => Err(Refusal::LockLost),
            false => Ok(()),
        }
    }

    /// What is told of the locks that this mount holds of a file, if it holds any.
    pub(super) fn lock_xattr(
        &self,
        node: NodeId,
        of: LockXattr,
    ) -> Result<Option<String>, Refusal> {
        let object = self.node(node)?.handle;
        let mut state = self.cache().state();
        let now = self.cache().look(&mut state);
        let newest = state.locks_at(now).newest(&object);
        let lasts = state.session.remaining(now).as_millis();
        Ok(newest.map(|fence| match of {
            LockXattr::Token => fence.to_string(),
            LockXattr::Lasts => lasts.to_string(),
        }))
    }

    /// Tells the server of locks that are lost here, whenever some are.
    pub async fn attend_locks(self: Arc<Self>) {
        let lost = self.cache().state().locks.lost_bell();
        loop {
            lost.listen().await;
            self.reset_locks().await;
        }
    }

    async fn reset_locks(&self) {
        // One at a time: what is taken behind one must not be lost by the next.
        let _place = self.resetting.next().await;
        let losses = {
            let state = self.cache().state();
            state.locks.is_reset_due().then(|| state.locks.losses())
        };
        let Some(losses) = losses else { return };
        let reset = self
            .ask_of_locks(Caller::default(), query::ResetLocks)
            .await;
        if reset.is_ok() {
            self.cache().state().locks.was_reset(losses);
        }
    }

    async fn turn(self: Arc<Self>, object: Handle) -> InTurn {
        let turn = self.cache().state().locks.enter(&object);
        let mut in_turn = InTurn {
            ops: self,
            object,
            _place: None,
        };
        in_turn._place = turn.next().await;
        in_turn
    }

    /// Asks the server, unless it can be decided here by now.
    async fn step(
        self: Arc<Self>,
        open: Arc<OpenFile>,
        fh: Fh,
        call: LockCall,
        wait: Option<LockWait>,
    ) -> Answered {
        let _turn = Arc::clone(&self).turn(open.object).await;
        loop {
            if let Some(result) = self.decided(&open.object, fh, &call) {
                return Answered::Done(result);
            }
            self.flush_late(&open.object).await;
            self.reset_locks().await;
            let losses = {
                let mut state = self.cache().state();
                let now = self.cache().look(&mut state);
                state.locks_at(now).losses()
            };
            let answered = match call.mode {
                Some(mode) => self.take(&open, fh, (call, mode), wait, losses).await,
                None => {
                    self.unlock(open.object, (call.kind, call.owner), call.range)
                        .await
                }
            };
            match answered {
                Err(Refusal::LockLost) => self.cx.sleep(PAUSE).await,
                Err(refusal) => return Answered::Done(Err(refusal)),
                Ok(answered) => return answered,
            }
        }
    }

    /// What was written under locks that are lost comes, or fails, before there are new ones.
    async fn flush_late(&self, object: &Handle) {
        let late = {
            let state = self.cache().state();
            let dirty = state.inodes.dirty(object);
            state.locks.is_reset_due() && dirty.is_some_and(|dirty| dirty.locked.is_some())
        };
        if late {
            self.writeback.flush(object).await;
        }
    }

    /// # Errors
    /// The server's refusal; [`Refusal::LockLost`] if all locks were lost meanwhile: to be asked again.
    async fn take(
        &self,
        open: &OpenFile,
        fh: Fh,
        (call, mode): (LockCall, LockMode),
        wait: Option<LockWait>,
        losses: u64,
    ) -> Result<Answered, Refusal> {
        let asked = query::Lock {
            open: open.server.id(),
            owner: call.owner,
            kind: call.kind,
            mode,
            range: call.range,
            pid: call.pid,
            wait,
        };
        let locked = self.ask_of_locks(open.caller.clone(), asked).await?;
        let at = (&open.object, fh);
        {
            let mut state = self.cache().state();
            let now = self.cache().look(&mut state);
            let live = state.session.witness(now).is_some();
            let locks = state.locks_at(now);
            if live && locks.losses() == losses {
                return Ok(locks.locked(at, &call.wanted(mode), wait, locked));
            }
        }
        // The server may have been told of the loss before, and have it now.
        let all = query::Unlock {
            object: open.object,
            owner: call.owner,
            kind: call.kind,
            range: LockRange::ALL,
        };
        self.ask_of_locks(Caller::default(), all).await?;
        Err(Refusal::LockLost)
    }

    async fn unlock(
        &self,
        object: Handle,
        (kind, owner): Of,
        range: LockRange,
    ) -> Result<Answered, Refusal> {
        let asked = query::Unlock {
            object,
            owner,
            kind,
            range,
        };
        let unlocked: Unlocked = self.ask_of_locks(Caller::default(), asked).await?;
        let mut state = self.cache().state();
        state
            .locks
            .unlocked(&object, (kind, owner), range, unlocked);
        Ok(Answered::Done(Ok(())))
    }

    async fn give_up(self: Arc<Self>, object: Handle, of: Of, range: LockRange) {
        let _turn = Arc::clone(&self).turn(object).await;
        // The session has forgotten them if it is refused.
        let _ = self.unlock(object, of, range).await;
    }

    async fn ask_of_locks<Q>(&self, caller: Caller, asked: Q) -> Result<Q::Answer, Refusal>
    where
        Q: Operation<Answer: Answer> + Into<Query>,
    {
        let answer = self.rpc.call(caller, asked, CallOptions::default()).await?;
        answer.reply.result
    }
}

fn unlock((kind, owner): Of, range: LockRange) -> LockCall {
    LockCall {
        owner,
        kind,
        range,
        mode: None,
        pid: 0,
        wait: false,
    }
}
