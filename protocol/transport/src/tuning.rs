//! Sockets and QUIC settings.

use leasefs_protocol::limits::{MAX_LANES, STRANGER_WINDOW};
use quinn::congestion::CubicConfig;
use quinn::{AckFrequencyConfig, IdleTimeout, TransportConfig, VarInt};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

/// Wanted size of a UDP socket's buffers.
const SOCKET_BUFFER: usize = 8 << 20;
/// Below this the buffers are too small for the datagrams used on loopback.
const LARGE_BUFFER: usize = 4 << 20;
/// Datagrams on loopback, whose MTU is 65536.
const LOOPBACK_DATAGRAM: u16 = 65_000;
/// Bytes of one connection under way to this side. Never more than a large socket buffer holds,
/// so that loopback, which has no other bottleneck, loses nothing.
const RECEIVE_WINDOW: u32 = 8 << 20;
/// Bytes of one stream under way to this side. All bulk lanes together leave room: QUIC takes what is to be
/// sent on a stream only while all that is under way is within the connection's window, and on a slow link a
/// keep-alive would wait for megabytes.
const STREAM_WINDOW: u32 = (RECEIVE_WINDOW - (512 << 10)) / 3;
/// A connection on which nothing arrives for so long is over. Safety doesn't depend on it: the
/// lease decides about that.
const IDLE: Duration = Duration::from_secs(30);
/// Assumed round trip before the first is measured: the first lost packet is sent again after
/// three of them.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// The peer acknowledges when more datagrams than this have come, or with whatever it sends: a small answer is
/// acknowledged by the next request, not by a datagram of its own, which costs as much as a request. Less than the
/// ten datagrams that a new connection may have under way, or they would wait for [`ACK_DELAY`].
const UNACKNOWLEDGED: u32 = 7;
/// ... or after so long. It counts into the time after which what is sent last is sent again.
const ACK_DELAY: Duration = Duration::from_millis(5);

/// A UDP socket, and whether its buffers suffice for large datagrams.
pub(crate) struct Bound {
    pub(crate) socket: UdpSocket,
    pub(crate) large: bool,
}

/// Binds a UDP socket; an unspecified IPv6 address takes IPv4 too.
pub(crate) fn bind(address: SocketAddr) -> io::Result<Bound> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    grow_buffers(&socket);
    // Linux reports twice what was asked for.
    let size = |size: io::Result<usize>| size.unwrap_or(0) / 2;
    let large =
        size(socket.recv_buffer_size()).min(size(socket.send_buffer_size())) >= LARGE_BUFFER;
    Ok(Bound {
        socket: socket.into(),
        large,
    })
}

/// Sizes of a UDP socket's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// What the kernel gives to receive.
    pub receive: usize,
    /// What it gives to send.
    pub send: usize,
    /// What is asked for.
    pub wanted: usize,
}

/// What buffers a socket of this process gets.
///
/// # Errors
/// If it gets none.
pub fn socket_buffers() -> io::Result<Buffers> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    grow_buffers(&socket);
    Ok(Buffers {
        receive: socket.recv_buffer_size()? / 2,
        send: socket.send_buffer_size()? / 2,
        wanted: SOCKET_BUFFER,
    })
}

/// Best effort: past the system's limit only with CAP_NET_ADMIN.
fn grow_buffers(socket: &Socket) {
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    }
}

/// What the path to a peer allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Loopback, with large buffers on this side. (A peer with small ones says so in the handshake
    /// by the largest datagram it takes.)
    Loopback,
    /// Anything else.
    Network,
}

impl Path {
    pub(crate) fn to(peer: IpAddr, large: bool) -> Self {
        match peer.to_canonical().is_loopback() && large {
            true => Self::Loopback,
            false => Self::Network,
        }
    }
}

/// Largest datagram an endpoint takes.
pub(crate) fn largest_datagram(large: bool) -> Option<u16> {
    large.then_some(LOOPBACK_DATAGRAM)
}

/// Which side of a connection is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// QUIC's settings for one connection.
pub(crate) fn transport(path: Path, role: Role) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(UNACKNOWLEDGED))
        .max_ack_delay(Some(ACK_DELAY));
    // The client opens the control stream and, let in, the lanes; the server the push stream.
    let (bidi, uni, window) = match role {
        Role::Client => (0, 1, RECEIVE_WINDOW),
        Role::Server => (1, 0, STRANGER_WINDOW),
    };
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(bidi))
        .max_concurrent_uni_streams(VarInt::from_u32(uni))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(window))
        .send_window(u64::from(window))
        .datagram_receive_buffer_size(None)
        .initial_rtt(INITIAL_RTT)
        .ack_frequency_config(Some(acks))
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok());
    if path == Path::Loopback {
        let mut cubic = CubicConfig::default();
        // The default window is smaller than one such datagram: nothing could be sent.
        cubic.initial_window(u64::from(RECEIVE_WINDOW));
        config
            .initial_mtu(LOOPBACK_DATAGRAM)
            .mtu_discovery_config(None)
            .enable_segmentation_offload(false)
            .congestion_controller_factory(Arc::new(cubic));
    }
    Arc::new(config)
}

/// Gives a connection to a server what its lanes need.
pub(crate) fn let_in(connection: &quinn::Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(MAX_LANES as u32 + 1));
    connection.set_receive_window(VarInt::from_u32(RECEIVE_WINDOW));
    connection.set_send_window(u64::from(RECEIVE_WINDOW));
}

/// How many threads a daemon gives its connections. A thread more costs wake-ups: whoever finds work wakes
/// another to look for more, which on two cores takes a fifth of what a small request costs. The rest of the
/// cores is for the kernel, and for whoever the daemon works for.
pub fn network_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 2).max(1)
}
