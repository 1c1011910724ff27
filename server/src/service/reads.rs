//! Requests that change nothing.

use super::Call;
use super::access::Targets;
use super::inputs::{Inputs, inputs};
use super::lookup::lookup;
use super::told::{Told, enter, is_gone, read_of};
use crate::account::FilePlace;
use crate::runtime::{Admission, Entry};
use crate::session::close;
use bytes::Bytes;
use leasefs_lease::server::{ReadItem, ReadKind};
use leasefs_protocol::request::Fill;
use leasefs_protocol::{
    Attr, DirEntry, Grant, Handle, Mode, OpenId, Refusal, Reply, Request, RequestId, Response,
    Stamp,
};
use leasefs_store::OpenFile;
use std::collections::HashMap;
use std::sync::Arc;

/// A request that has entered the lease core.
#[derive(Debug)]
pub struct Read {
    call: Call,
    request: Request,
    inputs: Inputs,
    entry: Entry,
}

/// The answer to a request, but for where it goes.
#[derive(Debug)]
pub struct Answer {
    /// The answer.
    pub reply: Reply,
    /// Its data.
    pub payload: Bytes,
}

/// Takes a request as far as it goes without blocking.
///
/// # Errors
/// The answer, if it needs nothing more.
pub fn begin(call: Call, request: Request) -> Result<Read, Box<Answer>> {
    let (store, opens) = (&call.server.store, &call.session.opens);
    let checked = inputs(store, &call.client, opens, &request, 0);
    let inputs = match checked {
        Ok(inputs) => inputs,
        Err(refusal) => {
            let answer = answer(Err(refusal), Vec::new());
            return Err(Box::new(answer));
        }
    };
    let targets = Targets {
        opened: inputs.open.as_ref().map(|open| *open.handle()),
        ..Targets::default()
    };
    let entry = match request {
        // Whether the caller may look is for the host to say first.
        Request::Lookup { .. } => Entry::Now(Admission { grants: Vec::new() }),
        _ => enter(&call, &request, &inputs, &targets),
    };
    Ok(Read {
        call,
        request,
        inputs,
        entry,
    })
}

impl Read {
    /// The answer, if it is file data that the host's page cache has. Never blocks.
    pub fn cached(&mut self) -> Option<Answer> {
        let Request::Read {
            offset, len, fill, ..
        } = self.request
        else {
            return None;
        };
        let (Entry::Now(admission), Some(open)) = (&mut self.entry, &self.inputs.open) else {
            return None;
        };
        // A Write lease is journalled first, which may block.
        if fill == Fill::PagesForStore {
            return None;
        }
        let server = &self.call.server;
        let latch = server.latches.try_read(open.handle())?;
        let _pass = self.call.session.gate.enter()?;
        let told = server.store.try_read_cached(open, offset, len)?;
        drop(latch);
        let admission = Admission {
            grants: std::mem::take(&mut admission.grants),
        };
        Some(settle(&self.call, told.map(Told::data), admission))
    }

    /// The answer; blocks, and waits while the lease core holds the request back. `None` if the
    /// server ends before, or the client is shut out.
    pub async fn answer(self) -> Option<Answer> {
        let admission = self.entry.admitted().await?;
        let _pass = self.call.session.gate.enter()?;
        let open = self.inputs.open.as_deref();
        let told = match self.call.within_border(&self.request, open) {
            Ok(()) => perform(&self.call, self.request, &self.inputs, &admission).await?,
            Err(refusal) => Err(refusal),
        };
        Some(settle(&self.call, told, admission))
    }
}

/// Puts the answer together. Where the object is gone its leases are given back, since no reply
/// tells the client of them.
fn settle(call: &Call, told: Result<Told, Refusal>, admission: Admission) -> Answer {
    let Admission { mut grants } = admission;
    match told {
        Ok(told) => {
            grants.extend(told.grants);
            Answer {
                payload: told.payload,
                ..answer(Ok(told.response), grants)
            }
        }
        Err(refusal) => {
            if is_gone(refusal) {
                call.server.leases.take_back(call.session.id, &grants);
                grants.clear();
            }
            // A refusal may be cached too: that there is no such xattr. Whoever has the handle may have
            // the lease on attributes, and by now nothing else is refused.
            answer(Err(refusal), grants)
        }
    }
}

fn answer(result: Result<Response, Refusal>, grants: Vec<Grant>) -> Answer {
    let reply = Reply {
        id: RequestId(0),
        renews: false,
        stamp: Stamp(0),
        grants,
        touched: Vec::new(),
        room: None,
        result,
    };
    Answer {
        reply,
        payload: Bytes::new(),
    }
}

/// Asks the host, within the client's gate. `None` if the server ends.
async fn perform(
    call: &Call,
    request: Request,
    inputs: &Inputs,
    admission: &Admission,
) -> Option<Result<Told, Refusal>> {
    let store = &call.server.store;
    let plain = |response| Ok(Told::plain(response));
    let told = match (request, &inputs.open) {
        (request @ Request::Lookup { .. }, _) => return lookup(call, &request, inputs).await,
        (Request::ReadDir { cookie, nodes, .. }, Some(open)) => {
            return read_dir(call, open, cookie, nodes).await;
        }
        (Request::Read { offset, len, .. }, Some(open)) => {
            let _leave = call.server.slow().await?;
            let logged = log_write_lease(call, admission);
            let _latch = call.server.latches.read(open.handle()).await;
            logged
                .and_then(|()| store.read(open, offset, len))
                .map(Told::data)
        }
        (Request::Commit { durability, .. }, Some(open)) => {
            let _leave = call.server.slow().await?;
            store
                .commit(open, durability)
                .and_then(|()| plain(Response::Done))
        }
        (Request::CommitAll, _) => {
            // Whoever asks, everybody pays: one at a time.
            let _alone = call.server.committing.lock().await;
            let _leave = call.server.slow().await?;
            store.commit_all().and_then(|()| plain(Response::Done))
        }
        (Request::Seek { offset, whence, .. }, Some(open)) => store
            .seek(open, offset, whence)
            .map(|at| Told::plain(Response::Offset(at))),
        (Request::Close { opens }, _) => {
            close(call.session.opens.take(&opens));
            plain(Response::Done)
        }
        (Request::GetAttr { object }, _) => {
            let attr = call.attr(&object).await;
            attr.map(|attr| Told::plain(Response::Attr(attr)))
        }
        (request, _) => of_object(call, &request),
    };
    Some(told)
}

/// Requests about one object that is named by its handle.
fn of_object(call: &Call, request: &Request) -> Result<Told, Refusal> {
    let store = &call.server.store;
    let told = match request {
        Request::ReadLink { object } => Told::data(store.readlink(object)?),
        Request::StatFs { object } => Told::plain(Response::FsStat(store.statfs(object)?)),
        Request::Access { object, mask } => {
            store.access(&call.identity()?, object, *mask)?;
            Told::plain(Response::Done)
        }
        Request::GetXattr { object, name } => {
            Told::data(store.getxattr(&call.identity()?, object, &name.0)?)
        }
        Request::ListXattr { object } => Told::data(store.listxattr(&call.identity()?, object)?),
        Request::Open { object, flags } => Told::plain(open(call, object, *flags)?),
        // Every other request is numbered or has been dealt with.
        _ => return Err(Refusal::Invalid),
    };
    Ok(told)
}

/// Opens an object that exists.
pub(super) fn open(call: &Call, object: &Handle, flags: u32) -> Result<Response, Refusal> {
    let place = call.session.opens.account().open()?;
    let (file, attr) = call
        .server
        .store
        .open_object(&call.identity()?, object, flags)?;
    let (open, token) = call.add_open(file, place)?;
    Ok(Response::Opened { open, token, attr })
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

async fn read_dir(
    call: &Call,
    open: &OpenFile,
    cookie: u64,
    nodes: bool,
) -> Option<Result<Told, Refusal>> {
    let (store, leases) = (&call.server.store, &call.server.leases);
    let mark = leases.mark();
    let mut page = match store.readdir(open, cookie, nodes) {
        Ok(page) => page,
        Err(refusal) => return Some(Err(refusal)),
    };
    let found = page.entries.iter().filter_map(|entry| entry.node);
    let items: Vec<ReadItem> = found.map(|(handle, _)| read_of(handle)).collect();
    let mut grants = Vec::new();
    if !items.is_empty() {
        let entry = leases.read(call.session.id, "readdir", ReadKind::Metadata, items);
        grants = entry.admitted().await?.grants;
        if !mark.holds_at(leases.mark()) {
            let lost = read_again(call, &mut page.entries).await;
            let is_gone = |g: &&Grant| lost.get(&g.object) == Some(&true);
            let gone: Vec<Grant> = grants.iter().filter(is_gone).copied().collect();
            leases.take_back(call.session.id, &gone);
            grants.retain(|g| !lost.contains_key(&g.object));
        }
    }
    let response = Response::Entries {
        entries: page.entries,
        end: page.end,
    };
    Some(Ok(Told {
        grants,
        ..Told::plain(response)
    }))
}

/// Reads the entries' attributes again, now that they are covered. Those that can't be had lose
/// their node and are told, each with whether it is gone.
async fn read_again(call: &Call, entries: &mut [DirEntry]) -> HashMap<Handle, bool> {
    let mut lost = HashMap::new();
    for entry in entries {
        let Some((handle, attr)) = &mut entry.node else {
            continue;
        };
        match call.attr(handle).await {
            Ok(now) => *attr = now,
            Err(refusal) => {
                lost.insert(*handle, is_gone(refusal));
                entry.node = None;
            }
        }
    }
    lost
}

impl Call {
    /// The object's attributes, as they are between two changes.
    pub(super) async fn attr(&self, object: &Handle) -> Result<Attr, Refusal> {
        let _latch = self.server.latches.read(object).await;
        self.server.store.getattr(object)
    }

    /// Numbers an open and proves it.
    pub(super) fn add_open(
        &self,
        file: Arc<OpenFile>,
        place: FilePlace,
    ) -> Result<(OpenId, leasefs_protocol::OpenToken), Refusal> {
        let open = self
            .session
            .opens
            .add(Arc::clone(&file), place, self.origin)?;
        let holder = self.session.holder();
        let token = self.server.store.mint(&file, open, &holder);
        Ok((open, token))
    }
}
