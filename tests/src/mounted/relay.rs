//! A UDP relay between clients and the server: a link that can be cut.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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
}

/// Each client gets a socket of its own towards the server, and a thread that
/// brings back what arrives there.
fn towards_server(front: &Arc<UdpSocket>, server: SocketAddr, shared: &Arc<Shared>) {
    let mut backs: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut threads = Vec::new();
    let mut buffer = vec![0; 65536];
    while !shared.stopped() {
        let Ok((len, client)) = front.recv_from(&mut buffer) else {
            continue;
        };
        let back = match backs.entry(client) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(place) => {
                let Ok(back) = socket().map(Arc::new) else {
                    continue;
                };
                let for_thread = Arc::clone(place.insert(back));
                let (front, shared) = (Arc::clone(front), Arc::clone(shared));
                let back = Arc::clone(&for_thread);
                threads.push(thread::spawn(move || {
                    towards_client(&for_thread, &front, client, &shared);
                }));
                back
            }
        };
        if shared.passes() {
            // Datagrams may be lost; that is what the protocol above is for.
            let _ = back.send_to(&buffer[..len], server);
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn towards_client(back: &UdpSocket, front: &UdpSocket, client: SocketAddr, shared: &Shared) {
    let mut buffer = vec![0; 65536];
    while !shared.stopped() {
        let Ok(len) = back.recv(&mut buffer) else {
            continue;
        };
        if shared.passes() {
            let _ = front.send_to(&buffer[..len], client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_passes_both_ways_until_it_is_cut() -> io::Result<()> {
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
        exchange()
    }
}
