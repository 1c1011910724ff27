//! `fcntl(2)` and `flock(2)` locks: decided here where the mount may, else by the server.
//!
//! What the server is asked goes on though who asked has left: it has to be known what became of it. Who can't wait any
//! longer leaves, and what he has been given meanwhile is given back.

use super::opens::OpenFile;
use super::{Ask, Ops};
use crate::call::{Fh, LockCall, NodeId};
use crate::locks::{Answered, Decision, Of, Woken};
use crate::run::{Place, first};
use crate::session::CallOptions;
use futures_channel::oneshot;
use leasefs_protocol::lock::{LockFound, Unlocked};
use leasefs_protocol::{
    Answer, Caller, Handle, HeldLock, LockEpoch, LockKind, LockMode, LockOwner, LockRange,
    LockWait, Operation, Query, Refusal, query,
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

/// What a process wants of a file's locks.
struct Asking {
    open: Arc<OpenFile>,
    fh: Fh,
    call: LockCall,
    /// Its number, if it waits.
    wait: Option<LockWait>,
    /// What its owner held of these bytes before.
    before: Vec<HeldLock>,
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
        let asking = self.asking(fh, call)?;
        loop {
            let woken = match self.followed_up(ask, &asking).await? {
                Answered::Done(result) => return result,
                Answered::Waits(woken) => woken,
            };
            let again = async {
                self.cx.sleep(ASK_AGAIN).await;
                Ok(Woken::AskAgain)
            };
            // Whoever grants goes only with the mount.
            let woken = async { woken.await.map_err(|_| Refusal::Cancelled) };
            let woken = first(woken, again);
            match first(async { Some(woken.await) }, interrupted(ask)).await {
                Some(Ok(Woken::Granted)) => return Ok(()),
                Some(Ok(Woken::AskAgain)) => {}
                Some(Err(refusal)) => return Err(refusal),
                None => return self.interrupted(ask, asking).await,
            }
        }
    }

    fn asking(&self, fh: Fh, call: LockCall) -> Result<Arc<Asking>, Refusal> {
        let open = self.file(fh)?;
        let mut state = self.cache().state();
        let waits = call.wait && call.mode.is_some();
        let wait = waits.then(|| state.locks.next_wait());
        let before = match call.kind {
            LockKind::Posix => state.locks.held_within(&open.object, &call),
            // It is given up before it is converted.
            LockKind::Flock => Vec::new(),
        };
        Ok(Arc::new(Asking {
            open: Arc::clone(&open),
            fh,
            call,
            wait,
            before,
        }))
    }

    /// Has the server asked, and waits for what it says. Who leaves before gives back what he is given.
    async fn followed_up(
        self: &Arc<Self>,
        ask: &Ask,
        asking: &Arc<Asking>,
    ) -> Result<Answered, Refusal> {
        let (tell, told) = oneshot::channel();
        let (ops, asking) = (Arc::clone(self), Arc::clone(asking));
        self.cx.spawn(async move {
            let _turn = Arc::clone(&ops).turn(asking.open.object).await;
            let answered = ops.step(&asking, asking.call, asking.wait).await;
            if let Err(answered) = tell.send(answered) {
                ops.not_wanted(&asking, answered).await;
            }
        });
        let told = self.engine.in_time(told);
        // Dropped only with the mount.
        ask.unless_left(told).await?.map_err(|_| Refusal::Cancelled)
    }

    /// Nobody waits for it any more: he has left, or was told that the server can't be reached. In the same turn: he may
    /// ask again.
    async fn not_wanted(&self, asking: &Asking, answered: Answered) {
        let holds = match answered {
            Answered::Done(result) => result.is_ok(),
            Answered::Waits(woken) => {
                drop(woken);
                self.waits_no_longer(asking).await
            }
        };
        if holds && asking.call.mode.is_some() {
            self.take_back(asking).await;
        }
    }

    /// A signal has come while it waited: it has the lock, or never gets it.
    async fn interrupted(self: &Arc<Self>, ask: &Ask, asking: Arc<Asking>) -> Result<(), Refusal> {
        let (tell, told) = oneshot::channel();
        let ops = Arc::clone(self);
        self.cx.spawn(async move {
            let _turn = Arc::clone(&ops).turn(asking.open.object).await;
            let holds = ops.waits_no_longer(&asking).await;
            // Who waited was told that he doesn't.
            if tell.send(holds).is_err() && holds {
                ops.take_back(&asking).await;
            }
        });
        let told = self.cx.timeout(CANCELS_WITHIN, told);
        let told = async { Ok(matches!(told.await, Ok(Ok(true)))) };
        match ask.unless_left(told).await? {
            true => Ok(()),
            false => Err(Refusal::Cancelled),
        }
    }

    /// Ends a wait; whether the lock is held by then. Where the server knows of no wait it may have granted it just before, and
    /// the message be under way.
    async fn waits_no_longer(&self, asking: &Asking) -> bool {
        let Some(wait) = asking.wait else {
            return false;
        };
        let waited = self.cancel(asking.open.object, wait).await;
        if waited != Some(false) {
            return false;
        }
        let call = LockCall {
            wait: false,
            ..asking.call
        };
        let answered = self.step(asking, call, None).await;
        matches!(answered, Answered::Done(Ok(())))
    }

    /// Whether the server knew of the wait; `None` if it says nothing of it.
    async fn cancel(&self, object: Handle, wait: LockWait) -> Option<bool> {
        let asked = query::CancelLock { object, wait };
        let cancelled = self.ask_of_locks(Caller::default(), asked).await.ok()?;
        let mut state = self.cache().state();
        state.locks.waits_no_longer(&object, wait, cancelled);
        Some(cancelled.any)
    }

    /// Gives back a lock of which its owner was told that he hasn't got it; what he held before he keeps.
    async fn take_back(&self, asking: &Asking) {
        let Asking { call, before, .. } = asking;
        let mut rest = vec![call.range];
        for held in before {
            let again = LockCall {
                range: held.range,
                mode: Some(held.mode),
                wait: false,
                ..*call
            };
            self.step(asking, again, None).await;
            let without = |range: LockRange| range.without(held.range).into_iter().flatten();
            rest = rest.into_iter().flat_map(without).collect();
        }
        for range in rest {
            let of = (call.kind, call.owner);
            self.gives_up(asking.open.object, of, range).await;
        }
    }

    /// Gives up whatever an owner waits for: he is gone.
    async fn stop_waiting(self: Arc<Self>, object: Handle, of: Of) {
        let _turn = Arc::clone(&self).turn(object).await;
        let waits = self.cache().state().locks.waits_of(&object, of);
        for wait in waits {
            self.cancel(object, wait).await;
        }
        self.gives_up(object, of, LockRange::ALL).await;
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
        let of = (LockKind::Posix, owner);
        let waits = self.cache().state().locks.holds(&open.object, of);
        if waits && self.rpc.progress().in_contact {
            let _ = self.cx.timeout(CLOSES_WITHIN, told).await;
        }
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

    /// The tenure of the locks under which something is done from now on.
    ///
    /// # Errors
    /// [`Refusal::LockLost`] if it was asked under a lock that is lost.
    pub(super) fn keeps_locks(
        &self,
        object: &Handle,
        fh: Option<Fh>,
        owner: Option<LockOwner>,
    ) -> Result<Option<LockEpoch>, Refusal> {
        let mut state = self.cache().state();
        let now = self.cache().look(&mut state);
        let locks = state.locks_at(now);
        match locks.is_lost(object, fh, owner) {
            true => Err(Refusal::LockLost),
            false => Ok(locks.guard(object, fh, owner)),
        }
    }

    /// As [`Ops::keeps_locks`], where it isn't known who does it.
    pub(super) fn locked_by_anybody(&self, object: &Handle) -> Option<LockEpoch> {
        let mut state = self.cache().state();
        let now = self.cache().look(&mut state);
        state.locks_at(now).guard_of_anybody(object)
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
            // Who asks for a lock next tries again.
            let _ = self.reset_locks().await;
        }
    }

    async fn reset_locks(&self) -> Result<(), Refusal> {
        // One at a time: what is taken behind one must not be lost by the next.
        let _place = self.resetting.next().await;
        let losses = {
            let state = self.cache().state();
            state.locks.is_reset_due().then(|| state.locks.losses())
        };
        if let Some(losses) = losses {
            let reset = query::ResetLocks;
            let reset = self.ask_of_locks(Caller::default(), reset).await?;
            self.cache().state().locks.was_reset(losses, reset);
        }
        Ok(())
    }

    /// Until the server knows of all that is lost, since what it is asked for next must not be lost with that. Returns how
    /// often all was.
    async fn all_told(&self) -> Result<u64, Refusal> {
        loop {
            self.reset_locks().await?;
            let mut state = self.cache().state();
            let now = self.cache().look(&mut state);
            let locks = state.locks_at(now);
            if !locks.is_reset_due() {
                return Ok(locks.losses());
            }
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

    /// Asks the server, unless it can be decided here by now. To be called in turn.
    async fn step(&self, asking: &Asking, call: LockCall, wait: Option<LockWait>) -> Answered {
        let Asking { open, fh, .. } = asking;
        loop {
            if let Some(result) = self.decided(&open.object, *fh, &call) {
                return Answered::Done(result);
            }
            self.flush_late(&open.object).await;
            match self.ask(asking, call, wait).await {
                Err(Refusal::LockLost) => self.cx.sleep(PAUSE).await,
                Err(refusal) => return Answered::Done(Err(refusal)),
                Ok(answered) => return answered,
            }
        }
    }

    async fn ask(
        &self,
        asking: &Asking,
        call: LockCall,
        wait: Option<LockWait>,
    ) -> Result<Answered, Refusal> {
        let losses = self.all_told().await?;
        match call.mode {
            Some(mode) => self.take(asking, (call, mode), wait, losses).await,
            None => {
                let (object, of) = (asking.open.object, (call.kind, call.owner));
                self.unlock(object, of, call.range).await?;
                // It may have been lost meanwhile.
                let lost = self.cache().state().locks.forgets_loss(&object, of);
                Ok(Answered::Done(match lost {
                    true => Err(Refusal::LockLost),
                    false => Ok(()),
                }))
            }
        }
    }

    /// What was written under locks that are lost comes, or fails, before there are new ones.
    async fn flush_late(&self, object: &Handle) {
        let late = {
            let state = self.cache().state();
            let dirty = state.inodes.dirty(object);
            let under = dirty.and_then(|dirty| dirty.locked);
            under.is_some_and(|epoch| state.locks.is_over(epoch))
        };
        if late {
            self.writeback.flush(object).await;
        }
    }

    /// # Errors
    /// The server's refusal; [`Refusal::LockLost`] if all locks were lost meanwhile: to be asked again.
    async fn take(
        &self,
        Asking { open, fh, .. }: &Asking,
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
        self.cache().state().locks.asks(wait);
        let locked = self.ask_of_locks(open.caller.clone(), asked).await;
        let at = (&open.object, *fh);
        {
            let mut state = self.cache().state();
            let early = state.locks.was_asked(wait);
            let locked = locked?;
            let now = self.cache().look(&mut state);
            let live = state.session.witness(now).is_some();
            let locks = state.locks_at(now);
            if live && locks.losses() == losses {
                let answered = locks.locked(at, &call.wanted(mode), wait, locked);
                early.into_iter().for_each(|early| locks.granted(early));
                return Ok(answered);
            }
        }
        // The server may have been told of the loss before, and have it now, or wait with it.
        if let Some(wait) = wait {
            self.cancel(open.object, wait).await;
        }
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
    ) -> Result<(), Refusal> {
        let asked = query::Unlock {
            object,
            owner,
            kind,
            range,
        };
        let given = Some(((kind, owner), range));
        self.cache().state().locks.gives_up_there(&object, given);
        let answer = self.ask_of_locks(Caller::default(), asked).await;
        let mut state = self.cache().state();
        state.locks.gives_up_there(&object, None);
        let unlocked: Unlocked = answer?;
        state
            .locks
            .unlocked(&object, (kind, owner), range, unlocked);
        Ok(())
    }

    /// What an owner holds is given up, whether he has been told of a loss or not. To be called in turn.
    async fn gives_up(&self, object: Handle, of: Of, range: LockRange) {
        let here = {
            let mut state = self.cache().state();
            let now = self.cache().look(&mut state);
            state.locks_at(now).gives_up(&object, of, range)
        };
        if !here {
            // The session has forgotten them if it is refused.
            let _ = self.unlock(object, of, range).await;
        }
    }

    async fn ask_of_locks<Q>(&self, caller: Caller, asked: Q) -> Result<Q::Answer, Refusal>
    where
        Q: Operation<Answer: Answer> + Into<Query>,
    {
        let answer = self.rpc.call(caller, asked, CallOptions::default()).await?;
        answer.reply.result
    }
}

/// Until a signal comes to who waits.
async fn interrupted<T>(ask: &Ask) -> Option<T> {
    ask.yields();
    first(ask.abandon.triggered(), ask.interrupt.triggered()).await;
    None
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
