//! Puts a mount together: the session, the operations, the kernel's side.

use super::job::Job;
use super::state::StateDir;
use super::status::MountStatus;
use crate::cache::{Cache, CacheStatus, DEFAULT_BUDGET, SystemClock};
use crate::fuse::{self, Kernel, MountConfig, Mounted};
use crate::nodes::Nodes;
use crate::ops::{Ops, Owner};
use crate::recall::Engine;
use crate::rpc::{Config, ConnectError, Event, Rpc, Timeout};
use crate::uncommitted::Uncommitted;
use crate::writeback::{Refuge, Writeback};
use leasefs_protocol::control::{IdentityPolicy, Welcome};
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
use leasefs_protocol::ticket::{ServerAddr, Source};
use leasefs_protocol::{KeyHash, RawName, SessionId, printable};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::sync::mpsc;

/// How long `mount` tries to reach the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A mount that works.
pub(super) struct Assembled {
    pub(super) rpc: Rpc,
    pub(super) mounted: Mounted,
    pub(super) writeback: Writeback,
    pub(super) write_back: bool,
    /// `HOST:PORT:/SUBDIR`.
    pub(super) source: String,
    cache: Arc<Cache>,
    state_dir: PathBuf,
    read_only: bool,
}

/// Where to mount from.
struct From {
    server: ServerAddr,
    key: KeyHash,
    ticket: Option<[u8; 32]>,
    subdir: Vec<String>,
}

impl From {
    fn resolve(job: &Job, state: &StateDir) -> Result<Self, String> {
        match job.source.parse().map_err(|e| format!("{e}"))? {
            Source::Ticket(ticket) => Ok(Self {
                server: ticket.server,
                key: ticket.key,
                ticket: Some(ticket.secret),
                subdir: Vec::new(),
            }),
            Source::Enrolled { server, subdir } => Ok(Self {
                key: state.pins().get(&server)?,
                server,
                ticket: None,
                subdir,
            }),
        }
    }

    fn for_people(&self) -> String {
        format!("{}:/{}", self.server, self.subdir.join("/"))
    }
}

/// Connects, enrols if the source is a ticket, and mounts.
pub(super) async fn assemble(
    job: &Job,
    state: &StateDir,
    runtime: Runtime,
) -> Result<Assembled, String> {
    fuse::check_kernel().map_err(|e| e.to_string())?;
    let from = From::resolve(job, state)?;
    let source = from.for_people();
    let cache = Cache::new(Arc::new(SystemClock), DEFAULT_BUDGET);
    let (events, received) = mpsc::unbounded_channel();
    let config = config(job, state, &from, events, cache.clone())?;
    let (rpc, welcome) = Rpc::connect(config)
        .await
        // The server's reasons are its own words.
        .map_err(|e: ConnectError| printable(&e.to_string()).to_string())?;
    if from.ticket.is_some() {
        state.pins().set(&from.server, from.key)?;
    }
    if job.allow.anything() && welcome.identity == IdentityPolicy::Squash {
        rpc.goodbye().await;
        return Err(one_owner(&source));
    }
    let nodes = Arc::new(Nodes::new(welcome.root));
    let kernel = Arc::new(Kernel::new(nodes.clone()));
    let refuge = Refuge {
        folder: state.recovery(),
        source: source.clone(),
    };
    let uncommitted = Arc::new(Uncommitted::default());
    let keeping = (refuge, uncommitted.clone());
    let writeback = Writeback::new(cache.clone(), rpc.clone(), keeping, runtime.clone());
    let server = Arc::new(writeback.clone());
    let engine = Engine::new(cache.clone(), kernel.clone(), server, job.timeout);
    tokio::spawn(engine.clone().run(received));
    let ops = Ops::new(
        rpc.clone(),
        engine,
        (writeback.clone(), job.write_back, uncommitted),
        (nodes, kernel.clone()),
        welcome.identity,
        owner(),
    );
    let mounted = mount(job, &source, &welcome, (ops, kernel), runtime)?;
    Ok(Assembled {
        rpc,
        mounted,
        writeback,
        write_back: job.write_back,
        source,
        cache,
        state_dir: job.state.clone(),
        read_only: job.read_only || welcome.read_only,
    })
}

fn config(
    job: &Job,
    state: &StateDir,
    from: &From,
    events: mpsc::UnboundedSender<Event>,
    renewals: Arc<Cache>,
) -> Result<Config, String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(Config {
        server: from.server.clone(),
        key: from.key,
        identity: state.identity()?,
        ticket: from.ticket,
        session: new_session()?,
        name: format!("{}:{}", host.trim(), job.dir.display()),
        subdir: from
            .subdir
            .iter()
            .map(|part| RawName(part.clone().into_bytes()))
            .collect(),
        drift_ppm: DEFAULT_DRIFT_PPM,
        timeout: job.timeout.map_or(Timeout::Hard, Timeout::After),
        connect_timeout: CONNECT_TIMEOUT,
        events,
        renewals,
    })
}

fn new_session() -> Result<SessionId, String> {
    let mut id = SessionId::default();
    SystemRandom::new()
        .fill(&mut id.0)
        .map_err(|_| "no randomness".to_owned())?;
    Ok(id)
}

fn by_kind(cached: &CacheStatus) -> BTreeMap<String, u64> {
    let objects = ("objects", cached.leases as u64);
    let kinds = cached.parts.iter().copied().chain([objects]);
    kinds
        .map(|(kind, count)| (kind.to_owned(), count))
        .collect()
}

/// Whom the mount belongs to.
fn owner() -> Owner {
    Owner {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    }
}

fn mount(
    job: &Job,
    source: &str,
    welcome: &Welcome,
    (ops, kernel): (Ops, Arc<Kernel>),
    runtime: Runtime,
) -> Result<Mounted, String> {
    let config = MountConfig {
        source: source.to_owned(),
        mountpoint: job.dir.clone(),
        read_only: job.read_only || welcome.read_only,
        identity: welcome.identity,
        allow: job.allow,
    };
    fuse::mount(&config, Arc::new(ops), kernel, runtime)
        .map_err(|e| format!("can't mount on {}: {e}{}", job.dir.display(), hint(&e)))
}

/// Everything would be shown as a program or device of the mounting user, root.
fn one_owner(source: &str) -> String {
    format!(
        "{source} can't be mounted with --suid or --dev: the server makes all users of this machine one \
         (policy squash, or a ticket made with --as). Mount without them"
    )
}

fn hint(error: &std::io::Error) -> &'static str {
    let root = rustix::process::geteuid().is_root();
    match error.kind() {
        ErrorKind::PermissionDenied if !root => {
            " (an unprivileged mount needs fusermount3, /dev/fuse with mode 0666, and a mount \
             point that is your own)"
        }
        ErrorKind::NotFound => " (is /dev/fuse there? `modprobe fuse`)",
        _ => "",
    }
}

impl Assembled {
    /// For `fsclient status`.
    pub(super) fn status(&self) -> MountStatus {
        let cached = self.cache.status();
        MountStatus {
            dir: self.mounted.mountpoint().to_owned(),
            source: self.source.clone(),
            state_dir: self.state_dir.clone(),
            pid: std::process::id(),
            read_only: self.read_only,
            session: self.rpc.status(),
            lease_ms_left: u64::try_from(cached.remaining.as_millis()).unwrap_or(u64::MAX),
            leases: by_kind(&cached),
            recalls_open: cached.recalls as u64,
            cache_answers: cached
                .answers
                .iter()
                .map(|(kind, count)| ((*kind).to_owned(), *count))
                .collect(),
        }
    }
}
