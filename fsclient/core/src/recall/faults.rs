//! Faults that the coherence tests must find.

use std::time::Duration;

/// How late the drop comes behind an early approval.
pub(super) const LATE: Duration = Duration::from_millis(200);

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Recalls are approved before anything is dropped.
    ApproveEarly,
    /// The kernel isn't made to ignore the attributes of LOOKUP replies.
    LookupAttrTimeout,
}
