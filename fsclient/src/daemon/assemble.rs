//! Puts a mount together: the session, its core, the kernel's side.

use super::job::Job;
use super::metrics::{self, Measured};
use super::mounts;
use super::pins::{Pinned, not_enrolled};
use super::state::StateDir;
use super::status::{Dirty, MountStatus};
use crate::driver::{Refuge, Setup, caller};
use crate::faults::{Fault, fault};
use crate::fuse::{self, Driver, Kernel, MountConfig, Mounted};
use crate::session::{self, ConnectError, Link};
use leasefs_client::{CacheStatus, Config, Memory, Owner, Timeout};
use leasefs_metrics::Page;
use leasefs_protocol::control::{IdentityPolicy, Welcome};
use leasefs_protocol::latency::millis;
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
use leasefs_protocol::ticket::{Addresses, Source};
use leasefs_protocol::{Attr, RawName, printable};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle as Runtime;

/// How long a name is asked for each time once it was replaced or removed: longer than a program that saves its files, or
/// takes a lock by one, is likely to pause.
const RESTLESS_FOR: Duration = Duration::from_secs(600);
/// How long `mount` tries to reach the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A mount that works.
pub(super) struct Assembled {
    pub(super) driver: Arc<Driver>,
    pub(super) mounted: Mounted,
    pub(super) write_back: bool,
    /// `HOST:PORT:/SUBDIR`.
    pub(super) source: String,
    state_dir: PathBuf,
    read_only: bool,
    /// It is being unmounted, or has been.
    pub(super) unmounting: AtomicBool,
}

/// Where to mount from.
struct From {
    servers: Addresses,
    key: Pinned,
    ticket: Option<[u8; 32]>,
    subdir: Vec<String>,
}

impl From {
    fn resolve(job: &Job, state: &StateDir) -> Result<Self, String> {
        match job.source.parse().map_err(|e| format!("{e}"))? {
            Source::Ticket(ticket) => Ok(Self {
                servers: ticket.servers,
                key: Pinned::Key(ticket.key),
                ticket: Some(ticket.secret),
                subdir: Vec::new(),
            }),
            Source::Enrolled { server, subdir } => Ok(Self {
                key: state.pins().get(&server)?,
                servers: server.into(),
                ticket: None,
                subdir,
            }),
        }
    }

    /// Connects. Of several keys that the server may have it shows one, and is asked again to prove that it is its own.
    async fn connect(&self, config: &mut session::Config) -> Result<Link, String> {
        let mut link = session::first(config).await;
        if let (Err(error), Pinned::AnyOf(known)) = (&link, &self.key)
            && let Some(found) = error.other_key()
        {
            if !known.contains(&found) {
                return Err(not_enrolled(self.servers.first()));
            }
            config.key = found;
            link = session::first(config).await;
        }
        let link = link.map_err(for_people)?;
        config.servers.prefer(link.server());
        Ok(link)
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
    let mut config = session_config(job, state, &from)?;
    let link = from.connect(&mut config).await?;
    let source = source(&config, &from.subdir);
    let (reached, key) = (config.servers.first().clone(), config.key);
    let config = Arc::new(config);
    let welcome = link.welcome().clone();
    let kernel = Arc::new(Kernel::default());
    let setup = Setup {
        core: core_config(job, &welcome),
        kernel: kernel.clone(),
        refuge: Refuge {
            recovery: state.recovery(),
            source: source.clone(),
        },
        runtime,
        session: config,
    };
    let driver = begin(setup, link)?;
    state.pins().set(&reached, key)?;
    let mounted = fits(job, &welcome, &source)
        .and_then(|()| mount(job, &source, &welcome, (driver.clone(), kernel)));
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            // Or the server would keep its session for an hour.
            driver.goodbye().await;
            return Err(error);
        }
    };
    Ok(Assembled {
        driver,
        mounted,
        write_back: job.write_back,
        source,
        state_dir: job.state.clone(),
        read_only: job.read_only || welcome.read_only,
        unmounting: AtomicBool::new(false),
    })
}

/// `HOST:PORT:/SUBDIR`.
fn source(config: &session::Config, subdir: &[String]) -> String {
    format!("{}:/{}", config.servers.first(), subdir.join("/"))
}

/// The server's reasons are its own words.
fn for_people(error: impl std::fmt::Display) -> String {
    printable(&error.to_string()).to_string()
}

/// The session stands, unless what the server has said is no good.
fn begin(setup: Setup, link: Link) -> Result<Arc<Driver>, String> {
    let server = setup.session.servers.first().clone();
    let driver = Driver::start(setup, link).map_err(|e| format!("can't start: {e}"))?;
    match driver.session_status().trouble {
        None => Ok(driver),
        Some(reason) => Err(for_people(ConnectError::Broken { server, reason })),
    }
}

fn core_config(job: &Job, welcome: &Welcome) -> Config {
    Config {
        root: welcome.root,
        identity: welcome.identity,
        owner: owner(job),
        buffers: job.write_back,
        timeout: job.timeout.map_or(Timeout::Hard, Timeout::After),
        memory: Memory::new(job.memory),
        groups: caller::groups,
        can_forget_names: false,
        restless_for: RESTLESS_FOR,
        fault: match fault() {
            Some(Fault::InCore(fault)) => Some(fault),
            Some(Fault::NoInvalidation) | None => None,
        },
    }
}

fn session_config(job: &Job, state: &StateDir, from: &From) -> Result<session::Config, String> {
    Ok(session::Config {
        servers: from.servers.clone(),
        key: match &from.key {
            Pinned::Key(key) => *key,
            // Which one, its first answer says.
            Pinned::AnyOf(known) => known.first().copied().unwrap_or_default(),
        },
        identity: state.identity()?,
        ticket: from.ticket,
        session: session::new_session()?,
        name: format!("{}:{}", own_name(), job.dir.display()),
        subdir: from
            .subdir
            .iter()
            .map(|part| RawName(part.clone().into_bytes()))
            .collect(),
        drift_ppm: DEFAULT_DRIFT_PPM,
        connect_timeout: CONNECT_TIMEOUT,
    })
}

/// This client's, for the server's people: its host, and whose it is if it isn't root's.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = rustix::process::geteuid();
    match user.is_root() {
        true => host.trim().to_owned(),
        false => {
            let name = std::env::var("USER").unwrap_or_else(|_| user.as_raw().to_string());
            format!("{name}@{}", host.trim())
        }
    }
}

fn by_kind(cached: &CacheStatus) -> BTreeMap<String, u64> {
    let objects = ("objects", cached.leases as u64);
    let kinds = cached.parts.iter().copied().chain([objects]);
    kinds
        .map(|(kind, count)| (kind.to_owned(), count))
        .collect()
}

/// Whom the mount belongs to.
fn owner(job: &Job) -> Owner {
    Owner {
        uid: job.uid.unwrap_or(rustix::process::getuid().as_raw()),
        gid: job.gid.unwrap_or(rustix::process::getgid().as_raw()),
    }
}

fn mount(
    job: &Job,
    source: &str,
    welcome: &Welcome,
    (driver, kernel): (Arc<Driver>, Arc<Kernel>),
) -> Result<Mounted, String> {
    let config = MountConfig {
        source: mounts::source_shown(&as_written(job, source)),
        mountpoint: job.dir.clone(),
        read_only: job.read_only || welcome.read_only,
        identity: welcome.identity,
        allow: job.allow,
    };
    fuse::mount(&config, driver, kernel).map_err(|error| {
        // That of fusermount3 is a line.
        let reason = error.to_string();
        let (dir, hint) = (job.dir.display(), hint(error.kind(), &reason));
        format!("can't mount on {dir}: {}{hint}", reason.trim_end())
    })
}

/// The source as it was given, so that `mount -a` finds it mounted. A ticket is nobody's business.
fn as_written(job: &Job, source: &str) -> String {
    match job.source.parse() {
        Ok(Source::Enrolled { .. }) => job.source.clone(),
        Ok(Source::Ticket(_)) | Err(_) => source.to_owned(),
    }
}

/// Whether what was asked for goes with the server's policy.
fn fits(job: &Job, welcome: &Welcome, source: &str) -> Result<(), String> {
    if is_served(&job.dir, &welcome.root_attr) {
        return Err(format!(
            "{} is the directory of {source} itself: mounted there it would hide what the server serves, which then can't \
             restart. Mount it elsewhere",
            job.dir.display()
        ));
    }
    let one_owner = welcome.identity == IdentityPolicy::Squash;
    if one_owner && job.allow.anything() {
        // Everything would be shown as a program or device of the mounting user, root.
        return Err(format!(
            "{source} can't be mounted with --suid or --dev: the server makes all users of this machine one \
             (policy squash, or a ticket made with --as). Mount without them"
        ));
    }
    if !one_owner && (job.uid.is_some() || job.gid.is_some()) {
        return Err(format!(
            "{source} shows files as their owners', so --uid and --gid have no meaning there: mount without them"
        ));
    }
    Ok(())
}

/// Whether a directory of this machine is the one that is served, as far as its number and dates tell.
fn is_served(dir: &Path, root: &Attr) -> bool {
    fs::metadata(dir).is_ok_and(|here| {
        let (secs, nanos) = (root.ctime.seconds, i64::from(root.ctime.nanos));
        here.ino() == root.ino && here.ctime() == secs && here.ctime_nsec() == nanos
    })
}

fn hint(kind: ErrorKind, reason: &str) -> &'static str {
    let root = rustix::process::geteuid().is_root();
    let denied = reason.contains("Permission denied") || reason.contains("not permitted");
    match kind {
        _ if denied && !root => {
            " (an unprivileged mount needs fusermount3, /dev/fuse with mode 0666, and a mount \
             point that is your own)"
        }
        ErrorKind::NotFound => " (is /dev/fuse there? `modprobe fuse`)",
        _ => "",
    }
}

impl Assembled {
    /// What root should know of a mount on which it is nobody.
    pub(super) fn nobody(&self) -> Option<String> {
        let squashed = self.driver.status().identity.as_deref() == Some("root_squash");
        (squashed && rustix::process::geteuid().is_root()).then(|| {
            format!(
                "root is nobody on {} (root_squash), other users are themselves; a ticket by `fsserver ticket --trust` \
                 gives root its rights",
                self.mounted.mountpoint().display()
            )
        })
    }

    /// What a command for this mount's state directory has to be told.
    pub(super) fn state_option(&self) -> String {
        match leasefs_host::paths::state() {
            Ok(default) if default == self.state_dir => String::new(),
            _ => format!(" --state {}", self.state_dir.display()),
        }
    }

    /// For Prometheus. Blocks on the disk.
    pub(super) fn tell(&self, page: &mut Page) {
        let session = self.driver.session_status();
        let measured = Measured {
            took: session.took,
            approved: session.approved,
            facts: self.driver.facts(),
            left_behind: self.driver.left_behind(),
        };
        metrics::tell(page, &self.status(), &measured);
    }

    /// For `fsclient status`.
    pub(super) fn status(&self) -> MountStatus {
        let cached = self.driver.cache_status();
        let dirty = self.driver.write_back_status();
        MountStatus {
            dir: self.mounted.mountpoint().to_owned(),
            source: self.source.clone(),
            state_dir: self.state_dir.clone(),
            pid: std::process::id(),
            user: rustix::process::geteuid().as_raw(),
            read_only: self.read_only,
            write_through: !self.write_back,
            session: self.driver.status(),
            lease_ms_left: millis(cached.remaining),
            leases: by_kind(&cached),
            recalls_open: cached.recalls as u64,
            memory: cached.memory.into(),
            kernel_requests: self.driver.calls(),
            cache_answers: cached
                .answers
                .iter()
                .map(|(kind, count)| ((*kind).to_owned(), *count))
                .collect(),
            unmounting: self.unmounting.load(Ordering::Relaxed),
            dirty: Dirty {
                files: dirty.files as u64,
                bytes: dirty.bytes as u64,
                bytes_per_second: dirty.rate,
                still_ms: millis(dirty.still),
            },
            locks: self.driver.locks().into_iter().map(Into::into).collect(),
        }
    }
}
