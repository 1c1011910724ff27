//! From nothing to a connection that is let in: addresses, handshake, `Hello`, lanes.

use super::config::{Config, ConnectError};
use super::lanes::Lanes;
use crate::clock;
use bytes::Bytes;
use leasefs_lease::time::BootTime;
use leasefs_protocol::BootId;
use leasefs_protocol::control::{FEATURES, Hello, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::{HELLO_TIMEOUT, PROTOCOL_VERSION};
use leasefs_transport::{
    CloseCode, Connection, FrameError, FrameReader, FrameWriter, Lost, TransportError, connect,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The next of a name's addresses is tried too when the one before hasn't answered for so long.
const NEXT_ADDRESS: Duration = Duration::from_millis(150);

/// A connection to which the server has said `Welcome`.
#[derive(Debug)]
pub struct Link {
    pub(super) connection: Connection,
    pub(super) control: FrameReader,
    pub(super) lanes: Lanes,
    pub(super) replies: Vec<FrameReader>,
    pub(super) welcome: Welcome,
    /// When `Hello` was sent.
    pub(super) sent: BootTime,
}

impl Link {
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
    let connection = reach(config).await?;
    match timeout(HELLO_TIMEOUT, hello(config, &connection, last_process)).await {
        Ok(Ok(welcomed)) => with_lanes(config, connection, welcomed).await,
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
    connection: Connection,
    welcomed: Welcomed,
) -> Result<Link, ConnectError> {
    let opened = Lanes::open(&connection, welcomed.writer.into_outbox());
    let opened = timeout(HELLO_TIMEOUT, opened)
        .await
        .unwrap_or_else(|_| Err(Lost::Broken("the server allows no requests".into())));
    match opened {
        Ok((lanes, replies)) => Ok(Link {
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
        server: config.server.clone(),
        reason: reason.to_string(),
    }
}

/// The first connection that stands, to any of the server's addresses.
pub(super) async fn reach(config: &Config) -> Result<Connection, ConnectError> {
    let addresses = resolve(config).await?;
    let mut attempts = JoinSet::new();
    for (index, address) in addresses.into_iter().enumerate() {
        let (identity, key) = (config.identity.clone(), config.key);
        attempts.spawn(async move {
            sleep(NEXT_ADDRESS * index as u32).await;
            connect(address, &identity, key).await
        });
    }
    let mut failure = None;
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(connection)) => return Ok(connection),
            // Says more than that another address didn't answer.
            Ok(Err(error @ TransportError::WrongServer { .. })) => failure = Some(error),
            Ok(Err(error)) => failure = failure.or(Some(error)),
            Err(panic) => return Err(broken(config, panic)),
        }
    }
    let source = failure.unwrap_or_else(|| TransportError::Connect("no address".into()));
    Err(ConnectError::Transport {
        server: config.server.clone(),
        source,
    })
}

async fn resolve(config: &Config) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |reason: String| ConnectError::Resolve {
        server: config.server.clone(),
        reason,
    };
    let found = tokio::net::lookup_host((config.server.host.as_str(), config.server.port))
        .await
        .map_err(|e| failed(e.to_string()))?;
    let mut addresses: Vec<SocketAddr> = found.take(8).collect();
    addresses.dedup();
    match addresses.is_empty() {
        true => Err(failed("the name has no address".into())),
        false => Ok(addresses),
    }
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
            server: config.server.clone(),
            refusal,
        }),
        Some(_) => Err(broken(
            config,
            "the server said something else than Welcome",
        )),
        None => Err(broken(config, "the server ended the control stream")),
    }
}
