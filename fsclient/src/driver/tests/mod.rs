//! Drivers against a server whose every word the test says, over real connections.

mod connections;
pub(super) mod fake;
mod hostile;
mod outside;

use super::{Driver, Kernel, Refuge, Setup};
use crate::recovery::Recovery;
use crate::session::{self, ConnectError};
use bytes::Bytes;
use fake::{Fake, Session, attr, handle, soon};
use leasefs_client::call::At;
use leasefs_client::{
    Answer, Call, Config, Event, Memory, NodeId, Notice, Noticed, Owner, Timeout,
};
use leasefs_protocol::control::{IdentityPolicy, Standing, ToClient, ToServer};
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
use leasefs_protocol::ticket::ServerAddr;
use leasefs_protocol::{
    Attr, FileKind, FsStat, Grant, Mode, OpenId, OpenToken, Parts, Refusal, Response, SessionId,
    Stamp, answer,
};
use leasefs_transport::Identity;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::sync::oneshot;

type Told = Result<Answer, Refusal>;
type Tested = Driver<oneshot::Sender<Told>>;

const PATIENT: Timeout = Timeout::After(Duration::from_secs(60));

/// One that knows nothing.
struct NoKernel;

impl Kernel for NoKernel {
    fn tell(&self, _: &Notice) -> Noticed {
        Noticed::Done
    }

    fn can_forget_names(&self) -> bool {
        true
    }

    fn end_process(&self) -> ! {
        panic!("the core has panicked")
    }
}

/// Blocks where a kernel may.
struct Blocking(Mutex<mpsc::Receiver<()>>);

impl Blocking {
    /// With what lets it go on, when it is dropped.
    fn new() -> (Arc<Self>, mpsc::Sender<()>) {
        let (free, blocked) = mpsc::channel();
        (Arc::new(Self(Mutex::new(blocked))), free)
    }
}

impl Kernel for Blocking {
    fn tell(&self, notice: &Notice) -> Noticed {
        if !notice.never_blocks() {
            // Nothing is ever sent: an error ends it.
            let _ = self.0.lock().map(|free| free.recv());
        }
        Noticed::Done
    }

    fn can_forget_names(&self) -> bool {
        true
    }

    fn end_process(&self) -> ! {
        NoKernel.end_process()
    }
}

/// A folder of a test, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-driver-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn recovery(&self) -> Recovery {
        Recovery::of(&self.0, None)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It isn't there unless something was kept.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn session_config(fake: &Fake) -> Arc<session::Config> {
    let address = fake.server.local_addr();
    Arc::new(session::Config {
        servers: ServerAddr {
            host: address.ip().to_string(),
            port: address.port(),
        }
        .into(),
        key: fake.identity.key_hash(),
        identity: Identity::generate().expect("identity"),
        ticket: Some([5; 32]),
        session: SessionId([3; 16]),
        name: "test".into(),
        subdir: Vec::new(),
        drift_ppm: DEFAULT_DRIFT_PPM,
        connect_timeout: Duration::from_secs(1),
    })
}

fn core_config(timeout: Timeout) -> Config {
    Config {
        root: handle(0),
        identity: IdentityPolicy::Squash,
        owner: Owner { uid: 0, gid: 0 },
        buffers: true,
        timeout,
        memory: Memory::default(),
        groups: |_| Vec::new(),
        can_forget_names: false,
        restless_for: Duration::ZERO,
        fault: None,
    }
}

/// A driver with its session.
struct Client {
    driver: Arc<Tested>,
    scratch: Scratch,
}

async fn connect_with(fake: &Fake, timeout: Timeout, kernel: Arc<dyn Kernel>) -> (Client, Session) {
    let config = session_config(fake);
    let (link, session) = tokio::join!(session::first(&config), fake.welcome(Standing::New, 1));
    let scratch = Scratch::new();
    let setup = Setup {
        core: core_config(timeout),
        kernel,
        refuge: Refuge {
            recovery: scratch.recovery(),
            source: "test:/".into(),
        },
        runtime: Runtime::current(),
        session: config,
    };
    let driver = Driver::start(setup, link.expect("connected")).expect("started");
    let client = Client { driver, scratch };
    (client, session)
}

async fn connect(fake: &Fake, timeout: Timeout) -> (Client, Session) {
    connect_with(fake, timeout, Arc::new(NoKernel)).await
}

impl Client {
    fn call(&self, call: Call) -> oneshot::Receiver<Told> {
        let (waiter, answer) = oneshot::channel();
        self.driver.drive(Event::Call {
            waiter,
            asker: Default::default(),
            call,
        });
        answer
    }

    /// Waits until the core knows that its connection is gone.
    async fn disconnected(&self) {
        self.becomes("disconnected").await;
    }

    async fn becomes(&self, state: &str) {
        soon(state, async {
            while self.driver.status().state != state {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn answered(answer: oneshot::Receiver<Told>) -> Told {
    soon("the answer", answer)
        .await
        .expect("each call is answered")
}

/// A request that has no state and no cache.
fn statfs() -> Call {
    Call::StatFs { node: NodeId::ROOT }
}

fn removal() -> Call {
    Call::Unlink {
        parent: NodeId::ROOT,
        name: b"x"[..].into(),
    }
}

fn space() -> Response {
    Response::FsStat(FsStat {
        blocks: 1,
        bfree: 1,
        bavail: 1,
        files: 1,
        ffree: 1,
        bsize: 4096,
        frsize: 4096,
        namelen: 255,
    })
}

fn is_space(told: &Told) -> bool {
    matches!(told, Ok(Answer::FsStat(_)))
}

fn file() -> Attr {
    Attr {
        ino: 5,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        size: 4,
        ..attr()
    }
}

fn grant(parts: Parts, stamp: u64) -> Vec<Grant> {
    vec![Grant {
        object: handle(1),
        parts,
        mode: Mode::Read,
        stamp: Stamp(stamp),
    }]
}

/// A page of a file is in the kernel, under a lease.
async fn page_in_kernel(client: &Client, session: &mut Session) {
    let found = client.call(Call::Lookup {
        parent: NodeId::ROOT,
        name: b"x"[..].into(),
    });
    let object = Response::Object(answer::Object {
        handle: handle(1),
        attr: file(),
    });
    let asked = session.asked().await;
    asked.grant(object, Bytes::new(), grant(Parts::ATTRS, 1));
    let Ok(Answer::Found(Some(entry))) = answered(found).await else {
        panic!("no entry")
    };
    let opened = client.call(Call::Open {
        node: entry.node.id,
        flags: 0,
    });
    let open = Response::Opened(answer::Opened {
        open: OpenId(7),
        token: OpenToken(vec![7]),
        attr: file(),
    });
    session.asked().await.answer(Ok(open), Bytes::new());
    let Ok(Answer::Opened(opened)) = answered(opened).await else {
        panic!("no open")
    };
    let at = At {
        fh: opened.fh,
        offset: 0,
    };
    let page = client.call(Call::ReadPages { at, len: 4096 });
    let asked = session.asked().await;
    let data = Bytes::from_static(b"data");
    asked.grant(Response::Done, data, grant(Parts::ALL, 2));
    assert!(matches!(answered(page).await, Ok(Answer::Bytes(_))));
}
