//! What operations are answered.

use crate::attr::{Attr, DirEntry, FsStat, Version};
use crate::explain::Explained;
use crate::ids::{Handle, OpenId, OpenToken};
use crate::lock::{LockFound, Locked, Unlocked};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// The answer to a request that was not refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Response {
    /// Done; nothing to tell beyond `touched` and the payload.
    Done,
    /// The name exists, or the object was made.
    Object(Object),
    /// The name doesn't exist. Not a refusal, since it may be cached.
    NoEntry,
    /// Attributes.
    Attr(Attr),
    /// An open.
    Opened(Opened),
    /// An object created or found, and its open.
    Created(Created),
    /// Bytes written or copied.
    Written(Written),
    /// Where data or a hole begins.
    Offset(Offset),
    /// A page of a listing.
    Entries(Entries),
    /// State of the file system.
    FsStat(FsStat),
    /// What became of a request for a lock.
    Locked(Locked),
    /// A lock that stands against another one, if there is one.
    LockFound(Option<LockFound>),
    /// Bytes are unlocked, or a request for a lock is given up.
    Unlocked(Unlocked),
    /// Who holds what of an object.
    Explained(Explained),
}

/// What some operation is answered. Its conversions are the only ones from and to what is on the wire.
pub trait Answer: Into<Response> {
    /// Whether a response is one.
    fn is(response: &Response) -> bool;

    /// `None` if the response is none.
    fn of(response: Response) -> Option<Self>;
}

macro_rules! answers {
    ($($answer:ident)*) => {
        $(
            impl Answer for $answer {
                fn is(response: &Response) -> bool {
                    matches!(response, Response::$answer(_))
                }

                fn of(response: Response) -> Option<Self> {
                    match response {
                        Response::$answer(answer) => Some(answer),
                        _ => None,
                    }
                }
            }

            impl From<$answer> for Response {
                fn from(answer: $answer) -> Self {
                    Self::$answer(answer)
                }
            }
        )*
    };
}

answers! { Object Attr Opened Created Written Offset Entries FsStat Locked Unlocked Explained }

impl Answer for () {
    fn is(response: &Response) -> bool {
        *response == Response::Done
    }

    fn of(response: Response) -> Option<Self> {
        Self::is(&response).then_some(())
    }
}

impl From<()> for Response {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl Answer for Option<Object> {
    fn is(response: &Response) -> bool {
        matches!(response, Response::Object(_) | Response::NoEntry)
    }

    fn of(response: Response) -> Option<Self> {
        match response {
            Response::Object(found) => Some(Some(found)),
            Response::NoEntry => Some(None),
            _ => None,
        }
    }
}

impl From<Option<Object>> for Response {
    fn from(found: Option<Object>) -> Self {
        found.map_or(Self::NoEntry, Self::Object)
    }
}

impl Answer for Option<LockFound> {
    fn is(response: &Response) -> bool {
        matches!(response, Response::LockFound(_))
    }

    fn of(response: Response) -> Option<Self> {
        match response {
            Response::LockFound(found) => Some(found),
            _ => None,
        }
    }
}

impl From<Option<LockFound>> for Response {
    fn from(found: Option<LockFound>) -> Self {
        Self::LockFound(found)
    }
}

/// An object that a name denotes, or that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Object {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
}

/// An open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Opened {
    /// Its number.
    pub open: OpenId,
    /// Its proof, for reclaim.
    pub token: OpenToken,
    /// The object's attributes.
    pub attr: Attr,
}

/// An object created or found, and its open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Created {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
    /// The open's number.
    pub open: OpenId,
    /// Its proof, for reclaim.
    pub token: OpenToken,
}

/// Bytes written or copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Written {
    /// How many.
    pub len: u64,
    /// Where they begin (append: decided by the server).
    pub offset: u64,
    /// Why what was to be [set](crate::change::WriteKind::Flush) with them isn't, though they are written.
    pub unset: Option<Refusal>,
    /// Of a [flush](crate::change::WriteKind::Flush): what the file was after it. It is kept with the answer across a crash
    /// of the server, so that what is flushed next, though it be late, is known to follow.
    pub version: Option<Version>,
}

impl Written {
    /// So many bytes there, and nothing more to be told of them.
    pub fn plain(len: u64, offset: u64) -> Self {
        Self {
            len,
            offset,
            unset: None,
            version: None,
        }
    }
}

/// Where data or a hole begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Offset(pub u64);

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Entries {
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// Whether the listing ends with this page.
    pub end: bool,
}

impl Response {
    /// The open in it, and its proof.
    pub fn opened(&self) -> Option<(OpenId, &OpenToken)> {
        match self {
            Self::Opened(Opened { open, token, .. })
            | Self::Created(Created { open, token, .. }) => Some((*open, token)),
            _ => None,
        }
    }

    /// Does this to every handle in it.
    pub fn each_handle(&mut self, mut change: impl FnMut(&mut Handle)) {
        match self {
            Self::Object(Object { handle, .. }) | Self::Created(Created { handle, .. }) => {
                change(handle);
            }
            Self::Entries(Entries { entries, .. }) => {
                let nodes = entries.iter_mut().filter_map(|e| e.node.as_mut());
                nodes.for_each(|(handle, _)| change(handle));
            }
            Self::Explained(explained) => change(&mut explained.object),
            Self::Done
            | Self::NoEntry
            | Self::Attr(_)
            | Self::Opened(_)
            | Self::Written(_)
            | Self::Offset(_)
            | Self::FsStat(_)
            | Self::Locked(_)
            | Self::LockFound(_)
            | Self::Unlocked(_) => {}
        }
    }
}
