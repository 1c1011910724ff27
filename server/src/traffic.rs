//! What has passed on the connections of all sessions.

use crate::sync;
use leasefs_transport::{Connection, Traffic};
use std::collections::HashMap;
use std::ops::Add;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The connections of all sessions, and what had passed on those that have ended.
#[derive(Debug, Default)]
pub struct Connections(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    live: HashMap<u64, Connection>,
    ended: Traffic,
    begun: u64,
}

/// What they come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// What has passed.
    pub traffic: Traffic,
    /// How many connections there were.
    pub begun: u64,
    /// The longest round-trip time of those there are.
    pub slowest: Option<Duration>,
}

/// Held as long as the connection counts as one there is.
#[derive(Debug)]
pub struct Counted {
    all: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// The connection `number` begins, which no other has.
    pub fn begins(self: &Arc<Self>, number: u64, connection: &Connection) -> Counted {
        let mut state = sync::lock(&self.0);
        state.begun += 1;
        state.live.insert(number, connection.clone());
        Counted {
            all: Arc::clone(self),
            number,
        }
    }

    /// What they come to now. It never goes back.
    pub fn sum(&self) -> Sum {
        let state = sync::lock(&self.0);
        let live = state.live.values();
        Sum {
            traffic: live
                .clone()
                .map(Connection::traffic)
                .fold(state.ended, Traffic::add),
            begun: state.begun,
            slowest: live.map(Connection::rtt).max(),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = sync::lock(&self.all.0);
        if let Some(connection) = state.live.remove(&self.number) {
            state.ended = state.ended + connection.traffic();
        }
    }
}
