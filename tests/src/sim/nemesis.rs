//! What goes wrong, and when.

use super::cx::{Cx, Ev};
use super::model::{MS, Nanos};
use super::net::LinkId;

/// Something breaks or is mended.
#[derive(Clone, Copy, Debug)]
pub enum Blow {
    /// The next misfortune is chosen.
    Choose,
    /// A client's daemon is stopped for a while.
    Freeze(usize, Nanos),
    /// It goes on.
    Thaw(usize),
    /// A client is told that its host is about to sleep.
    Announce(usize, Nanos),
    /// A client's host sleeps for a while.
    Suspend(usize, Nanos),
    /// It wakes up.
    Resume(usize, Nanos),
    /// A client is told that its host has slept.
    Awake(usize),
    /// A client's connection breaks; the network is well.
    Break(usize),
    /// A client can't reach the server for a while.
    Part(usize, Nanos),
    /// It can again.
    Join(usize),
    /// A client notices that its connection is gone.
    Lost(usize, LinkId),
    /// The server notices that its client has ended a connection.
    Left(LinkId),
    /// The threads of a client that drop pages stand still for a while.
    Stall(usize, Nanos),
    /// A client's daemon is killed; another mounts after a while.
    Kill(usize, Nanos),
    /// A client unmounts; another mounts after a while.
    Unmount(usize, Nanos),
    /// A client mounts.
    Mount(usize),
    /// The server's process is killed, for a while; `host_crashed`: with its host.
    Crash {
        /// For so long.
        down_for: Nanos,
        /// With its host.
        host_crashed: bool,
        /// Not before a change is in the middle.
        amid: bool,
    },
    /// The server ends in order, for a while.
    ShutDown(Nanos),
    /// The server starts.
    Start {
        /// After a crash of its host.
        host_crashed: bool,
    },
}

/// Kinds of misfortune, in the order of the weather's weights.
pub const KINDS: [&str; 9] = [
    "freeze", "break", "part", "stall", "kill", "unmount", "crash", "shutdown", "suspend",
];

/// How rough a run is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Mean time between two misfortunes.
    pub pause: Nanos,
    /// Chance of each kind, in the order of [`Weather::choose`].
    pub weights: [usize; KINDS.len()],
    /// Chance that a crash is one of the host, percent.
    pub host_crashes: usize,
}

impl Weather {
    /// The weather of a run, of the kinds that are allowed.
    pub fn any(cx: &mut Cx, allowed: &[bool; KINDS.len()]) -> Self {
        let pause = [400, 1_000, 2_500, 6_000][cx.rng.below(4)] * MS;
        let mut weights = [0; KINDS.len()];
        for (weight, allowed) in weights.iter_mut().zip(allowed) {
            let drawn = [0, 1, 2, 4][cx.rng.below(4)];
            *weight = if *allowed { drawn } else { 0 };
        }
        Self {
            pause,
            weights,
            host_crashes: [0, 25][cx.rng.below(2)],
        }
    }

    /// As many misfortunes as can be, of the kinds that are allowed.
    #[must_use]
    pub fn rough(mut self, allowed: &[bool; KINDS.len()], host_crashes: usize) -> Self {
        self.pause = self.pause.min(1_000 * MS);
        for (weight, allowed) in self.weights.iter_mut().zip(allowed) {
            *weight = (*weight).max(usize::from(*allowed));
        }
        self.host_crashes = host_crashes;
        self
    }

    /// No misfortunes.
    pub fn calm() -> Self {
        Self {
            pause: 1_000 * MS,
            weights: [0; KINDS.len()],
            host_crashes: 0,
        }
    }

    /// The next misfortune, for some client.
    pub fn choose(&self, cx: &mut Cx, clients: usize) -> Option<Blow> {
        let total: usize = self.weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut pick = cx.rng.below(total);
        let kind = self.weights.iter().position(|weight| {
            let here = pick < *weight;
            pick = pick.saturating_sub(*weight);
            here
        })?;
        let client = cx.rng.below(clients);
        let brief = (1 + cx.rng.below(300) as u64) * MS;
        let long = (100 + cx.rng.below(4_000) as u64) * MS;
        let any = if cx.rng.chance(50) { brief } else { long };
        Some(match kind {
            0 => Blow::Freeze(client, any),
            1 => Blow::Break(client),
            2 => Blow::Part(client, any),
            3 => Blow::Stall(client, any),
            4 => Blow::Kill(client, any),
            5 => Blow::Unmount(client, brief),
            6 => Blow::Crash {
                down_for: any,
                host_crashed: cx.rng.chance(self.host_crashes),
                amid: cx.rng.chance(50),
            },
            7 => Blow::ShutDown(brief),
            _ if cx.rng.chance(50) => Blow::Announce(client, any),
            _ => Blow::Suspend(client, any),
        })
    }

    /// When a client can reach the server again, or the server has started, its process may crash in
    /// the middle of what is sent to it then; within which time.
    pub fn company(&self, cx: &mut Cx, within: Nanos) -> Option<(Nanos, Blow)> {
        let crash = Blow::Crash {
            down_for: (1 + cx.rng.below(300) as u64) * MS,
            host_crashed: false,
            amid: cx.rng.chance(70),
        };
        (self.weights[6] > 0 && cx.rng.chance(40)).then(|| (cx.short(within), crash))
    }

    /// Lets the next one come.
    pub fn schedule(&self, cx: &mut Cx) {
        // Misfortunes like company.
        let most = match cx.rng.chance(35) {
            true => self.pause / 10,
            false => 3 * self.pause,
        };
        let wait = cx.rng.below(most as usize) as Nanos;
        cx.after(wait, Ev::Blow(Blow::Choose));
    }
}
