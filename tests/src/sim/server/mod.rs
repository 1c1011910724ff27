//! The server process: the shipped lease core, table of accesses, answers of changes and intents, around
//! a host in memory. What must be durable is kept apart and survives.

mod changes;
mod durable;
mod journal;
mod life;
mod locks;
mod opens;
mod reads;

use super::clock::HostClock;
use super::cx::{Cx, Down, Ev, Up};
use super::host::Host;
use super::model::{CELL, DeedId, MS, Nanos, Obj};
use super::nemesis::Blow;
use super::net::{LinkId, Stream};
use bytes::Bytes;
use changes::Pending;
pub use durable::Durable;
use fsserver::interrupted::{ChangeId, Interrupted};
use fsserver::session::answers::Answers;
use fsserver::session::refused;
use leasefs_lease::server::{
    Action, Bouncing, Config, Core, Event, LockStatus, OpId, OpState, RecallStatus,
};
use leasefs_lease::time::{BootTime, lengthened};
use leasefs_protocol::control::{ToClient, ToServer};
use leasefs_protocol::limits::{MAX_FLUSH, RECALL_OVERDUE, RECALL_PATIENCE_MAX, SLOWEST_LINK};
use leasefs_protocol::{
    BootId, Caller, Change, Grant, Handle, LockEpoch, Numbered, OpenId, Query, Reply, Request,
    RequestFrame, RequestId, Seq, SessionId, Stamp, query,
};
pub use life::Ending;
use opens::Opens;
use reads::Read;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens within a life of the server.
#[derive(Clone, Copy, Debug)]
pub enum ServerEv {
    /// A deadline of the core.
    Tick,
    /// The next stage of an operation.
    Work(OpId),
    /// Sessions are looked over.
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
    change: Change,
    payload: Bytes,
    caller: Caller,
    dropped: Vec<Handle>,
    resent: bool,
    locked: Option<LockEpoch>,
}

impl Job {
    /// Callers have a user id for each change of names and attributes.
    fn deed(&self) -> Option<DeedId> {
        self.caller.uid.checked_sub(DEEDS).map(DeedId)
    }
}

/// User ids from here on are numbers of changes.
pub const DEEDS: u32 = 1_000_000;

#[derive(Debug)]
struct Session {
    changes: Answers<Job, Sink>,
    link: Option<LinkId>,
    ops: BTreeMap<Seq, OpId>,
    opens: Opens,
    birth: u64,
    /// Of the server's earlier life, and not done with reclaiming.
    reclaims: bool,
    idle_since: Nanos,
}

/// An operation in the core.
#[derive(Debug)]
enum Work {
    Read(Box<Read>),
    Change(Box<Pending>),
    Lock(locks::Asked),
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
    /// When an object is at term zero.
    pub bouncing: Bouncing,
    /// How long a session is kept for its client's return.
    pub courtesy: Nanos,
    /// Each session's operations have numbers of their own, whoever comes first.
    pub apart: bool,
    /// Optional features that it has.
    pub features: u64,
}

/// The server.
pub struct Server {
    /// Its host's clock.
    pub clock: HostClock,
    /// The storage host.
    pub host: Host,
    /// What survives.
    pub durable: Durable,
    /// How it is run.
    pub settings: Settings,
    /// Whether it runs.
    pub up: bool,
    /// Which life it is.
    pub life: u64,
    boot: BootId,
    started: Nanos,
    core: Core,
    sessions: BTreeMap<SessionId, Session>,
    works: BTreeMap<OpId, Work>,
    links: BTreeMap<LinkId, SessionId>,
    next_op: u64,
    next_ops: BTreeMap<SessionId, u64>,
    begun: u64,
    running: u64,
    armed: Option<Nanos>,
    ending: Option<Ending>,
    finished: Option<(Stamp, Vec<Grant>)>,
    opened: Option<(leasefs_lease::server::Standing, bool)>,
    interrupted: Interrupted,
    /// Those that are lost, and not journalled.
    lost: Arc<Mutex<Vec<ChangeId>>>,
    /// Changes that may have happened in an earlier life.
    repeats: BTreeSet<ChangeId>,
    /// Changes that wait for interrupted ones.
    parked: Vec<OpId>,
    /// It crashes in the middle of a change: for how long, and whether with its host.
    fuse: Option<(Nanos, bool)>,
}

impl Server {
    /// A server that has never run.
    pub fn new(clock: HostClock, host: Host, settings: Settings) -> Self {
        let core = Core::new(Config::default(), BootTime::ZERO, None);
        Self {
            clock,
            host,
            durable: Durable::default(),
            settings,
            up: false,
            life: 0,
            boot: BootId([1; 16]),
            started: 0,
            core,
            sessions: BTreeMap::new(),
            works: BTreeMap::new(),
            links: BTreeMap::new(),
            next_op: 0,
            next_ops: BTreeMap::new(),
            begun: 0,
            running: 0,
            armed: None,
            ending: None,
            finished: None,
            opened: None,
            interrupted: Interrupted::new(Vec::new(), Duration::ZERO, |_| ()),
            lost: Arc::default(),
            repeats: BTreeSet::new(),
            parked: Vec::new(),
            fuse: None,
        }
    }

    fn now(&self, cx: &Cx) -> BootTime {
        self.clock.boot(cx.now)
    }

    fn process(&self) -> BootId {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.life.to_be_bytes());
        BootId(id)
    }

    fn new_op(&mut self, session: SessionId) -> OpId {
        if self.settings.apart {
            let next = self.next_ops.entry(session).or_insert(0);
            *next += 1;
            let [.., low] = session.0;
            return OpId(u64::from(low) << 32 | *next);
        }
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
        // Looking at everything costs most of a step.
        if (cx.rng.is_still() || cx.rng.chance(5))
            && let Err(claim) = self.core.check_invariants()
        {
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
            Action::LockLost { op } => self.lock_lost(cx, op),
            Action::Locked { op, answer } => self.lock_decided(cx, op, answer),
            Action::LockGranted { session, granted } => self.lock_granted(cx, session, granted),
            Action::Recall { session, recall } => {
                cx.trace(None, || {
                    format!("server: recalls from {session}: {recall:?}")
                });
                cx.stats.recalls += 1;
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
        if grants.is_empty() {
            return;
        }
        let mut all = self.core.sessions().into_iter();
        if all.any(|s| s.session == session && s.denied_until.is_some()) {
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
                change.admitted(turn, grants);
            }
            Some(Work::Lock(_)) | None => return,
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
                Some(Work::Lock(_)) | None => {}
            },
            ServerEv::Sweep => self.sweep(cx),
            ServerEv::Quiet => self.look_whether_quiet(cx),
            ServerEv::Impatient => self.go_past_interrupted(cx),
        }
    }

    /// A message arrives.
    pub fn message(&mut self, cx: &mut Cx, link: LinkId, stream: Stream, up: Up) {
        if let Up::Control(ToServer::Hello(hello)) = up {
            self.hello(cx, link, &hello);
            return;
        }
        let Some(session) = self.links.get(&link).copied() else {
            return;
        };
        match up {
            Up::Control(message) => self.control(cx, link, session, message),
            Up::Request(frame, payload) => {
                let Stream::LaneUp(lane) = stream else { return };
                let frame = (*frame).clone();
                self.request(cx, session, (frame, payload), (link, lane));
            }
        }
    }

    fn control(&mut self, cx: &mut Cx, link: LinkId, session: SessionId, message: ToServer) {
        match message {
            ToServer::Hello(_) => {}
            ToServer::KeepAlive { number } => {
                self.note_round_trip(cx, link, session);
                let renews = self.renew(cx, session);
                let answer = ToClient::KeepAlive { number, renews };
                cx.down(link, Stream::ControlDown, Down::Control(answer));
            }
            ToServer::Approve(approvals) => {
                for approval in approvals {
                    self.close_opens(cx, session, &approval.closes);
                    let recall = approval.recall;
                    cx.trace(None, || format!("server: {session} approves {recall}"));
                    self.step(cx, Event::Approve { session, recall });
                }
            }
            ToServer::Release(releases) => {
                for release in releases {
                    cx.trace(Some(Obj::of(&release.object)), || {
                        format!("server: {session} releases {release:?}")
                    });
                    let event = Event::Release {
                        session,
                        object: release.object,
                        parts: release.parts,
                        seen: release.seen,
                    };
                    self.step(cx, event);
                }
            }
            ToServer::Held(files) => {
                cx.trace(None, || format!("server: {session} holds {files:?}"));
                self.step(cx, Event::Held { session, files });
            }
            ToServer::Cancel { seq } => self.cancel(cx, link, session, seq),
            ToServer::Reclaim(reclaim) => self.reclaim(cx, link, session, reclaim),
            ToServer::ReclaimDone => {
                cx.trace(None, || format!("server: {session} has reclaimed"));
                if let Some(s) = self.sessions.get_mut(&session) {
                    s.reclaims = false;
                }
                self.step(cx, Event::ReclaimDone { session });
                self.end_unclaimed(cx, |of| of == session);
                self.reap(cx);
            }
            ToServer::Goodbye => self.goodbye(cx, session),
        }
    }

    fn request(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        (frame, payload): (RequestFrame, Bytes),
        (link, lane): (LinkId, u8),
    ) {
        cx.stats.requests += 1;
        // What comes now is for the server's next life.
        if self.ending.is_some() {
            return;
        }
        let RequestFrame {
            id,
            low_water,
            caller,
            request,
        } = frame;
        if let Some(s) = self.sessions.get_mut(&session)
            && s.changes.low_water(low_water)
        {
            s.opens.drop_unclaimed(low_water);
            self.durable.low_water(session, low_water);
            self.reap(cx);
        }
        let renews = self.renew(cx, session);
        let sink = Sink {
            link,
            lane,
            id,
            renews,
        };
        match request {
            Request::Query(query) => {
                cx.trace(Some(object_of_query(self, session, &query)), || {
                    format!("server: {session} asks {id} {query:?}")
                });
                self.ask(cx, session, sink, query);
            }
            Request::Change(numbered, change) => {
                cx.trace(Some(object_of_change(self, session, &change)), || {
                    let Numbered {
                        seq, after, resent, ..
                    } = &numbered;
                    format!("server: {session} asks {id} {seq} {resent} {after:?} {change:?}")
                });
                let job = Job {
                    change,
                    payload,
                    caller,
                    dropped: numbered.dropped.clone(),
                    resent: numbered.resent,
                    locked: numbered.locked,
                };
                self.close_opens(cx, session, &numbered.closed);
                self.arrive(cx, session, sink, &numbered, job);
            }
        }
    }

    /// Nothing is renewed by an answer that has no connection to go to.
    fn renew(&mut self, cx: &mut Cx, session: SessionId) -> bool {
        let now = self.now(cx);
        let connected = self
            .sessions
            .get(&session)
            .is_some_and(|s| s.link.is_some());
        connected && self.core.renew(now, session)
    }

    fn note_round_trip(&mut self, cx: &mut Cx, link: LinkId, session: SessionId) {
        let rtt = Duration::from_nanos(cx.net.round_trip(link));
        self.step(cx, Event::RoundTrip { session, rtt });
    }

    fn send(&self, cx: &mut Cx, sink: Sink, mut reply: Reply, payload: Bytes) {
        reply.id = sink.id;
        reply.renews = sink.renews;
        let answer = Down::Reply(Box::new(reply), payload);
        cx.down(sink.link, Stream::LaneDown(sink.lane), answer);
    }

    /// Takes a waiting or running operation out of the core.
    fn withdraw(&mut self, cx: &mut Cx, op: OpId) {
        if self.works.remove(&op).is_none() {
            return;
        }
        if self.core.op_state(op) == Some(OpState::Running) {
            self.running -= 1;
        }
        self.step(cx, Event::Withdraw { op });
    }

    fn take_back(&mut self, cx: &mut Cx, session: SessionId, grants: &[Grant]) {
        for grant in grants {
            let (object, parts) = (grant.object, grant.parts);
            self.step(
                cx,
                Event::TakeBack {
                    session,
                    object,
                    parts,
                },
            );
        }
    }

    fn close_link(&mut self, cx: &mut Cx, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.idle_since = cx.moment();
        if let Some(link) = session.link.take() {
            self.links.remove(&link);
            cx.net.cut(link, cx.now, cx.now + MS);
            let client = cx.net.client(link);
            let noticed = cx.now + 2 * MS;
            cx.at(noticed, Ev::Blow(Blow::Lost(client, link)));
        }
    }

    /// A client has ended a connection.
    pub fn link_ends(&mut self, cx: &mut Cx, link: LinkId) {
        if let Some(id) = self.links.remove(&link)
            && let Some(session) = self.sessions.get_mut(&id)
            && session.link == Some(link)
        {
            session.link = None;
            session.idle_since = cx.moment();
            self.drop_reads(cx, link);
        }
    }

    fn close_opens(&mut self, cx: &mut Cx, session: SessionId, opens: &[leasefs_protocol::OpenId]) {
        if opens.is_empty() {
            return;
        }
        if let Some(s) = self.sessions.get_mut(&session) {
            s.opens.close(opens);
        }
        self.reap(cx);
    }

    /// Objects without a name that nobody has open, or may claim to have, go.
    fn reap(&mut self, cx: &mut Cx) {
        if self.sessions.values().any(|s| s.reclaims) {
            return;
        }
        for object in self.host.orphans() {
            if !self.sessions.values().any(|s| s.opens.has(object)) {
                cx.trace(Some(object), || "host: removed".into());
                self.host.remove(object);
                let object = object.handle();
                self.step(cx, Event::Gone { object });
            }
        }
    }

    /// What is true whenever it is looked over: how long anybody can wait for anybody.
    pub fn audit(&self, cx: &mut Cx) {
        if !self.up {
            return;
        }
        let now = self.now(cx);
        let term = lengthened(self.settings.term, self.settings.drift_ppm);
        let slack = Duration::from_millis(50);
        let bytes = self.host.used() as u64 * CELL;
        let flush = Duration::from_millis(bytes * 1_000 / SLOWEST_LINK).min(MAX_FLUSH);
        for open in self.core.recalls() {
            let patience = RECALL_OVERDUE.max(RECALL_PATIENCE_MAX);
            // Who flushes is renewed for a further term, and for as long as the slowest link needs.
            let ends = open.sent + patience + self.settings.term + flush + term;
            let ends = ends.max(self.durable.grace_ends()) + slack;
            if ends.has_come(now) {
                cx.judge.accuse(None, || {
                    format!("a recall has been open for too long: {open:?}")
                });
            }
        }
    }

    /// Whether some session may write again what a crash of the host has undone.
    pub fn may_write(&self, object: Obj) -> bool {
        let handle = object.handle();
        !self.up
            || self.core.grace_until().is_some()
            || self
                .sessions
                .keys()
                .any(|session| self.core.holds_write(*session, &handle))
    }

    /// All of its state, for telling states apart. What of interrupted changes isn't settled shows in what
    /// is kept of each.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        self.core.hash(&mut digest.0);
        (self.up, self.life, self.begun, self.running).hash(&mut digest.0);
        let state = (&self.sessions, &self.works, &self.links, &self.next_ops);
        let rest = (&self.repeats, &self.parked, &self.durable);
        // Hashing can't fail.
        let _ = write!(digest, "{state:?} {rest:?}");
        self.host.digest(&mut digest);
        digest.0.finish()
    }

    /// What is taken back and not approved.
    pub fn recalls(&self) -> Vec<RecallStatus> {
        self.core.recalls()
    }

    /// Whether a session's leases are alive.
    pub fn is_alive(&self, id: SessionId) -> bool {
        let mut all = self.core.sessions().into_iter();
        self.up && all.any(|s| s.session == id && s.expires.is_some())
    }

    /// Until when a session's leases are kept, or may be claimed back; `None` if there is nobody to say.
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

    /// Leases of all sessions.
    pub fn leases(&self) -> usize {
        self.core.lease_count()
    }

    /// Locks that are held or waited for.
    pub fn locks(&self) -> Vec<LockStatus> {
        self.core.locks()
    }

    /// Opens of a session.
    pub fn opens(&self, id: SessionId) -> usize {
        self.sessions.get(&id).map_or(0, |s| s.opens.len())
    }

    /// What waits, for people.
    pub fn describe(&self) -> String {
        format!(
            "waiting: {:#?}\nrecalls: {:#?}\nlocked: {:#?}\nsessions: {:#?}\nworks: {:#?}",
            self.core.waiting(),
            self.core.recalls(),
            self.core.locks(),
            self.core.sessions(),
            self.works.keys().collect::<Vec<_>>()
        )
    }
}

/// Hashes what is written.
#[derive(Default)]
struct Digest(DefaultHasher);

impl std::fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The object that a query is about, for the trace.
fn object_of_query(server: &Server, session: SessionId, query: &Query) -> Obj {
    let open = match query {
        Query::Read(query::Read { open, .. })
        | Query::Commit(query::Commit { open, .. })
        | Query::ReadDir(query::ReadDir { open, .. }) => Some(*open),
        _ => None,
    };
    object_of(server, session, query.handle(), open)
}

/// The object that a change is about, for the trace.
fn object_of_change(server: &Server, session: SessionId, change: &Change) -> Obj {
    let open = match change {
        Change::Write(write) => Some(write.open),
        _ => None,
    };
    object_of(server, session, change.handles().next(), open)
}

fn object_of(
    server: &Server,
    session: SessionId,
    handle: Option<&Handle>,
    open: Option<OpenId>,
) -> Obj {
    if let Some(handle) = handle {
        return Obj::of(handle);
    }
    let session = server.sessions.get(&session);
    let open = session.zip(open).and_then(|(s, open)| s.opens.get(open));
    open.map_or(Obj(0), |open| open.object)
}
