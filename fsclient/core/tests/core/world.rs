//! A client, and all that is around it.

use crate::said::{Asked, handle, welcome};
use bytes::Bytes;
use leasefs_client::{
    Action, Answer, Asker, Call, CallId, ClientCore, Config, ConnectionId, Effect, EffectId, Event,
    Memory, Notice, Noticed, Now, Owner, Timeout, Unconnected, Undelivered,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{IdentityPolicy, Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::{
    BootId, Grant, Handle, Query, Recall, RecallId, Refusal, Release, Reply, Request, Response,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub const PATIENT: Timeout = Timeout::After(Duration::from_secs(60));
const O_DIRECTORY: u32 = 0o200_000;
/// No pause between two attempts to connect is longer.
const RECONNECTS: Duration = Duration::from_secs(12);

pub type Outcome = Result<Answer, Refusal>;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter(u32);

/// A connection that the client was told to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub broken: bool,
    pub reason: String,
}

/// A client, its kernel, its server, and the clocks.
pub struct World {
    pub core: ClientCore<Waiter>,
    now: Now,
    waiters: u32,
    answers: BTreeMap<Waiter, Outcome>,
    pub connection: ConnectionId,
    /// Whether the server answers keep-alives, and is heard.
    pub lively: bool,
    datagrams: u64,
    asked: VecDeque<Asked>,
    /// Whether what is asked for ahead of anybody is asked of the test. Else the server refuses it at once.
    pub lists_ahead: bool,
    opendirs: u32,
    said: VecDeque<ToServer>,
    /// The client wants to connect: to this process, if it lives.
    pub connects: Option<BootId>,
    pub serves: bool,
    pub cut_off: Option<Ended>,
    /// Whether the kernel is slow with what may block.
    pub keeps_waiting: bool,
    /// Whether it fails to do what it is told.
    pub fails: bool,
    /// Whether it knows none of the nodes that it was told.
    pub knows_nothing: bool,
    waits_for: Vec<EffectId>,
    pub told: Vec<Notice>,
    pub watched: Vec<(CallId, u32)>,
    pub has_ended: bool,
    /// In the recovery folder.
    pub kept: Vec<Undelivered>,
    /// Everything that was to be done.
    pub log: Vec<String>,
}

impl World {
    /// A client with its first connection.
    pub fn new() -> Self {
        Self::with(PATIENT)
    }

    pub fn with(timeout: Timeout) -> Self {
        let mut world = Self::unconnected(timeout);
        world.connected(welcome(Standing::New, 1));
        assert!(world.serves);
        world
    }

    /// A client with so much memory.
    pub fn using(memory: Memory) -> Self {
        let mut world = Self::made(PATIENT, memory);
        world.connected(welcome(Standing::New, 1));
        world
    }

    pub fn unconnected(timeout: Timeout) -> Self {
        Self::made(timeout, Memory::default())
    }

    fn made(timeout: Timeout, memory: Memory) -> Self {
        let start = BootTime::ZERO + Duration::from_secs(1000);
        let now = Now {
            boot: start,
            monotonic: start,
        };
        let config = Config {
            root: handle(0),
            identity: IdentityPolicy::Trust,
            owner: Owner { uid: 0, gid: 0 },
            buffers: true,
            timeout,
            memory,
            groups: |_| Vec::new(),
            can_forget_names: true,
            restless_for: Duration::from_secs(600),
            fault: None,
        };
        Self {
            core: ClientCore::new(config, now),
            now,
            waiters: 0,
            answers: BTreeMap::new(),
            connection: ConnectionId(0),
            lively: true,
            datagrams: 0,
            asked: VecDeque::new(),
            lists_ahead: false,
            opendirs: 0,
            said: VecDeque::new(),
            connects: None,
            serves: false,
            cut_off: None,
            keeps_waiting: false,
            fails: false,
            knows_nothing: false,
            waits_for: Vec::new(),
            told: Vec::new(),
            watched: Vec::new(),
            has_ended: false,
            kept: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Something happens; everything that follows at once is done.
    pub fn tell(&mut self, event: Event<Waiter>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.core.handle(self.now, event);
            while let Some(action) = self.core.poll_action() {
                self.log.push(format!("{action:?}"));
                match action {
                    Action::Answer(waiter, outcome) => {
                        let twice = self.answers.insert(waiter, outcome);
                        assert!(twice.is_none(), "answered twice");
                    }
                    Action::Do(effect) => events.extend(self.perform(effect)),
                }
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<Event<Waiter>> {
        match effect {
            Effect::Notify(id, notice) => return self.notified(id, notice),
            Effect::Watch(call, pid, _) => self.watched.push((call, pid)),
            Effect::Send {
                connection,
                frame,
                payload,
            } => {
                let asked = Asked {
                    connection,
                    frame,
                    payload,
                };
                if self.is_ahead(&asked) {
                    return Some(Event::Reply {
                        connection,
                        reply: asked.reply(Err(Refusal::Access)),
                        payload: Bytes::new(),
                    });
                }
                self.asked.push_back(asked);
            }
            Effect::Control(on, message) => return self.control(on, message),
            Effect::Serve(_) => self.serves = true,
            Effect::Listen(on) => {
                self.datagrams += u64::from(self.lively);
                return Some(Event::Heard(on, self.datagrams));
            }
            Effect::Disconnect {
                connection,
                broken,
                reason,
            } => {
                // Afterwards it says nothing any more.
                self.cut_off.get_or_insert(Ended {
                    broken,
                    reason: reason.clone(),
                });
                return Some(Event::Lost(connection, reason));
            }
            Effect::Connect { last_process } => self.connects = Some(last_process),
            Effect::Keep(id, undelivered) => {
                self.kept.push(undelivered);
                return Some(Event::Kept(id));
            }
            Effect::Ended => self.has_ended = true,
        }
        None
    }

    fn notified(&mut self, id: EffectId, notice: Notice) -> Option<Event<Waiter>> {
        let waits = self.keeps_waiting && !notice.never_blocks();
        let noticed = match (self.fails, &notice) {
            (false, Notice::DropAttrs(_)) if self.knows_nothing => Noticed::Unknown,
            (false, _) => Noticed::Done,
            (true, Notice::ForgetNames) => Noticed::Unable,
            (true, _) => Noticed::Failed,
        };
        self.told.push(notice);
        if waits {
            self.waits_for.push(id);
            return None;
        }
        Some(Event::Notified(id, noticed))
    }

    fn control(&mut self, on: ConnectionId, message: ToServer) -> Option<Event<Waiter>> {
        match message {
            ToServer::KeepAlive { number } => {
                let renews = true;
                let answer = ToClient::KeepAlive { number, renews };
                self.lively.then_some(Event::Control(on, answer))
            }
            message => {
                self.said.push_back(message);
                None
            }
        }
    }

    /// The kernel does what it is slow with.
    pub fn gets_on(&mut self) {
        self.keeps_waiting = false;
        for id in std::mem::take(&mut self.waits_for) {
            self.tell(Event::Notified(id, Noticed::Done));
        }
    }

    /// Time passes, moment by moment.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.monotonic + time;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.set(due.max(self.now.monotonic));
        }
        self.set(end);
    }

    /// The machine sleeps, and the client hasn't looked at the clock since.
    pub fn sleep_unnoticed(&mut self, time: Duration) {
        self.now.boot = self.now.boot + time;
    }

    /// The machine sleeps.
    pub fn sleep(&mut self, time: Duration) {
        self.now.boot = self.now.boot + time;
        self.tell(Event::Tick);
    }

    fn set(&mut self, monotonic: BootTime) {
        let passed = monotonic.since(self.now.monotonic);
        self.now = Now {
            boot: self.now.boot + passed,
            monotonic,
        };
        self.tell(Event::Tick);
    }

    pub fn now(&self) -> Now {
        self.now
    }

    /// The next connection stands.
    pub fn connected(&mut self, welcome: Welcome) {
        self.connected_since(welcome, self.now.boot);
    }

    /// As [`World::connected`], where `Hello` was sent then.
    pub fn connected_since(&mut self, welcome: Welcome, sent: BootTime) {
        self.connection.0 += 1;
        (self.connects, self.serves, self.cut_off) = (None, false, None);
        self.tell(Event::Connected {
            connection: self.connection,
            welcome: Box::new(welcome),
            sent,
        });
    }

    /// The connection breaks.
    pub fn cut(&mut self) {
        self.tell(Event::Lost(self.connection, "cut".into()));
    }

    /// Waits until the client wants to connect.
    pub fn wants_to_connect(&mut self) {
        let late = self.now.monotonic + RECONNECTS;
        while self.connects.is_none() {
            let due = self.core.next_deadline().expect("something is waited for");
            assert!(due <= late, "it never connects");
            self.set(due);
        }
    }

    /// The client connects, and finds its session so.
    pub fn finds(&mut self, standing: Standing, process: u8) {
        self.wants_to_connect();
        self.connected(welcome(standing, process));
    }

    /// The server's host crashes; the client connects, and takes its session up.
    pub fn finds_another_life_of_the_host(&mut self) {
        self.cut();
        self.wants_to_connect();
        self.connected(Welcome {
            host: BootId([10; 16]),
            ..welcome(Standing::Resumed, 1)
        });
    }

    pub fn is_refused(&mut self, why: Unconnected) {
        self.wants_to_connect();
        self.connects = None;
        self.tell(Event::NotConnected(why));
    }

    /// A process asks for something.
    pub fn call_by(&mut self, pid: u32, call: Call) -> Waiter {
        let asker = Asker {
            pid,
            ..Asker::default()
        };
        self.call_of(asker, call)
    }

    /// Whether a directory is opened that nobody opens.
    fn is_ahead(&mut self, asked: &Asked) -> bool {
        let flags = match &asked.frame.request {
            Request::Query(Query::Open(open)) => open.flags.bits(),
            _ => 0,
        };
        let of_directory = flags & O_DIRECTORY != 0;
        if self.lists_ahead || !of_directory {
            return false;
        }
        match self.opendirs.checked_sub(1) {
            Some(left) => self.opendirs = left,
            None => return true,
        }
        false
    }

    pub fn call_of(&mut self, asker: Asker, call: Call) -> Waiter {
        self.opendirs += u32::from(matches!(call, Call::OpenDir { .. }));
        self.waiters += 1;
        let waiter = Waiter(self.waiters);
        self.tell(Event::Call {
            waiter,
            asker,
            call,
        });
        waiter
    }

    /// Somebody asks for something.
    pub fn call(&mut self, call: Call) -> Waiter {
        self.call_by(0, call)
    }

    /// Whoever waits leaves when it is looked at.
    pub fn leaves(&mut self, pid: u32) {
        self.watched.clear();
        self.pass(Duration::from_millis(100));
        let mut watched = std::mem::take(&mut self.watched).into_iter();
        let (call, _) = watched.find(|(_, who)| *who == pid).expect("looked at");
        self.tell(Event::Left(call));
    }

    pub fn waits(&self, waiter: Waiter) -> bool {
        !self.answers.contains_key(&waiter)
    }

    /// What was answered.
    pub fn answered(&mut self, waiter: Waiter) -> Outcome {
        self.answers.remove(&waiter).expect("it is answered")
    }

    pub fn refused(&mut self, waiter: Waiter) -> Refusal {
        match self.answered(waiter) {
            Err(refusal) => refusal,
            Ok(answer) => panic!("it isn't refused: {answer:?}"),
        }
    }

    /// The next request that has reached the server.
    pub fn asked(&mut self) -> Asked {
        let asked = self.asked.pop_front().expect("something is asked for");
        assert_eq!(asked.connection, self.connection);
        asked
    }

    /// The requests that have reached the server, on whichever connection.
    pub fn take_asked(&mut self) -> Vec<Asked> {
        self.asked.drain(..).collect()
    }

    pub fn take_said(&mut self) -> Vec<ToServer> {
        self.said.drain(..).collect()
    }

    /// What was answered since this was asked last.
    /// Leases that it has given back, of all that it has said since that was taken last.
    pub fn take_releases(&mut self) -> Vec<Release> {
        let said = self.take_said().into_iter();
        let releases = said.filter_map(|said| match said {
            ToServer::Release(releases) => Some(releases),
            _ => None,
        });
        releases.flatten().collect()
    }

    pub fn take_answers(&mut self) -> BTreeMap<Waiter, Outcome> {
        std::mem::take(&mut self.answers)
    }

    pub fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The next control message that has reached the server, keep-alives apart.
    pub fn said(&mut self) -> ToServer {
        self.said.pop_front().expect("something is said")
    }

    /// What it says next is that it has given up what this recall took.
    pub fn approves(&mut self, recall: RecallId) {
        match self.said() {
            ToServer::Approve(approvals) => assert_eq!(approvals[0].recall, recall),
            other => panic!("no approval: {other:?}"),
        }
    }

    pub fn has_said(&self) -> bool {
        !self.said.is_empty()
    }

    pub fn say(&mut self, message: ToClient) {
        self.tell(Event::Control(self.connection, message));
    }

    pub fn recall(&mut self, recall: Recall) {
        self.tell(Event::Recall(self.connection, recall));
    }

    /// Another session has removed the last name of an object.
    pub fn unlinked(&mut self, object: Handle) {
        self.tell(Event::Unlinked(self.connection, object));
    }

    pub fn reply(&mut self, reply: Reply, payload: &'static [u8]) {
        self.tell(Event::Reply {
            connection: self.connection,
            reply,
            payload: Bytes::from_static(payload),
        });
    }

    /// The server answers, and grants nothing.
    pub fn answer(&mut self, asked: &Asked, result: Result<Response, Refusal>) {
        self.reply(asked.reply(result), b"");
    }

    pub fn done(&mut self, asked: &Asked) {
        self.answer(asked, Ok(Response::Done));
    }

    pub fn grant(&mut self, asked: &Asked, response: Response, grants: Vec<Grant>) {
        let reply = Reply {
            renews: true,
            grants,
            ..asked.reply(Ok(response))
        };
        self.reply(reply, b"");
    }
}
