//! A counter in a file, incremented under a lock by six processes on three mounts.

use leasefs_tests::locks::crew::{Crew, Task};
use leasefs_tests::locks::{Kind, Stage, count_from_env};
use leasefs_tests::mounted::WorldOptions;
use leasefs_tests::rng::{Rng, fresh_seed};
use rustix::process::Signal;
use std::thread;
use std::time::{Duration, Instant};

const VIEWS: usize = 3;
const INCREMENTS: usize = 3000;
const FAULTS: usize = 5;
const TERM: Duration = Duration::from_secs(2);
/// In which the increments without faults are done, however many; then it is stuck.
const LIMIT: Duration = Duration::from_secs(600);
/// In which all get on after a fault, beyond a term: a file is opened anew, sessions are, and 18
/// processes wait for their turns.
const RECOVERY: Duration = Duration::from_secs(20);

fn loses_no_increment(kind: Kind) {
    let stage = Stage::start(&format!("counter-{kind}"), VIEWS);
    let increments = count_from_env("LEASEFS_LOCKS_INCREMENTS", INCREMENTS);
    let task = Task {
        kind,
        times: increments.div_ceil(2 * VIEWS),
        linger: Duration::ZERO,
        sync: false,
    };
    let started = Instant::now();
    let mut crew = Crew::start(&stage, task);
    crew.finishes_within(LIMIT);
    let took = started.elapsed();
    let (ledger, value) = crew.outcome(&stage);
    println!("{kind}: {}, {value} in {took:.1?}", ledger.summary());
    let wrong = ledger.wrong_without_faults(value);
    assert!(
        wrong.is_empty(),
        "{} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
    assert_eq!(value as usize, task.times * 2 * VIEWS);
}

#[test]
fn a_counter_under_fcntl_loses_no_increment() {
    loses_no_increment(Kind::Fcntl);
}

#[test]
fn a_counter_under_locks_of_descriptions_loses_no_increment() {
    loses_no_increment(Kind::Ofd);
}

#[test]
fn a_counter_under_flock_loses_no_increment() {
    loses_no_increment(Kind::Flock);
}

/// What befalls those who count.
type Fault = fn(&mut Stage, &mut [Crew], &mut Rng);

/// A counter for each kind of lock, all at once.
fn is_right_under(name: &str, fault: Fault) {
    let mut stage = Stage::with(name, &WorldOptions::mounts(VIEWS).term("2s"));
    let seed = count_from_env("LEASEFS_SEED", fresh_seed() as usize) as u64;
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let task = |kind| Task {
        kind,
        times: usize::MAX,
        linger: Duration::from_millis(1),
        sync: true,
    };
    let mut crews = Kind::ALL.map(|kind| Crew::start(&stage, task(kind)));
    for _ in 0..count_from_env("LEASEFS_LOCKS_FAULTS", FAULTS) {
        crews
            .iter_mut()
            .for_each(|crew| crew.all_get_on_within(TERM + RECOVERY));
        // At any moment of what they do.
        thread::sleep(Duration::from_micros(rng.below(100_000) as u64));
        fault(&mut stage, &mut crews, &mut rng);
    }
    for crew in &mut crews {
        crew.all_get_on_within(TERM + RECOVERY);
        crew.stop();
    }
    for crew in &mut crews {
        crew.finishes_within(TERM + RECOVERY);
        let (ledger, value) = crew.outcome(&stage);
        println!("{}, the counter is {value}", ledger.summary());
        let wrong = ledger.wrong_under_faults(value);
        assert!(
            wrong.is_empty(),
            "{} wrong: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        );
    }
}

#[test]
fn counters_are_right_when_holders_are_killed() {
    is_right_under("killed-holders", |_, crews, rng| {
        for crew in crews {
            for _ in 0..5 {
                crew.kill_one(rng);
            }
        }
    });
}

#[test]
fn counters_are_right_when_a_client_is_killed_and_mounted_again() {
    if !Stage::has_mounts_apart() {
        return;
    }
    is_right_under("killed-clients", |stage, _, rng| {
        let view = rng.below(VIEWS);
        stage.world().kill_client(view);
        stage.world().mount_again(view);
    });
}

#[test]
fn counters_are_right_when_a_client_is_stopped_for_longer_than_a_term() {
    if !Stage::has_mounts_apart() {
        return;
    }
    is_right_under("stopped-clients", |stage, _, rng| {
        let view = rng.below(VIEWS);
        stage.world().mounts[view].freeze();
        let time = 2 * TERM + Duration::from_millis(rng.below(1000) as u64);
        thread::sleep(time);
        stage.world().mounts[view].thaw();
    });
}

#[test]
fn counters_are_right_when_a_client_is_stopped_for_about_a_term() {
    if !Stage::has_mounts_apart() {
        return;
    }
    is_right_under("dozing-clients", |stage, _, rng| {
        let view = rng.below(VIEWS);
        stage.world().mounts[view].freeze();
        thread::sleep(TERM.mul_f64(rng.between(50, 150) as f64 / 100.0));
        stage.world().mounts[view].thaw();
    });
}

#[test]
fn counters_are_right_when_the_server_is_killed_and_started_again() {
    if !Stage::has_mounts_apart() {
        return;
    }
    is_right_under("killed-servers", |stage, _, _| {
        let server = &mut stage.world().server;
        server.daemon.kill();
        server.start_again();
    });
}

#[test]
fn counters_are_right_when_the_server_is_stopped_in_order_and_started_again() {
    if !Stage::has_mounts_apart() {
        return;
    }
    is_right_under("ended-servers", |stage, _, _| {
        let server = &mut stage.world().server;
        server.daemon.signal(Signal::TERM);
        server.daemon.ends_within(RECOVERY);
        server.start_again();
    });
}
