//! The simulation of the shipped lease cores, over many seeds; and that it finds what is wrong.
//!
//! `LEASEFS_SIM_SEED` runs one seed, `LEASEFS_SIM_STEPS` so many events of it; `LEASEFS_SIM_SEEDS` that
//! many seeds; `LEASEFS_SIM_TRACE=1` tells all of what went before a failure; `LEASEFS_SIM_BUG` puts a
//! fault in, by its name.

use leasefs_tests::sim::{Bug, Plan, Stats, run};

const SEEDS: u64 = 500;
const STEPS: u64 = 10_000;
/// What all seeds together amount to at least: messages, timers and faults; operations of processes.
const LEAST_STEPS: u64 = 500_000;
const LEAST_OPS: u64 = 50_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan(seed: u64, bug: Option<Bug>) -> Plan {
    Plan {
        seed,
        steps: number("LEASEFS_SIM_STEPS").unwrap_or(STEPS),
        bug,
    }
}

fn bug() -> Option<Bug> {
    let name = std::env::var("LEASEFS_SIM_BUG").ok()?;
    let named = |bug: &Bug| format!("{bug:?}") == name;
    Some(Bug::ALL.into_iter().find(named).expect("a fault's name"))
}

#[test]
fn every_history_of_the_shipped_cores_is_linearizable_and_every_operation_ends() {
    let seeds = match number("LEASEFS_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LEASEFS_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Stats::default();
    for seed in seeds {
        match run(plan(seed, bug())) {
            Ok(stats) => total.add(&stats),
            Err(failure) if number("LEASEFS_SIM_TRACE").is_some() => panic!("{failure:#}"),
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{total:#?}");
    if number("LEASEFS_SIM_SEED")
        .or(number("LEASEFS_SIM_SEEDS"))
        .is_none()
    {
        assert!(total.steps >= LEAST_STEPS && total.ops >= LEAST_OPS);
    }
}

/// Seeds in which a fault has to be found.
const TRIES: u64 = 2_000;

#[test]
fn faults_put_in_on_purpose_are_found() {
    let missed: Vec<Bug> = Bug::ALL.into_iter().filter(|bug| !is_found(*bug)).collect();
    assert_eq!(missed, Vec::<Bug>::new(), "not found in {TRIES} seeds");
}

fn is_found(bug: Bug) -> bool {
    let found = (0..TRIES).find_map(|seed| Some((seed, run(plan(seed, Some(bug))).err()?)));
    if let Some((seed, failure)) = &found {
        let what = failure.to_string();
        let what = what.lines().next().unwrap_or_default();
        println!("{bug:?}: found with seed {seed}: {what}");
    }
    found.is_some()
}
