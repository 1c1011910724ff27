//! What people are told of the core.

use super::busiest::Busy;
use leasefs_lease::server::{LockStatus, ObjectStatus, SessionStatus, TermZero, Waiting};
use leasefs_lease::time::BootTime;
use leasefs_protocol::latency::Counts;

/// Kind of a request, for people.
pub type OpLabel = &'static str;

/// The core as it stands, for people.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub now: BootTime,
    /// Sessions.
    pub sessions: Vec<SessionStatus>,
    /// Operations that wait, and the kinds of their requests.
    pub waiting: Vec<(OpLabel, Waiting)>,
    /// Objects of which nobody gets an exclusive lease with a change.
    pub term_zero: Vec<TermZero>,
    /// Files that are asked for most.
    pub busiest: Vec<Busy>,
    /// Locks that are held or waited for.
    pub locks: Vec<LockStatus>,
    /// When grace ends at the latest.
    pub grace_until: Option<BootTime>,
    /// How long it took until recalls were approved, so far.
    pub approved: Counts,
    /// Recalls so far.
    pub recalled: u64,
    /// How often a session's leases have ended because its client wasn't heard of.
    pub expired: u64,
}

/// What is going on at one object, for people.
#[derive(Clone, Debug)]
pub struct ObjectSnapshot {
    /// When it was taken.
    pub now: BootTime,
    /// Who has what of it.
    pub object: ObjectStatus,
    /// When grace ends at the latest.
    pub grace_until: Option<BootTime>,
}
