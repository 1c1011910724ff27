//! Operations that change nothing.

use super::{explain, locks, named};
use crate::runtime::Admission;
use crate::service::Call;
use crate::service::access::{Accesses, of_opened_data};
use crate::service::inputs::{
    Inputs, MAX_OFFSET, O_ACCMODE, at_most, listable, range, readable, xattr_name,
};
use crate::service::listing::read_dir;
use crate::service::lookup::lookup;
use crate::service::told::Told;
use crate::session::{Opens, close};
use bytes::Bytes;
use leasefs_protocol::answer::Offset;
use leasefs_protocol::limits::{MAX_BATCH, MAX_PATH, MAX_PAYLOAD, OPEN_DATA};
use leasefs_protocol::query::{Commit, Fill, GetXattr, Lock, Open, Read, Seek, TestLock};
use leasefs_protocol::{Durability, FileKind, Grant, Mode, Query, Refusal};
use leasefs_store::OpenFile;

const ENXIO: Refusal = Refusal::Host(libc::ENXIO as u16);

/// Whether a client of this role may ask it.
///
/// # Errors
/// [`Refusal::ReadOnly`].
pub fn role(query: &Query, read_only: bool) -> Result<(), Refusal> {
    match query {
        Query::Open(open) if read_only && open.flags.bits() & O_ACCMODE != 0 => {
            Err(Refusal::ReadOnly)
        }
        _ => Ok(()),
    }
}

/// Whether its arguments can be.
///
/// # Errors
/// What the host's kernel says of them.
pub fn bounds(query: &Query) -> Result<(), Refusal> {
    match query {
        Query::Read(Read { offset, len, .. }) => {
            range(*offset, u64::from(*len))?;
            at_most(*len as usize, MAX_PAYLOAD, Refusal::Invalid)
        }
        Query::Seek(Seek { offset, .. }) if *offset > MAX_OFFSET => Err(ENXIO),
        Query::Close(close) => at_most(close.opens.len(), MAX_BATCH, Refusal::Invalid),
        Query::Explain(explain) => at_most(explain.path.len(), MAX_PATH, Refusal::NameTooLong),
        Query::GetXattr(GetXattr { name, .. }) => xattr_name(name),
        query => locks::bounds(query),
    }
}

/// Its name, checked, and its open.
///
/// # Errors
/// Why they are none.
pub fn inputs(query: &Query, opens: &Opens) -> Result<Inputs, Refusal> {
    let open = match query {
        Query::Lookup(lookup) => return named(&lookup.name),
        Query::Commit(Commit { open, .. })
        | Query::Seek(Seek { open, .. })
        | Query::Lock(Lock { open, .. })
        | Query::TestLock(TestLock { open, .. }) => opens.get(*open)?,
        Query::Read(read) => readable(opens.get(read.open)?)?,
        Query::ReadDir(read) => listable(opens.get(read.open)?)?,
        _ => return Ok(Inputs::default()),
    };
    Ok(Inputs {
        open: Some(open),
        ..Inputs::default()
    })
}

/// Asks the host, within the client's gate. `None` if the server ends.
pub async fn run(
    call: &Call,
    query: &Query,
    inputs: &Inputs,
    admission: &Admission,
) -> Option<Result<Told, Refusal>> {
    let open = inputs.open.as_deref().ok_or(Refusal::BadOpen);
    Some(match (query, open) {
        (Query::Lookup(asked), _) => lookup(call, asked, inputs).await?,
        (Query::ReadDir(asked), Ok(open)) => read_dir(call, asked, open).await?,
        (Query::Open(asked), _) => opened(call, asked).await?,
        (Query::Read(asked), Ok(open)) => read(call, asked, open, admission).await?,
        (Query::Commit(asked), Ok(open)) => {
            let done = commit(call, open, asked.durability).await?;
            done.map(|()| Told::of(asked, ()))
        }
        (Query::CommitAll(asked), _) => commit_all(call).await?.map(|()| Told::of(asked, ())),
        (Query::GetAttr(asked), _) => {
            let attr = call.attr(&asked.object).await;
            attr.map(|attr| Told::of(asked, attr))
        }
        (query, open) => at_once(call, query, open),
    })
}

/// Makes an open file durable.
async fn commit(
    call: &Call,
    open: &OpenFile,
    durability: Durability,
) -> Option<Result<(), Refusal>> {
    let syncing = match call.syncs().await {
        Ok(syncing) => syncing,
        Err(refusal) => return Some(Err(refusal)),
    };
    let _leave = call.server.slow(&call.session).await?;
    let server = &call.server;
    let done = server.durably(|| server.store.commit(open, durability));
    Some(syncing.ends(done))
}

/// Makes everything durable. Whoever asks, everybody pays: one at a time.
async fn commit_all(call: &Call) -> Option<Result<(), Refusal>> {
    let syncing = match call.syncs().await {
        Ok(syncing) => syncing,
        Err(refusal) => return Some(Err(refusal)),
    };
    let server = &call.server;
    let _leave = server.slow_alone(&call.session).await?;
    let failures = &server.failures;
    failures.asked(server.durably(|| server.store.commit_all()));
    Some(syncing.ends(call.session.syncs.hears(failures)))
}

/// Queries that need no waiting.
fn at_once(call: &Call, query: &Query, open: Result<&OpenFile, Refusal>) -> Result<Told, Refusal> {
    let store = &call.server.store;
    let who = || call.identity();
    Ok(match query {
        Query::Seek(asked) => {
            let at = store.seek(open?, asked.offset, asked.whence)?;
            Told::of(asked, Offset(at))
        }
        Query::Close(asked) => {
            close(call.session.opens.take(&asked.opens));
            Told::of(asked, ())
        }
        Query::ReadLink(asked) => Told::data(asked, store.readlink(&asked.object)?),
        Query::StatFs(asked) => Told::of(asked, store.statfs(&asked.object)?),
        Query::Access(asked) => {
            store.access(&who()?, &asked.object, asked.mask)?;
            Told::of(asked, ())
        }
        Query::GetXattr(asked) => {
            let value = store.getxattr(&who()?, &asked.object, &asked.name.0)?;
            Told::data(asked, value)
        }
        Query::ListXattr(asked) => Told::data(asked, store.listxattr(&who()?, &asked.object)?),
        Query::Explain(asked) => Told::of(asked, explain::explained(call, asked)?),
        // Answered elsewhere, or without their open.
        Query::Lookup(_)
        | Query::Open(_)
        | Query::GetAttr(_)
        | Query::ReadDir(_)
        | Query::Read(_)
        | Query::Commit(_)
        | Query::CommitAll(_)
        | Query::Lock(_)
        | Query::Unlock(_)
        | Query::TestLock(_)
        | Query::CancelLock(_)
        | Query::ResetLocks(_) => return Err(Refusal::BadOpen),
    })
}

async fn opened(call: &Call, asked: &Open) -> Option<Result<Told, Refusal>> {
    let opened = match call.open(&asked.object, asked.flags.bits()) {
        Ok(opened) => opened,
        Err(refusal) => return Some(Err(refusal)),
    };
    let attr = opened.attr;
    let small = attr.kind == FileKind::File && attr.size <= OPEN_DATA as u64;
    let readable = call.session.opens.get(opened.open).and_then(readable);
    let told = Told::of(asked, opened);
    let (true, Ok(file)) = (asked.with_data && small, readable) else {
        return Some(Ok(told));
    };
    let (payload, grants) = whole(call, &file).await?;
    Some(Ok(Told {
        payload,
        grants,
        ..told
    }))
}

/// All bytes of a small file, and the lease that covers them; neither if they can't be had together.
async fn whole(call: &Call, file: &OpenFile) -> Option<(Bytes, Vec<Grant>)> {
    let (server, session) = (&call.server, call.session.id);
    let Accesses { kind, reads, .. } = of_opened_data(*file.handle());
    let entry = server.leases.read(session, "open", kind, reads);
    let Admission { grants } = entry.decided().await?;
    if grants.is_empty() {
        return Some((Bytes::new(), grants));
    }
    // It may have grown before it was leased.
    let most = OPEN_DATA as u32 + 1;
    let read = match at_hand(call, file, 0, most) {
        Some(read) => read,
        None => {
            let _leave = server.slow(&call.session).await?;
            let _latch = server.latches.read(file.handle()).await;
            server.store.read(file, 0, most)
        }
    };
    let data = read.ok().filter(|data| data.len() <= OPEN_DATA);
    Some(match data {
        Some(data) => (data.into(), grants),
        None => {
            server.leases.take_back(session, &grants);
            (Bytes::new(), Vec::new())
        }
    })
}

async fn read(
    call: &Call,
    asked: &Read,
    open: &OpenFile,
    admission: &Admission,
) -> Option<Result<Told, Refusal>> {
    let _leave = call.server.slow(&call.session).await?;
    let logged = log_write_lease(call, admission);
    let _latch = call.server.latches.read(open.handle()).await;
    let read = logged.and_then(|()| call.server.store.read(open, asked.offset, asked.len));
    Some(read.map(|data| Told::data(asked, data)))
}

/// The bytes of a READ, if the host's page cache has them. Never blocks.
pub fn read_cached(call: &Call, asked: &Read, open: &OpenFile) -> Option<Result<Told, Refusal>> {
    // A Write lease is journalled first, which may block.
    if asked.fill == Fill::PagesForStore {
        return None;
    }
    let read = at_hand(call, open, asked.offset, asked.len)?;
    Some(read.map(|data| Told::data(asked, data)))
}

/// Bytes of a file, if the host's page cache has them. Never blocks.
fn at_hand(
    call: &Call,
    open: &OpenFile,
    offset: u64,
    len: u32,
) -> Option<Result<Vec<u8>, Refusal>> {
    let _latch = call.server.latches.try_read(open.handle())?;
    call.server.store.try_read_cached(open, offset, len)
}

/// A Write lease is on record before its client hears of it.
fn log_write_lease(call: &Call, admission: &Admission) -> Result<(), Refusal> {
    let granted = admission.grants.iter().filter(|g| g.mode == Mode::Write);
    for grant in granted {
        let records = &call.server.records;
        if let Err(error) = records.write_lease(call.session.id, grant.object) {
            // The core goes on taking it for granted, which costs at most a needless recall.
            tracing::error!(%error, "a write lease can't be journalled");
            return Err(Refusal::Internal);
        }
    }
    Ok(())
}
