//! What is found. Nothing is judged here.

use crate::clock;
use crate::daemon::{StateDir, survey};
use crate::fuse::Release;
use crate::session::{Config, ConnectError, new_session, probe, route_mtu};
use futures_util::future::join_all;
use leasefs_protocol::KeyHash;
use leasefs_protocol::control::HelloRefusal;
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
use leasefs_protocol::ticket::ServerAddr;
use leasefs_transport::{Buffers, TransportError, socket_buffers};
use rustix::time::{ClockId, clock_gettime};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a server is tried.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long an ICMP answer may take, and the system bus.
const MOMENT: Duration = Duration::from_secs(1);
/// Over how long clocks are compared.
const COMPARED: Duration = Duration::from_millis(400);

/// The machine.
pub(super) struct SystemFound {
    pub(super) root: bool,
    pub(super) release: Result<Release, String>,
    pub(super) fuse: Result<(), ErrorKind>,
    pub(super) helper: Option<PathBuf>,
    pub(super) buffers: Result<Buffers, String>,
    pub(super) clocks: Clocks,
    pub(super) logind: bool,
}

/// What two clocks said has passed meanwhile.
pub(super) struct Clocks {
    /// That of leases, which whoever sets the time slews.
    pub(super) boot: Duration,
    /// The oscillator.
    pub(super) raw: Duration,
    /// In suspend, since the machine has booted.
    pub(super) slept: Duration,
}

impl Clocks {
    /// By how much the first goes too fast, in millionths.
    pub(super) fn drift_ppm(&self) -> i64 {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
        let (boot, raw) = (nanos(self.boot), nanos(self.raw).max(1));
        i64::try_from((boot - raw) * 1_000_000 / raw).unwrap_or(i64::MAX)
    }
}

/// The state directory.
pub(super) struct StateFound {
    pub(super) path: PathBuf,
    /// Whether it is there.
    pub(super) usable: Result<bool, String>,
    /// Bytes that are free on its disk.
    pub(super) room: Option<u64>,
    /// How many items its recovery folder has.
    pub(super) kept: Result<usize, String>,
}

/// A mount of this user.
pub(super) struct MountFound {
    pub(super) dir: PathBuf,
    /// As its status says, or why there is none.
    pub(super) state: String,
    pub(super) trouble: Option<String>,
}

/// A server.
pub(super) struct ServerFound {
    /// `HOST:PORT`.
    pub(super) name: String,
    /// What it is known as besides.
    pub(super) others: Vec<String>,
    /// This client is enrolled with it.
    pub(super) enrolled: bool,
    pub(super) reached: Result<Reached, Refused>,
}

/// One that lets this client in.
pub(super) struct Reached {
    pub(super) rtt: Duration,
    pub(super) term: Duration,
    pub(super) identity: &'static str,
    /// Bytes of a datagram that got through.
    pub(super) datagram: u16,
    /// As the kernel knows the way.
    pub(super) route_mtu: Option<u32>,
}

/// Why a server isn't reached.
pub(super) enum Refused {
    Unknown(String),
    Closed,
    Unroutable(String),
    Silent,
    NotEnrolled,
    WrongServer(String),
    Hello(HelloRefusal),
    Other(String),
}

pub(super) async fn system() -> SystemFound {
    let (clocks, logind) = tokio::join!(clocks(), logind());
    SystemFound {
        root: rustix::process::geteuid().is_root(),
        release: Release::of_host().map_err(|e| e.to_string()),
        fuse: std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map(drop)
            .map_err(|e| e.kind()),
        helper: in_path("fusermount3"),
        buffers: socket_buffers().map_err(|e| e.to_string()),
        clocks,
        logind,
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).map(|dir| dir.join(program));
    places.into_iter().find(|place| place.is_file())
}

async fn clocks() -> Clocks {
    let begun = read_clocks();
    sleep(COMPARED).await;
    let ended = read_clocks();
    Clocks {
        boot: ended.0.saturating_sub(begun.0),
        raw: ended.1.saturating_sub(begun.1),
        slept: clock::boot().since(clock::monotonic()),
    }
}

/// Both clocks at one moment: of several readings the one that took the shortest.
fn read_clocks() -> (Duration, Duration) {
    let read = |id| Duration::try_from(clock_gettime(id)).unwrap_or_default();
    let once = |_| {
        let before = read(ClockId::MonotonicRaw);
        let boot = read(ClockId::Boottime);
        let took = read(ClockId::MonotonicRaw).saturating_sub(before);
        (took, (boot, before + took / 2))
    };
    let best = (0..9).map(once).min_by_key(|(took, _)| *took);
    best.map(|(_, both)| both).unwrap_or_default()
}

async fn logind() -> bool {
    let asked = async {
        let bus = zbus::Connection::system().await?;
        let dbus = zbus::fdo::DBusProxy::new(&bus).await?;
        let name = zbus::names::BusName::try_from("org.freedesktop.login1")?;
        Ok::<bool, zbus::Error>(dbus.name_has_owner(name).await?)
    };
    timeout(MOMENT, asked)
        .await
        .is_ok_and(|asked| asked.unwrap_or(false))
}

pub(super) fn state(state: &StateDir) -> StateFound {
    let there = state.path().ancestors().find(|above| above.exists());
    let room = there.and_then(|dir| rustix::fs::statvfs(dir).ok());
    let kept: Result<Vec<_>, _> = state.recovery().items().into_iter().collect();
    let kept = kept.map(|items| items.len());
    StateFound {
        path: state.path().to_owned(),
        usable: state.check(),
        room: room.map(|found| found.f_bavail.saturating_mul(found.f_frsize)),
        kept: kept.map_err(|e| e.to_string()),
    }
}

/// Of all mounts.
pub(super) fn mounts() -> Vec<MountFound> {
    let found = survey(PATIENCE).unwrap_or_default();
    let answering = found.mounts.into_iter().map(|mount| MountFound {
        dir: mount.dir,
        state: mount.session.state,
        trouble: mount.session.trouble,
    });
    let unanswered = found.unanswered.into_iter().map(|mount| MountFound {
        dir: mount.dir,
        state: mount.state,
        trouble: None,
    });
    answering.chain(unanswered).collect()
}

/// Tries a server whose key is known, or not.
pub(super) async fn server(
    state: StateDir,
    names: Vec<ServerAddr>,
    key: Option<KeyHash>,
) -> ServerFound {
    let one = |server: &ServerAddr| {
        let (state, server) = (state.clone(), server.clone());
        async move {
            let reached = timeout(PATIENCE, reach(&state, &server, key)).await;
            (server.to_string(), reached.unwrap_or(Err(Refused::Silent)))
        }
    };
    let mut tried = join_all(names.iter().map(one)).await;
    // One way to it is enough.
    let best = tried.iter().position(|(_, reached)| reached.is_ok());
    let (name, reached) = tried.swap_remove(best.unwrap_or(0));
    ServerFound {
        name,
        others: tried.into_iter().map(|(name, _)| name).collect(),
        enrolled: key.is_some(),
        reached,
    }
}

async fn reach(
    state: &StateDir,
    server: &ServerAddr,
    key: Option<KeyHash>,
) -> Result<Reached, Refused> {
    let config = config(state, server, key).map_err(Refused::Other)?;
    let (probed, poked) = tokio::join!(probe(&config), poke(server));
    match (probed, poked) {
        (Ok(probed), poked) => Ok(Reached {
            rtt: probed.rtt,
            term: Duration::from_millis(probed.welcome.term_ms.into()),
            identity: probed.welcome.identity.name(),
            datagram: probed.datagram,
            route_mtu: poked.ok(),
        }),
        (Err(error), poked) => Err(refused(error, poked, key.is_some())),
    }
}

fn refused(error: ConnectError, poked: Result<u32, ErrorKind>, enrolled: bool) -> Refused {
    match error {
        ConnectError::Resolve { reason, .. } => Refused::Unknown(reason),
        ConnectError::Refused { refusal, .. } => Refused::Hello(refusal),
        ConnectError::Broken { reason, .. } => Refused::Other(reason),
        ConnectError::Transport { source, .. } => match (source, poked) {
            (TransportError::WrongServer { .. }, _) if !enrolled => Refused::NotEnrolled,
            (source @ TransportError::WrongServer { .. }, _) => {
                Refused::WrongServer(source.to_string())
            }
            (TransportError::NotListening(_), _) => Refused::Closed,
            (TransportError::NoAnswer(_), Err(ErrorKind::TimedOut) | Ok(_)) => Refused::Silent,
            (TransportError::NoAnswer(_), Err(other)) => Refused::Unroutable(other.to_string()),
            (source, _) => Refused::Other(source.to_string()),
        },
    }
}

fn config(state: &StateDir, server: &ServerAddr, key: Option<KeyHash>) -> Result<Config, String> {
    Ok(Config {
        servers: server.clone().into(),
        // No server has this one: it shows its own, and is told nothing.
        key: key.unwrap_or(KeyHash([0; 32])),
        identity: state.known_identity()?,
        ticket: None,
        session: new_session()?,
        name: "fsclient doctor".to_owned(),
        subdir: Vec::new(),
        drift_ppm: DEFAULT_DRIFT_PPM,
        connect_timeout: PATIENCE,
    })
}

/// What ICMP says to a datagram that no server answers, which QUIC doesn't tell; and the route's MTU.
async fn poke(server: &ServerAddr) -> Result<u32, ErrorKind> {
    let kind = |e: std::io::Error| e.kind();
    let mut found = tokio::net::lookup_host((server.host.as_str(), server.port))
        .await
        .map_err(kind)?;
    let address = found.next().ok_or(ErrorKind::NotFound)?;
    let any = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = tokio::net::UdpSocket::bind(any).await.map_err(kind)?;
    socket.connect(address).await.map_err(kind)?;
    let mtu = route_mtu(&socket, address).map_err(kind);
    socket.send(&[0]).await.map_err(kind)?;
    match timeout(MOMENT, socket.recv(&mut [0; 64])).await {
        Ok(Err(error)) => Err(error.kind()),
        Ok(Ok(_)) | Err(_) => mtu,
    }
}
