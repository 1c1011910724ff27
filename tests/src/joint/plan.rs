//! What is explored: what each process does, what may go wrong, how finely steps are told apart.

use super::parts::Told;
use std::fmt;

/// An operation on the one file. Each process has it open twice: to read, through the kernel's pages, and
/// to read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `read`, from the kernel's pages.
    Read,
    /// `read` on the descriptor that writes: from the daemon.
    ReadDirect,
    /// `write`.
    Write,
    /// `write` with `O_APPEND`.
    Append,
    /// `ftruncate`.
    Truncate,
    /// `fsync`.
    Sync,
    /// `fstat`.
    Stat,
    /// A load from a shared mapping.
    Load,
    /// A store into a shared mapping.
    Store,
    /// `close` of the descriptor that writes.
    Close,
}

const RO: usize = 0;
const RW: usize = 1;
const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;

/// What each process has done before anything is explored.
pub(super) const OPENS: [Told; 2] = [Told::Open(O_RDONLY), Told::Open(O_RDWR)];

impl Op {
    const LETTERS: [(char, Op); 10] = [
        ('r', Op::Read),
        ('d', Op::ReadDirect),
        ('w', Op::Write),
        ('a', Op::Append),
        ('t', Op::Truncate),
        ('s', Op::Sync),
        ('i', Op::Stat),
        ('l', Op::Load),
        ('m', Op::Store),
        ('c', Op::Close),
    ];

    pub(super) fn told(self) -> Told {
        match self {
            Self::Read => Told::Read(RO),
            Self::ReadDirect => Told::Read(RW),
            Self::Write => Told::Write(RW, 0),
            Self::Append => Told::Append(RW),
            Self::Truncate => Told::Truncate(RW, 1),
            Self::Sync => Told::Sync(RW),
            Self::Stat => Told::Stat(RO),
            Self::Load => Told::Map(RO),
            Self::Store => Told::Store(RW, 0),
            Self::Close => Told::Close(RW),
        }
    }

    fn letter(self) -> char {
        let known = Self::LETTERS.iter().find(|(_, op)| *op == self);
        known.map_or('?', |(letter, _)| *letter)
    }
}

/// What the process of each client does, in its order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Script(pub Vec<Vec<Op>>);

impl Script {
    /// From letters, a word for each client: `ws|rw`.
    ///
    /// # Panics
    /// Where a letter means nothing.
    pub fn of(text: &str) -> Self {
        let op = |letter| {
            let known = Op::LETTERS.iter().find(|(known, _)| *known == letter);
            known
                .unwrap_or_else(|| panic!("no operation is called {letter:?}"))
                .1
        };
        Self(
            text.split('|')
                .map(|word| word.chars().map(op).collect())
                .collect(),
        )
    }

    /// All of two clients who do so many of these operations each, but for those that differ by who is
    /// who, and those in which nobody changes anything.
    pub fn all(letters: &str, length: usize) -> Vec<Self> {
        let mut words = vec![String::new()];
        for _ in 0..length {
            let longer = |word: &String| {
                letters
                    .chars()
                    .map(move |c| format!("{word}{c}"))
                    .collect::<Vec<_>>()
            };
            words = words.iter().flat_map(longer).collect();
        }
        let pairs = words
            .iter()
            .enumerate()
            .flat_map(|(n, a)| words[n..].iter().map(move |b| (a, b)));
        let changes = |word: &str| word.contains(['w', 'a', 't', 'm']);
        let pairs = pairs.filter(|(a, b)| changes(a) || changes(b));
        pairs.map(|(a, b)| Self::of(&format!("{a}|{b}"))).collect()
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.iter();
        let words: Vec<String> = words
            .map(|ops| ops.iter().map(|op| op.letter()).collect())
            .collect();
        write!(f, "{}", words.join("|"))
    }
}

/// How often what may go wrong, wherever it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// The server's process crashes and starts again.
    pub crashes: u8,
    /// So does its host.
    pub host_crashes: u8,
    /// A client's daemon is killed, with its kernel.
    pub kills: u8,
    /// A connection breaks, with all that is under way on it.
    pub breaks: u8,
    /// A client is cut off until its session has expired.
    pub parts: u8,
    /// Time passes to a host's next deadline while something else could happen.
    pub waits: u8,
}

/// What is one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// A message or a request of a process is taken in, and its host does all that it does without
    /// another's help.
    Coarse,
    /// Threads of a host overtake each other: the stages of a request at the server, what the kernel is
    /// told, what it has done.
    Fine,
}

/// What is explored, and how far.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What processes do.
    pub script: Script,
    /// What goes wrong.
    pub faults: Faults,
    /// What is one step.
    pub grain: Grain,
    /// States at most.
    pub states: usize,
    /// Steps of a run at most.
    pub depth: usize,
}

impl Plan {
    /// A script, all of it.
    pub fn of(script: Script, faults: Faults) -> Self {
        Self {
            script,
            faults,
            grain: Grain::Coarse,
            states: 1_000_000,
            depth: 400,
        }
    }
}
