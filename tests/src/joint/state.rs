//! The joined cores, step by step.

use super::check;
use super::event::{self, Hosts, Pending, When};
use super::parts::{
    Blow, ClientEv, Ev, FILES, Kernel, KernelEv, Line, MS, Nanos, Obj, S, ServerEv, Told,
    Violation, World,
};
use super::plan::{Faults, Grain, OPENS, Op, Plan};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The one file.
pub(super) const FILE: Obj = FILES[0];

/// What can be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The event with this id.
    Event(u64),
    /// Time passes until that event's time has come.
    Wait(u64),
    Crash,
    HostCrash,
    Kill(usize),
    Break(usize),
    Part(usize),
    /// All that is left is done in its time.
    End,
}

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub id: u64,
    pub hosts: Hosts,
    pub what: What,
}

/// What a step meant for what processes see, whose order counts across hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// What it has changed, with all that followed at once.
    pub hosts: Hosts,
    /// What can be seen has changed.
    pub changed: bool,
    /// An operation has begun, or ended.
    pub op: bool,
}

impl Seen {
    /// Whether the order of two such steps can be told, by hosts or by what processes see.
    pub fn matters(self, other: Self) -> bool {
        self.hosts.meet(other.hosts)
            || self.changed && (other.changed || other.op)
            || other.changed && self.op
    }
}

/// The position of an operation's begin among all changes.
#[derive(Clone, Debug, Default, Hash)]
struct Began {
    at: u64,
    /// Of syncs that have ended.
    syncs: Vec<u64>,
    ops: u64,
}

pub(super) struct Joint {
    pub world: World,
    plan: Plan,
    pending: Vec<Pending>,
    /// What was left out until the end.
    aside: Vec<Ev>,
    /// The history of each client's host.
    histories: Vec<u64>,
    began: Vec<Began>,
    left: Faults,
    /// Up to where time has come; what lies beyond tells the order of steps only.
    base: Nanos,
    last_ops: u64,
    touched: Hosts,
    forced: u32,
    pub ended: bool,
}

/// So often time passes because nothing else can happen.
const LONGEST_WAIT: u32 = 80;

/// So many things happen at once, one after the other, before it counts as a loop.
const LONGEST_REST: u32 = 1_000;

fn mix(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Joint {
    /// All clients are there and have opened the file; nothing is under way.
    pub fn new(plan: &Plan, traced: bool) -> Self {
        leasefs_client::repeat_tables();
        let clients = plan.script.0.len();
        let mut world = World::still(clients, traced);
        while world.clients.iter().any(|c| c.kernel.is_none()) {
            world.step();
        }
        tell(&mut world, |_| OPENS.to_vec());
        while !is_through(&world) {
            world.step();
        }
        let settled = world.cx.now + 20 * MS;
        while world.cx.now < settled {
            world.step();
        }
        let base = (world.cx.now / MS + 1) * MS;
        world.cx.now = base;
        tell(&mut world, |client| {
            plan.script.0[client].iter().map(|op| op.told()).collect()
        });
        let last_ops = ops(&world);
        let mut joint = Self {
            world,
            plan: plan.clone(),
            pending: Vec::new(),
            aside: vec![Ev::Audit],
            histories: vec![0; clients],
            began: vec![Began::default(); clients],
            left: plan.faults,
            base,
            last_ops,
            touched: Hosts::default(),
            forced: 0,
            ended: false,
        };
        joint.absorb(0);
        joint.settle();
        joint
    }

    /// What went wrong.
    pub fn violation(&self) -> Option<&Violation> {
        self.world.cx.judge.violation.as_ref()
    }

    /// What was noted since `from`.
    pub fn trace(&mut self) -> Vec<Line> {
        self.world.cx.take_trace()
    }

    /// Takes up what has come of a step; from there on it is what is pending.
    fn absorb(&mut self, origin: u64) -> usize {
        let world = &self.world;
        self.pending.retain(|p| !event::is_over(world, &p.ev));
        let mut fresh = self.pending.len();
        for (number, due) in self.world.cx.take_all().into_iter().enumerate() {
            let when = event::when(&due.ev, self.plan.grain);
            match when {
                When::Never => continue,
                When::InTheEnd => {
                    if !matches!(due.ev, Ev::Audit) {
                        self.aside.push(due.ev);
                    }
                    continue;
                }
                _ => {}
            }
            let hosts = event::hosts(&self.world, &due.ev);
            if is_tick(&due.ev)
                && let Some(old) = self
                    .pending
                    .iter()
                    .position(|p| is_tick(&p.ev) && p.hosts == hosts)
            {
                self.pending.remove(old);
                fresh -= usize::from(old < fresh);
            }
            if event::is_over(&self.world, &due.ev) {
                continue;
            }
            let mut id = event::id(&due.ev).unwrap_or_else(|| mix((origin, number)));
            while self.pending.iter().any(|p| p.id == id) {
                id = mix((id, "another"));
            }
            self.pending.push(Pending {
                id,
                at: due.at,
                ev: due.ev,
                hosts,
                when,
            });
        }
        fresh
    }

    fn may_crash(&self) -> bool {
        self.world.server.up && (self.left.crashes > 0 || self.left.host_crashes > 0)
    }

    /// Does what is to be done at once, up to what a crash may come before.
    fn settle(&mut self) {
        let may_crash = self.may_crash();
        for step in 0.. {
            let next = self.at_once(may_crash);
            let Some(index) = next.filter(|_| self.violation().is_none()) else {
                return;
            };
            if step > LONGEST_REST {
                let what = event::describe(&self.pending[index].ev);
                self.world
                    .cx
                    .judge
                    .accuse(None, || format!("no rest is come to at one moment: {what}"));
                return;
            }
            self.take(index);
        }
    }

    fn at_once(&self, may_crash: bool) -> Option<usize> {
        let mut streams = Vec::new();
        self.pending.iter().position(|p| {
            let stream = event::stream(&p.ev);
            let first = stream.is_none_or(|stream| !streams.contains(&stream));
            streams.extend(stream);
            match p.when {
                When::AtOnce => true,
                When::AtOnceOrNever => !may_crash,
                When::Soon => first,
                When::InTime => p.at <= self.base && self.plan.grain == Grain::Coarse,
                _ => false,
            }
        })
    }

    fn take(&mut self, index: usize) {
        let pending = self.pending.remove(index);
        let origin = self.note(pending.hosts, pending.id);
        self.run(pending.ev, origin);
    }

    /// A step of these hosts: their histories go on.
    fn note(&mut self, hosts: Hosts, id: u64) -> u64 {
        self.world.cx.now += 1;
        self.touched = self.touched.with(hosts);
        let mut all = id;
        for (index, history) in self.histories.iter_mut().enumerate() {
            if hosts.meet(Hosts(1 << index)) {
                *history = mix((*history, id, self.base));
                all = mix((all, *history));
            }
        }
        all
    }

    fn run(&mut self, ev: Ev, origin: u64) {
        let begins = match &ev {
            Ev::Kernel(client, _, KernelEv::Next(_)) => Some(*client),
            _ => None,
        };
        if let Some(client) = begins {
            let order = self.world.cx.judge.order;
            let began = &mut self.began[client];
            began.ops += 1;
            began.at = order.count;
            let script = &self.plan.script.0[client];
            if script.get(began.ops as usize - 1) == Some(&Op::Sync) {
                began.syncs.push(order.count);
            }
        }
        self.world.perform(ev);
        let fresh = self.absorb(origin);
        check::approvals(&mut self.world, &self.pending[fresh..]);
        check::beliefs(&mut self.world);
    }

    /// What can be done now; the first is what a quiet day brings.
    pub fn choices(&self) -> Vec<Choice> {
        if self.ended || self.violation().is_some() {
            return Vec::new();
        }
        if let Some(next) = self.pending.iter().find(|p| p.when == When::AtOnceOrNever) {
            let mut choices = vec![choice(next)];
            self.add_crashes(&mut choices);
            return choices;
        }
        let mut choices = self.events();
        let quiet = choices.is_empty();
        if quiet {
            choices.push(self.what_else());
        }
        if !quiet {
            self.add_waits(&mut choices);
        }
        self.add_crashes(&mut choices);
        self.add_other_faults(&mut choices);
        choices
    }

    fn events(&self) -> Vec<Choice> {
        let mut streams = Vec::new();
        let mut choices = Vec::new();
        for pending in &self.pending {
            if let Some(stream) = event::stream(&pending.ev) {
                if streams.contains(&stream) {
                    continue;
                }
                streams.push(stream);
            }
            let due = pending.when == When::InTime && pending.at <= self.base;
            if due || pending.when == When::AnyTime {
                choices.push(choice(pending));
            }
        }
        choices
    }

    /// Nothing happens but that time passes.
    fn what_else(&self) -> Choice {
        let waits = !is_through(&self.world) && self.forced < LONGEST_WAIT;
        let in_time = self.pending.iter().filter(|p| p.when == When::InTime);
        match in_time.min_by_key(|p| p.at).filter(|_| waits) {
            Some(next) => wait(next),
            None => fault(What::End, Hosts::ALL),
        }
    }

    /// Time passes to what is due next at any host.
    fn add_waits(&self, choices: &mut Vec<Choice>) {
        if self.left.waits == 0 {
            return;
        }
        for index in 0..=self.histories.len() {
            let of_host = self.pending.iter().filter(|p| p.hosts == Hosts(1 << index));
            let in_time = of_host.filter(|p| p.when == When::InTime && p.at > self.base);
            choices.extend(in_time.min_by_key(|p| p.at).map(wait));
        }
    }

    fn add_crashes(&self, choices: &mut Vec<Choice>) {
        if !self.world.server.up {
            return;
        }
        if self.left.crashes > 0 {
            choices.push(fault(What::Crash, self.crash_hosts()));
        }
        if self.left.host_crashes > 0 {
            choices.push(fault(What::HostCrash, self.crash_hosts()));
        }
    }

    /// A crash takes with it what is under way; clients learn of it later, over the connections that
    /// they have now.
    fn crash_hosts(&self) -> Hosts {
        let Faults {
            crashes,
            host_crashes,
            kills,
            breaks,
            parts,
            ..
        } = self.plan.faults;
        if crashes + host_crashes + kills + breaks + parts > 1 {
            return Hosts::ALL;
        }
        let clients = 0..self.world.clients.len();
        clients.fold(Hosts::server(self.world.clients.len()), |hosts, index| {
            hosts.with(Hosts::up(index)).with(Hosts::down(index))
        })
    }

    fn add_other_faults(&self, choices: &mut Vec<Choice>) {
        for (index, client) in self.world.clients.iter().enumerate() {
            let both = Hosts::client(index)
                .with(Hosts::up(index))
                .with(Hosts::down(index));
            if !client.alive {
                continue;
            }
            if self.left.kills > 0 {
                choices.push(fault(What::Kill(index), both));
            }
            if self.left.breaks > 0 && client.link().is_some() {
                choices.push(fault(What::Break(index), both));
            }
            if self.left.parts > 0 && client.apart.is_none() {
                choices.push(fault(What::Part(index), both));
            }
        }
    }

    /// Does it, and all that follows at once.
    pub fn perform(&mut self, choice: Choice) -> Seen {
        self.touched = choice.hosts;
        let changes = self.world.cx.judge.order.count;
        let begun: u64 = self.began.iter().map(|b| b.ops).sum();
        match choice.what {
            What::Event(id) => {
                if let Some(index) = self.pending.iter().position(|p| p.id == id) {
                    self.take(index);
                }
            }
            What::Wait(id) => self.wait(id),
            What::End => self.end(),
            other => {
                let origin = self.note(choice.hosts, choice.id);
                let blow = self.blow(other);
                self.run(Ev::Blow(blow), origin);
            }
        }
        self.settle();
        let ops = ops(&self.world);
        let ended = std::mem::replace(&mut self.last_ops, ops) != ops;
        let now_begun: u64 = self.began.iter().map(|b| b.ops).sum();
        Seen {
            hosts: self.touched,
            changed: self.world.cx.judge.order.count != changes,
            op: ended || now_begun != begun,
        }
    }

    fn wait(&mut self, id: u64) {
        let Some(index) = self.pending.iter().position(|p| p.id == id) else {
            return;
        };
        match self.events().is_empty() {
            true => self.forced += 1,
            false => self.left.waits -= 1,
        }
        let at = self.pending[index].at.max(self.base + MS);
        (self.base, self.world.cx.now) = (at, at);
        self.take(index);
    }

    fn blow(&mut self, what: What) -> Blow {
        let left = &mut self.left;
        match what {
            What::Kill(index) => {
                left.kills -= 1;
                Blow::Kill(index, S)
            }
            What::Break(index) => {
                left.breaks -= 1;
                Blow::Break(index)
            }
            What::Part(index) => {
                left.parts -= 1;
                Blow::Part(index, 3 * S)
            }
            What::HostCrash => {
                left.host_crashes -= 1;
                crash(true)
            }
            _ => {
                left.crashes -= 1;
                crash(false)
            }
        }
    }

    /// Everything that is under way comes to its end, in its time, and nothing goes wrong any more.
    fn end(&mut self) {
        self.ended = true;
        let world = &mut self.world;
        for pending in self.pending.drain(..) {
            world.cx.at(pending.at, pending.ev);
        }
        for ev in self.aside.drain(..) {
            let soon = match ev {
                Ev::Kernel(..) => 100 * MS,
                _ => MS,
            };
            world.cx.after(soon, ev);
        }
        world.end_well();
    }

    /// What tells this state from others. Two runs that bring every client the same things in the same
    /// order, and the server and what is under way to the same state, have the same.
    pub fn fingerprint(&self) -> u64 {
        let busy = self
            .world
            .clients
            .iter()
            .zip(&self.began)
            .map(|(client, began)| {
                let busy = !client.busy().is_empty();
                (busy.then_some(began.at), &began.syncs)
            });
        let busy: Vec<_> = busy.collect();
        let order = self.world.cx.judge.order;
        let mut pending: Vec<u64> = self.pending.iter().map(|p| p.id).collect();
        pending.sort_unstable();
        let server = self.world.server.digest();
        let hosts = (&self.histories, server, pending);
        mix((hosts, self.base, order.digest, busy, self.left, self.ended))
    }

    /// What a choice is, for people.
    pub fn describe(&self, choice: &Choice) -> String {
        let of = |id: u64| {
            let pending = self.pending.iter().find(|p| p.id == id);
            pending.map_or_else(String::new, |p| event::describe(&p.ev))
        };
        match choice.what {
            What::Event(id) => of(id),
            What::Wait(id) => format!("time passes until: {}", of(id)),
            What::Crash => "the server's process crashes and starts again".into(),
            What::HostCrash => "the server's host crashes and starts again".into(),
            What::Kill(index) => format!("client {index} is killed"),
            What::Break(index) => format!("the connection of client {index} breaks"),
            What::Part(index) => format!("client {index} is cut off for 3 s"),
            What::End => "nothing new happens; all that has begun comes to its end".into(),
        }
    }
}

fn choice(pending: &Pending) -> Choice {
    Choice {
        id: pending.id,
        hosts: pending.hosts,
        what: What::Event(pending.id),
    }
}

fn wait(pending: &Pending) -> Choice {
    Choice {
        id: mix((pending.id, "wait")),
        hosts: Hosts::ALL,
        what: What::Wait(pending.id),
    }
}

fn fault(what: What, hosts: Hosts) -> Choice {
    Choice {
        id: mix(format!("{what:?}")),
        hosts,
        what,
    }
}

fn crash(host_crashed: bool) -> Blow {
    Blow::Crash {
        down_for: 0,
        host_crashed,
        amid: false,
    }
}

fn is_tick(ev: &Ev) -> bool {
    matches!(
        ev,
        Ev::Server(_, ServerEv::Tick) | Ev::Client(_, _, ClientEv::Tick)
    )
}

fn ops(world: &World) -> u64 {
    world.cx.stats.ops + world.cx.stats.unanswered
}

fn tell(world: &mut World, script: impl Fn(usize) -> Vec<Told>) {
    for (index, client) in world.clients.iter_mut().enumerate() {
        if let Some(kernel) = &mut client.kernel {
            kernel.tell_process(&mut world.cx, 0, &script(index));
        }
    }
}

/// Whether processes have done all that they were told, but for those of dead clients.
fn is_through(world: &World) -> bool {
    let alive = world.clients.iter().filter(|c| c.alive);
    let mut kernels = alive.filter_map(|c| c.kernel.as_ref());
    kernels.all(Kernel::is_through)
}
