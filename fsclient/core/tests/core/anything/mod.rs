//! Whatever happens, in whatever order: every call is answered once, and the same events give the same
//! actions.

mod server;

use crate::said::{Asked, DIR, FILE, attr};
use crate::world::{Outcome, Waiter, World};
use bytes::Bytes;
use leasefs_client::call::{At, Fh, NewMode, Writing};
use leasefs_client::{Answer, Call, Event, NodeId, Timeout, repeat_tables};
use leasefs_protocol::{Attr, Refusal, SetAttr};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Chance that can be repeated (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = self.below(all.len().max(1) as u64);
        all.get(at as usize).cloned()
    }
}

/// Objects 1 to 4 are directories.
fn attr_of(object: u8) -> Attr {
    attr(object, if object <= 4 { DIR } else { FILE })
}

const OBJECTS: u64 = 12;

struct Play {
    world: World,
    chance: Chance,
    waiting: BTreeMap<Waiter, Call>,
    nodes: BTreeMap<NodeId, u64>,
    files: BTreeSet<u64>,
    dirs: BTreeSet<u64>,
    asked: Vec<Asked>,
    opens: u64,
    stamp: u64,
    process: u8,
    host: u8,
    /// Whether the kernel has ever failed to drop something.
    has_failed: bool,
}

impl Play {
    fn new(seed: u64) -> Self {
        Self {
            world: World::with(Timeout::After(Duration::from_secs(2))),
            chance: Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            waiting: BTreeMap::new(),
            nodes: BTreeMap::from([(NodeId::ROOT, 0)]),
            files: BTreeSet::new(),
            dirs: BTreeSet::new(),
            asked: Vec::new(),
            opens: 0,
            stamp: 0,
            process: 1,
            host: 9,
            has_failed: false,
        }
    }

    fn step(&mut self) {
        match self.chance.below(32) {
            0..10 => self.calls(),
            10..20 => self.answers(),
            20..23 => self.recalls(),
            23 => self.forgets(),
            24 => self.leaves(),
            25 if self.chance.one_in(4) => self.fails(),
            25 => self.world.keeps_waiting = true,
            26 => self.world.gets_on(),
            27 if self.chance.one_in(4) => self.world.cut(),
            28 if self.chance.one_in(4) => self.world.sleep(Duration::from_millis(500)),
            29 if self.chance.one_in(8) => self.world.lively ^= true,
            _ => {
                let most = [5, 300, 3000][self.chance.below(3) as usize];
                let time = self.chance.below(most);
                self.world.pass(Duration::from_millis(time));
            }
        }
        self.take_up();
    }

    fn fails(&mut self) {
        self.world.fails ^= true;
        self.has_failed = true;
    }

    /// Whatever follows from what has happened.
    fn take_up(&mut self) {
        if self.world.connects.is_some() && self.chance.one_in(3) {
            self.connects();
        }
        for said in self.world.take_said() {
            self.hears(said);
        }
        let asked = self.world.take_asked();
        self.asked.extend(asked);
        for (waiter, outcome) in self.world.take_answers() {
            let call = self.waiting.remove(&waiter).expect("it waits");
            self.answered(&call, outcome);
        }
    }

    fn node(&mut self) -> NodeId {
        let all: Vec<NodeId> = self.nodes.keys().copied().collect();
        self.chance.of(&all).unwrap_or(NodeId::ROOT)
    }

    fn name(&mut self) -> Box<[u8]> {
        [b'a' + self.chance.below(6) as u8].into()
    }

    fn at(&mut self) -> At {
        let all: Vec<u64> = self.files.iter().copied().collect();
        At {
            fh: Fh(self.chance.of(&all).unwrap_or(0)),
            offset: 4096 * self.chance.below(3),
        }
    }

    fn flags(&mut self) -> u32 {
        let all = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR];
        self.chance.of(&all).unwrap_or(0) as u32
    }

    fn calls(&mut self) {
        let (node, parent, name) = (self.node(), self.node(), self.name());
        let (at, flags) = (self.at(), self.flags());
        let fh = at.fh;
        let mode = NewMode {
            mode: 0o644,
            umask: 0,
        };
        let call = match self.chance.below(22) {
            0..4 => Call::Lookup { parent, name },
            4 => Call::GetAttr { node },
            5 => Call::SetAttr {
                node,
                fh: None,
                set: SetAttr {
                    size: self.chance.one_in(2).then_some(100),
                    mode: Some(0o600),
                    ..SetAttr::default()
                },
                owner: None,
            },
            6 => Call::Unlink { parent, name },
            7 => Call::MakeDir { parent, name, mode },
            8..11 => Call::Open { node, flags },
            11 => Call::Create {
                parent,
                name,
                mode,
                flags,
            },
            12 => Call::Read {
                at,
                len: 4096,
                owner: leasefs_protocol::LockOwner(1),
            },
            13 => Call::ReadPages { at, len: 4096 },
            14..17 => Call::Write {
                fh,
                writing: Writing {
                    offset: at.offset,
                    data: Bytes::from_static(b"some bytes"),
                    flags,
                    writeback: self.chance.one_in(4),
                    kill_priv: false,
                    owner: None,
                },
            },
            17 => Call::Sync {
                fh,
                data_only: self.chance.one_in(2),
            },
            18 => {
                self.files.remove(&fh.0);
                Call::Release { fh }
            }
            19 => Call::OpenDir { node },
            20 => {
                let all: Vec<u64> = self.dirs.iter().copied().collect();
                let fh = Fh(self.chance.of(&all).unwrap_or(0));
                Call::ReadDir {
                    fh,
                    offset: self.chance.below(3),
                    plus: self.chance.one_in(2).then_some(4096),
                }
            }
            _ => Call::Rename {
                parent,
                name,
                new_parent: node,
                new_name: b"f".as_slice().into(),
                flags: 0,
            },
        };
        self.call(call);
    }

    fn call(&mut self, call: Call) {
        let pid = self.chance.below(3) as u32;
        let waiter = self.world.call_by(pid, call.clone());
        self.waiting.insert(waiter, call);
    }

    fn answered(&mut self, call: &Call, outcome: Outcome) {
        match outcome {
            Ok(Answer::Found(Some(entry)) | Answer::Made(entry)) => {
                *self.nodes.entry(entry.node.id).or_default() += 1;
            }
            Ok(Answer::Created(entry, opened)) => {
                *self.nodes.entry(entry.node.id).or_default() += 1;
                self.files.insert(opened.fh.0);
            }
            Ok(Answer::Opened(opened)) => {
                self.files.insert(opened.fh.0);
            }
            Ok(Answer::OpenedDir(fh)) => {
                self.dirs.insert(fh.0);
            }
            Ok(_) => {}
            // A change isn't sent if the kernel doesn't drop what it covers.
            Err(Refusal::Internal) => assert!(self.has_failed, "{call:?}"),
            Err(_) => {}
        }
    }

    fn forgets(&mut self) {
        let node = self.node();
        if let Some(count) = self.nodes.remove(&node).filter(|_| node != NodeId::ROOT) {
            self.world.tell(Event::Forget { node, count });
        }
        self.nodes.entry(NodeId::ROOT).or_default();
    }

    fn leaves(&mut self) {
        let watched = std::mem::take(&mut self.world.watched);
        if let Some((call, _)) = self.chance.of(&watched) {
            self.world.tell(Event::Left(call));
        }
    }

    /// Kernel and server do what they are asked from now on.
    fn ends(&mut self) {
        (self.world.lively, self.world.fails) = (true, false);
        self.world.gets_on();
        for _ in 0..600 {
            if self.world.connects.is_some() {
                self.connects();
            }
            self.take_up();
            while self.world.serves && !self.asked.is_empty() {
                let asked = self.asked.remove(0);
                self.answer(&asked);
                self.take_up();
            }
            self.world.pass(Duration::from_millis(100));
        }
        self.take_up();
        assert!(
            self.waiting.is_empty(),
            "never answered: {:?}",
            self.waiting
        );
    }
}

fn play(seed: u64, steps: usize) -> Vec<String> {
    println!("seed {seed}");
    let mut play = Play::new(seed);
    for _ in 0..steps {
        play.step();
    }
    play.ends();
    play.world.log
}

#[test]
fn every_call_is_answered_once_whatever_happens() {
    for seed in 1..=20 {
        play(seed, 1000);
    }
}

#[test]
fn whatever_happens_the_same_events_give_the_same_actions() {
    repeat_tables();
    for seed in 100..105 {
        let [first, second] = [(); 2].map(|()| play(seed, 500));
        assert!(first == second, "seed {seed}");
    }
}
