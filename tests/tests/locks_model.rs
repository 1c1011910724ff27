//! Locks on several mounts are answered as on one local file system.

use leasefs_tests::locks::random;
use leasefs_tests::locks::{Stage, count_from_env};
use leasefs_tests::mounted::WorldOptions;
use leasefs_tests::rng::fresh_seed;
use std::time::Instant;

const VIEWS: usize = 3;
const SEQUENCES: usize = 10_000;

fn run(stage: &Stage, sequences: usize) {
    let seed = count_from_env("LEASEFS_SEED", fresh_seed() as usize) as u64;
    println!("seed {seed}");
    let started = Instant::now();
    let report = random::run(stage, sequences, seed).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{report:?} in {:.1?}", started.elapsed());
    assert!(report.refused > 0 && report.found > 0, "{report:?}");
}

#[test]
fn random_locks_on_three_mounts_are_answered_as_on_a_local_file_system() {
    let stage = Stage::start("model", VIEWS);
    run(&stage, count_from_env("LEASEFS_LOCKS_SEQUENCES", SEQUENCES));
}

/// So the suite itself is right.
#[test]
fn random_locks_on_a_local_file_system_are_answered_as_the_model_of_it_says() {
    run(&Stage::on_local("model-of-it", VIEWS), 500);
}

#[test]
fn random_locks_on_one_mount_are_answered_as_on_a_local_file_system() {
    let options = WorldOptions::mounts(1);
    run(&Stage::on_one_mount("model-one", VIEWS, &options), 1000);
}
