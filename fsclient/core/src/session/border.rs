//! What a server may say. It is checked here, where it comes in: behind this no number overflows, no
//! answer is longer than was asked for, and nothing is remembered of objects that nobody asked about.
//! Pure: the caller answers a request whose reply is refused with EIO, or closes the connection.

use crate::run::{Map, Set};
use leasefs_lease::time::BootTime;
use leasefs_protocol::answer::{Created, Entries, Object, Opened, Written};
use leasefs_protocol::control::Welcome;
use leasefs_protocol::explain::Explained;
use leasefs_protocol::limits::{
    MAX_BATCH, MAX_DRIFT_PPM, MAX_HOLDERS_TOLD, MAX_LISTING_ENTRIES, MAX_LOCKS_OF_FILE, MAX_MOUNT,
    MAX_OPEN_TOKEN, MAX_PAYLOAD, MAX_RECALLS_OPEN, MAX_SYMLINK, MAX_TERM, MAX_TOUCHED,
    MAX_XATTR_VALUE, MIN_TERM, OPEN_DATA,
};
use leasefs_protocol::lock::{LockOutcome, Locked};
use leasefs_protocol::{
    Attr, Change, FileKind, FsStat, Grant, Handle, LockRange, Name, OpenId, Parts, Query, RawName,
    Recall, RecallId, Reply, Request, Response, Scope, Timestamp, change, query,
};
use std::time::Duration;

/// What a server may not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server broke the protocol: {0}")]
pub(crate) struct Broken(&'static str);

fn unless(sound: bool, broken: &'static str) -> Result<(), Broken> {
    if sound { Ok(()) } else { Err(Broken(broken)) }
}

/// Largest offset and size of a file.
const LARGEST: u64 = i64::MAX as u64;
const PERMISSIONS: u16 = 0o7777;
const SECOND: u32 = 1_000_000_000;

/// Whether a session may stand on this.
pub(crate) fn welcome(welcome: &Welcome) -> Result<(), Broken> {
    let term = Duration::from_millis(welcome.term_ms.into());
    unless(
        (MIN_TERM..=MAX_TERM).contains(&term),
        "a term out of bounds",
    )?;
    let drift = welcome.drift_ppm <= MAX_DRIFT_PPM;
    unless(drift, "a drift bound over the largest")?;
    let directory = welcome.root_attr.kind == FileKind::Directory;
    unless(directory, "a root that is no directory")?;
    attr(&welcome.root_attr)
}

/// Whether a reply can be the answer to its request, with what came behind it. `is_open` tells opens
/// that stand already.
pub(super) fn reply(
    (request, sent): (&Request, usize),
    (reply, payload): (&Reply, usize),
    is_open: impl Fn(OpenId) -> bool,
) -> Result<(), Broken> {
    unless(payload <= most_bytes(request), "more bytes than asked for")?;
    unless(
        reply.touched.len() <= MAX_TOUCHED,
        "too many objects touched",
    )?;
    reply
        .touched
        .iter()
        .try_for_each(|touched| attr(&touched.attr))?;
    let Ok(response) = &reply.result else {
        return Ok(());
    };
    unless(
        request.is_answered_by(response),
        "an answer to something else",
    )?;
    match response {
        Response::Done | Response::NoEntry | Response::Offset(_) => Ok(()),
        Response::Object(Object { attr: found, .. }) | Response::Attr(found) => attr(found),
        Response::Opened(Opened {
            open,
            token,
            attr: found,
        })
        | Response::Created(Created {
            open,
            token,
            attr: found,
            ..
        }) => {
            unless(!is_open(*open), "an open that stands already")?;
            unless(token.0.len() <= MAX_OPEN_TOKEN, "too long a token")?;
            attr(found)
        }
        Response::Written(found) => written(request, sent, *found),
        Response::Entries(page) => entries(request, page),
        Response::FsStat(stat) => fs_stat(stat),
        Response::Locked(found) => locked(request, found),
        Response::LockFound(found) => unless(
            found.is_none_or(|found| found.range.is_one()),
            "a range that is none",
        ),
        Response::Unlocked(_) => Ok(()),
        Response::Explained(found) => explained(found),
    }
}

fn explained(found: &Explained) -> Result<(), Broken> {
    unless(found.holders.len() <= MAX_HOLDERS_TOLD, "too many holders")?;
    let mut mounts = found
        .holders
        .iter()
        .filter_map(|holder| holder.mount.as_deref());
    let short = mounts.all(|mount| mount.chars().count() <= MAX_MOUNT);
    unless(short, "too long a mount point")
}

fn locked(request: &Request, found: &Locked) -> Result<(), Broken> {
    let named = found
        .holder
        .iter()
        .map(|holder| holder.mount.chars().count());
    let named = named.sum::<usize>();
    unless(named <= MAX_MOUNT, "too long a mount point")?;
    let waits = matches!(request, Request::Query(Query::Lock(lock)) if lock.wait.is_some());
    match &found.outcome {
        LockOutcome::Granted { held, .. } => {
            unless(held.len() <= MAX_LOCKS_OF_FILE, "too many locks")?;
            let mut ranges = held.iter().map(|held| held.range);
            unless(ranges.all(LockRange::is_one), "a range that is none")
        }
        LockOutcome::Waits | LockOutcome::Deadlock => unless(waits, "a wait nobody asked for"),
        LockOutcome::Conflicts => Ok(()),
    }
}

/// Bytes that may come behind the answer to a request.
fn most_bytes(request: &Request) -> usize {
    match request {
        Request::Query(Query::Read(read)) => MAX_PAYLOAD.min(read.len as usize),
        Request::Query(Query::Open(open)) if open.with_data => OPEN_DATA,
        Request::Query(Query::ReadLink(_)) => MAX_SYMLINK,
        Request::Query(Query::GetXattr(_) | Query::ListXattr(_)) => MAX_XATTR_VALUE,
        _ => 0,
    }
}

fn time(time: Timestamp) -> Result<(), Broken> {
    unless(
        time.nanos < SECOND,
        "a time with more than a second of nanoseconds",
    )
}

fn attr(attr: &Attr) -> Result<(), Broken> {
    unless(
        attr.mode <= PERMISSIONS,
        "a mode that is more than permissions",
    )?;
    unless(attr.size <= LARGEST, "a size that no file has")?;
    [attr.atime, attr.mtime, attr.ctime]
        .into_iter()
        .try_for_each(time)
}

fn written(request: &Request, sent: usize, found: Written) -> Result<(), Broken> {
    let Written { len, offset, .. } = found;
    let (most, at) = match request {
        Request::Change(_, Change::Write(write)) => (sent as u64, write.at.first()),
        Request::Change(_, Change::CopyRange(copy)) => (copy.len, None),
        _ => (0, None),
    };
    unless(len <= most, "more bytes written than were sent")?;
    if let Some(at) = at {
        unless(offset == at, "bytes written elsewhere")?;
    }
    let end = offset.checked_add(len);
    unless(
        end.is_some_and(|end| end <= LARGEST),
        "bytes written beyond any file",
    )
}

fn entries(request: &Request, page: &Entries) -> Result<(), Broken> {
    let Entries { entries, end } = page;
    unless(
        entries.len() <= MAX_LISTING_ENTRIES,
        "too long a page of a listing",
    )?;
    if let (Request::Query(Query::ReadDir(asked)), Some(last)) = (request, entries.last()) {
        let goes_on = *end || last.cookie != asked.cookie;
        unless(goes_on, "a listing that stays where it is")?;
    }
    entries.iter().try_for_each(|entry| {
        name(&entry.name)?;
        entry.node.as_ref().map_or(Ok(()), |(_, found)| attr(found))
    })
}

fn name(name: &RawName) -> Result<(), Broken> {
    unless(Name::check(&name.0).is_ok(), "a name that is none")
}

/// Programs divide by these.
fn fs_stat(stat: &FsStat) -> Result<(), Broken> {
    unless(
        stat.bsize > 0 && stat.frsize > 0,
        "a file system of empty blocks",
    )
}

/// The grants of a reply that its request can have brought: of the objects that it or the answer names.
/// (`of_open` tells what an open is of.)
pub(super) fn grants(
    request: &Request,
    reply: &mut Reply,
    of_open: impl Fn(OpenId) -> Option<Handle>,
) {
    if reply.grants.is_empty() {
        return;
    }
    let mut named = named(request, of_open);
    named.extend(reply.touched.iter().map(|touched| touched.object));
    let mut listed = Set::default();
    match &reply.result {
        Ok(Response::Object(Object { handle, .. }) | Response::Created(Created { handle, .. })) => {
            named.push(*handle);
        }
        Ok(Response::Entries(Entries { entries, .. })) => {
            listed.extend(
                entries
                    .iter()
                    .filter_map(|entry| entry.node)
                    .map(|(handle, _)| handle),
            );
        }
        _ => {}
    }
    reply.grants.retain_mut(|grant: &mut Grant| {
        grant.parts = grant.parts & Parts::ALL;
        named.contains(&grant.object) || listed.contains(&grant.object)
    });
}

/// The objects that a request names, by their handles or by opens.
pub(super) fn named(request: &Request, of_open: impl Fn(OpenId) -> Option<Handle>) -> Vec<Handle> {
    let opens = match request {
        Request::Query(query) => match query {
            Query::Read(query::Read { open, .. })
            | Query::Commit(query::Commit { open, .. })
            | Query::Seek(query::Seek { open, .. })
            | Query::ReadDir(query::ReadDir { open, .. }) => [Some(*open), None],
            _ => [None, None],
        },
        Request::Change(_, change) => match change {
            Change::Write(change::Write { open, .. })
            | Change::Fallocate(change::Fallocate { open, .. }) => [Some(*open), None],
            Change::CopyRange(change::CopyRange { from, to, .. }) => [Some(*from), Some(*to)],
            _ => [None, None],
        },
    };
    let of_opens = opens.into_iter().flatten().filter_map(of_open);
    request.handles().copied().chain(of_opens).collect()
}

/// Where there are as many as there may be of single objects one more is sent, of everything.
const MOST_RECALLS: usize = MAX_RECALLS_OPEN + 1;

/// Recalls that have come and are not approved.
#[derive(Debug, Default)]
pub(super) struct Recalls(Map<RecallId, BootTime>);

impl Recalls {
    /// Takes one in.
    pub(super) fn come(&mut self, now: BootTime, recall: &mut Recall) -> Result<(), Broken> {
        if let Scope::Object { parts, names, .. } = &mut recall.scope {
            *parts = *parts & Parts::ALL;
            unless(names.len() <= MAX_BATCH, "too many names recalled at once")?;
            names.iter().try_for_each(name)?;
        }
        // One that is sent again counts once.
        self.0.entry(recall.id).or_insert(now);
        unless(self.0.len() <= MOST_RECALLS, "too many recalls at a time")
    }

    /// It is approved. Returns when it came.
    pub(super) fn approved(&mut self, recall: RecallId) -> Option<BootTime> {
        self.0.remove(&recall)
    }

    /// The server is another process, or the session's leases have ended: no approval is waited for.
    pub(super) fn ended(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
