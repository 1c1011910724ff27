//! What locks are to each other, across mounts.

use leasefs_tests::locks::{Kind, Locker, SOON, Stage, Type};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

const VIEWS: usize = 3;
const LONGEST: Duration = Duration::from_secs(1);
/// In which something would happen that must not.
const WHILE: Duration = Duration::from_millis(300);

/// As many files, and a process on each mount that has all of them open and its own one locked.
fn each_has_its_own(stage: &Stage, kind: Kind) -> Vec<Locker> {
    let names: Vec<String> = (0..stage.views())
        .map(|file| format!("{kind}{file}"))
        .collect();
    names.iter().for_each(|name| stage.make(name, 8));
    let start = |view: usize| {
        let mut locker = stage.locker(view);
        for (slot, name) in (0..).zip(&names) {
            locker.open(slot, &stage.path(view, name));
        }
        locker.lock(view as u32, kind, Type::Write);
        locker
    };
    (0..stage.views()).map(start).collect()
}

fn a_cycle_is_noticed(name: &str, processes: usize) {
    let stage = Stage::start(name, processes);
    let mut lockers = each_has_its_own(&stage, Kind::Fcntl);
    let last = processes - 1;
    for (next, locker) in (1..).zip(&mut lockers[..last]) {
        locker.waits_for(next, Kind::Fcntl, Type::Write);
        locker.goes_on_waiting(WHILE);
    }
    lockers[last].say("whole 0 fcntl w wait");
    assert_eq!(lockers[last].answer(LONGEST).text, "EDEADLK");
    for index in (0..last).rev() {
        lockers[index + 1].lock(index as u32 + 1, Kind::Fcntl, Type::Unlock);
        assert_eq!(lockers[index].answer(LONGEST).text, "ok");
    }
}

#[test]
fn a_deadlock_of_two_processes_on_two_mounts_is_told_to_the_second() {
    a_cycle_is_noticed("deadlock-2", 2);
}

#[test]
fn a_deadlock_of_three_processes_on_three_mounts_is_told_to_the_third() {
    a_cycle_is_noticed("deadlock-3", 3);
}

#[test]
fn a_deadlock_over_two_ranges_of_one_file_is_noticed() {
    let stage = Stage::start("deadlock-ranges", 2);
    stage.make("f", 8);
    let mut lockers = [0, 1].map(|view| stage.locker_on(view, "f"));
    lockers[0].must("fcntl 0 w set 0 4");
    lockers[1].must("fcntl 0 w set 4 4");
    lockers[0].waits_in("fcntl 0 r set 6 1 wait");
    lockers[0].goes_on_waiting(WHILE);
    lockers[1].say("fcntl 0 w set 0 1 wait");
    assert_eq!(lockers[1].answer(LONGEST).text, "EDEADLK");
    lockers[1].must("fcntl 0 u set 0 0");
    assert_eq!(lockers[0].answer(LONGEST).text, "ok");
}

/// As on Linux, whose `fcntl` locks alone have an owner that can be seen to wait.
#[test]
fn a_deadlock_by_descriptions_or_flock_waits_until_a_signal_comes() {
    for kind in [Kind::Ofd, Kind::Flock] {
        let stage = Stage::start(&format!("deadlock-{kind}"), 2);
        let mut lockers = each_has_its_own(&stage, kind);
        lockers[0].waits_for(1, kind, Type::Write);
        lockers[1].waits_for(0, kind, Type::Write);
        lockers[0].goes_on_waiting(WHILE);
        lockers[1].goes_on_waiting(WHILE);
        lockers[1].signal(Signal::USR1);
        assert_eq!(lockers[1].answer(LONGEST).text, "EINTR");
        lockers[1].lock(1, kind, Type::Unlock);
        assert_eq!(lockers[0].answer(LONGEST).text, "ok");
    }
}

#[test]
fn who_waits_for_a_process_that_does_not_wait_is_in_no_deadlock() {
    let stage = Stage::start("no-deadlock", 3);
    let mut lockers = each_has_its_own(&stage, Kind::Fcntl);
    // 0 and 2 wait for 1, and 1 is about to wait for nobody who waits for it any more.
    lockers[0].waits_for(1, Kind::Fcntl, Type::Write);
    lockers[2].waits_for(1, Kind::Fcntl, Type::Write);
    lockers[0].signal(Signal::USR1);
    assert_eq!(lockers[0].answer(LONGEST).text, "EINTR");
    lockers[1].waits_for(0, Kind::Fcntl, Type::Write);
    lockers[1].goes_on_waiting(WHILE);
    lockers[0].lock(0, Kind::Fcntl, Type::Unlock);
    assert_eq!(lockers[1].answer(LONGEST).text, "ok");
    lockers[1].lock(1, Kind::Fcntl, Type::Unlock);
    assert_eq!(lockers[2].answer(LONGEST).text, "ok");
}

#[test]
fn flock_and_locks_of_ranges_know_nothing_of_each_other() {
    let stage = Stage::start("apart", 2);
    stage.make("f", 8);
    let mut lockers = [0, 1].map(|view| stage.locker_on(view, "f"));
    lockers[0].lock(0, Kind::Flock, Type::Write);
    lockers[1].lock(0, Kind::Fcntl, Type::Write);
    assert_eq!(lockers[1].try_lock(0, Kind::Flock, Type::Read), "EAGAIN");
    assert_eq!(lockers[0].try_lock(0, Kind::Ofd, Type::Read), "EAGAIN");
}

#[test]
fn locks_of_processes_and_of_descriptions_are_in_each_others_way() {
    let stage = Stage::start("families", 2);
    stage.make("f", 8);
    let mut lockers = [0, 1].map(|view| stage.locker_on(view, "f"));
    lockers[0].must("fcntl 0 w set 0 4");
    lockers[1].answers_with("EAGAIN", "ofd 0 r set 3 1");
    lockers[1].must("ofd 0 w set 4 0");
    lockers[0].answers_with("EAGAIN", "fcntl 0 r set 0 5");
    // Its own process is no exception.
    lockers[0].answers_with("EAGAIN", "ofd 0 r set 0 1");
}

#[test]
fn a_reader_becomes_a_writer_when_the_other_reader_is_gone_and_lets_it_in_again() {
    let stage = Stage::start("upgrade", 2);
    stage.make_for_each_kind();
    for kind in [Kind::Fcntl, Kind::Ofd] {
        let mut lockers = [0, 1].map(|view| stage.locker_on(view, &kind.to_string()));
        lockers
            .iter_mut()
            .for_each(|locker| locker.lock(0, kind, Type::Read));
        assert_eq!(
            lockers[0].try_lock(0, kind, Type::Write),
            "EAGAIN",
            "{kind}"
        );
        lockers[0].waits_for(0, kind, Type::Write);
        // It has its lock still.
        assert_eq!(
            lockers[1].try_lock(0, kind, Type::Write),
            "EAGAIN",
            "{kind}"
        );
        lockers[1].lock(0, kind, Type::Unlock);
        assert_eq!(lockers[0].answer(LONGEST).text, "ok", "{kind}");
        assert_eq!(lockers[1].try_lock(0, kind, Type::Read), "EAGAIN", "{kind}");
        lockers[1].waits_for(0, kind, Type::Read);
        lockers[0].lock(0, kind, Type::Read);
        assert_eq!(lockers[1].answer(LONGEST).text, "ok", "{kind}");
    }
}

/// As on Linux: `flock` gives the one up before it asks for the other.
#[test]
fn an_flock_that_can_not_become_exclusive_is_lost() {
    let stage = Stage::start("flock-upgrade", 2);
    stage.make_for_each_kind();
    let mut lockers = [0, 1].map(|view| stage.locker_on(view, "flock"));
    lockers
        .iter_mut()
        .for_each(|locker| locker.lock(0, Kind::Flock, Type::Read));
    assert_eq!(lockers[0].try_lock(0, Kind::Flock, Type::Write), "EAGAIN");
    lockers[1].lock(0, Kind::Flock, Type::Write);
    lockers[0].waits_for(0, Kind::Flock, Type::Read);
    lockers[1].lock(0, Kind::Flock, Type::Read);
    assert_eq!(lockers[0].answer(LONGEST).text, "ok");
}

#[test]
fn the_lock_of_a_description_lives_until_its_last_descriptor_is_closed() {
    let stage = Stage::start("descriptions", 2);
    stage.make_for_each_kind();
    for kind in [Kind::Ofd, Kind::Flock] {
        let mut lockers = [0, 1].map(|view| stage.locker_on(view, &kind.to_string()));
        lockers[0].must("dup 0 1");
        lockers[0].lock(0, kind, Type::Write);
        lockers[0].must("close 0");
        assert_eq!(
            lockers[1].try_lock(0, kind, Type::Write),
            "EAGAIN",
            "{kind}"
        );
        lockers[0].fork();
        lockers[0].must("close 1");
        assert_eq!(
            lockers[1].try_lock(0, kind, Type::Write),
            "EAGAIN",
            "{kind}"
        );
        lockers[1].waits_for(0, kind, Type::Write);
        // The child goes with its parent.
        lockers[0].dies_within(SOON);
        assert_eq!(lockers[1].answer(LONGEST).text, "ok", "{kind}");
    }
}

#[test]
fn closing_any_descriptor_of_a_file_gives_up_the_processs_own_locks() {
    let stage = Stage::start("any-close", 2);
    stage.make("f", 8);
    let path = stage.path(0, "f");
    for mode in ["rw", "r"] {
        let mut lockers = [0, 1].map(|view| stage.locker_on(view, "f"));
        lockers[0].lock(0, Kind::Fcntl, Type::Write);
        lockers[0].must(&format!("open 1 {} {mode}", path.display()));
        lockers[1].waits_for(0, Kind::Fcntl, Type::Write);
        lockers[0].must("close 1");
        assert_eq!(lockers[1].answer(LONGEST).text, "ok", "{mode}");
    }
}

#[test]
fn a_child_does_not_inherit_its_parents_own_locks() {
    let stage = Stage::start("fork", 2);
    stage.make("f", 8);
    let mut lockers = [0, 1].map(|view| stage.locker_on(view, "f"));
    lockers[0].lock(0, Kind::Fcntl, Type::Write);
    assert_eq!(lockers[1].try_lock(0, Kind::Fcntl, Type::Read), "EAGAIN");
    lockers[0].fork();
    lockers[0].must("close 0");
    lockers[1].lock(0, Kind::Fcntl, Type::Write);
}

#[test]
fn a_lock_is_of_the_file_and_not_of_its_name() {
    let stage = Stage::start("names", 2);
    stage.make("old", 8);
    let mut lockers = [stage.locker_on(0, "old"), stage.locker_on(1, "old")];
    for kind in Kind::ALL {
        lockers[0].lock(0, kind, Type::Write);
        let rename = |from: &Path, to: &Path| std::fs::rename(from, to).expect("a rename");
        rename(&stage.path(1, "old"), &stage.path(1, "new"));
        let mut third = stage.locker_on(1, "new");
        assert_eq!(third.try_lock(0, kind, Type::Write), "EAGAIN", "{kind}");
        lockers[0].lock(0, kind, Type::Unlock);
        third.lock(0, kind, Type::Write);
        rename(&stage.path(0, "new"), &stage.path(0, "old"));
        drop(third);
    }
    lockers[0].lock(0, Kind::Flock, Type::Write);
    std::fs::remove_file(stage.path(1, "old")).expect("it is there");
    assert_eq!(lockers[1].try_lock(0, Kind::Flock, Type::Write), "EAGAIN");
}

/// Two readers on two mounts, one of whom has the lock at any time, if they are let.
#[test]
fn readers_in_turn_do_not_starve_a_writer() {
    let stage = Stage::start("starve", VIEWS);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let name = kind.to_string();
        let mut readers = [0, 1].map(|view| stage.locker_on(view, &name));
        let mut writer = stage.locker_on(2, &name);
        readers[0].lock(0, kind, Type::Read);
        writer.waits_for(0, kind, Type::Write);
        let turns = turns_until_it_writes(kind, &mut readers, &mut writer);
        println!("{kind}: {turns:?} turns of readers");
        // Linux lets readers in as long as there are some.
        assert!(
            !stage.is_apart() || turns.is_some(),
            "{kind}: the writer starved"
        );
    }
}

/// Reader 0 has the lock; whoever asks is the one that doesn't, and then the other gives it up.
fn turns_until_it_writes(
    kind: Kind,
    readers: &mut [Locker; 2],
    writer: &mut Locker,
) -> Option<usize> {
    let until = Instant::now() + 2 * LONGEST;
    let mut waits = [false, false];
    for turn in 0.. {
        if writer.answer_within(Duration::ZERO).is_some() {
            return Some(turn);
        }
        if Instant::now() > until {
            return None;
        }
        let (gives, asks) = (turn % 2, (turn + 1) % 2);
        readers[asks].say(&format!("whole 0 {kind} r wait"));
        waits[asks] = readers[asks].answer_within(WHILE / 3).is_none();
        if !waits[gives] {
            readers[gives].lock(0, kind, Type::Unlock);
        }
        if waits[asks] {
            // Nobody reads any more, and a reader has come after the writer.
            let wrote = writer.answer_within(LONGEST).is_some();
            return wrote.then_some(turn + 1);
        }
    }
    None
}
