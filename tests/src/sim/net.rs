//! Connections: streams that each keep their order, links that are slow, cuts that lose what is under way.

use super::model::{MS, Nanos, S, US};
use crate::rng::Rng;
use std::collections::BTreeMap;

/// A connection's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Request lanes of a connection: one for what is small, the others for what isn't.
pub const LANES: u8 = 4;

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

    /// Whether it goes to the server.
    pub fn is_up(self) -> bool {
        matches!(self, Self::ControlUp | Self::LaneUp(_))
    }
}

/// What a client's way to the server is like.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// It usually takes so long.
    pub usual: Nanos,
    /// Bytes a second, in each direction.
    pub rate: u64,
}

#[derive(Clone, Debug)]
struct Link {
    client: usize,
    /// When each stream's last message arrives.
    last: [Nanos; Stream::COUNT],
    /// When the line is free again: down, up.
    free: [Nanos; 2],
    /// From when on nothing arrives any more, per direction.
    up_ends: Nanos,
    down_ends: Nanos,
    way: Way,
    /// Datagrams that the client has received.
    heard: u64,
}

/// Between two numbers of a client, where each has its own.
const OWN: u64 = 100;

/// All connections.
#[derive(Clone, Debug, Default)]
pub struct Net {
    links: BTreeMap<LinkId, Link>,
    /// Each client's connections have numbers of their own, whoever connects first.
    apart: bool,
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

    fn link(&self, link: LinkId) -> &Link {
        &self.links[&link]
    }

    fn link_mut(&mut self, link: LinkId) -> &mut Link {
        self.links.get_mut(&link).expect("it was connected")
    }

    /// A new connection of a client.
    pub fn connect(&mut self, client: usize, way: Way) -> LinkId {
        let before = self.links.values();
        let id = match self.apart {
            true => {
                let own = before.filter(|link| link.client == client).count() as u64;
                LinkId(own * OWN + client as u64)
            }
            false => LinkId(before.len() as u64),
        };
        let link = Link {
            client,
            last: [0; Stream::COUNT],
            free: [0; 2],
            up_ends: Nanos::MAX,
            down_ends: Nanos::MAX,
            way,
            heard: 0,
        };
        self.links.insert(id, link);
        id
    }

    /// From now on a connection's number tells its client.
    pub fn number_apart(&mut self) {
        self.apart = true;
    }

    /// Whose connection it is.
    pub fn client(&self, link: LinkId) -> usize {
        self.link(link).client
    }

    /// When a message of so many bytes that is sent now arrives.
    pub fn arrival(
        &mut self,
        rng: &mut Rng,
        now: Nanos,
        (link, stream): (LinkId, Stream),
        bytes: usize,
    ) -> Nanos {
        let slowest = self.slowest;
        let link = self.link_mut(link);
        let slow = match rng.below(200) {
            0 => rng.below(slowest as usize) as Nanos,
            1..20 => rng.below(20 * MS as usize) as Nanos,
            _ => rng.below(link.way.usual as usize) as Nanos,
        };
        // The line takes one byte after the other, but small messages find their way in between.
        let takes = bytes as u64 * S / link.way.rate.max(1);
        let free = &mut link.free[usize::from(stream.is_up())];
        let begins = match bytes > 2 * 1024 {
            true => now.max(*free),
            false => now,
        };
        *free = now.max(*free) + takes;
        let sent = begins + takes;
        let last = &mut link.last[stream.index()];
        *last = (*last + 1).max(sent + link.way.usual + slow + 10 * US);
        *last
    }

    /// Whether what arrives now on a stream is delivered.
    pub fn delivers(&mut self, now: Nanos, link: LinkId, stream: Stream) -> bool {
        let link = self.link_mut(link);
        let up = now < link.up_ends;
        let down = now < link.down_ends;
        match stream.is_up() {
            true => {
                // It is acknowledged.
                link.heard += u64::from(up && down);
                up
            }
            false => {
                link.heard += u64::from(down);
                down
            }
        }
    }

    /// Whether what is under way on a stream is lost.
    pub fn is_cut(&self, now: Nanos, link: LinkId, stream: Stream) -> bool {
        let link = self.link(link);
        now >= match stream.is_up() {
            true => link.up_ends,
            false => link.down_ends,
        }
    }

    /// Datagrams that a connection's client has received.
    pub fn heard(&self, link: LinkId) -> u64 {
        self.link(link).heard
    }

    /// The usual way there and back.
    pub fn round_trip(&self, link: LinkId) -> Nanos {
        3 * self.link(link).way.usual
    }

    /// Cuts a connection: its directions end at these moments.
    pub fn cut(&mut self, link: LinkId, up_ends: Nanos, down_ends: Nanos) {
        let link = self.link_mut(link);
        link.up_ends = link.up_ends.min(up_ends);
        link.down_ends = link.down_ends.min(down_ends);
    }
}
