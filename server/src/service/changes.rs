//! Requests that change something: each has its turn, runs once, and keeps its answer.

use super::Call;
use super::access::{Accesses, Targets, of_change};
use super::inputs::Inputs;
use super::ops::{Done, Lateness, Order, Perform, operation};
use super::told::is_gone;
use crate::caught::caught;
use crate::faults::{Point, may_crash};
use crate::intent::Intent;
use crate::interrupted::ChangeId;
use crate::runtime::{LockLost, Turn};
use crate::server::Server;
use crate::session::{Job, Session, close, refused};
use leasefs_lease::server::Touch;
use leasefs_protocol::answer::Written;
use leasefs_protocol::limits::MAX_TURNS;
use leasefs_protocol::{Change, Handle, Refusal, Reply, Response, Seq};
use leasefs_store::OpenFile;
use leasefs_transport::prompt;
use std::sync::Arc;

/// A change on its way.
pub(super) struct Pending<'a> {
    pub(super) order: Order<'a>,
    seq: Seq,
    job: &'a Job,
    operation: &'a (dyn Perform + Send + Sync),
}

/// What comes of a change whose turn may have come.
enum Step {
    Done(Box<Reply>),
    /// It was cancelled, or the server ends.
    Never,
    /// What its names denote has changed: it must be looked at again.
    Again(Option<Turn>),
}

/// Starts a change whose predecessors are done, behind the closing of what came with it.
pub fn start(
    server: &Arc<Server>,
    session: &Arc<Session>,
    seq: Seq,
    job: Job,
    closed: Vec<Arc<OpenFile>>,
) {
    let withdrawn = session.start(seq);
    // It is large, and handed on several times.
    let task = Box::pin(run(Arc::clone(server), Arc::clone(session), seq, job));
    server.begin_io(async move {
        close(closed);
        tokio::select! {
            biased;
            () = withdrawn.notified() => (),
            () = task => (),
        }
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
    let kind = job.change.kind();
    let reply = caught(execute(&call, seq, job)).await.unwrap_or_else(|| {
        tracing::error!(session = %session.id, %seq, kind, "a change failed inside: it may have happened in part");
        server.records.change_ends(session.id, seq, &Err(Refusal::Internal), None);
        session.begin(seq).map(|_| refused(Refusal::Internal))
    });
    // What was to be repeated and isn't must not be after another crash.
    if let Some(reply) = reply
        .as_ref()
        .filter(|_| server.interrupted.has((session.id, seq)))
    {
        let result = &reply.result;
        server.records.change_ends(session.id, seq, result, None);
    }
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
        start(server, session, seq, job, Vec::new());
    }
    if let Some(sink) = sink {
        server.nearly_done();
        prompt(sink.send((*reply).clone(), bytes::Bytes::new())).await;
    }
}

/// The change's answer; `None` if it never runs.
async fn execute(call: &Call, seq: Seq, job: Job) -> Option<Reply> {
    let operation = operation(&job.change);
    let inputs = match checked(call, &job, operation) {
        Ok(inputs) => inputs,
        Err(refusal) => return call.session.begin(seq).map(|_| refused(refusal)),
    };
    let change = Pending {
        order: Order {
            call,
            inputs: &inputs,
            payload: &job.payload,
            resent: job.resent,
        },
        seq,
        job: &job,
        operation,
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

/// What can be told of it without asking the host.
fn checked(call: &Call, job: &Job, operation: &dyn Perform) -> Result<Inputs, Refusal> {
    if call.client.read_only {
        return Err(Refusal::ReadOnly);
    }
    operation.bounds(job.payload.len())?;
    for object in job.change.handles() {
        call.server.store.check(object)?;
    }
    operation.inputs(&call.session.opens)
}

impl Pending<'_> {
    fn id(&self) -> ChangeId {
        (self.order.call.session.id, self.seq)
    }

    async fn step(&self, turn: Option<Turn>) -> Step {
        let server = &self.order.call.server;
        if server.interrupted.is_overtaken(self.id()) {
            return self.refuse(Refusal::Lost);
        }
        let mark = server.leases.mark();
        let targets = match self.targets() {
            Ok(targets) => targets,
            Err(refusal) => return self.refuse(refusal),
        };
        let all = of_change(&self.job.change, &self.order.inputs.names, &targets);
        if all.touches.is_empty() {
            drop(turn);
            return self.read(all, targets).await;
        }
        if self.admit_reads(&all).await.is_none() {
            return Step::Never;
        }
        self.pass_interrupted(turn.is_some(), &all.touches).await;
        let turn = match self.take_turn(turn, all.touches.clone()).await {
            Some(Ok(turn)) => turn,
            Some(Err(LockLost)) => return self.refuse(Refusal::LockLost),
            None => return Step::Never,
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
        match self.order.call.session.begin(self.seq) {
            Some(_) => Step::Done(Box::new(Reply {
                result,
                ..refused(Refusal::Internal)
            })),
            None => Step::Never,
        }
    }

    /// What the change's names denote just now, if its caller may do it.
    fn targets(&self) -> Result<Targets, Refusal> {
        let order = &self.order;
        order.call.within_border(self.job.change.handles())?;
        self.operation.judge(order, order.inputs.targets())
    }

    /// What a change reads besides (the source of a copy) must not be hidden by a Write lease.
    async fn admit_reads(&self, all: &Accesses) -> Option<()> {
        if all.reads.is_empty() {
            return Some(());
        }
        let (session, label) = (self.order.call.session.id, self.job.change.kind());
        let leases = &self.order.call.server.leases;
        let entry = leases.read(session, label, all.kind, all.reads.clone());
        entry.decided().await.map(drop)
    }

    /// Nobody else changes the objects of an interrupted change, but for those it may itself have to
    /// wait for: who has a turn, and a kernel that writes locked pages back and approves then (which its own session's don't
    /// wait for).
    async fn pass_interrupted(&self, has_turn: bool, touches: &[Touch]) {
        let (interrupted, own) = (&self.order.call.server.interrupted, self.id());
        match (has_turn, self.operation.is_writeback()) {
            (true, _) => interrupted.overtake(own, touches),
            (false, true) => interrupted.let_own_pass(own, touches).await,
            (false, false) => interrupted.let_pass(own, touches).await,
        }
    }

    async fn take_turn(
        &self,
        turn: Option<Turn>,
        touches: Vec<Touch>,
    ) -> Option<Result<Turn, LockLost>> {
        let dropped = self.job.dropped.clone();
        if let Some(mut turn) = turn {
            let again = turn.requeue(touches, dropped).await?;
            return Some(again.map(|()| turn));
        }
        let (leases, session) = (&self.order.call.server.leases, self.order.call.session.id);
        let label = self.job.change.kind();
        let first = self.operation.goes_first();
        let locked = self.job.locked;
        Turn::take(leases, (session, label), touches, dropped, first, locked).await
    }

    /// A create of a name that exists opens what it denotes. A rename of one object's name to another of
    /// its names does nothing.
    async fn read(&self, all: Accesses, targets: Targets) -> Step {
        let (call, Change::Create(create)) = (self.order.call, &self.job.change) else {
            return self.answer(Ok(Response::Done));
        };
        let (session, label) = (call.session.id, self.job.change.kind());
        let entry = call.server.leases.read(session, label, all.kind, all.reads);
        let Some(admission) = entry.decided().await else {
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
        let result = call.open_existing(handle, create.flags);
        if result.as_ref().is_err_and(|refusal| is_gone(*refusal)) {
            return Step::Again(None);
        }
        let grants = match result {
            Ok(_) => admission.grants,
            Err(_) => Vec::new(),
        };
        Step::Done(Box::new(Reply {
            grants,
            result: result.map(Response::Created),
            ..refused(Refusal::Internal)
        }))
    }

    /// Its turn has come.
    async fn perform(&self, turn: Turn, touches: &[Touch], targets: &Targets) -> Step {
        let (server, session) = (&self.order.call.server, &self.order.call.session);
        let _leave = match self.operation.is_slow() {
            true => match server.slow(session).await {
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
        // What a crash has interrupted was in time, and nobody has changed its objects since.
        let lateness = match server.interrupted.has(self.id()) {
            true => Lateness::InTime,
            false => self.operation.lateness(&self.order, targets),
        };
        let reply = match lateness {
            Lateness::TooLate => self.reply(turn, touches, targets, Err(Refusal::Changed)),
            Lateness::Repeated(offset) => Reply {
                stamp: turn.finish(Vec::new()).stamp,
                result: Ok(Response::Written(Written::plain(
                    self.job.payload.len() as u64,
                    offset,
                ))),
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
        self.operation.answered(&self.order, targets, &reply);
        Step::Done(Box::new(reply))
    }

    /// Journals what the change is about to do, if it can do anything.
    fn journalled(&self, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let intent = self.operation.intent(&self.order, targets)?;
        if let Some(intent) = &intent {
            let (session, seq) = self.id();
            let low = self.order.call.session.low();
            let begins = self
                .order
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
            return self.ask_host(touches, targets).await;
        }
        may_crash(Point::Begun);
        let done = self.ask_host(touches, targets).await;
        may_crash(Point::Happened);
        let result = match &done {
            Ok(done) => Ok(done.response.clone()),
            Err(refusal) => Err(*refusal),
        };
        let ((session, seq), records) = (self.id(), &self.order.call.server.records);
        let keeps = done.as_ref().ok().and_then(|done| done.keeps);
        records.change_ends(session, seq, &result, keeps);
        may_crash(Point::Answered);
        done
    }

    /// Reads are kept out while the host changes the objects, but not while it waits for a disk.
    async fn ask_host(&self, touches: &[Touch], targets: &Targets) -> Result<Done, Refusal> {
        let done = {
            let objects: Vec<Handle> = touches.iter().map(|touch| touch.object).collect();
            let _latches = self.order.call.server.latches.change(&objects).await;
            self.operation.run(&self.order, targets)?
        };
        self.operation.commit(&self.order)?;
        Ok(done)
    }
}
