//! A server over loopback QUIC on a directory of its own, and a client that speaks the wire raw.

#![allow(dead_code)]

pub mod client;
pub mod memory;
pub mod process;

use fsserver::records::Found;
use fsserver::server::Server;
use fsserver::settings::Settings;
use leasefs_protocol::{BootId, ExportId, KeyHash};
use leasefs_store::{MacKey, Options, Store};
use leasefs_transport::{EndpointSecret, Identity};
use memory::Memory;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A directory that goes with its owner.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fsserver-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What outlives one life of a server.
pub struct House {
    pub dir: TempDir,
    pub records: Arc<Memory>,
    pub identity: Identity,
    secret: EndpointSecret,
}

impl House {
    pub fn new() -> Self {
        Self {
            dir: TempDir::new(),
            records: Arc::default(),
            identity: Identity::generate().expect("an identity"),
            secret: EndpointSecret::new([7; 32]),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub async fn serve(&self) -> Running {
        self.serve_with(Duration::from_secs(10), |_| ()).await
    }

    /// Begins a life of the server.
    pub async fn serve_with(&self, term: Duration, adjust: impl FnOnce(&mut Found)) -> Running {
        let export = ExportId([1; 8]);
        let key = MacKey::new([9; 32]);
        let store = Store::open(self.dir.path(), &key, export, Options::default());
        let mut found = self.records.found();
        found.process = BootId(rand16());
        adjust(&mut found);
        let settings = Settings {
            term,
            ..Settings::default()
        };
        let (server, notices) = Server::start(
            settings,
            Arc::new(store.expect("the export")),
            Arc::clone(&self.records) as Arc<_>,
            found,
        )
        .expect("a server");
        let any = "127.0.0.1:0".parse().expect("an address");
        let endpoint = leasefs_transport::Server::bind(any, &self.identity, &self.secret);
        let endpoint = endpoint.expect("an endpoint");
        let address = endpoint.local_addr();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = fsserver::wire::serve(Arc::clone(&server), notices, endpoint, async {
            let _ = stopped.await;
        });
        Running {
            task: tokio::spawn(serving),
            server,
            address,
            key: self.identity.key_hash(),
            stop: Some(stop),
        }
    }
}

fn rand16() -> [u8; 16] {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&(NEXT.fetch_add(1, Ordering::Relaxed) * 0x0101).to_le_bytes());
    bytes
}

/// One life of a server.
pub struct Running {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    pub key: KeyHash,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<bool>,
}

impl Running {
    /// Ends it in an orderly way; whether that was complete.
    pub async fn stop(mut self) -> bool {
        self.stop.take();
        (&mut self.task).await.expect("the server's task")
    }

    /// Ends it as a crash of the process would.
    pub fn crash(self) {
        self.task.abort();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
