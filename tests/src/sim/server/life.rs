//! Beginning and end of a server's life, and of connections and sessions in it.

use super::opens::{Open, Opens};
use super::{Server, ServerEv, Session, Work};
use crate::sim::cx::{Cx, Down, Ev};
use crate::sim::host::ROOT;
use crate::sim::model::{MS, Nanos, Obj};
use crate::sim::nemesis::Blow;
use crate::sim::net::{LinkId, Stream};
use fsserver::seqs::SeqSet;
use fsserver::session::answers::Answers;
use leasefs_lease::server::{
    Config, Core, Event, Grace, LoggedWrites, Reclaimed, Standing as CoreStanding,
};
use leasefs_lease::time::lengthened;
use leasefs_protocol::control::{
    Hello, IdentityPolicy, Reclaim, ReclaimOpen, Standing, ToClient, Welcome,
};
use leasefs_protocol::{BootId, Fence, KeyHash, LockEpoch, Mode, Seq, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Each mount has a key of its own.
fn client_of(session: SessionId) -> KeyHash {
    let [.., high, number] = session.0;
    let mut key = [high; 32];
    key[0] = number;
    KeyHash(key)
}

/// An orderly end under way.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// It waits no longer.
    gives_up: Nanos,
    /// When the server starts again.
    down_for: Nanos,
}

/// How often sessions are looked over.
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
            self.boot = BootId([self.life as u8; 16]);
            self.host.crash(cx);
            self.durable.crash_of_host();
        }
        let now = self.now(cx);
        let grace = self.grace();
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
            bouncing: self.settings.bouncing,
            probation: self.settings.term / 2,
            max_probation: self.settings.term,
            first_fence: Fence(1 + (self.life << 48)),
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
            let recorded = self.durable.sessions.get(&id);
            let (crashed, birth) = recorded.map_or((false, 0), |r| (r.crashed, r.birth));
            let mut opens = Opens::new(self.life, birth);
            let recovered = self.recover(cx, id, &mut opens, &mut repeats);
            let mut changes = Answers::after_restart(recovered, SeqSet::default());
            if crashed {
                changes = changes.and_host_crash();
            }
            let session = Session {
                changes,
                link: None,
                ops: BTreeMap::new(),
                opens,
                birth,
                reclaims: true,
                idle_since: cx.moment(),
            };
            self.sessions.insert(id, session);
        }
        self.begin_interrupted(cx, repeats);
    }

    /// No lease of an earlier life is left but those that were reclaimed.
    pub(super) fn grace_has_ended(&mut self, cx: &mut Cx) {
        self.durable.host_crashed = false;
        self.end_unclaimed(cx, |_| true);
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

    fn grace(&self) -> Option<Grace> {
        let known = &self.durable;
        let leased = known.sessions.iter().filter(|(_, s)| s.leased);
        let sessions: Vec<SessionId> = leased.map(|(id, _)| *id).collect();
        if known.clean || sessions.is_empty() {
            return None;
        }
        let logged = known.writes.keys();
        let writes = match known.host_crashed {
            false => LoggedWrites::Trusted(logged.map(|(id, o)| (*id, o.handle())).collect()),
            true => LoggedWrites::Unknown,
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

    /// It doesn't, if it hasn't yet.
    pub fn goes_on(&mut self) {
        self.fuse = None;
    }

    pub(super) fn may_crash(&mut self, cx: &mut Cx) -> bool {
        if cx.rng.chance(50)
            && let Some((down_for, host_crashed)) = self.fuse.take()
        {
            let crash = Blow::Crash {
                down_for,
                host_crashed,
                amid: false,
            };
            cx.after(0, Ev::Blow(crash));
            return true;
        }
        false
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
        self.durable.clean = quiet && !self.core.holds_locks();
        self.crash(cx);
        let start = Blow::Start {
            host_crashed: false,
        };
        cx.after(ending.down_for, Ev::Blow(start));
    }

    pub(super) fn hello(&mut self, cx: &mut Cx, link: LinkId, hello: &Hello) {
        if self.ending.is_some() {
            return;
        }
        let id = hello.session;
        let (life, now) = (self.life, cx.moment());
        let birth = self.next_op;
        let recorded = self.durable.sessions.entry(id).or_default();
        recorded.leased = true;
        if recorded.birth == 0 {
            recorded.birth = birth + 1 + (life << 40);
        }
        let birth = recorded.birth;
        let session = self.sessions.entry(id).or_insert_with(|| Session {
            changes: Answers::default(),
            link: None,
            ops: BTreeMap::new(),
            opens: Opens::new(life, birth),
            birth,
            reclaims: false,
            idle_since: now,
        });
        let old = session.link.take();
        drop(session.changes.fence());
        self.links.insert(link, id);
        if let Some(old) = old {
            self.links.remove(&old);
            cx.net.cut(old, cx.now, cx.now + MS);
        }
        for link in self.dead_links() {
            self.drop_reads(cx, link);
        }
        // What is recalled by this very step is repeated with the rest on the new connection.
        let event = Event::SessionOpened {
            session: id,
            client: client_of(id),
            drift_ppm: hello.drift_ppm,
        };
        self.step(cx, event);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.link = Some(link);
        }
        for recall in self.core.open_recalls(id) {
            cx.down(link, Stream::Push, Down::Recall(recall));
        }
        self.note_round_trip(cx, link, id);
        let welcome = self.welcome(id, hello.drift_ppm);
        cx.trace(None, || {
            format!("server: {id} says hello: {:?}", welcome.standing)
        });
        let welcome = ToClient::Welcome(welcome);
        cx.down(link, Stream::ControlDown, Down::Control(welcome));
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
            features: self.settings.features,
            term_ms: self.settings.term.as_millis() as u32,
            drift_ppm: self.settings.drift_ppm.max(drift_ppm),
            process: self.process(),
            host: self.boot,
            standing,
            renews,
            root: ROOT.handle(),
            root_attr: self.host.attr(ROOT).expect("the root is there"),
            read_only: false,
            identity: IdentityPolicy::Trust,
        }
    }

    /// Connections that operations still name and no session has.
    fn dead_links(&self) -> Vec<LinkId> {
        let links = self.works.values().filter_map(|work| match work {
            Work::Read(read) => Some(read.link()),
            Work::Lock(asked) => Some(asked.link()),
            Work::Change(_) => None,
        });
        let dead: BTreeSet<LinkId> = links.filter(|l| !self.links.contains_key(l)).collect();
        dead.into_iter().collect()
    }

    pub(super) fn reclaim(
        &mut self,
        cx: &mut Cx,
        link: LinkId,
        session: SessionId,
        reclaim: Reclaim,
    ) {
        let mut lost_opens = Vec::new();
        for open in &reclaim.opens {
            if !self.opens_again(session, open) {
                lost_opens.push(open.open);
            }
        }
        let mut lost_leases = Vec::new();
        for lease in reclaim.leases {
            let claim = Reclaimed {
                object: lease.object,
                parts: lease.parts,
                mode: lease.mode,
            };
            let (now, object) = (self.now(cx), Obj::of(&lease.object));
            let result = match self.host.exists(object) {
                true => self.core.reclaim(now, session, claim).is_ok(),
                false => false,
            };
            cx.trace(Some(object), || {
                format!(
                    "server: {session} reclaims {:?} {:?}: {result}",
                    lease.mode, lease.parts
                )
            });
            if result {
                cx.stats.reclaimed += 1;
                if lease.mode == Mode::Write {
                    cx.stats.write_reclaims += 1;
                    self.durable.write_lease(session, object);
                }
            } else {
                lost_leases.push(lease.object);
            }
            self.step(cx, Event::Tick);
        }
        let (now, epoch) = (self.now(cx), reclaim.epoch);
        let lost_locks = match epoch == LockEpoch::default() {
            true => Vec::new(),
            false => {
                let count = reclaim.locks.len();
                let lost = self.core.reclaim_locks(now, session, epoch, reclaim.locks);
                cx.stats.locks_reclaimed += (count - lost.len()) as u64;
                lost
            }
        };
        self.step(cx, Event::Tick);
        let answer = ToClient::Reclaimed {
            lost_leases,
            lost_opens,
            lost_locks,
        };
        cx.down(link, Stream::ControlDown, Down::Control(answer));
    }

    /// Opened again is only what an earlier life has opened, and only until the session has said that it
    /// has reclaimed everything.
    fn opens_again(&mut self, id: SessionId, asked: &ReclaimOpen) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        if session.opens.claim(asked.open) {
            return true;
        }
        if !session.reclaims || session.opens.is_of_this_life(asked.open) {
            return false;
        }
        let open = Open::of_token(&asked.token, asked.open, id, session.birth);
        let open = open.filter(|open| self.host.exists(open.object));
        open.is_some_and(|open| session.opens.restore(asked.open, open))
    }

    /// A mount ends and says so.
    pub(super) fn goodbye(&mut self, cx: &mut Cx, id: SessionId) {
        let Some(link) = self.sessions.get(&id).map(|s| s.link) else {
            return;
        };
        cx.trace(None, || format!("server: {id} leaves"));
        self.end_session(cx, id);
        if let Some(link) = link {
            let farewell = Down::Control(ToClient::Farewell);
            cx.down(link, Stream::ControlDown, farewell);
            self.links.remove(&link);
            self.drop_reads(cx, link);
        }
    }

    /// A session is over: it holds nothing, and nothing of it goes on.
    fn end_session(&mut self, cx: &mut Cx, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let seqs: Vec<Seq> = session.ops.keys().copied().collect();
        for seq in seqs {
            self.cancel_here(cx, id, seq);
        }
        self.sessions.remove(&id);
        self.interrupted.end_session(id);
        cx.judge.lease_ended(cx.now, |session, _| session == id);
        self.step(cx, Event::SessionEnded { session: id });
        self.durable.sessions.remove(&id);
        self.durable.writes.retain(|(session, _), _| *session != id);
        self.unpark(cx);
        self.reap(cx);
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
        for link in self.dead_links() {
            self.drop_reads(cx, link);
        }
        let now = cx.now;
        let overdue = self.sessions.iter().filter(|(_, session)| {
            session.link.is_none() && now - session.idle_since > self.settings.courtesy
        });
        let overdue: Vec<SessionId> = overdue.map(|(id, _)| *id).collect();
        for id in overdue {
            cx.trace(None, || format!("server: {id} has not come back"));
            self.end_session(cx, id);
        }
        if self.core.grace_until().is_some() {
            return;
        }
        self.forget_ended_writes();
        for (id, recorded) in &mut self.durable.sessions {
            let connected = self.sessions.get(id).is_some_and(|s| s.link.is_some());
            if !connected && !self.core.may_hold(*id) {
                recorded.leased = false;
            }
        }
    }
}
