//! All of a mount but the kernel, which takes whatever it is told.

use super::server::Hostile;
use crate::place::Place;
use fsclient::cache::{Cache, SystemClock};
use fsclient::nodes::{NodeId, Nodes};
use fsclient::ops::{KernelSide, Ops, Owner};
use fsclient::recall::{Engine, KernelCache};
use fsclient::recovery::Folder;
use fsclient::rpc::{Config, Rpc, Timeout};
use fsclient::uncommitted::Uncommitted;
use fsclient::writeback::{Refuge, Writeback};
use leasefs_protocol::ticket::ServerAddr;
use leasefs_protocol::{Handle, SessionId};
use leasefs_transport::Identity;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::sync::mpsc;

/// How long calls wait for a server that doesn't answer.
pub const TIMEOUT: Duration = Duration::from_millis(250);
/// Memory for the cache, in bytes.
const BUDGET: usize = 1 << 20;

/// A mount.
pub struct Mount {
    /// What its users call.
    pub ops: Arc<Ops>,
    /// Its session.
    pub rpc: Rpc,
    _recovery: Place,
}

struct Kernel;

impl KernelCache for Kernel {
    fn drop_attrs(&self, _: &Handle) -> io::Result<()> {
        Ok(())
    }

    fn drop_pages(&self, _: &Handle, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn can_forget_names(&self) -> bool {
        true
    }

    fn forget_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn drop_name(&self, _: &Handle, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

impl KernelSide for Kernel {
    fn is_calm(&self) -> bool {
        true
    }

    fn grow(&self, _: NodeId, _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Mount {
    /// Mounts what the server serves; `None` if the client will not have it.
    pub async fn connect(server: &Hostile) -> Option<Self> {
        let cache = Cache::new(Arc::new(SystemClock), BUDGET);
        let (events, received) = mpsc::unbounded_channel();
        let config = Config {
            server: ServerAddr {
                host: server.address.ip().to_string(),
                port: server.address.port(),
            },
            key: server.identity.key_hash(),
            identity: Identity::generate().expect("an identity"),
            ticket: None,
            session: SessionId([1; 16]),
            name: "fuzz".to_owned(),
            subdir: Vec::new(),
            drift_ppm: 1000,
            timeout: Timeout::After(TIMEOUT),
            connect_timeout: Duration::from_secs(2),
            events,
            renewals: cache.clone(),
        };
        let (rpc, welcome) = Rpc::connect(config).await.ok()?;
        let recovery = Place::new();
        let nodes = Arc::new(Nodes::new(welcome.root));
        let refuge = Refuge {
            folder: Folder::at(recovery.join("recovery")),
            source: "fuzz:/".to_owned(),
        };
        let uncommitted = Arc::new(Uncommitted::default());
        let keeping = (refuge, uncommitted.clone());
        let runtime = Runtime::current();
        let writeback = Writeback::new(cache.clone(), rpc.clone(), keeping, runtime);
        let kernel = Arc::new(Kernel);
        let told = Arc::new(writeback.clone());
        let engine = Engine::new(cache.clone(), kernel.clone(), told, Some(TIMEOUT));
        tokio::spawn(engine.clone().run(received));
        let owner = Owner { uid: 0, gid: 0 };
        let ops = Ops::new(
            rpc.clone(),
            engine,
            (writeback, true, uncommitted),
            (nodes, kernel),
            welcome.identity,
            owner,
        );
        Some(Self {
            ops: Arc::new(ops),
            rpc,
            _recovery: recovery,
        })
    }
}
