use super::*;
use leasefs_protocol::lock::Delegation;
use leasefs_protocol::{Parts, RawName, RecallId};

const FH: Fh = Fh(3);

fn file() -> Handle {
    Handle::new(b"f").expect("short")
}

fn call(owner: u64, mode: Option<LockMode>, wait: bool) -> LockCall {
    LockCall {
        owner: LockOwner(owner),
        kind: LockKind::Posix,
        range: LockRange::ALL,
        mode,
        pid: owner as u32,
        wait,
    }
}

fn exclusive(owner: u64) -> LockCall {
    call(owner, Some(LockMode::Exclusive), false)
}

fn unlock(owner: u64) -> LockCall {
    call(owner, None, false)
}

fn wanted(owner: u64) -> LockWanted<LockOwner> {
    exclusive(owner).wanted(LockMode::Exclusive)
}

fn granted(
    stamp: u64,
    delegation: Option<Delegation>,
    held: Vec<leasefs_protocol::HeldLock>,
) -> Locked {
    Locked {
        stamp: Stamp(stamp),
        epoch: LockEpoch(9),
        outcome: LockOutcome::Granted {
            fence: Fence(100 + stamp),
            delegation,
            held,
        },
        holder: None,
    }
}

fn right(stamp: u64) -> Delegation {
    Delegation {
        stamp: Stamp(stamp),
        first: Fence(1000),
        count: 2,
    }
}

/// A mount that decides the file's locks, and holds one.
fn deciding() -> MountLocks {
    let mut locks = MountLocks::default();
    locks.look(true);
    locks.enter(&file());
    let held = vec![wanted(1).held(Fence(101))];
    let answer = granted(1, Some(right(2)), held);
    locks.locked((&file(), FH), &wanted(1), None, answer);
    locks.leave(&file());
    locks
}

fn recall(stamp: u64) -> Recall {
    Recall {
        id: RecallId(1),
        stamp: Stamp(stamp),
        scope: Scope::Object {
            object: file(),
            parts: Parts::LOCKS,
            names: Vec::<RawName>::new(),
        },
    }
}

fn decide(locks: &mut MountLocks, call: &LockCall) -> Decision {
    locks.decide(&file(), FH, call)
}

#[test]
fn who_may_decide_asks_nobody_and_numbers_each_lock() {
    let mut locks = deciding();
    assert_eq!(locks.newest(&file()), Some(Fence(101)));
    assert_eq!(
        decide(&mut locks, &exclusive(2)),
        Decision::Refused(CONFLICTS)
    );
    assert_eq!(decide(&mut locks, &unlock(1)), Decision::Done);
    assert_eq!(decide(&mut locks, &exclusive(2)), Decision::Done);
    assert_eq!(locks.newest(&file()), Some(Fence(1000)));
}

#[test]
fn when_the_numbers_are_used_up_the_server_is_asked() {
    let mut locks = deciding();
    for owner in [1, 2, 3] {
        assert_eq!(decide(&mut locks, &unlock(owner)), Decision::Done);
        let expected = if owner == 3 {
            Decision::Ask
        } else {
            Decision::Done
        };
        assert_eq!(decide(&mut locks, &exclusive(owner + 1)), expected);
    }
}

#[test]
fn who_has_to_wait_does_so_at_the_server() {
    let mut locks = deciding();
    let waits = call(2, Some(LockMode::Exclusive), true);
    assert_eq!(decide(&mut locks, &waits), Decision::Ask);
}

#[test]
fn when_the_right_is_taken_back_the_server_is_told_what_is_held_as_often_as_it_asks() {
    let mut locks = deciding();
    assert_eq!(locks.recalled(&recall(5)), [file()]);
    assert_eq!(decide(&mut locks, &unlock(1)), Decision::Ask);
    let said = locks.say(&[file()], 4);
    assert_eq!(said[0].delegation, Stamp(2));
    assert_eq!(said[0].locks, [wanted(1).held(Fence(101))]);
    // The connection is lost, and the recall comes again.
    locks.disconnected();
    locks.acknowledged(9);
    assert_eq!(locks.recalled(&recall(5)), [file()]);
    locks.say(&[file()], 4);
    locks.acknowledged(4);
    assert_eq!(locks.recalled(&recall(7)), [], "it knows");
}

#[test]
fn a_right_that_has_been_recalled_before_its_answer_came_is_none() {
    let mut locks = MountLocks::default();
    locks.look(true);
    locks.enter(&file());
    assert_eq!(locks.recalled(&recall(5)), [], "nothing is known of it");
    let held = vec![wanted(1).held(Fence(101))];
    let answer = granted(1, Some(right(2)), held);
    locks.locked((&file(), FH), &wanted(1), None, answer);
    assert_eq!(decide(&mut locks, &unlock(1)), Decision::Ask);
}

#[test]
fn locks_are_lost_with_the_leases_and_that_is_told_until_they_are_unlocked_or_closed() {
    let mut locks = deciding();
    locks.look(false);
    locks.look(true);
    assert!(locks.is_reset_due() && locks.is_lost(&file(), Some(FH), None));
    assert!(
        locks.is_lost(&file(), Some(Fh(4)), Some(LockOwner(1))),
        "by whichever descriptor"
    );
    assert!(!locks.is_lost(&file(), Some(Fh(4)), Some(LockOwner(2))));
    assert_eq!(
        locks.guard_of_anybody(&file()),
        Some(LockEpoch(9)),
        "what comes late is refused"
    );
    let lost = Decision::Refused(Refusal::LockLost);
    assert_eq!(decide(&mut locks, &exclusive(1)), lost);
    assert_eq!(decide(&mut locks, &unlock(1)), lost, "once");
    assert_eq!(decide(&mut locks, &unlock(1)), Decision::Done);
    assert!(!locks.is_lost(&file(), Some(FH), None) && locks.is_idle());
}

#[test]
fn of_too_many_files_without_locks_the_right_to_decide_is_given_back() {
    let mut locks = MountLocks::default();
    locks.look(true);
    let object = |number: u64| Handle::new(&number.to_be_bytes()).expect("short");
    for number in 0..=MAX_IDLE_RIGHTS as u64 {
        let answer = granted(
            number + 1,
            Some(right(number + 1)),
            vec![wanted(1).held(Fence(9))],
        );
        let at = object(number);
        locks.enter(&at);
        locks.locked((&at, FH), &wanted(1), None, answer);
        locks.leave(&at);
        assert_eq!(locks.give_idle_rights_back(), [], "locked");
    }
    let unlocked = |number| locks.decide(&object(number), FH, &unlock(1));
    let all = (1..=MAX_IDLE_RIGHTS as u64).map(unlocked);
    assert!(all.into_iter().all(|decision| decision == Decision::Done));
    assert_eq!(locks.give_idle_rights_back(), [], "as many as there may be");
    assert_eq!(locks.decide(&object(0), FH, &unlock(1)), Decision::Done);
    let given_back = locks.give_idle_rights_back();
    assert_eq!(given_back.len(), MAX_IDLE_RIGHTS + 1);
    assert_eq!(locks.decide(&object(3), FH, &exclusive(1)), Decision::Ask);
    let files: Vec<Handle> = given_back.iter().map(|(object, _)| *object).collect();
    assert!(
        locks
            .say(&files, 4)
            .iter()
            .all(|said| said.locks.is_empty())
    );
    locks.acknowledged(4);
    assert!(locks.is_idle());
}

#[test]
fn a_close_forgets_what_was_lost() {
    for closes in [true, false] {
        let mut locks = deciding();
        locks.lose_all();
        match closes {
            true => locks.closes(&file(), LockOwner(1)),
            false => drop(locks.released(&file(), FH)),
        }
        assert!(locks.is_idle());
    }
}

const WAIT: Option<LockWait> = Some(LockWait(7));

fn told_to_wait(locks: &mut MountLocks) -> Answered {
    let answer = Locked {
        outcome: LockOutcome::Waits,
        ..granted(3, None, Vec::new())
    };
    locks.locked((&file(), FH), &wanted(1), WAIT, answer)
}

fn waiting(locks: &mut MountLocks) -> oneshot::Receiver<Woken> {
    match told_to_wait(locks) {
        Answered::Waits(told) => told,
        done => panic!("{done:?}"),
    }
}

fn push(stamp: u64) -> LockGranted {
    LockGranted {
        wait: LockWait(7),
        stamp: Stamp(stamp),
        epoch: LockEpoch(9),
        fence: Fence(500),
    }
}

#[test]
fn a_lock_that_was_waited_for_is_held_when_the_server_says_so() {
    let mut locks = MountLocks::default();
    locks.look(true);
    let mut told = waiting(&mut locks);
    locks.granted(push(4));
    assert_eq!(told.try_recv(), Ok(Some(Woken::Granted)));
    assert_eq!(locks.newest(&file()), Some(Fence(500)));
    assert_eq!(
        locks.released(&file(), FH),
        [(LockKind::Posix, LockOwner(1))]
    );
}

#[test]
fn who_asks_again_and_is_granted_it_meanwhile_waits_no_longer() {
    let mut locks = MountLocks::default();
    locks.look(true);
    drop(waiting(&mut locks));
    locks.granted(push(4));
    let answered = told_to_wait(&mut locks);
    assert!(matches!(answered, Answered::Done(Ok(()))), "{answered:?}");
    assert_eq!(locks.newest(&file()), Some(Fence(500)));
}

#[test]
fn who_is_granted_what_he_asks_for_again_is_waited_for_no_longer() {
    let mut locks = MountLocks::default();
    locks.look(true);
    drop(waiting(&mut locks));
    let answer = granted(4, None, Vec::new());
    let answered = locks.locked((&file(), FH), &wanted(1), WAIT, answer);
    assert!(matches!(answered, Answered::Done(Ok(()))), "{answered:?}");
    let of = (LockKind::Posix, LockOwner(1));
    assert_eq!(locks.waits_of(&file(), of), []);
}

#[test]
fn what_was_granted_before_something_that_is_known_is_asked_for_again() {
    let mut locks = MountLocks::default();
    locks.look(true);
    let mut told = waiting(&mut locks);
    let unlocked = Unlocked {
        stamp: Stamp(5),
        epoch: LockEpoch(9),
        any: true,
    };
    locks.unlocked(
        &file(),
        (LockKind::Posix, LockOwner(1)),
        LockRange::ALL,
        unlocked,
    );
    locks.granted(push(4));
    assert_eq!(told.try_recv(), Ok(Some(Woken::AskAgain)));
    assert_eq!(locks.newest(&file()), None);
}

#[test]
fn who_waits_asks_again_on_a_new_connection() {
    let mut locks = MountLocks::default();
    locks.look(true);
    let mut told = waiting(&mut locks);
    locks.wake_all();
    assert_eq!(told.try_recv(), Ok(Some(Woken::AskAgain)));
    locks.granted(push(4));
    assert_eq!(locks.newest(&file()), None, "of the wait before");
}

#[test]
fn a_restarted_server_is_told_what_is_held_and_decides() {
    let mut locks = deciding();
    locks.restarted();
    let (claims, epoch) = locks.claims();
    assert_eq!((claims.len(), epoch), (1, LockEpoch(9)));
    assert_eq!(decide(&mut locks, &unlock(1)), Decision::Ask);
    locks.lost(&file());
    assert!(locks.is_lost(&file(), Some(FH), None));
}

#[test]
fn what_the_server_is_asked_to_take_back_is_not_claimed_from_the_next_one() {
    let mut locks = deciding();
    locks.restarted();
    let all = ((LockKind::Posix, LockOwner(1)), LockRange::ALL);
    locks.gives_up_there(&file(), Some(all));
    assert_eq!(locks.claims().0, []);
    locks.gives_up_there(&file(), None);
    assert_eq!(locks.claims().0.len(), 1, "it was refused");
}

#[test]
fn no_more_is_held_of_a_file_than_one_message_tells_however_it_came_to_be() {
    let mut locks = deciding();
    let byte = |at: u64| LockCall {
        range: LockRange::new(2 * at, 2 * at).expect("a range"),
        ..unlock(1)
    };
    let given = (0..2 * MAX_LOCKS_OF_FILE as u64)
        .take_while(|at| decide(&mut locks, &byte(at + 1)) == Decision::Done)
        .count();
    assert!((1_000..MAX_LOCKS_OF_FILE).contains(&given), "{given}");
    let refused = decide(&mut locks, &byte(given as u64 + 1));
    assert_eq!(refused, Decision::Refused(TOO_MANY));
    assert!(locks.say(&[file()], 1)[0].locks.len() <= MAX_LOCKS_OF_FILE);
    // What splits nothing is given up.
    assert_eq!(decide(&mut locks, &unlock(1)), Decision::Done);
}
