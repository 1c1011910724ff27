//! QUIC's UDP socket. As quinn's own for tokio, but the runtime watches it for what comes in alone: a socket that is
//! watched for room too wakes its thread again for each packet that has left. Where there is no room, which is rare
//! with its large buffers, it is tried again a moment later.

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::time::Sleep;

/// Until room is looked for again.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Socket {
    io: AsyncFd<OwnedFd>,
    address: SocketAddr,
    udp: UdpSocketState,
    /// The last packet found no room.
    full: AtomicBool,
    runtime: Handle,
}

impl Socket {
    pub(crate) fn new(socket: UdpSocket, runtime: Handle) -> io::Result<Self> {
        let udp = UdpSocketState::new((&socket).into())?;
        let address = socket.local_addr()?;
        let socket = OwnedFd::from(socket);
        let io = {
            let _runtime = runtime.enter();
            // SAFETY: an `OwnedFd` is open for as long as it lives, and is the same descriptor throughout.
            unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }
        };
        let io = io.map_err(|error| error.into_parts().1)?;
        Ok(Self {
            io,
            address,
            udp,
            full: AtomicBool::new(false),
            runtime,
        })
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room {
            socket: self,
            pause: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.udp.send(self.io.get_ref().into(), transmit);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::WouldBlock
        {
            self.full.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.io.poll_read_ready(cx))?;
            let received = ready.try_io(|io| self.udp.recv(io.get_ref().into(), bufs, meta));
            let Ok(received) = received else { continue };
            // There was no more; what has come since is told anew.
            if matches!(received, Ok(count) if count < bufs.len().min(meta.len())) {
                ready.clear_ready();
            }
            return Poll::Ready(received);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        self.udp.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.udp.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.udp.may_fragment()
    }
}

/// One connection's wait for room to send.
#[derive(Debug)]
struct Room {
    socket: Arc<Socket>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.socket.full.load(Ordering::Relaxed) {
            self.pause = None;
            return Poll::Ready(Ok(()));
        }
        let socket = Arc::clone(&self.socket);
        let pause = self.pause.get_or_insert_with(|| {
            let _runtime = socket.runtime.enter();
            Box::pin(tokio::time::sleep(PAUSE))
        });
        ready!(Future::poll(pause.as_mut(), cx));
        self.pause = None;
        socket.full.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}
