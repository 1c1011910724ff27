//! A mount without kernel and server: both are played by the test.

use crate::cache::{Cache, Clock, Known, fixtures};
use crate::recall::{Engine, KernelCache, Server};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{
    Approval, Attr, BootId, Grant, Handle, Mode, OpenId, Parts, RawName, Recall, RecallId, Release,
    Reply, RequestId, Response, Scope, Stamp,
};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(super) const TERM: Duration = Duration::from_secs(10);

/// What the engine told kernel and server, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    DropAttrs(Handle),
    DropPages(Handle, u64, u64),
    ForgetNames,
    DropName(Handle, Vec<u8>),
    Approve(RecallId, Vec<OpenId>),
    Release(Handle, Parts),
    Close(OpenId),
    End,
}

#[derive(Default)]
pub(super) struct Other {
    told: Mutex<Vec<Told>>,
    more: Condvar,
    /// Files whose pages can't be dropped just now.
    blocked: Mutex<HashSet<Handle>>,
    freed: Condvar,
    /// Drops of pages that have begun.
    begun: AtomicU64,
    inside: AtomicBool,
}

impl Other {
    fn tell(&self, told: Told) {
        self.told.lock().expect("told").push(told);
        self.more.notify_all();
    }

    pub fn told(&self) -> Vec<Told> {
        self.told.lock().expect("told").clone()
    }

    /// Waits until something is told.
    pub fn wait_for(&self, what: &Told) {
        let told = self.told.lock().expect("told");
        let limit = Duration::from_secs(5);
        let (told, late) = self
            .more
            .wait_timeout_while(told, limit, |told| !told.contains(what))
            .expect("told");
        assert!(!late.timed_out(), "{what:?} never came: {told:?}");
    }

    pub fn block(&self, file: Handle) {
        self.blocked.lock().expect("blocked").insert(file);
    }

    pub fn free(&self, file: &Handle) {
        self.blocked.lock().expect("blocked").remove(file);
        self.freed.notify_all();
    }

    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Something is mounted inside the mount.
    pub fn mount_inside(&self) {
        self.inside.store(true, Ordering::SeqCst);
    }
}

impl KernelCache for Other {
    fn drop_attrs(&self, object: &Handle) -> io::Result<()> {
        self.tell(Told::DropAttrs(*object));
        Ok(())
    }

    fn drop_pages(&self, object: &Handle, offset: u64, len: u64) -> io::Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let blocked = self.blocked.lock().expect("blocked");
        let waited = self.freed.wait_while(blocked, |b| b.contains(object));
        drop(waited.expect("blocked"));
        self.tell(Told::DropPages(*object, offset, len));
        Ok(())
    }

    fn can_forget_names(&self) -> bool {
        !self.inside.load(Ordering::SeqCst)
    }

    fn forget_names(&self) -> io::Result<()> {
        self.tell(Told::ForgetNames);
        Ok(())
    }

    fn drop_name(&self, dir: &Handle, name: &[u8]) -> io::Result<()> {
        self.tell(Told::DropName(*dir, name.to_vec()));
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        self.tell(Told::End);
        Ok(())
    }
}

impl Server for Other {
    fn approve(&self, approvals: Vec<Approval>) {
        for approval in approvals {
            self.tell(Told::Approve(approval.recall, approval.closes));
        }
    }

    fn release(&self, releases: Vec<Release>) {
        for release in releases {
            self.tell(Told::Release(release.object, release.parts));
        }
    }

    fn host_is(&self, _: BootId) {}

    fn close(&self, open: OpenId) {
        self.tell(Told::Close(open));
    }

    fn flush(&self, _: Vec<Handle>, then: Box<dyn FnOnce() + Send>) {
        then();
    }
}

#[derive(Default)]
pub(super) struct TestClock {
    boot: AtomicU64,
    asleep: AtomicU64,
}

impl TestClock {
    pub fn advance(&self, by: Duration) {
        let nanos = by.as_nanos() as u64;
        self.boot.fetch_add(nanos, Ordering::SeqCst);
    }

    /// Time passes that `CLOCK_MONOTONIC` doesn't see.
    pub fn suspend(&self, by: Duration) {
        let nanos = by.as_nanos() as u64;
        self.asleep.fetch_add(nanos, Ordering::SeqCst);
        self.boot.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn boot(&self) -> BootTime {
        BootTime::from_nanos(self.boot.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> BootTime {
        let asleep = self.asleep.load(Ordering::SeqCst);
        BootTime::from_nanos(self.boot.load(Ordering::SeqCst) - asleep)
    }
}

pub(super) struct World {
    pub clock: Arc<TestClock>,
    pub cache: Arc<Cache>,
    pub other: Arc<Other>,
    pub engine: Engine,
}

impl World {
    /// A mount with a fresh lease.
    pub fn new() -> Self {
        Self::with_budget(1 << 20)
    }

    pub fn with_budget(budget: usize) -> Self {
        let clock = Arc::new(TestClock::default());
        clock.advance(Duration::from_secs(100));
        let cache = Cache::new(clock.clone(), budget);
        let other = Arc::new(Other::default());
        let timeout = Some(Duration::from_secs(5));
        let engine = Engine::new(cache.clone(), other.clone(), other.clone(), timeout);
        cache.set_names_in_kernel(true);
        let world = Self {
            clock,
            cache,
            other,
            engine,
        };
        world.renew();
        world
    }

    pub fn renew(&self) {
        self.cache.renew(self.clock.boot(), TERM, 0);
    }

    /// The kernel asks for attributes and gets them with a timeout.
    pub fn getattr(&self, object: u8, stamp: u64) -> Duration {
        let grants = [grant(object, Parts::ATTRS, stamp)];
        let asked = self.cache.ask();
        let mut learned = self.cache.learn(asked, &grants);
        learned.attr_for_kernel(&handle(object), &attr(object))
    }

    /// The kernel looks a name up and gets it with a timeout.
    pub fn lookup(&self, dir: u8, name: &[u8], object: u8, stamp: u64) -> Duration {
        let grants = [grant(dir, Parts::NAMES, stamp)];
        let asked = self.cache.ask();
        let mut learned = self.cache.learn(asked, &grants);
        learned.name_for_kernel(&handle(dir), name, Known::Object(handle(object)))
    }

    pub fn recall(&self, id: u64, stamp: u64, object: u8, parts: Parts, names: &[&str]) {
        let names = names.iter().map(|n| RawName(n.as_bytes().to_vec()));
        self.engine.recalled(Recall {
            id: RecallId(id),
            stamp: Stamp(stamp),
            scope: Scope::Object {
                object: handle(object),
                parts,
                names: names.collect(),
            },
        });
    }

    pub fn is_approved(&self, id: u64) -> bool {
        let told = self.other.told();
        told.iter()
            .any(|t| matches!(t, Told::Approve(recall, _) if *recall == RecallId(id)))
    }
}

pub(super) fn eventually(what: &str, is: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(5);
    while !is() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::yield_now();
    }
}

pub(super) fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

pub(super) fn grant(object: u8, parts: Parts, stamp: u64) -> Grant {
    Grant {
        object: handle(object),
        parts,
        mode: Mode::Read,
        stamp: Stamp(stamp),
    }
}

pub(super) fn attr(ino: u8) -> Attr {
    Attr {
        ino: u64::from(ino),
        blocks: 8,
        ..fixtures::attr(1)
    }
}

pub(super) fn reply(stamp: u64, grants: Vec<Grant>) -> Reply {
    Reply {
        id: RequestId(1),
        renews: true,
        stamp: Stamp(stamp),
        grants,
        touched: Vec::new(),
        room: None,
        result: Ok(Response::Done),
    }
}
