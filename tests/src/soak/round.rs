//! One round of each act.

use super::nemesis::{Nemesis, Regime, TERM};
use super::{Act, Tally};
use crate::coherence::{self, Family, Report};
use crate::durable::arena::{Arena, Crash};
use crate::fsx2::{self, Progress};
use crate::mounted::{Background, World, WorldOptions, Writes, in_background};
use crate::rng::Rng;
use std::io;
use std::path::PathBuf;
use std::thread;
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

fn coherent(mut nemesis: Nemesis, seed: u64, families: Vec<Family>) -> Tally {
    let mut world = world(&nemesis);
    let mut config = coherence::Config::new(dirs(&world));
    config.families = families;
    config.operations = OPERATIONS;
    config.seed = seed;
    config.limit = STUCK;
    let mut work = in_background("the coherence programs", move || coherence::run(&config));
    let mut tally = Tally::default();
    match nemesis.disturb(&mut world, &mut work, LONGEST) {
        Some(report) => tally.takes(report),
        None => tally.findings.push(stuck(&world)),
    }
    tally.end(&nemesis, &world)
}

fn stuck(world: &World) -> String {
    format!("not done after {LONGEST:?}\n{}", world.sandbox.log_tails())
}

fn files(mut nemesis: Nemesis, seed: u64) -> Tally {
    let mut world = world(&nemesis);
    let dirs = dirs(&world);
    let rng = Rng::new(seed);
    let config = |at: usize| fsx2::Config {
        dir: dirs[at].clone(),
        second: dirs[(at + 1) % dirs.len()].clone(),
        operations: FILE_OPERATIONS,
        seed: rng.fork(at as u64).next_u64(),
        max_len: 256 * 1024,
    };
    let configs: Vec<fsx2::Config> = (0..dirs.len()).map(config).collect();
    let mut work: Background<Vec<_>> = in_background("the files", move || {
        let threads = configs.into_iter();
        let threads =
            threads.map(|config| thread::spawn(move || fsx2::run(&config, &Progress::default())));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(thread::JoinHandle::join).collect()
    });
    let mut tally = Tally::default();
    match nemesis.disturb(&mut world, &mut work, LONGEST) {
        None => tally.findings.push(stuck(&world)),
        Some(outcomes) => {
            for outcome in outcomes {
                match outcome {
                    Ok(Ok(done)) => tally.checked += done.operations + done.compared,
                    Ok(Err(failure)) => tally.findings.push(failure.to_string()),
                    Err(_) => tally
                        .findings
                        .push("a thread has panicked, see above".into()),
                }
            }
        }
    }
    tally.end(&nemesis, &world)
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
    fn takes(&mut self, report: io::Result<Report>) {
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                return self
                    .findings
                    .push(format!("the programs can't run: {error}"));
            }
        };
        for family in &report.families {
            println!(
                "  {}",
                family.to_string().lines().next().unwrap_or_default()
            );
            self.checked += family.operations as u64;
            self.unanswered += family.unanswered as u64;
            let named = |fault| format!("{}: {fault}", family.family.name());
            self.findings.extend(family.fault.as_ref().map(named));
        }
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
