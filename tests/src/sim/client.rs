//! A client's daemon: the shipped core, and a skin that does what it wants, as slowly as threads are.

use super::clock::HostClock;
use super::cx::{Cx, Down, Ev, Up};
use super::judge::{Granted, Holder};
use super::kernel::{Habit, Kernel, KernelEv, Unique};
use super::model::{CELL, Item, MS, Nanos, Obj, US, cells_of, session};
use super::nemesis::Blow;
use super::net::{LANES, LinkId, Stream, Way};
use super::procs::MAPPED;
use leasefs_client::{
    Action, Answer, Asker, Call, CallId, ClientCore, Config, ConnectionId, Effect, EffectId, Event,
    LockStatus, Memory, NodeId, Notice, Noticed, Owner, Signals, Timeout, Unconnected, Undelivered,
    WhyNot,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{Hello, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::PROTOCOL_VERSION;
use leasefs_protocol::{BootId, Query, Recall, Refusal, Request, RequestFrame, SessionId};
use std::collections::VecDeque;
use std::time::Duration;

/// What happens at a client's daemon.
#[derive(Debug)]
pub enum ClientEv {
    /// A deadline of the core.
    Tick,
    /// A message arrives.
    Message(LinkId, Stream, Down),
    /// It is noticed that a connection is gone.
    Lost(LinkId),
    /// It tries to connect.
    Connect,
    /// It has waited long enough for an answer to its hello.
    GivesUp(LinkId),
    /// A request of the kernel.
    Ask(Unique, Asker, Box<Call>),
    /// The kernel gives back references.
    Forget(NodeId, u64),
    /// A thread gets to something that may block.
    Begin(EffectId, Notice),
    /// The kernel is done with it.
    Notified(EffectId),
    /// Whether a caller is about to die, or to leave for another signal, is looked for.
    Look(CallId, u32, Signals),
    /// Something is in the recovery folder.
    Kept(EffectId, Obj),
    /// The mount ends.
    Goodbye,
}

/// What a client is made with.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// Which one.
    pub index: usize,
    /// Its host's clock.
    pub clock: HostClock,
    /// Its drift bound.
    pub drift_ppm: u32,
    /// Its way to the server.
    pub way: Way,
    /// How many processes work on it.
    pub processes: usize,
    /// How long they pause at most.
    pub pace: Nanos,
    /// What they do.
    pub habit: Habit,
    /// How long requests wait; `None` is for ever.
    pub patience: Option<Duration>,
    /// Whether the kernel can be made to forget names.
    pub forgets_names: bool,
}

struct Connection {
    link: LinkId,
    serves: bool,
    /// What came before it was wanted.
    early: Vec<(Stream, Down)>,
}

#[derive(Debug)]
struct Connecting {
    link: LinkId,
    sent: BootTime,
    /// What has overtaken the welcome on other streams.
    early: Vec<(Stream, Down)>,
}

/// A mount.
pub struct Client {
    /// What it was made with.
    pub make: Make,
    /// Number of the mount.
    pub life: u64,
    /// Whether its daemon lives.
    pub alive: bool,
    /// Since when its daemon stands still.
    pub frozen: Option<Nanos>,
    /// Whether its host sleeps.
    pub asleep: bool,
    /// Whether nothing is in its kernel that could be wrong after it has slept.
    pub is_prepared: bool,
    /// Since when it can't reach the server.
    pub apart: Option<Nanos>,
    /// Since when it is to unmount.
    pub leaving: Option<Nanos>,
    /// Its threads that drop pages stand still until then.
    pub stalled_until: Nanos,
    /// The kernel and its processes; `None` before the first welcome.
    pub kernel: Option<Kernel>,
    /// When something last went wrong on it, or with the server's host.
    pub hurt: Nanos,
    /// When it was last without leases.
    lapsed: Nanos,
    /// Until when something else than itself keeps it from being served.
    pub troubled: Nanos,
    /// It had leases when the server ended, and has not found it again.
    trusted: bool,
    core: Option<ClientCore<Unique>>,
    connection: Option<Connection>,
    connecting: Option<Connecting>,
    /// What happens while it stands still.
    pending: VecDeque<ClientEv>,
    pending_kernel: VecDeque<KernelEv>,
    armed: Option<Nanos>,
    /// When the core was last told something.
    told: Nanos,
    last_process: Option<BootId>,
    connects: bool,
    /// No further operations begin.
    pub winding_down: bool,
    /// What the kernel asks for just now.
    asks: Option<Unique>,
}

fn id_of(link: LinkId) -> ConnectionId {
    ConnectionId(link.0 + 1)
}

fn link_of(connection: ConnectionId) -> LinkId {
    LinkId(connection.0 - 1)
}

/// Who is told that it may sleep.
const SLEEP: Unique = Unique(u64::MAX - 2);

/// How long a hello waits for its answer.
const HELLO: Nanos = 700 * MS;

impl Client {
    /// A mount begins.
    pub fn mount(cx: &mut Cx, make: Make, life: u64) -> Self {
        let client = Self {
            make,
            life,
            alive: true,
            frozen: None,
            asleep: false,
            is_prepared: false,
            apart: None,
            leaving: None,
            stalled_until: 0,
            kernel: None,
            hurt: cx.now,
            lapsed: cx.now,
            troubled: 0,
            trusted: false,
            core: None,
            connection: None,
            connecting: None,
            pending: VecDeque::new(),
            pending_kernel: VecDeque::new(),
            armed: None,
            told: 0,
            last_process: None,
            connects: true,
            winding_down: false,
            asks: None,
        };
        client.later(cx, MS, ClientEv::Connect);
        client
    }

    /// Its session.
    pub fn session(&self) -> SessionId {
        session(self.life)
    }

    /// Its connection.
    pub fn link(&self) -> Option<LinkId> {
        let stands = self.connection.as_ref().map(|connection| connection.link);
        stands.or(self.connecting.as_ref().map(|connecting| connecting.link))
    }

    fn later(&self, cx: &mut Cx, wait: Nanos, ev: ClientEv) {
        cx.after(wait, Ev::Client(self.make.index, self.life, ev));
    }

    fn clock(&self) -> HostClock {
        self.make.clock
    }

    /// Something happens, unless it stands still.
    pub fn happens(&mut self, cx: &mut Cx, ev: ClientEv) {
        if !self.alive {
            return;
        }
        if self.frozen.is_some() || self.asleep {
            self.pending.push_back(ev);
            return;
        }
        self.act_on(cx, ev);
    }

    /// Something happens in its kernel.
    pub fn kernel_happens(&mut self, cx: &mut Cx, ev: KernelEv) {
        if self.asleep {
            self.pending_kernel.push_back(ev);
        } else if let Some(kernel) = &mut self.kernel {
            kernel.happens(cx, ev);
        }
    }

    fn act_on(&mut self, cx: &mut Cx, ev: ClientEv) {
        match ev {
            ClientEv::Tick => {
                if self.armed.is_some_and(|armed| armed <= cx.now) {
                    self.armed = None;
                }
                self.tell(cx, Event::Tick);
            }
            ClientEv::Message(link, stream, down) => self.message(cx, link, stream, down),
            ClientEv::Lost(link) => self.lost(cx, link, "the connection is lost"),
            ClientEv::Connect => self.connect(cx),
            ClientEv::GivesUp(link) => {
                if self.connects_by(link) {
                    self.connecting = None;
                    self.not_connected(cx);
                }
            }
            ClientEv::Ask(waiter, asker, call) => {
                let call = *call;
                cx.trace(None, || {
                    let shown = format!("{call:?}");
                    let shown = shown.get(..160).unwrap_or(&shown).to_owned();
                    format!("client {}: call {} {shown}", self.make.index, waiter.0)
                });
                let call = Event::Call {
                    waiter,
                    asker,
                    call,
                };
                self.asks = Some(waiter);
                self.tell(cx, call);
                self.asks = None;
            }
            ClientEv::Forget(node, count) => self.tell(cx, Event::Forget { node, count }),
            ClientEv::Begin(id, notice) => self.begin_notice(cx, id, notice),
            ClientEv::Notified(id) => self.tell(cx, Event::Notified(id, Noticed::Done)),
            ClientEv::Look(call, pid, signals) => self.look(cx, call, pid, signals),
            ClientEv::Kept(id, object) => {
                self.tell(cx, Event::Kept(id));
                cx.judge.no_more_shown(cx.now, self.session(), object);
            }
            ClientEv::Goodbye => self.tell(cx, Event::Goodbye),
        }
    }

    fn look(&mut self, cx: &mut Cx, call: CallId, pid: u32, signals: Signals) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let number = (pid as usize % 100).wrapping_sub(1);
        let process = kernel.processes.get(number);
        let Some(process) = process.filter(|p| p.busy_since().is_some()) else {
            return;
        };
        let (dies, any) = (process.is_dying(cx.now), signals == Signals::All);
        let event = if dies {
            kernel.kill(number);
            Event::Left(call)
        } else if any && process.is_interrupted(cx.now) {
            cx.stats.locks_interrupted += 1;
            Event::Interrupted(call)
        } else {
            return self.later(cx, 100 * MS, ClientEv::Look(call, pid, signals));
        };
        self.tell(cx, event);
    }

    fn connect(&mut self, cx: &mut Cx) {
        if !self.connects || self.connecting.is_some() {
            return;
        }
        let link = cx.net.connect(self.make.index, self.make.way);
        let sent = self.clock().boot(cx.now);
        self.connecting = Some(Connecting {
            link,
            sent,
            early: Vec::new(),
        });
        let hello = Hello {
            version: PROTOCOL_VERSION,
            features: 0,
            session: self.session(),
            ticket: None,
            name: String::new(),
            subdir: Vec::new(),
            drift_ppm: self.make.drift_ppm,
            last_process: self.last_process,
        };
        if self.apart.is_none() {
            let hello = Up::Control(ToServer::Hello(hello));
            cx.up(link, Stream::ControlUp, hello);
        }
        let patience = HELLO + 6 * self.make.way.usual;
        self.later(cx, patience, ClientEv::GivesUp(link));
    }

    fn not_connected(&mut self, cx: &mut Cx) {
        match self.core.is_some() {
            true => {
                let why = Unconnected::Unreachable("no answer".into());
                self.tell(cx, Event::NotConnected(why));
            }
            false => self.later(cx, 100 * MS, ClientEv::Connect),
        }
    }

    fn lost(&mut self, cx: &mut Cx, link: LinkId, why: &str) {
        if self.connects_by(link) {
            self.connecting = None;
            return self.not_connected(cx);
        }
        if self.connection.as_ref().is_some_and(|c| c.link == link) {
            self.connection = None;
            let index = self.make.index;
            cx.trace(None, || format!("client {index}: {why}"));
            self.tell(cx, Event::Lost(id_of(link), why.into()));
        }
    }

    fn connects_by(&self, link: LinkId) -> bool {
        self.connecting.as_ref().is_some_and(|c| c.link == link)
    }

    fn message(&mut self, cx: &mut Cx, link: LinkId, stream: Stream, down: Down) {
        if let Some(mut connecting) = self.connecting.take_if(|c| c.link == link) {
            if let Down::Control(ToClient::Welcome(welcome)) = down {
                return self.welcomed(cx, connecting, welcome);
            }
            connecting.early.push((stream, down));
            self.connecting = Some(connecting);
            return;
        }
        let Some(connection) = self.connection.as_mut().filter(|c| c.link == link) else {
            return;
        };
        match (down, connection.serves) {
            (Down::Control(message), _) => self.tell(cx, Event::Control(id_of(link), message)),
            (down, false) => connection.early.push((stream, down)),
            (down, true) => self.served(cx, link, down),
        }
    }

    fn served(&mut self, cx: &mut Cx, link: LinkId, down: Down) {
        let connection = id_of(link);
        match down {
            Down::Recall(recall) => self.recalled(cx, connection, recall),
            Down::LockGranted(granted) => self.tell(cx, Event::LockGranted(connection, granted)),
            Down::Reply(reply, payload) => {
                let reply = *reply;
                self.tell(
                    cx,
                    Event::Reply {
                        connection,
                        reply,
                        payload,
                    },
                );
            }
            Down::Control(_) => {}
        }
    }

    fn recalled(&mut self, cx: &mut Cx, connection: ConnectionId, recall: Recall) {
        let index = self.make.index;
        cx.trace(None, || format!("client {index}: hears {recall:?}"));
        self.tell(cx, Event::Recall(connection, recall));
    }

    fn welcomed(&mut self, cx: &mut Cx, connecting: Connecting, welcome: Welcome) {
        let Connecting { link, sent, early } = connecting;
        self.last_process = Some(welcome.process);
        self.connection = Some(Connection {
            link,
            serves: false,
            early,
        });
        // Nobody could renew what it had.
        if std::mem::take(&mut self.trusted) && self.trusts_until() <= cx.now {
            self.hurt = self.hurt.max(cx.now);
        }
        if self.core.is_none() {
            self.begin(cx, &welcome);
        }
        self.cut_off_until(cx.now);
        let index = self.make.index;
        cx.trace(None, || {
            format!("client {index}: welcome {:?}", welcome.standing)
        });
        let connected = Event::Connected {
            connection: id_of(link),
            welcome: Box::new(welcome),
            sent,
        };
        self.tell(cx, connected);
    }

    fn cut_off_until(&mut self, until: Nanos) {
        if let Some(kernel) = &mut self.kernel {
            kernel.cut_until = until;
        }
    }

    fn begin(&mut self, cx: &mut Cx, welcome: &Welcome) {
        let Make {
            index,
            clock,
            processes,
            pace,
            habit,
            patience,
            forgets_names,
            ..
        } = self.make;
        let config = Config {
            root: welcome.root,
            identity: welcome.identity,
            owner: Owner { uid: 0, gid: 0 },
            buffers: true,
            timeout: patience.map_or(Timeout::Hard, Timeout::After),
            memory: Memory::new(16 << 20),
            groups: |_| Vec::new(),
            can_forget_names: forgets_names,
            // Short, so that names are told that come and go.
            restless_for: Duration::from_millis(50),
            fault: None,
        };
        self.core = Some(ClientCore::new(config, clock.now(cx.now)));
        let root = (welcome.root, welcome.root_attr);
        let habits = (pace, habit);
        let mut kernel = Kernel::new((index, self.life), clock, root, processes, habits);
        kernel.winding_down = self.winding_down;
        for process in 0..processes {
            if cx.rng.is_still() {
                kernel.tell_process(cx, process, &[]);
                continue;
            }
            let wait = cx.rng.below(20 * MS as usize) as Nanos;
            kernel.later(cx, wait, KernelEv::Next(process));
        }
        kernel.later(cx, 50 * MS, KernelEv::Shrink);
        kernel.later(cx, 500 * MS, KernelEv::WriteBack);
        kernel.stale_until = self.stalled_until + 300 * MS;
        self.kernel = Some(kernel);
    }

    /// Tells the core something and does what it wants.
    fn tell(&mut self, cx: &mut Cx, event: Event<Unique>) {
        let mut events = VecDeque::from([event]);
        self.told = cx.now;
        while let Some(event) = events.pop_front() {
            let now = self.make.clock.now(cx.now);
            if self.make.habit.locks && self.held_locks(cx.now).is_none() {
                self.lapsed = cx.now;
            }
            let Some(core) = &mut self.core else { return };
            core.handle(now, event);
            let mut at_once = Vec::new();
            while let Some(action) = self.core.as_mut().and_then(ClientCore::poll_action) {
                self.act(cx, action, &mut at_once);
            }
            // Before it is told anything else.
            for event in at_once.into_iter().rev() {
                events.push_front(event);
            }
        }
        self.arm(cx);
    }

    fn arm(&mut self, cx: &mut Cx) {
        let deadline = self.core.as_ref().and_then(ClientCore::next_deadline);
        let Some(deadline) = deadline else { return };
        let due = self.clock().when_monotonic(deadline).max(cx.now);
        if self.armed.is_none_or(|armed| due < armed || armed < cx.now) {
            self.armed = Some(due);
            let late = cx.short(2 * MS);
            cx.at(
                due + late,
                Ev::Client(self.make.index, self.life, ClientEv::Tick),
            );
        }
    }

    fn act(&mut self, cx: &mut Cx, action: Action<Unique>, at_once: &mut Vec<Event<Unique>>) {
        match action {
            Action::Answer(waiter, answer) => self.answer(cx, waiter, answer),
            Action::Do(effect) => self.effect(cx, effect, at_once),
        }
    }

    fn answer(&mut self, cx: &mut Cx, waiter: Unique, answer: Result<Answer, Refusal>) {
        if waiter == SLEEP {
            self.is_prepared = true;
        }
        let Some(kernel) = &self.kernel else { return };
        if let Ok(Answer::Written(len)) = &answer
            && let Some((object, at, values)) = kernel.writing(waiter)
        {
            let count = (u64::from(*len) / CELL) as usize;
            let values = &values[..count.min(values.len())];
            let first = values.first().copied().unwrap_or_default();
            if !values.is_empty() && !cx.judge.was_stored(first) {
                cx.stats.buffered += 1;
                cx.trace(Some(object), || format!("kept {values:x?} at {at:?}"));
                cx.judge.buffered(cx.now, object, at, values);
            }
        }
        if let Some(lock) = kernel.asked_lock(waiter) {
            let here = self.asks == Some(waiter);
            self.lock_answered(cx, lock, here, answer.is_ok());
        }
        let written = US + cx.short(300 * US);
        let taken = written + cx.short(2 * MS);
        kernel.later(cx, taken, KernelEv::Told(waiter, Box::new(answer)));
    }

    fn lock_answered(&self, cx: &mut Cx, lock: Granted, here: bool, granted: bool) {
        if !granted {
            return cx.judge.not_locked(lock);
        }
        match here {
            true => cx.stats.locks_here += 1,
            false => cx.stats.locks_there += 1,
        }
        let index = self.make.index;
        cx.trace(Some(lock.holder.object), || {
            format!("client {index}: {lock:?}")
        });
        cx.judge.locked(cx.now, lock);
    }

    fn effect(&mut self, cx: &mut Cx, effect: Effect, at_once: &mut Vec<Event<Unique>>) {
        let index = self.make.index;
        match effect {
            Effect::Notify(id, notice) => {
                cx.trace(None, || format!("client {index}: {notice:?}"));
                if notice.never_blocks() {
                    if let Notice::End = notice {
                        cx.judge.accuse(None, || format!("client {index} gives up"));
                    }
                    let kernel = self.kernel.as_mut();
                    let noticed = kernel.map_or(Noticed::Done, |k| k.notice_at_once(&notice));
                    at_once.push(Event::Notified(id, noticed));
                    return;
                }
                let stalled = self.stalled_until.saturating_sub(cx.now);
                let wait = stalled + US + cx.short(300 * US);
                self.later(cx, wait, ClientEv::Begin(id, notice));
            }
            Effect::Watch(call, pid, signals) => {
                self.later(cx, 0, ClientEv::Look(call, pid, signals));
            }
            Effect::Send {
                connection,
                frame,
                payload,
            } => {
                if self.stands(connection) {
                    let lane = lane(&frame, payload.len());
                    let up = Up::Request(frame, payload);
                    cx.up(link_of(connection), Stream::LaneUp(lane), up);
                }
            }
            Effect::Control(connection, message) => {
                if self.stands(connection) {
                    let up = Up::Control(message);
                    cx.up(link_of(connection), Stream::ControlUp, up);
                }
            }
            Effect::Serve(connection) => self.serve(cx, connection),
            Effect::Listen(connection) => {
                let heard = cx.net.heard(link_of(connection));
                at_once.push(Event::Heard(connection, heard));
            }
            Effect::Disconnect {
                connection,
                broken,
                reason,
            } => {
                cx.trace(None, || format!("client {index}: disconnects: {reason}"));
                if broken {
                    cx.judge.accuse(None, || {
                        format!("client {index} finds the protocol broken: {reason}")
                    });
                }
                if self.stands(connection) {
                    self.connection = None;
                    self.cut_off_until(Nanos::MAX);
                    let last = cx.now + 20 * MS;
                    cx.net.cut(link_of(connection), last, cx.now);
                    let left = Blow::Left(link_of(connection));
                    cx.at(last, Ev::Blow(left));
                }
            }
            Effect::Connect { .. } => self.later(cx, MS, ClientEv::Connect),
            Effect::Keep(id, undelivered) => {
                self.keep(cx, &undelivered);
                let wait = MS + cx.short(20 * MS);
                let object = Obj::of(&undelivered.object);
                self.later(cx, wait, ClientEv::Kept(id, object));
            }
            Effect::Ended => self.alive = false,
        }
    }

    fn stands(&self, connection: ConnectionId) -> bool {
        let known = self.connection.as_ref();
        known.is_some_and(|known| id_of(known.link) == connection)
    }

    fn serve(&mut self, cx: &mut Cx, connection: ConnectionId) {
        if !self.stands(connection) {
            return;
        }
        let (index, life) = (self.make.index, self.life);
        if let Some(known) = &mut self.connection {
            known.serves = true;
            let link = known.link;
            for (stream, down) in std::mem::take(&mut known.early) {
                let ev = ClientEv::Message(link, stream, down);
                cx.after(0, Ev::Client(index, life, ev));
            }
        }
    }

    fn begin_notice(&mut self, cx: &mut Cx, id: EffectId, notice: Notice) {
        if let Some(kernel) = &mut self.kernel {
            kernel.notice(cx, id, notice);
        }
    }

    /// What could not be brought to the server is kept, and only for cause.
    fn keep(&mut self, cx: &mut Cx, undelivered: &Undelivered) {
        cx.stats.kept += 1;
        let index = self.make.index;
        let object = Obj::of(&undelivered.object);
        cx.trace(Some(object), || {
            format!("client {index}: keeps, {:?}", undelivered.reason)
        });
        let lost = WhyNot::Refused(Refusal::LockLost);
        for (offset, bytes) in &undelivered.extents {
            for (cell, value) in (offset / CELL..).zip(cells_of(bytes)) {
                let Some(since) = cx.judge.kept(cx.now, value) else {
                    continue;
                };
                if undelivered.reason == lost {
                    let held = self.held_locks(cx.now).unwrap_or_default();
                    cx.judge.check_refused(value, &held);
                }
                // Of a mapped page it isn't known what it was made from.
                let unchanged = object != MAPPED && cx.judge.is_unchanged(object, since);
                if undelivered.reason == WhyNot::ChangedElsewhere && unchanged {
                    let item = Item::Cell(object, cell as u32);
                    cx.judge.accuse(Some(item), || {
                        format!("client {index}: {value:x} is refused, although its file has not changed")
                    });
                }
                let blameless = self.hurt.max(self.troubled) < since;
                let kept_its_locks = object != MAPPED && self.lapsed < since;
                let unfounded = match undelivered.reason {
                    WhyNot::ChangedElsewhere => true,
                    reason => reason == lost && kept_its_locks,
                };
                if unfounded && blameless {
                    let item = Item::Cell(object, cell as u32);
                    cx.judge.accuse(Some(item), || {
                        format!("client {index}, which was well all the time, could not bring {value:x} in")
                    });
                }
            }
        }
    }

    /// The server ends.
    pub fn loses_server(&mut self, now: Nanos) {
        self.trusted |= self.trusts_until() > now;
    }

    /// The daemon stands still.
    pub fn freeze(&mut self, cx: &mut Cx) {
        self.frozen = Some(cx.now);
        self.hurt = Nanos::MAX;
        if let Some(kernel) = &mut self.kernel {
            kernel.stale_until = Nanos::MAX;
        }
    }

    /// It goes on.
    pub fn thaw(&mut self, cx: &mut Cx) {
        if self.frozen.take().is_some() {
            self.hurt = cx.now;
            self.catch_up(cx);
        }
    }

    /// Its host sleeps.
    pub fn suspend(&mut self) {
        self.asleep = true;
        self.hurt = Nanos::MAX;
    }

    /// Its host is about to sleep.
    pub fn prepare_sleep(&mut self, cx: &mut Cx) {
        let ev = ClientEv::Ask(SLEEP, Asker::default(), Box::new(Call::Sleep));
        self.happens(cx, ev);
    }

    /// Its host has slept, or not, and won't again so soon.
    pub fn wakes(&mut self, cx: &mut Cx) {
        self.is_prepared = false;
        let nobody = Unique(u64::MAX);
        let ev = ClientEv::Ask(nobody, Asker::default(), Box::new(Call::Wake));
        self.happens(cx, ev);
    }

    /// It wakes up: the daemon is the first to run.
    pub fn resume(&mut self, cx: &mut Cx, slept: Nanos) {
        self.asleep = false;
        self.hurt = cx.now;
        self.slept(slept);
        self.catch_up(cx);
        // What was told before counts until the daemon has looked at its clock: processes that are
        // quicker find it.
        self.run_kernel(cx, 200 * MS);
    }

    /// It wakes up, but for the daemon: that goes on when it is thawed.
    pub fn resume_unnoticed(&mut self, cx: &mut Cx, slept: Nanos) {
        self.asleep = false;
        self.freeze(cx);
        self.slept(slept);
    }

    fn slept(&mut self, time: Nanos) {
        self.make.clock.slept(time);
        self.armed = None;
        if let Some(kernel) = &mut self.kernel {
            kernel.clock = self.make.clock;
        }
    }

    /// Its kernel goes on, and so do its processes.
    pub fn run_kernel(&mut self, cx: &mut Cx, after: Nanos) {
        for ev in std::mem::take(&mut self.pending_kernel) {
            let wait = after + cx.short(2 * MS);
            cx.after(wait, Ev::Kernel(self.make.index, self.life, ev));
        }
    }

    fn catch_up(&mut self, cx: &mut Cx) {
        if self.frozen.is_some() || self.asleep {
            return;
        }
        if let Some(kernel) = &mut self.kernel {
            let stalled = self.stalled_until.max(cx.now);
            kernel.stale_until = stalled + 300 * MS;
        }
        self.act_on(cx, ClientEv::Tick);
        let pending = std::mem::take(&mut self.pending);
        for ev in pending {
            // In the order of their coming.
            self.happens(cx, ev);
        }
    }

    /// The daemon is killed.
    pub fn crash(&mut self, cx: &mut Cx) {
        self.alive = false;
        if let Some(link) = self.link() {
            cx.net.cut(link, cx.now, cx.now);
        }
        cx.judge.gone(cx.now, self.session());
    }

    /// Whether it holds bytes of an object that the server doesn't have.
    pub fn holds_bytes(&self, object: Obj) -> bool {
        let dirty = self.core.as_ref().map(ClientCore::dirty_files);
        let mut dirty = dirty.into_iter().flatten();
        dirty.any(|(handle, _)| Obj::of(&handle) == object)
    }

    /// Whether there is something that the server doesn't have.
    pub fn is_dirty(&self) -> bool {
        let core = self.core.as_ref();
        core.is_some_and(|core| !core.dirty_files().is_empty())
    }

    /// Asks for the root's attributes. Returns how often the server was asked for any so far.
    pub fn probe(&mut self, cx: &mut Cx) -> u64 {
        let nobody = Unique(u64::MAX - 1);
        let node = NodeId::ROOT;
        let ev = ClientEv::Ask(nobody, Asker::default(), Box::new(Call::GetAttr { node }));
        self.happens(cx, ev);
        let asked = self
            .core
            .as_ref()
            .map(|core| core.session_status().requests);
        let asked = asked.and_then(|asked| asked.get("getattr").copied());
        asked.unwrap_or_default()
    }

    /// Asks for everything buffered to be brought to the server.
    pub fn flush_all(&mut self, cx: &mut Cx) {
        let nobody = Unique(u64::MAX);
        let ev = ClientEv::Ask(nobody, Asker::default(), Box::new(Call::FlushAll));
        self.happens(cx, ev);
    }

    /// The mount ends in order. What the server doesn't have is kept.
    pub fn goodbye(&mut self, cx: &mut Cx) {
        if self.frozen.is_some() || self.asleep || self.core.is_none() {
            return self.crash(cx);
        }
        self.connects = false;
        self.act_on(cx, ClientEv::Goodbye);
        let undelivered = self.core.as_mut().map(ClientCore::take_undelivered);
        for one in undelivered.into_iter().flatten() {
            self.keep(cx, &one);
        }
        cx.judge.gone(cx.now, self.session());
        // Its kernel is gone with the mount.
        self.kernel = None;
    }

    /// What its kernel believes of an item.
    pub fn believes(&self, cx: &Cx, item: Item) -> Option<u64> {
        if !self.alive || self.asleep {
            return None;
        }
        self.kernel.as_ref()?.believes(cx, item)
    }

    /// Whether nothing keeps it from being served.
    pub fn is_well(&self, now: Nanos) -> bool {
        self.alive
            && self.frozen.is_none()
            && !self.asleep
            && self.apart.is_none()
            && self.stalled_until < now
    }

    /// What it has open at the server, while it has a connection.
    pub fn opens(&self) -> Option<usize> {
        let status = self.core.as_ref()?.session_status();
        status.connected.then_some(status.opens)
    }

    /// Until when it trusts in its leases.
    pub fn trusts_until(&self) -> Nanos {
        let Some(core) = &self.core else { return 0 };
        let left = core.cache_status().remaining;
        match left.is_zero() {
            true => 0,
            false => self.clock().when(self.clock().boot(self.told) + left),
        }
    }

    /// Processes that are at something, since when, and for what lock they wait.
    pub fn busy(&self) -> Vec<(Nanos, Option<Holder>)> {
        self.kernel.iter().flat_map(Kernel::busy).collect()
    }

    /// Whether its processes are still to close what they have open.
    pub fn is_closing(&self) -> bool {
        self.kernel.as_ref().is_some_and(Kernel::is_closing)
    }

    /// Locks that it holds now; `None` if its leases aren't valid, or its processes are gone with its kernel.
    pub fn held_locks(&self, now: Nanos) -> Option<Vec<LockStatus>> {
        let mounted = self.alive && self.kernel.is_some();
        let core = self.core.as_ref().filter(|_| mounted)?;
        core.held_locks(self.clock().now(now))
    }

    /// Locks that its processes wait for, as far as it knows.
    pub fn awaited_locks(&self) -> usize {
        let locks = self.core.as_ref().map(ClientCore::locks);
        let locks = locks.into_iter().flatten();
        locks.filter(|(lock, _)| lock.fence.is_none()).count()
    }

    /// What is under way, for people.
    pub fn describe(&self) -> String {
        let kernel = self.kernel.as_ref().map(Kernel::describe);
        let session = self.core.as_ref().map(|core| {
            let status = core.session_status();
            (status.connected, status.in_contact, status.waiting)
        });
        format!(
            "client {}: alive {} frozen {:?} apart {:?} link {:?} {session:?}\n{}",
            self.make.index,
            self.alive,
            self.frozen,
            self.apart,
            self.link(),
            kernel.unwrap_or_default()
        )
    }
}

/// A request with more data than this, in either direction, goes to the bulk lanes.
const SMALL: usize = 2048;

fn lane(frame: &RequestFrame, payload: usize) -> u8 {
    let answer = match &frame.request {
        Request::Query(Query::Read(read)) => read.len as usize,
        Request::Query(Query::ReadDir(_)) => usize::MAX,
        _ => 0,
    };
    match payload.max(answer) > SMALL {
        true => 1 + (frame.id.0 % u64::from(LANES - 1)) as u8,
        false => 0,
    }
}
