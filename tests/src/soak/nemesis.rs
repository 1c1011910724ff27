//! What is done to daemons and links while programs use them.

use crate::mounted::{Background, Slow, World};
use crate::rng::Rng;
use rustix::process::Signal;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// The leases' term.
pub(super) const TERM: &str = "6s";
/// A fault is shorter than this where nobody may be away for a term: two thirds of the term are left at
/// least when it begins, and finding together again takes as long as it lasted.
const SHORT: (usize, usize) = (20, 1_500);
/// Where they may, it may be longer than the term.
const LONG: (usize, usize) = (100, 9_000);
/// How long all is whole between two faults, in milliseconds: leases are renewed then.
const CALM: (usize, usize) = (2_000, 5_000);

/// Which faults there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regime {
    /// All kinds, none for as long as a term.
    Short,
    /// Links are cut, the server is frozen or down for longer than a term.
    Away,
    /// Clients are frozen so too.
    Frozen,
}

/// How often what was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Servers killed (SIGKILL) and started again.
    pub servers_killed: u64,
    /// Servers stopped for a while.
    pub servers_frozen: u64,
    /// Clients killed and mounted again.
    pub clients_killed: u64,
    /// Clients stopped for a while.
    pub clients_frozen: u64,
    /// Links cut for a while.
    pub links_cut: u64,
    /// Links slowed for a while.
    pub links_slowed: u64,
}

impl Faults {
    pub(super) fn add(&mut self, other: &Self) {
        self.servers_killed += other.servers_killed;
        self.servers_frozen += other.servers_frozen;
        self.clients_killed += other.clients_killed;
        self.clients_frozen += other.clients_frozen;
        self.links_cut += other.links_cut;
        self.links_slowed += other.links_slowed;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "servers {} killed, {} frozen; clients {} killed, {} frozen; links {} cut, {} slowed",
            self.servers_killed,
            self.servers_frozen,
            self.clients_killed,
            self.clients_frozen,
            self.links_cut,
            self.links_slowed
        )
    }
}

/// Disturbs a world.
pub(super) struct Nemesis {
    pub rng: Rng,
    pub regime: Regime,
    pub faults: Faults,
}

impl Nemesis {
    pub fn new(rng: Rng, regime: Regime) -> Self {
        Self {
            rng,
            regime,
            faults: Faults::default(),
        }
    }

    fn time(&mut self, (least, most): (usize, usize)) -> Duration {
        Duration::from_millis(self.rng.between(least, most) as u64)
    }

    /// Until the work is done; `None` if that takes longer than `limit`.
    pub fn disturb<T: Send + 'static>(
        &mut self,
        world: &mut World,
        work: &mut Background<T>,
        limit: Duration,
    ) -> Option<T> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let calm = self.time(CALM);
            if let Err((done, _)) = work.still_runs_after(calm) {
                return Some(done);
            }
            self.strike(world);
        }
        None
    }

    fn strike(&mut self, world: &mut World) {
        let long = match self.regime {
            Regime::Short => SHORT,
            Regime::Away | Regime::Frozen => LONG,
        };
        let client = self.rng.below(world.mounts.len());
        match self.rng.below(5) {
            0 => {
                let away = self.time((0, long.1 / 2));
                world.server.daemon.kill();
                thread::sleep(away);
                world.server.start_again();
                self.faults.servers_killed += 1;
            }
            1 => {
                let away = self.time(long);
                world.server.daemon.signal(Signal::STOP);
                thread::sleep(away);
                world.server.daemon.signal(Signal::CONT);
                self.faults.servers_frozen += 1;
            }
            2 => {
                let away = match self.regime {
                    Regime::Frozen => self.time(LONG),
                    Regime::Short | Regime::Away => self.time(SHORT),
                };
                world.mounts[client].freeze();
                thread::sleep(away);
                world.mounts[client].thaw();
                self.faults.clients_frozen += 1;
            }
            3 => {
                let away = self.time(long);
                world.relays[client].cut();
                thread::sleep(away);
                world.relays[client].mend();
                self.faults.links_cut += 1;
            }
            _ => {
                let rate = self.rng.between(250_000, 5_000_000) as u64;
                let slow = Slow {
                    delay: self.time((1, 60)),
                    rate,
                    queue: rate / 4,
                };
                let lasts = self.time((500, 6_000));
                world.relays[client].slow(Some(slow));
                thread::sleep(lasts);
                world.relays[client].slow(None);
                self.faults.links_slowed += 1;
            }
        }
    }
}
