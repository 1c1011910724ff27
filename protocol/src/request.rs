//! Requests and replies of the request streams ("lanes").
//!
//! A client pipelines [`RequestFrame`]s on a lane; [`Reply`]s come back on the same lane in any
//! order, matched by [`RequestId`]. The payload of a frame is the data of WRITE and SETXATTR on the
//! way in, of READ, READLINK, GETXATTR and LISTXATTR on the way out.

use crate::answer::{Answer, Response};
use crate::attr::Attr;
use crate::change::Change;
use crate::ids::{Handle, LockEpoch, OpenId, RequestId, Seq, Stamp};
use crate::lease::Grant;
use crate::query::Query;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// On whose behalf a request is made; the server's identity policy decides what it is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// The place of a change among those of its session: numbered, ordered, run once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Numbered {
    /// Its number.
    pub seq: Seq,
    /// Unanswered changes it takes effect behind.
    pub after: Vec<Seq>,
    /// Sent before, on this or an earlier connection.
    pub resent: bool,
    /// Objects whose covered parts this client has dropped from its own caches for this change.
    /// The server recalls from every other object the change touches, the sender's leases too.
    pub dropped: Vec<Handle>,
    /// Opens that nobody uses any more; at most [`crate::limits::MAX_BATCH`]. They are closed whatever becomes of the change,
    /// and before it is begun unless it follows others: what loses its last name by it is gone at once then.
    pub closed: Vec<OpenId>,
    /// Made under locks of this tenure: refused once they are lost.
    pub locked: Option<LockEpoch>,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Request {
    /// Something that changes nothing.
    Query(Query),
    /// A change, which has a number.
    Change(Numbered, Change),
}

impl Request {
    /// How many kinds there are.
    pub const KINDS: usize = Query::KINDS.len() + Change::KINDS.len();

    /// The names of all, as [`Self::kind`] gives them.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        Query::KINDS.iter().chain(Change::KINDS).copied()
    }

    /// Its operation's name in logs and counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Query(query) => query.kind(),
            Self::Change(_, change) => change.kind(),
        }
    }

    /// Whether this can be its answer.
    pub fn is_answered_by(&self, response: &Response) -> bool {
        match self {
            Self::Query(query) => query.is_answered_by(response),
            Self::Change(_, change) => change.is_answered_by(response),
        }
    }

    /// The objects its operation names by their handles, the one it is about first.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        let (query, change) = match self {
            Self::Query(query) => (query.handle(), None),
            Self::Change(_, change) => (None, Some(change.handles())),
        };
        query.into_iter().chain(change.into_iter().flatten())
    }

    /// Does this to every handle in it.
    pub fn each_handle(&mut self, change: impl FnMut(&mut Handle)) {
        match self {
            Self::Query(query) => query.handle_mut().into_iter().for_each(change),
            Self::Change(numbered, operation) => {
                let dropped = numbered.dropped.iter_mut();
                operation.handles_mut().chain(dropped).for_each(change);
            }
        }
    }

    /// Its place among the changes, if it is one.
    pub fn numbered(&self) -> Option<&Numbered> {
        match self {
            Self::Query(_) => None,
            Self::Change(numbered, _) => Some(numbered),
        }
    }
}

/// A request as it stands on a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct RequestFrame {
    /// Matches the reply. Of the session's requests only this one has it, and keeps it when it is
    /// sent again on a later connection.
    pub id: RequestId,
    /// Every change numbered below has been answered to the client: its answer may be forgotten.
    pub low_water: Seq,
    /// On whose behalf.
    pub caller: Caller,
    /// What is asked.
    pub request: Request,
}

/// An object a change has touched, as it was right after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Touched {
    /// The object.
    pub object: Handle,
    /// Its attributes after the change.
    pub attr: Attr,
}

/// The reply to a [`RequestFrame`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Reply<A = Response> {
    /// The request.
    pub id: RequestId,
    /// Whether the session's leases are renewed from the moment the request was sent.
    pub renews: bool,
    /// Of a change: its place among the session's grants and recalls. What older stamps say of
    /// the objects in `touched` is never cached.
    pub stamp: Stamp,
    /// What of the answer may be cached.
    pub grants: Vec<Grant>,
    /// The objects a change has touched.
    pub touched: Vec<Touched>,
    /// With a Write lease: how many bytes the session may buffer in all for the next seconds
    /// ([`crate::limits::ROOM_LASTS`]), its share of the space that is free.
    pub room: Option<u64>,
    /// The answer.
    pub result: Result<A, Refusal>,
}

impl Reply {
    /// With an answer of this kind; refused so if it is of another.
    pub fn typed<A: Answer>(self, otherwise: Refusal) -> Reply<A> {
        Reply {
            id: self.id,
            renews: self.renews,
            stamp: self.stamp,
            grants: self.grants,
            touched: self.touched,
            room: self.room,
            result: self
                .result
                .and_then(|response| A::of(response).ok_or(otherwise)),
        }
    }

    /// Does this to every handle in it.
    pub fn each_handle(&mut self, mut change: impl FnMut(&mut Handle)) {
        self.grants.iter_mut().for_each(|g| change(&mut g.object));
        self.touched.iter_mut().for_each(|t| change(&mut t.object));
        if let Ok(response) = &mut self.result {
            response.each_handle(change);
        }
    }
}
