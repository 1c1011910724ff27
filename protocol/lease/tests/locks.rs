//! Locks at the server's lease core: who has them, who waits, who decides them, and when they are lost.

use leasefs_lease::locks::LockWanted;
use leasefs_lease::server::{
    Action, Config, Core, Event, Grace, LockAnswer, LockAsk, LoggedWrites, OpId, Touch,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::lock::{Delegation, FileLocks, LockFound, LockGranted, LockOutcome};
use leasefs_protocol::{
    Fence, Handle, HeldLock, KeyHash, LockEpoch, LockKind, LockMode, LockOwner, LockRange,
    LockWait, Parts, Recall, Scope, SessionId,
};
use std::time::Duration;

const TERM: Duration = Duration::from_secs(10);

fn session(of: u8) -> SessionId {
    SessionId([of; 16])
}

fn file(of: u8) -> Handle {
    Handle::new(&[of]).expect("short")
}

fn wanted(owner: u64, mode: LockMode, (first, last): (u64, u64)) -> LockWanted<LockOwner> {
    LockWanted {
        owner: LockOwner(owner),
        kind: LockKind::Posix,
        mode,
        range: LockRange::new(first, last).expect("a range"),
        pid: owner as u32,
    }
}

const ALL: (u64, u64) = (0, LockRange::END);

fn exclusive(owner: u64) -> LockWanted<LockOwner> {
    wanted(owner, LockMode::Exclusive, ALL)
}

fn shared(owner: u64) -> LockWanted<LockOwner> {
    wanted(owner, LockMode::Shared, ALL)
}

struct Server {
    core: Core,
    now: BootTime,
    last: u64,
    recalls: Vec<(SessionId, Recall)>,
    answers: Vec<(OpId, LockAnswer)>,
    granted: Vec<(SessionId, LockGranted)>,
    admitted: Vec<OpId>,
    lost: Vec<OpId>,
}

impl Server {
    fn new(sessions: u8, grace: Option<Grace>) -> Self {
        let mut server = Self {
            core: Core::new(Config::of_term(TERM), BootTime::ZERO, grace),
            now: BootTime::ZERO,
            last: 0,
            recalls: Vec::new(),
            answers: Vec::new(),
            granted: Vec::new(),
            admitted: Vec::new(),
            lost: Vec::new(),
        };
        for of in 1..=sessions {
            server.hello(of);
        }
        server
    }

    fn hello(&mut self, of: u8) {
        self.feed(Event::SessionOpened {
            session: session(of),
            client: KeyHash([of; 32]),
            drift_ppm: 0,
        });
    }

    fn feed(&mut self, event: Event) {
        self.core.handle(self.now, event);
        self.take_actions();
    }

    fn take_actions(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Recall { session, recall } => self.recalls.push((session, recall)),
                Action::Locked { op, answer } => self.answers.push((op, answer)),
                Action::LockGranted { session, granted } => self.granted.push((session, granted)),
                Action::Admitted { op, .. } => self.admitted.push(op),
                Action::LockLost { op } => self.lost.push(op),
                Action::Opened { .. }
                | Action::Finished { .. }
                | Action::Expired { .. }
                | Action::GraceEnded => {}
            }
        }
        self.core.check_invariants().expect("sound");
    }

    fn op(&mut self) -> OpId {
        self.last += 1;
        OpId(self.last)
    }

    /// What is answered at once, if anything is.
    fn ask(&mut self, of: u8, object: Handle, ask: LockAsk) -> Option<LockAnswer> {
        let op = self.op();
        self.feed(Event::Lock {
            op,
            session: session(of),
            object,
            ask,
        });
        self.answer(op)
    }

    fn answer(&mut self, op: OpId) -> Option<LockAnswer> {
        let at = self.answers.iter().position(|(of, _)| *of == op)?;
        Some(self.answers.remove(at).1)
    }

    fn take(&mut self, of: u8, object: Handle, lock: LockWanted<LockOwner>) -> Option<LockOutcome> {
        outcome(self.ask(of, object, LockAsk::Take(lock, None))?)
    }

    fn wait(
        &mut self,
        of: u8,
        object: Handle,
        lock: LockWanted<LockOwner>,
        wait: u64,
    ) -> Option<LockOutcome> {
        outcome(self.ask(of, object, LockAsk::Take(lock, Some(LockWait(wait))))?)
    }

    #[track_caller]
    fn waits(&mut self, of: u8, object: Handle, lock: LockWanted<LockOwner>, wait: u64) {
        assert_eq!(self.wait(of, object, lock, wait), Some(LockOutcome::Waits));
    }

    fn give_up(&mut self, of: u8, object: Handle, owner: u64) {
        let ask = LockAsk::GiveUp(LockOwner(owner), LockKind::Posix, LockRange::ALL);
        self.ask(of, object, ask).expect("decided at once");
    }

    fn approve(&mut self, of: u8, held: Vec<FileLocks>) {
        let at = self.recalls.iter().position(|(to, _)| *to == session(of));
        let (session, recall) = self.recalls.remove(at.expect("a recall"));
        self.feed(Event::Held {
            session,
            files: held,
        });
        let recall = recall.id;
        self.feed(Event::Approve { session, recall });
    }

    fn passes(&mut self, after: Duration) {
        self.now = self.now + after;
        self.feed(Event::Tick);
    }

    fn renew(&mut self, of: u8) {
        self.core.renew(self.now, session(of));
    }

    fn epoch(&mut self, of: u8) -> LockEpoch {
        match self.ask(of, file(99), LockAsk::Cancel(LockWait(0))) {
            Some(LockAnswer::Unlocked(unlocked)) => unlocked.epoch,
            answer => panic!("{answer:?}"),
        }
    }

    fn write(&mut self, of: u8, object: Handle, locked: LockEpoch) -> OpId {
        let op = self.op();
        self.feed(Event::AdmitChange {
            op,
            session: session(of),
            touches: vec![Touch {
                object,
                parts: Parts::DATA,
                names: Vec::new(),
            }],
            dropped: vec![object],
            writeback: false,
            locked: Some(locked),
        });
        op
    }
}

fn outcome(answer: LockAnswer) -> Option<LockOutcome> {
    match answer {
        LockAnswer::Locked(locked) => Some(locked.outcome),
        other => panic!("{other:?}"),
    }
}

fn delegation(outcome: Option<LockOutcome>) -> Option<Delegation> {
    match outcome {
        Some(LockOutcome::Granted { delegation, .. }) => delegation,
        other => panic!("not granted: {other:?}"),
    }
}

fn is_granted(outcome: &Option<LockOutcome>) -> bool {
    matches!(outcome, Some(LockOutcome::Granted { .. }))
}

fn held(lock: LockWanted<LockOwner>, delegation: Delegation) -> FileLocks {
    FileLocks {
        object: file(1),
        delegation: delegation.stamp,
        locks: vec![lock.held(delegation.first)],
    }
}

#[test]
fn who_is_alone_decides_the_files_locks_and_is_asked_for_it_back() {
    let mut server = Server::new(2, None);
    let first = server.take(1, file(1), exclusive(7));
    let right = delegation(first).expect("alone");
    assert_eq!(
        server.take(2, file(1), exclusive(8)),
        None,
        "it waits for the other's approval"
    );
    let (to, recall) = server.recalls.first().cloned().expect("recalled");
    assert_eq!(to, session(1));
    assert!(matches!(recall.scope, Scope::Object { parts, .. } if parts == Parts::LOCKS));
    server.approve(1, vec![held(exclusive(7), right)]);
    let (_, answer) = server.answers.remove(0);
    assert_eq!(outcome(answer), Some(LockOutcome::Conflicts));
    assert!(is_granted(&server.take(1, file(1), exclusive(7))));
}

#[test]
fn who_gives_the_right_back_holding_nothing_leaves_the_lock_free() {
    let mut server = Server::new(2, None);
    let right = delegation(server.take(1, file(1), exclusive(7))).expect("alone");
    assert_eq!(server.take(2, file(1), exclusive(8)), None);
    let nothing = FileLocks {
        locks: Vec::new(),
        ..held(exclusive(7), right)
    };
    server.approve(1, vec![nothing]);
    let (_, answer) = server.answers.remove(0);
    let theirs = delegation(outcome(answer)).expect("alone now");
    assert!(theirs.first > right.first, "numbers grow");
}

#[test]
fn who_has_not_heard_of_the_right_holds_what_it_was_given_with_it() {
    let mut server = Server::new(2, None);
    delegation(server.take(1, file(1), exclusive(7))).expect("alone");
    assert_eq!(server.take(2, file(1), exclusive(8)), None);
    server.approve(1, Vec::new());
    let (_, answer) = server.answers.remove(0);
    assert_eq!(outcome(answer), Some(LockOutcome::Conflicts));
}

#[test]
fn what_is_said_of_another_delegation_counts_for_nothing() {
    let mut server = Server::new(2, None);
    let right = delegation(server.take(1, file(1), exclusive(7))).expect("alone");
    assert_eq!(server.take(2, file(1), exclusive(8)), None);
    let earlier = FileLocks {
        delegation: leasefs_protocol::Stamp(right.stamp.0 - 1),
        locks: Vec::new(),
        ..held(exclusive(7), right)
    };
    server.approve(1, vec![earlier]);
    let (_, answer) = server.answers.remove(0);
    assert_eq!(outcome(answer), Some(LockOutcome::Conflicts));
}

/// Two sessions with a shared lock each: neither decides.
fn contended() -> Server {
    let mut server = Server::new(4, None);
    let right = delegation(server.take(1, file(1), shared(7))).expect("alone");
    assert_eq!(server.take(2, file(1), shared(8)), None);
    server.approve(1, vec![held(shared(7), right)]);
    let (_, answer) = server.answers.remove(0);
    assert_eq!(delegation(outcome(answer)), None);
    server
}

#[test]
fn those_who_wait_are_served_in_the_order_in_which_they_came() {
    let mut server = contended();
    server.waits(3, file(1), exclusive(9), 1);
    server.waits(4, file(1), exclusive(10), 1);
    server.give_up(1, file(1), 7);
    assert_eq!(server.granted, []);
    server.give_up(2, file(1), 8);
    assert_eq!(server.granted.len(), 1);
    assert_eq!(server.granted[0].0, session(3));
    server.give_up(3, file(1), 9);
    assert_eq!(server.granted[1].0, session(4));
    assert!(server.granted[1].1.fence > server.granted[0].1.fence);
}

#[test]
fn who_would_read_waits_behind_who_waits_to_write_and_who_only_asks_does_not() {
    let mut server = contended();
    server.waits(3, file(1), exclusive(9), 1);
    server.waits(4, file(1), shared(10), 1);
    assert!(is_granted(&server.take(4, file(1), shared(11))));
    server.give_up(4, file(1), 11);
    server.give_up(1, file(1), 7);
    server.give_up(2, file(1), 8);
    assert_eq!(server.granted.len(), 1, "the writer alone");
    server.give_up(3, file(1), 9);
    assert_eq!(server.granted[1].0, session(4));
}

#[test]
fn who_holds_a_part_is_not_kept_from_more_by_one_who_waits_for_it() {
    let mut server = contended();
    server.waits(3, file(1), exclusive(9), 1);
    assert!(is_granted(&server.wait(1, file(1), shared(7), 5)));
}

#[test]
fn a_wait_that_is_cancelled_is_never_granted() {
    let mut server = contended();
    server.waits(3, file(1), exclusive(9), 1);
    let cancelled = server.ask(3, file(1), LockAsk::Cancel(LockWait(1)));
    assert!(matches!(cancelled, Some(LockAnswer::Unlocked(unlocked)) if unlocked.any));
    server.give_up(1, file(1), 7);
    server.give_up(2, file(1), 8);
    assert_eq!(server.granted, []);
    assert!(is_granted(&server.take(4, file(1), exclusive(10))));
}

#[test]
fn a_wait_that_is_asked_for_again_keeps_its_place() {
    let mut server = contended();
    server.waits(3, file(1), exclusive(9), 1);
    server.waits(4, file(1), exclusive(10), 1);
    server.waits(3, file(1), exclusive(9), 1);
    server.give_up(1, file(1), 7);
    server.give_up(2, file(1), 8);
    assert_eq!(server.granted[0].0, session(3));
    assert!(
        is_granted(&server.wait(3, file(1), exclusive(9), 1)),
        "it has it"
    );
}

#[test]
fn a_circle_of_owners_across_sessions_and_files_is_a_deadlock() {
    let mut server = Server::new(3, None);
    for (of, other) in [(1, 2), (2, 3), (3, 1)] {
        // A reader elsewhere in the file keeps everybody from deciding its locks.
        assert!(is_granted(&server.take(
            of,
            file(of),
            wanted(7, LockMode::Exclusive, (0, 9))
        )));
        server.take(other, file(of), wanted(8, LockMode::Shared, (50, 59)));
        server.approve(of, Vec::new());
        server.answers.clear();
    }
    let write = wanted(7, LockMode::Exclusive, (0, 9));
    server.waits(1, file(2), write, 1);
    server.waits(2, file(3), write, 1);
    assert_eq!(
        server.wait(3, file(1), write, 1),
        Some(LockOutcome::Deadlock)
    );
    server.give_up(3, file(3), 7);
    assert_eq!(server.granted[0].0, session(2));
}

#[test]
fn a_dead_sessions_locks_go_to_those_who_wait_and_its_waits_to_nobody() {
    let mut server = contended();
    server.waits(3, file(1), exclusive(9), 1);
    server.waits(4, file(1), exclusive(10), 1);
    server.give_up(2, file(1), 8);
    server.passes(TERM / 2);
    server.renew(4);
    server.passes(TERM * 3 / 4);
    assert_eq!(server.granted.len(), 1);
    assert_eq!(server.granted[0].0, session(4));
}

#[test]
fn a_change_made_under_locks_that_are_lost_is_not_carried_out() {
    let mut server = contended();
    let epoch = server.epoch(1);
    let in_time = server.write(1, file(1), epoch);
    assert_eq!(server.admitted, [in_time]);
    server.feed(Event::FinishChange {
        op: in_time,
        wants: Vec::new(),
    });
    server.passes(TERM * 2);
    server.hello(1);
    let late = server.write(1, file(1), epoch);
    assert_eq!(server.lost, [late]);
    let now = server.epoch(1);
    assert_ne!(now, epoch);
    assert_eq!(server.admitted, [in_time]);
}

#[test]
fn nobody_gets_a_lock_while_a_change_made_under_it_before_is_under_way() {
    let mut server = contended();
    server.give_up(2, file(1), 8);
    let epoch = server.epoch(1);
    let slow = server.write(1, file(1), epoch);
    server.waits(3, file(1), exclusive(9), 1);
    server.passes(TERM / 2);
    [3, 4].into_iter().for_each(|of| server.renew(of));
    server.passes(TERM * 3 / 4);
    assert_eq!(server.granted, [], "the change still runs");
    assert_eq!(server.take(4, file(1), exclusive(10)), None);
    server.feed(Event::FinishChange {
        op: slow,
        wants: Vec::new(),
    });
    assert_eq!(server.granted[0].0, session(3));
    let (_, answer) = server.answers.remove(0);
    assert_eq!(outcome(answer), Some(LockOutcome::Conflicts));
}

#[test]
fn who_resets_its_locks_has_none_and_can_have_new_ones() {
    let mut server = contended();
    let epoch = server.epoch(1);
    server.waits(3, file(1), exclusive(9), 1);
    server.give_up(2, file(1), 8);
    let reset = server.ask(1, file(1), LockAsk::Reset);
    assert!(matches!(reset, Some(LockAnswer::Unlocked(unlocked)) if unlocked.epoch != epoch));
    assert_eq!(server.granted[0].0, session(3));
}

#[test]
fn what_stands_in_the_way_is_told_and_its_process_to_its_own_machine_alone() {
    let mut server = contended();
    for (asks, pid) in [(1, Some(7)), (3, None)] {
        let found = server.ask(asks, file(1), LockAsk::Test(exclusive(99)));
        let expected = LockFound {
            mode: LockMode::Shared,
            range: LockRange::ALL,
            pid,
        };
        assert_eq!(found, Some(LockAnswer::Found(Some(expected))));
    }
}

fn restarted(sessions: &[u8]) -> Server {
    let grace = Grace {
        max_term: TERM,
        drift_ppm: 0,
        sessions: sessions.iter().map(|of| session(*of)).collect(),
        writes: LoggedWrites::Trusted(Vec::new()),
    };
    Server::new(0, Some(grace))
}

fn reclaimed(locks: Vec<HeldLock>) -> Vec<FileLocks> {
    vec![FileLocks {
        object: file(1),
        delegation: leasefs_protocol::Stamp(0),
        locks,
    }]
}

#[test]
fn in_grace_locks_are_reclaimed_before_anybody_else_may_take_them() {
    let mut server = restarted(&[1, 2]);
    server.hello(2);
    assert_eq!(
        server.take(2, file(1), exclusive(8)),
        None,
        "waits for the end of grace"
    );
    server.hello(1);
    let mine = reclaimed(vec![exclusive(7).held(Fence(3))]);
    let lost = server
        .core
        .reclaim_locks(server.now, session(1), LockEpoch(77), mine);
    server.take_actions();
    assert_eq!(lost, []);
    for of in [1, 2] {
        server.feed(Event::ReclaimDone {
            session: session(of),
        });
    }
    let (_, answer) = server.answers.remove(0);
    assert_eq!(outcome(answer), Some(LockOutcome::Conflicts));
    assert_eq!(
        server.epoch(1),
        LockEpoch(77),
        "what was made under them goes through"
    );
}

#[test]
fn a_lock_that_another_has_reclaimed_cannot_be() {
    let mut server = restarted(&[1, 2]);
    server.hello(1);
    server.hello(2);
    let mine = || reclaimed(vec![exclusive(7).held(Fence(3))]);
    let first = server
        .core
        .reclaim_locks(server.now, session(1), LockEpoch(77), mine());
    let second = server
        .core
        .reclaim_locks(server.now, session(2), LockEpoch(78), mine());
    assert_eq!((first, second), (vec![], vec![file(1)]));
}

/// The answer may have been lost with its connection, and grace have ended since.
#[test]
fn locks_that_were_taken_over_are_free_once_their_session_is_told_that_they_are_lost() {
    let mut server = restarted(&[1, 2]);
    server.hello(1);
    let mine = || reclaimed(vec![exclusive(7).held(Fence(3))]);
    let taken = server
        .core
        .reclaim_locks(server.now, session(1), LockEpoch(77), mine());
    assert_eq!(taken, []);
    for of in [1, 2] {
        server.hello(of);
        server.feed(Event::ReclaimDone {
            session: session(of),
        });
    }
    let again = server
        .core
        .reclaim_locks(server.now, session(1), LockEpoch(77), mine());
    server.take_actions();
    assert_eq!(again, [file(1)]);
    server.answers.clear();
    let other = server.take(2, file(1), exclusive(8));
    assert!(
        matches!(other, Some(LockOutcome::Granted { .. })),
        "{other:?}"
    );
}

#[test]
fn out_of_grace_nothing_is_reclaimed() {
    let mut server = Server::new(1, None);
    let mine = reclaimed(vec![exclusive(7).held(Fence(3))]);
    let lost = server
        .core
        .reclaim_locks(server.now, session(1), LockEpoch(77), mine);
    assert_eq!(lost, [file(1)]);
    assert_ne!(server.epoch(1), LockEpoch(77));
}

#[test]
fn who_leaves_leaves_his_locks_to_those_who_wait() {
    let mut server = contended();
    let upgrade = server.wait(2, file(1), exclusive(8), 3);
    assert_eq!(upgrade, Some(LockOutcome::Waits));
    server.feed(Event::SessionEnded {
        session: session(1),
    });
    assert_eq!(server.granted.len(), 1);
}

#[test]
fn of_many_who_may_have_their_locks_at_once_some_get_them_at_each_of_the_next_events() {
    const MANY: u64 = 1_000;
    let mut server = Server::new(3, None);
    // Nobody decides them.
    server.take(3, file(1), wanted(9, LockMode::Shared, (5_000, 5_000)));
    let whole = wanted(1, LockMode::Exclusive, (0, MANY));
    let taken = server.wait(1, file(1), whole, 0);
    server.approve(3, Vec::new());
    assert!(taken.is_none_or(|taken| is_granted(&Some(taken))));
    for owner in 0..MANY {
        let lock = wanted(owner, LockMode::Exclusive, (owner, owner));
        server.waits(2, file(1), lock, owner);
    }
    server.give_up(1, file(1), 1);
    let mut events = 0;
    while server.granted.len() < MANY as usize {
        assert_eq!(server.core.next_deadline(), Some(server.now), "at once");
        let before = server.granted.len();
        server.passes(Duration::ZERO);
        let granted = server.granted.len() - before;
        assert!((1..200).contains(&granted), "{granted}");
        events += 1;
    }
    assert!(events > 5, "{events}");
    let order: Vec<u64> = server.granted.iter().map(|(_, g)| g.wait.0).collect();
    assert!(order.is_sorted(), "as they came");
}

/// A file whose locks nobody decides: others than who had it first have locks of it.
fn undecided(server: &mut Server, object: Handle) {
    let far = |of: u64| wanted(of, LockMode::Shared, (1 << 40, 1 << 40));
    server.take(3, object, far(98));
    server.take(2, object, far(99));
    server.approve(3, Vec::new());
}

#[test]
fn with_many_who_wait_behind_him_a_writer_is_not_overtaken() {
    let mut server = Server::new(3, None);
    undecided(&mut server, file(1));
    assert!(is_granted(&server.take(
        1,
        file(1),
        wanted(1, LockMode::Shared, (0, 9))
    )));
    server.waits(2, file(1), wanted(2, LockMode::Exclusive, (0, 9)), 2);
    for owner in 3..400 {
        server.waits(2, file(1), wanted(owner, LockMode::Shared, (0, 9)), owner);
    }
    assert_eq!(server.granted, []);
    server.give_up(1, file(1), 1);
    let first = server.granted.first().map(|(_, granted)| granted.wait);
    assert_eq!((first, server.granted.len()), (Some(LockWait(2)), 1));
}

#[test]
fn a_deadlock_with_one_of_many_who_hold_a_lock_is_found() {
    let mut server = Server::new(3, None);
    undecided(&mut server, file(1));
    undecided(&mut server, file(2));
    assert!(is_granted(&server.take(
        2,
        file(2),
        wanted(9, LockMode::Exclusive, (0, 9))
    )));
    for owner in 100..500 {
        let shared = wanted(owner, LockMode::Shared, (0, 9));
        assert!(is_granted(&server.take(1, file(1), shared)));
        server.waits(
            1,
            file(2),
            wanted(owner, LockMode::Exclusive, (0, 9)),
            owner,
        );
    }
    let circle = server.wait(2, file(1), wanted(9, LockMode::Exclusive, (0, 9)), 1);
    assert_eq!(circle, Some(LockOutcome::Deadlock));
}

#[test]
fn who_has_as_many_locks_as_he_may_can_give_them_up() {
    let mut server = Server::new(3, None);
    undecided(&mut server, file(1));
    let byte = |at: u64| wanted(1, LockMode::Exclusive, (2 * at, 2 * at));
    let mut take = |at| server.ask(1, file(1), LockAsk::Take(byte(at), None));
    let held = (0..).take_while(|at| take(*at) != Some(LockAnswer::TooMany));
    let held = held.count() as u64;
    assert!(held > 1_000, "{held}");
    let give_up = |at: u64| LockAsk::GiveUp(LockOwner(1), LockKind::Posix, byte(at).range);
    let given = server.ask(1, file(1), give_up(7));
    assert!(matches!(given, Some(LockAnswer::Unlocked(unlocked)) if unlocked.any));
    let again = server.take(1, file(1), byte(7));
    assert!(is_granted(&again), "{again:?}");
}

#[test]
fn who_says_that_he_holds_more_than_he_may_holds_nothing() {
    let mut server = Server::new(2, None);
    let files: Vec<Handle> = (1..=17).map(file).collect();
    let mut said = Vec::new();
    for object in &files {
        let taken = server.take(1, *object, wanted(1, LockMode::Exclusive, (0, 0)));
        let delegation = delegation(taken).expect("he is alone");
        let byte = |at: u64| wanted(1, LockMode::Exclusive, (2 * at, 2 * at));
        let locks = (0..1_000).map(|at| byte(at).held(delegation.first));
        said.push(FileLocks {
            object: *object,
            locks: locks.collect(),
            ..held(byte(0), delegation)
        });
    }
    let epoch = server.epoch(1);
    for (number, (object, said)) in files.iter().zip(said).enumerate() {
        let byte = wanted(2, LockMode::Exclusive, (500, 500));
        server.ask(2, *object, LockAsk::Take(byte, None));
        server.approve(1, vec![said]);
        let (_, answer) = server.answers.pop().expect("decided");
        let outcome = outcome(answer);
        match number < 16 {
            true => assert_eq!(outcome, Some(LockOutcome::Conflicts), "{number}"),
            // And what is written under it is refused.
            false => assert!(is_granted(&outcome) && server.epoch(1) != epoch),
        }
    }
}

#[test]
fn nobody_is_given_a_lock_once_an_orderly_end_has_begun_and_what_is_held_can_be_given_up() {
    let mut server = Server::new(2, None);
    assert!(server.take(1, file(1), exclusive(1)).is_some());
    server.feed(Event::Shutdown);
    let late = server.ask(2, file(2), LockAsk::Take(exclusive(2), None));
    assert_eq!(late, None, "it is asked of the next life");
    server.approve(1, Vec::new());
    assert!(server.core.holds_locks());
    server.give_up(1, file(1), 1);
    assert!(!server.core.holds_locks() && server.answers.is_empty());
    assert!(
        server.core.all_quiet(),
        "who asks for a lock holds up nothing"
    );
}
