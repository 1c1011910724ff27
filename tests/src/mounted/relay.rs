//! A UDP relay between clients and the server: a link that can be cut, and slowed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// How slow a link is, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// How long a datagram is on its way.
    pub delay: Duration,
    /// How many bytes pass in a second.
    pub rate: u32,
}

/// A slow link holds back what it gets within this time; more is lost.
const HELD_BACK: Duration = Duration::from_millis(250);

/// One direction of a link, for one client.
struct Line {
    /// When it has passed on what it has.
    free: Instant,
    late: Sender<(Instant, Vec<u8>)>,
}

impl Line {
    fn new(send: impl Fn(&[u8]) + Send + 'static) -> Self {
        let (late, due) = mpsc::channel();
        thread::spawn(move || send_when_due(&due, send));
        Self {
            free: Instant::now(),
            late,
        }
    }

    fn pass(&mut self, slow: Slow, datagram: &[u8]) {
        let now = Instant::now();
        let free = self.free.max(now);
        if free - now > HELD_BACK {
            return;
        }
        let takes = datagram.len() as f64 / f64::from(slow.rate.max(1));
        self.free = free + Duration::from_secs_f64(takes);
        // The thread is there as long as this is.
        let _ = self.late.send((self.free + slow.delay, datagram.to_vec()));
    }
}

/// Ends when the line does.
fn send_when_due(late: &Receiver<(Instant, Vec<u8>)>, send: impl Fn(&[u8])) {
    while let Ok((due, datagram)) = late.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        send(&datagram);
    }
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
            slow: Mutex::new(None),
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

    /// From now on the link is so slow, or as fast as it can be.
    pub fn slow(&self, slow: Option<Slow>) {
        *self.shared.slow() = slow;
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

    fn slow(&self) -> std::sync::MutexGuard<'_, Option<Slow>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Datagrams may be lost; that is what the protocol above is for.
    fn pass(&self, line: &mut Line, datagram: &[u8], send: impl FnOnce(&[u8])) {
        let slow = *self.slow();
        match (self.cut.load(Ordering::Relaxed), slow) {
            (true, _) => {}
            (false, None) => send(datagram),
            (false, Some(slow)) => line.pass(slow, datagram),
        }
    }
}

/// Each client gets a socket of its own towards the server, and a thread that
/// brings back what arrives there.
fn towards_server(front: &Arc<UdpSocket>, server: SocketAddr, shared: &Arc<Shared>) {
    let mut backs: HashMap<SocketAddr, (Arc<UdpSocket>, Line)> = HashMap::new();
    let mut threads = Vec::new();
    let mut buffer = vec![0; 65536];
    while !shared.stopped() {
        let Ok((len, client)) = front.recv_from(&mut buffer) else {
            continue;
        };
        let (back, line) = match backs.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let Ok(back) = socket().map(Arc::new) else {
                    continue;
                };
                let for_line = Arc::clone(&back);
                let line = Line::new(move |late| drop(for_line.send_to(late, server)));
                let (for_thread, front) = (Arc::clone(&back), Arc::clone(front));
                let shared = Arc::clone(shared);
                threads.push(thread::spawn(move || {
                    towards_client(&for_thread, &front, client, &shared);
                }));
                place.insert((back, line))
            }
        };
        let send = |datagram: &[u8]| drop(back.send_to(datagram, server));
        shared.pass(line, &buffer[..len], send);
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn towards_client(back: &UdpSocket, front: &Arc<UdpSocket>, client: SocketAddr, shared: &Shared) {
    let for_line = Arc::clone(front);
    let mut line = Line::new(move |late| drop(for_line.send_to(late, client)));
    let mut buffer = vec![0; 65536];
    while !shared.stopped() {
        let Ok(len) = back.recv(&mut buffer) else {
            continue;
        };
        let send = |datagram: &[u8]| drop(front.send_to(datagram, client));
        shared.pass(&mut line, &buffer[..len], send);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_passes_both_ways_until_it_is_cut_and_late_when_it_is_slow() -> io::Result<()> {
        let server = socket()?;
        let relay = Relay::start(server.local_addr()?)?;
        let client = socket()?;
        client.connect(relay.address())?;
        let mut buffer = [0; 16];
        let mut exchange = || -> io::Result<()> {
            client.send(b"ping")?;
            let (_, from) = server.recv_from(&mut buffer)?;
            server.send_to(b"pong", from)?;
            client.recv(&mut buffer).map(drop)
        };
        client.set_read_timeout(Some(Duration::from_secs(5)))?;
        exchange()?;
        relay.cut();
        exchange().expect_err("the link is cut");
        relay.mend();
        exchange()?;
        let delay = Duration::from_millis(60);
        relay.slow(Some(Slow { delay, rate: 1000 }));
        let begun = Instant::now();
        exchange()?;
        assert!(begun.elapsed() >= 2 * delay, "{:?}", begun.elapsed());
        relay.slow(None);
        exchange()
    }
}
