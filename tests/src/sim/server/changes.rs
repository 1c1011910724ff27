//! Changes: each has its turn, runs once, and keeps its answer.

use super::journal::Record;
use super::{Bug, Job, Mark, Server, ServerEv, Sink, Work, refused};
use crate::sim::cx::Cx;
use crate::sim::model::{Deed, Down, MS, Obj, Payload, checked};
use crate::sim::net::{LinkId, Stream};
use crate::sim::store::{By, Denoted, EEXIST};
use fsserver::service::access::{Accesses, Names, Targets, accesses};
use fsserver::session::answers::{Answers, Arrival};
use leasefs_lease::server::{Event, OpId, Touch, Wanted};
use leasefs_protocol::limits::FLUSH_PROGRESS;
use leasefs_protocol::{
    Handle, OpenId, OpenToken, Parts, Refusal, Reply, Response, Seq, SessionId, Touched,
};
use std::sync::Arc;

/// A change in the core.
#[derive(Debug)]
pub(super) struct Change {
    session: SessionId,
    seq: Seq,
    job: Job,
    mark: Mark,
    denoted: Denoted,
    touches: Vec<Touch>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for its turn.
    Waits,
    /// A create of a name that exists: it reads.
    Reads,
    /// Its turn has come, with this number among all changes; 0 for one that only reads.
    Turn(u64),
    /// It may run: what it has begun is never cancelled.
    Begun,
    /// It has run.
    Ran(Result<Option<Obj>, Refusal>),
    /// It comes too late, but what it would write is there.
    Repeated,
}

/// How bytes come that were buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lateness {
    InTime,
    /// The lease has ended, and the file has changed since.
    TooLate,
    /// So it is, but the file holds them.
    Repeated,
}

impl Change {
    pub fn is_read(&self) -> bool {
        self.stage == Stage::Reads
    }

    pub fn admitted(&mut self, turn: u64) {
        self.stage = Stage::Turn(turn);
    }
}

impl Server {
    /// A change comes from its client.
    pub(super) fn arrive(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        sink: Sink,
        change: &leasefs_protocol::Change,
        job: Job,
    ) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if cx.has(Bug::RunTwice) && change.resent {
            s.changes = Answers::default();
        }
        let seq = change.seq;
        match s.changes.arrive(change, job, sink) {
            Ok(Arrival::Run(job)) => self.start_change(cx, session, seq, job),
            Ok(Arrival::Held | Arrival::Attached) => {}
            Ok(Arrival::Repeat(reply, sink)) => {
                self.send(cx, sink, (*reply).clone(), Payload::Nothing);
            }
            Ok(Arrival::Refuse(refusal, sink)) => {
                self.send(cx, sink, refused(refusal), Payload::Nothing);
            }
            Ok(Arrival::Lost) => self.end_change(cx, session, seq, refused(Refusal::Lost)),
            Err(violation) => cx.judge.accuse(None, || {
                format!("the client broke the protocol: {violation}")
            }),
        }
    }

    fn start_change(&mut self, cx: &mut Cx, session: SessionId, seq: Seq, job: Job) {
        let op = self.new_op();
        if let Some(s) = self.sessions.get_mut(&session) {
            s.ops.insert(seq, op);
        }
        let change = Change {
            session,
            seq,
            job,
            mark: Mark::default(),
            denoted: Denoted::default(),
            touches: Vec::new(),
            stage: Stage::Waits,
        };
        self.look(cx, op, change, false);
    }

    /// Looks what the change's names denote and queues it for that.
    pub(super) fn look(&mut self, cx: &mut Cx, op: OpId, mut change: Change, queued: bool) {
        let (deed, session) = (change.job.deed, change.session);
        change.mark = self.mark();
        change.denoted = self.store.denoted(deed);
        let all = accesses_of(deed, change.denoted);
        change.touches = all.touches.clone();
        let dropped = match cx.has(Bug::ForgetRequester) {
            true => all.touches.iter().map(|touch| touch.object).collect(),
            false => change.job.dropped.clone(),
        };
        let seq = change.seq;
        if all.touches.is_empty() {
            if queued {
                self.step(cx, Event::Withdraw { op });
            }
            let op = self.new_op();
            if let Some(s) = self.sessions.get_mut(&session) {
                s.ops.insert(seq, op);
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
        let writeback = deed.is_writeback();
        self.works.insert(op, Work::Change(change));
        let touches = all.touches;
        if self.waits_for_interrupted(cx, op, (session, seq), (&touches, queued || writeback)) {
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
            },
        };
        self.step(cx, event);
    }

    pub(super) fn go_on_changing(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Change(change)) = self.works.get(&op) else {
            return;
        };
        match change.stage {
            Stage::Waits | Stage::Reads => {}
            Stage::Turn(turn) => self.begin(cx, op, turn),
            Stage::Begun => self.run(cx, op),
            Stage::Ran(result) => self.finish(cx, op, result),
            Stage::Repeated => self.finish_repeated(cx, op),
        }
    }

    fn begin(&mut self, cx: &mut Cx, op: OpId, turn: u64) {
        let Some(Work::Change(change)) = self.works.get(&op) else {
            return;
        };
        let (session, seq, deed) = (change.session, change.seq, change.job.deed);
        let follows = turn > 0 && change.mark.quiet && turn == change.mark.begun + 1;
        let same = self.store.denoted(deed) == change.denoted;
        if !follows && !same {
            cx.stats.requeued += 1;
            let Some(Work::Change(change)) = self.works.remove(&op) else {
                return;
            };
            if turn > 0 {
                self.running -= 1;
            }
            let op = match turn {
                0 => self.new_op(),
                _ => op,
            };
            if let Some(s) = self.sessions.get_mut(&session) {
                s.ops.insert(seq, op);
            }
            self.look(cx, op, change, turn > 0);
            return;
        }
        if !self.begin_answer(session, seq) {
            self.withdraw(cx, op);
            return;
        }
        if turn == 0 {
            self.works.remove(&op);
            self.end_change(cx, session, seq, refused(Refusal::Host(EEXIST.0)));
            return;
        }
        if self.interrupted.is_overtaken((session, seq)) {
            return self.set_stage(cx, op, Stage::Ran(Err(Refusal::Lost)));
        }
        let stage = match self.lateness(cx, session, deed) {
            Lateness::InTime => {
                self.journal_intent(cx, (session, seq), deed);
                Stage::Begun
            }
            Lateness::TooLate => {
                cx.stats.late += 1;
                Stage::Ran(Err(Refusal::Changed))
            }
            Lateness::Repeated => {
                cx.stats.held += 1;
                Stage::Repeated
            }
        };
        self.set_stage(cx, op, stage);
    }

    fn begin_answer(&mut self, session: SessionId, seq: Seq) -> bool {
        let session = self.sessions.get_mut(&session);
        session.is_some_and(|s| s.changes.begin(seq))
    }

    fn lateness(&self, cx: &Cx, session: SessionId, deed: Deed) -> Lateness {
        let Deed::Flush(file, run, base) = deed else {
            return Lateness::InTime;
        };
        let holds = self.core.holds_write(session, &file.handle());
        let is_there = |(page, value)| self.store.page(file, page) == value;
        match holds || self.store.version(file) == base || cx.has(Bug::FlushUnchecked) {
            true => Lateness::InTime,
            false if run.pages().all(is_there) => Lateness::Repeated,
            false => Lateness::TooLate,
        }
    }

    fn journal_intent(&mut self, cx: &Cx, change: (SessionId, Seq), deed: Deed) {
        if let Some(intent) = self.intent(deed)
            && !cx.has(Bug::ForgetIntents)
        {
            self.durable.note(change, Record::Intent(intent));
        }
    }

    fn set_stage(&mut self, cx: &mut Cx, op: OpId, stage: Stage) {
        if let Some(Work::Change(change)) = self.works.get_mut(&op) {
            change.stage = stage;
        }
        if matches!(stage, Stage::Begun | Stage::Ran(_) | Stage::Repeated) {
            self.may_crash(cx);
        }
        let wait = cx.short(2 * MS);
        self.later(cx, wait, ServerEv::Work(op));
    }

    fn run(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Change(change)) = self.works.get(&op) else {
            return;
        };
        let (id, deed, session) = (change.job.id, change.job.deed, change.session);
        let again = self.repeats.contains(&(session, change.seq));
        cx.stats.repeated += u64::from(again);
        let by = By { id, session, again };
        let result = self.store.apply(cx, by, deed);
        let result = result.map_err(|errno| Refusal::Host(errno.0));
        for object in deed.touches() {
            cx.trace(Some(object), || {
                format!("server: {session} {id:?} {deed:?} runs: {result:?}")
            });
        }
        self.set_stage(cx, op, Stage::Ran(result));
    }

    /// Ends the turn. Attributes of what was touched are read while it still lasts.
    fn finish(&mut self, cx: &mut Cx, op: OpId, result: Result<Option<Obj>, Refusal>) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        let (session, seq) = (change.session, change.seq);
        let response = self.response(change.job.deed, result);
        self.durable.note_answer((session, seq), response.clone());
        self.note_progress(cx, session, change.job.deed);
        let (mut wants, mut touched) = (Vec::new(), Vec::new());
        if let Ok(made) = result {
            touched = self.touched(&change.touches);
            wants.extend(
                touched
                    .iter()
                    .map(|t| Wanted::read(t.object, shown(&change.touches, t.object))),
            );
            let made = made.map(|object| object.handle());
            let new = made.filter(|made| touched.iter().all(|t| t.object != *made));
            wants.extend(new.map(|made| Wanted::read(made, Parts::ATTRS)));
            if let Some(object) = self.wants_to_keep(cx, session, change.job.deed, made) {
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
            room: None,
            result: response,
            ..refused(Refusal::Internal)
        };
        self.end_change(cx, session, seq, reply);
    }

    /// Nothing is told of the file, nor a lease granted.
    fn finish_repeated(&mut self, cx: &mut Cx, op: OpId) {
        let Some(Work::Change(change)) = self.works.remove(&op) else {
            return;
        };
        let response = self.response(change.job.deed, Ok(None));
        self.note_progress(cx, change.session, change.job.deed);
        self.running -= 1;
        let wants = Vec::new();
        self.step(cx, Event::FinishChange { op, wants });
        let (stamp, _) = self.finished.take().unwrap_or_default();
        let reply = Reply {
            stamp,
            result: response,
            ..refused(Refusal::Internal)
        };
        self.end_change(cx, change.session, change.seq, reply);
    }

    /// What its sender would have exclusively from now on; it is on record before.
    fn wants_to_keep(
        &mut self,
        cx: &Cx,
        session: SessionId,
        deed: Deed,
        made: Option<Handle>,
    ) -> Option<Handle> {
        let object = match deed {
            Deed::Write(file, ..) | Deed::Append(file, _) | Deed::Flush(file, ..) => file,
            Deed::Create(..) => Obj::of(&made?),
            _ => return None,
        };
        if !cx.has(Bug::WriteUnlogged) {
            self.durable.write_lease(session, object);
        }
        Some(object.handle())
    }

    /// Who flushes gets on with what a recall asks for.
    fn note_progress(&mut self, cx: &mut Cx, session: SessionId, deed: Deed) {
        let Deed::Flush(file, ..) = deed else { return };
        self.step(
            cx,
            Event::Flushed {
                session,
                object: file.handle(),
                bytes: FLUSH_PROGRESS,
            },
        );
    }

    fn touched(&self, touches: &[Touch]) -> Vec<Touched> {
        let touched = touches.iter().map(|touch| Touched {
            object: touch.object,
            attr: self.store.attr(&touch.object),
        });
        touched.collect()
    }

    fn response(
        &self,
        deed: Deed,
        result: Result<Option<Obj>, Refusal>,
    ) -> Result<Response, Refusal> {
        let made = result?;
        let node = made.map(|object| (object.handle(), self.store.attr(&object.handle())));
        Ok(match (deed, node) {
            (Deed::Create(..), Some((handle, attr))) => Response::Created {
                handle,
                attr,
                open: OpenId(0),
                token: OpenToken(Vec::new()),
            },
            (Deed::Link(..), Some((handle, attr))) => Response::Object { handle, attr },
            _ => Response::Done,
        })
    }

    /// Keeps the answer of a change and sends it; those that followed it go on.
    fn end_change(&mut self, cx: &mut Cx, session: SessionId, seq: Seq, reply: Reply) {
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
            self.send(cx, sink, (*reply).clone(), Payload::Nothing);
        }
    }

    /// The client gives up on a change.
    pub(super) fn cancel(&mut self, cx: &mut Cx, link: LinkId, session: SessionId, seq: Seq) {
        let Some((begun, sink)) = self.cancel_here(cx, session, seq) else {
            return;
        };
        if let Some(sink) = sink {
            self.send(cx, sink, refused(Refusal::Cancelled), Payload::Nothing);
        }
        cx.down(link, Stream::ControlDown, Down::Cancelled { seq, begun });
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

/// What the shipped table says of a change.
fn accesses_of(deed: Deed, denoted: Denoted) -> Accesses {
    let (name, new_name) = match deed {
        Deed::Create(_, name) | Deed::Unlink(_, name) | Deed::Link(_, (_, name)) => {
            (Some(name), None)
        }
        Deed::Rename((_, name), (_, new)) => (Some(name), Some(new)),
        Deed::Write(..)
        | Deed::WriteSync(..)
        | Deed::Flush(..)
        | Deed::Append(..)
        | Deed::Truncate(..)
        | Deed::Chmod(_) => (None, None),
    };
    let names = Names {
        name: name.map(checked),
        new_name: new_name.map(checked),
    };
    let targets = Targets {
        opened: deed.touches().first().map(|object| object.handle()),
        named: denoted.named.map(Obj::handle),
        replaced: denoted.replaced.map(Obj::handle),
        ..Targets::default()
    };
    accesses(&deed.request(), &names, &targets)
}

/// What a reply shows of a touched object: attributes, and of a directory the names that changed.
fn shown(touches: &[Touch], object: Handle) -> Parts {
    let named = |t: &&Touch| t.object == object && !t.names.is_empty();
    match touches.iter().find(named) {
        Some(_) => Parts::ATTRS | Parts::NAMES,
        None => Parts::ATTRS,
    }
}
