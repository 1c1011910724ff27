//! The joined cores, model checked ([`leasefs_tests::joint`]).
//!
//! Each test explores its scripts whole. More of it, by `explored_as_asked`, which prints for each script
//! states, steps, depth, and whether anything was left out:
//!
//! ```text
//! LEASEFS_JOINT_SCRIPTS='ws|rw,ma|lt' LEASEFS_JOINT_CRASHES=1 \
//!     cargo test --release -p leasefs-tests --test joint explored_as_asked -- --nocapture
//! ```
//!
//! - `LEASEFS_JOINT_SCRIPTS`: `ws|rw` is client 0 that writes and syncs, and client 1 that reads and
//!   writes; the letters are r(ead), d(irect read), w(rite), a(ppend), t(runcate), s(ync), (stat) i, (mapped) l(oad), (mapped
//!   store) m, c(lose).
//! - `LEASEFS_JOINT_ALL=rws2`: all scripts of these letters, so many a client.
//! - `LEASEFS_JOINT_CRASHES`, `_HOST_CRASHES`, `_KILLS`, `_BREAKS`, `_PARTS`, `_WAITS`: how often each may come.
//! - `LEASEFS_JOINT_FINE=1`: threads of one host overtake each other.
//! - `LEASEFS_JOINT_STATES`: at most so many states a script.

use leasefs_tests::joint::{Explored, Faults, Grain, Plan, Script, explore};
use std::time::Instant;

fn number(name: &str) -> Option<usize> {
    std::env::var(format!("LEASEFS_JOINT_{name}"))
        .ok()?
        .parse()
        .ok()
}

/// Explores these; a violation is shown by its shortest run.
fn all_of(scripts: &[Script], change: impl Fn(&mut Plan)) -> Explored {
    let began = Instant::now();
    let mut total = Explored {
        exhausted: true,
        ..Explored::default()
    };
    for script in scripts {
        let mut plan = Plan::of(script.clone(), Faults::default());
        change(&mut plan);
        let explored = explore(&plan).unwrap_or_else(|found| panic!("{found}"));
        println!("{script}: {explored:?}");
        total.add(&explored);
    }
    let (count, seconds) = (scripts.len(), began.elapsed().as_secs_f64());
    println!("{count} scripts: {total:?} in {seconds:.1} s");
    total
}

fn scripts(text: &str) -> Vec<Script> {
    text.split(',').map(Script::of).collect()
}

#[test]
fn every_order_of_two_operations_a_client_is_linearizable_and_ends() {
    let two = "ws|rw,rr|w,ww|r,ww|d,dd|ww,ws|ws,wi|w,wa|i,wt|d,rl|m";
    let all = all_of(&scripts(two), |_| {});
    assert!(all.exhausted);
}

#[test]
fn every_order_of_the_threads_of_each_host_is_linearizable_and_ends() {
    let scripts = scripts("w|r,dd|w,w|w");
    let all = all_of(&scripts, |plan| plan.grain = Grain::Fine);
    assert!(all.exhausted);
}

#[test]
fn a_crash_of_the_servers_process_anywhere_loses_nothing_and_shows_nothing_stale() {
    let all = all_of(&scripts("ww|,wws|,ww|d"), |plan| plan.faults.crashes = 1);
    assert!(all.exhausted);
}

/// A page that an answer has filled, behind the recall of its lease, is being dropped when the server's process
/// crashes. Its client claims the lease back, so that the new life recalls it again: else
/// another mount could write before the page is gone, which a mapping still shows.
#[test]
fn a_page_that_is_being_dropped_when_the_server_crashes_is_gone_before_others_write() {
    let all = all_of(&scripts("w|r"), |plan| plan.faults.crashes = 1);
    assert!(all.exhausted);
}

#[test]
fn a_crash_of_the_servers_host_anywhere_undoes_nothing_that_was_synced() {
    let all = all_of(&scripts("ws|"), |plan| plan.faults.host_crashes = 1);
    assert!(all.exhausted);
}

#[test]
fn a_client_killed_anywhere_delays_others_and_misleads_nobody() {
    let all = all_of(&scripts("w|r,r|w"), |plan| plan.faults.kills = 1);
    assert!(all.exhausted);
}

#[test]
fn a_connection_that_breaks_anywhere_loses_nothing_and_shows_nothing_stale() {
    let all = all_of(&scripts("w|r,r|w"), |plan| plan.faults.breaks = 1);
    assert!(all.exhausted);
}

#[test]
fn a_client_cut_off_for_longer_than_its_term_is_told_of_what_it_loses() {
    let all = all_of(&scripts("w|r,ww|w,r|w"), |plan| plan.faults.parts = 1);
    assert!(all.exhausted);
}

#[test]
fn one_crash_a_side_anywhere_loses_nothing_and_shows_nothing_stale() {
    let all = all_of(&scripts("ww|,ws|,w|d"), |plan| {
        plan.faults.crashes = 1;
        plan.faults.kills = 1;
    });
    assert!(all.exhausted);
}

#[test]
fn explored_as_asked() {
    let mut asked =
        std::env::var("LEASEFS_JOINT_SCRIPTS").map_or(Vec::new(), |text| scripts(&text));
    if let Ok(mut letters) = std::env::var("LEASEFS_JOINT_ALL") {
        let length = letters
            .pop()
            .and_then(|last| last.to_digit(10))
            .unwrap_or(1);
        asked.extend(Script::all(&letters, length as usize));
    }
    let often = |name| number(name).unwrap_or(0) as u8;
    all_of(&asked, |plan| {
        plan.faults = Faults {
            crashes: often("CRASHES"),
            host_crashes: often("HOST_CRASHES"),
            kills: often("KILLS"),
            breaks: often("BREAKS"),
            parts: often("PARTS"),
            waits: often("WAITS"),
        };
        if number("FINE").is_some() {
            plan.grain = Grain::Fine;
        }
        plan.states = number("STATES").unwrap_or(plan.states);
    });
}
