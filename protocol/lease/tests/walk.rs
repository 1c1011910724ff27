//! Random walks of the lease core: after every step its invariants hold, an independent account
//! of what clients may believe finds nothing unsafe, and in the end everything has been answered.

mod oracle;

use leasefs_lease::locks::LockWanted;
use leasefs_lease::server::{
    Bouncing, Config, Core, Event, Grace, LockAsk, LoggedWrites, OpId, ReadItem, ReadKind,
    Reclaimed, Touch, Wanted,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::lock::FileLocks;
use leasefs_protocol::{
    Fence, Handle, HeldLock, KeyHash, LockKind, LockMode, LockOwner, LockRange, LockWait, Mode,
    Parts, RawName, SessionId, Stamp,
};
use oracle::Oracle;
use proptest::prelude::*;
use std::time::Duration;

const SESSIONS: u8 = 4;
const OBJECTS: u8 = 3;

#[derive(Clone, Debug)]
enum Step {
    Pass(u16),
    Open(u8),
    End(u8),
    Renew(u8),
    Read(u8, ReadKind, Vec<ReadItem>),
    Change(u8, Vec<Touch>, u8, bool),
    Requeue(u8, Vec<Touch>),
    Finish(u8, Parts),
    Withdraw(u8),
    Approve(u8, u8),
    Flush(u8, u8, u32),
    Release(u8, u8, Parts, u8),
    TakeBack(u8, u8, Parts),
    Gone(u8),
    Reclaim(u8, u8, Parts, Mode),
    Done(u8),
    RoundTrip(u8, u16),
    Lock(u8, u8, LockAsk),
    /// Says what it holds of a file; true if that is a lock.
    Held(u8, u8, bool),
    Shutdown,
}

fn session(index: u8) -> SessionId {
    SessionId([b'A' + index % SESSIONS; 16])
}

fn object(index: u8) -> Handle {
    Handle::new(&[b'f' + index % OBJECTS]).expect("one byte")
}

fn name(index: u8) -> RawName {
    RawName(vec![b'x' + index % 2])
}

fn parts() -> impl Strategy<Value = Parts> {
    let some = [
        Parts::ATTRS,
        Parts::DATA,
        Parts::ATTRS | Parts::DATA,
        Parts::ATTRS | Parts::LISTING,
        Parts::LISTING,
        Parts::ATTRS | Parts::LISTING | Parts::NAMES,
    ];
    prop::sample::select(some.to_vec())
}

fn item() -> impl Strategy<Value = ReadItem> {
    let named = (0..OBJECTS, 0..2u8).prop_map(|(o, n)| ReadItem {
        object: object(o),
        parts: Parts::NAMES,
        name: Some(name(n)),
    });
    let whole = (0..OBJECTS, parts()).prop_map(|(o, parts)| ReadItem {
        object: object(o),
        parts,
        name: None,
    });
    prop_oneof![named, whole]
}

fn touch() -> impl Strategy<Value = Touch> {
    let names = prop::collection::vec((0..2u8).prop_map(name), 0..2);
    (0..OBJECTS, parts(), names).prop_map(|(o, parts, names)| Touch {
        object: object(o),
        parts,
        names,
    })
}

fn kind() -> impl Strategy<Value = ReadKind> {
    use ReadKind::{FillForStore, FillPages, Metadata, Uncached};
    prop_oneof![
        4 => Just(Metadata),
        3 => Just(FillPages),
        2 => Just(FillForStore),
        1 => Just(Uncached),
    ]
}

fn read() -> impl Strategy<Value = Step> {
    (0..SESSIONS, kind(), prop::collection::vec(item(), 1..4)).prop_map(|(s, kind, mut items)| {
        if matches!(kind, ReadKind::FillPages | ReadKind::FillForStore) {
            items.truncate(1);
        }
        Step::Read(s, kind, items)
    })
}

fn wanted_lock() -> impl Strategy<Value = LockWanted<LockOwner>> {
    let modes = vec![LockMode::Shared, LockMode::Exclusive];
    let kinds = vec![LockKind::Posix, LockKind::Posix, LockKind::Flock];
    let what = (prop::sample::select(kinds), prop::sample::select(modes));
    (0..2u64, what, 0..3u64, 0..3u64).prop_map(|(owner, (kind, mode), first, more)| LockWanted {
        owner: LockOwner(owner),
        kind,
        mode,
        range: match kind {
            LockKind::Posix => LockRange::new(first, first + more).expect("a range"),
            LockKind::Flock => LockRange::ALL,
        },
        pid: 1,
    })
}

fn lock_ask() -> impl Strategy<Value = LockAsk> {
    let give_up = |lock: LockWanted<LockOwner>| LockAsk::GiveUp(lock.owner, lock.kind, lock.range);
    let wait = prop::option::weighted(0.7, (0..3u64).prop_map(LockWait));
    prop_oneof![
        10 => (wanted_lock(), wait).prop_map(|(lock, wait)| LockAsk::Take(lock, wait)),
        6 => wanted_lock().prop_map(give_up),
        1 => wanted_lock().prop_map(LockAsk::Test),
        2 => (0..3u64).prop_map(|wait| LockAsk::Cancel(LockWait(wait))),
        1 => Just(LockAsk::Reset),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let touches = || prop::collection::vec(touch(), 1..4);
    prop_oneof![
        4 => prop_oneof![1..250u16, 1000..3000u16].prop_map(Step::Pass),
        3 => (0..SESSIONS).prop_map(Step::Open),
        1 => (0..SESSIONS).prop_map(Step::End),
        5 => (0..SESSIONS).prop_map(Step::Renew),
        14 => read(),
        9 => (0..SESSIONS, touches(), any::<u8>(), prop::bool::weighted(0.3))
            .prop_map(|(s, t, d, w)| Step::Change(s, t, d, w)),
        1 => (any::<u8>(), touches()).prop_map(|(o, t)| Step::Requeue(o, t)),
        7 => (any::<u8>(), parts()).prop_map(|(o, p)| Step::Finish(o, p)),
        1 => any::<u8>().prop_map(Step::Withdraw),
        12 => (0..SESSIONS, any::<u8>()).prop_map(|(s, r)| Step::Approve(s, r)),
        1 => (0..SESSIONS, 0..OBJECTS, 0..(3_u32 << 20)).prop_map(|(s, o, n)| Step::Flush(s, o, n)),
        2 => (0..SESSIONS, 0..OBJECTS, parts(), any::<u8>())
            .prop_map(|(s, o, p, at)| Step::Release(s, o, p, at)),
        1 => (0..SESSIONS, 0..OBJECTS, parts()).prop_map(|(s, o, p)| Step::TakeBack(s, o, p)),
        1 => (0..OBJECTS).prop_map(Step::Gone),
        2 => (0..SESSIONS, 0..OBJECTS, parts(), prop::sample::select(vec![Mode::Read, Mode::Write]))
            .prop_map(|(s, o, p, m)| Step::Reclaim(s, o, p, m)),
        1 => (0..SESSIONS).prop_map(Step::Done),
        1 => (0..SESSIONS, 0..200u16).prop_map(|(s, ms)| Step::RoundTrip(s, ms)),
        9 => (0..SESSIONS, 0..OBJECTS, lock_ask()).prop_map(|(s, o, ask)| Step::Lock(s, o, ask)),
        2 => (0..SESSIONS, 0..OBJECTS, any::<bool>()).prop_map(|(s, o, any)| Step::Held(s, o, any)),
    ]
}

fn grace() -> impl Strategy<Value = Option<Grace>> {
    let logged = prop::collection::vec((0..SESSIONS, 0..OBJECTS), 0..3).prop_map(|logged| {
        LoggedWrites::Trusted(
            logged
                .into_iter()
                .map(|(s, o)| (session(s), object(o)))
                .collect(),
        )
    });
    let writes = prop_oneof![3 => logged, 1 => Just(LoggedWrites::Unknown)];
    let known = (
        prop::collection::vec((0..SESSIONS).prop_map(session), 1..4),
        writes,
    );
    let known = known.prop_map(|(sessions, writes)| Grace {
        max_term: Duration::from_secs(10),
        drift_ppm: 0,
        sessions,
        writes,
    });
    prop::option::weighted(0.3, known)
}

struct Walk {
    core: Core,
    oracle: Oracle,
    now: BootTime,
    ops: u64,
}

impl Walk {
    fn new(max: usize, grace: Option<Grace>) -> Self {
        Self::with_probation(max, grace, Duration::from_secs(2))
    }

    fn with_probation(max: usize, grace: Option<Grace>, probation: Duration) -> Self {
        let config = Config {
            drift_ppm: 0,
            // With an odd bound whatever a read waits for bounces.
            bouncing: Bouncing {
                waits: max % 2,
                ..Bouncing::default()
            },
            probation,
            max_probation: 2 * probation,
            max_leases_per_client: max,
            max_recalls_per_client: max,
            ..Config::default()
        };
        Self {
            oracle: Oracle::new(config.term),
            core: Core::new(config, BootTime::ZERO, grace),
            now: BootTime::ZERO,
            ops: 0,
        }
    }

    fn next_op(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops)
    }

    fn handle(&mut self, event: Event) {
        self.oracle.sees(&event);
        self.core.handle(self.now, event);
        self.check();
    }

    fn check(&mut self) {
        let sessions = self.core.sessions().into_iter();
        let denied = sessions.filter(|s| s.denied_until.is_some());
        self.oracle.denied = denied.map(|s| s.session).collect();
        while let Some(action) = self.core.poll_action() {
            let safe = self.oracle.check(self.now, &action);
            safe.unwrap_or_else(|e| panic!("{e}: {action:?}"));
        }
        self.core.check_invariants().expect("invariants hold");
    }

    fn pass(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.handle(Event::Tick);
        }
        self.now = end;
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Pass(ms) => self.pass(Duration::from_millis(ms.into())),
            Step::Renew(s) => {
                if self.core.renew(self.now, session(s)) {
                    self.oracle.renewed(session(s), self.now);
                }
                self.check();
            }
            Step::Reclaim(s, o, parts, mode) => {
                let (object, parts) = match mode {
                    Mode::Read => (object(o), parts),
                    Mode::Write => (object(o), Parts::DATA),
                };
                let lease = Reclaimed {
                    object,
                    parts,
                    mode,
                };
                let _ = self.core.reclaim(self.now, session(s), lease);
                self.check();
            }
            other => {
                if let Some(event) = self.event(other) {
                    self.handle(event);
                }
            }
        }
    }

    fn event(&mut self, step: Step) -> Option<Event> {
        let pick = |of: Vec<OpId>, at: u8| of.get(usize::from(at) % of.len().max(1)).copied();
        let recall = |s: u8, at: u8| {
            let of = self.oracle.recalls(session(s));
            of.get(usize::from(at) % of.len().max(1)).copied()
        };
        Some(match step {
            Step::Open(s) => Event::SessionOpened {
                session: session(s),
                // Two of one client.
                client: KeyHash([s.max(1); 32]),
                drift_ppm: 0,
            },
            Step::End(s) => Event::SessionEnded {
                session: session(s),
            },
            Step::Read(s, kind, items) => {
                let op = self.next_op();
                Event::AdmitRead {
                    op,
                    session: session(s),
                    kind,
                    items,
                }
            }
            Step::Change(s, touches, dropped, writeback) => {
                let mut dropped: Vec<Handle> = (0..OBJECTS)
                    .filter(|o| dropped & 1 << o != 0)
                    .map(object)
                    .collect();
                if writeback {
                    dropped = touches.iter().map(|t| t.object).collect();
                }
                let op = self.next_op();
                Event::AdmitChange {
                    op,
                    session: session(s),
                    touches,
                    dropped,
                    writeback,
                    locked: op
                        .0
                        .is_multiple_of(4)
                        .then(|| self.oracle.epoch(session(s))),
                }
            }
            Step::Requeue(at, touches) => Event::Requeue {
                op: pick(self.oracle.running(), at)?,
                touches,
                dropped: Vec::new(),
            },
            Step::Finish(at, parts) => Event::FinishChange {
                op: pick(self.oracle.running(), at)?,
                wants: (0..OBJECTS).map(|o| wanted(o, parts)).collect(),
            },
            Step::Withdraw(at) => Event::Withdraw {
                op: pick(self.oracle.waiting(), at)?,
            },
            Step::Approve(s, at) => Event::Approve {
                session: session(s),
                recall: recall(s, at)?,
            },
            Step::Flush(s, o, bytes) => Event::Flushed {
                session: session(s),
                object: object(o),
                bytes: bytes.into(),
            },
            Step::Release(s, o, parts, seen) => Event::Release {
                session: session(s),
                object: object(o),
                parts,
                seen: Stamp(seen.into()),
            },
            Step::TakeBack(s, o, parts) => Event::TakeBack {
                session: session(s),
                object: object(o),
                parts,
            },
            Step::Gone(o) => Event::Gone { object: object(o) },
            Step::Done(s) => Event::ReclaimDone {
                session: session(s),
            },
            Step::RoundTrip(s, ms) => Event::RoundTrip {
                session: session(s),
                rtt: Duration::from_millis(ms.into()),
            },
            Step::Lock(s, o, ask) => {
                let op = self.next_op();
                Event::Lock {
                    op,
                    session: session(s),
                    object: object(o),
                    ask,
                }
            }
            Step::Held(s, o, any) => self.says(session(s), object(o), any),
            Step::Shutdown => Event::Shutdown,
            Step::Pass(_) | Step::Renew(_) | Step::Reclaim(..) => return None,
        })
    }

    fn says(&self, session: SessionId, object: Handle, any: bool) -> Event {
        let lock = HeldLock {
            owner: LockOwner(0),
            kind: LockKind::Posix,
            mode: LockMode::Shared,
            range: LockRange::ALL,
            pid: 1,
            fence: Fence(1),
        };
        let file = FileLocks {
            object,
            delegation: self.oracle.delegation(session, &object),
            locks: any.then_some(lock).into_iter().collect(),
        };
        Event::Held {
            session,
            files: vec![file],
        }
    }

    /// Nobody renews and nobody approves any more: everything is answered within the bound.
    fn comes_to_rest(&mut self) {
        let bound = Duration::from_secs(25);
        let end = self.now + bound;
        while self.now < end {
            for op in self.oracle.running() {
                self.handle(Event::FinishChange {
                    op,
                    wants: Vec::new(),
                });
            }
            self.pass(Duration::from_millis(100));
        }
        for op in self.oracle.running() {
            self.handle(Event::FinishChange {
                op,
                wants: Vec::new(),
            });
        }
        assert_eq!(
            self.oracle.waiting(),
            Vec::<OpId>::new(),
            "{:#?}",
            self.core.waiting()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_admission_is_unsafe_and_everything_is_answered(
        max in prop_oneof![Just(2usize), Just(3), Just(100), Just(101)],
        grace in grace(),
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut walk = Walk::new(max, grace);
        (0..SESSIONS).for_each(|s| walk.take(Step::Open(s)));
        for step in steps {
            walk.take(step);
        }
        walk.comes_to_rest();
    }

    #[test]
    fn an_orderly_end_comes_to_rest_and_leaves_nothing(
        steps in prop::collection::vec(step(), 1..60),
        late in prop::collection::vec(step(), 0..20),
    ) {
        let mut walk = Walk::new(100, None);
        (0..SESSIONS).for_each(|s| walk.take(Step::Open(s)));
        steps.into_iter().for_each(|step| walk.take(step));
        walk.take(Step::Shutdown);
        late.into_iter().for_each(|step| walk.take(step));
        walk.pass(Duration::from_secs(25));
        for op in walk.oracle.waiting().into_iter().chain(walk.oracle.running()) {
            walk.handle(Event::Withdraw { op });
        }
        walk.pass(Duration::from_secs(25));
        prop_assert!(walk.core.all_quiet());
    }

    #[test]
    fn moving_the_origin_of_time_changes_nothing(
        steps in prop::collection::vec(step(), 1..80),
        more in prop::collection::vec(step(), 1..40),
    ) {
        // How late an approval is isn't known any more when its time has become zero.
        let mut walk = Walk::with_probation(100, None, Duration::ZERO);
        (0..SESSIONS).for_each(|s| walk.take(Step::Open(s)));
        steps.into_iter().for_each(|step| walk.take(step));
        walk.handle(Event::Tick);
        let mut moved = walk.core.clone();
        moved.rebase(walk.now);
        prop_assert!(moved.poll_action().is_none());
        prop_assert!(moved.check_invariants().is_ok());
        let origin = walk.now;
        for step in more {
            if let Step::Pass(ms) = step {
                walk.now = walk.now + Duration::from_millis(ms.into());
                walk.core.handle(walk.now, Event::Tick);
                moved.handle(BootTime::ZERO + walk.now.since(origin), Event::Tick);
            } else if let Some(event) = walk.event(step) {
                walk.oracle.sees(&event);
                walk.core.handle(walk.now, event.clone());
                moved.handle(BootTime::ZERO + walk.now.since(origin), event);
            }
            while let Some(action) = walk.core.poll_action() {
                prop_assert_eq!(moved.poll_action(), Some(action.clone()));
                walk.oracle.check(walk.now, &action).expect("safe");
            }
            prop_assert_eq!(moved.poll_action(), None);
        }
    }
}

/// Of the first object exclusively.
fn wanted(o: u8, parts: Parts) -> Wanted {
    match o {
        0 => Wanted::write(object(o), parts & (Parts::ATTRS | Parts::DATA)),
        _ => Wanted::read(object(o), parts),
    }
}
