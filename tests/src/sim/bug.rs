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
    /// The client approves a recall of a file whose buffered bytes it has.
    ApproveBeforeFlush,
    /// The client approves a recall although what it has sent of a file is unanswered.
    ForgetFlushUnderWay,
    /// The client buffers under any lease.
    BufferShared,
    /// The client buffers what is written while a change of its own is under way.
    BufferUnderChange,
    /// The client says what a file is like without what is buffered of it.
    StatUnflushed,
    /// The client asks for a commit before its buffered bytes are at the server.
    SyncUnflushed,
    /// The client doesn't look whether the server's host has crashed since it wrote.
    ForgetHostCrash,
    /// The client goes on believing what it has cached under a Write lease when the server's host has
    /// crashed.
    KeepAfterHostCrash,
    /// The client gives back leases of files whose buffered bytes it has.
    ReleaseDirty,
    /// The client forgets bytes that the server refuses.
    ForgetRefused,
    /// The server takes buffered bytes whatever has happened to their file.
    FlushUnchecked,
    /// The server grants Write leases that it has not on record.
    WriteUnlogged,
    /// The server doesn't note Write leases that are reclaimed.
    ReclaimUnlogged,
    /// The server lets reads through in grace whatever they may miss.
    ReadInGrace,
    /// The server trusts the record of Write leases, and what was cached, after a crash of its host.
    TrustAfterHostCrash,
    /// The server forgets with its next crash that its host has crashed.
    TrustSecondCrash,
    /// The server runs what is sent again after a crash of its host.
    RunAfterHostCrash,
    /// The server doesn't journal what a change is about to do.
    ForgetIntents,
    /// The server lets others change what an interrupted change is about to change again.
    PassInterrupted,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 31] = [
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
        Bug::ApproveBeforeFlush,
        Bug::ForgetFlushUnderWay,
        Bug::BufferShared,
        Bug::BufferUnderChange,
        Bug::StatUnflushed,
        Bug::SyncUnflushed,
        Bug::ForgetHostCrash,
        Bug::KeepAfterHostCrash,
        Bug::ReleaseDirty,
        Bug::ForgetRefused,
        Bug::FlushUnchecked,
        Bug::WriteUnlogged,
        Bug::ReclaimUnlogged,
        Bug::ReadInGrace,
        Bug::TrustAfterHostCrash,
        Bug::TrustSecondCrash,
        Bug::RunAfterHostCrash,
        Bug::ForgetIntents,
        Bug::PassInterrupted,
    ];
}
