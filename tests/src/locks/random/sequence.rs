//! One file and what is done with its locks.

use crate::locks::model::{Cells, Locks, Owner, Run};
use crate::locks::sys::{Kind, Range, Type, Whence};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a process may have open of a file: two descriptors opened apart, and a copy of one of them.
pub const SLOTS: std::ops::Range<usize> = 0..3;
/// Which of them is the copy.
const COPY: usize = 2;

/// The name of a file.
pub fn file_name(file: usize) -> String {
    format!("model{file}")
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Nothing,
    Open {
        slot: usize,
        mode: &'static str,
    },
    Dup {
        slot: usize,
    },
    Close {
        slot: usize,
    },
    Seek {
        slot: usize,
        to: i64,
    },
    Range {
        slot: usize,
        kind: Kind,
        what: Type,
        range: Range,
    },
    Flock {
        slot: usize,
        what: Type,
    },
    Test {
        slot: usize,
        kind: Kind,
        what: Type,
        range: Range,
    },
}

impl Op {
    pub fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }

    /// As a process is told it; nothing for nothing.
    pub fn command(&self, file: usize, folder: &Path) -> String {
        let at = |slot: &usize| file * SLOTS.len() + slot;
        match self {
            Self::Nothing => String::new(),
            Self::Open { slot, mode } => {
                let path = folder.join(file_name(file));
                format!("open {} {} {mode}", at(slot), path.display())
            }
            Self::Dup { slot } => format!("dup {} {}", at(slot), at(&COPY)),
            Self::Close { slot } => format!("close {}", at(slot)),
            Self::Seek { slot, to } => format!("seek {} {to}", at(slot)),
            Self::Range {
                slot,
                kind,
                what,
                range,
            } => {
                format!("{kind} {} {what} {range}", at(slot))
            }
            Self::Flock { slot, what } => format!("flock {} {what}", at(slot)),
            Self::Test {
                slot,
                kind,
                what,
                range,
            } => {
                format!("test {} {kind} {what} {range}", at(slot))
            }
        }
    }

    /// Whether that answer refuses it.
    pub fn is_refused(&self, answer: &str) -> bool {
        !matches!(self, Self::Test { .. }) && answer != "ok"
    }

    /// Whether it can be asked once more after that answer, as if it had not been before: a refusal
    /// leaves what the same operation is to change as it was, or lost, which comes to the same.
    pub fn may_be_repeated(&self, answer: &str) -> bool {
        match self {
            Self::Range { .. } | Self::Flock { .. } => answer == "EAGAIN",
            Self::Test { .. } => true,
            _ => false,
        }
    }
}

#[derive(Debug)]
struct Description {
    /// Descriptors that lead to it.
    descriptors: usize,
    position: i64,
    /// It may own locks.
    locked: bool,
}

/// One file, and the processes that have it open.
#[derive(Debug)]
pub struct Sequence {
    locks: Locks,
    slots: Vec<[Option<usize>; 3]>,
    descriptions: BTreeMap<usize, Description>,
    opened: usize,
    history: Vec<String>,
    /// What was answered last, locally and on the stage.
    pub answers: (String, String),
    /// When a description was closed last that may have owned locks.
    released: Option<Instant>,
}

impl Sequence {
    pub fn new(processes: usize) -> Self {
        Self {
            locks: Locks::default(),
            slots: vec![[None; 3]; processes],
            descriptions: BTreeMap::new(),
            opened: 0,
            history: Vec::new(),
            answers: Default::default(),
            released: None,
        }
    }

    /// Everything is closed.
    pub fn begin(&mut self) {
        assert!(self.descriptions.is_empty());
        self.history.clear();
    }

    /// Whether somebody's lock may be there still although it is given up.
    pub fn may_lag(&self, linger: Duration) -> bool {
        self.released.is_some_and(|at| at.elapsed() < 2 * linger)
    }

    /// What a process does next.
    pub fn choose(&self, process: usize, rng: &mut Rng) -> Op {
        let slot = rng.below(SLOTS.len());
        let slots = &self.slots[process];
        let Some(description) = slots[slot] else {
            if slot == COPY && slots[0].is_some() {
                return Op::Dup { slot: 0 };
            }
            let mode = ["rw", "rw", "rw", "rw", "r", "w"][rng.below(6)];
            let slot = usize::from(slots[0].is_some() && slots[1].is_none());
            let free = slots[slot].is_none();
            return if free {
                Op::Open { slot, mode }
            } else {
                Op::Nothing
            };
        };
        let what = [
            Type::Read,
            Type::Read,
            Type::Write,
            Type::Write,
            Type::Unlock,
        ][rng.below(5)];
        let kind = if rng.chance(50) {
            Kind::Fcntl
        } else {
            Kind::Ofd
        };
        let range = random_range(rng, self.descriptions[&description].position);
        match rng.below(100) {
            0..50 => Op::Range {
                slot,
                kind,
                what,
                range,
            },
            50..68 => Op::Flock { slot, what },
            68..88 => {
                let what = if rng.chance(50) {
                    Type::Read
                } else {
                    Type::Write
                };
                Op::Test {
                    slot,
                    kind,
                    what,
                    range,
                }
            }
            88..94 => Op::Seek {
                slot,
                to: rng.below(20) as i64,
            },
            _ => Op::Close { slot },
        }
    }

    /// Closes a slot if it is open.
    pub fn close(&self, process: usize, slot: usize) -> Op {
        let open = self.slots[process][slot].is_some();
        if open {
            Op::Close { slot }
        } else {
            Op::Nothing
        }
    }

    /// What is in the way of what is asked, if it is asked what is.
    pub fn in_the_way(&self, process: usize, op: &Op) -> Option<Vec<Run>> {
        let Op::Test {
            slot,
            kind,
            what,
            range,
        } = op
        else {
            return None;
        };
        let owner = self.owner(process, *slot, *kind);
        let position = self.description(process, *slot).position;
        let cells = Cells::of(*range, position)?;
        Some(self.locks.in_the_way(owner, *what, cells))
    }

    /// Takes in what was done, and how it was answered on the local file system.
    pub fn done(&mut self, process: usize, op: &Op, answer: &str) {
        self.history.push(format!("{process}: {op:?}: {answer}"));
        if answer != "ok" {
            return;
        }
        match *op {
            Op::Open { slot, .. } => self.opens(process, slot),
            Op::Dup { slot } => {
                let number = self.slots[process][slot];
                self.slots[process][COPY] = number;
                self.description_mut(process, slot).descriptors += 1;
            }
            Op::Close { slot } => self.closes(process, slot),
            Op::Seek { slot, to } => self.description_mut(process, slot).position = to,
            Op::Range {
                slot,
                kind,
                what,
                range,
            } => {
                let owner = self.owner(process, slot, kind);
                let position = self.description(process, slot).position;
                let cells = Cells::of(range, position).expect("there is such a range");
                let ways = self.locks.in_the_way(owner, what, cells);
                assert!(ways.is_empty(), "the model is wrong: {op:?}: {ways:?}");
                self.locks.set(owner, what, cells);
                self.description_mut(process, slot).locked |= kind == Kind::Ofd;
            }
            Op::Flock { slot, .. } => self.description_mut(process, slot).locked = true,
            Op::Nothing | Op::Test { .. } => {}
        }
    }

    fn opens(&mut self, process: usize, slot: usize) {
        self.opened += 1;
        self.slots[process][slot] = Some(self.opened);
        let description = Description {
            descriptors: 1,
            position: 0,
            locked: false,
        };
        self.descriptions.insert(self.opened, description);
    }

    fn closes(&mut self, process: usize, slot: usize) {
        let number = self.slots[process][slot].take().expect("it was open");
        self.locks.forget(Owner::Process(process));
        let description = self.descriptions.get_mut(&number).expect("it is open");
        description.descriptors -= 1;
        if description.descriptors == 0 {
            self.released = if description.locked {
                Some(Instant::now())
            } else {
                self.released
            };
            self.locks.forget(Owner::Description(number));
            self.descriptions.remove(&number);
        }
    }

    fn owner(&self, process: usize, slot: usize, kind: Kind) -> Owner {
        match kind {
            Kind::Ofd => Owner::Description(self.slots[process][slot].expect("it is open")),
            _ => Owner::Process(process),
        }
    }

    fn description(&self, process: usize, slot: usize) -> &Description {
        &self.descriptions[&self.slots[process][slot].expect("it is open")]
    }

    fn description_mut(&mut self, process: usize, slot: usize) -> &mut Description {
        let number = self.slots[process][slot].expect("it is open");
        self.descriptions.get_mut(&number).expect("it is open")
    }

    /// A failure with what led to it.
    pub fn explain(&self, process: usize, op: &Op, wrong: &str) -> String {
        let history = self.history.join("\n");
        format!("{history}\n{process}: {op:?}: {wrong}")
    }
}

/// Mostly within the first bytes, so that ranges meet; some can't be.
fn random_range(rng: &mut Rng, position: i64) -> Range {
    let len = match rng.below(10) {
        0 | 1 => 0,
        2 => -(rng.between(1, 6) as i64),
        _ => rng.between(1, 8) as i64,
    };
    let start = rng.below(14) as i64;
    let (whence, start) = match rng.below(10) {
        0 => (Whence::Cur, start - position),
        1 => (Whence::End, start - crate::locks::model::SIZE),
        2 => (Whence::Cur, start - 9),
        _ => (Whence::Set, start),
    };
    Range { whence, start, len }
}

/// Whether that is a right answer to who asks what is in the way, if that is: any one of it, and by
/// which process, if by one. `lax`: processes that own descriptions may be told too.
pub fn check_found(
    answer: &str,
    ways: &[Run],
    lax: bool,
    pids: impl Fn(usize) -> Vec<String>,
) -> Result<(), String> {
    let right = |way: &Run| {
        let found = answer.rsplit_once(' ');
        let expected = format!("{} 0 {} {}", way.what, way.start, way.len);
        let told = |pid: &str| match way.owner {
            Owner::Process(process) => pids(process).iter().any(|right| right == pid),
            Owner::Description(_) => pid == "-1" || lax,
        };
        found.is_some_and(|(lock, pid)| lock == expected && told(pid))
    };
    let right = if ways.is_empty() {
        answer == "free"
    } else {
        ways.iter().any(right)
    };
    right
        .then_some(())
        .ok_or_else(|| format!("{answer}, where {ways:?} are in the way"))
}
