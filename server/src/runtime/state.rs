//! What stands behind the lock: the core, who waits for it, where recalls go.

use super::busiest::Busiest;
use super::progress::Progress;
use super::snapshot::{ObjectSnapshot, OpLabel, Snapshot};
use crate::border::Border;
use leasefs_lease::server::{
    Action, Config, Core, Event, Grace, LockAnswer, OpId, OpState, ReclaimRefusal, Reclaimed,
    Standing, Waiting,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{Push, UNLINKS};
use leasefs_protocol::latency::Histogram;
use leasefs_protocol::limits::{MAX_HOLDERS_TOLD, MAX_RECALLS_UNREAD};
use leasefs_protocol::lock::FileLocks;
use leasefs_protocol::{Grant, Handle, LockEpoch, Recall, SessionId, Stamp};
use leasefs_transport::{OutFrame, Outbox};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// What concerns a session as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its leases have ended.
    Expired(SessionId),
    /// Its client doesn't read its recalls.
    Choked(SessionId),
    /// No lease of the server's earlier life is alive.
    GraceEnded,
}

/// How a session stands after its client's `Hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// As the core sees it.
    pub standing: Standing,
    /// Whether its leases are renewed.
    pub renewed: bool,
}

/// A read may look at the store: what it sees from now on is covered by its grants.
#[derive(Debug)]
pub struct Admission {
    /// What of its answer may be cached.
    pub grants: Vec<Grant>,
}

/// The locks under which a change was made are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLost;

#[derive(Debug)]
pub(super) struct Waiter {
    pub label: OpLabel,
    pub wake: Wake,
}

/// Who waits for an operation.
#[derive(Debug)]
pub(super) enum Wake {
    Read(oneshot::Sender<Admission>),
    /// Told its place among the changes of this life.
    Change(oneshot::Sender<Result<u64, LockLost>>),
    Lock(oneshot::Sender<LockAnswer>),
}

/// A session's push stream.
#[derive(Debug)]
pub struct Line {
    /// Its connection.
    pub link: u64,
    /// Where it is written to.
    pub outbox: Outbox,
    /// It names objects as its client does within this.
    pub border: Option<Arc<Border>>,
    /// The optional features of its client.
    pub features: u64,
}

/// What a step came to for whoever took it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub finished: Option<(Stamp, Vec<Grant>)>,
    pub opened: Option<Opened>,
}

#[derive(Debug)]
pub(super) struct State {
    core: Core,
    waiters: HashMap<OpId, Waiter>,
    lines: HashMap<SessionId, Line>,
    /// When the timer looks next.
    armed: BootTime,
    notices: mpsc::UnboundedSender<Notice>,
    busiest: Busiest,
    /// How long it took until recalls were approved.
    approved: Histogram,
    recalled: u64,
    expired: u64,
}

impl State {
    pub fn new(
        config: Config,
        now: BootTime,
        grace: Option<Grace>,
        notices: mpsc::UnboundedSender<Notice>,
    ) -> Self {
        Self {
            core: Core::new(config, now, grace),
            waiters: HashMap::new(),
            lines: HashMap::new(),
            armed: now,
            notices,
            busiest: Busiest::new(now),
            approved: Histogram::default(),
            recalled: 0,
            expired: 0,
        }
    }

    /// Takes in an event and does all that follows from it.
    pub fn step(&mut self, progress: &Progress, now: BootTime, event: Event) -> Outcome {
        if let Event::Approve { session, recall } = &event
            && let Some(sent) = self.core.recall_sent(*session, *recall)
        {
            self.approved.add(now.since(sent));
        }
        if let Some(object) = asked_for(&event) {
            self.busiest.asked(now, object);
        }
        self.core.handle(now, event);
        let mut outcome = Outcome::default();
        while let Some(action) = self.core.poll_action() {
            self.act(progress, action, &mut outcome);
        }
        outcome
    }

    fn act(&mut self, progress: &Progress, action: Action, outcome: &mut Outcome) {
        match action {
            Action::Opened {
                standing, renewed, ..
            } => outcome.opened = Some(Opened { standing, renewed }),
            Action::Admitted { op, grants } => self.admit(progress, op, grants),
            Action::Finished { stamp, grants, .. } => outcome.finished = Some((stamp, grants)),
            Action::LockLost { op } => self.lock_lost(op),
            Action::Locked { op, answer } => self.locked(op, answer),
            Action::LockGranted { session, granted } => {
                self.push(session, &Push::LockGranted(granted));
            }
            Action::Recall { session, recall } => {
                self.recalled += 1;
                self.recall(session, recall);
            }
            Action::Expired { session } => {
                self.expired += 1;
                self.notice(Notice::Expired(session));
            }
            Action::GraceEnded => self.notice(Notice::GraceEnded),
        }
    }

    fn admit(&mut self, progress: &Progress, op: OpId, grants: Vec<Grant>) {
        let Some(waiter) = self.waiters.remove(&op) else {
            return;
        };
        // Whoever waited and is gone withdraws the operation itself.
        match waiter.wake {
            Wake::Read(wake) => drop(wake.send(Admission { grants })),
            Wake::Change(wake) => {
                let _ = wake.send(Ok(progress.begins()));
            }
            Wake::Lock(_) => {}
        }
    }

    fn lock_lost(&mut self, op: OpId) {
        if let Some(Wake::Change(wake)) = self.waiters.remove(&op).map(|waiter| waiter.wake) {
            let _ = wake.send(Err(LockLost));
        }
    }

    fn locked(&mut self, op: OpId, answer: LockAnswer) {
        if let Some(Wake::Lock(wake)) = self.waiters.remove(&op).map(|waiter| waiter.wake) {
            drop(wake.send(answer));
        }
    }

    fn recall(&mut self, session: SessionId, mut recall: Recall) {
        let line = self.lines.get(&session);
        if let Some(border) = line.and_then(|line| line.border.as_ref()) {
            border.give_recall(&mut recall);
        }
        self.push(session, &Push::Recall(recall));
    }

    /// Without a connection a recall stays open in the core and is sent when one comes; and who has waited for a lock asks
    /// for it again.
    fn push(&mut self, session: SessionId, push: &Push) {
        let Some(line) = self.lines.get(&session) else {
            return;
        };
        match OutFrame::new(push, bytes::Bytes::new()) {
            // A line that is gone is replaced by the client's next connection.
            Ok(frame) => drop(line.outbox.push(frame)),
            Err(error) => tracing::error!(%session, %error, "a recall can't be sent"),
        }
        if line.outbox.queued() > MAX_RECALLS_UNREAD {
            self.notice(Notice::Choked(session));
        }
    }

    fn notice(&self, notice: Notice) {
        // The server is ending if nobody listens.
        let _ = self.notices.send(notice);
    }

    /// Tells sessions that an object has lost its last name. Who doesn't read what is pushed is spared it: nothing waits for it.
    pub fn unlinked(&mut self, object: Handle, sessions: &[SessionId]) {
        for session in sessions {
            let line = self.lines.get(session);
            let reads = |line: &&Line| line.outbox.queued() <= MAX_RECALLS_UNREAD / 8;
            let told = line.filter(|line| line.features & UNLINKS != 0);
            let Some(line) = told.filter(reads) else {
                continue;
            };
            let border = line.border.as_ref();
            let shown = border.map_or(object, |border| border.outward(&object));
            self.push(*session, &Push::Unlinked(shown));
        }
    }

    pub fn connect(&mut self, session: SessionId, line: Line) {
        self.lines.insert(session, line);
        for recall in self.core.open_recalls(session) {
            self.recall(session, recall);
        }
    }

    pub fn disconnect(&mut self, session: SessionId, link: u64) {
        if self.lines.get(&session).is_some_and(|l| l.link == link) {
            self.lines.remove(&session);
        }
    }

    /// Whether the session speaks on this connection. What has come on an earlier one may be of an earlier
    /// session of the same number, whose recalls and stamps had the same numbers.
    pub fn speaks_on(&self, session: SessionId, link: u64) -> bool {
        self.lines.get(&session).is_some_and(|l| l.link == link)
    }

    pub fn wait(&mut self, op: OpId, waiter: Waiter) {
        self.waiters.insert(op, waiter);
    }

    /// Forgets an operation that will not be finished.
    pub fn withdraw(&mut self, progress: &Progress, now: BootTime, op: OpId) {
        self.waiters.remove(&op);
        self.stops(progress, op);
        self.step(progress, now, Event::Withdraw { op });
    }

    /// Notes that a change that may have been admitted doesn't run any longer.
    pub fn stops(&self, progress: &Progress, op: OpId) {
        if self.core.op_state(op) == Some(OpState::Running) {
            progress.ends();
        }
    }

    /// Nothing is renewed by an answer that has no connection to go to.
    pub fn renew(&mut self, now: BootTime, session: SessionId) -> bool {
        self.lines.contains_key(&session) && self.core.renew(now, session)
    }

    pub fn reclaim(
        &mut self,
        now: BootTime,
        session: SessionId,
        lease: Reclaimed,
    ) -> Result<(), ReclaimRefusal> {
        self.core.reclaim(now, session, lease)
    }

    pub fn reclaim_locks(
        &mut self,
        progress: &Progress,
        now: BootTime,
        (session, epoch): (SessionId, LockEpoch),
        files: Vec<FileLocks>,
    ) -> Vec<Handle> {
        let lost = self.core.reclaim_locks(now, session, epoch, files);
        self.step(progress, now, Event::Tick);
        lost
    }

    pub fn holds_locks(&self) -> bool {
        self.core.holds_locks()
    }

    pub fn holds_write(&self, session: SessionId, object: &Handle) -> bool {
        self.core.holds_write(session, object)
    }

    pub fn holds_data(&self, session: SessionId, object: &Handle) -> bool {
        self.core.holds_data(session, object)
    }

    pub fn in_grace(&self) -> bool {
        self.core.grace_until().is_some()
    }

    pub fn may_hold(&self, session: SessionId) -> bool {
        self.core.may_hold(session)
    }

    pub fn all_quiet(&self) -> bool {
        self.core.all_quiet()
    }

    pub fn all_given_back(&self) -> bool {
        self.core.all_given_back()
    }

    pub fn check_invariants(&self) -> Result<(), String> {
        self.core.check_invariants()
    }

    /// Whether the next deadline is earlier than the timer looks.
    pub fn rearm(&mut self) -> bool {
        let next = self.core.next_deadline();
        let earlier = next.is_some_and(|next| next < self.armed);
        if let (true, Some(next)) = (earlier, next) {
            self.armed = next;
        }
        earlier
    }

    /// How long the timer may sleep, but not longer than `most`.
    pub fn sleeps(&mut self, now: BootTime, most: Duration) -> Duration {
        let latest = now + most;
        self.armed = self
            .core
            .next_deadline()
            .map_or(latest, |at| at.min(latest));
        self.armed.left_at(now)
    }

    pub fn object(&self, now: BootTime, object: &Handle, by: SessionId) -> ObjectSnapshot {
        ObjectSnapshot {
            now,
            object: self.core.object(now, object, by, MAX_HOLDERS_TOLD),
            grace_until: self.core.grace_until(),
        }
    }

    pub fn snapshot(&mut self, now: BootTime) -> Snapshot {
        let busiest = self.busiest.last(now);
        let labelled = |waiting: Waiting| {
            let label = self.waiters.get(&waiting.op).map_or("", |w| w.label);
            (label, waiting)
        };
        Snapshot {
            now,
            sessions: self.core.sessions(),
            waiting: self.core.waiting().into_iter().map(labelled).collect(),
            term_zero: self.core.term_zero(),
            busiest,
            locks: self.core.locks(),
            grace_until: self.core.grace_until(),
            approved: self.approved.counts(),
            recalled: self.recalled,
            expired: self.expired,
        }
    }
}

/// What an operation that begins is about.
fn asked_for(event: &Event) -> Option<&Handle> {
    match event {
        Event::AdmitRead { items, .. } => items.first().map(|item| &item.object),
        Event::AdmitChange { touches, .. } => touches.first().map(|touch| &touch.object),
        _ => None,
    }
}
