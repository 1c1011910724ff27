//! A run: what there is, what happens, what must be true.

mod locks;

use super::client::{Client, ClientEv, Make};
use super::clock::HostClock;
use super::cx::{Cx, Ev, Line, Stats};
use super::host::Host;
use super::judge::{Fresh, Violation};
use super::kernel::Habit;
use super::model::{Item, MS, Nanos, S};
use super::nemesis::{Blow, KINDS, Weather};
use super::net::Way;
use super::server::{Server, Settings};
use leasefs_client::repeat_tables;
use leasefs_lease::server::Bouncing;
use leasefs_lease::time::lengthened;
use leasefs_protocol::control::SCATTERS;
use std::fmt;
use std::time::Duration;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names the run.
    pub seed: u64,
    /// Events until it winds down.
    pub steps: u64,
    /// Clients at most; 0 is as many as the seed says.
    pub clients: usize,
    /// Kinds of misfortune that may come.
    pub allowed: [bool; KINDS.len()],
    /// Whether processes store into maps.
    pub maps: bool,
    /// Whether names change.
    pub names: bool,
    /// Whether processes do nothing else.
    pub only_names: bool,
    /// Whether the disk may be full.
    pub fills: bool,
    /// Whether links are slow, and files large.
    pub slow: bool,
    /// Whether clients may be away until they are forgotten.
    pub away: bool,
    /// Whether processes lock files, in those runs of which their seed says so.
    pub locks: bool,
    /// Misfortunes come thick and fast; so many crashes in a hundred are of the server's host.
    pub rough: Option<usize>,
}

impl Plan {
    /// Everything, of a seed.
    pub fn of(seed: u64, steps: u64) -> Self {
        Self {
            seed,
            steps,
            clients: 0,
            allowed: [true; KINDS.len()],
            maps: true,
            names: true,
            only_names: false,
            fills: true,
            slow: false,
            away: true,
            locks: true,
            rough: None,
        }
    }

    /// With these kinds of misfortune alone.
    #[must_use]
    pub fn with_only(mut self, kinds: &[&str]) -> Self {
        self.allowed = KINDS.map(|name| kinds.contains(&name));
        self
    }
}

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    plan: Plan,
    at: Nanos,
    steps: u64,
    violation: Violation,
    lines: Vec<Line>,
}

impl Failure {
    /// What was wrong, in a line.
    pub fn what(&self) -> &str {
        self.violation.what.lines().next().unwrap_or_default()
    }

    /// Events until then.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

/// Lines of the trace that a failure shows.
const SHOWN: usize = 80;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, steps, .. } = self.plan;
        let at = self.at as f64 / 1e6;
        writeln!(f, "What went before:")?;
        let object = self.violation.item.map(Item::object);
        // A wait may be due to any of them.
        let all = f.alternate() && object.is_none();
        let concerns = |line: &&Line| all || line.object.is_none() || line.object == object;
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
        writeln!(f, "seed {seed}, at {at:.3} ms: {}", self.violation.what)?;
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
    repeat_tables();
    let mut world = World::new(plan, false);
    world.run();
    let Some(first) = world.cx.judge.violation.take() else {
        return Ok(world.cx.stats);
    };
    let mut world = World::new(plan, true);
    world.run();
    let violation = world.cx.judge.violation.take().unwrap_or(Violation {
        what: format!(
            "a run that failed did not fail again: it depends on something beside its seed. It was: {}",
            first.what
        ),
        item: first.item,
    });
    Err(Box::new(Failure {
        plan,
        at: world.cx.now,
        steps: world.cx.stats.steps,
        violation,
        lines: world.cx.take_trace(),
    }))
}

/// How often everything is looked over.
const AUDIT: Nanos = 100 * MS;
/// How long an unmount waits for what is to be flushed.
const LONGEST_UNMOUNT: Nanos = 1_500 * MS;
/// What an operation may take beyond what it waits for: reconnecting, pauses, other operations.
const SLACK: Nanos = 6_000 * MS;

/// How often it is looked whether what a client has closed is closed at the server.
const CLOSES: usize = 20;
/// How often it is asked whether a client caches.
const PROBES: usize = 20;
/// How long a session is kept for its client's return.
const COURTESY: Nanos = 20 * S;

pub(crate) struct World {
    pub cx: Cx,
    plan: Plan,
    pub server: Server,
    pub clients: Vec<Client>,
    mounts: u64,
    weather: Weather,
    drift_ppm: u32,
    /// No more misfortunes.
    healing: bool,
    /// All mounts end.
    leaving: bool,
}

impl World {
    fn new(plan: Plan, traced: bool) -> Self {
        Self::with(Cx::new(plan.seed, traced), plan)
    }

    /// A world of so many clients that nothing happens to by chance.
    pub fn still(clients: usize, traced: bool) -> Self {
        let plan = Plan {
            clients,
            ..Plan::of(0, 0)
        };
        Self::with(Cx::still(traced), plan)
    }

    fn with(mut cx: Cx, plan: Plan) -> Self {
        let drift_ppm = [1_000, 20_000, 100_000][cx.rng.below(3)];
        let clock = any_clock(&mut cx, drift_ppm);
        let settings = any_settings(&mut cx, drift_ppm, plan.seed);
        let weather = match cx.rng.chance(10) {
            true => Weather::calm(),
            false => Weather::any(&mut cx, &plan.allowed),
        };
        let weather = match plan.rough {
            Some(host_crashes) => weather.rough(&plan.allowed, host_crashes),
            None => weather,
        };
        let room = match plan.fills && cx.rng.chance(20) {
            true => cx.rng.between(30, 60),
            false => 100_000,
        };
        let host = Host::new(&mut cx, room, false);
        let mut world = Self {
            server: Server::new(clock, host, settings),
            cx,
            plan,
            clients: Vec::new(),
            mounts: 0,
            weather,
            drift_ppm,
            healing: false,
            leaving: false,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.server.start(&mut self.cx, false);
        let count = match self.plan.clients {
            0 => self.cx.rng.between(2, 4),
            most => most,
        };
        let farthest = [1, 1, 1, 4, 4, 4, 40, 120][self.cx.rng.below(8)] * MS as usize;
        let pace = [20, 100, 400, 1_500][self.cx.rng.below(4)] * MS;
        let mut habit = Habit::any(&mut self.cx);
        habit.names *= usize::from(self.plan.names);
        if self.plan.only_names {
            (habit.names, habit.only_names) = (1_000, true);
        }
        habit.locks = self.plan.has_locks();
        habit.stores *= usize::from(self.plan.maps);
        if self.plan.slow {
            (habit.run, habit.cells) = (16, 160);
        }
        let forgets_names = self.cx.rng.chance(80);
        self.cx
            .net
            .set_slowest([20, 150, 600][self.cx.rng.below(3)] * MS);
        for index in 0..count {
            let clock = any_clock(&mut self.cx, self.drift_ppm);
            let way = Way {
                usual: self.cx.rng.between(50_000, farthest) as Nanos,
                rate: match self.plan.slow {
                    true => [20, 50, 100][self.cx.rng.below(3)] * 1024,
                    false => 1 << 30,
                },
            };
            let patience = [None, Some(60), Some(20)][self.cx.rng.below(3)];
            let make = Make {
                index,
                clock,
                drift_ppm: self.drift_ppm,
                way,
                processes: self.cx.rng.between(1, 4),
                pace,
                habit,
                patience: patience.map(Duration::from_secs),
                forgets_names,
            };
            let client = self.mount(make);
            self.clients.push(client);
        }
        if !self.cx.rng.is_still() {
            self.weather.schedule(&mut self.cx);
        }
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
        let end = self.cx.now + self.longest_end();
        self.run_until(end, Self::is_busy);
        self.check_that_all_ended();
        self.leave();
        self.cx.stats.seen = self.cx.judge.seen;
    }

    /// Whether something is still to be done for a process, or to be flushed.
    pub fn is_busy(&self) -> bool {
        self.clients
            .iter()
            .any(|c| c.alive && (!c.busy().is_empty() || c.is_dirty() || c.is_closing()))
    }

    /// What is under way, for people.
    pub fn describe(&self) -> String {
        let clients: Vec<String> = self.clients.iter().map(Client::describe).collect();
        format!("{}\n{}", clients.join("\n"), self.server.describe())
    }

    /// Everything is mended, and what has begun comes to its end.
    pub fn end_well(&mut self) {
        self.heal();
        let end = self.cx.now + self.longest_end();
        self.run_until(end, |world| world.is_busy() || world.is_kept_back());
        self.check_that_all_ended();
        let alive = self.clients.iter().filter(|c| c.alive);
        let alive: Vec<_> = alive.map(Client::session).collect();
        self.cx
            .judge
            .check_nothing_is_held(|session| alive.contains(&session));
    }

    /// Whether a mapped page is still to be written back.
    fn is_kept_back(&self) -> bool {
        let mut alive = self.clients.iter().filter(|c| c.alive);
        alive.any(|c| !self.cx.judge.held_by(c.session()).is_empty())
    }

    fn check_that_all_ended(&mut self) {
        if self.is_busy() {
            let what = self.describe();
            self.cx
                .judge
                .accuse(None, || format!("operations never end\n{what}"));
        }
    }

    fn run_until(&mut self, end: Nanos, goes_on: impl Fn(&Self) -> bool) {
        while self.cx.judge.violation.is_none() && self.cx.now < end && goes_on(self) {
            self.step();
        }
    }

    /// Everything broken is mended; nobody begins anything new.
    pub fn heal(&mut self) {
        self.healing = true;
        let cx = &mut self.cx;
        cx.trace(None, || "everything is mended".into());
        for client in &mut self.clients {
            client.winding_down = true;
            if let Some(kernel) = &mut client.kernel {
                kernel.winding_down = true;
            }
            client.apart = None;
            client.thaw(cx);
        }
        self.server.goes_on();
        cx.disturbed = cx.now;
    }

    /// All mounts end: nothing is left then.
    fn leave(&mut self) {
        // Mapped pages are written back by then.
        let end = self.cx.now + 3 * S;
        while self.cx.judge.violation.is_none() && self.cx.now < end {
            self.step();
        }
        self.check_that_all_cache();
        self.check_opens();
        self.check_no_locks_are_left();
        let alive: Vec<_> = self
            .clients
            .iter()
            .filter(|c| c.alive)
            .map(Client::session)
            .collect();
        self.cx
            .judge
            .check_nothing_is_held(|session| alive.contains(&session));
        if self.cx.judge.violation.is_some() {
            return;
        }
        self.leaving = true;
        for client in &mut self.clients {
            if client.alive {
                client.goodbye(&mut self.cx);
            }
        }
        let end = self.cx.now + 2 * self.longest() + SLACK;
        while self.cx.judge.violation.is_none() && self.cx.now < end {
            self.step();
        }
        let (leases, locks) = (self.server.leases(), self.server.locks());
        if (leases > 0 || !locks.is_empty()) && self.server.up {
            self.cx.judge.accuse(None, || {
                format!("{leases} leases and {locks:?} are left in the end")
            });
        }
    }

    /// The server has nothing open that its client doesn't.
    fn check_opens(&mut self) {
        for _ in 0..CLOSES {
            if self.left_open().is_none() || self.cx.judge.violation.is_some() {
                return;
            }
            self.wait(500 * MS);
        }
        if let Some((index, here, there)) = self.left_open() {
            self.cx.judge.accuse(None, || {
                format!("client {index} has {here} files open, the server {there} of it")
            });
        }
    }

    fn left_open(&self) -> Option<(usize, usize, usize)> {
        let clients = self.clients.iter().filter(|c| c.alive && self.server.up);
        let mut opens = clients.filter_map(|client| {
            let there = self.server.opens(client.session());
            Some((client.make.index, client.opens()?, there))
        });
        opens.find(|(_, here, there)| there > here)
    }

    fn wait(&mut self, time: Nanos) {
        let end = self.cx.now + time;
        self.run_until(end, |_| true);
    }

    /// Whoever is well and hasn't held others up lately caches again, unless its leases are shorter than
    /// the way to the server.
    fn check_that_all_cache(&mut self) {
        let near = self.distance() < 400 * MS && self.cx.net.slowest() < 100 * MS;
        let may = near && self.server.settings.max_leases > 100 && self.drift_ppm < 50_000;
        if self.cx.judge.violation.is_some() || !may || self.plan.slow {
            return;
        }
        self.wait(3 * S);
        let mut asked: Vec<Vec<u64>> = Vec::new();
        for _ in 0..PROBES {
            let cx = &mut self.cx;
            let clients = self.clients.iter_mut().filter(|c| c.alive);
            asked.push(clients.map(|client| client.probe(cx)).collect());
            self.wait(100 * MS);
        }
        let first = asked[0].clone();
        let last = asked[PROBES - 1].clone();
        let always = |(a, b): (&u64, &u64)| *b >= a + PROBES as u64 - 2;
        if let Some(client) = first.iter().zip(&last).position(always) {
            self.cx.judge.accuse(None, || {
                format!("client {client} of those that live caches nothing: {asked:?}")
            });
        }
    }

    /// The next thing happens.
    pub fn step(&mut self) {
        if let Some(ev) = self.cx.next() {
            self.perform(ev);
        }
    }

    /// Something happens now.
    pub fn perform(&mut self, ev: Ev) {
        let cx = &mut self.cx;
        match ev {
            Ev::ToServer(link, stream, up) => {
                if cx.net.delivers(cx.now, link, stream) && self.server.up {
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
                    client.kernel_happens(cx, ev);
                }
            }
            Ev::Blow(blow) => self.blow(blow),
            Ev::Audit => self.audit(),
        }
        for (object, attr) in std::mem::take(&mut self.cx.judge.shown) {
            if !self.server.host.had(object, &attr) {
                let item = Item::Attrs(object);
                self.cx
                    .judge
                    .accuse(Some(item), || format!("{object:?} never was {attr:?}"));
            }
        }
        if !self.cx.judge.fresh.is_empty() {
            self.check_beliefs();
        }
        let locks = &self.cx.judge.locks;
        if !locks.fresh.is_empty() || !locks.losses.is_empty() {
            self.check_locks();
        }
    }

    /// What has just changed is believed to be otherwise by nobody else.
    fn check_beliefs(&mut self) {
        let fresh = std::mem::take(&mut self.cx.judge.fresh);
        for Fresh { item, by } in fresh {
            // Of several values at the same moment the last counts.
            if self.cx.judge.is_unsettled(item) {
                continue;
            }
            for client in &self.clients {
                // Whose change it is holds the file alone until it is told.
                if by == Some(client.session()) || by.is_none() {
                    continue;
                }
                let believed = client.believes(&self.cx, item);
                let Some(belief) = believed.filter(|b| !self.cx.judge.may_be(item, *b)) else {
                    continue;
                };
                let (index, current) = (client.make.index, self.cx.judge.current(item));
                self.cx.judge.accuse(Some(item), || {
                    format!("the kernel of client {index} believes {item:?} to be {belief:x}, it is {current:x}")
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
        if let Blow::Left(link) = blow {
            if self.server.up {
                self.server.link_ends(&mut self.cx, link);
            }
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
            Blow::Choose | Blow::Lost(..) | Blow::Left(_) => {}
            Blow::Freeze(index, time) => {
                let client = &mut self.clients[index];
                if client.frozen.is_none() && client.alive && !client.asleep {
                    client.freeze(cx);
                    cx.after(time, Ev::Blow(Blow::Thaw(index)));
                }
            }
            Blow::Thaw(index) => self.clients[index].thaw(cx),
            Blow::Announce(index, time) => {
                let client = &mut self.clients[index];
                if client.frozen.is_none() && client.alive && !client.asleep {
                    client.prepare_sleep(cx);
                    // Nobody waits longer than a moment.
                    let wait = cx.short(500 * MS);
                    cx.after(wait, Ev::Blow(Blow::Suspend(index, time)));
                    let over = wait + time + S;
                    cx.after(over, Ev::Blow(Blow::Awake(index)));
                }
            }
            Blow::Awake(index) => self.clients[index].wakes(cx),
            Blow::Suspend(index, time) => {
                let client = &mut self.clients[index];
                if client.frozen.is_none() && client.alive && !client.asleep {
                    client.suspend();
                    cx.after(time, Ev::Blow(Blow::Resume(index, time)));
                }
            }
            Blow::Resume(index, time) => {
                let client = &mut self.clients[index];
                if client.asleep {
                    if client.is_prepared {
                        // Its processes are the first to run.
                        client.resume_unnoticed(cx, time);
                        client.run_kernel(cx, 0);
                        let late = cx.short(100 * MS);
                        cx.after(late, Ev::Blow(Blow::Thaw(index)));
                    } else {
                        client.resume(cx, time);
                    }
                }
            }
            Blow::Break(index) => break_link(cx, &mut self.clients[index]),
            Blow::Part(index, time) => {
                let often = if self.plan.names { 4 } else { 40 };
                let time = match self.plan.away && cx.rng.chance(often) {
                    true => 2 * COURTESY,
                    false => time,
                };
                // What it has buffered comes too late.
                let dirty = self.clients.iter().position(Client::is_dirty);
                let index = dirty.filter(|_| cx.rng.chance(50)).unwrap_or(index);
                if self.clients[index].apart.is_none() {
                    self.clients[index].apart = Some(cx.now);
                    self.clients[index].hurt = Nanos::MAX;
                    break_link(cx, &mut self.clients[index]);
                    cx.after(time, Ev::Blow(Blow::Join(index)));
                }
            }
            Blow::Join(index) => {
                self.clients[index].apart = None;
                self.clients[index].hurt = cx.now;
                self.company(20 * MS);
            }
            Blow::Stall(index, time) => {
                let client = &mut self.clients[index];
                let until = &mut client.stalled_until;
                *until = (cx.now + time).max(*until);
                let until = *until + 300 * MS;
                client.troubled = client.troubled.max(until);
                if let Some(kernel) = &mut client.kernel {
                    kernel.stale_until = kernel.stale_until.max(until);
                }
            }
            Blow::Kill(index, time) => {
                if self.clients[index].alive {
                    self.clients[index].crash(cx);
                    cx.after(time, Ev::Blow(Blow::Mount(index)));
                }
            }
            Blow::Unmount(index, time) => self.unmount(index, time),
            Blow::Mount(index) => {
                if !self.leaving {
                    self.mount_again(index);
                }
            }
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
                    // It takes in no flush any more, but may see the session expire.
                    for client in &mut self.clients {
                        client.troubled = client.troubled.max(cx.now + down_for + 4 * S);
                    }
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
        let begins = client.leaving.is_none();
        let since = *client.leaving.get_or_insert(cx.now);
        if client.is_dirty() && client.frozen.is_none() && cx.now - since < LONGEST_UNMOUNT {
            if let Some(kernel) = &mut client.kernel {
                kernel.winding_down = true;
            }
            if begins {
                client.flush_all(cx);
            }
            cx.after(20 * MS, Ev::Blow(Blow::Unmount(index, time)));
            return;
        }
        client.goodbye(cx);
        cx.after(time + 3 * S, Ev::Blow(Blow::Mount(index)));
    }

    fn mount_again(&mut self, index: usize) {
        let old = &self.clients[index];
        let (make, apart) = (old.make, old.apart);
        let mut client = self.mount(make);
        client.apart = apart;
        client.winding_down = self.healing;
        self.clients[index] = client;
    }

    fn crash(&mut self, down_for: Nanos, host_crashed: bool) {
        let cx = &mut self.cx;
        if !self.server.up || self.server.is_ending() {
            return;
        }
        self.server.crash(cx);
        for client in &mut self.clients {
            client.loses_server(cx.now);
        }
        // Leases end while it is away, or before who is far away has claimed them back.
        let far = self.clients.iter().map(|c| c.make.way.usual).max();
        let far = far.unwrap_or_default() > 10 * MS || cx.net.slowest() > 100 * MS;
        if down_for > 300 * MS || far {
            for client in &mut self.clients {
                client.troubled = client.troubled.max(cx.now + down_for + 2 * S);
            }
        }
        if host_crashed {
            self.server.clock = any_clock(cx, self.drift_ppm);
            for client in &mut self.clients {
                client.troubled = client.troubled.max(cx.now + 5 * S);
            }
        }
        cx.after(down_for, Ev::Blow(Blow::Start { host_crashed }));
    }

    fn start(&mut self, host_crashed: bool) {
        let cx = &mut self.cx;
        if !self.server.up {
            self.server.settings = any_settings(cx, self.drift_ppm, self.plan.seed);
            self.server.start(cx, host_crashed);
        }
        // Whoever hasn't noticed hears of the restart at its next packet.
        for client in &self.clients {
            if let Some(link) = client.link() {
                let wait = cx.rng.below(500 * MS as usize) as Nanos;
                cx.after(wait, Ev::Blow(Blow::Lost(client.make.index, link)));
            }
        }
    }

    /// How long it may take until all that has begun has ended.
    pub fn longest_end(&self) -> Nanos {
        2 * self.longest() + 10 * (SLACK + self.distance())
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
        let ways = self.clients.iter().map(|c| 2 * c.make.way.usual);
        20 * ways.max().unwrap_or_default()
    }

    fn audit(&mut self) {
        self.cx.after(AUDIT, Ev::Audit);
        self.server.audit(&mut self.cx);
        let server = &self.server;
        self.cx
            .judge
            .reveal(self.cx.now, |object| server.may_write(object));
        self.check_promises();
        self.check_the_dead();
        self.check_patience();
    }

    /// No client trusts in its leases for longer than the server keeps them.
    fn check_promises(&mut self) {
        for client in self.clients.iter().filter(|client| client.alive) {
            let Some(promised) = self.server.promises_until(client.session()) else {
                continue;
            };
            let trusted = client.trusts_until();
            if trusted > self.cx.now.max(promised) {
                let index = client.make.index;
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
                let index = client.make.index;
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
        let slow = if self.plan.slow { 90 * S } else { 0 };
        let patience = longest + SLACK + slow + self.distance();
        let well = self.clients.iter().filter(|c| c.is_well(now));
        let waiting = well.flat_map(|c| {
            let busy = c.busy().into_iter();
            let busy = busy.filter_map(|(since, lock)| self.in_vain(since, lock));
            busy.map(|since| (c.make.index, since))
        });
        let disturbed = self.cx.disturbed;
        let overdue = |(_, since): &(usize, Nanos)| now - disturbed.max(*since) > patience;
        let waiting: Vec<(usize, Nanos)> = waiting.collect();
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
    let base = 1_000_000_000 + cx.rng.below(1_000_000_000) as u64;
    let clock = HostClock::new(base, cx.now, error);
    match cx.rng.is_still() {
        // Moments that only tell the order of what happens are one moment to the hosts.
        true => clock.coarse(MS),
        false => clock,
    }
}

/// In a third of the seeds each time that a read waits, writes aren't buffered for a while; in another, never.
fn bouncing(seed: u64) -> Bouncing {
    let (usual, period) = (Bouncing::default(), Duration::from_millis(300));
    let waits = match seed % 3 {
        0 => 1,
        1 => return usual,
        _ => 0,
    };
    Bouncing {
        waits,
        period,
        ..usual
    }
}

fn any_settings(cx: &mut Cx, drift_ppm: u32, seed: u64) -> Settings {
    let term = Duration::from_millis([1_000, 1_000, 2_000][cx.rng.below(3)]);
    let max_leases = if cx.rng.chance(20) { 4 } else { 1_000 };
    Settings {
        term,
        drift_ppm,
        max_leases,
        bouncing: bouncing(seed),
        courtesy: COURTESY,
        apart: cx.rng.is_still(),
        // An older server has none.
        features: if seed % 4 == 3 { 0 } else { SCATTERS },
    }
}

/// A connection breaks: one direction may live a little longer, and the client notices late.
fn break_link(cx: &mut Cx, client: &mut Client) {
    let Some(link) = client.link() else { return };
    let up = cx.now + cx.short(80 * MS);
    let down = cx.now + cx.short(80 * MS);
    cx.net.cut(link, up, down);
    let noticed = up.max(down) + cx.rng.below(400 * MS as usize) as Nanos;
    // Until it is in contact again.
    client.troubled = client.troubled.max(noticed + S);
    cx.at(noticed, Ev::Blow(Blow::Lost(client.make.index, link)));
}
