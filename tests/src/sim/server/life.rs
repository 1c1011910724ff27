//! Beginning and end of a server's life, and of connections and sessions in it.

use super::journal::Record;
use super::{Bug, Server, ServerEv, Session};
use crate::sim::cx::Cx;
use crate::sim::model::{Down, MS, Nanos, Obj, Welcome};
use crate::sim::nemesis::Blow;
use crate::sim::net::{LinkId, Stream};
use fsserver::interrupted::ChangeId;
use fsserver::session::answers::Answers;
use leasefs_lease::server::{
    Config, Core, Event, Grace, LoggedWrites, Reclaimed, Standing as CoreStanding,
};
use leasefs_lease::time::{BootTime, lengthened};
use leasefs_protocol::control::{ReclaimLease, Standing};
use leasefs_protocol::{BootId, Handle, KeyHash, Mode, Refusal, Response, Seq, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Each mount has a key of its own.
fn client_of(session: SessionId) -> KeyHash {
    let [.., number] = session.0;
    KeyHash([number; 32])
}

/// A session on record.
#[derive(Clone, Debug, Default)]
struct Recorded {
    leased: bool,
    changes: BTreeMap<Seq, Record>,
    /// It may send changes again that ran before the host crashed.
    crashed: bool,
    /// The lowest change that has begun since.
    first: Option<Seq>,
}

/// What survives the process (and, but for what is journalled of changes and Write leases, the host).
#[derive(Clone, Debug, Default)]
pub struct Durable {
    max_term: Duration,
    drift_ppm: u32,
    clean: bool,
    sessions: BTreeMap<SessionId, Recorded>,
    /// Write leases; whether they were asked for since it was last looked whether they stand.
    writes: BTreeMap<(SessionId, Obj), bool>,
    /// The host has crashed, and leases of before may be alive.
    host_crashed: bool,
    /// Of the present life.
    grace_ends: BootTime,
}

impl Durable {
    pub(super) fn note(&mut self, (session, seq): ChangeId, record: Record) {
        if let Some(recorded) = self.sessions.get_mut(&session) {
            recorded.changes.insert(seq, record);
            recorded.first = Some(recorded.first.map_or(seq, |first| first.min(seq)));
        }
    }

    /// Of a change that has begun.
    pub(super) fn note_answer(&mut self, change: ChangeId, answer: Result<Response, Refusal>) {
        let recorded = self.sessions.get_mut(&change.0);
        let record = recorded.and_then(|r| r.changes.get_mut(&change.1));
        if let Some(record) = record {
            *record = Record::Answered(answer);
        }
    }

    pub(super) fn undone(&mut self, (session, seq): ChangeId) {
        if let Some(recorded) = self.sessions.get_mut(&session) {
            recorded.changes.remove(&seq);
        }
    }

    pub(super) fn journalled(&self, session: SessionId) -> Vec<(Seq, Record)> {
        let recorded = self.sessions.get(&session);
        let changes = recorded.into_iter().flat_map(|r| &r.changes);
        changes
            .map(|(seq, record)| (*seq, record.clone()))
            .collect()
    }

    pub(super) fn low_water(&mut self, session: SessionId, low: Seq) {
        if let Some(recorded) = self.sessions.get_mut(&session) {
            recorded.changes.retain(|seq, _| *seq >= low);
            recorded.crashed &= recorded.first.is_none_or(|first| first > low);
        }
    }

    pub(super) fn write_lease(&mut self, session: SessionId, object: Obj) {
        self.writes.insert((session, object), true);
    }

    fn host_crashed(&mut self) {
        self.host_crashed = true;
        self.writes.clear();
        for recorded in self.sessions.values_mut() {
            recorded.changes.clear();
            (recorded.crashed, recorded.first) = (true, None);
        }
    }

    /// When the present life's grace ends at the latest.
    pub(super) fn grace_ends(&self) -> BootTime {
        self.grace_ends
    }
}

/// An orderly end under way.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// It waits no longer.
    gives_up: Nanos,
    /// When the server starts again.
    down_for: Nanos,
}

/// How often sessions without connection are looked over.
const SWEEP: Nanos = 700 * MS;
/// How long an orderly end waits for recalls.
const LONGEST_END: Nanos = 2_000 * MS;

impl Server {
    /// A new life begins. `host_crashed`: of the host, too.
    pub fn start(&mut self, cx: &mut Cx, host_crashed: bool) {
        self.life += 1;
        self.started = cx.now;
        self.up = true;
        if host_crashed {
            self.host = BootId([self.life as u8; 16]);
            self.store.crash(cx);
        }
        let now = self.now(cx);
        if host_crashed {
            self.durable.host_crashed();
        } else if cx.has(Bug::TrustSecondCrash) {
            self.durable.host_crashed = false;
        }
        let trusts = !self.durable.host_crashed || cx.has(Bug::TrustAfterHostCrash);
        let grace = self.grace(trusts).filter(|_| !cx.has(Bug::NoGrace));
        let known = &mut self.durable;
        known.grace_ends = match grace {
            Some(_) => now + lengthened(known.max_term, known.drift_ppm),
            None => now,
        };
        known.clean = false;
        known.max_term = known.max_term.max(self.settings.term);
        known.drift_ppm = known.drift_ppm.max(self.settings.drift_ppm);
        let config = Config {
            term: self.settings.term,
            drift_ppm: self.settings.drift_ppm,
            max_leases_per_client: self.settings.max_leases,
            probation: self.settings.term / 2,
            max_probation: self.settings.term,
            ..Config::default()
        };
        cx.trace(None, || {
            format!("server: life {} begins, {grace:?}", self.life)
        });
        self.core = Core::new(config, now, grace);
        self.restore_sessions(cx);
        (self.begun, self.running) = (0, 0);
        self.settle(cx);
        if self.core.grace_until().is_none() {
            self.grace_has_ended(cx);
        }
        self.later(cx, SWEEP, ServerEv::Sweep);
    }

    fn restore_sessions(&mut self, cx: &mut Cx) {
        let ids: Vec<SessionId> = self.durable.sessions.keys().copied().collect();
        let mut repeats = Vec::new();
        for id in ids {
            let crashed = self.durable.sessions.get(&id).is_some_and(|r| r.crashed);
            let mut changes = Answers::after_restart(self.recover(cx, id, &mut repeats));
            if crashed && !cx.has(Bug::RunAfterHostCrash) {
                changes = changes.and_host_crash();
            }
            let session = Session {
                changes,
                link: None,
                ops: BTreeMap::new(),
                reclaims: true,
            };
            self.sessions.insert(id, session);
        }
        self.begin_interrupted(cx, repeats);
    }

    /// No lease of an earlier life is left but those that were reclaimed, and everything is seen
    /// as it is.
    pub(super) fn grace_has_ended(&mut self, cx: &mut Cx) {
        self.durable.host_crashed = false;
        self.end_unclaimed(cx, |_| true);
        cx.judge.reveal(cx.now);
        self.give_up_absent(cx);
    }

    /// Leases of these sessions that don't stand have ended.
    pub(super) fn end_unclaimed(&self, cx: &mut Cx, whose: impl Fn(SessionId) -> bool) {
        let core = &self.core;
        let stands = |session, object: Obj| core.holds_write(session, &object.handle());
        cx.judge.lease_ended(cx.now, |session, object| {
            whose(session) && !stands(session, object)
        });
    }

    /// Whether an orderly end is under way.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// When the present life began.
    pub fn started_at(&self) -> Nanos {
        self.started
    }

    fn grace(&self, trusts: bool) -> Option<Grace> {
        let known = &self.durable;
        let leased = known.sessions.iter().filter(|(_, s)| s.leased);
        let sessions: Vec<SessionId> = leased.map(|(id, _)| *id).collect();
        if known.clean || sessions.is_empty() {
            return None;
        }
        let logged = known.writes.keys();
        let writes = match trusts {
            true => LoggedWrites::Trusted(logged.map(|(id, o)| (*id, o.handle())).collect()),
            false => LoggedWrites::Unknown,
        };
        Some(Grace {
            max_term: known.max_term,
            drift_ppm: known.drift_ppm,
            sessions,
            writes,
        })
    }

    /// The process ends in the middle of some change.
    pub fn crash_amid(&mut self, down_for: Nanos, host_crashed: bool) {
        self.fuse = Some((down_for, host_crashed));
    }

    pub(super) fn may_crash(&mut self, cx: &mut Cx) {
        if cx.rng.chance(50)
            && let Some((down_for, host_crashed)) = self.fuse.take()
        {
            let crash = Blow::Crash {
                down_for,
                host_crashed,
                amid: false,
            };
            cx.after(0, super::Ev::Blow(crash));
        }
    }

    /// The process ends here and now.
    pub fn crash(&mut self, cx: &mut Cx) {
        cx.trace(None, || "server: ends".into());
        self.up = false;
        self.ending = None;
        self.fuse = None;
        self.works.clear();
        self.parked.clear();
        self.armed = None;
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            let last = cx.now + cx.short(20 * MS);
            cx.net.cut(link, cx.now, last);
        }
        self.links.clear();
        self.sessions.clear();
    }

    /// Asks everything back, then ends; starts again `down_for` later.
    pub fn shut_down(&mut self, cx: &mut Cx, down_for: Nanos) {
        self.ending = Some(Ending {
            gives_up: cx.now + LONGEST_END,
            down_for,
        });
        cx.trace(None, || "server: orderly end begins".into());
        self.step(cx, Event::Shutdown);
        self.later(cx, 5 * MS, ServerEv::Quiet);
    }

    pub(super) fn look_whether_quiet(&mut self, cx: &mut Cx) {
        let Some(ending) = self.ending else {
            return;
        };
        self.step(cx, Event::Tick);
        let quiet = self.core.all_quiet();
        if !quiet && cx.now < ending.gives_up {
            self.later(cx, 5 * MS, ServerEv::Quiet);
            return;
        }
        self.durable.clean = quiet;
        self.crash(cx);
        cx.after(
            ending.down_for,
            super::Ev::Blow(Blow::Start {
                host_crashed: false,
            }),
        );
    }

    pub(super) fn hello(&mut self, cx: &mut Cx, link: LinkId, id: SessionId, drift_ppm: u32) {
        if self.ending.is_some() {
            return;
        }
        let recorded = self.durable.sessions.entry(id).or_default();
        recorded.leased = true;
        let session = self.sessions.entry(id).or_insert_with(|| Session {
            changes: Answers::default(),
            link: None,
            ops: BTreeMap::new(),
            reclaims: false,
        });
        let old = session.link.take();
        drop(session.changes.fence());
        self.links.insert(link, id);
        if let Some(old) = old {
            self.links.remove(&old);
            cx.net.cut(old, cx.now, cx.now + MS);
        }
        let ended = self.dead_links();
        for link in ended {
            self.drop_reads(cx, link);
        }
        // What is recalled by this very step is repeated with the rest on the new connection.
        self.step(
            cx,
            Event::SessionOpened {
                session: id,
                client: client_of(id),
                drift_ppm,
            },
        );
        if let Some(session) = self.sessions.get_mut(&id) {
            session.link = Some(link);
        }
        for recall in self.core.open_recalls(id) {
            cx.down(link, Stream::Push, Down::Recall(recall));
        }
        self.note_round_trip(cx, link, id);
        let welcome = self.welcome(id, drift_ppm);
        cx.trace(None, || format!("server: {id} says hello: {welcome:?}"));
        cx.down(link, Stream::ControlDown, Down::Welcome(welcome));
    }

    fn welcome(&mut self, id: SessionId, drift_ppm: u32) -> Welcome {
        let (standing, renews) = self.opened.take().unwrap_or((CoreStanding::New, false));
        let reclaims = self.sessions.get(&id).is_some_and(|s| s.reclaims);
        let (standing, renews) = match (reclaims, standing) {
            (true, _) => (Standing::Reclaim, false),
            (_, CoreStanding::New) => (Standing::New, renews),
            (_, CoreStanding::Resumed) => (Standing::Resumed, renews),
            (_, CoreStanding::Expired) => (Standing::Expired, renews),
            (_, CoreStanding::Reclaim) => (Standing::Reclaim, renews),
        };
        Welcome {
            standing,
            renews,
            process: self.process(),
            host: self.host,
            term: self.settings.term,
            drift_ppm: self.settings.drift_ppm.max(drift_ppm),
        }
    }

    /// Connections that operations still name and no session has.
    fn dead_links(&self) -> Vec<LinkId> {
        let links = self.works.values().filter_map(|work| match work {
            super::Work::Read(read) => Some(read.link()),
            super::Work::Change(_) => None,
        });
        let dead: BTreeSet<LinkId> = links.filter(|l| !self.links.contains_key(l)).collect();
        dead.into_iter().collect()
    }

    pub(super) fn reclaim(
        &mut self,
        cx: &mut Cx,
        link: LinkId,
        session: SessionId,
        leases: Vec<ReclaimLease>,
    ) {
        let now = self.now(cx);
        let mut lost = Vec::new();
        for lease in leases {
            let claim = Reclaimed {
                object: lease.object,
                parts: lease.parts,
                mode: lease.mode,
            };
            let result = self.core.reclaim(now, session, claim);
            cx.trace(Some(Obj::of(&lease.object)), || {
                format!("server: {session} reclaims {:?}: {result:?}", lease.parts)
            });
            match result {
                Ok(()) => {
                    cx.stats.reclaimed += 1;
                    if lease.mode == Mode::Write {
                        cx.stats.write_reclaims += 1;
                        self.log_reclaimed(cx, session, &lease.object);
                    }
                }
                Err(_) => lost.push(lease.object),
            }
            self.settle(cx);
        }
        cx.down(link, Stream::ControlDown, Down::Reclaimed(lost));
    }

    /// After a crash of the host the record says nothing of it.
    fn log_reclaimed(&mut self, cx: &Cx, session: SessionId, object: &Handle) {
        if !cx.has(Bug::ReclaimUnlogged) {
            self.durable.write_lease(session, Obj::of(object));
        }
    }

    /// A mount ends and says so.
    pub(super) fn goodbye(&mut self, cx: &mut Cx, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let seqs: Vec<Seq> = session.ops.keys().copied().collect();
        let link = session.link;
        for seq in seqs {
            self.cancel_here(cx, id, seq);
        }
        self.sessions.remove(&id);
        if let Some(link) = link {
            self.links.remove(&link);
            self.drop_reads(cx, link);
        }
        self.interrupted.end_session(id);
        cx.judge.lease_ended(cx.now, |session, _| session == id);
        self.step(cx, Event::SessionEnded { session: id });
        self.durable.sessions.remove(&id);
        self.durable.writes.retain(|(session, _), _| *session != id);
        self.unpark(cx);
    }

    /// Write leases that don't stand and were not asked for lately leave the record.
    fn forget_ended_writes(&mut self) {
        let core = &self.core;
        self.durable.writes.retain(|(session, object), asked| {
            std::mem::take(asked) || core.holds_write(*session, &object.handle())
        });
    }

    pub(super) fn sweep(&mut self, cx: &mut Cx) {
        self.later(cx, SWEEP, ServerEv::Sweep);
        let ended = self.dead_links();
        for link in ended {
            self.drop_reads(cx, link);
        }
        if self.core.grace_until().is_some() {
            return;
        }
        self.forget_ended_writes();
        let all = self.core.sessions();
        let alive = |id: &SessionId| {
            let known = all.iter().find(|s| s.session == *id);
            known.is_some_and(|s| s.expires.is_some() || s.reclaiming)
        };
        for (id, recorded) in &mut self.durable.sessions {
            let connected = self.sessions.get(id).is_some_and(|s| s.link.is_some());
            if !connected && !alive(id) {
                recorded.leased = false;
            }
        }
    }
}
