//! Changes: each has its turn, runs once, and keeps its answer.

use super::durable::Record;
use super::opens::Open;
use super::reads::kind_of;
use super::{Job, Mark, Server, ServerEv, Sink, Work, refused};
use crate::sim::cx::{Cx, Down};
use crate::sim::host::{By, EEXIST, ENOENT, Errno};
use crate::sim::model::{CELL, MS, Obj};
use crate::sim::net::{LinkId, Stream};
use bytes::Bytes;
use fsserver::service::access::{Names, O_EXCL, Targets, of_change};
use fsserver::service::pages::within_file;
use fsserver::session::answers::Arrival;
use leasefs_lease::server::{Event, OpId, Touch, Wanted};
use leasefs_protocol::change::{What, WriteAt, WriteKind};
use leasefs_protocol::control::ToClient;
use leasefs_protocol::{
    Change, FileKind, Grant, Handle, Name, Numbered, Parts, RawName, Refusal, Reply, Response, Seq,
    SessionId, Timestamp, Touched, answer, change,
};
use leasefs_protocol::{Durability, O_TRUNC};
use std::sync::Arc;

/// A change in the core.
#[derive(Debug)]
pub(super) struct Pending {
    session: SessionId,
    seq: Seq,
    job: Job,
    open: Option<Open>,
    mark: Mark,
    targets: Targets,
    touches: Vec<Touch>,
    /// Of a create that opens.
    grants: Vec<Grant>,
    stage: Stage,
}

type Result_ = Result<Response, Refusal>;

#[derive(Clone, Debug)]
enum Stage {
    /// It waits for its turn.
    Waits,
    /// It changes nothing, given what its names denote: it reads.
    Reads,
    /// Its turn has come, with this number among all changes; 0 for one that only reads.
    Turn(u64),
    /// It may run: what it has begun is never cancelled.
    Begun,
    /// It has run.
    Ran(Result_),
    /// It comes too late, but what it would write is there.
    Repeated(u64),
}

/// How bytes come that were kept back under a lease.
enum Lateness {
    InTime,
    /// The lease has ended, and the file has changed since.
    TooLate,
    /// So it is, but the file holds them.
    Repeated(u64),
}

impl Pending {
    pub fn is_read(&self) -> bool {
        matches!(self.stage, Stage::Reads)
    }

    pub fn admitted(&mut self, turn: u64, grants: Vec<Grant>) {
        self.stage = Stage::Turn(turn);
        self.grants = grants;
    }
}

fn host(errno: Errno) -> Refusal {
    Refusal::Host(errno.0)
}

impl Server {
    /// A change comes from its client.
    pub(super) fn arrive(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        sink: Sink,
        numbered: &Numbered,
        job: Job,
    ) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        let seq = numbered.seq;
        match s.changes.arrive(numbered, job, sink) {
            Ok(Arrival::Run(job)) => self.start_change(cx, session, seq, job),
            Ok(Arrival::Held | Arrival::Attached) => {}
            Ok(Arrival::Repeat(reply, sink)) => {
                let opened = reply.result.as_ref().ok().and_then(Response::opened);
                if let Some((open, _)) = opened {
                    s.opens.claim(open);
                }
                self.send(cx, sink, (*reply).clone(), Bytes::new());
            }
            Ok(Arrival::Refuse(refusal, sink)) => {
                self.send(cx, sink, refused(refusal), Bytes::new());
            }
            Ok(Arrival::Lost) => {
                cx.stats.lost += 1;
                self.end_change(cx, session, seq, refused(Refusal::Lost));
            }
            Err(violation) => cx.judge.accuse(None, || {
                format!("the client broke the protocol: {violation}")
            }),
        }
    }

    fn start_change(&mut self, cx: &mut Cx, session: SessionId, seq: Seq, job: Job) {
        let op = self.new_op(session);
        if let Some(s) = self.sessions.get_mut(&session) {
            s.ops.insert(seq, op);
        }
        let open = match self.open_of_change(session, &job.change) {
            Ok(open) => open,
            Err(refusal) => return self.refuse(cx, op, (session, seq), refusal),
        };
        let change = Pending {
            session,
            seq,
            job,
            open,
            mark: Mark::default(),
            targets: Targets::default(),
            touches: Vec::new(),
            grants: Vec::new(),
            stage: Stage::Waits,
        };
        self.look(cx, op, Box::new(change), false);
    }

    /// What a change's names denote just now, if it may be done.
    fn targets(&self, change: &Pending) -> Result<Targets, Refusal> {
        let mut targets = Targets {
            opened: change.open.map(|open| open.object.handle()),
            ..Targets::default()
        };
        let named = |dir: &Handle, name: &[u8]| self.host.name(Obj::of(dir), name);
        match &change.job.change {
            Change::Make(change::Make { dir, name, .. }) => {
                if named(dir, &name.0).is_some() {
                    return Err(host(EEXIST));
                }
            }
            Change::Link(change::Link { object, dir, name }) => {
                if named(dir, &name.0).is_some() {
                    return Err(host(EEXIST));
                }
                if !self.host.exists(Obj::of(object)) {
                    return Err(Refusal::Stale);
                }
                if !self.host.is_linked(Obj::of(object)) {
                    return Err(host(ENOENT));
                }
            }
            Change::Unlink(change::Unlink { dir, name })
            | Change::Rmdir(change::Rmdir { dir, name }) => {
                let found = named(dir, &name.0).ok_or(host(ENOENT))?;
                targets.named = Some(found.handle());
            }
            Change::Create(change::Create { dir, name, .. }) => {
                targets.named = named(dir, &name.0).map(Obj::handle);
            }
            Change::Rename(change::Rename {
                dir,
                name,
                new_dir,
                new_name,
                ..
            }) => {
                let found = named(dir, &name.0).ok_or(host(ENOENT))?;
                targets.named = Some(found.handle());
                targets.replaced = named(new_dir, &new_name.0).map(Obj::handle);
            }
            Change::SetAttr(change::SetAttr { object, .. })
            | Change::OpenTruncated(change::OpenTruncated { object, .. }) => {
                if !self.host.exists(Obj::of(object)) {
                    return Err(Refusal::Stale);
                }
            }
            Change::Write(_) => {}
            _ => return Err(Refusal::Unsupported),
        }
        Ok(targets)
    }

    /// Looks what the change's names denote and queues it for that.
    pub(super) fn look(&mut self, cx: &mut Cx, op: OpId, mut change: Box<Pending>, queued: bool) {
        let (session, seq) = (change.session, change.seq);
        change.mark = self.mark();
        match self.targets(&change) {
            Ok(targets) => change.targets = targets,
            Err(refusal) => {
                self.works.insert(op, Work::Change(change));
                return self.refuse(cx, op, (session, seq), refusal);
            }
        }
        let names = names_of(&change.job.change);
        let all = of_change(&change.job.change, &names, &change.targets);
        change.touches = all.touches.clone();
        let dropped = change.job.dropped.clone();
        if all.touches.is_empty() {
            if queued {
                self.step(cx, Event::Withdraw { op });
            }
            let op = self.new_op(session);
            if let Some(s) = self.sessions.get_mut(&session) {
                s.ops.insert(seq, op);
            }
            if all.reads.is_empty() {
                change.stage = Stage::Turn(0);
                self.works.insert(op, Work::Change(change));
                self.later(cx, MS, ServerEv::Work(op));
                return;
            }
            change.stage = Stage::Reads;
            self.works.insert(op, Work::Change(change));
            let event = Event::AdmitRead {
                op,
                session,
                kind: all.kind,
                items: all.reads,
            };
            self.step(cx, event);
            return;
        }
        change.stage = Stage::Waits;
        let (page, writeback) = match &change.job.change {
            Change::Write(change::Write { kind, .. }) => (kind.is_writeback(), kind.is_writeback()),
            Change::SetAttr(change::SetAttr { set, .. }) => (false, set.size.is_some()),
            _ => (false, false),
        };
        self.works.insert(op, Work::Change(change));
        let locked = match self.works.get(&op) {
            Some(Work::Change(change)) => change.job.locked,
            _ => None,
        };
        let touches = all.touches;
        if self.waits_for_interrupted(op, (session, seq), (&touches, queued, page)) {
            return;
        }
        let event = match queued {
            true => Event::Requeue {
                op,
                touches,
                dropped,
            },
            false => Event::AdmitChange {
                op,
                session,
                touches,
                dropped,
                writeback,
                locked,
            },
        };
        self.step(cx, event);
    }

    /// It was made under locks that are lost.
    pub(super) fn lock_lost(&mut self, cx: &mut Cx, op: OpId) {
        cx.stats.unlocked_changes += 1;
        if let Some(Work::Change(change)) = self.works.get(&op) {
            let change = (change.session, change.seq);
            self.refuse(cx, op, change, Refusal::LockLost);
        }
    }

    pub(super) fn go_on_changing(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Change(change)) = self.works.get(&op) else {
            return;
        };
        match change.stage.clone() {
            Stage::Waits | Stage::Reads => {}
            Stage::Turn(turn) => self.begin(cx, op, turn),
            Stage::Begun => self.run(cx, op),
            Stage::Ran(result) => self.finish(cx, op, result),
            Stage::Repeated(offset) => self.finish_repeated(cx, op, offset),
        }
    }

    /// The answer of a change that does nothing.
    fn refuse(&mut self, cx: &mut Cx, op: OpId, (session, seq): (SessionId, Seq), why: Refusal) {
        let begun = self.begin_answer(session, seq);
        self.withdraw(cx, op);
        if begun {
            self.end_change(cx, session, seq, refused(why));
        }
    }

    fn begin(&mut self, cx: &mut Cx, op: OpId, turn: u64) {
        let Some(Work::Change(change)) = self.works.get(&op) else {
            return;
        };
        let (session, seq) = (change.session, change.seq);
        let follows = turn > 0 && change.mark.quiet && turn == change.mark.begun + 1;
        if !follows {
            match self.targets(change) {
                Ok(now) if now == change.targets => {}
                Ok(_) => return self.look_anew(cx, op, turn),
                Err(refusal) => return self.refuse(cx, op, (session, seq), refusal),
            }
        }
        if self.interrupted.is_overtaken((session, seq)) {
            return self.refuse(cx, op, (session, seq), Refusal::Lost);
        }
        if !self.begin_answer(session, seq) {
            self.withdraw(cx, op);
            return;
        }
        if turn == 0 {
            return self.answer_reading(cx, op);
        }
        let Some(Work::Change(change)) = self.works.get(&op) else {
            return;
        };
        let lateness = match self.interrupted.has((session, seq)) {
            true => Lateness::InTime,
            false => self.lateness(change),
        };
        let stage = match lateness {
            Lateness::InTime => {
                if let Some(intent) = self.intent(&change.job, &change.targets) {
                    self.durable.note((session, seq), Record::Intent(intent));
                }
                Stage::Begun
            }
            Lateness::TooLate => {
                cx.stats.late += 1;
                Stage::Ran(Err(Refusal::Changed))
            }
            Lateness::Repeated(offset) => {
                cx.stats.held += 1;
                Stage::Repeated(offset)
            }
        };
        self.set_stage(cx, op, stage);
    }

    fn look_anew(&mut self, cx: &mut Cx, op: OpId, turn: u64) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        cx.stats.requeued += 1;
        let (session, seq) = (change.session, change.seq);
        if turn > 0 {
            self.running -= 1;
        }
        let op = match turn {
            0 => self.new_op(session),
            _ => op,
        };
        if let Some(s) = self.sessions.get_mut(&session) {
            s.ops.insert(seq, op);
        }
        self.look(cx, op, change, turn > 0);
    }

    fn begin_answer(&mut self, session: SessionId, seq: Seq) -> bool {
        let session = self.sessions.get_mut(&session);
        session.is_some_and(|s| s.changes.begin(seq))
    }

    /// A create of a name that exists opens what it denotes. A rename of one object's name to another of
    /// its names does nothing.
    fn answer_reading(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        let (session, seq) = (change.session, change.seq);
        let result = match (&change.job.change, change.targets.named) {
            (Change::Create(change::Create { flags, .. }), Some(named)) => {
                self.open_existing(session, Obj::of(&named), *flags)
            }
            _ => {
                if let Some(deed) = change.job.deed() {
                    cx.judge.happens_idly(deed);
                }
                Ok(Response::Done)
            }
        };
        if result.is_ok()
            && let Some(deed) = change.job.deed()
        {
            cx.judge.happens_idly(deed);
        }
        let grants = match result {
            Ok(_) => change.grants.clone(),
            Err(_) => Vec::new(),
        };
        let reply = Reply {
            grants,
            result,
            ..refused(Refusal::Internal)
        };
        self.end_change(cx, session, seq, reply);
    }

    fn open_existing(&mut self, session: SessionId, object: Obj, flags: u32) -> Result_ {
        if flags & O_EXCL != 0 {
            return Err(host(EEXIST));
        }
        match self.open(session, object, flags, None)? {
            Response::Opened(answer::Opened { open, token, attr }) => {
                Ok(Response::Created(answer::Created {
                    handle: object.handle(),
                    attr,
                    open,
                    token,
                }))
            }
            other => Ok(other),
        }
    }

    fn lateness(&self, change: &Pending) -> Lateness {
        let (
            Change::Write(change::Write {
                kind, at, open: id, ..
            }),
            Some(open),
        ) = (&change.job.change, change.open)
        else {
            return Lateness::InTime;
        };
        let (session, handle) = (change.session, open.object.handle());
        let (in_time, repeated) = match kind {
            WriteKind::Through { .. } => (true, false),
            WriteKind::Page { late } => (!late && self.core.holds_data(session, &handle), true),
            WriteKind::Flush {
                base,
                late,
                repeated,
                ..
            } => {
                let holds = !late && self.core.holds_write(session, &handle);
                let opens = self.sessions.get(&session).map(|s| &s.opens);
                let flushed = opens.and_then(|opens| opens.get(*id)?.flushed);
                let is_alone = |found| found == *base || flushed == Some((*base, found));
                let found = self.host.attr(open.object).map(|attr| attr.version());
                let in_time = holds || found.is_some_and(is_alone);
                (in_time, *repeated || change.job.resent)
            }
        };
        let is_there = || {
            let mut parts = at.parts(&change.job.payload);
            parts.all(|(offset, part)| self.host.holds(open.object, offset, part))
        };
        match at.first() {
            _ if in_time => Lateness::InTime,
            Some(offset) if repeated && is_there() => Lateness::Repeated(offset),
            _ => Lateness::TooLate,
        }
    }

    fn set_stage(&mut self, cx: &mut Cx, op: OpId, stage: Stage) {
        let may_crash = matches!(stage, Stage::Begun | Stage::Ran(_) | Stage::Repeated(_));
        if let Some(Work::Change(change)) = self.works.get_mut(&op) {
            change.stage = stage;
        }
        if may_crash {
            self.may_crash(cx);
        }
        let wait = cx.short(2 * MS);
        self.later(cx, wait, ServerEv::Work(op));
    }

    fn run(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        let again = self.repeats.contains(&(change.session, change.seq));
        cx.stats.repeated += u64::from(again);
        let by = By {
            deed: change.job.deed(),
            session: change.session,
            again,
        };
        let result = self.carry_out(cx, by, &change);
        let (session, seq) = (change.session, change.seq);
        for touch in &change.touches {
            cx.trace(Some(Obj::of(&touch.object)), || {
                format!("server: {session} {seq} runs: {result:?}")
            });
        }
        self.works.insert(op, Work::Change(change));
        self.set_stage(cx, op, Stage::Ran(result));
    }

    fn carry_out(&mut self, cx: &mut Cx, by: By, change: &Pending) -> Result_ {
        let session = change.session;
        match &change.job.change {
            Change::Write(_) => self.write(cx, by, change),
            Change::SetAttr(change::SetAttr { object, set, .. }) => {
                let object = Obj::of(object);
                let what = (set.size, set.mode);
                self.host.set(cx, by, object, what).map_err(host)?;
                self.attr(object).map(Response::Attr)
            }
            Change::Make(change::Make {
                dir,
                name,
                mode,
                make,
                ..
            }) => {
                let what = (kind_of(make), *mode as u16 & 0o7777);
                let at = (Obj::of(dir), name.0.as_slice());
                let made = self.host.create(cx, by, at, what).map_err(host)?;
                self.made(made)
            }
            Change::Link(change::Link { object, dir, name }) => {
                let (object, at) = (Obj::of(object), (Obj::of(dir), name.0.as_slice()));
                self.host.link(cx, by, object, at).map_err(host)?;
                self.made(object)
            }
            Change::Unlink(change::Unlink { dir, name }) => {
                let at = (Obj::of(dir), name.0.as_slice());
                self.host.unlink(cx, by, at).map_err(host)?;
                Ok(Response::Done)
            }
            Change::Rename(change::Rename {
                dir,
                name,
                new_dir,
                new_name,
                ..
            }) => {
                let from = (Obj::of(dir), name.0.as_slice());
                let to = (Obj::of(new_dir), new_name.0.as_slice());
                self.host.rename(cx, by, from, to).map_err(host)?;
                Ok(Response::Done)
            }
            Change::Create(change::Create {
                dir,
                name,
                mode,
                flags,
                ..
            }) => match change.targets.named {
                Some(named) => {
                    let named = Obj::of(&named);
                    if flags & O_TRUNC != 0 {
                        self.host
                            .set(cx, by, named, (Some(0), None))
                            .map_err(host)?;
                    }
                    self.open_existing(session, named, *flags)
                }
                None => {
                    let at = (Obj::of(dir), name.0.as_slice());
                    let what = (FileKind::File, *mode as u16 & 0o7777);
                    let made = self.host.create(cx, by, at, what).map_err(host)?;
                    self.open_existing(session, made, flags & !O_EXCL)
                }
            },
            _ => Err(Refusal::Unsupported),
        }
    }

    fn attr(&self, object: Obj) -> Result<leasefs_protocol::Attr, Refusal> {
        self.host.attr(object).ok_or(Refusal::Stale)
    }

    fn made(&self, object: Obj) -> Result_ {
        Ok(Response::Object(answer::Object {
            handle: object.handle(),
            attr: self.attr(object)?,
        }))
    }

    fn write(&mut self, cx: &mut Cx, by: By, change: &Pending) -> Result_ {
        let (
            Change::Write(change::Write {
                at,
                durability,
                kind,
                ..
            }),
            Some(open),
        ) = (&change.job.change, change.open)
        else {
            return Err(Refusal::BadOpen);
        };
        let (file, payload) = (open.object, &change.job.payload);
        let size = self.host.cells(file).len() as u64 * CELL;
        let data = match kind {
            WriteKind::Page { .. } => within_file(at, size, payload),
            WriteKind::Through { .. } | WriteKind::Flush { .. } => payload,
        };
        let end = WriteAt::Offset(size);
        let places = at.first().map_or(&end, |_| at);
        let offset = places.first().unwrap_or_default();
        let when = match kind {
            WriteKind::Flush { written, .. } => *written,
            _ => None,
        };
        cx.stats.flushes += u64::from(matches!(kind, WriteKind::Flush { .. }));
        if let WriteKind::Flush { set, .. } = kind
            && set.mode.is_some()
        {
            cx.stats.sets += 1;
            let set = (None, set.mode);
            self.host.set(cx, by, file, set).map_err(host)?;
        }
        let len = self.write_parts(cx, by, file, (places, data), when)?;
        if *at == WriteAt::Append {
            let taken = data.get(..len as usize).unwrap_or_default();
            for value in crate::sim::model::cells_of(taken) {
                cx.judge.appended(value, file);
            }
        }
        if *durability != Durability::None {
            self.commit(cx, file)?;
        }
        let version = match kind {
            WriteKind::Flush { .. } => Some(self.attr(file)?.version()),
            _ => None,
        };
        let all = len == data.len() as u64;
        Ok(Response::Written(answer::Written {
            len: if all { payload.len() as u64 } else { len },
            offset,
            unset: None,
            version,
        }))
    }

    /// Writes part after part, up to the first that the host doesn't take as a whole. A crash may come amid them.
    fn write_parts(
        &mut self,
        cx: &mut Cx,
        by: By,
        file: Obj,
        (at, data): (&WriteAt, &[u8]),
        when: Option<Timestamp>,
    ) -> Result<u64, Refusal> {
        let mut done = 0;
        for (offset, part) in at.parts(data) {
            let amid = done > 0;
            cx.stats.scattered += u64::from(amid);
            if amid && self.may_crash(cx) {
                break;
            }
            match self.host.write(cx, by, file, (offset, part), when) {
                Err(errno) if !amid => return Err(host(errno)),
                Err(_) => break,
                Ok(len) if len < part.len() as u64 => return Ok(done + len),
                Ok(len) => done += len,
            }
        }
        Ok(done)
    }

    /// Ends the turn. Attributes of what was touched are read while it still lasts.
    fn finish(&mut self, cx: &mut Cx, op: OpId, result: Result_) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        let (session, seq) = (change.session, change.seq);
        self.durable.note_answer((session, seq), result.clone());
        self.note_progress(cx, &change, &result);
        let (mut wants, mut touched, mut keeps) = (Vec::new(), Vec::new(), false);
        if let Ok(response) = &result {
            touched = self.touched(&change.touches);
            self.note_flushed(&change, &touched);
            let read = |t: &Touched| Wanted::read(t.object, shown(&change.touches, t.object));
            wants.extend(touched.iter().map(read));
            if let Some(made) = made_by(response)
                && touched.iter().all(|t| t.object != made)
            {
                wants.push(Wanted::read(made, shown_of_made(&change.job.change)));
            }
            if let Some(object) = self.wants_to_keep(&change, response) {
                keeps = true;
                wants.retain(|want| want.object != object);
                wants.push(Wanted::write(object, Parts::ATTRS | Parts::DATA));
            }
        }
        self.running -= 1;
        self.step(cx, Event::FinishChange { op, wants });
        let (stamp, grants) = self.finished.take().unwrap_or_default();
        let reply = Reply {
            stamp,
            grants,
            touched,
            room: keeps.then(|| self.room()),
            result,
            ..refused(Refusal::Internal)
        };
        self.end_change(cx, session, seq, reply);
        self.reap(cx);
    }

    /// How many bytes a session may buffer: half of what is free, in equal shares.
    fn room(&self) -> u64 {
        let free = self.host.free() as u64 * CELL;
        free / (2 * self.sessions.len().max(1) as u64)
    }

    /// Nothing is told of the file, nor a lease granted.
    fn finish_repeated(&mut self, cx: &mut Cx, op: OpId, offset: u64) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        let result = Ok(Response::Written(answer::Written::plain(
            change.job.payload.len() as u64,
            offset,
        )));
        self.note_progress(cx, &change, &result);
        self.running -= 1;
        let wants = Vec::new();
        self.step(cx, Event::FinishChange { op, wants });
        let (stamp, _) = self.finished.take().unwrap_or_default();
        let reply = Reply {
            stamp,
            result,
            ..refused(Refusal::Internal)
        };
        self.end_change(cx, change.session, change.seq, reply);
    }

    /// What its sender would have exclusively from now on; it is on record before.
    fn wants_to_keep(&mut self, change: &Pending, response: &Response) -> Option<Handle> {
        let object = match (&change.job.change, response) {
            (
                Change::Write(change::Write {
                    kind: WriteKind::Through { keep: true } | WriteKind::Flush { .. },
                    ..
                }),
                _,
            ) => change.open?.object,
            (
                Change::Create(change::Create {
                    keep: true, flags, ..
                }),
                Response::Created(answer::Created { handle, .. }),
            ) if flags & 3 != 0 => Obj::of(handle),
            _ => return None,
        };
        self.durable.write_lease(change.session, object);
        Some(object.handle())
    }

    /// Who flushes gets on with what a recall asks for.
    fn note_progress(&mut self, cx: &mut Cx, change: &Pending, result: &Result_) {
        let (
            Change::Write(change::Write {
                kind: WriteKind::Flush { .. },
                ..
            }),
            Some(open),
            Ok(Response::Written(answer::Written { len, .. })),
        ) = (&change.job.change, change.open, result)
        else {
            return;
        };
        let event = Event::Flushed {
            session: change.session,
            object: open.object.handle(),
            bytes: *len,
        };
        self.step(cx, event);
    }

    fn note_flushed(&mut self, change: &Pending, touched: &[Touched]) {
        let Change::Write(change::Write {
            kind: WriteKind::Flush { base, .. },
            open,
            ..
        }) = &change.job.change
        else {
            return;
        };
        if let (Some(touched), Some(session)) =
            (touched.first(), self.sessions.get_mut(&change.session))
        {
            session.opens.flushed(*open, *base, touched.attr.version());
        }
    }

    fn touched(&self, touches: &[Touch]) -> Vec<Touched> {
        let touched = touches.iter().filter_map(|touch| {
            let attr = self.host.attr(Obj::of(&touch.object))?;
            Some(Touched {
                object: touch.object,
                attr,
            })
        });
        touched.collect()
    }

    /// Keeps the answer of a change and sends it; those that followed it go on.
    fn end_change(&mut self, cx: &mut Cx, session: SessionId, seq: Seq, reply: Reply) {
        cx.trace(None, || {
            format!(
                "server: {session} {seq} -> {:?} stamp {} grants {:?}",
                reply.result, reply.stamp, reply.grants
            )
        });
        self.interrupted.settle((session, seq));
        self.unpark(cx);
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.ops.remove(&seq);
        let reply = Arc::new(reply);
        let (sink, ready) = s.changes.finish(seq, Arc::clone(&reply));
        for (seq, job) in ready {
            self.start_change(cx, session, seq, job);
        }
        if let Some(sink) = sink {
            self.send(cx, sink, (*reply).clone(), Bytes::new());
        }
    }

    /// The client gives up on a change.
    pub(super) fn cancel(&mut self, cx: &mut Cx, link: LinkId, session: SessionId, seq: Seq) {
        let Some((begun, sink)) = self.cancel_here(cx, session, seq) else {
            return;
        };
        if let Some(sink) = sink {
            self.send(cx, sink, refused(Refusal::Cancelled), Bytes::new());
        }
        let answer = Down::Control(ToClient::Cancelled { seq, begun });
        cx.down(link, Stream::ControlDown, answer);
    }

    /// Whatever of a change has not begun never will.
    pub(super) fn cancel_here(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        seq: Seq,
    ) -> Option<(bool, Option<Sink>)> {
        let s = self.sessions.get_mut(&session)?;
        let outcome = s.changes.cancel(seq);
        let op = match outcome.withdraw {
            true => s.ops.remove(&seq),
            false => None,
        };
        if let Some(op) = op {
            self.withdraw(cx, op);
        }
        for (seq, job) in outcome.ready {
            self.start_change(cx, session, seq, job);
        }
        Some((outcome.begun, outcome.sink))
    }
}

/// What an answer tells of something that its change has made or opened.
fn made_by(response: &Response) -> Option<Handle> {
    match response {
        Response::Object(answer::Object { handle, .. })
        | Response::Created(answer::Created { handle, .. }) => Some(*handle),
        _ => None,
    }
}

/// What a reply shows of what was made: a new directory is empty.
fn shown_of_made(change: &Change) -> Parts {
    match change {
        Change::Make(change::Make {
            make: What::Directory,
            ..
        }) => Parts::ATTRS | Parts::NAMES,
        _ => Parts::ATTRS,
    }
}

/// What a reply shows of a touched object: attributes, and of a directory the names that changed.
fn shown(touches: &[Touch], object: Handle) -> Parts {
    let named = |t: &&Touch| t.object == object && !t.names.is_empty();
    match touches.iter().find(named) {
        Some(_) => Parts::ATTRS | Parts::NAMES,
        None => Parts::ATTRS,
    }
}

/// The names of a change, checked.
fn names_of(change: &Change) -> Names {
    let name = |raw: &RawName| Name::try_from(raw).ok();
    match change {
        Change::Make(change::Make { name: raw, .. })
        | Change::Unlink(change::Unlink { name: raw, .. })
        | Change::Rmdir(change::Rmdir { name: raw, .. })
        | Change::Create(change::Create { name: raw, .. })
        | Change::Link(change::Link { name: raw, .. }) => Names {
            name: name(raw),
            new_name: None,
        },
        Change::Rename(rename) => Names {
            name: name(&rename.name),
            new_name: name(&rename.new_name),
        },
        _ => Names::default(),
    }
}
