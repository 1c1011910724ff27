//! Operations that wait or run, and their order.

use super::api::{LockAsk, OpId, OpState, ReadKind};
use super::cover::Cover;
use super::ids::ObjId;
use super::ids::Sid;
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{LockEpoch, Mode, Parts, RecallId, SessionId};
use std::collections::BTreeMap;

/// An operation's place. One total order over all objects, so that operations that take
/// several objects can't wait for each other in a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Order {
    slot: u64,
    sub: u64,
    arrival: u64,
}

/// More places than operations are ever moved before one that was itself moved.
const ROOM: u64 = 1 << 62;

impl Order {
    pub(super) fn arrived(arrival: u64) -> Self {
        Self {
            slot: arrival,
            sub: u64::MAX,
            arrival,
        }
    }

    /// This operation's place directly before `other` (but behind those moved there earlier).
    pub(super) fn before(self, other: Order) -> Self {
        let sub = match other.sub {
            u64::MAX => ROOM + self.arrival,
            moved_too => moved_too
                .checked_sub(1)
                .expect("there is room before every place"),
        };
        Self {
            slot: other.slot,
            sub,
            arrival: self.arrival,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Read(ReadKind),
    /// A fill of a session that gets no leases for now.
    Parked(ReadKind),
    Change {
        /// The requester's kernel keeps pages locked until the answer.
        writeback: bool,
    },
    /// Something with locks, which nobody else decides meanwhile.
    Lock,
}

/// What an operation needs of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Need {
    pub(super) object: ObjId,
    pub(super) cover: Cover,
    /// The requester's own lease doesn't stand in the way.
    pub(super) own_allowed: bool,
}

impl Need {
    /// Whether it is of single names of a directory.
    pub(super) fn is_named(&self) -> bool {
        !self.cover.names.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Op {
    pub(super) session: SessionId,
    pub(super) kind: Kind,
    pub(super) state: OpState,
    pub(super) order: Order,
    pub(super) since: BootTime,
    /// A page fill that has waited until then is answered with a born-recalled lease.
    pub(super) patient_until: BootTime,
    /// When the last of the holders it has to wait for ends at the latest. From then on nothing
    /// is granted that it would have to wait for.
    pub(super) latest: BootTime,
    /// One per object.
    pub(super) needs: Vec<Need>,
    /// Unapproved recalls it waits for, and why.
    pub(super) waits: BTreeMap<(Sid, RecallId), Cause>,
    /// Of a change: made under locks of this tenure.
    pub(super) locked: Option<LockEpoch>,
    /// Of [`Kind::Lock`].
    pub(super) asks: Option<Box<LockAsk>>,
}

/// Why an operation waits for a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cause {
    /// The holder came first.
    Holder,
    /// The lease was granted, born recalled, past the waiting operation.
    Born,
}

impl Op {
    pub(super) fn need(&self, object: ObjId) -> Option<&Need> {
        self.needs.iter().find(|need| need.object == object)
    }

    /// Whether others that meet it have to wait for it: changes and exclusive fills.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(
            self.kind,
            Kind::Change { .. } | Kind::Lock | Kind::Read(ReadKind::FillForStore)
        )
    }

    /// Whether it would be given something that stands in the way of an orderly end.
    pub(super) fn is_for_later(&self) -> bool {
        self.is_fill() || matches!(self.asks.as_deref(), Some(LockAsk::Take(..)))
    }

    pub(super) fn is_fill(&self) -> bool {
        matches!(
            self.kind,
            Kind::Read(ReadKind::FillPages | ReadKind::FillForStore)
        )
    }

    pub(super) fn is_writeback(&self) -> bool {
        matches!(self.kind, Kind::Change { writeback: true }) && !planted::is(Bug::WritebackWaits)
    }

    pub(super) fn is_running(&self) -> bool {
        self.state == OpState::Running
    }
}

/// A read or change on its way into the table.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) op: OpId,
    pub(super) session: SessionId,
    pub(super) kind: Kind,
    pub(super) needs: Vec<Need>,
    pub(super) locked: Option<LockEpoch>,
    pub(super) asks: Option<Box<LockAsk>>,
}

impl Arrival {
    pub(super) fn new(op: OpId, session: SessionId, kind: Kind, needs: Vec<Need>) -> Self {
        Self {
            op,
            session,
            kind,
            needs,
            locked: None,
            asks: None,
        }
    }
}

/// The parts of which a grant in this mode is exclusive.
pub(super) fn exclusive(parts: Parts, mode: Mode) -> Parts {
    match mode {
        Mode::Read => Parts::NONE,
        Mode::Write => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_before_another_goes_behind_those_that_went_there_earlier() {
        let [change, next] = [3, 4].map(Order::arrived);
        let [first, second] = [7, 8].map(|n| Order::arrived(n).before(change));
        assert!(Order::arrived(2) < first && first < second && second < change && change < next);
    }

    #[test]
    fn what_goes_before_one_that_went_before_another_is_before_both() {
        let change = Order::arrived(3);
        let moved = Order::arrived(7).before(change);
        let further = Order::arrived(8).before(moved);
        assert!(further < moved && moved < change);
    }

    #[test]
    fn there_is_room_before_the_first_operation_of_a_server_s_life() {
        let change = Order::arrived(0);
        let moved = (1..100).scan(change, |place, arrival| {
            *place = Order::arrived(arrival).before(*place);
            Some(*place)
        });
        let places: Vec<_> = moved.collect();
        assert!(places.is_sorted_by(|earlier, later| later < earlier));
    }
}
