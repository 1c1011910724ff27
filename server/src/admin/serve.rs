//! `fsserver serve`: from its arguments to a serving server and its orderly end.

use super::args::ServeArgs;
use super::commands::print;
use super::control;
use super::desk::{Attendant, Desk};
use super::manager;
use crate::metrics::PREFIX;
use crate::records::Found;
use crate::server::Server;
use crate::settings::Settings;
use crate::state::{ExportLock, Location, Policy, State, StateError, storage};
use crate::wire;
use leasefs_metrics::Endpoint;
use leasefs_protocol::EscapedLines;
use leasefs_protocol::limits::{DEFAULT_PORT, RESERVED_FILES};
use leasefs_protocol::ticket::{Addresses, ServerAddr, SourceError};
use leasefs_store::{Options, Store};
use leasefs_transport::TransportError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

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
        .worker_threads(leasefs_transport::network_threads())
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
    for note in storage::judge(&args.dir).map_err(text)? {
        tracing::warn!("{note}");
    }
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
        advertise: advertised(args, endpoint.local_addr()).map_err(|e| e.to_string())?,
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
    let metrics = match &args.metrics {
        Some(place) => Some(Endpoint::bind(place).await?),
        None => None,
    };
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
    let told = Arc::clone(&server);
    let metrics = metrics.map(|endpoint| endpoint.serve(PREFIX, move |page| told.tell(page)));
    print(&format!("ready {}\n", desk.address));
    manager::serving(&desk.export, desk.address);
    let pulse = tokio::spawn(manager::keep_alive(Arc::clone(&server.leases)));
    let orderly = wire::serve(server, notices, endpoint, signals.wait()).await;
    control.abort();
    drop(metrics);
    pulse.abort();
    tracing::info!(orderly, "ended");
    Ok(())
}

/// Where a ticket says the server is: if it listens on all addresses of its host, by the name of that and by each.
fn advertised(args: &ServeArgs, address: SocketAddr) -> Result<Addresses, SourceError> {
    if let Some(advertise) = &args.advertise {
        return Addresses::parse(advertise, address.port());
    }
    let at = |host: String| ServerAddr {
        host,
        port: address.port(),
    };
    Ok(match address.ip() {
        ip if !ip.is_unspecified() => at(ip.to_string()).into(),
        any => {
            let own = own_addresses().into_iter();
            let served = own.filter(|own| any.is_ipv6() || own.is_ipv4());
            Addresses::new(at(host_name()), served.map(|own| at(own.to_string())))
        }
    })
}

/// This host's addresses that others may reach, IPv4 first.
fn own_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs();
    let interfaces = interfaces.inspect_err(|error| {
        tracing::warn!(%error, "tickets name this host alone, not its addresses");
    });
    let addresses = interfaces.into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    });
    let mut addresses: Vec<IpAddr> = addresses.filter(is_reachable).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Whether it means this host to others too, without a zone.
fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
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
        manager::ending();
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
