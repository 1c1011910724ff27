//! A server that has no more places for us.

use super::super::names::NewMode;
use super::super::open::Opened;
use super::super::{Ask, Asker, Ops, Owner};
use crate::cache::{Cache, SystemClock, fixtures};
use crate::fuse::Kernel;
use crate::nodes::{NodeId, Nodes};
use crate::recall::Engine;
use crate::recovery::Folder;
use crate::rpc::Rpc;
use crate::rpc::tests::fake::{Asked, Fake, Session, handle};
use crate::rpc::tests::{PATIENT, config_with};
use crate::uncommitted::{Uncommitted, Wrote};
use crate::writeback::{Refuge, Writeback};
use bytes::Bytes;
use leasefs_lease::client::{Run, Tenure};
use leasefs_protocol::control::{IdentityPolicy, Standing};
use leasefs_protocol::{
    Attr, BootId, Grant, Mode, OpenId, OpenToken, Parts, Refusal, Request, Response, Stamp, Version,
};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A mount without a kernel.
struct World {
    ops: Arc<Ops>,
    nodes: Arc<Nodes>,
    writeback: Writeback,
    session: Session,
    _fake: Fake,
}

fn ask() -> Ask {
    Ask::new(Asker {
        uid: 0,
        gid: 0,
        pid: 0,
    })
}

fn attr(file: u8) -> Attr {
    Attr {
        ino: u64::from(file) + 1,
        ..fixtures::attr(0)
    }
}

fn token() -> OpenToken {
    OpenToken(vec![1])
}

async fn world() -> World {
    let fake = Fake::start();
    let cache = Cache::new(Arc::new(SystemClock), 1 << 20);
    let (config, events) = config_with(&fake, PATIENT, cache.clone());
    let (connected, session) = tokio::join!(Rpc::connect(config), fake.welcome(Standing::New, 1));
    let (rpc, welcome) = connected.expect("connected");
    let nodes = Arc::new(Nodes::new(welcome.root));
    let kernel = Arc::new(Kernel::new(nodes.clone()));
    let refuge = Refuge {
        // Nothing is lost in here.
        folder: Folder::at("/nonexistent".into()),
        source: String::new(),
    };
    let uncommitted = Arc::new(Uncommitted::default());
    let runtime = tokio::runtime::Handle::current();
    let keeping = (refuge, uncommitted.clone());
    let writeback = Writeback::new(cache.clone(), rpc.clone(), keeping, runtime);
    let engine = Engine::new(cache, kernel.clone(), Arc::new(writeback.clone()), None);
    tokio::spawn(engine.clone().run(events));
    let ops = Ops::new(
        rpc,
        engine,
        (writeback.clone(), true, uncommitted),
        (nodes.clone(), kernel),
        IdentityPolicy::Squash,
        Owner { uid: 0, gid: 0 },
    );
    World {
        ops: Arc::new(ops),
        nodes,
        writeback,
        session,
        _fake: fake,
    }
}

impl World {
    fn node(&self, file: u8) -> NodeId {
        self.nodes.refer(handle(file), &attr(file)).id
    }

    fn open(&self, file: u8, flags: i32) -> JoinHandle<Result<Opened, Refusal>> {
        let (ops, node) = (self.ops.clone(), self.node(file));
        tokio::spawn(async move { ops.open(&ask(), node, flags as u32).await })
    }

    /// The server is asked for this open, and grants it with the lease that keeps it.
    async fn grants(&mut self, file: u8) {
        let asked = self.asks_for_open(file).await;
        let open = Response::Opened {
            open: OpenId(file.into()),
            token: token(),
            attr: attr(file),
        };
        let lease = Grant {
            object: handle(file),
            parts: Parts::ATTRS,
            mode: Mode::Read,
            stamp: Stamp(file.into()),
        };
        asked.grant(Ok(open), vec![lease]);
    }

    async fn refuses(&mut self, file: u8) {
        let asked = self.asks_for_open(file).await;
        asked.answer(Err(Refusal::TooMany), Bytes::new());
    }

    async fn asks_for_open(&mut self, file: u8) -> Asked {
        let asked = self.session.asked().await;
        let request = &asked.frame.request;
        assert!(
            matches!(request, Request::Open { object, .. } if *object == handle(file)),
            "{request:?}"
        );
        asked
    }

    async fn asks_and_is_done(&mut self, request: Request) {
        let asked = self.session.asked().await;
        assert_eq!(asked.frame.request, request);
        asked.answer(Ok(Response::Done), Bytes::new());
    }

    async fn is_told_to_close(&mut self, file: u8) {
        let opens = vec![OpenId(file.into())];
        self.asks_and_is_done(Request::Close { opens }).await;
    }

    /// A file that was open, and is kept open at the server.
    async fn keeps(&mut self, file: u8) {
        let open = self.open(file, libc::O_RDONLY);
        self.grants(file).await;
        self.ops
            .release(open.await.expect("task").expect("open").fh);
        let again = self.ops.open_cached(ask().asker, self.node(file), 0);
        self.ops.release(again.expect("kept").fh);
    }
}

#[tokio::test]
async fn who_has_no_place_for_an_open_gives_back_those_that_nobody_uses_before_anybody_is_refused()
{
    let mut world = world().await;
    world.keeps(1).await;
    let open = world.open(2, libc::O_RDONLY);
    world.refuses(2).await;
    world.is_told_to_close(1).await;
    world.grants(2).await;
    open.await.expect("task").expect("an open");

    let open = world.open(3, libc::O_WRONLY);
    world.refuses(3).await;
    let refused = open.await.expect("task").map(|_| ());
    assert_eq!(refused, Err(Refusal::TooMany), "all are in use");
    assert!(world.session.asked.try_recv().is_err());
}

#[tokio::test]
async fn a_create_that_finds_no_place_gives_back_opens_that_nobody_uses_and_is_made_once() {
    let mut world = world().await;
    world.keeps(1).await;
    let ops = world.ops.clone();
    let create = tokio::spawn(async move {
        let mode = NewMode {
            mode: 0o644,
            umask: 0,
        };
        ops.create(&ask(), NodeId::ROOT, b"new", mode, libc::O_WRONLY as u32)
            .await
    });
    let refused = world.session.asked().await;
    refused.answer(Err(Refusal::TooMany), Bytes::new());
    world.is_told_to_close(1).await;
    let again = world.session.asked().await;
    assert_eq!(again.frame.request, refused.frame.request);
    assert_ne!(again.seq(), refused.seq(), "the refusal was its answer");
    let created = Response::Created {
        handle: handle(2),
        attr: attr(2),
        open: OpenId(2),
        token: token(),
    };
    again.answer(Ok(created), Bytes::new());
    create.await.expect("task").expect("created");
}

#[tokio::test]
async fn who_has_no_place_for_an_open_commits_what_keeps_written_files_open_at_the_server() {
    let mut world = world().await;
    let open = world.open(1, libc::O_WRONLY);
    world.grants(1).await;
    let opened = open.await.expect("task").expect("open");
    let wrote = Wrote {
        object: handle(1),
        run: Run {
            offset: 0,
            data: Bytes::from_static(b"written"),
        },
        version: Version::default(),
        writer: fixtures::writer(1),
        writers: [fixtures::writer(1)].into(),
        path: None,
        tenure: Some(Tenure::default()),
        durable: false,
    };
    assert!(world.writeback.wrote(wrote, BootId([9; 16])));
    world.ops.release(opened.fh);
    let open = world.open(2, libc::O_RDONLY);
    world.refuses(2).await;
    world.asks_and_is_done(Request::CommitAll).await;
    world.is_told_to_close(1).await;
    world.grants(2).await;
    open.await.expect("task").expect("an open");
}
