//! Locks: what a request asks the lease core, and what that has decided.

use crate::runtime::Entry;
use crate::service::Call;
use crate::service::inputs::Inputs;
use crate::session::Session;
use leasefs_lease::server::{LockAnswer, LockAsk};
use leasefs_protocol::lock::LockHolder;
use leasefs_protocol::query::{Lock, TestLock, Unlock};
use leasefs_protocol::{
    FileKind, Handle, LockKind, LockMode, LockRange, Query, Refusal, Response, SessionId,
};
use leasefs_store::OpenFile;
use std::sync::Arc;

const ENOLCK: Refusal = Refusal::Host(libc::ENOLCK as u16);
const EBADF: Refusal = Refusal::Host(libc::EBADF as u16);

/// What a request asks of which file's locks; `None` if it is none of locks.
///
/// # Errors
/// What can't be asked.
pub fn ask_of(query: &Query, inputs: &Inputs) -> Result<Option<(Handle, LockAsk)>, Refusal> {
    LockAsk::of(query, |_| match inputs.open.as_deref() {
        Some(open) if open.kind() == FileKind::File => {
            may_lock(query, open).map(|()| *open.handle())
        }
        _ => Err(Refusal::BadOpen),
    })
}

/// As the kernel has it (`do_fcntl`, `check_fmode_for_setlk`), which says so to its own callers before a client asks.
fn may_lock(query: &Query, open: &OpenFile) -> Result<(), Refusal> {
    let Query::Lock(Lock {
        kind: LockKind::Posix,
        mode,
        ..
    }) = query
    else {
        return Ok(());
    };
    let may = match mode {
        LockMode::Shared => open.reads(),
        LockMode::Exclusive => open.writes(),
    };
    may.then_some(()).ok_or(EBADF)
}

/// Whether its range can be.
///
/// # Errors
/// `Invalid`.
pub fn bounds(query: &Query) -> Result<(), Refusal> {
    let (kind, range) = match query {
        Query::Lock(Lock { kind, range, .. })
        | Query::TestLock(TestLock { kind, range, .. })
        | Query::Unlock(Unlock { kind, range, .. }) => (*kind, *range),
        _ => return Ok(()),
    };
    let whole = kind == LockKind::Posix || range == LockRange::ALL;
    (range.is_one() && whole)
        .then_some(())
        .ok_or(Refusal::Invalid)
}

/// What has been decided.
///
/// # Errors
/// Why nothing was.
pub fn answered(call: &Call, answer: LockAnswer) -> Result<Response, Refusal> {
    match answer {
        LockAnswer::Locked(mut locked) => {
            if let Some(holder) = &mut locked.holder {
                tell_holder(call, holder);
            }
            Ok(locked.into())
        }
        LockAnswer::Unlocked(unlocked) => Ok(unlocked.into()),
        LockAnswer::Found(found) => Ok(found.into()),
        LockAnswer::TooMany => Err(ENOLCK),
        LockAnswer::Ended => Err(Refusal::LockLost),
    }
}

/// Where the holder is mounted. Who is confined isn't told of others; nor is anybody of another client's session by its number,
/// under which he could come himself.
fn tell_holder(call: &Call, holder: &mut LockHolder) {
    let session = call.server.sessions.get(holder.session);
    let own = |session: &Arc<Session>| session.key == call.session.key;
    let is_own = session.as_ref().is_some_and(own);
    if is_own || call.session.border().is_none() {
        holder.mount = session.map_or_else(String::new, |session| session.mount());
    } else {
        holder.pid = 0;
    }
    if !is_own {
        holder.session = SessionId([0; 16]);
    }
}

/// Has it decided.
pub fn ask(call: &Call, query: &Query, (object, ask): (Handle, LockAsk)) -> Entry<LockAnswer> {
    let by = (call.session.id, query.kind());
    call.server.leases.ask_lock(by, object, ask)
}
