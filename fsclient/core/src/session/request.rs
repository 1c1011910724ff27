//! A request on its way through the session.

use super::types::{Answered, Unsettled};
use crate::api::ConnectionId;
use crate::opens::Closing;
use crate::run::Place;
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_lease::time::BootTime;
use leasefs_protocol::change::WriteKind;
use leasefs_protocol::{
    BootId, Caller, Change, Durability, Handle, LockEpoch, Query, Refusal, RequestFrame, Seq,
};
use std::sync::Arc;
use std::time::Duration;

/// What a waiting caller is told.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
pub(super) enum RequestOutcome {
    Answered(Answered),
    GaveUp {
        refusal: Refusal,
        unsettled: Option<Unsettled>,
    },
    /// The change was not sent: what it must come behind is no longer settled.
    Overtaken,
}

/// A request as its caller makes it.
#[derive(Debug)]
pub(super) struct New {
    pub(super) caller: Caller,
    pub(super) asked: Asked,
    pub(super) payload: Bytes,
    /// `None` waits for ever.
    pub(super) wait: Option<Wait>,
    pub(super) pid: Option<u32>,
    pub(super) places: [Option<Place>; 2],
}

/// What is asked for, before it has a number.
#[derive(Debug)]
pub(super) enum Asked {
    Query(Query),
    /// Nothing but that these are closed.
    Close(Closing),
    Change(Change, NewChange),
}

impl Asked {
    /// Whether it brings what was stored here before.
    pub(super) fn is_write_back(&self) -> bool {
        let kind = match self {
            Self::Change(Change::Write(write), _) => write.kind,
            _ => return false,
        };
        matches!(kind, WriteKind::Flush { .. } | WriteKind::Page { .. })
    }
}

#[derive(Debug)]
pub(super) struct NewChange {
    /// Objects whose earlier unanswered changes it follows.
    pub(super) touches: Vec<Handle>,
    pub(super) dropped: Vec<Handle>,
    /// The life of the server's host in which what it must come behind was settled; sent in no other.
    pub(super) life: Option<BootId>,
    /// The tenure of the locks under which it is made.
    pub(super) locked: Option<LockEpoch>,
}

/// How patient who waits for the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as others' leases may take to run out, if nothing comes through meanwhile.
    Usual,
    /// As long as the server isn't silent: it works on it.
    WhileHeard,
    /// For ever.
    Endless,
}

impl Patience {
    /// Of a query.
    pub(super) fn of_query(query: &Query) -> Self {
        match query {
            Query::Commit(_) | Query::CommitAll(_) => Self::WhileHeard,
            // Who asks for these has to know what has become of it, however long that takes.
            Query::Lock(_) | Query::Unlock(_) | Query::CancelLock(_) | Query::ResetLocks(_) => {
                Self::Endless
            }
            _ => Self::Usual,
        }
    }

    /// Of a change. Nobody's call waits in a flush, and its bytes would only be sent again.
    pub(super) fn of_change(change: &Change) -> Self {
        match change {
            Change::Write(write) if matches!(write.kind, WriteKind::Flush { .. }) => Self::Endless,
            Change::Write(write) if write.durability != Durability::None => Self::WhileHeard,
            _ => Self::Usual,
        }
    }
}

/// How long something waits that the server is to do. What counts is time in which nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Since when it waits.
    pub(super) begun: BootTime,
    /// While the server is silent, from when it was heard last.
    pub(super) silent: Duration,
    /// In any case, from when bytes came through last; `None` as long as it takes.
    pub(super) at_most: Option<Duration>,
}

/// What is known of the way to the server, by the clock that stands still in suspend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Whether it is in contact.
    pub(crate) in_contact: bool,
    /// When it was heard last.
    pub(super) heard: BootTime,
    /// When bytes last came through, to it or from it.
    pub(super) moved: BootTime,
}

impl Wait {
    /// When nobody waits any more, if nothing happens until then.
    pub(super) fn ends(&self, progress: Progress) -> Option<BootTime> {
        let at_most = self
            .at_most
            .map(|most| self.begun.max(progress.moved) + most);
        match progress.in_contact {
            true => at_most,
            false => {
                let silent = self.begun.max(progress.heard) + self.silent;
                Some(at_most.map_or(silent, |at_most| at_most.min(silent)))
            }
        }
    }
}

/// A frame to send, encoded outside of the table's lock.
#[derive(Debug)]
pub(super) struct ToSend {
    pub(super) frame: Arc<RequestFrame>,
    pub(super) payload: Bytes,
}

/// A request that has been taken in.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) send: ToSend,
    pub(super) outcome: oneshot::Receiver<RequestOutcome>,
    /// Where to send it now; without connection it is sent with the next one.
    pub(super) connection: Option<ConnectionId>,
}

/// A request that has not been taken in.
#[derive(Debug)]
pub(super) enum NotTaken {
    Refused(Refusal),
    /// Too many unanswered changes of the same objects.
    NoRoom(Box<New>),
    /// It was made for another life of the server's host.
    Overtaken,
}

/// A request that waits, for `status`.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) kind: &'static str,
    pub(super) object: Option<Handle>,
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
    pub(super) since: BootTime,
    pub(super) wait: Option<Wait>,
}

/// What a new connection starts with.
#[derive(Debug, Default)]
pub(super) struct Resend {
    pub(super) cancels: Vec<Seq>,
    pub(super) frames: Vec<ToSend>,
}
