//! The leasefs protocol: what client and server say to each other, as plain data.
//!
//! This crate is pure: it imports nothing of ours, does no I/O, knows no clock. Only
//! [`codec`] names the serializer.

pub mod answer;
pub mod attr;
pub mod change;
pub mod codec;
pub mod control;
pub mod escape;
pub mod explain;
pub mod ids;
pub mod latency;
pub mod lease;
pub mod limits;
pub mod lock;
pub mod name;
pub mod operation;
pub mod query;
pub mod refusal;
pub mod request;
pub mod ticket;

pub use answer::{Answer, Response};
pub use attr::{Attr, DirEntry, FileKind, FsStat, SET_IDS, SetAttr, SetTime, Timestamp, Version};
pub use change::Change;
pub use escape::{EscapedLines, escaped, printable};
pub use ids::{
    BootId, ExportId, Fence, Handle, KeyHash, LockEpoch, LockOwner, LockWait, OpenId, OpenToken,
    RecallId, RequestId, Seq, SessionId, Stamp,
};
pub use lease::{Approval, Grant, Mode, Parts, Recall, Release, Scope};
pub use lock::{HeldLock, LockKind, LockMode, LockRange};
pub use name::{Name, RawName};
pub use operation::{Durability, O_TRUNC, OpenFlags, Operation};
pub use query::Query;
pub use refusal::Refusal;
pub use request::{Caller, Numbered, Reply, Request, RequestFrame, Touched};
