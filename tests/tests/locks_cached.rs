//! Locks that nobody else wants cost no requests.

use leasefs_tests::locks::{Kind, Locker, Stage, Type};
use std::time::{Duration, Instant};

const PAIRS: u32 = 10_000;
/// What a lock and its unlock may cost at all, once for a kind.
const REQUESTS: u64 = 20;
const LIMIT: Duration = Duration::from_secs(120);

/// Locks and unlocks; how long one pair took.
fn pairs(locker: &mut Locker, kind: Kind) -> Duration {
    let started = Instant::now();
    locker.say(&format!("pairs 0 {kind} {PAIRS}"));
    assert_eq!(locker.answer(LIMIT).text, "ok", "{kind}");
    started.elapsed() / PAIRS
}

#[test]
fn locks_that_nobody_else_wants_send_no_requests() {
    let stage = Stage::start("uncontended", 1);
    let local = Stage::on_local("uncontended", 1);
    for kind in Kind::ALL {
        let name = kind.to_string();
        let [there, here] = [&stage, &local].map(|stage| {
            stage.make(&name, 8);
            let mut locker = stage.locker_on(0, &name);
            let before = requests(stage);
            let took = pairs(&mut locker, kind);
            let sent = requests(stage) - before;
            assert!(sent < REQUESTS, "{kind}: {sent} requests for {PAIRS} pairs");
            (took, sent)
        });
        let ((took, sent), (local, _)) = (there, here);
        println!("{kind}: {took:?} a pair, locally {local:?}; {sent} requests for {PAIRS} pairs");
    }
}

#[test]
fn locks_of_many_processes_of_one_mount_send_no_requests() {
    let stage = Stage::start("uncontended-many", 1);
    for kind in Kind::ALL {
        let name = kind.to_string();
        stage.make(&name, 8);
        let mut lockers = [0; 4].map(|view| stage.locker_on(view, &name));
        lockers[0].lock(0, kind, Type::Write);
        lockers[0].lock(0, kind, Type::Unlock);
        let before = requests(&stage);
        for _ in 0..500 {
            for locker in &mut lockers {
                locker.lock(0, kind, Type::Write);
                locker.lock(0, kind, Type::Unlock);
            }
        }
        let sent = requests(&stage) - before;
        println!("{kind}: {sent} requests for 2000 pairs of four processes in turn");
        assert!(sent < REQUESTS, "{kind}: {sent} requests");
    }
}

#[test]
fn locks_send_no_requests_again_a_while_after_another_mount_has_wanted_one() {
    let stage = Stage::start("uncontended-again", 2);
    stage.make_for_each_kind();
    for kind in Kind::ALL {
        let mut lockers = [0, 1].map(|view| stage.locker_on(view, &kind.to_string()));
        lockers[0].lock(0, kind, Type::Write);
        lockers[1].waits_for(0, kind, Type::Write);
        lockers[0].lock(0, kind, Type::Unlock);
        assert_eq!(lockers[1].answer(LIMIT).text, "ok");
        lockers[1].must("close 0");
        let until = Instant::now() + LIMIT / 4;
        loop {
            let before = requests(&stage);
            let took = pairs(&mut lockers[0], kind);
            let sent = requests(&stage) - before;
            println!("{kind}: {took:?} a pair, {sent} requests for {PAIRS} pairs");
            if sent < REQUESTS {
                break;
            }
            assert!(Instant::now() < until, "{kind}: it asks for ever");
        }
    }
}

/// Requests that the first view has sent.
fn requests(stage: &Stage) -> u64 {
    let mount = stage.world.as_ref().map(|world| world.mount(0));
    mount.map_or(0, |mount| mount.settled_requests().total())
}
