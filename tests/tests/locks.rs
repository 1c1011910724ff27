//! Who waits for a lock on one mount that a process of another mount has.

use leasefs_tests::locks::{Answer, Kind, Locker, SOON, Stage, Type, now};
use leasefs_tests::rng::{Rng, fresh_seed};
use rustix::process::Signal;
use std::thread;
use std::time::Duration;

const VIEWS: usize = 3;
const HAND_OVERS: usize = 30;
/// No lock is given up later for those who wait.
const LONGEST: Duration = Duration::from_secs(1);
/// Half of them are given up faster by far; what there is to say is printed.
const MEDIAN: Duration = Duration::from_millis(50);
/// In which something would happen that must not.
const WHILE: Duration = Duration::from_millis(300);
/// In which a request reaches the server after the kernel has it: nothing tells.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// How a lock ends.
type End = fn(&mut Locker);

/// The times in which a lock got from a process to one on the next mount.
fn hand_over(stage: &Stage, kind: Kind, end: End) -> Vec<Duration> {
    let name = kind.to_string();
    let mut holder = stage.locker_on(0, &name);
    holder.lock(0, kind, Type::Write);
    let mut times = Vec::new();
    for turn in 1..=HAND_OVERS {
        let mut waiter = stage.locker_on(turn % stage.views(), &name);
        waiter.waits_for(0, kind, Type::Write);
        thread::sleep(UNDER_WAY);
        let ended = now();
        end(&mut holder);
        let got = waiter.answer(SOON);
        assert_eq!(got.text, "ok", "{} by {kind}", waiter.name);
        times.push(got.after(ended));
        holder = waiter;
    }
    times
}

fn every_kind_is_handed_over(name: &str, end: End) {
    let stage = Stage::start(name, VIEWS);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let mut times = hand_over(&stage, kind, end);
        times.sort();
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{kind}, {name}: {HAND_OVERS} hand-overs, median {median:?}, longest {longest:?}");
        assert!(median < MEDIAN, "{kind}: the median is {median:?}");
        assert!(longest < LONGEST, "{kind}: one took {longest:?}");
    }
}

#[test]
fn a_waiter_on_another_mount_gets_a_lock_that_is_unlocked() {
    every_kind_is_handed_over("unlock", |holder| {
        let kind = Kind::ALL.map(|kind| format!("whole 0 {kind} u"));
        // It has one of them.
        holder.say(&kind.join("\n"));
    });
}

#[test]
fn a_waiter_on_another_mount_gets_a_lock_whose_descriptor_is_closed() {
    every_kind_is_handed_over("close", |holder| holder.say("close 0"));
}

#[test]
fn a_waiter_on_another_mount_gets_a_lock_whose_process_exits() {
    every_kind_is_handed_over("exit", |holder| holder.say("exit"));
}

#[test]
fn a_waiter_on_another_mount_gets_a_lock_whose_process_is_killed() {
    every_kind_is_handed_over("kill", |holder| holder.signal(Signal::KILL));
}

#[test]
fn waiters_on_several_mounts_get_the_lock_in_the_order_in_which_they_came() {
    let stage = Stage::start("fifo", VIEWS);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let name = kind.to_string();
        let mut holder = stage.locker_on(0, &name);
        holder.lock(0, kind, Type::Write);
        let mut waiters: Vec<Locker> = (1..=6)
            .map(|turn| stage.locker_on(turn % VIEWS, &name))
            .collect();
        for waiter in &mut waiters {
            waiter.waits_for(0, kind, Type::Write);
            thread::sleep(UNDER_WAY);
            waiter.say(&format!("whole 0 {kind} u"));
        }
        holder.lock(0, kind, Type::Unlock);
        let got = waiters.iter_mut().map(|waiter| {
            let got = waiter.answer(SOON);
            assert_eq!(
                (got.text.as_str(), waiter.answer(SOON).text.as_str()),
                ("ok", "ok")
            );
            got.ended
        });
        let got: Vec<u64> = got.collect();
        // Linux wakes all and lets them race for it.
        assert!(!stage.is_apart() || got.is_sorted(), "{kind}: {got:?}");
    }
}

/// Process 0 has the lock and process 1 waits for it, on mounts of their own.
fn one_waits(stage: &Stage, kind: Kind) -> [Locker; 2] {
    let name = kind.to_string();
    let mut lockers = [0, 1].map(|view| stage.locker_on(view, &name));
    lockers[0].lock(0, kind, Type::Write);
    lockers[1].waits_for(0, kind, Type::Write);
    lockers
}

/// A process on the last mount gets the lock soon, and then gives it up.
fn is_free(stage: &Stage, kind: Kind) {
    let mut other = stage.locker_on(VIEWS - 1, &kind.to_string());
    other.say(&format!("whole 0 {kind} w wait"));
    let got = other.answer_within(LONGEST);
    let got = got.unwrap_or_else(|| panic!("a ghost has the lock by {kind}"));
    assert_eq!(got.text, "ok");
    other.lock(0, kind, Type::Unlock);
}

#[test]
fn a_signal_ends_a_wait_and_the_lock_is_not_taken_later() {
    let stage = Stage::start("eintr", VIEWS);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let [mut holder, mut waiter] = one_waits(&stage, kind);
        waiter.signal(Signal::USR1);
        assert_eq!(waiter.answer(LONGEST).text, "EINTR", "{kind}");
        holder.lock(0, kind, Type::Unlock);
        is_free(&stage, kind);
    }
}

#[test]
fn a_wait_goes_on_after_a_signal_that_restarts_it() {
    let stage = Stage::start("restarts", VIEWS);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let [mut holder, mut waiter] = one_waits(&stage, kind);
        for _ in 0..3 {
            waiter.signal(Signal::USR2);
            waiter.goes_on_waiting(WHILE);
        }
        holder.lock(0, kind, Type::Unlock);
        assert_eq!(waiter.answer(LONGEST).text, "ok", "{kind}");
        assert_eq!(holder.try_lock(0, kind, Type::Read), "EAGAIN", "{kind}");
        waiter.lock(0, kind, Type::Unlock);
        is_free(&stage, kind);
    }
}

#[test]
fn a_killed_waiter_dies_at_once_and_leaves_nothing_behind() {
    let stage = Stage::start("killed", VIEWS);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let [mut holder, mut waiter] = one_waits(&stage, kind);
        waiter.dies_within(LONGEST);
        holder.lock(0, kind, Type::Unlock);
        is_free(&stage, kind);
    }
}

#[test]
fn a_waiter_that_is_killed_when_it_gets_the_lock_does_not_keep_it() {
    let (stage, seed) = (Stage::start("killed-late", VIEWS), fresh_seed());
    println!("seed {seed}");
    stage.make_for_each_kind();
    let mut rng = Rng::new(seed);
    for turn in 0..60 {
        let kind = Kind::ALL[turn % 3];
        let [mut holder, mut waiter] = one_waits(&stage, kind);
        holder.say(&format!("whole 0 {kind} u"));
        thread::sleep(Duration::from_micros(rng.below(3000) as u64));
        waiter.dies_within(LONGEST);
        is_free(&stage, kind);
    }
}

#[test]
fn a_wait_that_a_signal_ends_when_the_lock_comes_says_truly_whether_it_has_it() {
    let (stage, seed) = (Stage::start("eintr-late", VIEWS), fresh_seed());
    println!("seed {seed}");
    stage.make_for_each_kind();
    let mut rng = Rng::new(seed);
    let mut interrupted = 0;
    for turn in 0..60 {
        let kind = Kind::ALL[turn % 3];
        let [mut holder, mut waiter] = one_waits(&stage, kind);
        let unlock = format!("whole 0 {kind} u");
        if rng.chance(50) {
            holder.say(&unlock);
            thread::sleep(Duration::from_micros(rng.below(1000) as u64));
            waiter.signal(Signal::USR1);
        } else {
            waiter.signal(Signal::USR1);
            holder.say(&unlock);
        }
        let Answer { text, .. } = waiter.answer(LONGEST);
        assert_eq!(holder.answer(SOON).text, "ok");
        if text == "ok" {
            assert_eq!(holder.try_lock(0, kind, Type::Read), "EAGAIN", "{kind}");
            waiter.lock(0, kind, Type::Unlock);
        } else {
            assert_eq!(text, "EINTR", "{kind}");
            interrupted += 1;
        }
        is_free(&stage, kind);
    }
    println!("{interrupted} of 60 were interrupted");
}
