//! The server process: the shipped lease core, table of accesses and answers of changes, around a
//! store in memory. What must be durable is kept apart and survives.

mod changes;
mod interrupted;
mod journal;
mod life;
mod reads;

use super::bug::Bug;
use super::clock::HostClock;
use super::cx::{Cx, Ev};
use super::model::{Deed, DeedId, Down, Frame, MS, Nanos, Payload, Up, What};
use super::net::{LinkId, Stream};
use super::store::Store;
use changes::Change;
use fsserver::interrupted::{ChangeId, Interrupted};
use fsserver::session::answers::Answers;
use leasefs_lease::server::{Action, Config, Core, Event, OpId};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::RECALL_OVERDUE;
use leasefs_protocol::{BootId, Grant, Handle, Refusal, Reply, RequestId, Seq, SessionId, Stamp};
pub use life::{Durable, Ending};
use reads::Read;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What happens within a life of the server.
#[derive(Clone, Copy, Debug)]
pub enum ServerEv {
    /// A deadline of the core.
    Tick,
    /// The next stage of an operation.
    Work(OpId),
    /// Sessions without connection are looked over.
    Sweep,
    /// Whether the orderly end may come.
    Quiet,
    /// Interrupted changes are waited for no longer.
    Impatient,
}

/// Where an answer goes.
#[derive(Clone, Copy, Debug)]
pub struct Sink {
    link: LinkId,
    lane: u8,
    id: RequestId,
    /// Counted from when the request came: whoever is gone since then is not renewed by its answer.
    renews: bool,
}

/// A change that has arrived and not run.
#[derive(Clone, Debug)]
pub struct Job {
    id: DeedId,
    deed: Deed,
    dropped: Vec<Handle>,
}

#[derive(Debug)]
struct Session {
    changes: Answers<Job, Sink>,
    link: Option<LinkId>,
    ops: BTreeMap<Seq, OpId>,
    /// Of the server's earlier life, and not done with reclaiming.
    reclaims: bool,
}

/// An operation in the core.
#[derive(Debug)]
enum Work {
    Read(Read),
    Change(Change),
}

/// A moment in the life of the store, as far as changes go.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    quiet: bool,
    begun: u64,
}

impl Mark {
    fn holds_at(self, later: Mark) -> bool {
        self.quiet && self.begun == later.begun
    }
}

/// How the server is run; may be another in each life.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The term.
    pub term: Duration,
    /// The drift bound.
    pub drift_ppm: u32,
    /// Leases of a session.
    pub max_leases: usize,
}

/// The server.
pub struct Server {
    /// Its host's clock.
    pub clock: HostClock,
    /// The storage host.
    pub store: Store,
    /// What survives.
    pub durable: Durable,
    /// How it is run.
    pub settings: Settings,
    /// Whether it runs.
    pub up: bool,
    /// Which life it is.
    pub life: u64,
    host: BootId,
    started: Nanos,
    core: Core,
    sessions: BTreeMap<SessionId, Session>,
    works: BTreeMap<OpId, Work>,
    links: BTreeMap<LinkId, SessionId>,
    next_op: u64,
    begun: u64,
    running: u64,
    armed: Option<Nanos>,
    ending: Option<Ending>,
    finished: Option<(Stamp, Vec<Grant>)>,
    opened: Option<(leasefs_lease::server::Standing, bool)>,
    interrupted: Interrupted,
    /// Changes that may have happened in an earlier life.
    repeats: BTreeSet<ChangeId>,
    /// Changes that wait for interrupted ones.
    parked: Vec<OpId>,
    /// It crashes in the middle of a change: for how long, and whether with its host.
    fuse: Option<(Nanos, bool)>,
}

impl Server {
    /// A server that has never run.
    pub fn new(clock: HostClock, settings: Settings) -> Self {
        let core = Core::new(Config::default(), BootTime::ZERO, None);
        Self {
            clock,
            store: Store::new(),
            durable: Durable::default(),
            settings,
            up: false,
            life: 0,
            host: BootId([1; 16]),
            started: 0,
            core,
            sessions: BTreeMap::new(),
            works: BTreeMap::new(),
            links: BTreeMap::new(),
            next_op: 0,
            begun: 0,
            running: 0,
            armed: None,
            ending: None,
            finished: None,
            opened: None,
            interrupted: Interrupted::new(Vec::new(), Duration::ZERO),
            repeats: BTreeSet::new(),
            parked: Vec::new(),
            fuse: None,
        }
    }

    fn now(&self, cx: &Cx) -> BootTime {
        self.clock.at(cx.now)
    }

    fn process(&self) -> BootId {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.life.to_be_bytes());
        BootId(id)
    }

    fn new_op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    fn mark(&self) -> Mark {
        Mark {
            quiet: self.running == 0,
            begun: self.begun,
        }
    }

    fn later(&self, cx: &mut Cx, wait: Nanos, ev: ServerEv) {
        cx.after(wait, Ev::Server(self.life, ev));
    }

    /// Takes in an event and does all that follows from it.
    fn step(&mut self, cx: &mut Cx, event: Event) {
        let now = self.now(cx);
        self.core.handle(now, event);
        self.settle(cx);
    }

    fn settle(&mut self, cx: &mut Cx) {
        while let Some(action) = self.core.poll_action() {
            self.act(cx, action);
        }
        if let Err(claim) = self.core.check_invariants() {
            cx.judge.accuse(None, || format!("the lease core: {claim}"));
        }
        let Some(deadline) = self.core.next_deadline() else {
            return;
        };
        let due = self.clock.when(deadline);
        if self.armed.is_none_or(|armed| due < armed || armed < cx.now) {
            self.armed = Some(due);
            cx.at(due, Ev::Server(self.life, ServerEv::Tick));
        }
    }

    fn act(&mut self, cx: &mut Cx, action: Action) {
        match action {
            Action::Opened {
                standing, renewed, ..
            } => self.opened = Some((standing, renewed)),
            Action::Admitted { op, grants } => self.admitted(cx, op, grants),
            Action::Finished { stamp, grants, .. } => self.finished = Some((stamp, grants)),
            Action::Recall { session, recall } => {
                let link = self.sessions.get(&session).and_then(|s| s.link);
                if let Some(link) = link {
                    cx.down(link, Stream::Push, Down::Recall(recall));
                }
            }
            Action::Expired { session } => {
                cx.stats.expired += 1;
                cx.trace(None, || format!("server: leases of {session} expire"));
                cx.judge.lease_ended(cx.now, |of, _| of == session);
                self.close_link(cx, session);
            }
            Action::GraceEnded => {
                cx.trace(None, || "server: grace ends".into());
                self.grace_has_ended(cx);
            }
        }
    }

    /// Who has held others up gets no leases for a while.
    fn check_conduct(&self, cx: &mut Cx, session: SessionId, grants: &[Grant]) {
        let mut all = self.core.sessions().into_iter();
        let denied = all.any(|s| s.session == session && s.denied_until.is_some());
        if denied && !grants.is_empty() {
            cx.judge.accuse(None, || {
                format!("{session} is denied leases and granted {grants:?}")
            });
        }
    }

    fn admitted(&mut self, cx: &mut Cx, op: OpId, grants: Vec<Grant>) {
        if let Some(Work::Read(read)) = self.works.get(&op) {
            self.check_conduct(cx, read.session(), &grants);
        }
        match self.works.get_mut(&op) {
            Some(Work::Read(read)) => read.admitted(grants),
            Some(Work::Change(change)) => {
                let turn = match change.is_read() {
                    true => 0,
                    false => {
                        self.running += 1;
                        self.begun += 1;
                        self.begun
                    }
                };
                change.admitted(turn);
            }
            None => return,
        }
        let wait = cx.short(3 * MS);
        self.later(cx, wait, ServerEv::Work(op));
    }

    /// Something of this life is due.
    pub fn happens(&mut self, cx: &mut Cx, ev: ServerEv) {
        match ev {
            ServerEv::Tick => {
                if self.armed.is_some_and(|armed| armed <= cx.now) {
                    self.armed = None;
                }
                self.step(cx, Event::Tick);
            }
            ServerEv::Work(op) => match self.works.get(&op) {
                Some(Work::Read(_)) => self.go_on_reading(cx, op),
                Some(Work::Change(_)) => self.go_on_changing(cx, op),
                None => {}
            },
            ServerEv::Sweep => self.sweep(cx),
            ServerEv::Quiet => self.look_whether_quiet(cx),
            ServerEv::Impatient => self.go_past_interrupted(cx),
        }
    }

    /// A message arrives.
    pub fn message(&mut self, cx: &mut Cx, link: LinkId, stream: Stream, up: Up) {
        if let Up::Hello { session, drift_ppm } = up {
            self.hello(cx, link, session, drift_ppm);
            return;
        }
        let Some(session) = self.links.get(&link).copied() else {
            return;
        };
        match up {
            Up::Hello { .. } => {}
            Up::KeepAlive(number) => {
                self.note_round_trip(cx, link, session);
                let renews = self.renew(cx, session);
                let answer = Down::KeepAlive { number, renews };
                cx.down(link, Stream::ControlDown, answer);
            }
            Up::Approve(recalls) => {
                for recall in recalls {
                    cx.trace(None, || format!("server: {session} approves {recall}"));
                    self.step(cx, Event::Approve { session, recall });
                }
            }
            Up::Release(releases) => {
                for release in releases {
                    let event = Event::Release {
                        session,
                        object: release.object,
                        parts: release.parts,
                        seen: release.seen,
                    };
                    self.step(cx, event);
                }
            }
            Up::Cancel(seq) => self.cancel(cx, link, session, seq),
            Up::Reclaim(leases) => self.reclaim(cx, link, session, leases),
            Up::ReclaimDone => {
                if let Some(s) = self.sessions.get_mut(&session) {
                    s.reclaims = false;
                }
                self.step(cx, Event::ReclaimDone { session });
                self.end_unclaimed(cx, |of| of == session);
            }
            Up::Goodbye => self.goodbye(cx, session),
            Up::Request(frame) => {
                let Stream::LaneUp(lane) = stream else { return };
                self.request(cx, session, frame, (link, lane));
            }
        }
    }

    fn request(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        frame: Frame,
        (link, lane): (LinkId, u8),
    ) {
        // What comes now is for the server's next life; but approvals may wait for answers.
        if self.ending.is_some() && frame.change.is_some() {
            return;
        }
        if let Some(s) = self.sessions.get_mut(&session)
            && s.changes.low_water(frame.low)
        {
            self.durable.low_water(session, frame.low);
        }
        let sink = Sink {
            link,
            lane,
            id: frame.id,
            renews: self.renew(cx, session),
        };
        match (frame.what, frame.change) {
            (What::Ask(ask), _) => self.ask(cx, session, sink, ask),
            (What::Deed(id, deed), Some(change)) => {
                let dropped = change.dropped.clone();
                self.arrive(cx, session, sink, &change, Job { id, deed, dropped });
            }
            (What::Deed(..), None) => {}
        }
    }

    /// Nothing is renewed by an answer that has no connection to go to.
    fn renew(&mut self, cx: &mut Cx, session: SessionId) -> bool {
        let now = self.now(cx);
        let connected = self
            .sessions
            .get(&session)
            .is_some_and(|s| s.link.is_some());
        let renewed = connected && self.core.renew(now, session);
        cx.trace(None, || format!("server: renews {session}: {renewed}"));
        renewed
    }

    fn note_round_trip(&mut self, cx: &mut Cx, link: LinkId, session: SessionId) {
        let rtt = Duration::from_nanos(cx.net.round_trip(link));
        self.step(cx, Event::RoundTrip { session, rtt });
    }

    fn send(&self, cx: &mut Cx, sink: Sink, mut reply: Reply, payload: Payload) {
        reply.id = sink.id;
        reply.renews = sink.renews;
        let answer = Down::Reply(Box::new(reply), payload);
        cx.down(sink.link, Stream::LaneDown(sink.lane), answer);
    }

    /// Takes a waiting or running operation out of the core.
    fn withdraw(&mut self, cx: &mut Cx, op: OpId) {
        use leasefs_lease::server::OpState;
        if self.works.remove(&op).is_none() {
            return;
        }
        if self.core.op_state(op) == Some(OpState::Running) {
            self.running -= 1;
        }
        self.step(cx, Event::Withdraw { op });
    }

    fn close_link(&mut self, cx: &mut Cx, id: SessionId) {
        let link = self.sessions.get_mut(&id).and_then(|s| s.link.take());
        if let Some(link) = link {
            self.links.remove(&link);
            cx.net.cut(link, cx.now, cx.now + MS);
            let client = cx.net.client(link);
            cx.at(
                cx.now + 2 * MS,
                Ev::Blow(super::nemesis::Blow::Lost(client, link)),
            );
            // Reads of the link are dropped by whoever comes next: answers find no connection.
        }
    }

    /// What is true whenever it is looked over: how long anybody can wait for anybody.
    pub fn audit(&self, cx: &mut Cx, farthest: Nanos) {
        if !self.up {
            return;
        }
        let now = self.now(cx);
        let term = leasefs_lease::time::lengthened(self.settings.term, self.settings.drift_ppm);
        let slack = Duration::from_millis(50);
        for open in self.core.recalls() {
            let patience = RECALL_OVERDUE.max(Duration::from_nanos(4 * 3 * farthest));
            // Who flushes is renewed for a further term.
            let ends = open.sent + patience + self.settings.term + term;
            let ends = ends.max(self.durable.grace_ends()) + slack;
            if ends.has_come(now) {
                cx.judge.accuse(None, || {
                    format!("a recall has been open for too long: {open:?}")
                });
            }
        }
    }

    /// Until when the server keeps its promises to a session; `None` where it has none to keep.
    pub fn promises_until(&self, id: SessionId) -> Option<Nanos> {
        if !self.up {
            return None;
        }
        let all = self.core.sessions();
        let known = all.iter().find(|s| s.session == id);
        let expires = known.map(|s| s.expires.map_or(0, |at| self.clock.when(at)));
        if !self.sessions.get(&id).is_some_and(|s| s.reclaims) {
            return expires;
        }
        // After an orderly end there is none, and nothing that could be trusted in.
        let grace = self.core.grace_until()?;
        expires.max(Some(self.clock.when(grace)))
    }

    /// Whether a session's leases are alive.
    pub fn is_alive(&self, id: SessionId) -> bool {
        let mut all = self.core.sessions().into_iter();
        self.up && all.any(|s| s.session == id && s.expires.is_some())
    }

    /// Leases of all sessions.
    pub fn leases(&self) -> usize {
        self.core.lease_count()
    }

    /// What waits, for people.
    pub fn describe(&self) -> String {
        format!(
            "waiting: {:#?}\nrecalls: {:#?}\nsessions: {:#?}\nworks: {:#?}",
            self.core.waiting(),
            self.core.recalls(),
            self.core.sessions(),
            self.works
        )
    }
}

fn refused(refusal: Refusal) -> Reply {
    fsserver::session::refused(refusal)
}
