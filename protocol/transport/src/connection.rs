//! An established connection and its streams.

use crate::error::{CloseCode, Lost};
use crate::frame::{FrameReader, FrameWriter};
use crate::tuning;
use leasefs_protocol::KeyHash;
use std::net::SocketAddr;
use std::ops::Add;
use std::time::Duration;

/// Priorities of the streams, by the order in which the client opened them.
const CONTROL_PRIORITY: i32 = 2;
const SMALL_LANE_PRIORITY: i32 = 1;
const BULK_LANE_PRIORITY: i32 = 0;
/// Recalls go as soon as control messages do.
const PUSH_PRIORITY: i32 = 2;

/// An established connection whose peer has proven its key. Cheap to clone; it ends when it is
/// closed, lost, or when nothing of it (streams included) is held any more.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: quinn::Connection,
    peer: KeyHash,
    /// A client's socket lives as long as its connection.
    endpoint: Option<quinn::Endpoint>,
}

/// What has passed on connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// UDP bytes sent.
    pub bytes_sent: u64,
    /// UDP bytes received.
    pub bytes_received: u64,
    /// QUIC packets sent.
    pub packets_sent: u64,
    /// Those of them that count as lost: what they carried was sent again.
    pub packets_lost: u64,
    /// How often losses have made the congestion window smaller.
    pub congestions: u64,
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + more.bytes_sent,
            bytes_received: self.bytes_received + more.bytes_received,
            packets_sent: self.packets_sent + more.packets_sent,
            packets_lost: self.packets_lost + more.packets_lost,
            congestions: self.congestions + more.congestions,
        }
    }
}

impl Connection {
    pub(crate) fn new(
        inner: quinn::Connection,
        peer: KeyHash,
        endpoint: Option<quinn::Endpoint>,
    ) -> Self {
        Self {
            inner,
            peer,
            endpoint,
        }
    }

    /// The peer's key.
    pub fn peer(&self) -> KeyHash {
        self.peer
    }

    /// Where the peer is at the moment; it may move.
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// Estimate of the round-trip time.
    pub fn rtt(&self) -> Duration {
        self.inner.rtt()
    }

    /// How large datagrams to the peer may be, as far as that has been tried.
    pub fn datagram_size(&self) -> u16 {
        self.inner.stats().path.current_mtu
    }

    /// UDP datagrams received so far: it grows while the peer lives.
    pub fn datagrams_received(&self) -> u64 {
        self.inner.stats().udp_rx.datagrams
    }

    /// What has passed on it so far.
    pub fn traffic(&self) -> Traffic {
        let stats = self.inner.stats();
        Traffic {
            bytes_sent: stats.udp_tx.bytes,
            bytes_received: stats.udp_rx.bytes,
            packets_sent: stats.path.sent_packets,
            packets_lost: stats.path.lost_packets,
            congestions: stats.path.congestion_events,
        }
    }

    /// How many bytes may be under way.
    pub fn window(&self) -> u64 {
        self.inner.stats().path.cwnd
    }

    /// Opens the control stream (the first call) or a lane (the second is the lane of small
    /// requests). For clients. Waits while the server allows no further stream.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn open(&self) -> Result<(FrameWriter, FrameReader), Lost> {
        let (send, receive) = self.inner.open_bi().await?;
        Ok(Self::framed(send, receive))
    }

    /// Lets the client open its lanes, and have as much under way as these need. For servers: until
    /// then it has the control stream alone, and little room on it.
    pub fn let_in(&self) {
        tuning::let_in(&self.inner);
    }

    /// The next stream the client opens, and its place in the order of opening (0 is the control
    /// stream, 1 the lane of small requests). For servers. Cancel-safe.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn accept(&self) -> Result<(u64, FrameWriter, FrameReader), Lost> {
        let (send, receive) = self.inner.accept_bi().await?;
        let index = receive.id().index();
        let (writer, reader) = Self::framed(send, receive);
        Ok((index, writer, reader))
    }

    fn framed(send: quinn::SendStream, receive: quinn::RecvStream) -> (FrameWriter, FrameReader) {
        let priority = match send.id().index() {
            0 => CONTROL_PRIORITY,
            1 => SMALL_LANE_PRIORITY,
            _ => BULK_LANE_PRIORITY,
        };
        // Fails only on a stream that is closed already, which its first use tells.
        let _ = send.set_priority(priority);
        (FrameWriter::new(send), FrameReader::new(receive))
    }

    /// Opens the push stream. For servers. The client sees it with its first frame.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn open_push(&self) -> Result<FrameWriter, Lost> {
        let send = self.inner.open_uni().await?;
        let _ = send.set_priority(PUSH_PRIORITY);
        Ok(FrameWriter::new(send))
    }

    /// The push stream. For clients. Cancel-safe.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn accept_push(&self) -> Result<FrameReader, Lost> {
        Ok(FrameReader::new(self.inner.accept_uni().await?))
    }

    /// Ends the connection at once; the peer is told why. What was sent and not yet delivered may
    /// be lost.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.inner.close(code.to_wire(), reason.as_bytes());
    }

    /// Waits until the connection is over. Cancel-safe.
    pub async fn closed(&self) -> Lost {
        self.inner.closed().await.into()
    }

    /// Why the connection is over, if it is.
    pub fn close_reason(&self) -> Option<Lost> {
        self.inner.close_reason().map(Lost::from)
    }

    /// After [`Connection::close`]: waits until the peer has had time to hear of it (a client must
    /// do so before its process ends; a server has [`crate::Server::wait_idle`]).
    pub async fn wait_closed(&self) {
        match &self.endpoint {
            Some(endpoint) => endpoint.wait_idle().await,
            None => {
                self.closed().await;
            }
        }
    }
}
