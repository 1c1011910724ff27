//! What the core is told, and what it wants done.

use crate::call::{Answer, Asker, Call, NodeId};
use bytes::Bytes;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{HelloRefusal, ToClient, ToServer, Welcome};
use leasefs_protocol::lock::LockGranted;
use leasefs_protocol::{BootId, Caller, Handle, Recall, Refusal, Reply, RequestFrame, RequestId};
use std::path::PathBuf;
use std::sync::Arc;

/// The host's clocks, read at one moment, `boot` first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// `CLOCK_BOOTTIME`: lease time.
    pub boot: BootTime,
    /// `CLOCK_MONOTONIC`, which stands still in suspend: how long anybody waits.
    pub monotonic: BootTime,
}

/// A connection with the server; none has the number of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request of the kernel, for as long as it is unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) u64);

/// Something that is asked of the kernel, or of the disk, for as long as it isn't done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EffectId(pub u64);

/// What happens. `W` is who waits for the answer; the core only gives it back.
#[derive(Debug)]
pub enum Event<W> {
    /// Time has passed.
    Tick,
    /// A request of the kernel, or of the daemon itself.
    Call {
        /// Takes the answer.
        waiter: W,
        /// On whose behalf.
        asker: Asker,
        /// What is asked.
        call: Call,
    },
    /// The kernel gives back references to a node.
    Forget {
        /// The node.
        node: NodeId,
        /// How many.
        count: u64,
    },
    /// Nobody waits for the answer any more: a signal is pending that ends the caller.
    Left(CallId),
    /// The caller would wait no longer, but for an answer: another signal is pending, as [`Effect::Watch`] has asked.
    Interrupted(CallId),
    /// What a [`Notice`] has come to.
    Notified(EffectId, Noticed),
    /// Whether [`Notice::ForgetNames`] works just now, when that has changed.
    CanForgetNames(bool),
    /// A connection stands: `Hello` was sent then, and welcomed.
    Connected {
        /// Its number.
        connection: ConnectionId,
        /// What the server said.
        welcome: Box<Welcome>,
        /// When `Hello` was sent.
        sent: BootTime,
    },
    /// [`Effect::Connect`] has failed.
    NotConnected(Unconnected),
    /// A message on a connection's control stream.
    Control(ConnectionId, ToClient),
    /// The answer to a request.
    Reply {
        /// On which connection it came.
        connection: ConnectionId,
        /// The answer.
        reply: Reply,
        /// File data behind it.
        payload: Bytes,
    },
    /// The server takes something back.
    Recall(ConnectionId, Recall),
    /// A lock that was waited for is held.
    LockGranted(ConnectionId, LockGranted),
    /// Another session has taken the last name of a file that is open at the server.
    Unlinked(ConnectionId, Handle),
    /// How many datagrams have come on a connection so far, as [`Effect::Listen`] has asked.
    Heard(ConnectionId, u64),
    /// A request was over the protocol's bounds, and was not sent.
    Unsendable(RequestId),
    /// A connection is of no use any more.
    Lost(ConnectionId, String),
    /// What was to be kept in the recovery folder is there, or can't be.
    Kept(EffectId),
    /// The mount ends: the session is to end in order.
    Goodbye,
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub enum Unconnected {
    /// The server refuses the session.
    Refused(HelloRefusal),
    /// It can't be reached, or breaks the protocol.
    Unreachable(String),
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Action<W> {
    /// A request is answered. May be done late, but not in another life of the kernel's connection; an
    /// answer that is [`Answer::believed`] is given before the core is told anything else, since pages of
    /// an answer that is decided later may be newer.
    Answer(W, Result<Answer, Refusal>),
    /// Something else.
    Do(Effect),
}

/// What lets a caller leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// What ends it.
    Fatal,
    /// Whatever it would be interrupted by.
    All,
}

/// What is to be done beside answers.
#[derive(Debug)]
pub enum Effect {
    /// The kernel is told something; [`Event::Notified`] says what has come of it.
    ///
    /// What never blocks ([`Notice::never_blocks`]) is done before the core is told anything else but
    /// that: whoever finds that the kernel was told nothing of an object relies on it.
    Notify(EffectId, Notice),
    /// Look whether such a signal is pending for the caller, by its process id; then [`Event::Left`] or
    /// [`Event::Interrupted`].
    Watch(CallId, u32, Signals),
    /// Send a request on a connection; nothing if it is gone.
    Send {
        /// Where.
        connection: ConnectionId,
        /// The request.
        frame: Arc<RequestFrame>,
        /// File data behind it.
        payload: Bytes,
    },
    /// Send a control message; nothing if the connection is gone.
    Control(ConnectionId, ToServer),
    /// From now on replies and recalls of this connection are wanted.
    Serve(ConnectionId),
    /// Say how many datagrams have come ([`Event::Heard`]).
    Listen(ConnectionId),
    /// End a connection; [`Event::Lost`] follows.
    Disconnect {
        /// Which.
        connection: ConnectionId,
        /// The server broke the protocol.
        broken: bool,
        /// Why, for people.
        reason: String,
    },
    /// Try to connect, with `Hello` for a session whose server was this process before;
    /// [`Event::Connected`] or [`Event::NotConnected`] follows.
    Connect {
        /// As the last `Welcome` had it.
        last_process: BootId,
    },
    /// Keep what could not be brought to the server in the recovery folder; [`Event::Kept`] follows.
    Keep(EffectId, Undelivered),
    /// The session has ended.
    Ended,
}

/// What the kernel is told unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Drops attributes (and ACLs), also those of answers under way.
    DropAttrs(NodeId),
    /// Makes the kernel look all names up again, also those of answers under way; not while anything is
    /// mounted inside the mount, which it would take away.
    ForgetNames,
    /// Drops attributes and the pages of a range; a length of 0 means to the end of the file. Blocks
    /// while the range holds a page of an unanswered READ, or one that is being written back.
    DropPages {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Drops one name. Blocks while a request of its directory is unanswered.
    DropName {
        /// The directory.
        dir: NodeId,
        /// The name.
        name: Box<[u8]>,
    },
    /// As [`Notice::DropPages`], of pages whose write-back is about to be answered: done once they are locked for it, so that nothing is
    /// stored into them any more.
    DropWritten {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Makes the kernel believe that a file has at least this size: done once it does. Blocks while the page there is being
    /// read or written back.
    Grow {
        /// The file.
        node: NodeId,
        /// The size.
        size: u64,
    },
    /// Ends the connection: whatever waits in the kernel fails. The last resort.
    End,
}

impl Notice {
    /// Whether it is done at once, whatever else the kernel does.
    pub fn never_blocks(&self) -> bool {
        match self {
            Self::DropAttrs(_) | Self::ForgetNames | Self::End => true,
            Self::DropPages { .. }
            | Self::DropWritten { .. }
            | Self::DropName { .. }
            | Self::Grow { .. } => false,
        }
    }

    /// Whether it is done once it blocks.
    pub fn is_done_when_it_blocks(&self) -> bool {
        matches!(self, Self::DropWritten { .. } | Self::Grow { .. })
    }
}

/// What has come of a [`Notice`], the worst last. A connection that has ended holds nothing: that is `Done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Noticed {
    /// The kernel holds nothing of what was named.
    Done,
    /// The kernel doesn't know the node of [`Notice::DropAttrs`], or not yet: it may learn it from an answer on its way.
    Unknown,
    /// [`Notice::ForgetNames`] doesn't work now.
    Unable,
    /// It may still hold it.
    Failed,
}

/// Bytes that could not be brought to the server.
#[derive(Clone, Debug)]
pub struct Undelivered {
    /// The file.
    pub object: Handle,
    /// Below the mount's root, as far as it is known.
    pub path: Option<PathBuf>,
    /// Who has written it last, if that is known.
    pub writer: Option<Caller>,
    /// The file's size as its writer saw it.
    pub size: u64,
    /// Offset and bytes; where they overlap a later one covers an earlier one.
    pub extents: Vec<(u64, Bytes)>,
    /// Why not.
    pub reason: WhyNot,
}

/// Why bytes were not brought to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// The file was changed by another mount while this one was cut off.
    ChangedElsewhere,
    /// The mount ended before the server was reached.
    Unreachable,
    /// The server refused them.
    Refused(Refusal),
}
