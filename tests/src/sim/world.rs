//! A run: what there is, what happens, what must be true.

use super::bug::Bug;
use super::client::{Client, ClientEv, Make};
use super::clock::HostClock;
use super::cx::{Cx, Ev, Line, Stats};
use super::judge::Violation;
use super::kernel::Habit;
use super::model::{Item, MS, Nanos};
use super::nemesis::{Blow, Weather};
use super::server::{Server, Settings};
use leasefs_lease::time::lengthened;
use std::fmt;
use std::time::Duration;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names the run.
    pub seed: u64,
    /// Events until it winds down.
    pub steps: u64,
    /// A fault put in on purpose.
    pub bug: Option<Bug>,
}

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    plan: Plan,
    at: Nanos,
    violation: Violation,
    lines: Vec<Line>,
}

/// Lines of the trace that a failure shows.
const SHOWN: usize = 80;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, steps, .. } = self.plan;
        let at = self.at as f64 / 1e6;
        writeln!(f, "seed {seed}, at {at:.3} ms: {}", self.violation.what)?;
        writeln!(f, "What went before:")?;
        let object = self.violation.item.map(|item| item.object());
        let concerns = |line: &&Line| line.object.is_none() || line.object == object;
        let lines: Vec<&Line> = self.lines.iter().filter(concerns).collect();
        let shown = if f.alternate() { lines.len() } else { SHOWN };
        for line in lines.iter().skip(lines.len().saturating_sub(shown)) {
            let object = line.object.map(|o| format!("{o:?}")).unwrap_or_default();
            writeln!(
                f,
                "{:>12.3} {object:>4} {}",
                line.at as f64 / 1e6,
                line.text
            )?;
        }
        write!(
            f,
            "To see it again: LEASEFS_SIM_SEED={seed} LEASEFS_SIM_STEPS={steps} \
             cargo test -p leasefs-tests --test simulation"
        )
    }
}

/// Runs a plan; a failure is run a second time to tell what happened.
///
/// # Errors
/// What went wrong.
pub fn run(plan: Plan) -> Result<Stats, Box<Failure>> {
    let mut world = World::new(plan, false);
    world.run();
    if world.cx.judge.violation.is_none() {
        return Ok(world.cx.stats);
    }
    let mut world = World::new(plan, true);
    world.run();
    let violation = world.cx.judge.violation.take().unwrap_or(Violation {
        what: "a run that failed did not fail again: it depends on something beside its seed"
            .into(),
        item: None,
    });
    Err(Box::new(Failure {
        plan,
        at: world.cx.now,
        violation,
        lines: world.cx.take_trace(),
    }))
}

/// How often everything is looked over.
const AUDIT: Nanos = 100 * MS;
/// How long an unmount waits for what is to be flushed.
const LONGEST_UNMOUNT: Nanos = 1_500 * MS;
/// What an operation may take beyond what it waits for: reconnecting, pauses, other operations.
const SLACK: Nanos = 4_000 * MS;

struct World {
    cx: Cx,
    plan: Plan,
    server: Server,
    clients: Vec<Client>,
    mounts: u64,
    weather: Weather,
    drift_ppm: u32,
    /// No more misfortunes.
    healing: bool,
}

impl World {
    fn new(plan: Plan, traced: bool) -> Self {
        let mut cx = Cx::new(plan.seed, plan.bug, traced);
        let drift_ppm = [1_000, 20_000, 100_000][cx.rng.below(3)];
        let clock = any_clock(&mut cx, drift_ppm);
        let settings = any_settings(&mut cx, drift_ppm);
        let weather = match cx.rng.chance(10) {
            true => Weather::calm(),
            false => Weather::any(&mut cx),
        };
        let mut world = Self {
            server: Server::new(clock, settings),
            cx,
            plan,
            clients: Vec::new(),
            mounts: 0,
            weather,
            drift_ppm,
            healing: false,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.server.start(&mut self.cx, false);
        let count = self.cx.rng.between(2, 4);
        let farthest = [1, 1, 1, 4, 4, 4, 40, 120][self.cx.rng.below(8)] * MS as usize;
        let pace = [100, 400, 1_500][self.cx.rng.below(3)] * MS;
        let habit = Habit::any(&mut self.cx);
        self.cx
            .net
            .set_slowest([20, 150, 600][self.cx.rng.below(3)] * MS);
        for index in 0..count {
            let clock = any_clock(&mut self.cx, self.drift_ppm);
            let make = Make {
                index,
                clock,
                drift_ppm: self.drift_ppm,
                way: self.cx.rng.between(50_000, farthest) as Nanos,
                processes: self.cx.rng.between(1, 4),
                pace,
                habit,
            };
            let client = self.mount(make);
            self.clients.push(client);
        }
        self.weather.schedule(&mut self.cx);
        self.cx.after(AUDIT, Ev::Audit);
    }

    fn mount(&mut self, make: Make) -> Client {
        self.mounts += 1;
        Client::mount(&mut self.cx, make, self.mounts)
    }

    fn run(&mut self) {
        while self.cx.judge.violation.is_none() && self.cx.stats.steps < self.plan.steps {
            self.step();
        }
        if self.cx.judge.violation.is_some() {
            return;
        }
        self.heal();
        let end = self.cx.now + self.longest() + 10 * (SLACK + self.distance());
        while self.cx.judge.violation.is_none() && self.cx.now < end && self.is_busy() {
            self.step();
        }
        if self.cx.judge.violation.is_some() {
            return;
        }
        if self.is_busy() {
            let what = self.describe();
            self.cx
                .judge
                .accuse(None, || format!("operations never end\n{what}"));
        }
        self.leave();
    }

    fn is_busy(&self) -> bool {
        let busy = |c: &Client| c.kernel.processes.iter().any(|p| p.busy_since().is_some());
        self.clients
            .iter()
            .any(|c| c.alive && (busy(c) || c.is_dirty()))
    }

    fn describe(&self) -> String {
        let clients: Vec<String> = self.clients.iter().map(Client::describe).collect();
        format!("{}\n{}", clients.join("\n"), self.server.describe())
    }

    /// Everything broken is mended; nobody begins anything new.
    fn heal(&mut self) {
        self.healing = true;
        let cx = &mut self.cx;
        for client in &mut self.clients {
            client.kernel.winding_down = true;
            client.apart = None;
            client.thaw(cx);
        }
        cx.disturbed = cx.now;
    }

    /// All mounts end: nothing is left then.
    fn leave(&mut self) {
        self.cx.judge.check_nothing_is_held();
        for client in &mut self.clients {
            if client.alive {
                client.goodbye(&mut self.cx);
            }
        }
        let end = self.cx.now + self.longest() + SLACK;
        while self.cx.judge.violation.is_none() && self.cx.now < end {
            self.step();
        }
        let left = self.server.leases();
        if left > 0 {
            self.cx
                .judge
                .accuse(None, || format!("{left} leases are left in the end"));
        }
    }

    fn step(&mut self) {
        let Some(ev) = self.cx.next() else { return };
        let cx = &mut self.cx;
        match ev {
            Ev::ToServer(link, stream, up) => {
                if self.server.up && cx.net.delivers(cx.now, link, stream) {
                    self.server.message(cx, link, stream, *up);
                }
            }
            Ev::ToClient(link, stream, down) => {
                if cx.net.delivers(cx.now, link, stream) {
                    let client = &mut self.clients[cx.net.client(link)];
                    client.happens(cx, ClientEv::Message(link, stream, *down));
                }
            }
            Ev::Server(life, ev) => {
                if self.server.up && self.server.life == life {
                    self.server.happens(cx, ev);
                }
            }
            Ev::Client(index, life, ev) => {
                let client = &mut self.clients[index];
                if client.life == life {
                    client.happens(cx, ev);
                }
            }
            Ev::Kernel(index, life, ev) => {
                let client = &mut self.clients[index];
                if client.life == life && client.alive {
                    client.kernel.happens(cx, ev, &self.server.store);
                }
            }
            Ev::Blow(blow) => self.blow(blow),
            Ev::Audit => self.audit(),
        }
        if !self.cx.judge.fresh.is_empty() {
            self.check_beliefs();
        }
    }

    /// What has just changed is believed to be otherwise by nobody.
    fn check_beliefs(&mut self) {
        // Of several values at the same moment the last counts.
        let fresh = std::mem::take(&mut self.cx.judge.fresh);
        for (item, _) in fresh {
            self.check_belief(item);
        }
    }

    fn check_belief(&mut self, item: Item) {
        let current = self.cx.judge.current(item);
        for client in &self.clients {
            for (who, belief) in client.believes(&self.cx, item) {
                let Some(belief) = belief.filter(|belief| *belief != current) else {
                    continue;
                };
                let index = client.index;
                self.cx.judge.accuse(Some(item), || {
                    format!("the {who} of client {index} believes {item:?} to be {belief}, it is {current}")
                });
            }
        }
    }

    /// Misfortunes like company.
    fn company(&mut self, within: Nanos) {
        let company = self.weather.company(&mut self.cx, within);
        if let Some((wait, blow)) = company.filter(|_| !self.healing) {
            self.cx.after(wait, Ev::Blow(blow));
        }
    }

    fn blow(&mut self, blow: Blow) {
        if let Blow::Lost(index, link) = blow {
            self.clients[index].happens(&mut self.cx, ClientEv::Lost(link));
            return;
        }
        if let Blow::Choose = blow {
            if !self.healing {
                self.weather.schedule(&mut self.cx);
                if let Some(blow) = self.weather.choose(&mut self.cx, self.clients.len()) {
                    self.cx.stats.blows += 1;
                    self.blow(blow);
                }
            }
            return;
        }
        let cx = &mut self.cx;
        cx.disturbed = cx.now;
        cx.trace(None, || format!("{blow:?}"));
        match blow {
            Blow::Choose | Blow::Lost(..) => {}
            Blow::Freeze(index, time) => {
                if self.clients[index].frozen.is_none() && self.clients[index].alive {
                    self.clients[index].freeze(cx);
                    cx.after(time, Ev::Blow(Blow::Thaw(index)));
                }
            }
            Blow::Thaw(index) => self.clients[index].thaw(cx),
            Blow::Break(index) => break_link(cx, &mut self.clients[index]),
            Blow::Part(index, time) => {
                // What it has buffered comes too late.
                let dirty = self.clients.iter().position(Client::is_dirty);
                let index = dirty.filter(|_| cx.rng.chance(50)).unwrap_or(index);
                if self.clients[index].apart.is_none() {
                    self.clients[index].apart = Some(cx.now);
                    break_link(cx, &mut self.clients[index]);
                    cx.after(time, Ev::Blow(Blow::Join(index)));
                }
            }
            Blow::Join(index) => {
                self.clients[index].apart = None;
                self.company(20 * MS);
            }
            Blow::Stall(index, time) => {
                let until = &mut self.clients[index].stalled_until;
                *until = (cx.now + time).max(*until);
                self.clients[index].kernel.mapped_may_be_stale = true;
            }
            Blow::Kill(index, time) => {
                if self.clients[index].alive {
                    self.clients[index].crash(cx);
                    cx.after(time, Ev::Blow(Blow::Mount(index)));
                }
            }
            Blow::Unmount(index, time) => self.unmount(index, time),
            Blow::Mount(index) => self.mount_again(index),
            Blow::Crash {
                down_for,
                host_crashed,
                amid,
            } => match amid {
                true => self.server.crash_amid(down_for, host_crashed),
                false => self.crash(down_for, host_crashed),
            },
            Blow::ShutDown(down_for) => {
                if self.server.up && !self.server.is_ending() {
                    self.server.shut_down(cx, down_for);
                }
            }
            Blow::Start { host_crashed } => {
                self.start(host_crashed);
                self.company(600 * MS);
            }
        }
    }

    /// A mount flushes before it ends, if that can be done in time.
    fn unmount(&mut self, index: usize, time: Nanos) {
        let (cx, client) = (&mut self.cx, &mut self.clients[index]);
        if !client.alive {
            return;
        }
        let since = *client.leaving.get_or_insert(cx.now);
        if client.is_dirty() && client.frozen.is_none() && cx.now - since < LONGEST_UNMOUNT {
            client.kernel.winding_down = true;
            client.hurry_all(cx);
            cx.after(20 * MS, Ev::Blow(Blow::Unmount(index, time)));
            return;
        }
        client.goodbye(cx);
        cx.after(time, Ev::Blow(Blow::Mount(index)));
    }

    fn mount_again(&mut self, index: usize) {
        let old = &self.clients[index];
        let make = Make {
            index,
            clock: old.clock,
            drift_ppm: self.drift_ppm,
            way: old.way,
            processes: old.kernel.processes.len(),
            pace: old.kernel.pace,
            habit: old.kernel.habit,
        };
        let apart = old.apart;
        let mut client = self.mount(make);
        client.apart = apart;
        client.kernel.winding_down = self.healing;
        self.clients[index] = client;
    }

    fn crash(&mut self, down_for: Nanos, host_crashed: bool) {
        let cx = &mut self.cx;
        if !self.server.up || self.server.is_ending() {
            return;
        }
        self.server.crash(cx);
        if host_crashed {
            self.server.clock = any_clock(cx, self.drift_ppm);
        }
        cx.after(down_for, Ev::Blow(Blow::Start { host_crashed }));
    }

    fn start(&mut self, host_crashed: bool) {
        let cx = &mut self.cx;
        if !self.server.up {
            self.server.settings = any_settings(cx, self.drift_ppm);
            self.server.start(cx, host_crashed);
        }
        // Whoever hasn't noticed hears of the restart at its next packet.
        for client in &self.clients {
            if let Some(link) = client.link() {
                let wait = cx.rng.below(500 * MS as usize) as Nanos;
                cx.after(wait, Ev::Blow(Blow::Lost(client.index, link)));
            }
        }
    }

    /// The longest that leases can stand in the way: a grace, a term and one for who flushes, and that a
    /// client is denied them, by the slowest clock.
    fn longest(&self) -> Nanos {
        let longest = Duration::from_secs(2);
        let term = lengthened(longest, self.drift_ppm) + Duration::from_millis(200);
        let slow = lengthened(term * 4, self.drift_ppm);
        slow.as_nanos() as Nanos
    }

    /// What the way to the server may add to an operation: some twenty times there and back.
    fn distance(&self) -> Nanos {
        let ways = self.clients.iter().map(|c| 2 * c.way);
        20 * ways.max().unwrap_or_default()
    }

    fn audit(&mut self) {
        self.cx.after(AUDIT, Ev::Audit);
        let farthest = self.clients.iter().map(|c| 2 * c.way).max();
        self.server
            .audit(&mut self.cx, farthest.unwrap_or_default());
        self.check_promises();
        self.check_the_dead();
        self.check_patience();
        for item in self.cx.judge.items() {
            self.check_belief(item);
        }
    }

    /// No client trusts in its leases for longer than the server keeps them.
    fn check_promises(&mut self) {
        for client in self.clients.iter().filter(|client| client.alive) {
            let Some(promised) = self.server.promises_until(client.session()) else {
                continue;
            };
            let trusted = client.trusts_until();
            if trusted > self.cx.now.max(promised) {
                let index = client.index;
                self.cx.judge.accuse(None, || {
                    format!("client {index} trusts in its leases until {trusted} ns, the server keeps them until {promised} ns")
                });
            }
        }
    }

    /// A client that stands still, or is gone, is waited for no longer than a term.
    fn check_the_dead(&mut self) {
        let term = lengthened(self.server.settings.term, self.drift_ppm);
        let most = lengthened(term, self.drift_ppm).as_nanos() as Nanos
            + 3 * self.cx.net.slowest()
            + self.distance()
            + AUDIT;
        let settled = self.cx.now - self.server.started_at() > self.longest();
        for client in &self.clients {
            let since = client.frozen.filter(|_| client.alive);
            let long = since.is_some_and(|since| self.cx.now - since > most);
            if long && settled && self.server.is_alive(client.session()) {
                let index = client.index;
                self.cx.judge.accuse(None, || {
                    format!("client {index} has stood still for over a term, its leases stand")
                });
            }
        }
    }

    /// Whoever is well is served in time.
    fn check_patience(&mut self) {
        let (now, longest) = (self.cx.now, self.longest());
        if !self.server.up {
            self.cx.disturbed = now;
            return;
        }
        let patience = longest + SLACK + self.distance();
        let well = self.clients.iter().filter(|c| c.is_well(&self.cx));
        let waiting = well.flat_map(|c| {
            let busy = c.kernel.processes.iter().filter_map(|p| p.busy_since());
            busy.map(|since| (c.index, since))
        });
        let disturbed = self.cx.disturbed;
        let overdue = |(_, since): &(usize, Nanos)| now - disturbed.max(*since) > patience;
        if let Some((index, since)) = waiting.into_iter().find(overdue) {
            let what = self.describe();
            self.cx.judge.accuse(None, || {
                format!(
                    "an operation of client {index} waits since {:.3} ms\n{what}",
                    since as f64 / 1e6
                )
            });
        }
    }
}

fn any_clock(cx: &mut Cx, drift_ppm: u32) -> HostClock {
    let half = drift_ppm as usize / 2;
    let error = cx.rng.below(2 * half + 1) as i64 - half as i64;
    let base = cx.rng.below(1_000_000_000) as u64;
    HostClock::new(base, cx.now, error)
}

fn any_settings(cx: &mut Cx, drift_ppm: u32) -> Settings {
    let term = Duration::from_millis([1_000, 1_000, 2_000][cx.rng.below(3)]);
    let max_leases = if cx.rng.chance(20) { 4 } else { 1_000 };
    Settings {
        term,
        drift_ppm,
        max_leases,
    }
}

/// A connection breaks: one direction may live a little longer, and the client notices late.
fn break_link(cx: &mut Cx, client: &mut Client) {
    let Some(link) = client.link() else { return };
    let up = cx.now + cx.short(80 * MS);
    let down = cx.now + cx.short(80 * MS);
    cx.net.cut(link, up, down);
    let noticed = up.max(down) + cx.rng.below(400 * MS as usize) as Nanos;
    cx.at(noticed, Ev::Blow(Blow::Lost(client.index, link)));
}
