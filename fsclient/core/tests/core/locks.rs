//! Locks of which the server is asked.

use crate::kernel::opened_file;
use crate::said::{Asked, handle};
use crate::world::{Waiter, World};
use leasefs_client::Call;
use leasefs_client::call::{Fh, LockCall};
use leasefs_protocol::lock::{LockOutcome, Locked, Unlocked};
use leasefs_protocol::{
    Change, Fence, LockEpoch, LockKind, LockMode, LockOwner, LockRange, Query, Refusal, Request,
    Response, SetAttr, Stamp,
};
use std::time::Duration;

const OWNER: LockOwner = LockOwner(1);
/// Longer than the term.
const LONG: Duration = Duration::from_secs(20);

fn first_bytes() -> LockRange {
    LockRange::new(0, 9).expect("a range")
}

fn locks(world: &mut World, fh: Fh, range: LockRange) -> Waiter {
    let lock = LockCall {
        owner: OWNER,
        kind: LockKind::Posix,
        range,
        mode: Some(LockMode::Exclusive),
        pid: 7,
        wait: true,
    };
    world.call(Call::Lock { fh, lock })
}

fn decides(world: &mut World, asked: &Asked, stamp: u64, outcome: LockOutcome) {
    let locked = Locked {
        stamp: Stamp(stamp),
        epoch: LockEpoch(1),
        outcome,
        holder: None,
    };
    world.answer(asked, Ok(Response::Locked(locked)));
}

fn locked(world: &mut World, fh: Fh) {
    let lock = locks(world, fh, first_bytes());
    let asked = world.asked();
    let granted = LockOutcome::Granted {
        fence: Fence(1),
        delegation: None,
        held: Vec::new(),
    };
    decides(world, &asked, 1, granted);
    world.answered(lock).expect("locked");
}

fn unlocks(world: &mut World, asked: &Asked, stamp: u64) {
    let unlocked = Unlocked {
        stamp: Stamp(stamp),
        epoch: LockEpoch(2),
        any: true,
    };
    world.answer(asked, Ok(Response::Unlocked(unlocked)));
}

fn query(asked: &Asked) -> &Query {
    match &asked.frame.request {
        Request::Query(query) => query,
        other => panic!("no query: {other:?}"),
    }
}

#[test]
fn who_loses_his_locks_while_he_asks_for_another_does_not_wait_for_that_at_the_server() {
    let mut world = World::new();
    let (_, fh) = opened_file(&mut world);
    locked(&mut world, fh);

    let second = locks(&mut world, fh, LockRange::ALL);
    let late = world.asked();
    world.sleep(LONG);
    let reset = world.asked();
    assert!(matches!(query(&reset), Query::ResetLocks(_)));
    unlocks(&mut world, &reset, 2);
    // It had to wait there, and came behind that.
    decides(&mut world, &late, 3, LockOutcome::Waits);
    let cancel = world.asked();
    let Query::Lock(lock) = query(&late) else {
        panic!("another request: {late:?}")
    };
    let cancels = matches!(query(&cancel), Query::CancelLock(cancel) if Some(cancel.wait) == lock.wait && cancel.object == handle(1));
    assert!(cancels, "{cancel:?}");
    unlocks(&mut world, &cancel, 4);
    let unlock = world.asked();
    assert!(matches!(query(&unlock), Query::Unlock(unlock) if unlock.range == LockRange::ALL));
    unlocks(&mut world, &unlock, 5);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.refused(second), Refusal::LockLost);
}

#[test]
fn who_has_lost_his_locks_cuts_nothing_off_by_another_descriptor_or_by_name_and_others_do() {
    let mut world = World::new();
    let (node, fh) = opened_file(&mut world);
    locked(&mut world, fh);
    world.sleep(LONG);
    let reset = world.asked();
    unlocks(&mut world, &reset, 2);
    let mut truncates = |fh, owner| {
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let owner = Some(owner);
        world.call(Call::SetAttr {
            node,
            fh,
            set,
            owner,
        })
    };
    let refused = [Some(Fh(fh.0 + 1)), None].map(|fh| truncates(fh, OWNER));
    let other = truncates(None, LockOwner(2));
    for call in refused {
        assert_eq!(world.refused(call), Refusal::LockLost);
    }
    assert!(world.waits(other));
    assert!(matches!(world.asked().change(), Change::SetAttr(_)));
}
