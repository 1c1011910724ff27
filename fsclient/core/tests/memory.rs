//! How much memory a cached name takes.

use bytes::Bytes;
use leasefs_client::call::Fh;
use leasefs_client::{
    Action, Answer, Asker, Call, ClientCore, Config, ConnectionId, Effect, Event, Memory, NodeId,
    Now, Owner, Timeout,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::answer::{Entries, Object, Opened};
use leasefs_protocol::control::{IdentityPolicy, Standing, Welcome};
use leasefs_protocol::limits::MAX_LISTING_ENTRIES;
use leasefs_protocol::{
    Attr, BootId, DirEntry, FileKind, Grant, Handle, Mode, OpenId, OpenToken, Parts, Query,
    RawName, Reply, Request, RequestFrame, Response, Stamp, query,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const NAMES: u64 = 100_000;
/// What one may take, in bytes: of it, of what it denotes, and of the lease, as the allocator was asked for them.
const EACH: usize = 604;

/// Counts what is in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Of the root, which is the zeroth, or of one of its entries. As long as a server's are.
fn handle(number: u64) -> Handle {
    let mut bytes = [7; 57];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Handle::new(&bytes).expect("short")
}

fn attr(number: u64) -> Attr {
    Attr {
        ino: number + 10,
        kind: match number {
            0 => FileKind::Directory,
            _ => FileKind::File,
        },
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size: number,
        blocks: 8,
        blksize: 4096,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        xattrs: false,
    }
}

fn name(number: u64) -> Vec<u8> {
    format!("file-{number:06}").into_bytes()
}

fn entry(number: u64, node: bool) -> DirEntry {
    let attr = attr(number);
    DirEntry {
        name: RawName(name(number)),
        ino: attr.ino,
        kind: attr.kind,
        cookie: number,
        node: node.then_some((handle(number), attr)),
    }
}

fn grant(number: u64, parts: Parts) -> Grant {
    Grant {
        object: handle(number),
        parts,
        mode: Mode::Read,
        stamp: Stamp(2),
    }
}

/// What the server says, and grants.
fn said(request: &Request) -> (Response, Vec<Grant>) {
    let Request::Query(query) = request else {
        panic!("a change: {request:?}")
    };
    let names = grant(0, Parts::NAMES);
    match query {
        Query::Open(_) => {
            let opened = Opened {
                open: OpenId(1),
                token: OpenToken(vec![1]),
                attr: attr(0),
            };
            (Response::Opened(opened), vec![grant(0, Parts::ATTRS)])
        }
        Query::ReadDir(query::ReadDir { cookie, nodes, .. }) => {
            let last = NAMES.min(cookie + MAX_LISTING_ENTRIES as u64);
            let entries: Vec<_> = (cookie + 1..=last).map(|n| entry(n, *nodes)).collect();
            let of_nodes = (cookie + 1..=last).filter(|_| *nodes);
            let mut grants = vec![names, grant(0, Parts::LISTING)];
            grants.extend(of_nodes.map(|n| grant(n, Parts::ATTRS)));
            let end = last == NAMES;
            (Response::Entries(Entries { entries, end }), grants)
        }
        Query::Lookup(query::Lookup { name, .. }) => {
            let number = std::str::from_utf8(&name.0[5..]).expect("a number");
            let number = number.parse().expect("a number");
            let (handle, attr) = (handle(number), attr(number));
            let grants = vec![names, grant(number, Parts::ATTRS)];
            (Response::Object(Object { handle, attr }), grants)
        }
        Query::Close(_) => (Response::Done, Vec::new()),
        other => panic!("not asked for: {other:?}"),
    }
}

/// A client, and the server that it asks.
struct Mount {
    core: ClientCore<()>,
    now: Now,
}

impl Mount {
    fn new() -> Self {
        let start = BootTime::ZERO + Duration::from_secs(1000);
        let now = Now {
            boot: start,
            monotonic: start,
        };
        let config = Config {
            root: handle(0),
            identity: IdentityPolicy::Trust,
            owner: Owner { uid: 0, gid: 0 },
            buffers: true,
            timeout: Timeout::After(Duration::from_secs(60)),
            memory: Memory::default(),
            groups: |_| Vec::new(),
            can_forget_names: true,
            restless_for: Duration::from_secs(600),
            fault: None,
        };
        let core = ClientCore::new(config, now);
        let mut mount = Self { core, now };
        mount.tell(Event::Connected {
            connection: ConnectionId(1),
            welcome: Box::new(welcome()),
            sent: now.boot,
        });
        mount
    }

    /// Something happens; what was answered when all has been done that follows.
    fn tell(&mut self, event: Event<()>) -> Option<Answer> {
        let (mut events, mut answer) = (VecDeque::from([event]), None);
        while let Some(event) = events.pop_front() {
            self.core.handle(self.now, event);
            while let Some(action) = self.core.poll_action() {
                match action {
                    Action::Answer((), outcome) => answer = Some(outcome.expect("not refused")),
                    Action::Do(Effect::Send { frame, .. }) => events.push_back(replied(&frame)),
                    Action::Do(_) => {}
                }
            }
        }
        answer
    }

    fn call(&mut self, call: Call) -> Answer {
        let asker = Asker::default();
        let waiter = ();
        let answer = self.tell(Event::Call {
            waiter,
            asker,
            call,
        });
        answer.expect("answered")
    }

    /// As `ls -l` does it.
    fn list(&mut self) {
        let fh = match self.call(Call::OpenDir { node: NodeId::ROOT }) {
            Answer::OpenedDir(fh) => fh,
            other => panic!("not opened: {other:?}"),
        };
        self.read_to_end(fh);
        for number in 1..=NAMES {
            let parent = NodeId::ROOT;
            let name = name(number).into();
            let found = match self.call(Call::Lookup { parent, name }) {
                Answer::Found(Some(entry)) => entry.node.id,
                other => panic!("not found: {other:?}"),
            };
            self.call(Call::GetAttr { node: found });
        }
        self.call(Call::ReleaseDir { fh });
    }

    fn read_to_end(&mut self, fh: Fh) {
        let pages = NAMES.div_ceil(MAX_LISTING_ENTRIES as u64);
        for page in 0..pages {
            // Two are the directory's own.
            let offset = match page * MAX_LISTING_ENTRIES as u64 {
                0 => 0,
                behind => behind + 2,
            };
            self.call(Call::ReadDir {
                fh,
                offset,
                plus: None,
            });
        }
    }
}

fn replied(frame: &RequestFrame) -> Event<()> {
    let (response, grants) = said(&frame.request);
    Event::Reply {
        connection: ConnectionId(1),
        reply: Reply {
            id: frame.id,
            renews: true,
            stamp: Stamp(2),
            grants,
            touched: Vec::new(),
            room: None,
            result: Ok(response),
        },
        payload: Bytes::new(),
    }
}

fn welcome() -> Welcome {
    Welcome {
        features: 0,
        term_ms: 10_000,
        drift_ppm: 1_000,
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

#[test]
fn a_cached_name_takes_little_memory() {
    let mut mount = Mount::new();
    let before = IN_USE.load(Ordering::Relaxed);
    mount.list();
    let each = (IN_USE.load(Ordering::Relaxed) - before) / NAMES as usize;
    let cached = mount.core.cache_status().memory.cached / NAMES as usize;
    println!("{each} bytes a name, which count as {cached}");
    assert!(each <= EACH, "{each} bytes");
}
