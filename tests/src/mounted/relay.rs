//! A UDP relay between clients and the server: a link that can be cut, and be slow and far.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a link is like that is slow and far.
#[derive(Debug, Clone, Copy)]
pub struct Slow {
    /// Bytes a second, in each direction.
    pub rate: u64,
    /// How long each way takes besides.
    pub delay: Duration,
    /// Bytes that may wait for the line; what comes then is lost.
    pub queue: u64,
}

/// Passes datagrams on between an address of its own and the server's.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    cut: AtomicBool,
    stop: AtomicBool,
    slow: Mutex<Option<Slow>>,
}

/// How soon the threads notice that they should end.
const TICK: Duration = Duration::from_millis(50);

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(TICK))?;
    let buffers = 4 * 1024 * 1024;
    // Without the privilege the usual limit stays, which is only slower.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, buffers);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, buffers);
    Ok(socket)
}

impl Relay {
    /// A relay to `server`, with the link whole.
    ///
    /// # Errors
    /// When no socket can be had.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let front = Arc::new(socket()?);
        let address = front.local_addr()?;
        let shared = Arc::new(Shared {
            cut: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            slow: Mutex::default(),
        });
        let for_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || towards_server(&front, server, &for_thread));
        Ok(Self {
            address,
            shared,
            threads: vec![thread],
        })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drops everything from now on, in both directions.
    pub fn cut(&self) {
        self.shared.cut.store(true, Ordering::Relaxed);
    }

    /// From now on the link is like this, or as fast as it can be.
    pub fn slow(&self, slow: Option<Slow>) {
        let now = self.shared.slow.lock();
        *now.unwrap_or_else(PoisonError::into_inner) = slow;
    }

    /// Passes things on again.
    pub fn mend(&self) {
        self.shared.cut.store(false, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn passes(&self) -> bool {
        !self.cut.load(Ordering::Relaxed)
    }

    fn slow(&self) -> Option<Slow> {
        *self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One direction of a link.
struct Line<F> {
    /// Passes a datagram on. One may be lost; that is what the protocol above is for.
    pass: F,
    /// When the line is free again.
    free: Instant,
    /// To a thread that passes on what has arrived.
    far: Option<Sender<(Instant, Vec<u8>)>>,
}

impl<F: Fn(&[u8]) + Clone + Send + 'static> Line<F> {
    fn new(pass: F) -> Self {
        Self {
            pass,
            free: Instant::now(),
            far: None,
        }
    }

    fn take(&mut self, datagram: &[u8], slow: Option<Slow>) {
        let Some(slow) = slow else {
            return (self.pass)(datagram);
        };
        let now = Instant::now();
        let line = |bytes: u64| Duration::from_secs_f64(bytes as f64 / slow.rate as f64);
        self.free = self.free.max(now);
        if self.free - now > line(slow.queue) {
            return;
        }
        self.free += line(datagram.len() as u64);
        let arrives = (self.free + slow.delay, datagram.to_vec());
        let pass = self.pass.clone();
        let far = self.far.get_or_insert_with(|| {
            let (far, near) = channel::<(Instant, Vec<u8>)>();
            thread::spawn(move || {
                for (at, datagram) in near {
                    thread::sleep(at.saturating_duration_since(Instant::now()));
                    pass(&datagram);
                }
            });
            far
        });
        // Its thread lives as long as it is.
        let _ = far.send(arrives);
    }
}

/// Each client gets a socket of its own towards the server, and a thread that
/// brings back what arrives there.
fn towards_server(front: &Arc<UdpSocket>, server: SocketAddr, shared: &Arc<Shared>) {
    let mut backs = HashMap::new();
    let mut threads = Vec::new();
    let mut buffer = vec![0; 65536];
    while !shared.stopped() {
        let Ok((len, client)) = front.recv_from(&mut buffer) else {
            continue;
        };
        let back = match backs.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let Ok(back) = socket().map(Arc::new) else {
                    continue;
                };
                let for_thread = Arc::clone(&back);
                let (front, shared) = (Arc::clone(front), Arc::clone(shared));
                threads.push(thread::spawn(move || {
                    towards_client(&for_thread, front, client, &shared);
                }));
                place.insert(Line::new(move |datagram: &[u8]| {
                    let _ = back.send_to(datagram, server);
                }))
            }
        };
        if shared.passes() {
            back.take(&buffer[..len], shared.slow());
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn towards_client(back: &UdpSocket, front: Arc<UdpSocket>, client: SocketAddr, shared: &Shared) {
    let mut buffer = vec![0; 65536];
    let mut line = Line::new(move |datagram: &[u8]| {
        let _ = front.send_to(datagram, client);
    });
    while !shared.stopped() {
        let Ok(len) = back.recv(&mut buffer) else {
            continue;
        };
        if shared.passes() {
            line.take(&buffer[..len], shared.slow());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next datagram's sender. With a time-out a signal, which tests beside this one send, ends a wait (signal(7)).
    fn received(socket: &UdpSocket) -> io::Result<SocketAddr> {
        let mut buffer = [0; 2_000];
        loop {
            match socket.recv_from(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|(_, from)| from),
            }
        }
    }

    #[test]
    fn a_relay_passes_both_ways_until_it_is_cut() -> io::Result<()> {
        let server = socket()?;
        let relay = Relay::start(server.local_addr()?)?;
        let client = socket()?;
        client.connect(relay.address())?;
        let exchange = || -> io::Result<()> {
            client.send(b"ping")?;
            server.send_to(b"pong", received(&server)?)?;
            received(&client).map(drop)
        };
        client.set_read_timeout(Some(Duration::from_secs(5)))?;
        exchange()?;
        relay.cut();
        exchange().expect_err("the link is cut");
        relay.mend();
        exchange()
    }

    #[test]
    fn a_slow_relay_takes_one_datagram_after_the_other_and_loses_what_is_too_much() -> io::Result<()>
    {
        let server = socket()?;
        let relay = Relay::start(server.local_addr()?)?;
        let client = socket()?;
        client.connect(relay.address())?;
        server.set_read_timeout(Some(Duration::from_secs(5)))?;
        relay.slow(Some(Slow {
            rate: 10_000,
            delay: Duration::from_millis(100),
            queue: 2_000,
        }));
        let began = Instant::now();
        for _ in 0..10 {
            client.send(&[1; 1_000])?;
        }
        for _ in 0..3 {
            received(&server)?;
        }
        assert!(began.elapsed() >= Duration::from_millis(400));
        server.set_read_timeout(Some(Duration::from_millis(500)))?;
        received(&server).map_or(Ok(()), |_| Err(io::Error::other("not lost")))
    }
}
