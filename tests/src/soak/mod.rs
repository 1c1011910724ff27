//! The checkers of this crate in rounds, for as long as one likes, each on three fresh mounts (two for
//! [`Act::Durable`]) whose servers, clients and links are disturbed at random.
//!
//! A round is named by its act and its seed; both are printed before it begins. The same make the same
//! choices, not the same timing.

mod nemesis;
mod round;

pub use nemesis::{Faults, Regime};

use crate::coherence::Family;
use crate::rng::Rng;
use std::fmt;
use std::time::{Duration, Instant};

/// What is done in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The coherence programs on mounts that buffer writes; nobody is away for a term.
    Buffered,
    /// The coherence programs on mounts that send every write; links are cut and the server is away for
    /// longer than a term.
    Away,
    /// The same without registers, and clients are frozen for longer than a term: mapped pages are what
    /// a stopped daemon can't take back.
    Frozen,
    /// Random operations on three files, each changed on one mount and looked at on two.
    Files,
    /// Writers with journals; clients, servers and both are killed.
    Durable,
}

impl Act {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Buffered,
        Self::Away,
        Self::Frozen,
        Self::Files,
        Self::Durable,
    ];

    /// As on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Away => "away",
            Self::Frozen => "frozen",
            Self::Files => "files",
            Self::Durable => "durable",
        }
    }

    /// The act of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|act| act.name() == name)
    }
}

/// What a round, or all of them, came to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Operations whose outcome was checked.
    pub checked: u64,
    /// Of them, those that failed without an answer.
    pub unanswered: u64,
    /// What was done to daemons and links.
    pub faults: Faults,
    /// What must not be, in words.
    pub findings: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.checked += other.checked;
        self.unanswered += other.unanswered;
        self.faults.add(&other.faults);
        self.findings.extend(other.findings);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (checked, unanswered) = (self.checked, self.unanswered);
        write!(
            f,
            "{checked} operations checked ({unanswered} unanswered); {}",
            self.faults
        )
    }
}

/// Runs rounds until the time is up, or something is found; `only`: of this act.
pub fn soak(time: Duration, seed: u64, only: Option<Act>, without: &[Family]) -> Tally {
    let (mut rng, begun) = (Rng::new(seed), Instant::now());
    let mut total = Tally::default();
    let mut rounds = 0;
    while begun.elapsed() < time && total.findings.is_empty() {
        let act = only.unwrap_or(Act::ALL[rounds % Act::ALL.len()]);
        total.add(one_round(act, rng.next_u64(), without));
        rounds += 1;
        let rate = total.checked as f64 / begun.elapsed().as_secs_f64().max(0.1);
        println!(
            "{rounds} rounds in {:.0?}: {total}; {rate:.0} operations a second",
            begun.elapsed()
        );
    }
    total
}

/// One round, `without` some of the coherence programs.
pub fn one_round(act: Act, seed: u64, without: &[Family]) -> Tally {
    println!("round {}:{seed}", act.name());
    let begun = Instant::now();
    let tally = round::play(act, seed, without);
    println!("  {:.1?}: {tally}", begun.elapsed());
    for finding in &tally.findings {
        println!("VIOLATION in round {}:{seed}: {finding}", act.name());
    }
    tally
}
