//! A mount's core, and its surroundings: a kernel that takes whatever it is told, a clock that goes on as
//! events do, the hostile server.

use super::server::Hostile;
use crate::forge::Choices;
use bytes::Bytes;
use leasefs_client::{
    Action, Answer, Asker, Call, CallId, ClientCore, Config, Effect, Event, Memory, Noticed, Now,
    Owner, Timeout,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::Refusal;
use leasefs_protocol::codec::encode;
use std::collections::VecDeque;
use std::time::Duration;

/// How long calls wait for a server that doesn't answer.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Little, so that things are dropped.
const MEMORY: Memory = Memory::new(4 << 20);
/// How long each event takes: who goes round in circles gets nowhere in time.
const MOMENT: Duration = Duration::from_millis(1);
/// Nothing to do lasts no longer.
const PAUSE: Duration = Duration::from_millis(250);
/// When its caller has left a call ends at once, but for what it waits for regardless.
const ENDS: Duration = TIMEOUT
    .saturating_mul(8)
    .saturating_add(Duration::from_secs(8));
/// How long the end of a session may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// A call's number.
type Ticket = u64;

/// What is to happen.
pub type Happens = Event<Ticket>;

/// A mount.
pub struct Mount {
    /// What both sides take their choices from.
    pub choices: Choices,
    core: ClientCore<Ticket>,
    now: Now,
    server: Hostile,
    queue: VecDeque<Happens>,
    answers: Vec<(Ticket, Result<Answer, Refusal>)>,
    last: Ticket,
    /// The call of which it was asked last whether its caller is about to die.
    watched: Option<CallId>,
    looks: u32,
    ended: bool,
}

impl Mount {
    /// Mounts what the server serves; `None` if the client will not have it.
    pub fn connect(mut choices: Choices) -> Option<Self> {
        let mut server = Hostile::default();
        // Long after the boot: times before it are none.
        let hour = BootTime::ZERO + Duration::from_secs(3600);
        let now = Now {
            boot: hour + PAUSE,
            monotonic: hour,
        };
        let Event::Connected {
            connection,
            welcome,
            sent,
        } = server.connect(&mut choices, now)
        else {
            return None;
        };
        let config = Config {
            root: welcome.root,
            identity: welcome.identity,
            owner: Owner { uid: 0, gid: 0 },
            buffers: true,
            timeout: Timeout::After(TIMEOUT),
            memory: MEMORY,
            groups: |_| Vec::new(),
            can_forget_names: true,
            restless_for: Duration::from_secs(1),
            fault: None,
        };
        let mut mount = Self {
            choices,
            core: ClientCore::new(config, now),
            now,
            server,
            queue: VecDeque::new(),
            answers: Vec::new(),
            last: 0,
            watched: None,
            looks: 0,
            ended: false,
        };
        mount.handle(Event::Connected {
            connection,
            welcome,
            sent,
        });
        let refused = mount.core.session_status().trouble.is_some();
        (!refused).then_some(mount)
    }

    /// The server perhaps says something nobody has asked for.
    pub fn say_something(&mut self) {
        let said = self.server.say_something(&mut self.choices);
        self.queue.extend(said);
    }

    /// Tells the core, and does what it wants.
    pub fn handle(&mut self, event: Happens) {
        self.core.handle(self.now, event);
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Answer(ticket, answer) => self.answers.push((ticket, answer)),
                Action::Do(Effect::Notify(id, notice)) if notice.never_blocks() => {
                    self.core
                        .handle(self.now, Event::Notified(id, Noticed::Done));
                }
                Action::Do(effect) => self.carry_out(effect),
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let (choices, server) = (&mut self.choices, &mut self.server);
        let happens = match effect {
            Effect::Notify(id, _) => Some(Event::Notified(id, Noticed::Done)),
            Effect::Watch(call, ..) => {
                self.watched = Some(call);
                self.looks += 1;
                None
            }
            Effect::Send { frame, payload, .. } if encode(&*frame, payload.len()).is_err() => {
                Some(Event::Unsendable(frame.id))
            }
            Effect::Send {
                connection, frame, ..
            } => server.request(choices, connection, &frame),
            Effect::Control(connection, message) => {
                encode(&message, 0).expect("a control message within the bounds");
                server.control(choices, connection, message)
            }
            Effect::Serve(connection) => {
                server.serve(connection);
                None
            }
            Effect::Listen(connection) => Some(Event::Heard(connection, server.datagrams())),
            Effect::Disconnect { connection, .. } => server.disconnect(connection),
            Effect::Connect { .. } => Some(server.connect(choices, self.now)),
            Effect::Keep(id, _) => Some(Event::Kept(id)),
            Effect::Ended => {
                self.ended = true;
                None
            }
        };
        self.queue.extend(happens);
    }

    /// The next thing happens, or time passes.
    fn step(&mut self) {
        let next = self.queue.pop_front();
        let wait = match (&next, self.core.next_deadline()) {
            (Some(_), _) => MOMENT,
            (None, None) => PAUSE,
            (None, Some(due)) => due.left_at(self.now.monotonic).clamp(MOMENT, PAUSE),
        };
        self.now.boot = self.now.boot + wait;
        self.now.monotonic = self.now.monotonic + wait;
        self.handle(next.unwrap_or(Event::Tick));
    }

    /// Makes a call; its caller leaves when it is looked at for this time.
    pub fn call(&mut self, call: Call, looks: u32) -> Result<Answer, Refusal> {
        self.last += 1;
        let (ticket, name) = (self.last, format!("{call:?}"));
        (self.looks, self.watched) = (0, None);
        let asker = Asker {
            uid: 0,
            gid: 0,
            pid: 7,
        };
        let mut since = self.now.monotonic;
        let mut left = false;
        self.handle(Event::Call {
            waiter: ticket,
            asker,
            call,
        });
        loop {
            if let Some(place) = self.answers.iter().position(|(t, _)| *t == ticket) {
                return self.answers.swap_remove(place).1;
            }
            if let Some(call) = self.watched.take()
                && self.looks >= looks
            {
                if !left {
                    (since, left) = (self.now.monotonic, true);
                }
                self.queue.push_back(Event::Left(call));
            }
            let waited = self.now.monotonic.since(since);
            assert!(waited <= ENDS, "{name} doesn't end");
            self.step();
        }
    }

    /// The mount ends.
    pub fn leave(mut self) {
        let _ = format!("{:?}", self.core.session_status());
        let _ = format!("{:?}", self.core.cache_status());
        let since = self.now.monotonic;
        self.handle(Event::Goodbye);
        while !self.ended {
            let waited = self.now.monotonic.since(since);
            assert!(waited <= FAREWELL, "a farewell takes no longer");
            self.step();
        }
        let dirty = self.core.dirty_files().len();
        let left = self.core.take_undelivered();
        assert!(left.len() >= dirty, "buffered bytes are lost");
        let bytes = left.iter().flat_map(|left| &left.extents);
        let _: usize = bytes.map(|(_, bytes): &(u64, Bytes)| bytes.len()).sum();
    }
}
