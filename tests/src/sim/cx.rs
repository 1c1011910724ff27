//! What all parts of the simulation share: time, chance, what is to come, the judge.

use super::client::ClientEv;
use super::judge::Judge;
use super::kernel::KernelEv;
use super::model::{MS, Nanos, Obj, US};
use super::nemesis::Blow;
use super::net::{LinkId, Net, Stream};
use super::server::ServerEv;
use crate::rng::Rng;
use bytes::Bytes;
use leasefs_protocol::control::{ToClient, ToServer};
use leasefs_protocol::lock::LockGranted;
use leasefs_protocol::{Recall, Reply, RequestFrame};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Client to server.
#[derive(Clone, Debug, Hash)]
pub enum Up {
    /// On the control stream.
    Control(ToServer),
    /// A request and its data.
    Request(Arc<RequestFrame>, Bytes),
}

/// Server to client.
#[derive(Clone, Debug, Hash)]
pub enum Down {
    /// On the control stream.
    Control(ToClient),
    /// A recall.
    Recall(Recall),
    /// A lock that was waited for is held.
    LockGranted(LockGranted),
    /// The answer to a request and its data.
    Reply(Box<Reply>, Bytes),
}

impl Up {
    fn bytes(&self) -> usize {
        match self {
            Self::Control(_) => 64,
            Self::Request(_, payload) => 128 + payload.len(),
        }
    }
}

impl Down {
    fn bytes(&self) -> usize {
        match self {
            Self::Control(_) | Self::Recall(_) | Self::LockGranted(_) => 64,
            Self::Reply(_, payload) => 128 + payload.len(),
        }
    }
}

/// Something that happens at its time.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are of the largest")]
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

/// What is to happen.
pub struct Due {
    /// When.
    pub at: Nanos,
    /// Its place in the order in which it came up.
    pub serial: u64,
    /// What.
    pub ev: Ev,
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

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts for people.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Adds another run's.
            pub fn add(&mut self, other: &Stats) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

stats! {
    /// Messages delivered, timers and faults fired.
    steps,
    /// Operations of processes that ended with an answer.
    ops,
    /// Operations that nobody could answer (crashes, abandoned, lost).
    unanswered,
    /// Requests of kernels.
    calls,
    /// Requests that reached the server.
    requests,
    /// Things that were seen and judged.
    seen,
    /// Writes that were answered from a buffer.
    buffered,
    /// Entries that came along with listings.
    listed,
    /// Stores into mapped pages.
    stores,
    /// Mapped pages written back.
    writebacks,
    /// Requests that flush.
    flushes,
    /// What they brought besides to other places.
    scattered,
    /// Modes that came with them.
    sets,
    /// Flushes refused because the file has changed elsewhere.
    late,
    /// Too late, but the file held them.
    held,
    /// What was put into a recovery folder.
    kept,
    /// Recalls sent.
    recalls,
    /// Leases reclaimed.
    reclaimed,
    /// Of those, exclusive ones.
    write_reclaims,
    /// Changes answered with `Lost`.
    lost,
    /// Sessions whose leases ended for want of renewal, by the server's clock.
    expired,
    /// Faults fired.
    blows,
    /// Drops of pages that had to wait.
    blocked_drops,
    /// Changes whose names denoted something else when their turn came.
    requeued,
    /// Changes that ran although they may have happened before a crash.
    repeated,
    /// Syncs that succeeded.
    syncs,
    /// Syncs that told of a loss.
    sync_failures,
    /// Writes refused for want of room.
    full,
    /// Locks that a client gave without asking.
    locks_here,
    /// Locks that the server gave when it was asked.
    locks_there,
    /// Locks for which somebody had to wait.
    locks_waited,
    /// Waits for locks that a signal has ended.
    locks_interrupted,
    /// Locks that would have been waited for in a circle.
    deadlocks,
    /// Processes that were told that their locks are lost.
    locks_lost,
    /// Files whose locks were claimed back from a restarted server.
    locks_reclaimed,
    /// Changes refused because the locks under which they were made are lost.
    unlocked_changes,
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
    pub fn new(seed: u64, traced: bool) -> Self {
        let rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        Self::with(rng, traced)
    }

    /// The start of a run that chance decides nothing of.
    pub fn still(traced: bool) -> Self {
        let mut cx = Self::with(Rng::still(), traced);
        cx.net.number_apart();
        cx
    }

    fn with(rng: Rng, traced: bool) -> Self {
        Self {
            now: 0,
            rng,
            net: Net::default(),
            judge: Judge::default(),
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
        self.at(self.now.saturating_add(wait), ev);
    }

    /// The next thing that happens; time moves on to it.
    pub fn next(&mut self) -> Option<Ev> {
        let Reverse(due) = self.queue.pop()?;
        self.now = due.at;
        self.stats.steps += 1;
        Some(due.ev)
    }

    /// Now; as a host's clock tells it, where moments only tell the order of what happens.
    pub fn moment(&self) -> Nanos {
        match self.rng.is_still() {
            true => self.now / MS * MS,
            false => self.now,
        }
    }

    /// Takes out all that is to come, in the order in which it came up.
    pub fn take_all(&mut self) -> Vec<Due> {
        let mut all: Vec<Due> = self.queue.drain().map(|Reverse(due)| due).collect();
        all.sort_by_key(|due| due.serial);
        all
    }

    /// Sends a message to the server.
    pub fn up(&mut self, link: LinkId, stream: Stream, up: Up) {
        let bytes = up.bytes();
        let at = self
            .net
            .arrival(&mut self.rng, self.now, (link, stream), bytes);
        self.at(at, Ev::ToServer(link, stream, Box::new(up)));
    }

    /// Sends a message to a client.
    pub fn down(&mut self, link: LinkId, stream: Stream, down: Down) {
        let bytes = down.bytes();
        let at = self
            .net
            .arrival(&mut self.rng, self.now, (link, stream), bytes);
        self.at(at, Ev::ToClient(link, stream, Box::new(down)));
    }

    /// A time of at most `most`, short as a rule.
    pub fn short(&mut self, most: Nanos) -> Nanos {
        let usual = (most / 16).max(US);
        let most = if self.rng.chance(10) { most } else { usual };
        self.rng.below(most as usize) as Nanos
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

    /// How many lines were noted.
    pub fn traced(&self) -> usize {
        self.trace.as_ref().map_or(0, Vec::len)
    }

    /// What was noted.
    pub fn take_trace(&mut self) -> Vec<Line> {
        self.trace.take().unwrap_or_default()
    }
}
