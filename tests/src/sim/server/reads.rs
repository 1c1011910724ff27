//! Requests that change nothing: admitted, then read from the store.

use super::{Bug, Mark, Server, ServerEv, Sink, Work, refused};
use crate::sim::cx::Cx;
use crate::sim::ledger::Writer;
use crate::sim::model::{Ask, MS, Obj, Payload};
use crate::sim::net::LinkId;
use fsserver::service::access::{Names, Targets, accesses};
use leasefs_lease::server::{Event, OpId, ReadItem, ReadKind};
use leasefs_protocol::{Attr, Grant, Handle, Parts, Refusal, Response, SessionId};

/// A request in the core.
#[derive(Debug)]
pub(super) struct Read {
    session: SessionId,
    sink: Sink,
    ask: Ask,
    grants: Vec<Grant>,
    /// Of a lookup: what the name denotes, its attributes, and when that was seen.
    found: Option<(Handle, Attr, Mark)>,
    admitted: bool,
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

impl Server {
    pub(super) fn ask(&mut self, cx: &mut Cx, session: SessionId, sink: Sink, ask: Ask) {
        let request = ask.request();
        let names = Names {
            name: ask.name(),
            new_name: None,
        };
        let targets = Targets {
            opened: Some(ask.object().handle()),
            ..Targets::default()
        };
        let all = accesses(&request, &names, &targets);
        let op = self.new_op();
        let read = Read {
            session,
            sink,
            ask,
            grants: Vec::new(),
            found: None,
            admitted: false,
        };
        self.works.insert(op, Work::Read(read));
        if cx.has(Bug::ReadInGrace) && self.core.grace_until().is_some() {
            self.later(cx, MS, ServerEv::Work(op));
            return;
        }
        let event = Event::AdmitRead {
            op,
            session,
            kind: all.kind,
            items: all.reads,
        };
        self.step(cx, event);
    }

    pub(super) fn go_on_reading(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Read(read)) = self.works.get(&op) else {
            return;
        };
        let ask = read.ask;
        match (ask, read.found) {
            (Ask::Lookup(dir, name), None) => match self.store.name(dir, name) {
                Some(found) => self.found(cx, op, found),
                None => self.answer(cx, op, Ok(Response::NoEntry), Payload::Nothing),
            },
            (Ask::Lookup(..), Some((handle, attr, mark))) => {
                // The object's lease came behind the look at the name.
                let attr = match mark.holds_at(self.mark()) {
                    true => attr,
                    false => self.store.attr(&handle),
                };
                let response = Response::Object { handle, attr };
                self.answer(cx, op, Ok(response), Payload::Nothing);
            }
            (Ask::GetAttr(object), _) => {
                let attr = self.store.attr(&object.handle());
                self.answer(cx, op, Ok(Response::Attr(attr)), Payload::Nothing);
            }
            (Ask::List(dir, _), _) => {
                let listing = Payload::Listing(self.store.listing(dir));
                self.answer(cx, op, Ok(Response::Done), listing);
            }
            (Ask::Commit(file, process), _) => {
                let session = read.session;
                self.store.commit(file);
                cx.judge.commits(Writer {
                    session,
                    process,
                    file,
                });
                self.answer(cx, op, Ok(Response::Done), Payload::Nothing);
            }
            (Ask::Read(file, first, count, _), _) => {
                let pages = (first..first + count).map(|page| self.store.page(file, page));
                let pages = Payload::Pages(pages.collect());
                self.answer(cx, op, Ok(Response::Done), pages);
            }
        }
    }

    /// The name denotes something: its attributes are read under a lease of their own.
    fn found(&mut self, cx: &mut Cx, op: OpId, found: Obj) {
        let (mark, handle) = (self.mark(), found.handle());
        let Some(Work::Read(mut read)) = self.works.remove(&op) else {
            return;
        };
        read.found = Some((handle, self.store.attr(&handle), mark));
        read.admitted = false;
        let (op, session) = (self.new_op(), read.session);
        self.works.insert(op, Work::Read(read));
        let item = ReadItem {
            object: handle,
            parts: Parts::ATTRS,
            name: None,
        };
        let event = Event::AdmitRead {
            op,
            session,
            kind: ReadKind::Metadata,
            items: vec![item],
        };
        self.step(cx, event);
    }

    fn answer(
        &mut self,
        cx: &mut Cx,
        op: OpId,
        result: Result<Response, Refusal>,
        payload: Payload,
    ) {
        let Some(Work::Read(read)) = self.works.remove(&op) else {
            return;
        };
        let mut reply = refused(Refusal::Internal);
        reply.grants = read.grants;
        reply.result = result;
        cx.trace(Some(read.ask.object()), || {
            format!(
                "server: {} {:?} -> {:?} {payload:?} grants {:?}",
                read.session, read.ask, reply.result, reply.grants
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
            Work::Read(_) | Work::Change(_) => None,
        });
        let of_link: Vec<(OpId, bool)> = of_link.collect();
        for (op, admitted) in of_link {
            match admitted {
                true => drop(self.works.remove(&op)),
                false => self.withdraw(cx, op),
            }
        }
        // What the store was asked for may still be read, by nobody.
        self.later(cx, MS, ServerEv::Tick);
    }
}
