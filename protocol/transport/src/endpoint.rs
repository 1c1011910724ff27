//! Where connections come from: a server's socket, and a client's attempt to reach one.

use crate::connection::Connection;
use crate::error::{CloseCode, Lost, TransportError};
use crate::identity::{EndpointSecret, Identity, key_hash};
use crate::prompt::Prompt;
use crate::tls;
use crate::tuning::{self, Path, Role};
use leasefs_protocol::KeyHash;
use leasefs_protocol::limits::{
    HANDSHAKES_UNVALIDATED, MAX_HANDSHAKES, UNSEEN_BYTES, UNSEEN_BYTES_IN_ALL,
};
use quinn::EndpointConfig;
use quinn_proto::HashedConnectionIdGenerator;
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a client tries one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a host is asked whether a port is closed: it says so to one peer once a second, whichever of its packets asks, and
/// those of QUIC, of all mounts there, ask too.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The server's side of all connections: one UDP socket. Must live within a tokio runtime.
#[derive(Debug)]
pub struct Server {
    endpoint: quinn::Endpoint,
    address: SocketAddr,
    configs: Configs,
    handshakes: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
struct Configs {
    network: Arc<quinn::ServerConfig>,
    loopback: Arc<quinn::ServerConfig>,
    large: bool,
}

impl Server {
    /// Listens on a UDP address. `secret` must be the same in every life of the server: with it
    /// clients hear of a restart at their next packet.
    ///
    /// # Errors
    /// If the address can't be bound or the identity can't be used.
    pub fn bind(
        address: SocketAddr,
        identity: &Identity,
        secret: &EndpointSecret,
    ) -> Result<Self, TransportError> {
        let socket = |source| TransportError::Socket { address, source };
        let bound = tuning::bind(address).map_err(socket)?;
        let crypto = Arc::new(tls::server(identity)?);
        let config = |path| {
            let mut config = quinn::ServerConfig::with_crypto(crypto.clone());
            config
                .transport_config(tuning::transport(path, Role::Server))
                .migration(true)
                .max_incoming(MAX_HANDSHAKES)
                .incoming_buffer_size(UNSEEN_BYTES)
                .incoming_buffer_size_total(UNSEEN_BYTES_IN_ALL);
            Arc::new(config)
        };
        let configs = Configs {
            network: config(Path::Network),
            loopback: config(Path::Loopback),
            large: bound.large,
        };
        let default = (*configs.network).clone();
        let endpoint =
            endpoint(bound.socket, bound.large, secret, Some(default)).map_err(socket)?;
        let address = endpoint.local_addr().map_err(socket)?;
        Ok(Self {
            endpoint,
            address,
            configs,
            handshakes: Arc::default(),
        })
    }

    /// The address it listens on, with the port the kernel chose if none was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next client that wants to connect; `None` once the server is closed. Cancel-safe. How many
    /// handshakes are under way at a time is the caller's to bound, by dropping what is too much.
    pub async fn accept(&self) -> Option<Incoming> {
        loop {
            let incoming = self.endpoint.accept().await?;
            let open = Handshake::begin(&self.handshakes);
            let validated = incoming.remote_address_validated();
            if open.others >= HANDSHAKES_UNVALIDATED && !validated {
                // Fails only if the client has been asked before: it is validated then.
                let _ = incoming.retry();
            } else {
                return Some(Incoming {
                    incoming,
                    configs: self.configs.clone(),
                    open,
                });
            }
        }
    }

    /// Closes all connections and takes no more.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.endpoint.close(code.to_wire(), reason.as_bytes());
    }

    /// Waits until the clients have had time to hear of [`Server::close`].
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }
}

/// Counts one handshake while it is under way.
#[derive(Debug)]
struct Handshake {
    count: Arc<AtomicUsize>,
    others: usize,
}

impl Handshake {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        Self {
            others: count.fetch_add(1, Ordering::Relaxed),
            count: count.clone(),
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client that wants to connect. Nothing is known of it.
#[derive(Debug)]
pub struct Incoming {
    incoming: quinn::Incoming,
    configs: Configs,
    open: Handshake,
}

impl Incoming {
    /// Where it comes from.
    pub fn remote_address(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Finishes the handshake: afterwards the client's key is known and proven. Waits for the client
    /// as long as QUIC does; dropped, the connection ends.
    ///
    /// # Errors
    /// If the client doesn't keep to TLS, or has gone.
    pub async fn handshake(self) -> Result<Connection, TransportError> {
        let _open = self.open;
        let address = self.incoming.remote_address();
        let config = match Path::to(address.ip(), self.configs.large) {
            Path::Loopback => self.configs.loopback,
            Path::Network => self.configs.network,
        };
        let connecting = self.incoming.accept_with(config).map_err(Lost::from)?;
        let connection = connecting.await.map_err(Lost::from)?;
        let peer = peer_key(&connection)
            .ok_or_else(|| TransportError::Tls("the client showed no key".into()))?;
        Ok(Connection::new(connection, peer, None))
    }
}

/// The client's side of connections: one UDP socket, for as many as one likes. Must live within a tokio
/// runtime.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: quinn::Endpoint,
    large: bool,
}

impl Client {
    /// A socket for connections to servers of this kind of address.
    ///
    /// # Errors
    /// If it can't be had.
    pub fn bind(to: SocketAddr) -> Result<Self, TransportError> {
        let address = unspecified_like(to);
        let socket = |source| TransportError::Socket { address, source };
        let bound = tuning::bind(address).map_err(socket)?;
        let secret = EndpointSecret::generate().map_err(|e| TransportError::Tls(e.to_string()))?;
        let endpoint = endpoint(bound.socket, bound.large, &secret, None).map_err(socket)?;
        Ok(Self {
            endpoint,
            large: bound.large,
        })
    }

    /// Connects to the server at `address` whose key is `server`.
    ///
    /// # Errors
    /// [`TransportError::WrongServer`] if it shows another key (nothing has been sent to it then);
    /// [`TransportError::NoAnswer`] after two seconds.
    pub async fn connect(
        &self,
        address: SocketAddr,
        identity: &Identity,
        server: KeyHash,
    ) -> Result<Connection, TransportError> {
        let (crypto, pinned) = tls::client(identity, server)?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        let path = Path::to(address.ip(), self.large);
        config.transport_config(tuning::transport(path, Role::Client));
        let connecting = self
            .endpoint
            // The key alone says who the server is; the name only has to be well-formed.
            .connect_with(config, address, "leasefs")
            .map_err(|e| TransportError::Connect(e.to_string()))?;
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| TransportError::NoAnswer(address))?
            .map_err(|lost| pinned.mismatch().unwrap_or(Lost::from(lost).into()))?;
        let endpoint = self.endpoint.clone();
        Ok(Connection::new(connection, server, Some(endpoint)))
    }
}

/// Connects to the server at `address` whose key is `server`, by a socket of its own.
///
/// # Errors
/// As [`Client::bind`] and [`Client::connect`].
pub async fn connect(
    address: SocketAddr,
    identity: &Identity,
    server: KeyHash,
) -> Result<Connection, TransportError> {
    Client::bind(address)?
        .connect(address, identity, server)
        .await
}

/// Waits until the host at `address` says that no process has the port (ICMP), which a socket for more than one peer
/// isn't told. A server takes no notice.
pub async fn not_listening(address: SocketAddr) -> TransportError {
    match told_off(address).await {
        Ok(()) => TransportError::NotListening(address),
        // Nothing can be learned so.
        Err(_) => std::future::pending().await,
    }
}

async fn told_off(address: SocketAddr) -> io::Result<()> {
    let socket = tokio::net::UdpSocket::bind(unspecified_like(address)).await?;
    socket.connect(address).await?;
    loop {
        let said = async {
            socket.send(&[0]).await?;
            socket.recv(&mut [0]).await
        };
        match tokio::time::timeout(ASK_AGAIN, said).await {
            Err(_) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn unspecified_like(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn endpoint(
    socket: UdpSocket,
    large: bool,
    secret: &EndpointSecret,
    server: Option<quinn::ServerConfig>,
) -> io::Result<quinn::Endpoint> {
    let mut config = EndpointConfig::new(Arc::new(secret.reset_key()));
    let key = secret.connection_id_key();
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
    if let Some(datagram) = tuning::largest_datagram(large) {
        config
            .max_udp_payload_size(datagram)
            .map_err(io::Error::other)?;
    }
    quinn::Endpoint::new(config, server, socket, Prompt::current())
}

fn peer_key(connection: &quinn::Connection) -> Option<KeyHash> {
    let keys = connection
        .peer_identity()?
        .downcast::<Vec<CertificateDer<'static>>>()
        .ok()?;
    keys.first().map(|spki| key_hash(spki))
}
