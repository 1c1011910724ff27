//! Requests that change nothing: admitted, then read from the host.

use super::opens::Open;
use super::{Mark, Server, ServerEv, Sink, Work, refused};
use crate::sim::cx::Cx;
use crate::sim::host::ENOSPC;
use crate::sim::model::{MS, Obj};
use crate::sim::net::LinkId;
use bytes::Bytes;
use fsserver::service::access::{Accesses, Names, Targets, of_opened_data, of_query};
use leasefs_lease::server::{Event, OpId, ReadItem, ReadKind};
use leasefs_protocol::limits::OPEN_DATA;
use leasefs_protocol::{
    Attr, Change, DirEntry, FileKind, FsStat, Grant, Handle, Mode, Name, OpenId, Parts, Query,
    RawName, Refusal, Response, SessionId, answer, change, query,
};

/// A request in the core, or on its way there.
#[derive(Debug)]
pub(super) struct Read {
    session: SessionId,
    sink: Sink,
    query: Query,
    open: Option<Open>,
    grants: Vec<Grant>,
    stage: Stage,
    admitted: bool,
}

/// What a name denotes and its attributes, and when that was seen.
type Found = (Option<(Handle, Attr)>, Mark);

#[derive(Clone, Debug)]
enum Stage {
    /// A name is looked at before the core is asked.
    First,
    /// The core is asked.
    Entered(Option<Found>),
    /// The name denotes another object by now, whose lease is asked for.
    Other(Handle, Attr),
    /// A page of a listing was read; leases on its objects are asked for.
    Listed(Vec<DirEntry>, Mark),
    /// A small file is open; the lease on its bytes is asked for.
    Opened(answer::Opened),
}

impl Read {
    pub fn link(&self) -> LinkId {
        self.sink.link
    }

    pub fn session(&self) -> SessionId {
        self.session
    }

    pub fn admitted(&mut self, grants: Vec<Grant>) {
        self.admitted = true;
        self.grants.extend(grants);
    }
}

/// What the host says, and its data.
type Told = Result<(Response, Bytes), Refusal>;

fn plain(response: Response) -> Told {
    Ok((response, Bytes::new()))
}

const GONE: Refusal = Refusal::Stale;

fn read_of(object: Handle) -> ReadItem {
    ReadItem {
        object,
        parts: Parts::ATTRS,
        name: None,
    }
}

impl Server {
    pub(super) fn ask(&mut self, cx: &mut Cx, session: SessionId, sink: Sink, query: Query) {
        let op = self.new_op(session);
        if let Some(ask) = self.lock_ask(session, &query) {
            return self.ask_lock(cx, op, super::locks::Asked { session, sink }, ask);
        }
        let open = match self.open_of_query(session, &query) {
            Ok(open) => open,
            Err(refusal) => {
                let reply = refused(refusal);
                self.send(cx, sink, reply, Bytes::new());
                return;
            }
        };
        let first = matches!(query, Query::Lookup(_));
        let read = Read {
            session,
            sink,
            query,
            open,
            grants: Vec::new(),
            stage: match first {
                true => Stage::First,
                false => Stage::Entered(None),
            },
            admitted: first,
        };
        if first {
            self.works.insert(op, Work::Read(Box::new(read)));
            let wait = cx.short(2 * MS);
            self.later(cx, wait, ServerEv::Work(op));
            return;
        }
        let targets = Targets {
            opened: open.map(|open| open.object.handle()),
            ..Targets::default()
        };
        self.enter(cx, op, Box::new(read), &targets);
    }

    pub(super) fn opened(&self, session: SessionId, open: OpenId) -> Result<Open, Refusal> {
        let session = self.sessions.get(&session).ok_or(Refusal::Internal)?;
        session.opens.get(open).ok_or(Refusal::BadOpen)
    }

    /// The open that a query names.
    fn open_of_query(&self, session: SessionId, query: &Query) -> Result<Option<Open>, Refusal> {
        match query {
            Query::Read(query::Read { open, .. }) => {
                let open = self.opened(session, *open)?;
                open.reads.then_some(Some(open)).ok_or(Refusal::BadOpen)
            }
            Query::Commit(query::Commit { open, .. })
            | Query::ReadDir(query::ReadDir { open, .. }) => self.opened(session, *open).map(Some),
            _ => Ok(None),
        }
    }

    /// The open that a change names.
    pub(super) fn open_of_change(
        &self,
        session: SessionId,
        change: &Change,
    ) -> Result<Option<Open>, Refusal> {
        match change {
            Change::Write(change::Write { open, .. }) => {
                let open = self.opened(session, *open)?;
                open.writes.then_some(Some(open)).ok_or(Refusal::BadOpen)
            }
            Change::SetAttr(change::SetAttr {
                open: Some(open), ..
            }) => self.opened(session, *open).map(Some),
            _ => Ok(None),
        }
    }

    fn enter(&mut self, cx: &mut Cx, op: OpId, read: Box<Read>, targets: &Targets) {
        let name = match &read.query {
            Query::Lookup(lookup) => Name::try_from(&lookup.name).ok(),
            _ => None,
        };
        let names = Names {
            name,
            new_name: None,
        };
        let Accesses {
            mut kind, reads, ..
        } = of_query(&read.query, &names, targets);
        let session = read.session;
        let may_store = read.open.is_some_and(|open| {
            let session = self.sessions.get(&session);
            session.is_some_and(|s| s.opens.write_to(open.object))
        });
        if kind == ReadKind::FillForStore && !may_store {
            kind = ReadKind::FillPages;
        }
        let mut read = read;
        if reads.is_empty() {
            read.admitted = true;
            self.works.insert(op, Work::Read(read));
            let wait = cx.short(2 * MS);
            self.later(cx, wait, ServerEv::Work(op));
            return;
        }
        self.works.insert(op, Work::Read(read));
        let event = Event::AdmitRead {
            op,
            session,
            kind,
            items: reads,
        };
        self.step(cx, event);
    }

    /// Asks the core for leases on further objects of a request that has been admitted.
    fn enter_also(&mut self, cx: &mut Cx, mut read: Box<Read>, stage: Stage, items: Vec<ReadItem>) {
        let session = read.session;
        let op = self.new_op(session);
        read.stage = stage;
        read.admitted = false;
        self.works.insert(op, Work::Read(read));
        let event = Event::AdmitRead {
            op,
            session,
            kind: ReadKind::Metadata,
            items,
        };
        self.step(cx, event);
    }

    pub(super) fn go_on_reading(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Read(read)) = self.works.remove(&op) else {
            return;
        };
        if !read.admitted {
            self.works.insert(op, Work::Read(read));
            return;
        }
        match read.stage.clone() {
            Stage::First => self.look_first(cx, op, read),
            Stage::Entered(Some(found)) => self.look_again(cx, read, found),
            Stage::Other(handle, attr) => {
                let attr = match self.host.attr(Obj::of(&handle)) {
                    Some(now) => now,
                    None => attr,
                };
                self.answer(
                    cx,
                    read,
                    plain(Response::Object(answer::Object { handle, attr })),
                );
            }
            Stage::Listed(entries, mark) => self.listed(cx, read, entries, mark),
            Stage::Opened(opened) => self.opened_with(cx, read, opened),
            Stage::Entered(None) => match self.perform(cx, &read) {
                Some(Ok((Response::Opened(opened), _))) => self.open_data(cx, read, opened),
                Some(told) => self.answer(cx, read, told),
                None => self.list(cx, read),
            },
        }
    }

    /// The bytes of a small file come along, where they are wanted and the server likes it.
    fn open_data(&mut self, cx: &mut Cx, read: Box<Read>, opened: answer::Opened) {
        let Query::Open(query::Open {
            object, with_data, ..
        }) = &read.query
        else {
            return;
        };
        let small = opened.attr.kind == FileKind::File && opened.attr.size <= OPEN_DATA as u64;
        match *with_data && small && cx.rng.chance(50) {
            true => {
                let items = of_opened_data(*object).reads;
                self.enter_also(cx, read, Stage::Opened(opened), items);
            }
            false => self.answer(cx, read, plain(Response::Opened(opened))),
        }
    }

    fn opened_with(&mut self, cx: &mut Cx, mut read: Box<Read>, opened: answer::Opened) {
        let of_data = |grant: &mut Grant| grant.parts.contains(Parts::DATA);
        let leased: Vec<Grant> = read.grants.extract_if(.., of_data).collect();
        let object = read.query.handle().map(Obj::of);
        let data = object.filter(|object| self.host.exists(*object));
        let data = data.map(|object| self.host.read(object, 0, OPEN_DATA as u32 + 1));
        let told = Response::Opened(opened);
        match data.filter(|data| data.len() <= OPEN_DATA && !leased.is_empty()) {
            Some(data) => {
                read.grants.extend(leased);
                self.answer(cx, read, Ok((told, data.into())));
            }
            None => {
                self.take_back(cx, read.session, &leased);
                self.answer(cx, read, plain(told));
            }
        }
    }

    fn find(&self, query: &Query) -> Option<(Handle, Attr)> {
        let Query::Lookup(query::Lookup { dir, name }) = query else {
            return None;
        };
        let found = self.host.name(Obj::of(dir), &name.0)?;
        Some((found.handle(), self.host.attr(found)?))
    }

    fn look_first(&mut self, cx: &mut Cx, op: OpId, mut read: Box<Read>) {
        let mark = self.mark();
        let found = self.find(&read.query);
        read.stage = Stage::Entered(Some((found, mark)));
        read.admitted = false;
        let targets = Targets {
            named: found.map(|(handle, _)| handle),
            ..Targets::default()
        };
        self.enter(cx, op, read, &targets);
    }

    fn look_again(&mut self, cx: &mut Cx, mut read: Box<Read>, (first, mark): Found) {
        let told = |found: Option<(Handle, Attr)>| match found {
            Some((handle, attr)) => plain(Response::Object(answer::Object { handle, attr })),
            None => plain(Response::NoEntry),
        };
        if mark.holds_at(self.mark()) {
            return self.answer(cx, read, told(first));
        }
        let now = self.find(&read.query);
        let dir = read.query.handle().copied();
        let handle = now.map(|(handle, _)| handle);
        let stands = |grant: &Grant| Some(grant.object) == dir || Some(grant.object) == handle;
        let lost: Vec<Grant> = read.grants.extract_if(.., |grant| !stands(grant)).collect();
        self.take_back(cx, read.session, &lost);
        match now {
            Some((handle, attr)) if first.map(|(first, _)| first) != Some(handle) => {
                let items = vec![read_of(handle)];
                self.enter_also(cx, read, Stage::Other(handle, attr), items);
            }
            now => self.answer(cx, read, told(now)),
        }
    }

    /// Asks the host; `None` for a listing.
    fn perform(&mut self, cx: &mut Cx, read: &Read) -> Option<Told> {
        let session = read.session;
        Some(match (&read.query, read.open) {
            (Query::ReadDir(_), Some(_)) => return None,
            (Query::Read(query::Read { offset, len, .. }), Some(open)) => {
                for grant in read.grants.iter().filter(|g| g.mode == Mode::Write) {
                    self.durable.write_lease(session, Obj::of(&grant.object));
                }
                match self.host.exists(open.object) {
                    true => {
                        let data = self.host.read(open.object, *offset, *len);
                        Ok((Response::Done, data.into()))
                    }
                    false => Err(GONE),
                }
            }
            (Query::Commit(_), Some(open)) => match self.commit(cx, open.object) {
                Ok(()) => {
                    cx.judge.commits(session, open.object);
                    plain(Response::Done)
                }
                Err(refusal) => Err(refusal),
            },
            (Query::CommitAll(query::CommitAll), _) => {
                self.host.commit_all();
                plain(Response::Done)
            }
            (Query::Close(query::Close { opens }), _) => {
                self.close_opens(cx, session, opens);
                plain(Response::Done)
            }
            (Query::GetAttr(query::GetAttr { object }), _) => match self.host.attr(Obj::of(object))
            {
                Some(attr) => plain(Response::Attr(attr)),
                None => Err(GONE),
            },
            (Query::Open(query::Open { object, flags, .. }), _) => {
                let origin = (read.sink.link, read.sink.id);
                self.open(session, Obj::of(object), flags.bits(), Some(origin))
                    .map(|response| (response, Bytes::new()))
            }
            (Query::StatFs(_), _) => plain(Response::FsStat(self.statfs())),
            (Query::Access(_), _) => plain(Response::Done),
            _ => Err(Refusal::Unsupported),
        })
    }

    /// A full disk says so at times only when the data is to be on it.
    pub(super) fn commit(&mut self, cx: &mut Cx, object: Obj) -> Result<(), Refusal> {
        if self.host.free() == 0 && cx.rng.chance(20) {
            return Err(Refusal::Host(ENOSPC.0));
        }
        self.host.commit(object);
        Ok(())
    }

    fn statfs(&self) -> FsStat {
        let free = self.host.free() as u64;
        FsStat {
            blocks: free,
            bfree: free,
            bavail: free,
            files: 0,
            ffree: 0,
            bsize: 1024,
            frsize: 1024,
            namelen: 255,
        }
    }

    /// Opens an object that exists.
    pub(super) fn open(
        &mut self,
        session: SessionId,
        object: Obj,
        flags: u32,
        origin: Option<(LinkId, leasefs_protocol::RequestId)>,
    ) -> Result<Response, Refusal> {
        let attr = self.host.attr(object).ok_or(GONE)?;
        let s = self.sessions.get_mut(&session).ok_or(Refusal::Internal)?;
        let of = Open::new(object, flags);
        let open = s.opens.add(of, origin);
        let token = of.token(open, session, s.birth);
        Ok(Response::Opened(answer::Opened { open, token, attr }))
    }

    fn list(&mut self, cx: &mut Cx, read: Box<Read>) {
        let (Query::ReadDir(query::ReadDir { cookie, nodes, .. }), Some(open)) =
            (&read.query, read.open)
        else {
            return;
        };
        let (mark, nodes) = (self.mark(), *nodes);
        let all = (1..).zip(self.host.entries(open.object));
        let all = all.filter(|(number, _)| number > cookie);
        let entries = all.filter_map(|(number, (name, object))| {
            let attr = self.host.attr(object)?;
            Some(DirEntry {
                name: RawName(name),
                ino: attr.ino,
                kind: attr.kind,
                cookie: number,
                node: nodes.then_some((object.handle(), attr)),
            })
        });
        let entries: Vec<DirEntry> = entries.collect();
        if !nodes || entries.is_empty() {
            return self.answer(
                cx,
                read,
                plain(Response::Entries(answer::Entries { entries, end: true })),
            );
        }
        let nodes = entries.iter().filter_map(|entry| entry.node);
        let items = nodes.map(|(handle, _)| read_of(handle)).collect();
        self.enter_also(cx, read, Stage::Listed(entries, mark), items);
    }

    fn listed(&mut self, cx: &mut Cx, mut read: Box<Read>, mut entries: Vec<DirEntry>, mark: Mark) {
        if !mark.holds_at(self.mark()) {
            let mut gone = Vec::new();
            for entry in &mut entries {
                let Some((handle, attr)) = &mut entry.node else {
                    continue;
                };
                match self.host.attr(Obj::of(handle)) {
                    Some(now) => *attr = now,
                    None => {
                        gone.push(*handle);
                        entry.node = None;
                    }
                }
            }
            let lost = |grant: &mut Grant| gone.contains(&grant.object);
            let lost: Vec<Grant> = read.grants.extract_if(.., lost).collect();
            self.take_back(cx, read.session, &lost);
        }
        self.answer(
            cx,
            read,
            plain(Response::Entries(answer::Entries { entries, end: true })),
        );
    }

    fn answer(&mut self, cx: &mut Cx, mut read: Box<Read>, told: Told) {
        if told.as_ref().is_err_and(|refusal| *refusal == GONE) {
            let grants = std::mem::take(&mut read.grants);
            self.take_back(cx, read.session, &grants);
        }
        let mut reply = refused(Refusal::Internal);
        reply.grants = read.grants;
        let (result, payload) = match told {
            Ok((response, payload)) => (Ok(response), payload),
            Err(refusal) => (Err(refusal), Bytes::new()),
        };
        reply.result = result;
        let object = super::object_of_query(self, read.session, &read.query);
        cx.trace(Some(object), || {
            format!(
                "server: {} {} -> {:?} ({} bytes) grants {:?}",
                read.session,
                read.sink.id,
                reply.result,
                payload.len(),
                reply.grants
            )
        });
        if self.links.contains_key(&read.sink.link) {
            self.send(cx, read.sink, reply, payload);
        }
    }

    /// A connection has ended: nobody waits for its reads any more.
    pub(super) fn drop_reads(&mut self, cx: &mut Cx, link: LinkId) {
        let of_link = self.works.iter().filter_map(|(op, work)| match work {
            Work::Read(read) if read.sink.link == link => Some((*op, read.admitted)),
            Work::Lock(asked) if asked.sink.link == link => Some((*op, false)),
            Work::Read(_) | Work::Change(_) | Work::Lock(_) => None,
        });
        let of_link: Vec<(OpId, bool)> = of_link.collect();
        for (op, admitted) in of_link {
            match admitted {
                true => drop(self.works.remove(&op)),
                false => self.withdraw(cx, op),
            }
        }
    }
}

/// What a kind of object is made as.
pub(super) fn kind_of(make: &leasefs_protocol::change::What) -> FileKind {
    match make {
        leasefs_protocol::change::What::Directory => FileKind::Directory,
        leasefs_protocol::change::What::Node { .. } => FileKind::File,
        leasefs_protocol::change::What::Symlink { .. } => FileKind::Symlink,
    }
}
