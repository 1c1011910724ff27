//! A link between two network namespaces of its own: a veth pair, or one with a round-trip time, a rate and
//! losses, which a process can carry that has TUN (netem need not be there).
//!
//! The namespaces have no names: they are gone when the process is, and so is all that is in them.

mod line;
mod namespace;
mod shape;
mod tun;

pub use namespace::Namespace;
pub use shape::{Shape, Spec};

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tun::Emulator;

/// Where the server is reached.
pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The other end.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
/// As on Ethernet.
const MTU: &str = "1500";
/// The device at both ends.
const DEVICE: &str = "link0";

/// Two namespaces, joined.
#[derive(Debug)]
pub struct Link {
    /// The server's.
    pub server: Arc<Namespace>,
    /// The clients'.
    pub client: Arc<Namespace>,
    /// Carries what veth doesn't.
    _emulator: Option<Emulator>,
}

impl Link {
    /// Makes both namespaces and joins them.
    ///
    /// # Errors
    /// With what this machine refuses, for people.
    pub fn new(spec: &Spec) -> io::Result<Self> {
        let made = || Namespace::new().map_err(|error| explained("network namespaces", &error));
        let (server, client) = (made()?, made()?);
        let emulator = match spec {
            Spec::Veth => {
                client.ip(&[
                    "link",
                    "add",
                    DEVICE,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    DEVICE,
                    "netns",
                    &server.path(),
                ])?;
                None
            }
            Spec::Shaped(shape) => {
                let carried = Emulator::start(&client, &server, DEVICE, shape);
                Some(carried.map_err(|error| explained("TUN devices", &error))?)
            }
        };
        for (namespace, own, other) in [(&server, SERVER, CLIENT), (&client, CLIENT, SERVER)] {
            let (own, other) = (own.to_string(), other.to_string());
            namespace.ip(&["link", "set", "lo", "up"])?;
            namespace.ip(&["addr", "add", &own, "peer", &other, "dev", DEVICE])?;
            namespace.ip(&["link", "set", DEVICE, "mtu", MTU, "up"])?;
        }
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            _emulator: emulator,
        })
    }
}

fn explained(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "this machine gives no {what} ({error}): run it as root, in a container with CAP_NET_ADMIN, CAP_SYS_ADMIN and /dev/net/tun"
        ),
    )
}
