//! Random operations on one file, checked through read-only descriptors on the same
//! mount and on another.

use leasefs_tests::mounted::{World, WorldOptions, within};
use std::process::Command;
use std::time::Duration;

const SEEDS: [u64; 4] = [1, 2, 3, 4];
const OPERATIONS: u64 = 3000;

/// In a process of its own: a mapped page that can't be had would end it.
fn run(world: &World, seed: u64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasefs-fsx2"));
    command.arg(&world.mount(0).dir).arg(&world.mount(1).dir);
    command.args([
        "--ops",
        &OPERATIONS.to_string(),
        "--seed",
        &seed.to_string(),
    ]);
    let what = format!("{command:?}");
    let (output, _) = within(what, Duration::from_secs(300), move || command.output());
    let output = output.expect("leasefs-fsx2 can be started");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "seed {seed}: {told}{errors}");
    println!("{told}");
}

#[test]
fn cached_readers_here_and_elsewhere_see_what_the_model_says() {
    let world = World::start("fsx2", &WorldOptions::mounts(2));
    for seed in SEEDS {
        run(&world, seed);
    }
}
