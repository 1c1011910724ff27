//! What the server's lease core does in a second on one core, and whether that depends on how many
//! leases there are, or how many wait at one object.
//!
//! `cargo bench --package leasefs-lease`; an element is an event that the core takes in.

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use leasefs_lease::server::{Action, Config, Core, Event, OpId, ReadItem, ReadKind, Touch, Wanted};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Handle, KeyHash, Parts, RecallId, SessionId, Stamp};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

const NOW: BootTime = BootTime::ZERO;
const LEASES: [u64; 3] = [1_000, 100_000, 1_000_000];
const CROWD: [u64; 3] = [1, 100, 1_000];
/// What each session holds.
const EACH: u64 = 500;
/// Nobody holds it beforehand.
const FILE: u64 = u64::MAX;

fn session(number: u64) -> SessionId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}

fn client(number: u64) -> KeyHash {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_be_bytes());
    KeyHash(key)
}

/// Of the length that the server's have.
fn object(number: u64) -> Handle {
    let mut bytes = [0xa5; 40];
    bytes[32..].copy_from_slice(&number.to_be_bytes());
    Handle::new(&bytes).expect("40 bytes")
}

/// What the thread has run, not what it has waited for a processor.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(now).expect("a time that has passed")
    }

    fn end(&self, start: Duration) -> Duration {
        self.start() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// A core in use, and the numbers of what is done next.
struct Bench {
    core: Core,
    leases: u64,
    ops: u64,
    steps: u64,
}

impl Bench {
    fn with_sessions(sessions: u64) -> Self {
        let core = Core::new(Config::default(), NOW, None);
        let mut bench = Self {
            core,
            leases: 0,
            ops: 0,
            steps: 0,
        };
        for number in 0..sessions {
            bench.feed(Event::SessionOpened {
                session: session(number),
                client: client(number),
                drift_ppm: 0,
            });
        }
        bench
    }

    fn with_leases(leases: u64) -> Self {
        let mut bench = Self::with_sessions(leases / EACH);
        (0..leases).for_each(|number| drop(bench.read(number / EACH, number)));
        bench.leases = leases;
        bench
    }

    fn feed(&mut self, event: Event) -> Option<Action> {
        self.core.handle(NOW, event);
        let first = self.core.poll_action();
        while let Some(action) = self.core.poll_action() {
            black_box(action);
        }
        first
    }

    fn op(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops)
    }

    fn read(&mut self, of: u64, number: u64) -> Option<Action> {
        self.read_as(ReadKind::Metadata, of, number)
    }

    fn read_as(&mut self, kind: ReadKind, of: u64, number: u64) -> Option<Action> {
        let item = ReadItem {
            object: object(number),
            parts: Parts::ATTRS,
            name: None,
        };
        let op = self.op();
        self.feed(Event::AdmitRead {
            op,
            session: session(of),
            kind,
            items: vec![item],
        })
    }

    fn change(&mut self, of: u64, number: u64) -> (OpId, Option<Action>) {
        let touch = Touch {
            object: object(number),
            parts: Parts::ATTRS | Parts::DATA,
            names: Vec::new(),
        };
        let op = self.op();
        let action = self.feed(Event::AdmitChange {
            op,
            session: session(of),
            touches: vec![touch],
            dropped: vec![object(number)],
            writeback: false,
            locked: None,
        });
        (op, action)
    }

    fn finish(&mut self, op: OpId) {
        let wants = Vec::new();
        let finished = self.feed(Event::FinishChange { op, wants });
        assert!(matches!(finished, Some(Action::Finished { .. })));
    }

    fn approve(&mut self, of: u64, recall: RecallId) -> Option<Action> {
        self.feed(Event::Approve {
            session: session(of),
            recall,
        })
    }

    /// One lease after the other, none near the one before.
    fn next(&mut self) -> u64 {
        self.steps += 1;
        self.steps.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.leases
    }
}

/// Each of `sizes` with `elements` events an iteration.
fn each(
    criterion: &mut Criterion<CpuTime>,
    what: &str,
    sizes: [u64; 3],
    begin: impl Fn(u64) -> Bench,
    elements: impl Fn(u64) -> u64,
    step: impl Fn(&mut Bench, u64),
) {
    let mut group = criterion.benchmark_group(what);
    group.sample_size(20);
    for size in sizes {
        let mut bench = begin(size);
        group.throughput(Throughput::Elements(elements(size)));
        group.bench_with_input(BenchmarkId::from_parameter(size), &size, |b, size| {
            b.iter(|| step(&mut bench, *size));
        });
    }
}

/// Each of [`LEASES`] with `elements` events an iteration.
fn with_leases(
    criterion: &mut Criterion<CpuTime>,
    what: &str,
    elements: u64,
    step: impl Fn(&mut Bench, u64),
) {
    let begin = Bench::with_leases;
    each(criterion, what, LEASES, begin, |_| elements, step);
}

fn leases(criterion: &mut Criterion<CpuTime>) {
    with_leases(criterion, "grant, release", 2, |bench, leases| {
        let (of, number) = (bench.next() / EACH, leases + bench.next());
        let admitted = bench.read(of, number);
        assert!(matches!(admitted, Some(Action::Admitted { grants, .. }) if grants.len() == 1));
        bench.feed(Event::Release {
            session: session(of),
            object: object(number),
            parts: Parts::ATTRS,
            seen: Stamp(u64::MAX),
        });
    });
    with_leases(criterion, "grant again", 1, |bench, _| {
        let number = bench.next();
        bench.read(number / EACH, number);
    });
    with_leases(criterion, "renew", 1, |bench, _| {
        let of = bench.next() / EACH;
        bench.steps += 1;
        let now = BootTime::from_nanos(bench.steps);
        assert!(bench.core.renew(now, session(of)));
    });
    let all = "recall, approve, finish, grant";
    with_leases(criterion, all, 4, |bench, leases| {
        let number = bench.next();
        let holder = number / EACH;
        let (op, recalled) = bench.change((holder + 1) % (leases / EACH), number);
        let Some(Action::Recall { recall, .. }) = recalled else {
            panic!("nothing is recalled: {recalled:?}");
        };
        let admitted = bench.approve(holder, recall.id);
        assert!(matches!(admitted, Some(Action::Admitted { .. })));
        bench.finish(op);
        bench.read(holder, number);
    });
}

/// One change runs and `waiters` wait behind it.
fn queued(waiters: u64) -> Bench {
    let mut bench = Bench::with_sessions(waiters + 1);
    (0..=waiters).for_each(|of| drop(bench.change(of, FILE)));
    bench
}

/// The first session holds the file exclusively, and `waiters` others wait to read it.
fn hidden(waiters: u64, kind: ReadKind) -> Bench {
    let mut bench = Bench::with_sessions(waiters + 1);
    let (op, _) = bench.change(0, FILE);
    let wants = vec![Wanted::write(object(FILE), Parts::ATTRS | Parts::DATA)];
    bench.feed(Event::FinishChange { op, wants });
    (1..=waiters).for_each(|of| drop(bench.read_as(kind, of, FILE)));
    bench
}

/// The oldest reader gives up, and another comes.
fn replace(bench: &mut Bench, waiters: u64, kind: ReadKind) {
    let oldest = OpId(bench.ops + 1 - waiters);
    bench.feed(Event::Withdraw { op: oldest });
    assert!(bench.read_as(kind, 1 + oldest.0 % waiters, FILE).is_none());
}

/// So many hold the file.
fn held(holders: u64) -> Bench {
    let mut bench = Bench::with_sessions(holders + 1);
    (1..=holders).for_each(|of| drop(bench.read(of, FILE)));
    bench
}

/// All approve the recall, and read the file again.
fn recall_all(bench: &mut Bench, holders: u64) {
    let (op, recalled) = bench.change(0, FILE);
    let Some(Action::Recall { recall, .. }) = recalled else {
        panic!("nothing is recalled: {recalled:?}");
    };
    (1..=holders).for_each(|of| drop(bench.approve(of, recall.id)));
    bench.finish(op);
    (1..=holders).for_each(|of| drop(bench.read(of, FILE)));
}

fn crowds(criterion: &mut Criterion<CpuTime>) {
    each(
        criterion,
        "change behind waiters",
        CROWD,
        queued,
        |_| 2,
        |bench, waiters| {
            let first = OpId(bench.ops - waiters);
            bench.finish(first);
            bench.change(first.0 % (waiters + 1), FILE);
        },
    );
    let (metadata, fill) = (ReadKind::Metadata, ReadKind::FillPages);
    let waiting = |waiters| hidden(waiters, metadata);
    each(
        criterion,
        "read behind waiters",
        CROWD,
        waiting,
        |_| 2,
        |bench, waiters| {
            replace(bench, waiters, metadata);
        },
    );
    let waiting = |waiters| hidden(waiters, fill);
    each(
        criterion,
        "fill behind waiters",
        CROWD,
        waiting,
        |_| 2,
        |bench, waiters| {
            replace(bench, waiters, fill);
        },
    );
    each(
        criterion,
        "recall from holders",
        CROWD,
        held,
        |n| 3 * n + 2,
        recall_all,
    );
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = leases, crowds
}
criterion_main!(benches);
