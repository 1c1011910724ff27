//! What all parts of the simulation share: time, chance, what is to come, the judge.

use super::bug::Bug;
use super::client::ClientEv;
use super::judge::Judge;
use super::kernel::KernelEv;
use super::model::{Down, Nanos, Obj, US, Up};
use super::nemesis::Blow;
use super::net::{LinkId, Net, Stream};
use super::server::ServerEv;
use crate::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at its time.
#[derive(Clone, Debug)]
pub enum Ev {
    /// A message reaches the server.
    ToServer(LinkId, Stream, Box<Up>),
    /// A message reaches a client's host.
    ToClient(LinkId, Stream, Box<Down>),
    /// In a life of the server.
    Server(u64, ServerEv),
    /// In a life of a client's daemon, which may stand still.
    Client(usize, u64, ClientEv),
    /// In a client's kernel and processes, while its daemon lives.
    Kernel(usize, u64, KernelEv),
    /// Something breaks or is mended.
    Blow(Blow),
    /// Everything is looked over.
    Audit,
}

struct Due {
    at: Nanos,
    serial: u64,
    ev: Ev,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// A line of the trace.
#[derive(Clone, Debug)]
pub struct Line {
    /// When.
    pub at: Nanos,
    /// About which object; `None` about none or all.
    pub object: Option<Obj>,
    /// What.
    pub text: String,
}

/// Counts for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages delivered, timers and faults fired.
    pub steps: u64,
    /// Operations of processes that ended with an answer.
    pub ops: u64,
    /// Operations that nobody could answer (crashes, abandoned, lost).
    pub unanswered: u64,
    /// Of those answered: from a cache.
    pub cached: u64,
    /// Pages the kernel was given.
    pub fills: u64,
    /// Of those: born recalled or without a lease, under an open recall.
    pub owed_fills: u64,
    /// Recalls acted on.
    pub recalls: u64,
    /// Leases reclaimed.
    pub reclaimed: u64,
    /// Changes answered with `Lost`.
    pub lost: u64,
    /// Sessions whose leases ended for want of renewal, by the server's clock.
    pub expired: u64,
    /// Faults fired.
    pub blows: u64,
    /// Drops of pages that had to wait for a locked page.
    pub blocked_drops: u64,
    /// Changes whose names denoted something else when their turn came.
    pub requeued: u64,
    /// Writes that were answered from a buffer.
    pub buffered: u64,
    /// Requests that flush.
    pub flushes: u64,
    /// Of those: refused because the file has changed elsewhere.
    pub late: u64,
    /// Of those: too late too, but the file held them.
    pub held: u64,
    /// Write leases reclaimed.
    pub write_reclaims: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Syncs that told of a loss.
    pub sync_failures: u64,
    /// Changes that ran although they may have happened before a crash.
    pub repeated: u64,
}

impl Stats {
    /// Adds another run's.
    pub fn add(&mut self, other: &Stats) {
        self.steps += other.steps;
        self.ops += other.ops;
        self.unanswered += other.unanswered;
        self.cached += other.cached;
        self.fills += other.fills;
        self.owed_fills += other.owed_fills;
        self.recalls += other.recalls;
        self.reclaimed += other.reclaimed;
        self.lost += other.lost;
        self.expired += other.expired;
        self.blows += other.blows;
        self.blocked_drops += other.blocked_drops;
        self.requeued += other.requeued;
        self.buffered += other.buffered;
        self.flushes += other.flushes;
        self.late += other.late;
        self.held += other.held;
        self.write_reclaims += other.write_reclaims;
        self.syncs += other.syncs;
        self.sync_failures += other.sync_failures;
        self.repeated += other.repeated;
    }
}

/// What all parts share.
pub struct Cx {
    /// True time.
    pub now: Nanos,
    /// Chance.
    pub rng: Rng,
    /// Connections.
    pub net: Net,
    /// What has happened and was seen.
    pub judge: Judge,
    /// The fault put in on purpose.
    pub bug: Option<Bug>,
    /// Counts.
    pub stats: Stats,
    /// The last fault that may excuse a delay, or its mending.
    pub disturbed: Nanos,
    queue: BinaryHeap<Reverse<Due>>,
    serial: u64,
    trace: Option<Vec<Line>>,
}

impl Cx {
    /// The start of a run.
    pub fn new(seed: u64, bug: Option<Bug>, traced: bool) -> Self {
        Self {
            now: 0,
            rng: Rng::new(seed),
            net: Net::default(),
            judge: Judge::default(),
            bug,
            stats: Stats::default(),
            disturbed: 0,
            queue: BinaryHeap::new(),
            serial: 0,
            trace: traced.then(Vec::new),
        }
    }

    /// Lets something happen at a moment.
    pub fn at(&mut self, at: Nanos, ev: Ev) {
        self.serial += 1;
        self.queue.push(Reverse(Due {
            at: at.max(self.now),
            serial: self.serial,
            ev,
        }));
    }

    /// Lets something happen a little later.
    pub fn after(&mut self, wait: Nanos, ev: Ev) {
        self.at(self.now + wait, ev);
    }

    /// The next thing that happens; time moves on to it.
    pub fn next(&mut self) -> Option<Ev> {
        let Reverse(due) = self.queue.pop()?;
        self.now = due.at;
        self.stats.steps += 1;
        Some(due.ev)
    }

    /// Sends a message to the server.
    pub fn up(&mut self, link: LinkId, stream: Stream, up: Up) {
        let at = self.net.arrival(&mut self.rng, self.now, link, stream);
        self.at(at, Ev::ToServer(link, stream, Box::new(up)));
    }

    /// Sends a message to a client.
    pub fn down(&mut self, link: LinkId, stream: Stream, down: Down) {
        let at = self.net.arrival(&mut self.rng, self.now, link, stream);
        self.at(at, Ev::ToClient(link, stream, Box::new(down)));
    }

    /// A time of at most `most`, short as a rule.
    pub fn short(&mut self, most: Nanos) -> Nanos {
        let usual = (most / 16).max(US);
        let most = if self.rng.chance(10) { most } else { usual };
        self.rng.below(most as usize) as Nanos
    }

    /// Whether this fault was put in.
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Notes something for the trace of a run that failed.
    pub fn trace(&mut self, object: Option<Obj>, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.trace {
            lines.push(Line {
                at: self.now,
                object,
                text: text(),
            });
        }
    }

    /// What was noted.
    pub fn take_trace(&mut self) -> Vec<Line> {
        self.trace.take().unwrap_or_default()
    }
}
