//! Faults put in on purpose, to show that the simulation finds them.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The client approves a recall before it drops anything.
    ApproveBeforeDrop,
    /// The server takes everything a change touches for dropped by its requester: the requester's own
    /// leases on an inode's other names are not recalled.
    ForgetRequester,
    /// The client caches whatever reply comes, however old its stamp.
    StaleStamp,
    /// The client counts the term from the arrival of the reply.
    TermFromReply,
    /// The client keeps its own pages while its change is under way.
    KeepOwnPages,
    /// The client answers the kernel while pages of lost leases are still there.
    AnswerUnclean,
    /// The client hands pages to the kernel that no lease covers.
    BareFill,
    /// The server runs what is sent again a second time.
    RunTwice,
    /// A restarted server knows of no grace.
    NoGrace,
    /// The client's kernel goes on believing attributes for as long as the lease lasts at most, whenever
    /// they are told.
    WholeTermTimeout,
    /// The client tells the kernel names, and doesn't take them back.
    KeepNames,
    /// The client doesn't approve recalls at all.
    NeverApprove,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 12] = [
        Bug::ApproveBeforeDrop,
        Bug::ForgetRequester,
        Bug::StaleStamp,
        Bug::TermFromReply,
        Bug::KeepOwnPages,
        Bug::AnswerUnclean,
        Bug::BareFill,
        Bug::RunTwice,
        Bug::NoGrace,
        Bug::WholeTermTimeout,
        Bug::KeepNames,
        Bug::NeverApprove,
    ];
}
