//! A request on its way through the session.

use super::types::{Answered, Unsettled};
use crate::api::ConnectionId;
use crate::run::Place;
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{BootId, Caller, Change, Handle, Query, Refusal, RequestFrame, Seq};
use std::sync::Arc;

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
    pub(super) permit: Option<Place>,
}

/// What is asked for, before it has a number.
#[derive(Debug)]
pub(super) enum Asked {
    Query(Query),
    Change(Change, NewChange),
}

#[derive(Debug)]
pub(super) struct NewChange {
    /// Objects whose earlier unanswered changes it follows.
    pub(super) touches: Vec<Handle>,
    pub(super) dropped: Vec<Handle>,
    /// The life of the server's host in which what it must come behind was settled; sent in no other.
    pub(super) life: Option<BootId>,
}

/// How long a request waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// While the server is out of contact.
    pub(super) silent: BootTime,
    /// While it is in contact.
    pub(super) in_contact: BootTime,
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
