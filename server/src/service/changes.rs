//! Requests that change something: each has its turn, runs once, and keeps its answer.

use super::Call;
use super::access::{Accesses, Targets, accesses};
use super::change::Change;
use super::host::{Done, open_existing};
use super::inputs::inputs;
use super::lateness::Lateness;
use super::rights::judge;
use super::told::is_gone;
use crate::caught::caught;
use crate::faults::{Point, may_crash};
use crate::intent::Intent;
use crate::runtime::Turn;
use crate::server::Server;
use crate::session::{Job, Session, refused};
use leasefs_lease::server::Touch;
use leasefs_protocol::limits::MAX_TURNS;
use leasefs_protocol::request::{Durability, O_TRUNC};
use leasefs_protocol::{Refusal, Reply, Request, Response, Seq};
use std::sync::Arc;

/// What comes of a change whose turn may have come.
enum Step {
    Done(Box<Reply>),
    /// It was cancelled, or the server ends.
    Never,
    /// What its names denote has changed: it must be looked at again.
    Again(Option<Turn>),
}

/// Starts a change whose predecessors are done.
pub fn start(server: &Arc<Server>, session: &Arc<Session>, seq: Seq, job: Job) {
    let (task_server, task_session) = (Arc::clone(server), Arc::clone(session));
    session.start(seq, || {
        let task = run(task_server, task_session, seq, job);
        server.spawn_io(task).abort_handle()
    });
}

async fn run(server: Arc<Server>, session: Arc<Session>, seq: Seq, job: Job) {
    let call = Call {
        server: Arc::clone(&server),
        session: Arc::clone(&session),
        client: Arc::clone(&job.client),
        caller: job.caller.clone(),
        origin: None,
    };
    let kind = job.request.kind();
    let reply = caught(execute(&call, seq, job)).await.unwrap_or_else(|| {
        tracing::error!(session = %session.id, %seq, kind, "a change failed inside: it may have happened in part");
        server.records.change_ends(session.id, seq, &Err(Refusal::Internal));
        session.begin(seq).map(|_| refused(Refusal::Internal))
    });
    server.interrupted.settle((session.id, seq));
    if let Some(reply) = reply {
        finish(&server, &session, seq, reply).await;
    }
}

/// Keeps the answer of a change and sends it; those that followed it go on.
pub async fn finish(server: &Arc<Server>, session: &Arc<Session>, seq: Seq, reply: Reply) {
    let reply = Arc::new(reply);
    let (sink, ready) = session.finish(seq, Arc::clone(&reply));
    for (seq, job) in ready {
        start(server, session, seq, job);
    }
    if let Some(sink) = sink {
        sink.send((*reply).clone(), bytes::Bytes::new()).await;
    }
}

/// The change's answer; `None` if it never runs.
async fn execute(call: &Call, seq: Seq, job: Job) -> Option<Reply> {
    let server = &call.server;
    let opens = &call.session.opens;
    let checked = inputs(
        &server.store,
        &call.client,
        opens,
        &job.request,
        job.payload.len(),
    );
    let inputs = match checked {
        Ok(inputs) => inputs,
        Err(refusal) => return call.session.begin(seq).map(|_| refused(refusal)),
    };
    let change = Change {
        call,
        seq,
        job: &job,
        inputs: &inputs,
    };
    let mut turn = None;
    for _ in 0..MAX_TURNS {
        match change.step(turn.take()).await {
            Step::Done(reply) => return Some(*reply),
            Step::Never => return None,
            Step::Again(kept) => turn = kept,
        }
    }
    tracing::warn!(session = %call.session.id, %seq, "a change never found its names at rest");
    call.session.begin(seq).map(|_| refused(Refusal::Stale))
}

impl Change<'_> {
    async fn step(&self, turn: Option<Turn>) -> Step {
        let server = &self.call.server;
        if server.interrupted.is_overtaken(self.id()) {
            return self.refuse(Refusal::Lost);
        }
        let mark = server.leases.mark();
        let targets = match self.targets() {
            Ok(targets) => targets,
            Err(refusal) => return self.refuse(refusal),
        };
        let all = accesses(&self.job.request, &self.inputs.names, &targets);
        if all.touches.is_empty() {
            drop(turn);
            return self.read(all, targets).await;
        }
        if self.admit_reads(&all).await.is_none() {
            return Step::Never;
        }
        self.pass_interrupted(turn.is_some(), &all.touches).await;
        let Some(turn) = self.take_turn(turn, all.touches.clone()).await else {
            return Step::Never;
        };
        // Unless nothing has changed since, the names may denote other objects by now.
        if !turn.follows(mark) {
            match self.targets() {
                Ok(now) if now == targets => (),
                Ok(_) => return Step::Again(Some(turn)),
                Err(refusal) => return self.refuse(refusal),
            }
        }
        self.perform(turn, &all.touches, &targets).await
    }

    fn refuse(&self, refusal: Refusal) -> Step {
        self.answer(Err(refusal))
    }

    /// The answer of a change that does nothing.
    fn answer(&self, result: Result<Response, Refusal>) -> Step {
        match self.call.session.begin(self.seq) {
            Some(_) => Step::Done(Box::new(Reply {
                result,
                ..refused(Refusal::Internal)
            })),
            None => Step::Never,
        }
    }

    /// What the request's names denote just now, if its caller may do it.
    fn targets(&self) -> Result<Targets, Refusal> {
        self.call.within_border(&self.job.request, None)?;
        judge(self.call, &self.job.request, self.inputs)
    }

    /// What a change reads besides (the source of a copy) must not be hidden by a Write lease.
    async fn admit_reads(&self, all: &Accesses) -> Option<()> {
        if all.reads.is_empty() {
            return Some(());
        }
        let (session, label) = (self.call.session.id, self.job.request.kind());
        let leases = &self.call.server.leases;
        let entry = leases.read(session, label, all.kind, all.reads.clone());
        entry.admitted().await.map(drop)
    }

    /// Nobody else changes the objects of an interrupted change, but for those it may itself have to
    /// wait for: who has a turn, and a kernel that writes locked pages back and approves then.
    async fn pass_interrupted(&self, has_turn: bool, touches: &[Touch]) {
        let (server, own) = (&self.call.server, self.id());
        let writeback =
            matches!(&self.job.request, Request::Write { kind, .. } if kind.is_writeback());
        let overtaken = match has_turn || writeback {
            true => server.interrupted.overtake(own, touches),
            false => server.interrupted.let_pass(own, touches).await,
        };
        server.lose(overtaken);
    }

    async fn take_turn(&self, turn: Option<Turn>, touches: Vec<Touch>) -> Option<Turn> {
        let dropped = self.job.dropped.clone();
        if let Some(mut turn) = turn {
            turn.requeue(touches, dropped).await?;
            return Some(turn);
        }
        // Pages that a kernel keeps locked until the answer; while a size changes it holds back
        // what it has to write.
        let writeback = match &self.job.request {
            Request::Write { kind, .. } => kind.is_writeback(),
            Request::SetAttr { set, .. } => set.size.is_some(),
            _ => false,
        };
        let (leases, session) = (&self.call.server.leases, self.call.session.id);
        let label = self.job.request.kind();
        Turn::take(leases, session, label, touches, dropped, writeback).await
    }

    /// A create of a name that exists opens what it denotes. A rename of one object's name to another of
    /// its names does nothing.
    async fn read(&self, all: Accesses, targets: Targets) -> Step {
        let (call, Request::Create { flags, .. }) = (self.call, &self.job.request) else {
            return self.answer(Ok(Response::Done));
        };
        let (session, label) = (call.session.id, self.job.request.kind());
        let entry = call.server.leases.read(session, label, all.kind, all.reads);
        let Some(admission) = entry.admitted().await else {
            return Step::Never;
        };
        let named = match self.targets() {
            Ok(now) if now == targets => targets.named,
            Ok(_) => return Step::Again(None),
            Err(refusal) => return self.refuse(refusal),
        };
        let Some(handle) = named else {
            return Step::Again(None);
        };
        let Some(_pass) = call.session.begin(self.seq) else {
            return Step::Never;
        };
        let result = open_existing(call, handle, *flags);
        if result.as_ref().is_err_and(|refusal| is_gone(*refusal)) {
            return Step::Again(None);
        }
        let grants = match result {
            Ok(_) => admission.grants,
            Err(_) => Vec::new(),
        };
        Step::Done(Box::new(Reply {
            grants,
            result,
            ..refused(Refusal::Internal)
        }))
    }

    /// Its turn has come.
    async fn perform(&self, turn: Turn, touches: &[Touch], targets: &Targets) -> Step {
        let (server, session) = (&self.call.server, &self.call.session);
        let _leave = match is_slow(&self.job.request) {
            true => match server.slow().await {
                Some(leave) => Some(leave),
                None => return Step::Never,
            },
            false => None,
        };
        if server.interrupted.is_overtaken(self.id()) {
            return self.refuse(Refusal::Lost);
        }
        let Some(_pass) = session.begin(self.seq) else {
            return Step::Never;
        };
        let reply = match self.lateness(targets) {
            Lateness::TooLate => self.reply(turn, touches, targets, Err(Refusal::Changed)),
            Lateness::Repeated(offset) => Reply {
                stamp: turn.finish(Vec::new()).stamp,
                result: Ok(Response::Written {
                    len: self.job.payload.len() as u64,
                    offset,
                }),
                ..refused(Refusal::Internal)
            },
            Lateness::InTime => {
                let done = match self.journalled(targets) {
                    Ok(intent) => self.run(touches, targets, intent.is_some()).await,
                    Err(refusal) => Err(refusal),
                };
                self.reply(turn, touches, targets, done)
            }
        };
        if self.flushes()
            && let Some(object) = targets.opened
            && let Ok(Response::Written { len, .. }) = &reply.result
        {
            server.leases.flushed(session.id, object, *len);
        }
        Step::Done(Box::new(reply))
    }

    /// Journals what the change is about to do, if it can do anything.
    fn journalled(&self, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let intent = self.order().intent(targets)?;
        if let Some(intent) = &intent {
            let (session, seq) = self.id();
            let low = self.call.session.low();
            let begins = self
                .call
                .server
                .records
                .change_begins(session, seq, low, intent);
            begins.map_err(|error| {
                tracing::error!(%error, "a change can't be journalled");
                Refusal::Internal
            })?;
        }
        Ok(intent)
    }

    /// The turn must last until the answer is journalled: after a crash it is told from the
    /// objects' state whether a change without an answer has happened.
    async fn run(
        &self,
        touches: &[Touch],
        targets: &Targets,
        journalled: bool,
    ) -> Result<Done, Refusal> {
        if !journalled {
            return self.order().run(touches, targets).await;
        }
        may_crash(Point::Begun);
        let done = self.order().run(touches, targets).await;
        may_crash(Point::Happened);
        let result = match &done {
            Ok(done) => Ok(done.response.clone()),
            Err(refusal) => Err(*refusal),
        };
        let (session, seq) = self.id();
        self.call.server.records.change_ends(session, seq, &result);
        may_crash(Point::Answered);
        done
    }
}

/// Whether the host may take long, as a rule.
fn is_slow(request: &Request) -> bool {
    match request {
        Request::Write { durability, .. } => *durability != Durability::None,
        Request::Fallocate { .. } | Request::CopyRange { .. } => true,
        Request::SetAttr { set, .. } => set.size.is_some(),
        Request::Open { flags, .. } | Request::Create { flags, .. } => flags & O_TRUNC != 0,
        _ => false,
    }
}
