//! What of its changes a client must never say.

use leasefs_protocol::limits::MAX_AFTER;
use leasefs_protocol::{Numbered, Seq};

/// What a client must never send; its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Changes are numbered from 1.
    #[error("a change numbered 0")]
    Unnumbered,
    /// A change can only follow earlier ones.
    #[error("change {seq} follows change {after}")]
    FollowsLater {
        /// The change.
        seq: Seq,
        /// What it claims to follow.
        after: Seq,
    },
    /// A change that is far ahead of one whose answer the client says it hasn't got.
    #[error("change {seq} although the answer of change {low} has not come")]
    TooFarAhead {
        /// The change.
        seq: Seq,
        /// The other.
        low: Seq,
    },
    /// More than a change may follow, or a session may have unfinished.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
}

/// Checks what can be told from the change alone.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(change: &Numbered) -> Result<(), Violation> {
    if change.seq == Seq(0) {
        return Err(Violation::Unnumbered);
    }
    if change.after.len() > MAX_AFTER {
        return Err(Violation::TooMany {
            what: "changes to follow",
            limit: MAX_AFTER,
        });
    }
    match change.after.iter().find(|after| **after >= change.seq) {
        Some(after) => Err(Violation::FollowsLater {
            seq: change.seq,
            after: *after,
        }),
        None => Ok(()),
    }
}
