//! Where connections wait that have not been let in. Three rooms: handshakes under way, keys that aren't
//! enrolled, enrolled clients. What fills one takes nothing from another.

use super::crowd::Crowd;
use crate::sync;
use leasefs_protocol::KeyHash;
use leasefs_protocol::limits::{
    HELLO_TIMEOUT, MAX_GREETINGS, MAX_HANDSHAKES, MAX_SESSIONS_PER_CLIENT, MAX_STRANGERS,
};
use std::future::Future;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// What one host, as a rule, has for itself: an IPv4 address, or the first half of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Ipv6Addr::from_bits(network).into()
            }
        })
    }
}

/// A room and how to put somebody out of it: what he waits for is dropped.
type Room<K> = Arc<Mutex<Crowd<K, oneshot::Sender<()>>>>;

/// The rooms of a server.
#[derive(Debug)]
pub struct Entrance {
    handshakes: Room<Network>,
    strangers: Room<Network>,
    clients: Room<KeyHash>,
}

impl Default for Entrance {
    fn default() -> Self {
        let room = |room| Arc::new(Mutex::new(Crowd::new(room, room)));
        let clients = Crowd::new(MAX_GREETINGS, MAX_SESSIONS_PER_CLIENT);
        Self {
            handshakes: room(MAX_HANDSHAKES),
            strangers: room(MAX_STRANGERS),
            clients: Arc::new(Mutex::new(clients)),
        }
    }
}

impl Entrance {
    /// The first packet of a connection has come.
    pub fn handshake(&self, from: IpAddr) -> Place {
        let deadline = Instant::now() + HELLO_TIMEOUT;
        enter(&self.handshakes, from.into(), deadline)
    }

    /// Its client has shown a key: that of an enrolled client or not.
    pub fn greeting(&self, before: &Place, key: KeyHash, enrolled: bool, from: IpAddr) -> Place {
        match enrolled {
            true => enter(&self.clients, key, before.deadline),
            false => enter(&self.strangers, from.into(), before.deadline),
        }
    }
}

fn enter<K>(room: &Room<K>, from: K, deadline: Instant) -> Place
where
    K: Copy + Eq + Hash + Send + 'static,
{
    let (put_out, gives_way) = oneshot::channel();
    let (number, _put_out) = sync::lock(room).enter(from, put_out);
    let room = Arc::clone(room);
    Place {
        deadline,
        gives_way,
        leave: Some(Box::new(move || sync::lock(&room).leave(number))),
    }
}

/// A connection's place in a room, until it is dropped.
pub struct Place {
    deadline: Instant,
    gives_way: oneshot::Receiver<()>,
    leave: Option<Box<dyn FnOnce() + Send>>,
}

/// Why a connection must leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Leave {
    /// Others have come.
    #[error("no room: others have come since")]
    GiveWay,
    /// It hasn't been let in for too long.
    #[error("not let in in time")]
    TooLate,
}

impl Place {
    /// Waits for what the connection needs to go on, as long as it may stay.
    ///
    /// # Errors
    /// [`Leave`].
    pub async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Leave> {
        tokio::select! {
            biased;
            done = timeout_at(self.deadline, work) => done.map_err(|_| Leave::TooLate),
            _ = &mut self.gives_way => Err(Leave::GiveWay),
        }
    }

    /// As [`Place::wait`], for what must not be left half done for others' sake.
    ///
    /// # Errors
    /// [`Leave::TooLate`].
    pub async fn finish<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Leave> {
        let done = timeout_at(self.deadline, work).await;
        done.map_err(|_| Leave::TooLate)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> Network {
        address.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn one_host_cannot_pose_as_many_by_the_second_half_of_its_address() {
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:0:0:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    #[tokio::test]
    async fn who_gives_way_hears_of_it_while_he_waits() {
        let entrance = Entrance::default();
        let key = KeyHash([1; 32]);
        let from = IpAddr::from([10, 0, 0, 1]);
        let handshake = entrance.handshake(from);
        let mut first = entrance.greeting(&handshake, key, true, from);
        let others: Vec<_> = (0..MAX_SESSIONS_PER_CLIENT)
            .map(|_| entrance.greeting(&handshake, key, true, from))
            .collect();
        let waited = first.wait(std::future::pending::<()>()).await;
        assert_eq!(waited, Err(Leave::GiveWay));
        assert_eq!(sync::lock(&entrance.clients).len(), others.len());
        drop((first, others));
        assert_eq!(sync::lock(&entrance.clients).len(), 0);
    }
}
