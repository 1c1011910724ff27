//! The control stream (the first stream a client opens) and the push stream (opened by the server).
//!
//! `Hello` comes first; nothing else is read before it is answered. Keep-alives and approvals
//! travel here and wait behind nothing. Recalls travel on the push stream.

use crate::attr::Attr;
use crate::codec;
use crate::ids::{BootId, Handle, KeyHash, LockEpoch, OpenId, OpenToken, Seq, SessionId};
use crate::lease::{Approval, Mode, Parts, Recall, Release};
use crate::lock::{FileLocks, LockGranted};
use crate::name::RawName;
use serde::{Deserialize, Serialize};

/// An optional feature: [`crate::query::Explain`] can be asked. (1 was an answer without `granted_ms`, before the first release.)
pub const EXPLAINS: u64 = 4;
/// An optional feature: one WRITE may go to several [places](crate::change::WriteAt::Places).
pub const SCATTERS: u64 = 2;
/// An optional feature: [`Push::Unlinked`] is understood.
pub const UNLINKS: u64 = 8;
/// The optional features that this side has. What belongs to one is never sent to who doesn't have it.
pub const FEATURES: u64 = EXPLAINS | SCATTERS | UNLINKS;

/// Client to server, on the control stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum ToServer {
    /// Opens or resumes a session.
    Hello(Hello),
    /// Asks for renewal and shows that the client lives.
    KeepAlive {
        /// Comes back in the answer.
        number: u64,
    },
    /// Approves recalls.
    Approve(Vec<Approval>),
    /// What the session holds of files whose locks it decides. Said before it gives that right up.
    Held(Vec<FileLocks>),
    /// Gives leases back unasked.
    Release(Vec<Release>),
    /// Gives up on a change: it has happened, or never will.
    Cancel {
        /// Its number.
        seq: Seq,
    },
    /// In grace, or after a reconnect to a restarted server: leases that are alive by the
    /// client's own clock, and opens.
    Reclaim(Reclaim),
    /// Everything is reclaimed.
    ReclaimDone,
    /// The mount ends: everything the session has is released.
    Goodbye,
}

/// Server to client, on the control stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum ToClient {
    /// The session stands.
    Welcome(Welcome),
    /// It doesn't; the connection closes.
    Refused(HelloRefusal),
    /// Answers a keep-alive.
    KeepAlive {
        /// Of the question.
        number: u64,
        /// Whether the session's leases are renewed from the moment the question was sent.
        renews: bool,
    },
    /// Answers a cancel.
    Cancelled {
        /// The change.
        seq: Seq,
        /// Whether it had begun: its answer comes (or came) as usual. If not, it never will.
        begun: bool,
    },
    /// Answers one `Reclaim`.
    Reclaimed {
        /// Leases that could not be reclaimed: what was cached under them must be dropped.
        lost_leases: Vec<Handle>,
        /// Opens that could not be reclaimed: their object is gone.
        lost_opens: Vec<OpenId>,
        /// Files whose locks could not be reclaimed.
        lost_locks: Vec<Handle>,
    },
    /// Answers `Goodbye`: the session is over and nothing waits for it.
    Farewell,
}

/// Server to client, on the push stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Push {
    /// Give up what the recall covers, then approve.
    Recall(Recall),
    /// A lock that was waited for is held. Not sent again: who connects anew asks for it again.
    LockGranted(LockGranted),
    /// A file that the session has open for writing has lost its last name by a change of another session. Who keeps the open for
    /// the sake of what was written alone lets go of it. Only said to who has [`UNLINKS`]; not sent again.
    Unlinked(Handle),
}

/// Who the client is and what it wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Hello {
    /// The client's protocol version.
    pub version: u32,
    /// Optional features the client has.
    pub features: u64,
    /// The mount's session.
    pub session: SessionId,
    /// Secret of a ticket, to enrol the client's key.
    pub ticket: Option<[u8; 32]>,
    /// For people: the client's host name and mount point.
    pub name: String,
    /// Directory below the export that is mounted, one component each.
    pub subdir: Vec<RawName>,
    /// Bound of the clocks' drift as the client has it set, parts per million.
    pub drift_ppm: u32,
    /// The server process this session spoke to last.
    pub last_process: Option<BootId>,
}

impl Hello {
    /// The protocol version in a header with a `Hello` of any version: what stands behind it may be another's.
    pub fn version_in(header: &[u8]) -> Option<u32> {
        // Enums begin with their variant's number.
        match codec::decode_front(header)? {
            (0_u32, version) => Some(version),
            _ => None,
        }
    }
}

/// What the server grants a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Welcome {
    /// Optional features that both have.
    pub features: u64,
    /// Term of the session's leases, in milliseconds.
    pub term_ms: u32,
    /// The larger of both sides' drift bounds, parts per million.
    pub drift_ppm: u32,
    /// This life of the server process.
    pub process: BootId,
    /// This life of the server host.
    pub host: BootId,
    /// Whether the session goes on.
    pub standing: Standing,
    /// Whether the session's leases are valid for a term from the moment `Hello` was sent. Not
    /// if it owes an overdue approval, and while it reclaims not before a later reply says so.
    pub renews: bool,
    /// The mounted directory.
    pub root: Handle,
    /// Its attributes; not covered by a lease.
    pub root_attr: Attr,
    /// Whether this client may only read.
    pub read_only: bool,
    /// Whose rights requests have.
    pub identity: IdentityPolicy,
}

/// How a session stands when its client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Standing {
    /// It is new: it holds nothing.
    New,
    /// Its leases and opens stand; unapproved recalls are sent again.
    Resumed,
    /// Its leases had expired; its opens stand.
    Expired,
    /// The server has restarted: leases alive by the client's clock, and opens, may be reclaimed.
    Reclaim,
}

/// Whose rights a client's requests have on the storage host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum IdentityPolicy {
    /// All callers are one user of the host; the client shows the mounting user as owner.
    Squash,
    /// Raw ids, but root is nobody.
    RootSquash,
    /// Raw ids.
    Trust,
}

impl IdentityPolicy {
    /// As `serve --identity` and `status` call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Squash => "squash",
            Self::RootSquash => "root_squash",
            Self::Trust => "trust",
        }
    }
}

/// Why a `Hello` is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum HelloRefusal {
    /// The client's version isn't served.
    #[error(
        "the server speaks protocol version {expected}, this client version {found}: {}",
        match found < expected {
            true => "the client's leasefs is too old, upgrade it",
            false => "the server's leasefs is the older one, upgrade it: servers go first",
        }
    )]
    Version {
        /// The newest that the server serves.
        expected: u32,
        /// The client's version.
        found: u32,
    },
    /// The first message was not `Hello`, or not well-formed.
    #[error("the server expected Hello and found something else: {0}")]
    NotHello(String),
    /// The key is not enrolled and no ticket was shown.
    #[error(
        "client {0} is not enrolled: mount once with a ticket (`fsserver ticket` on the server prints one)"
    )]
    UnknownClient(KeyHash),
    /// The key was revoked.
    #[error("client {0} has been revoked on the server")]
    Revoked(KeyHash),
    /// The ticket is not one of this server's.
    #[error("the ticket is not one of this server's: ask for a fresh one (`fsserver ticket`)")]
    TicketUnknown,
    /// The ticket has enrolled another key.
    #[error("the ticket has been used by another client: ask for a fresh one (`fsserver ticket`)")]
    TicketUsed,
    /// The ticket is too old.
    #[error("the ticket has expired: ask for a fresh one (`fsserver ticket`)")]
    TicketExpired,
    /// The session belongs to another key.
    #[error("the session belongs to another client")]
    ForeignSession,
    /// The directory to mount can't be had.
    #[error("the server can't serve the directory: {0}")]
    NoDirectory(String),
    /// A bound of the server is reached.
    #[error("the server has too many {0}")]
    TooMany(String),
    /// The server failed inside.
    #[error("the server failed: {0}")]
    Internal(String),
}

/// What a client still has from a server's earlier life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Reclaim {
    /// Leases alive by the client's own clock; at most [`crate::limits::MAX_BATCH`].
    pub leases: Vec<ReclaimLease>,
    /// Opens; at most [`crate::limits::MAX_BATCH`].
    pub opens: Vec<ReclaimOpen>,
    /// Locks; at most [`crate::limits::MAX_LOCKS_OF_FILE`] in all, those of one file together.
    pub locks: Vec<FileLocks>,
    /// The tenure in which they are held; zero in messages that claim none. It is claimed without locks, too: what was
    /// changed under some that have been given up may be sent again.
    pub epoch: LockEpoch,
}

/// A lease to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct ReclaimLease {
    /// The object.
    pub object: Handle,
    /// What is covered.
    pub parts: Parts,
    /// The mode.
    pub mode: Mode,
}

/// An open to reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct ReclaimOpen {
    /// Its number, kept.
    pub open: OpenId,
    /// Its proof.
    pub token: OpenToken,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn the_version_of_a_hello_is_found_whatever_stands_behind_it(hello: Hello, more: Vec<u8>) {
            let version = hello.version;
            let frame = codec::encode(&ToServer::Hello(hello), 0).expect("within the limits");
            let mut header = frame[codec::PREFIX..].to_vec();
            prop_assert_eq!(Hello::version_in(&header), Some(version));
            header.extend(more);
            prop_assert_eq!(Hello::version_in(&header), Some(version));
        }

        #[test]
        fn other_messages_have_no_version(message: ToServer) {
            let frame = codec::encode(&message, 0).expect("within the limits");
            let found = Hello::version_in(&frame[codec::PREFIX..]);
            prop_assert_eq!(found.is_some(), matches!(message, ToServer::Hello(_)));
        }
    }
}
