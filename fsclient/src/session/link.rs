//! From nothing to a connection that is let in: addresses, handshake, `Hello`, lanes.

use super::config::{Config, ConnectError};
use super::lanes::Lanes;
use crate::clock;
use bytes::Bytes;
use futures_util::future::join_all;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{FEATURES, Hello, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::{HELLO_TIMEOUT, MAX_ADDRESSES, PROTOCOL_VERSION};
use leasefs_protocol::ticket::ServerAddr;
use leasefs_protocol::{BootId, KeyHash};
use leasefs_transport::{
    CloseCode, Connection, FrameError, FrameReader, FrameWriter, Identity, Lost, TransportError,
    connect, not_listening,
};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The next of a name's addresses is tried too when the one before hasn't answered for so long.
const NEXT_ADDRESS: Duration = Duration::from_millis(150);

/// A host that says that nobody has a port says it within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// A connection to which the server has said `Welcome`.
#[derive(Debug)]
pub struct Link {
    /// By which of its names the server was reached.
    pub(super) server: ServerAddr,
    pub(super) connection: Connection,
    pub(super) control: FrameReader,
    pub(super) lanes: Lanes,
    pub(super) replies: Vec<FrameReader>,
    pub(super) welcome: Welcome,
    /// When `Hello` was sent.
    pub(super) sent: BootTime,
}

impl Link {
    /// By which of its names the server was reached.
    pub fn server(&self) -> &ServerAddr {
        &self.server
    }

    /// What the server said. Nobody has checked it.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }
}

/// What was said on a connection's control stream.
pub(super) struct Welcomed {
    pub(super) writer: FrameWriter,
    pub(super) reader: FrameReader,
    pub(super) welcome: Welcome,
    sent: BootTime,
}

/// Connects, says `Hello` and opens the lanes.
pub(super) async fn establish(
    config: &Config,
    last_process: Option<BootId>,
) -> Result<Link, ConnectError> {
    let (connection, server) = reach(config, last_process.is_none()).await?;
    match timeout(HELLO_TIMEOUT, hello(config, &connection, last_process)).await {
        Ok(Ok(welcomed)) => with_lanes(config, (connection, server), welcomed).await,
        Ok(Err(error)) => {
            connection.close(CloseCode::Goodbye, "the session doesn't stand");
            Err(error)
        }
        Err(_) => {
            connection.close(CloseCode::TooSlow, "no answer to Hello");
            Err(broken(config, "no answer to Hello"))
        }
    }
}

/// A server that allows no lanes, and keeps the connection, is given up.
async fn with_lanes(
    config: &Config,
    (connection, server): (Connection, ServerAddr),
    welcomed: Welcomed,
) -> Result<Link, ConnectError> {
    let opened = Lanes::open(&connection, welcomed.writer.into_outbox());
    let opened = timeout(HELLO_TIMEOUT, opened)
        .await
        .unwrap_or_else(|_| Err(Lost::Broken("the server allows no requests".into())));
    match opened {
        Ok((lanes, replies)) => Ok(Link {
            server,
            connection,
            control: welcomed.reader,
            lanes,
            replies,
            welcome: welcomed.welcome,
            sent: welcomed.sent,
        }),
        Err(lost) => {
            connection.close(CloseCode::Goodbye, &lost.to_string());
            Err(broken(config, lost))
        }
    }
}

fn broken(config: &Config, reason: impl ToString) -> ConnectError {
    ConnectError::Broken {
        server: config.servers.first().clone(),
        reason: reason.to_string(),
    }
}

/// The first connection that stands, to any of the server's addresses, and by which of its names.
pub(super) async fn reach(
    config: &Config,
    first: bool,
) -> Result<(Connection, ServerAddr), ConnectError> {
    let mut attempts = JoinSet::new();
    for (index, (name, address)) in resolve(config).await?.into_iter().enumerate() {
        let (identity, key) = (config.identity.clone(), config.key);
        attempts.spawn(async move {
            sleep(NEXT_ADDRESS * index as u32).await;
            let connection = attempt(address, &identity, key, first).await?;
            Ok((connection, name))
        });
    }
    let mut failure = None;
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(connection)) => return Ok(connection),
            // Says more than that another address didn't answer.
            Ok(Err(error @ TransportError::WrongServer { .. })) => failure = Some(error),
            // One that may yet answer counts for more than one that will not.
            Ok(Err(error)) if matches!(failure, None | Some(TransportError::NotListening(_))) => {
                failure = Some(error);
            }
            Ok(Err(_)) => {}
            Err(panic) => return Err(broken(config, panic)),
        }
    }
    let source = failure.unwrap_or_else(|| TransportError::Connect("no address".into()));
    Err(ConnectError::Transport {
        server: config.servers.first().clone(),
        source,
    })
}

/// Tries one address. The `first` connection of all is given up as soon as its host says that nobody has the port; later
/// ones are tried on, since a server that starts again may take it any moment, and say so when they have failed.
async fn attempt(
    address: SocketAddr,
    identity: &Identity,
    server: KeyHash,
    first: bool,
) -> Result<Connection, TransportError> {
    let mut connecting = pin!(connect(address, identity, server));
    let told = tokio::select! {
        // Hosts limit how often they say so: QUIC, which isn't told, must not ask first.
        biased;
        told = not_listening(address) => told,
        connection = &mut connecting => return connection,
    };
    if first {
        return Err(told);
    }
    connecting.await.map_err(|error| match error {
        TransportError::NoAnswer(_) => told,
        error => error,
    })
}

/// Whether the hosts of all the server's addresses say that nobody has the port. Where one says nothing it may be there.
pub async fn nobody_listens(config: &Config) -> bool {
    let asked = async {
        let addresses = resolve(config).await.ok()?.into_iter();
        Some(join_all(addresses.map(|(_, address)| not_listening(address))).await)
    };
    matches!(timeout(TOLD_WITHIN, asked).await, Ok(Some(_)))
}

/// What is looked up; given up soon where there are other addresses.
async fn within<T>(lookup: impl Future<Output = T>, others: bool) -> Option<T> {
    match others {
        true => timeout(NEXT_ADDRESS * 4, lookup).await.ok(),
        false => Some(lookup.await),
    }
}

/// The addresses of all names that have any, in the order of the names.
async fn resolve(config: &Config) -> Result<Vec<(ServerAddr, SocketAddr)>, ConnectError> {
    let mut addresses: Vec<(ServerAddr, SocketAddr)> = Vec::new();
    let mut failure = None;
    let lookups = config.servers.all().iter().map(|server| async move {
        let found = lookup_host((server.host.as_str(), server.port)).await;
        (
            server,
            found.map(|found| found.take(MAX_ADDRESSES).collect::<Vec<_>>()),
        )
    });
    // Addresses are there at once, and whoever has names waits for these no longer than for an answer.
    let literal = |server: &&ServerAddr| server.host.parse::<IpAddr>().is_ok();
    let some = config.servers.all().iter().any(|server| literal(&server));
    for lookup in join_all(lookups.map(|lookup| within(lookup, some))).await {
        let Some((server, found)) = lookup else {
            continue;
        };
        match found {
            Ok(found) => {
                let known = |at| addresses.iter().any(|(_, known)| *known == at);
                let new: Vec<_> = found.into_iter().filter(|at| !known(*at)).collect();
                addresses.extend(new.into_iter().map(|at| (server.clone(), at)));
            }
            Err(error) => failure = failure.or(Some((server, error.to_string()))),
        }
    }
    if !addresses.is_empty() {
        return Ok(addresses);
    }
    let none = || (config.servers.first(), "the name has no address".to_owned());
    let (server, reason) = failure.unwrap_or_else(none);
    Err(ConnectError::Resolve {
        server: server.clone(),
        reason,
    })
}

pub(super) async fn hello(
    config: &Config,
    connection: &Connection,
    last_process: Option<BootId>,
) -> Result<Welcomed, ConnectError> {
    let lost = |error: FrameError| broken(config, error);
    let (mut writer, mut reader) = connection.open().await.map_err(|e| broken(config, e))?;
    let sent = clock::boot();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: FEATURES,
        session: config.session,
        ticket: config.ticket.filter(|_| last_process.is_none()),
        name: config.name.clone(),
        subdir: config.subdir.clone(),
        drift_ppm: config.drift_ppm,
        last_process,
    };
    writer
        .send(&ToServer::Hello(hello), Bytes::new())
        .await
        .map_err(lost)?;
    match reader.next::<ToClient>().await.map_err(lost)? {
        Some((ToClient::Welcome(welcome), _)) => Ok(Welcomed {
            writer,
            reader,
            welcome,
            sent,
        }),
        Some((ToClient::Refused(refusal), _)) => Err(ConnectError::Refused {
            server: config.servers.first().clone(),
            refusal,
        }),
        Some(_) => Err(broken(
            config,
            "the server said something else than Welcome",
        )),
        None => Err(broken(config, "the server ended the control stream")),
    }
}
