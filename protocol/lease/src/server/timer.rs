//! What happens when time alone has passed.

use super::api::OpId;
use super::ids::Sid;
use leasefs_protocol::KeyHash;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Grace ends.
    Grace,
    /// A session's leases end.
    Session(Sid),
    /// A client gets leases again, or what it has cost others is forgotten.
    Conduct(KeyHash),
    /// A page fill has been patient.
    Fill(OpId),
    /// Locks are granted that were put off.
    Locks,
}
