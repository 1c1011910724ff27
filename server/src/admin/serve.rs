//! `fsserver serve`: from its arguments to a serving server and its orderly end.

use super::args::ServeArgs;
use super::commands::print;
use super::control::{self, Reply, Request, ServerStatus};
use super::present;
use crate::records::Found;
use crate::server::Server;
use crate::settings::Settings;
use crate::state::{Directory, ExportLock, Location, Policy, Role, Served, State, StateError};
use crate::wire;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::limits::{DEFAULT_PORT, RESERVED_FILES, TICKET_LIFE};
use leasefs_protocol::ticket::{ServerAddr, Ticket};
use leasefs_protocol::{Caller, EscapedLines, FileKind, KeyHash, Name, Refusal};
use leasefs_store::{Options, Store};
use leasefs_transport::TransportError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// What the commands of the control socket need.
#[derive(Clone)]
struct Attendant {
    server: Arc<Server>,
    desk: Arc<Desk>,
}

/// Where tickets are made.
struct Desk {
    state: Arc<State>,
    policy: Policy,
    advertise: ServerAddr,
    key: KeyHash,
    export: PathBuf,
    address: SocketAddr,
}

pub(super) fn run(args: &ServeArgs) -> Result<(), String> {
    log_to_stderr();
    let files = raise_file_limit();
    let policy = policy(args.identity)?;
    if !fs::metadata(&args.dir).is_ok_and(|found| found.is_dir()) {
        return Err(format!(
            "{} is not a directory that can be served",
            args.dir.display()
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("network")
        .build()
        .map_err(|e| format!("can't start threads: {e}"))?;
    runtime.block_on(serve(args, policy, open_files(files)))
}

/// Everything that can be refused before a client is told anything.
struct Prepared {
    store: Store,
    found: Found,
    endpoint: leasefs_transport::Server,
    desk: Arc<Desk>,
    /// Held while the directory is served.
    _lock: ExportLock,
}

fn prepare(args: &ServeArgs, policy: Policy) -> Result<Prepared, String> {
    let text = |error: StateError| error.to_string();
    let location = Location::find(args.state.state.as_deref()).map_err(text)?;
    location.must_be_outside(&args.dir).map_err(text)?;
    let dir = location.take().map_err(text)?;
    let lock = ExportLock::take(&args.dir).map_err(text)?;
    let (secret, mac) = dir.secrets().map_err(text)?;
    let identity = dir.identity().map_err(text)?;
    let id = dir.export_id(&args.dir).map_err(text)?;
    let store = Store::open(&args.dir, &mac, id, Options::default()).map_err(|e| e.to_string())?;
    if let Some(note) = store.limits_note() {
        tracing::warn!("{note}");
    }
    let (state, found) = State::open(dir, policy).map_err(text)?;
    if let Some(note) = state.note() {
        tracing::error!("{note}");
    }
    if policy == Policy::Trust {
        tracing::info!(
            "trusted are clients enrolled with `fsserver ticket --trust`; all others are served as with root_squash"
        );
    }
    let endpoint = bind(args.listen, |address| {
        leasefs_transport::Server::bind(address, &identity, &secret)
    })?;
    let desk = Desk {
        state: Arc::new(state),
        policy,
        advertise: advertised(args, endpoint.local_addr()),
        key: identity.key_hash(),
        export: args.dir.canonicalize().unwrap_or(args.dir.clone()),
        address: endpoint.local_addr(),
    };
    desk.note_served()?;
    Ok(Prepared {
        store,
        found,
        endpoint,
        desk: Arc::new(desk),
        _lock: lock,
    })
}

async fn serve(args: &ServeArgs, policy: Policy, open_files: usize) -> Result<(), String> {
    let mut signals = Signals::listen().map_err(|e| format!("can't listen to signals: {e}"))?;
    // The port is bound before the mark of an orderly end goes: one that is in use must not cost
    // the next start a grace.
    let Prepared {
        store,
        found,
        endpoint,
        desk,
        _lock,
    } = prepare(args, policy)?;
    let control = control::bind(desk.state.dir().fd())
        .map_err(|e| format!("can't make the control socket: {e}"))?;
    let settings = Settings {
        term: args.term,
        open_files,
        ..Settings::default()
    };
    let records: Arc<State> = Arc::clone(&desk.state);
    let (server, notices) = Server::start(settings, Arc::new(store), records, found)
        .map_err(|e| format!("can't start: {e}"))?;
    desk.first_ticket(args.ticket_file.as_deref())?;
    let attendant = Attendant {
        server: Arc::clone(&server),
        desk: Arc::clone(&desk),
    };
    let answer = move |request| attendant.clone().answer(request);
    let control = tokio::spawn(control::serve(control, answer));
    tracing::info!(export = %desk.export.display(), address = %desk.address, key = %desk.key, ?policy, "serving");
    print(&format!("ready {}\n", desk.address));
    let orderly = wire::serve(server, notices, endpoint, signals.wait()).await;
    control.abort();
    tracing::info!(orderly, "ended");
    Ok(())
}

/// Where a ticket says the server is.
fn advertised(args: &ServeArgs, address: SocketAddr) -> ServerAddr {
    if let Some(advertise) = &args.advertise {
        return advertise.clone();
    }
    let host = match address.ip() {
        ip if !ip.is_unspecified() => ip.to_string(),
        _ => host_name(),
    };
    ServerAddr {
        host,
        port: address.port(),
    }
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" | "(none)" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

fn policy(asked: Option<Policy>) -> Result<Policy, String> {
    let root = rustix::process::geteuid().is_root();
    match asked {
        None if root => Ok(Policy::RootSquash),
        None => Ok(Policy::Squash),
        Some(policy) if root || policy == Policy::Squash => Ok(policy),
        Some(_) => Err(
            "only a server that runs as root can give clients the rights of their own users: \
             run it as root, or with --identity squash"
                .to_owned(),
        ),
    }
}

fn bind<T>(
    listen: Option<SocketAddr>,
    bind: impl Fn(SocketAddr) -> Result<T, TransportError>,
) -> Result<T, String> {
    let explain = |address| {
        move |error: TransportError| {
            format!("can't listen on {address}: {error}. Choose another address with --listen")
        }
    };
    if let Some(address) = listen {
        return bind(address).map_err(explain(address));
    }
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT));
    match bind(any) {
        Err(error) if no_ipv6(&error) => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT));
            bind(any).map_err(explain(any))
        }
        other => other.map_err(explain(any)),
    }
}

fn no_ipv6(error: &TransportError) -> bool {
    let TransportError::Socket { source, .. } = error else {
        return false;
    };
    matches!(
        source.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPROTONOSUPPORT)
    )
}

impl Desk {
    fn note_served(&self) -> Result<(), String> {
        let served = Served {
            advertise: self.advertise.to_string(),
            identity: self.policy,
        };
        let noted = self.state.dir().note_served(&served);
        noted.map_err(|e| e.to_string())
    }

    fn ticket(&self, role: Role) -> Result<Ticket, String> {
        Policy::can_give(&role)?;
        Ok(Ticket {
            server: self.advertise.clone(),
            key: self.key,
            secret: self.state.issue(role).map_err(|e| e.to_string())?,
        })
    }

    /// Invites somebody as long as nobody has ever come.
    fn first_ticket(&self, file: Option<&Path>) -> Result<(), String> {
        if !self.state.clients().is_empty() {
            if file.is_some() {
                tracing::info!(
                    "no ticket written: this isn't the first start (`fsserver ticket` prints one)"
                );
            }
            return Ok(());
        }
        let ticket = self.ticket(Role::default())?;
        let hours = TICKET_LIFE.as_secs() / 3600;
        match file {
            Some(file) => {
                leasefs_host::files::replace(file, format!("{ticket}\n").as_bytes())
                    .map_err(|e| format!("can't write the ticket to {}: {e}", file.display()))?;
                tracing::info!(file = %file.display(), "a ticket for the first client, good for {hours} h: fsclient mount @{} DIR", file.display());
            }
            None => {
                print(&format!("{ticket}\n"));
                tracing::info!(
                    "the ticket above is for one client, good for {hours} h: fsclient mount TICKET DIR"
                );
            }
        }
        if self.address.ip().is_unspecified() {
            tracing::info!(
                "tickets name this server {}; if clients can't reach it so, start it with --advertise HOST:PORT",
                self.advertise
            );
        }
        Ok(())
    }
}

impl Attendant {
    async fn answer(self, request: Request) -> Result<Reply, String> {
        let server = Arc::clone(&self.server);
        // The registry is on disk.
        let answered = tokio::task::spawn_blocking(move || self.answer_blocking(request)).await;
        let mut reply =
            answered.map_err(|_| "the server has failed: its log says how".to_owned())??;
        if let Reply::Revoked { client, under_way } = &mut reply {
            *under_way = server.revoke(client.key).await;
        }
        Ok(reply)
    }

    /// Looks for a directory below the served one, as the server itself and by no link.
    fn directory(&self, path: String) -> Result<Directory, String> {
        let store = &self.server.store;
        if !store.has_borders() {
            return Err(
                "clients can't be confined here: that needs the host's file handles (a server that \
                 runs as root, and a file system that has them)"
                    .to_owned(),
            );
        }
        let refused = |refusal: Refusal| format!("{path}: {refusal}");
        let who = store.identity(IdentityPolicy::Trust, &Caller::default());
        let (who, root) = (who.map_err(refused)?, store.root().map_err(refused)?);
        let mut handle = root.handle;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let name = Name::new(name.as_bytes()).map_err(refused)?;
            let found = store.lookup(&who, &handle, &name).map_err(refused)?;
            let found = found.filter(|found| found.attr.kind == FileKind::Directory);
            let found = found.ok_or_else(|| {
                format!("{path}: there is no such directory below the served one (links aren't followed)")
            })?;
            handle = found.handle;
        }
        match store.is_root(&handle) {
            true => Err("the served directory itself is no border: leave --subdir out".to_owned()),
            false => Ok(Directory { path, handle }),
        }
    }

    fn answer_blocking(&self, request: Request) -> Result<Reply, String> {
        let desk = &self.desk;
        match request {
            Request::Ticket { mut role, subdir } => {
                role.border = subdir.map(|path| self.directory(path)).transpose()?;
                desk.ticket(role).map(|t| Reply::Ticket(t.to_string()))
            }
            Request::Clients => Ok(Reply::Clients {
                clients: desk.state.clients(),
                note: desk.state.note(),
            }),
            Request::Revoke(which) => {
                let client = desk.state.revoke(&which);
                let client = client.map_err(|e| present::not_revoked(&e))?;
                let under_way = 0;
                Ok(Reply::Revoked { client, under_way })
            }
            Request::Status => Ok(Reply::Status(Box::new(ServerStatus {
                export: desk.export.clone(),
                address: desk.address.to_string(),
                pid: std::process::id(),
                note: desk.state.note(),
                status: self.server.status(),
            }))),
        }
    }
}

/// What ends a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        // Under a file size limit of its own, writes must fail, not end the server.
        let _ = signal(SignalKind::from_raw(libc::SIGXFSZ))?;
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    async fn wait(&mut self) {
        self.next().await;
        tracing::info!("ending: clients are asked to give their leases back");
    }
}

/// Every open of a client is one here. How many there may be in all.
fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files can't be raised");
    }
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// What of them is for clients: the server goes on where they have all of it.
fn open_files(limit: usize) -> usize {
    limit - RESERVED_FILES.min(limit / 2)
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("LEASEFS_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| EscapedLines(io::stderr()))
        .with_ansi(false)
        .init();
}
