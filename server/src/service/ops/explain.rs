//! What an access to an object would wait for. Asked and answered, nobody holds more or less than before.

use crate::service::Call;
use leasefs_lease::server::HolderStatus;
use leasefs_lease::time::BootTime;
use leasefs_protocol::explain::{Explained, Holding, Recalled};
use leasefs_protocol::latency::millis;
use leasefs_protocol::query::Explain;
use leasefs_protocol::{Attr, Handle, Name, Refusal};

const R_OK: u32 = 4;
const ENOENT: Refusal = Refusal::Host(libc::ENOENT as u16);

/// Who has what of the object at the end of a path.
///
/// # Errors
/// What the host says to its caller who looks for it.
pub fn explained(call: &Call, asked: &Explain) -> Result<Explained, Refusal> {
    let (object, attr) = find(call, asked)?;
    let told = call.server.leases.object(&object, call.session.id);
    let names = may_know_names(call, &object);
    let left = |at: BootTime| millis(at.left_at(told.now));
    let one = |holder: &HolderStatus| {
        let session = call.server.sessions.get(holder.session);
        let session = session.filter(|session| names || session.key == call.session.key);
        Holding {
            own: holder.session == call.session.id,
            mount: session.map(|session| session.mount()),
            parts: holder.parts,
            write: holder.write,
            granted_ms: holder.granted.map(|at| millis(told.now.since(at))),
            ends_ms: left(holder.ends),
            silent: holder.silent,
            recall: holder.recall.map(|(sent, until)| Recalled {
                since_ms: millis(told.now.since(sent)),
                until_ms: left(until),
            }),
            locks: count(holder.locks),
            lock_waits: count(holder.lock_waits),
        }
    };
    Ok(Explained {
        object,
        ino: attr.ino,
        kind: attr.kind,
        holders: told.object.holders.iter().map(one).collect(),
        more: count(told.object.more),
        waiting: count(told.object.waiting),
        bounces_ms: told.object.term_zero.map(left),
        grace_ms: told.grace_until.map(left),
    })
}

/// Looks the path up as its caller would, name by name, but under no lease.
fn find(call: &Call, asked: &Explain) -> Result<(Handle, Attr), Refusal> {
    let (store, who) = (&call.server.store, call.identity()?);
    let (mut dir, mut found) = (asked.dir, None);
    for name in &asked.path {
        if let Some((object, _)) = found {
            dir = object;
        }
        let node = store.find(&who, &dir, &Name::try_from(name)?)?.node;
        let node = node.ok_or(ENOENT)?;
        found = Some((node.handle, node.attr));
    }
    // The way to the last directory may have led out by now.
    call.within_border([&dir])?;
    match found {
        Some(found) => Ok(found),
        None => Ok((dir, store.getattr(&dir)?)),
    }
}

/// Other machines' mounts are named to who may read the object in an export all of which is open to its client; all are
/// told how many there are, which is what they would find out by waiting.
fn may_know_names(call: &Call, object: &Handle) -> bool {
    let readable = |who| call.server.store.access(&who, object, R_OK).is_ok();
    call.session.border().is_none() && call.identity().is_ok_and(readable)
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
