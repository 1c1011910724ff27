//! Connections: streams that each keep their order, and cuts that lose what is under way.

use super::model::{MS, Nanos, US};
use crate::rng::Rng;

/// A connection's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Request lanes of a connection.
pub const LANES: u8 = 2;

/// A stream, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Control messages of the client.
    ControlUp,
    /// Control messages of the server.
    ControlDown,
    /// Recalls.
    Push,
    /// Requests.
    LaneUp(u8),
    /// Replies.
    LaneDown(u8),
}

impl Stream {
    /// Streams of a connection.
    pub const COUNT: usize = 3 + 2 * LANES as usize;

    /// Its place among them.
    pub fn index(self) -> usize {
        match self {
            Self::ControlUp => 0,
            Self::ControlDown => 1,
            Self::Push => 2,
            Self::LaneUp(lane) => 3 + 2 * usize::from(lane),
            Self::LaneDown(lane) => 4 + 2 * usize::from(lane),
        }
    }

    fn is_up(self) -> bool {
        matches!(self, Self::ControlUp | Self::LaneUp(_))
    }
}

#[derive(Clone, Debug)]
struct Link {
    client: usize,
    /// When each stream's last message arrives.
    last: [Nanos; Stream::COUNT],
    /// From when on nothing arrives any more, per direction.
    up_ends: Nanos,
    down_ends: Nanos,
    /// The usual way takes so long.
    way: Nanos,
}

/// All connections.
#[derive(Clone, Debug, Default)]
pub struct Net {
    links: Vec<Link>,
    slowest: Nanos,
}

impl Net {
    /// Beyond its usual way a message takes so long at most.
    pub fn set_slowest(&mut self, slowest: Nanos) {
        self.slowest = slowest;
    }

    /// The longest that a message takes beyond its usual way.
    pub fn slowest(&self) -> Nanos {
        self.slowest
    }

    /// A new connection of a client.
    pub fn connect(&mut self, client: usize, way: Nanos) -> LinkId {
        self.links.push(Link {
            client,
            last: [0; Stream::COUNT],
            up_ends: Nanos::MAX,
            down_ends: Nanos::MAX,
            way,
        });
        LinkId(self.links.len() as u32 - 1)
    }

    /// Whose connection it is.
    pub fn client(&self, link: LinkId) -> usize {
        self.links[link.0 as usize].client
    }

    /// When a message that is sent now arrives.
    pub fn arrival(&mut self, rng: &mut Rng, now: Nanos, link: LinkId, stream: Stream) -> Nanos {
        let link = &mut self.links[link.0 as usize];
        let slow = match rng.below(200) {
            0 => rng.below(self.slowest as usize) as Nanos,
            1..20 => rng.below(20 * MS as usize) as Nanos,
            _ => rng.below(link.way as usize) as Nanos,
        };
        let last = &mut link.last[stream.index()];
        *last = (*last + 1).max(now + link.way + slow + 10 * US);
        *last
    }

    /// Whether what arrives now on a stream is delivered.
    pub fn delivers(&self, now: Nanos, link: LinkId, stream: Stream) -> bool {
        let link = &self.links[link.0 as usize];
        match stream.is_up() {
            true => now < link.up_ends,
            false => now < link.down_ends,
        }
    }

    /// The usual way there and back.
    pub fn round_trip(&self, link: LinkId) -> Nanos {
        3 * self.links[link.0 as usize].way
    }

    /// Cuts a connection: its directions end at these moments.
    pub fn cut(&mut self, link: LinkId, up_ends: Nanos, down_ends: Nanos) {
        let link = &mut self.links[link.0 as usize];
        link.up_ends = link.up_ends.min(up_ends);
        link.down_ends = link.down_ends.min(down_ends);
    }
}
