//! Locks whose holder's client is stopped or killed, and locks beyond the end of a server.

use leasefs_tests::locks::{Kind, Locker, SOON, Stage, Type};
use leasefs_tests::mounted::{WorldOptions, eventually};
use rustix::process::Signal;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const TERM: Duration = Duration::from_secs(3);
/// What taking a lock from a client that has gone silent may add to the term.
const MORE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(1);
/// In which something would happen that must not.
const WHILE: Duration = Duration::from_millis(500);

fn stage(name: &str) -> Option<Stage> {
    if !Stage::has_mounts_apart() {
        return None;
    }
    let stage = Stage::with(name, &WorldOptions::mounts(3).term("3s"));
    stage.make_for_each_kind();
    Some(stage)
}

/// One process for each kind of lock, on one mount.
fn each_kind(stage: &Stage, view: usize) -> Vec<(Kind, Locker)> {
    let of = |kind: Kind| (kind, stage.locker_on(view, &kind.to_string()));
    Kind::ALL.into_iter().map(of).collect()
}

/// A process on mount 0 has the lock, has written 1, and one on mount 1 waits, for each kind.
fn held_and_waited_for(stage: &Stage) -> [Vec<(Kind, Locker)>; 2] {
    let [mut holders, mut waiters] = [0, 1].map(|view| each_kind(stage, view));
    for (kind, holder) in &mut holders {
        holder.lock(0, *kind, Type::Write);
        holder.must("write 0 0 1");
        holder.must("sync 0");
    }
    for (kind, waiter) in &mut waiters {
        waiter.waits_for(0, *kind, Type::Write);
    }
    [holders, waiters]
}

/// All get the lock, of a client that fell silent at `since`, and not before its term may be over.
fn get_it_within_a_term(waiters: &mut [(Kind, Locker)], since: Instant) {
    for (kind, waiter) in waiters {
        let limit = TERM + MORE + SLACK;
        let got = waiter.answer(limit.saturating_sub(since.elapsed()));
        println!(
            "{kind}: the waiter got the lock after {:?}",
            since.elapsed()
        );
        assert_eq!(got.text, "ok", "{kind}");
        assert!(
            since.elapsed() > TERM / 4,
            "{kind}: was it the holder's at all?"
        );
    }
}

fn value_behind(stage: &Stage, kind: Kind) -> u64 {
    let bytes = fs::read(stage.export().join(kind.to_string())).expect("the file");
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// What the holder's process meets once its client goes on.
fn the_lock_is_lost(holder: &mut Locker, kind: Kind) {
    assert_eq!(
        holder.ask("write 0 0 666"),
        "EIO",
        "{kind}: a write without the lock"
    );
    assert_eq!(holder.try_lock(0, kind, Type::Write), "EIO", "{kind}");
    assert_eq!(holder.try_lock(0, kind, Type::Read), "EIO", "{kind}");
    assert_eq!(
        holder.ask("write 0 0 667"),
        "EIO",
        "{kind}: a write without the lock"
    );
}

#[test]
fn a_stopped_clients_lock_goes_to_a_waiter_after_a_term_and_its_process_writes_no_more() {
    let Some(mut stage) = stage("frozen") else {
        return;
    };
    let [mut holders, mut waiters] = held_and_waited_for(&stage);
    stage.world().mounts[0].freeze();
    get_it_within_a_term(&mut waiters, Instant::now());
    for (_, waiter) in &mut waiters {
        waiter.must("write 0 0 2");
        waiter.must("sync 0");
    }
    stage.world().mounts[0].thaw();
    for ((kind, holder), (_, waiter)) in holders.iter_mut().zip(&mut waiters) {
        the_lock_is_lost(holder, *kind);
        waiter.answers_with("ok 2", "read 0 0");
        assert_eq!(value_behind(&stage, *kind), 2, "{kind}");
        let mut fresh = stage.locker_on(0, &kind.to_string());
        fresh.answers_with("ok 2", "read 0 0");
        assert_eq!(fresh.try_lock(0, *kind, Type::Write), "EAGAIN", "{kind}");
        fresh.waits_for(0, *kind, Type::Write);
        waiter.lock(0, *kind, Type::Unlock);
        assert_eq!(fresh.answer(SOON).text, "ok", "{kind}");
        fresh.must("write 0 0 3");
        waiter.answers_with("ok 3", "read 0 0");
    }
}

/// A holder whose client was stopped, and another has had its lock in the meantime.
fn after_its_loss(name: &str, goes_on: fn(&mut Locker, Kind, &Stage)) {
    let Some(mut stage) = stage(name) else {
        return;
    };
    let [mut holders, mut waiters] = held_and_waited_for(&stage);
    stage.world().mounts[0].freeze();
    get_it_within_a_term(&mut waiters, Instant::now());
    stage.world().mounts[0].thaw();
    for ((kind, holder), (_, waiter)) in holders.iter_mut().zip(&mut waiters) {
        the_lock_is_lost(holder, *kind);
        goes_on(holder, *kind, &stage);
        // It is as anybody else again.
        assert_eq!(holder.try_lock(0, *kind, Type::Write), "EAGAIN", "{kind}");
        waiter.lock(0, *kind, Type::Unlock);
        holder.lock(0, *kind, Type::Write);
        holder.must("write 0 0 4");
        holder.must("sync 0");
        waiter.answers_with("ok 4", "read 0 0");
    }
}

#[test]
fn a_process_that_has_lost_its_lock_may_lock_again_after_it_has_unlocked() {
    after_its_loss("unlocks", |holder, kind, _| {
        // Whether this is told too is left open.
        let unlocked = holder.try_lock(0, kind, Type::Unlock);
        println!("{kind}: unlocking what is lost: {unlocked}");
        assert!(
            matches!(unlocked.as_str(), "ok" | "EIO"),
            "{kind}: {unlocked}"
        );
    });
}

#[test]
fn a_process_that_has_lost_its_lock_may_lock_again_after_it_has_closed() {
    after_its_loss("closes", |holder, kind, stage| {
        holder.must("close 0");
        holder.open(0, &stage.path(0, &kind.to_string()));
    });
}

#[test]
fn a_lock_that_nobody_wanted_in_a_stop_beyond_the_term_is_not_written_under_by_two() {
    let Some(mut stage) = stage("unwanted") else {
        return;
    };
    let mut holders = each_kind(&stage, 0);
    for (kind, holder) in &mut holders {
        holder.lock(0, *kind, Type::Write);
    }
    stage.world().mounts[0].freeze();
    // Longer than the term: what is to pass is time.
    thread::sleep(TERM + MORE);
    stage.world().mounts[0].thaw();
    let mut others = each_kind(&stage, 1);
    for ((kind, holder), (_, other)) in holders.iter_mut().zip(&mut others) {
        // Lost or reclaimed, but never both had.
        let written = holder.ask("write 0 0 5");
        println!("{kind}: the holder writes: {written}");
        if written == "ok" {
            assert_eq!(other.try_lock(0, *kind, Type::Write), "EAGAIN", "{kind}");
            other.answers_with("ok 5", "read 0 0");
        } else {
            assert_eq!(written, "EIO", "{kind}");
            other.say(&format!("whole 0 {kind} w wait"));
            assert_eq!(other.answer(TERM + MORE).text, "ok", "{kind}");
            other.answers_with("ok 0", "read 0 0");
        }
    }
}

#[test]
fn a_killed_clients_lock_goes_to_a_waiter_after_a_term() {
    let Some(mut stage) = stage("killed") else {
        return;
    };
    let [_holders, mut waiters] = held_and_waited_for(&stage);
    stage.world().kill_client(0);
    get_it_within_a_term(&mut waiters, Instant::now());
    for (_, waiter) in &mut waiters {
        waiter.answers_with("ok 1", "read 0 0");
    }
}

#[test]
fn a_client_that_ends_in_order_gives_up_its_locks_at_once() {
    let Some(mut stage) = stage("ended") else {
        return;
    };
    // Its processes are still there, and have the files open.
    let [_holders, mut waiters] = held_and_waited_for(&stage);
    let daemon = &mut stage.world().mounts[0].daemon;
    daemon.signal(Signal::TERM);
    daemon.ends_within(SOON);
    for (kind, waiter) in &mut waiters {
        assert_eq!(waiter.answer(SLACK).text, "ok", "{kind}");
    }
}

/// The server ends and is started again while one has the lock and another waits.
fn locks_survive(name: &str, end: fn(&mut Stage)) {
    let Some(mut stage) = stage(name) else {
        return;
    };
    let [mut holders, mut waiters] = held_and_waited_for(&stage);
    end(&mut stage);
    stage.world().server.start_again();
    // One who was not there before has no luck either, whether it has to wait for that answer or not.
    let mut others = each_kind(&stage, 2);
    for (kind, other) in &mut others {
        assert_eq!(other.try_lock(0, *kind, Type::Read), "EAGAIN", "{kind}");
    }
    let until = Instant::now() + TERM + MORE;
    for (_, waiter) in &mut waiters {
        waiter.goes_on_waiting(until.saturating_duration_since(Instant::now()).max(WHILE));
    }
    for ((kind, holder), (_, waiter)) in holders.iter_mut().zip(&mut waiters) {
        holder.must("write 0 0 2");
        holder.lock(0, *kind, Type::Unlock);
        assert_eq!(waiter.answer(SLACK).text, "ok", "{kind}");
        waiter.answers_with("ok 2", "read 0 0");
        assert_eq!(holder.try_lock(0, *kind, Type::Read), "EAGAIN", "{kind}");
    }
}

#[test]
fn locks_and_those_who_wait_for_them_survive_a_killed_server() {
    locks_survive("server-killed", |stage| stage.world().server.daemon.kill());
}

#[test]
fn locks_and_those_who_wait_for_them_survive_a_servers_orderly_end() {
    locks_survive("server-ended", |stage| {
        let daemon = &mut stage.world().server.daemon;
        daemon.signal(Signal::TERM);
        let status = daemon.ends_within(SOON);
        assert!(status.success(), "the server ended with {status}");
    });
}

#[test]
fn a_lock_given_up_while_the_server_is_away_is_free_when_it_is_back() {
    let Some(mut stage) = stage("given-up-away") else {
        return;
    };
    let [holders, mut waiters] = held_and_waited_for(&stage);
    stage.world().server.daemon.kill();
    drop(holders);
    stage.world().server.start_again();
    for (kind, waiter) in &mut waiters {
        assert_eq!(waiter.answer(SOON).text, "ok", "{kind}");
    }
}

#[test]
fn a_waiter_without_a_server_dies_at_once_when_killed_and_is_not_waited_for() {
    let Some(mut stage) = stage("waiter-away") else {
        return;
    };
    let [mut holders, mut waiters] = held_and_waited_for(&stage);
    stage.world().server.daemon.kill();
    for (_, waiter) in &mut waiters {
        waiter.dies_within(Duration::from_secs(2));
    }
    stage.world().server.start_again();
    let mut others = each_kind(&stage, 2);
    for ((kind, holder), (_, other)) in holders.iter_mut().zip(&mut others) {
        holder.lock(0, *kind, Type::Unlock);
        let free = || (other.try_lock(0, *kind, Type::Write) == "ok").then_some(());
        eventually(
            &format!("the lock by {kind}"),
            TERM + MORE,
            free,
            String::new,
        );
    }
}
