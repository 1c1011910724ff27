//! One round of each act.

use super::nemesis::{Nemesis, Regime, TERM};
use super::{Act, Tally};
use crate::coherence::Family;
use crate::durable::arena::{Arena, Crash};
use crate::mounted::{Background, Binaries, World, WorldOptions, Writes, in_background};
use crate::rng::Rng;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Operations of each family in a round.
const OPERATIONS: usize = 60_000;
/// Operations on each file in a round.
const FILE_OPERATIONS: u64 = 5_000;
/// Crashes of each kind in a round.
const CRASHES: usize = 3;
/// How long a caller may wait: the timeout of the mounts, twice.
const STUCK: Duration = Duration::from_secs(120);
/// How long the programs of a round may take.
const LONGEST: Duration = Duration::from_secs(900);

pub(super) fn play(act: Act, seed: u64, without: &[Family]) -> Tally {
    let rng = Rng::new(seed);
    let with = |regime| Nemesis::new(rng.fork(1), regime);
    let families = |left_out: &[Family]| {
        let mut families = Family::ALL.to_vec();
        families.retain(|family| !without.contains(family) && !left_out.contains(family));
        families
    };
    match act {
        Act::Buffered => coherent(with(Regime::Short), seed, families(&[])),
        Act::Away => coherent(with(Regime::Away), seed, families(&[])),
        Act::Frozen => coherent(with(Regime::Frozen), seed, families(&[Family::Registers])),
        Act::Files => files(with(Regime::Short), seed),
        Act::Durable => durable(seed),
    }
}

fn world(nemesis: &Nemesis) -> World {
    let options = WorldOptions::mounts(3).term(TERM).with_relays();
    World::start(
        "soak",
        &options.writes(match nemesis.regime {
            Regime::Short => Writes::Back,
            Regime::Away | Regime::Frozen => Writes::Through,
        }),
    )
}

fn dirs(world: &World) -> Vec<PathBuf> {
    world.mounts.iter().map(|mount| mount.dir.clone()).collect()
}

fn coherent(nemesis: Nemesis, seed: u64, families: Vec<Family>) -> Tally {
    // The program takes none for all.
    if families.is_empty() {
        return Tally::default();
    }
    let world = world(&nemesis);
    let only = families.iter().flat_map(|f| ["--family", f.name()]);
    let program = Program::new("leasefs-coherence")
        .args(dirs(&world))
        .args(only)
        .args(["--ops", &OPERATIONS.to_string()])
        .args(["--seed", &seed.to_string()])
        .start();
    disturbed(nemesis, world, vec![program])
}

fn stuck(world: &World) -> String {
    format!("not done after {LONGEST:?}\n{}", world.sandbox.log_tails())
}

fn files(nemesis: Nemesis, seed: u64) -> Tally {
    let world = world(&nemesis);
    let dirs = dirs(&world);
    let rng = Rng::new(seed);
    let program = |at: usize| {
        Program::new("leasefs-fsx2")
            .args([&dirs[at], &dirs[(at + 1) % dirs.len()]])
            .args(["--ops", &FILE_OPERATIONS.to_string()])
            .args(["--seed", &rng.fork(at as u64).next_u64().to_string()])
            .start()
    };
    let programs = (0..dirs.len()).map(program).collect();
    disturbed(nemesis, world, programs)
}

/// What the programs say that run meanwhile.
fn disturbed(mut nemesis: Nemesis, mut world: World, programs: Vec<io::Result<Child>>) -> Tally {
    let mut work: Background<Vec<_>> = in_background("the programs", move || {
        let programs = programs.into_iter();
        let outputs = programs.map(|program| program?.wait_with_output());
        outputs.collect()
    });
    let mut tally = Tally::default();
    match nemesis.disturb(&mut world, &mut work, LONGEST) {
        None => tally.findings.push(stuck(&world)),
        Some(outputs) => outputs.into_iter().for_each(|output| tally.takes(output)),
    }
    tally.end(&nemesis, &world)
}

/// A process of its own works on the mounts. What forwards to the server and starts it again is here: it must have
/// nothing of the mounts open or mapped. While one of its mapped pages is waited for nothing of a process's memory
/// can be changed, and a program that it starts waits until what it had open has been written back.
struct Program(Command);

impl Program {
    fn new(name: &str) -> Self {
        Self(Command::new(Binaries::beside(name)))
    }

    fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.0.args(args);
        self
    }

    fn start(self) -> io::Result<Child> {
        let limit = STUCK.as_secs().to_string();
        let mut program = self.args(["--limit", &limit]).0;
        program
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

fn durable(seed: u64) -> Tally {
    let (mut arena, mut tally) = (Arena::new("soak", seed, None), Tally::default());
    for crash in [Crash::Client, Crash::Server, Crash::Both] {
        for _ in 0..CRASHES {
            let report = arena.round(crash);
            tally.checked += report.calls as u64;
            tally.unanswered += report.failed as u64;
            tally.faults.clients_killed += u64::from(crash != Crash::Server);
            tally.faults.servers_killed += u64::from(crash != Crash::Client);
            let said = |finding| format!("{crash:?}: {finding}");
            tally.findings.extend(report.findings.into_iter().map(said));
        }
    }
    tally
}

impl Tally {
    /// What a program has said.
    fn takes(&mut self, output: io::Result<Output>) {
        let output = match output {
            Ok(output) => output,
            Err(error) => return self.findings.push(format!("a program can't run: {error}")),
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        let passed = said.contains("PASSED") && output.status.success();
        let counted = said
            .lines()
            .filter(|_| passed)
            .map(|line| self.counts(line));
        if !counted.fold(false, |any, counted| any | counted) {
            let finding = format!("{}: {said}{complained}", output.status);
            self.findings.push(finding);
        }
    }

    /// Takes in a line that says how much was done; false if it doesn't.
    fn counts(&mut self, line: &str) -> bool {
        let words = line.split([' ', ',']);
        let number = |word: &str| word.trim_start_matches('(').parse::<u64>().ok();
        let numbers: Vec<u64> = words.filter_map(number).collect();
        match numbers.as_slice() {
            // Operations, those that aren't supported, comparisons.
            [operations, _, compared] if line.starts_with("PASSED") => {
                self.checked += operations + compared;
            }
            // Operations, of them reads, changes, and what wasn't answered.
            [operations, _, _, unanswered, ..] if line.contains("linearizable") => {
                println!("  {line}");
                self.checked += operations;
                self.unanswered += unanswered;
            }
            _ => return false,
        }
        true
    }

    /// The round is over.
    fn end(mut self, nemesis: &Nemesis, world: &World) -> Self {
        self.faults.add(&nemesis.faults);
        if nemesis.regime == Regime::Short && self.findings.is_empty() {
            self.findings
                .extend(world.mounts.iter().filter_map(|mount| {
                    let kept = mount.client(&["recover", "list"]);
                    let nothing = kept.trim().is_empty() || kept.contains("nothing");
                    (!nothing).then(|| {
                        format!(
                            "{} has put data aside though nobody was away: {kept}",
                            mount.dir.display()
                        )
                    })
                }));
        }
        if !self.findings.is_empty() {
            println!("{}", world.sandbox.log_tails());
        }
        self
    }
}
