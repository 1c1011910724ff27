//! Three mounts of one export, used at once: every history is linearizable; and the
//! same programs notice when a client's caching is broken on purpose.

use leasefs_tests::coherence::{Config, Family, FamilyReport, Report, run};
use leasefs_tests::mounted::{Mount, World, WorldOptions, within};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any run: the programs have a watchdog of their own.
const LONGEST: Duration = Duration::from_secs(300);

fn config(world: &World, families: &[Family]) -> Config {
    let mut config = Config::new(world.mounts.iter().map(|mount| mount.dir.clone()).collect());
    config.families = families.to_vec();
    let counters: Vec<_> = world
        .mounts
        .iter()
        .map(|mount| mount.read_request_counter())
        .collect();
    config.read_requests = Some(Arc::new(move |mount| {
        counters.get(mount).map(|count| count())
    }));
    config
}

fn run_bounded(config: Config) -> Report {
    let seed = config.seed;
    let (report, _) = within(
        format!("the run with seed {seed}"),
        2 * LONGEST,
        move || run(&config),
    );
    let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    println!("{report}");
    report
}

fn three_mounts_agree_on(family: Family) -> (World, FamilyReport) {
    let world = World::start(family.name(), &WorldOptions::mounts(3));
    let report = run_bounded(config(&world, &[family]));
    assert!(report.passed(), "{report}");
    let [family]: [FamilyReport; 1] = report.families.try_into().expect("one family");
    assert!(family.operations >= 20_000, "{family}");
    assert_eq!(family.unanswered, 0, "{family}");
    assert!(
        family.remote_share() >= 0.3,
        "too few reads follow another mount's change: {family}"
    );
    (world, family)
}

/// Where no read is answered by a cache, nothing could be stale.
fn three_mounts_agree_on_what_is_cached(family: Family) {
    let (_, family) = three_mounts_agree_on(family);
    let cached = family.cached_share().expect("requests are counted");
    assert!(
        cached >= 0.2,
        "too few reads are answered by a cache: {family}"
    );
}

#[test]
fn registers_read_in_every_way_are_linearizable() {
    three_mounts_agree_on_what_is_cached(Family::Registers);
}

#[test]
fn appends_of_several_writers_are_never_lost_torn_or_doubled() {
    three_mounts_agree_on_what_is_cached(Family::Appends);
}

#[test]
fn names_are_linearizable() {
    three_mounts_agree_on_what_is_cached(Family::Names);
}

#[test]
fn names_of_directories_are_linearizable() {
    let (world, family) = three_mounts_agree_on(Family::Directories);
    // A read here takes up to three requests, so that their number says little of how many reads needed none. What the
    // kernel asked and was told without one is counted instead.
    let answers = |mount: &Mount| {
        let status = mount.status();
        let answers = &status["mounts"][0]["cache_answers"];
        let of = |kind: &str| answers[kind].as_u64().expect("a count");
        of("lookup") + of("getattr")
    };
    let answers: u64 = world.mounts.iter().map(answers).sum();
    assert!(
        answers >= family.reads as u64 / 2,
        "the caches have answered {answers} times only: {family}"
    );
}

#[test]
fn attributes_are_linearizable() {
    three_mounts_agree_on_what_is_cached(Family::Attributes);
}

/// Runs the families against clients with `fault` until one is found in violation.
fn is_flagged(fault: &str, families: &[Family]) {
    // Clients that lie to the server hold each other up until a lease runs out, again and again.
    let options = WorldOptions::mounts(3).fault(fault).term("1s");
    let world = World::start(fault, &options);
    for _ in 0..5 {
        let mut config = config(&world, families);
        // What is still under way can't be unmounted.
        config.limit = LONGEST;
        if !run_bounded(config).passed() {
            return;
        }
    }
    panic!("five runs did not notice the fault {fault}");
}

#[test]
fn a_client_that_drops_nothing_on_recall_is_flagged() {
    is_flagged("no-invalidation", &[Family::Registers, Family::Attributes]);
}

#[test]
fn a_client_that_approves_before_it_has_dropped_is_flagged() {
    is_flagged("approve-early", &[Family::Registers, Family::Attributes]);
}

#[test]
fn attribute_timeouts_in_lookup_replies_are_flagged() {
    is_flagged("lookup-attr-timeout", &[Family::Attributes, Family::Names]);
}
