//! Whether a server can be reached and lets this client in: a session that ends as soon as it stands.

use super::config::{Config, ConnectError};
use super::link::{hello, reach};
use bytes::Bytes;
use leasefs_protocol::control::{ToClient, ToServer, Welcome};
use leasefs_transport::CloseCode;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a server may take to answer a greeting or a farewell.
const ANSWER: Duration = Duration::from_secs(2);
/// How long QUIC is given to find out how large datagrams may be.
const DISCOVERY: Duration = Duration::from_millis(400);

/// What was found of a server that lets this client in.
#[derive(Clone, Debug)]
pub struct Probed {
    /// What it said.
    pub welcome: Welcome,
    /// The round-trip time.
    pub rtt: Duration,
    /// Largest datagram that has got through.
    pub datagram: u16,
}

/// Connects, says `Hello` and at once `Goodbye`.
///
/// # Errors
/// Why the session doesn't stand.
pub async fn probe(config: &Config) -> Result<Probed, ConnectError> {
    let (connection, _) = reach(config, true).await?;
    let broken = |reason: &str| ConnectError::Broken {
        server: config.servers.first().clone(),
        reason: reason.to_owned(),
    };
    let said = timeout(ANSWER, hello(config, &connection, None)).await;
    let mut welcomed = said.unwrap_or_else(|_| Err(broken("no answer to Hello")))?;
    sleep(DISCOVERY).await;
    let probed = Probed {
        rtt: connection.rtt(),
        datagram: connection.datagram_size(),
        welcome: welcomed.welcome,
    };
    let farewell = async {
        let said = welcomed.writer.send(&ToServer::Goodbye, Bytes::new()).await;
        while let Ok(Some((message, _))) = welcomed.reader.next::<ToClient>().await {
            if said.is_err() || message == ToClient::Farewell {
                break;
            }
        }
    };
    // A session that isn't ended in order holds nothing, and ends by itself.
    let _ = timeout(ANSWER, farewell).await;
    connection.close(CloseCode::Goodbye, "only looked");
    Ok(probed)
}

/// The MTU of the way to the peer of a connected socket, as far as the kernel knows it.
///
/// # Errors
/// The kernel's.
pub fn route_mtu(socket: &impl AsFd, peer: SocketAddr) -> io::Result<u32> {
    let (level, option) = match peer {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let (mut mtu, mut size) = (0_u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the descriptor is open, and both pointers are of variables that live longer than the call, of the size
    // that it is told.
    let failed = unsafe {
        let socket = socket.as_fd().as_raw_fd();
        libc::getsockopt(socket, level, option, (&raw mut mtu).cast(), &raw mut size) != 0
    };
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(mtu),
    }
}
