//! A mount without kernel and server: both are played by the test.

use crate::api::{ConnectionId, Effect, EffectId, Notice, Noticed, Now};
use crate::cache::{Cache, fixtures};
use crate::call::NodeId;
use crate::inode::{Dentry, Place};
use crate::memory::Memory;
use crate::opens::fixtures::opened;
use crate::opens::{Opens, ServerOpen};
use crate::outside::Outside;
use crate::recall::{Engine, EngineParts};
use crate::run::{Cx, Tasks};
use crate::session::{Rpc, Timeout};
use crate::writeback::Writeback;
use futures_channel::oneshot;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{IdentityPolicy, Standing, ToServer, Welcome};
use leasefs_protocol::{
    Attr, BootId, FileKind, Grant, Handle, Mode, OpenId, Parts, Query, RawName, Recall, RecallId,
    Reply, Request, RequestId, Response, Scope, Stamp, query,
};
use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) const TERM: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long [`World::wait_for`] waits: leases that nobody needs are given back every second.
const SOON: Duration = Duration::from_millis(1100);

/// What the engine told kernel and server, in order; pages and names when they were dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    DropAttrs(Handle),
    DropPages(Handle, u64, u64),
    Grow(Handle, u64),
    ForgetNames,
    DropName(Handle, Vec<u8>),
    Approve(RecallId, Vec<OpenId>),
    Release(Handle, Parts),
    Close(OpenId),
    End,
}

/// A kernel that does at once what it is told, but for what is blocked.
#[derive(Default)]
struct Kernel {
    /// Files whose pages can't be dropped just now.
    blocked: HashSet<Handle>,
    held: Vec<(Handle, EffectId, Told)>,
    /// Drops of pages that have begun.
    begun: u64,
    /// Something is mounted inside the mount.
    inside: bool,
}

pub(super) struct World {
    cx: Cx,
    tasks: RefCell<Tasks<()>>,
    outside: Outside,
    kernel: RefCell<Kernel>,
    told: RefCell<Vec<Told>>,
    opens: Opens,
    pub cache: Arc<Cache>,
    pub engine: Engine,
}

/// Something that goes on by itself.
pub(super) struct Started<T>(oneshot::Receiver<T>);

impl<T> Started<T> {
    /// What it has come to, if it has.
    pub fn end(&mut self) -> Option<T> {
        self.0.try_recv().expect("it goes on")
    }
}

impl World {
    /// A mount with a fresh lease, whose kernel knows every object.
    pub fn new() -> Self {
        Self::with_memory(Memory::new(4 << 20))
    }

    pub fn with_memory(memory: Memory) -> Self {
        let cx = Cx::default();
        let start = BootTime::ZERO + Duration::from_secs(100);
        cx.passed(Now {
            boot: start,
            monotonic: start,
        });
        let cache = Cache::new(cx.clone(), handle(0), memory);
        cache.set_names_in_kernel(true);
        (1..=60).for_each(|object| becomes_known(&cache, &attr(object)));
        let outside = Outside::new(cx.clone(), Arc::clone(&cache));
        let timeout = Timeout::After(TIMEOUT);
        let rpc = Rpc::new(cx.clone(), Arc::clone(&cache), timeout);
        let opens = rpc.opens();
        rpc.connected(ConnectionId(1), welcome(), false);
        let parts = EngineParts {
            cx: cx.clone(),
            cache: Arc::clone(&cache),
            outside: outside.clone(),
            rpc: rpc.clone(),
            writeback: Writeback::new(cx.clone(), Arc::clone(&cache), rpc, outside.clone()),
            restless_for: Duration::ZERO,
        };
        let world = Self {
            cx,
            tasks: RefCell::default(),
            outside,
            kernel: RefCell::default(),
            told: RefCell::default(),
            opens,
            cache,
            engine: Engine::new(parts, None),
        };
        world.renew();
        world.settle();
        world
    }

    /// The server has opened something under this number.
    pub fn open(&self, id: u64) -> Arc<ServerOpen> {
        opened(&self.opens, id)
    }

    /// What kernel and server were told so far.
    pub fn told(&self) -> Vec<Told> {
        self.settle();
        self.told.borrow().clone()
    }

    /// Lets time pass until something is told.
    pub fn wait_for(&self, what: &Told) {
        let late = self.cx.monotonic() + SOON;
        while !self.told().contains(what) {
            let next = self.cx.next_due().filter(|next| *next <= late);
            let next = next.unwrap_or_else(|| panic!("{what:?} never came: {:?}", self.told()));
            self.advance(next.since(self.cx.monotonic()));
        }
    }

    /// Lets go on what can, until nothing can.
    fn settle(&self) {
        loop {
            for task in self.cx.take_spawned() {
                self.tasks.borrow_mut().add(task);
            }
            let stepped = self.tasks.borrow_mut().step().is_some();
            let effects: Vec<_> = std::iter::from_fn(|| self.cx.next_effect()).collect();
            if !stepped && effects.is_empty() {
                self.cache.inodes().check();
                return;
            }
            effects.into_iter().for_each(|effect| self.perform(effect));
        }
    }

    fn perform(&self, effect: Effect) {
        match effect {
            Effect::Notify(id, notice) => self.notified(id, notice),
            Effect::Control(_, ToServer::Approve(approvals)) => {
                for approval in approvals {
                    self.tell(Told::Approve(approval.recall, approval.closes));
                }
            }
            Effect::Control(_, ToServer::Release(releases)) => {
                for release in releases {
                    self.tell(Told::Release(release.object, release.parts));
                }
            }
            Effect::Send { frame, .. } => match &frame.request {
                Request::Query(Query::Close(query::Close { opens })) => {
                    opens.iter().for_each(|open| self.tell(Told::Close(*open)))
                }
                other => panic!("unexpected request: {other:?}"),
            },
            other => panic!("unexpected effect: {other:?}"),
        }
    }

    fn notified(&self, id: EffectId, notice: Notice) {
        let object = |node| {
            let node = self.cache.inodes().node(node);
            node.expect("a known node").handle
        };
        let told = match notice {
            Notice::DropAttrs(node) => Told::DropAttrs(object(node)),
            Notice::ForgetNames if self.kernel.borrow().inside => {
                self.outside.done(id, Noticed::Unable);
                return;
            }
            Notice::ForgetNames => Told::ForgetNames,
            Notice::DropName { dir, name } => Told::DropName(object(dir), name.to_vec()),
            Notice::DropPages { node, offset, len } | Notice::DropWritten { node, offset, len } => {
                let file = object(node);
                let told = Told::DropPages(file, offset, len);
                let mut kernel = self.kernel.borrow_mut();
                kernel.begun += 1;
                if kernel.blocked.contains(&file) {
                    kernel.held.push((file, id, told));
                    return;
                }
                told
            }
            Notice::End => Told::End,
            Notice::Grow { node, size } => Told::Grow(object(node), size),
        };
        self.tell(told);
        self.outside.done(id, Noticed::Done);
    }

    fn tell(&self, told: Told) {
        self.told.borrow_mut().push(told);
    }

    /// Waits for something that needs nobody else, and no time.
    pub fn run<T>(&self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        for _ in 0..1000 {
            let polled = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            self.settle();
            if let Poll::Ready(end) = polled {
                return end;
            }
        }
        panic!("it waits for something");
    }

    /// Begins something that may have to wait.
    pub fn start<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Started<T> {
        let (tell, told) = oneshot::channel();
        self.cx.spawn(async move {
            // The test may have seen enough.
            let _ = tell.send(task.await);
        });
        self.settle();
        Started(told)
    }

    pub fn block(&self, file: Handle) {
        self.kernel.borrow_mut().blocked.insert(file);
    }

    pub fn free(&self, file: &Handle) {
        let free: Vec<_> = {
            let mut kernel = self.kernel.borrow_mut();
            kernel.blocked.remove(file);
            let held = &mut kernel.held;
            held.extract_if(.., |(held, ..)| held == file).collect()
        };
        for (_, id, told) in free {
            self.tell(told);
            self.outside.done(id, Noticed::Done);
        }
        self.settle();
    }

    pub fn begun(&self) -> u64 {
        self.settle();
        self.kernel.borrow().begun
    }

    /// Something is mounted inside the mount.
    pub fn mount_inside(&self) {
        self.kernel.borrow_mut().inside = true;
    }

    pub fn advance(&self, by: Duration) {
        self.pass(by, by);
    }

    /// Time passes that `CLOCK_MONOTONIC` doesn't see.
    pub fn suspend(&self, by: Duration) {
        self.pass(by, Duration::ZERO);
    }

    fn pass(&self, boot: Duration, monotonic: Duration) {
        let now = self.cx.now();
        self.cx.passed(Now {
            boot: now.boot + boot,
            monotonic: now.monotonic + monotonic,
        });
        self.settle();
    }

    pub fn renew(&self) {
        self.cache.renew(self.cx.boot(), TERM, 0);
    }

    /// The kernel knows an object, which is a directory.
    pub fn directory(&self, object: u8) {
        let kind = FileKind::Directory;
        becomes_known(
            &self.cache,
            &Attr {
                kind,
                ..attr(object)
            },
        );
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
        learned.name_for_kernel(&handle(dir), name, Dentry::Object(handle(object)))
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
        self.settle();
    }

    pub fn is_approved(&self, id: u64) -> bool {
        let told = self.told();
        told.iter()
            .any(|t| matches!(t, Told::Approve(recall, _) if *recall == RecallId(id)))
    }
}

/// The kernel knows an object under a name in the root.
fn becomes_known(cache: &Cache, attr: &Attr) {
    let (parent, object) = (NodeId::ROOT, attr.ino as u8);
    let name = format!("{object}");
    let name = name.as_bytes();
    let mut inodes = cache.inodes();
    inodes.refer(handle(object), attr, Place { parent, name });
}

fn welcome() -> Welcome {
    Welcome {
        features: 0,
        term_ms: TERM.as_millis() as u32,
        drift_ppm: 0,
        process: BootId([1; 16]),
        host: BootId([9; 16]),
        standing: Standing::New,
        renews: true,
        root: handle(0),
        root_attr: attr(0),
        read_only: false,
        identity: IdentityPolicy::Trust,
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
