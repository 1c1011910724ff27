//! A client's daemon: the shipped lease state around a small copy of what the real one does with it.
//! Its host's kernel and processes are beside it and go on when it stands still.

mod cache;
mod change;
mod dirty;
mod flush;
mod keeper;
mod link;
mod pages;
mod recall;
mod rpc;
mod tasks;
mod uncommitted;

use super::clock::HostClock;
use super::cx::{Cx, Ev};
use super::kernel::{Habit, Kernel, KernelEv, Told, Unique, Want};
use super::model::{Down, Item, MS, Nanos, Obj, US, session};
use super::net::{LinkId, Stream};
use cache::{Cache, Dropped};
use dirty::Dirty;
use leasefs_lease::client::{Leases, Renewal, SessionClock};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{BootId, Recall, RecallId, SessionId};
use link::{Conn, EngineEv};
use pages::{Outcome, Pages, Wake};
use rpc::Rpc;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tasks::Task;
use uncommitted::Uncommitted;

/// What happens in a daemon's life.
#[derive(Clone, Debug)]
pub enum ClientEv {
    /// A message comes on a connection.
    Message(LinkId, Stream, Down),
    /// A connection is lost.
    Lost(LinkId),
    /// A connection is tried.
    Dial,
    /// It was tried long enough.
    DialTimeout(LinkId),
    /// Clock, keep-alives, sweeps.
    Tick,
    /// The recall engine takes up what it was told.
    Engine,
    /// The kernel asks.
    Ask(Unique, Want),
    /// Someone goes on.
    Wake(Wake),
    /// A READ is asked for again.
    Again(Unique),
    /// A thread drops what comes next of a file.
    Pass(Obj),
    /// The kernel has dropped what it was told.
    Dropped(Obj),
    /// A drop lasts longer than dropping takes.
    Stuck(Obj, Nanos),
    /// What a loss of leases has left in the kernel is dropped.
    Sweep,
    /// A flusher of a file wakes; the number tells which alarm it is.
    Flusher(Obj, u64),
    /// A file is flushed that a recall waits for.
    Flushed(RecallId),
    /// Memory is short.
    Evict,
    /// The kernel has forgotten a file.
    Forget(Obj),
    /// A caller leaves.
    Abandon(Unique),
    /// A recall that was approved early is acted on (a fault put in on purpose).
    Late(Recall),
}

/// A client: daemon, kernel, processes, and the way to the server.
pub struct Client {
    /// Which one.
    pub index: usize,
    /// Which daemon of this host.
    pub life: u64,
    /// The host's clock.
    pub clock: HostClock,
    /// The kernel and its processes.
    pub kernel: Kernel,
    /// Whether there is a daemon.
    pub alive: bool,
    /// Since when it stands still.
    pub frozen: Option<Nanos>,
    /// Since when the server can't be reached.
    pub apart: Option<Nanos>,
    /// Its threads that drop pages stand still until then.
    pub stalled_until: Nanos,
    /// A message's usual way.
    pub way: Nanos,
    session: SessionId,
    drift_ppm: u32,
    term: Duration,
    agreed_drift: u32,
    inbox: Vec<ClientEv>,
    conn: Conn,
    connected_before: bool,
    engine: VecDeque<EngineEv>,
    lease_clock: SessionClock,
    leases: Leases,
    process: Option<BootId>,
    cache: Cache,
    pages: Pages,
    tasks: BTreeMap<Unique, Task>,
    rpc: Rpc,
    swept: Option<(Dropped, Outcome)>,
    /// Files whose pages the kernel has forgotten.
    idle: Vec<Obj>,
    /// Recalls that came before the connection serves.
    early: Vec<Recall>,
    dirty: Dirty,
    uncommitted: Uncommitted,
    /// Recalls that wait for files to be flushed: what is still to come.
    flushing: BTreeMap<RecallId, (Recall, Vec<Obj>)>,
    /// The life of the server's host on the present connection.
    host: BootId,
    /// The one under which what is cached was told.
    cached_of: Option<BootId>,
    own_requests: u64,
    /// Since when it is about to unmount.
    pub leaving: Option<Nanos>,
}

/// How a client is made.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// Its number.
    pub index: usize,
    /// Its host's clock.
    pub clock: HostClock,
    /// Its drift bound.
    pub drift_ppm: u32,
    /// A message's usual way.
    pub way: Nanos,
    /// Processes on its host.
    pub processes: usize,
    /// How long they pause at most.
    pub pace: Nanos,
    /// What they do.
    pub habit: Habit,
}

impl Client {
    /// A host that mounts; `life` is unique among all mounts of the run.
    pub fn mount(cx: &mut Cx, make: Make, life: u64) -> Self {
        let Make {
            index,
            clock,
            drift_ppm,
            way,
            processes,
            pace,
            habit,
        } = make;
        let client = Self {
            index,
            life,
            clock,
            kernel: Kernel::new((index, life), clock, processes, (pace, habit)),
            alive: true,
            frozen: None,
            apart: None,
            stalled_until: 0,
            way,
            session: session(life as u32),
            drift_ppm,
            term: Duration::from_secs(1),
            agreed_drift: drift_ppm,
            inbox: Vec::new(),
            conn: Conn::Down,
            connected_before: false,
            engine: VecDeque::new(),
            lease_clock: SessionClock::new(),
            leases: Leases::new(),
            process: None,
            cache: Cache::new(),
            pages: Pages::default(),
            tasks: BTreeMap::new(),
            rpc: Rpc::default(),
            swept: None,
            idle: Vec::new(),
            early: Vec::new(),
            dirty: Dirty::default(),
            uncommitted: Uncommitted::default(),
            flushing: BTreeMap::new(),
            host: BootId([0; 16]),
            cached_of: None,
            own_requests: 0,
            leaving: None,
        };
        client.later(cx, US, ClientEv::Dial);
        client.later(cx, 80 * MS, ClientEv::Tick);
        client.later(cx, 300 * MS, ClientEv::Evict);
        client.kernel.later(cx, 500 * MS, KernelEv::Shrink);
        for process in 0..processes {
            let wait = 5 * MS + cx.short(50 * MS);
            client.kernel.later(cx, wait, KernelEv::Next(process));
        }
        client
    }

    /// The mount's session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether it is as it should be: its operations have to end.
    pub fn is_well(&self, cx: &Cx) -> bool {
        let works = self.frozen.is_none() && self.stalled_until <= cx.now;
        self.alive && works && self.apart.is_none()
    }

    fn now(&self, cx: &Cx) -> BootTime {
        self.clock.at(cx.now)
    }

    fn later(&self, cx: &mut Cx, wait: Nanos, ev: ClientEv) {
        cx.after(wait, Ev::Client(self.index, self.life, ev));
    }

    fn trace(&self, cx: &mut Cx, object: Option<Obj>, text: impl FnOnce() -> String) {
        let index = self.index;
        cx.trace(object, || format!("client {index}: {}", text()));
    }

    /// Something happens; if the daemon stands still it comes to know of it later.
    pub fn happens(&mut self, cx: &mut Cx, ev: ClientEv) {
        if !self.alive {
            return;
        }
        if self.frozen.is_some() {
            self.inbox.push(ev);
            return;
        }
        match ev {
            ClientEv::Message(link, stream, down) => self.message(cx, link, stream, down),
            ClientEv::Lost(link) => self.lost_link(cx, link),
            ClientEv::Dial => self.dial(cx),
            ClientEv::DialTimeout(link) => self.dial_timeout(cx, link),
            ClientEv::Tick => self.tick(cx),
            ClientEv::Engine => self.run_engine(cx),
            ClientEv::Ask(unique, want) => self.asked(cx, unique, want),
            ClientEv::Wake(wake) => self.woken(cx, wake),
            ClientEv::Again(unique) => self.begin_page_read(cx, unique),
            ClientEv::Pass(file) => self.pass(cx, file),
            ClientEv::Dropped(file) => self.pages_dropped(cx, file),
            ClientEv::Stuck(file, since) => self.look_whether_stuck(cx, file, since),
            ClientEv::Sweep => self.sweep(cx),
            ClientEv::Flusher(file, alarm) => self.flusher_wakes(cx, file, alarm),
            ClientEv::Flushed(recall) => {
                if let Some((recall, files)) = self.flushing.remove(&recall) {
                    self.flush_for(cx, recall, files);
                }
            }
            ClientEv::Evict => self.evict(cx),
            ClientEv::Forget(object) => self.forget(cx, object),
            ClientEv::Abandon(unique) => self.abandon(cx, unique),
            ClientEv::Late(recall) => self.recalled(cx, &recall),
        }
    }

    /// The daemon is stopped.
    pub fn freeze(&mut self, cx: &mut Cx) {
        self.trace(cx, None, || "stops".into());
        self.frozen = Some(cx.now);
        self.kernel.mapped_may_be_stale = true;
    }

    /// It goes on: all that has come meanwhile is taken up in some order.
    pub fn thaw(&mut self, cx: &mut Cx) {
        if self.frozen.take().is_none() {
            return;
        }
        self.trace(cx, None, || "goes on".into());
        let mut streams = BTreeMap::new();
        for ev in std::mem::take(&mut self.inbox) {
            let wait = cx.short(4 * MS);
            let wait = match &ev {
                ClientEv::Message(link, stream, _) => {
                    let last = streams.entry((*link, stream.index())).or_insert(0);
                    *last = wait.max(*last + 1);
                    *last
                }
                _ => wait,
            };
            self.later(cx, wait, ev);
        }
    }

    /// The daemon is gone, with all its requests; the mount is dead.
    pub fn crash(&mut self, cx: &mut Cx) {
        self.trace(cx, None, || "ends".into());
        self.alive = false;
        cx.judge.gone(self.session);
        if let Some(link) = self.conn.link() {
            cx.net.cut(link, cx.now, cx.now);
        }
    }

    /// Answers the kernel; whoever waits takes it up when he gets to run.
    fn tell(&mut self, cx: &mut Cx, unique: Unique, told: Told, cached: bool) {
        self.tasks.remove(&unique);
        // Well below the kernel guard of the shortest term.
        let wait = US + cx.short(100 * MS);
        let ev = KernelEv::Told(unique, told, cached);
        self.kernel.later(cx, wait, ev);
    }

    /// Does what has become possible.
    fn perform(&mut self, cx: &mut Cx, outcome: Outcome) {
        let Outcome {
            approve,
            wake,
            passes,
        } = outcome;
        if !approve.is_empty() {
            for recall in &approve {
                self.leases.approved(*recall);
            }
            self.approve(cx, approve);
        }
        for wake in wake {
            let wait = cx.short(100 * US);
            self.later(cx, wait, ClientEv::Wake(wake));
        }
        for file in passes {
            let wait = US + cx.short(2 * MS);
            self.later(cx, wait, ClientEv::Pass(file));
        }
    }

    fn with<R>(&mut self, cx: &mut Cx, change: impl FnOnce(&mut Pages, &mut Outcome) -> R) -> R {
        let mut outcome = Outcome::default();
        let result = change(&mut self.pages, &mut outcome);
        self.perform(cx, outcome);
        result
    }

    /// The leases are valid for a term from `sent`.
    fn renewed(&mut self, cx: &mut Cx, sent: BootTime) {
        let sent = match cx.has(super::bug::Bug::TermFromReply) {
            true => self.now(cx),
            false => sent,
        };
        let renewal = self.lease_clock.renew(sent, self.term, self.agreed_drift);
        if renewal == Renewal::Begins {
            self.drop_everything(cx);
        }
        self.rpc.renewed = self.rpc.renewed.max(sent);
    }

    /// What a process would be told of an item now without the server being asked, by whom.
    pub fn believes(&self, cx: &Cx, item: Item) -> [(&'static str, Option<u64>); 2] {
        if !self.alive {
            return [("kernel", None), ("daemon", None)];
        }
        let live = self.lease_clock.witness(self.now(cx)).is_some();
        let kernel = self.kernel.believes(cx, item, live);
        let live = live && self.frozen.is_none();
        let daemon = || match item {
            Item::Attrs(object) if self.pages.is_unclean(object) => None,
            Item::Attrs(object) => self.cache.attr(object),
            Item::Name(dir, name) => {
                let known = self.cache.name((dir, name))?;
                Some(known.map_or(0, |object| object.0.into()))
            }
            Item::Listing(dir) => self.cache.listing(dir).map(|halves| halves[0]),
            Item::Page(file, page) => self.read_stored(cx, file, page),
        };
        let daemon = live.then(daemon).flatten();
        [("kernel", kernel), ("daemon", daemon)]
    }

    /// Until when it takes anything for leased at the longest.
    pub fn trusts_until(&self) -> Nanos {
        let own = self.lease_clock.expiry();
        let own = own.map_or(0, |expiry| self.clock.when(expiry));
        own.max(self.kernel.believes_until())
    }

    /// What it looks like, for people.
    pub fn describe(&self) -> String {
        let busy = self.kernel.processes.iter().enumerate();
        let busy = busy.filter(|(_, p)| p.busy_since().is_some());
        let busy: Vec<String> = busy
            .map(|(i, p)| format!("{i}: {}", p.describe()))
            .collect();
        format!(
            "client {}: {:?}, session {}, processes {busy:#?}, tasks {:#?}, requests {:#?}, pages {:?}, dirty {:?}",
            self.index, self.conn, self.session, self.tasks, self.rpc, self.pages, self.dirty
        )
    }
}
