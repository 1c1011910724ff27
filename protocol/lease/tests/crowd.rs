//! Many at one file: what an event costs doesn't grow with those who wait or hold there. Processor times of
//! this thread are compared with each other only, and with room.

use leasefs_lease::locks::LockWanted;
use leasefs_lease::server::{
    Action, Config, Core, Event, Grace, LockAnswer, LockAsk, LoggedWrites, OpId, ReadItem,
    ReadKind, Reclaimed, Touch, Wanted,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::lock::LockOutcome;
use leasefs_protocol::{
    Handle, KeyHash, LockKind, LockMode, LockOwner, LockRange, LockWait, Mode, Parts, RecallId,
    SessionId, Stamp,
};
use std::ops::Range;
use std::time::Duration;

const FEW: u32 = 50;
const MANY: u32 = 2_000;
/// A scan would make it forty.
const ROOM: u32 = 8;
const NOW: BootTime = BootTime::ZERO;

fn session(number: u32) -> SessionId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}

fn file() -> Handle {
    Handle::new(b"f").expect("one byte")
}

fn core(sessions: u32) -> Core {
    let mut core = Core::new(Config::default(), NOW, None);
    for number in 0..=sessions {
        let event = Event::SessionOpened {
            session: session(number),
            client: KeyHash::default(),
            drift_ppm: 0,
        };
        feed(&mut core, event);
    }
    core
}

fn feed(core: &mut Core, event: Event) -> Vec<Action> {
    core.handle(NOW, event);
    std::iter::from_fn(|| core.poll_action()).collect()
}

fn read(op: u64, of: u32) -> Event {
    read_as(ReadKind::Metadata, op, of)
}

fn read_as(kind: ReadKind, op: u64, of: u32) -> Event {
    let item = ReadItem {
        object: file(),
        parts: Parts::ATTRS,
        name: None,
    };
    Event::AdmitRead {
        op: OpId(op),
        session: session(of),
        kind,
        items: vec![item],
    }
}

fn change(op: u64, of: u32) -> Event {
    let touch = Touch {
        object: file(),
        parts: Parts::ATTRS | Parts::DATA,
        names: Vec::new(),
    };
    Event::AdmitChange {
        op: OpId(op),
        session: session(of),
        touches: vec![touch],
        dropped: vec![file()],
        writeback: false,
        locked: None,
    }
}

/// The best of some runs: what each of `n` events takes.
fn each(n: u32, run: impl Fn(u32) -> Duration) -> Duration {
    (0..9).map(|_| run(n)).min().expect("some runs") / n
}

fn is_flat(what: &str, run: impl Fn(u32) -> Duration) {
    let (few, many) = (each(FEW, &run), each(MANY, &run));
    println!("{what}: {few:?} each of {FEW}, {many:?} each of {MANY}");
    assert!(many < few * ROOM, "{what}: {few:?}, then {many:?}");
}

fn timed(run: impl FnOnce()) -> Duration {
    let begun = processor_time();
    run();
    processor_time() - begun
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it counts from 0")
}

/// A core where one change runs and `n` wait behind it.
fn queued(n: u32) -> Core {
    let mut core = core(n);
    for number in 0..=n {
        feed(&mut core, change(number.into(), number));
    }
    core
}

/// A core where one session holds the file exclusively, and is asked for it by `n` that wait to read it.
fn hidden(n: u32, kind: ReadKind) -> Core {
    let mut core = core(n);
    feed(&mut core, change(0, 0));
    let (op, wants) = (
        OpId(0),
        vec![Wanted::write(file(), Parts::ATTRS | Parts::DATA)],
    );
    feed(&mut core, Event::FinishChange { op, wants });
    for number in 1..=n {
        let asked = feed(&mut core, read_as(kind, number.into(), number));
        assert_eq!(asked.len(), usize::from(number == 1), "{number}: {asked:?}");
    }
    core
}

/// A core where `n` sessions hold the file.
fn held(n: u32) -> Core {
    let mut core = core(n);
    for number in 1..=n {
        assert_eq!(feed(&mut core, read(number.into(), number)).len(), 1);
    }
    core
}

#[test]
fn a_change_that_comes_to_a_long_queue_costs_what_it_costs_in_a_short_one() {
    is_flat("arrival of a change", |n| timed(|| drop(queued(n))));
}

#[test]
fn a_long_queue_is_worked_off_as_a_short_one() {
    is_flat("end of a change", |n| {
        let mut core = queued(n);
        timed(|| {
            for number in 0..=n {
                let wants = Vec::new();
                let op = OpId(number.into());
                let actions = feed(&mut core, Event::FinishChange { op, wants });
                assert!(!actions.is_empty());
            }
        })
    });
}

#[test]
fn a_read_beside_a_long_queue_costs_what_it_costs_beside_a_short_one() {
    is_flat("read beside changes that wait", |n| {
        let mut core = queued(n);
        timed(|| {
            for number in 0..n {
                feed(&mut core, read(u64::from(MANY + 1 + number), number));
            }
        })
    });
}

#[test]
fn a_lease_among_many_costs_what_it_costs_among_few() {
    is_flat("lease", |n| {
        let core = core(n);
        let granted = |mut core: Core| {
            for number in 1..=n {
                feed(&mut core, read(number.into(), number));
            }
        };
        timed(|| granted(core))
    });
}

fn object(number: u32) -> Handle {
    Handle::new(&number.to_be_bytes()).expect("4 bytes")
}

/// Takes a lease on each of these, and gives it back unless it is to be kept.
fn take(core: &mut Core, numbers: Range<u32>, keep: bool) {
    for number in numbers {
        let item = ReadItem {
            object: object(number),
            parts: Parts::ATTRS,
            name: None,
        };
        let event = Event::AdmitRead {
            op: OpId(number.into()),
            session: session(0),
            kind: ReadKind::Metadata,
            items: vec![item],
        };
        feed(core, event);
        let release = Event::Release {
            session: session(0),
            object: object(number),
            parts: Parts::ATTRS,
            seen: Stamp(u64::MAX),
        };
        if !keep {
            feed(core, release);
        }
    }
}

#[test]
fn a_lease_beside_a_hundred_thousand_costs_what_it_costs_beside_a_thousand() {
    let beside = |leases: u32| {
        let mut core = core(1);
        take(&mut core, 0..leases, true);
        let runs = (0..9).map(|_| timed(|| take(&mut core, leases..leases + MANY, false)));
        runs.min().expect("some runs") / MANY
    };
    let (few, many) = (beside(1_000), beside(100_000));
    println!("lease taken and given back: {few:?} beside 1,000, {many:?} beside 100,000");
    assert!(many < few * ROOM, "{few:?}, then {many:?}");
}

#[test]
fn an_approval_among_many_costs_what_it_costs_among_few() {
    is_flat("approval", |n| {
        let mut core = held(n);
        let recalls = feed(&mut core, change(0, 0));
        assert_eq!(recalls.len(), n as usize);
        timed(|| {
            for number in 1..=n {
                let event = Event::Approve {
                    session: session(number),
                    recall: RecallId(1),
                };
                feed(&mut core, event);
            }
            assert_eq!(core.lease_count(), 0);
        })
    });
}

#[test]
fn a_reader_that_waits_for_the_writer_costs_among_many_what_it_costs_among_few() {
    for kind in [ReadKind::Metadata, ReadKind::FillPages] {
        is_flat("reader that waits", |n| timed(|| drop(hidden(n, kind))));
        is_flat("reader that gives up", |n| {
            let mut core = hidden(n, kind);
            timed(|| {
                for number in 1..=n {
                    let op = OpId(number.into());
                    feed(&mut core, Event::Withdraw { op });
                }
            })
        });
    }
}

#[test]
fn many_readers_are_let_go_on_as_few_are() {
    is_flat("reader that goes on", |n| {
        let mut core = hidden(n, ReadKind::Metadata);
        let approval = Event::Approve {
            session: session(0),
            recall: RecallId(1),
        };
        timed(|| assert_eq!(feed(&mut core, approval).len(), n as usize))
    });
}

/// Of each what it holds is taken over, and then that it has nothing more.
fn reclaimed(n: u32) -> Duration {
    let logged = (0..n).map(|number| (session(number), object(number)));
    let grace = Grace {
        max_term: Duration::from_secs(10),
        drift_ppm: 0,
        sessions: (0..n).map(session).collect(),
        writes: LoggedWrites::Trusted(logged.collect()),
    };
    let mut core = Core::new(Config::default(), NOW, Some(grace));
    timed(|| {
        for number in 0..n {
            let session = session(number);
            let event = Event::SessionOpened {
                session,
                client: KeyHash::default(),
                drift_ppm: 0,
            };
            feed(&mut core, event);
            let lease = Reclaimed {
                object: object(number),
                parts: Parts::DATA,
                mode: Mode::Write,
            };
            core.reclaim(NOW, session, lease).expect("it stands");
            feed(&mut core, Event::ReclaimDone { session });
        }
        assert_eq!(core.grace_until(), None);
    })
}

#[test]
fn a_session_among_many_that_reclaim_costs_what_it_costs_among_few() {
    is_flat("reclaiming", reclaimed);
}

/// Asks for an exclusive lock of these bytes, and waits for it; what is decided at once. Each owner is somebody of
/// session 1, but for 0.
fn lock(core: &mut Core, owner: u32, (first, last): (u64, u64), wait: u64) -> Option<LockOutcome> {
    let wanted = LockWanted {
        owner: LockOwner(owner.into()),
        kind: LockKind::Posix,
        mode: LockMode::Exclusive,
        range: LockRange::new(first, last).expect("a range"),
        pid: owner,
    };
    let event = Event::Lock {
        op: OpId(wait),
        session: session(u32::from(owner > 0)),
        object: file(),
        ask: LockAsk::Take(wanted, Some(LockWait(wait))),
    };
    let locked = |action| match action {
        Action::Locked {
            answer: LockAnswer::Locked(locked),
            ..
        } => Some(locked.outcome),
        _ => None,
    };
    feed(core, event).into_iter().find_map(locked)
}

/// A core where each of `n` waits for a byte that 0 holds, and for one that 1 holds.
fn entangled(n: u32) -> Core {
    let mut core = core(1);
    lock(&mut core, 1, (200, 200), 0);
    lock(&mut core, 0, (0, 0), 1);
    for recall in 0..4 {
        let recall = RecallId(recall);
        for of in 0..=1 {
            let session = session(of);
            feed(&mut core, Event::Approve { session, recall });
        }
    }
    for owner in 2..n + 2 {
        let wait = u64::from(owner) * 2;
        for (bytes, wait) in [((0, 10), wait), ((200, 200), wait + 1)] {
            let outcome = lock(&mut core, owner, bytes, wait);
            assert_eq!(outcome, Some(LockOutcome::Waits));
        }
    }
    core
}

#[test]
fn who_waits_for_whom_is_looked_through_within_bounds() {
    is_flat("a lock behind many that wait for its owner", |n| {
        let mut core = entangled(n);
        timed(|| {
            let outcome = lock(&mut core, 1, (5, 5), u64::MAX);
            assert!(outcome.is_some());
        })
    });
}

#[test]
fn what_many_wait_for_is_given_up_within_bounds() {
    is_flat("the end of a lock that many wait for", |n| {
        let mut core = entangled(n);
        let event = Event::SessionEnded {
            session: session(0),
        };
        timed(|| drop(feed(&mut core, event)))
    });
}
