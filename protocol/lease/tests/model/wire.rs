//! What travels between the model's clients and its server. Messages of one connection may
//! overtake each other; they are lost only together with their connection.

use leasefs_protocol::{Grant, Recall, RecallId, Stamp};

/// How many changes the object has seen.
pub type Value = u8;

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `stat`.
    Attrs,
    /// Kernel pages.
    Pages,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    Read {
        number: u8,
        kind: Kind,
    },
    Change {
        number: u8,
    },
    KeepAlive {
        number: u8,
    },
    Approve(RecallId),
    ReadReply {
        number: u8,
        value: Value,
        grants: Vec<Grant>,
        renews: bool,
    },
    /// Without a result its effect is unknown.
    ChangeReply {
        number: u8,
        result: Option<(Value, Stamp, Vec<Grant>)>,
        renews: bool,
    },
    KeepAliveReply {
        number: u8,
        renews: bool,
    },
    Recall(Recall),
}

impl Message {
    pub fn is_to_server(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::Change { .. } | Self::KeepAlive { .. } | Self::Approve(_)
        )
    }
}
