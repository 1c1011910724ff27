//! Locks: what a request asks the lease core, and what that has decided.

use crate::runtime::Entry;
use crate::service::Call;
use crate::service::inputs::Inputs;
use leasefs_lease::server::{LockAnswer, LockAsk};
use leasefs_protocol::query::{Lock, TestLock, Unlock};
use leasefs_protocol::{FileKind, Handle, LockKind, LockRange, Query, Refusal, Response};

const ENOLCK: Refusal = Refusal::Host(libc::ENOLCK as u16);

/// What a request asks of which file's locks; `None` if it is none of locks.
///
/// # Errors
/// What can't be asked.
pub fn ask_of(query: &Query, inputs: &Inputs) -> Result<Option<(Handle, LockAsk)>, Refusal> {
    LockAsk::of(query, |_| match inputs.open.as_deref() {
        Some(open) if open.kind() == FileKind::File => Ok(*open.handle()),
        _ => Err(Refusal::BadOpen),
    })
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
                let session = call.server.sessions.get(holder.session);
                holder.mount = session.map_or_else(String::new, |session| session.mount());
            }
            Ok(locked.into())
        }
        LockAnswer::Unlocked(unlocked) => Ok(unlocked.into()),
        LockAnswer::Found(found) => Ok(found.into()),
        LockAnswer::TooMany => Err(ENOLCK),
        LockAnswer::Ended => Err(Refusal::LockLost),
    }
}

/// Has it decided.
pub fn ask(call: &Call, query: &Query, (object, ask): (Handle, LockAsk)) -> Entry<LockAnswer> {
    let by = (call.session.id, query.kind());
    call.server.leases.ask_lock(by, object, ask)
}
