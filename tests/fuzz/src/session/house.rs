//! A server on a directory of its own, and what nobody hostile may reach.

use crate::place::Place;
use fsserver::server::Server;
use fsserver::settings::Settings;
use fsserver::state::{Location, Policy, Role, State};
use fsserver::wire;
use leasefs_protocol::KeyHash;
use leasefs_store::{Options, Store};
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// What stands in the files that nobody hostile may read.
pub const SECRET: &[u8] = b"none of their business whatever they say";
/// The shortest the protocol knows: hostile clients hold others up by as much.
pub const TERM: Duration = Duration::from_secs(1);

/// A running server.
pub struct House {
    place: Place,
    state: Arc<State>,
    server: Arc<Server>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its key.
    pub key: KeyHash,
    task: JoinHandle<bool>,
    before: Vec<Canary>,
}

/// All that can be told of a file that must not change.
#[derive(Debug, PartialEq, Eq)]
struct Canary {
    path: PathBuf,
    content: Option<Vec<u8>>,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    changed: (i64, i64),
}

impl Canary {
    fn look(path: &Path) -> Self {
        let found = fs::symlink_metadata(path).expect("it is there");
        Self {
            path: path.to_owned(),
            content: found.is_file().then(|| fs::read(path).expect("read")),
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            links: found.nlink(),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("mode");
}

/// What everybody may play with, and what only root may.
fn furnish(place: &Place) {
    for folder in [
        "state",
        "outside",
        "export",
        "export/shared",
        "export/private",
    ] {
        fs::create_dir(place.join(folder)).expect("mkdir");
    }
    for file in ["outside/secret", "export/private/secret", "export/closed"] {
        fs::write(place.join(file), SECRET).expect("written");
        mode(&place.join(file), 0o600);
    }
    for file in ["export/a", "export/shared/b"] {
        fs::write(place.join(file), [b'x'; 5000]).expect("written");
        mode(&place.join(file), 0o666);
    }
    symlink("../outside/secret", place.join("export/link")).expect("symlink");
    symlink("private", place.join("export/shared/inside")).expect("symlink");
    mode(&place.join("outside"), 0o755);
    mode(&place.join("export/private"), 0o700);
    mode(&place.join("export/shared"), 0o777);
    mode(&place.join("export"), 0o1777);
}

impl House {
    /// Opens one.
    pub fn open() -> Self {
        let place = Place::new();
        furnish(&place);
        let location = Location::find(Some(&place.join("state"))).expect("a place");
        let dir = location.take().expect("nobody else has it");
        let (secret, mac) = dir.secrets().expect("secrets");
        let identity = dir.identity().expect("an identity");
        let export = place.join("export");
        let id = dir.export_id(&export).expect("an id");
        let store = Store::open(&export, &mac, id, Options::default()).expect("the export");
        let (state, found) = State::open(dir, Policy::RootSquash).expect("the state");
        let state = Arc::new(state);
        let settings = Settings {
            term: TERM,
            io_threads: 2,
            ..Settings::default()
        };
        let records: Arc<State> = Arc::clone(&state);
        let (server, notices) =
            Server::start(settings, Arc::new(store), records, found).expect("a server");
        let any = "127.0.0.1:0".parse().expect("an address");
        let endpoint = leasefs_transport::Server::bind(any, &identity, &secret);
        let endpoint = endpoint.expect("an endpoint");
        let address = endpoint.local_addr();
        let never = std::future::pending();
        let task = tokio::spawn(wire::serve(Arc::clone(&server), notices, endpoint, never));
        let mut house = Self {
            place,
            state,
            server,
            address,
            key: identity.key_hash(),
            task,
            before: Vec::new(),
        };
        house.before = house.canaries();
        house
    }

    fn canaries(&self) -> Vec<Canary> {
        let export = ["export/private/secret", "export/closed"];
        // Without root's rights everybody is one user, who may do what he likes in the export.
        let is_root = rustix::process::geteuid().is_root();
        let export = export.iter().filter(|_| is_root);
        ["outside", "outside/secret"]
            .iter()
            .chain(export)
            .map(|path| Canary::look(&self.place.join(path)))
            .collect()
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// A fresh ticket's secret.
    pub fn ticket(&self, role: Role) -> [u8; 32] {
        self.state.issue(role).expect("a ticket")
    }

    /// What is always true of the lease core.
    pub fn check(&self) {
        if let Err(broken) = self.server.leases.check_invariants() {
            panic!("the lease core: {broken}");
        }
    }

    /// Nothing has happened to what nobody hostile may reach.
    pub fn is_untouched(&self) {
        assert_eq!(self.canaries(), self.before);
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.task.abort();
    }
}
