//! The simulation of the shipped cores, over many seeds.
//!
//! `LEASEFS_SIM_SEED` runs one seed, `LEASEFS_SIM_STEPS` so many events of it; `LEASEFS_SIM_SEEDS` that
//! many seeds, from `LEASEFS_SIM_FROM` on; `LEASEFS_SIM_TRACE=1` tells all of what went before a failure;
//! `LEASEFS_SIM_KINDS` allows only these kinds of misfortune (freeze, break, part, stall, kill, unmount,
//! crash, shutdown, suspend), `none` none; `LEASEFS_SIM_CLIENTS` says how many clients there are;
//! `LEASEFS_SIM_ONLY` leaves out what it doesn't name of maps, names,
//! fills, away, locks, slow (which else is left out).

use leasefs_tests::sim::{Plan, Stats, run};
use std::time::Instant;

const SEEDS: u64 = 200;
const STEPS: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan(seed: u64) -> Plan {
    let mut plan = Plan::of(seed, number("LEASEFS_SIM_STEPS").unwrap_or(STEPS));
    plan.clients = number("LEASEFS_SIM_CLIENTS").unwrap_or(0) as usize;
    if let Ok(kinds) = std::env::var("LEASEFS_SIM_KINDS") {
        let kinds: Vec<&str> = kinds.split(',').collect();
        plan = plan.with_only(&kinds);
    }
    if let Ok(only) = std::env::var("LEASEFS_SIM_ONLY") {
        let only: Vec<&str> = only.split(',').collect();
        plan.maps = only.contains(&"maps");
        plan.names = only.contains(&"names");
        plan.fills = only.contains(&"fills");
        plan.slow = only.contains(&"slow");
        plan.away = only.contains(&"away");
        plan.locks = only.contains(&"locks");
    }
    plan
}

#[test]
fn every_history_of_the_shipped_cores_is_linearizable_and_every_operation_ends() {
    let from = number("LEASEFS_SIM_FROM").unwrap_or(0);
    let seeds = match number("LEASEFS_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => from..from + number("LEASEFS_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let survey = std::env::var("LEASEFS_SIM_SURVEY").is_ok();
    let began = Instant::now();
    let (mut total, mut failed) = (Stats::default(), 0);
    for seed in seeds {
        match run(plan(seed)) {
            Ok(stats) => total.add(&stats),
            Err(failure) if survey => {
                failed += 1;
                println!("seed {seed}: {}", failure.what());
            }
            Err(failure) if number("LEASEFS_SIM_TRACE").is_some() => panic!("{failure:#}"),
            Err(failure) => panic!("{failure}"),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{total:#?}");
    println!(
        "{failed} seeds failed; {seconds:.1} s, {:.0} steps/s, {:.0} operations/s",
        total.steps as f64 / seconds,
        total.ops as f64 / seconds
    );
    assert_eq!(failed, 0);
    if is_usual() {
        check_that_locks_were_tried(&total);
    }
}

/// Whether nothing is left out.
fn is_usual() -> bool {
    !std::env::vars().any(|(name, _)| name.starts_with("LEASEFS_SIM_"))
}

/// All that can become of a lock has.
fn check_that_locks_were_tried(stats: &Stats) {
    for (what, count) in [
        ("given without asking", stats.locks_here),
        ("given by the server", stats.locks_there),
        ("waited for", stats.locks_waited),
        ("given up waiting for", stats.locks_interrupted),
        ("refused as a deadlock", stats.deadlocks),
        ("lost", stats.locks_lost),
        ("claimed back", stats.locks_reclaimed),
    ] {
        assert!(count > 0, "no lock was {what}");
    }
    assert!(stats.unlocked_changes > 0, "no change came too late");
}
