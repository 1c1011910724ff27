//! Faults that the simulation must find, each where what it leaves out or does wrong stands.
//!
//! Not compiled into release builds: there all of this is `false`. Elsewhere `LEASEFS_PLANTED` names the fault of a
//! whole process: so `scripts/soak --planted` has daemons with one.

use std::cell::Cell;
use std::sync::LazyLock;

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A way to be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $name,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];
        }
    };
}

bugs! {
    // What a client gives up.
    /// A recall is approved although pages of the file are still in the kernel.
    ApproveUndropped,
    /// A recall is approved although bytes of the file are buffered.
    ApproveBeforeFlush,
    /// Who waits for a flush goes on when it is sent.
    FlushedWhenSent,
    /// Recalls are not approved at all.
    NeverApprove,
    /// The kernel keeps names that are recalled.
    KeepNames,
    /// The kernel is made to look names up again before it has taken up those that came along with a listing.
    UntakenNames,
    /// What the kernel doesn't know counts as gone from it, though an answer that brings it is on its way.
    UnseenIsGone,
    /// The kernel isn't told that a file has grown before it gets a page of its end to store into.
    EndCleared,
    /// What could not be reclaimed stays cached.
    LostKept,
    /// What is cached without contact stays until it is asked for.
    NoSweep,
    /// A suspend goes unnoticed.
    SuspendUnnoticed,
    /// What is told between the announcement of a suspend and the suspend is believed.
    TimeoutsBeforeSleep,
    /// Leases last from the arrival of the reply.
    TermFromReply,
    /// The kernel believes what it is told for a whole term.
    WholeTermTimeout,

    // What a client takes in.
    /// A reply is cached however old its stamp.
    StaleStamp,
    /// A reply is cached that was stamped directly before the recall.
    StampBefore,
    /// A name is cached however old the stamp of what says it.
    NameStale,
    /// What was asked for before an own change is cached behind it.
    EndChangeUnstamped,
    /// Pages are filled without a lease.
    BareFill,
    /// A mapped page that has outlived its lease counts as stored under the next one.
    LatePages,
    /// Pages are filled under a lease that has ended.
    FillUnderEnded,
    /// Bytes that were asked for before they changed are kept.
    FetchStale,
    /// Bytes of a file that are here outlive the recall of their lease.
    BytesKept,
    /// The kernel is answered while pages of lost leases are there.
    AnswerUnclean,

    // An own change of a client.
    /// The kernel keeps the pages that an own change makes outdated.
    KeepOwnPages,
    /// A file's old attributes are told with the answer of a change.
    OldAnswer,
    /// The kernel isn't told that a file has grown before it is told its size.
    GrownUntold,
    /// A change is sent again as if for the first time.
    ResendAsNew,
    /// The oldest unanswered change is said to be answered.
    LowWaterHigh,
    /// A close that an approval carried is lost with the connection.
    CloseLost,

    // Locks.
    /// A change is carried out though the locks under which it was made are lost.
    LateUnderLock,
    /// A client decides locks on after the right to has been recalled.
    DecidesOn,
    /// The right to decide locks is given back without saying what is held.
    HeldUnsaid,
    /// A client believes that it holds locks after its leases have ended.
    LocksOutliveLeases,
    /// A restarted server isn't told the tenure of locks that have been given up, under which changes were made that are sent
    /// again.
    TenureUnclaimed,

    // What a client buffers.
    /// It is buffered under any lease.
    BufferShared,
    /// Attributes are told without it.
    StatUnflushed,
    /// A flush doesn't say what its file was.
    FlushBaseless,
    /// A refused flush is told to nobody.
    ForgetRefused,
    /// A refused flush isn't kept.
    RefusedDropped,
    /// `fsync` asks for a commit before it is flushed.
    SyncUnflushed,
    /// `fsync` doesn't tell that it was refused.
    SyncUntold,
    /// A flush is taken for durable though the server was not asked to make it so.
    SyncLeftOut,

    // A crash of the server's host, at a client.
    /// It goes unnoticed by what was written.
    ForgetHostCrash,
    /// It goes unnoticed by what is cached.
    KeepAfterHostCrash,
    /// What is written again goes over what was written later.
    RestoreOver,
    /// What others may have changed since is written again.
    RestoreAnyway,

    // Leases at the server.
    /// Leases are granted past changes that wait or run.
    GrantContested,
    /// An approval takes what was granted since its recall.
    SpoilNothing,
    /// A lease that was born recalled isn't recalled.
    BornUnrecalled,
    /// A change goes on when the first of several holders has approved.
    FirstApprovalServes,
    /// Others read what is held exclusively.
    ReadUnderWrite,
    /// A release gives back what was granted since.
    ReleaseStale,
    /// Who owes an approval is renewed.
    RenewOverdue,
    /// Who owes an approval is told that it is renewed.
    RenewalTold,
    /// Who is denied leases is granted them.
    DeniedGranted,
    /// A page's write-back waits for what waits for its sender.
    WritebackWaits,

    // Grace.
    /// There is none.
    NoGrace,
    /// It ends when the first session has reclaimed.
    GraceEndsAtFirst,
    /// Reads go on whatever they may miss.
    ReadInGrace,
    /// What was on record before the host crashed is trusted.
    TrustAfterHostCrash,

    // Changes at the server.
    /// The table of accesses leaves out what loses a name.
    ForgetVictim,
    /// The table of accesses leaves out a file's attributes where its bytes change.
    SizeUnrecalled,
    /// Answers are lost with the process.
    ForgetAnswers,
    /// The answer is dropped that is asked for next.
    DropAnswerAtMark,
    /// A cancel says of what has begun that it never will.
    CancelBegun,
    /// What ran before the host crashed runs again.
    RunAfterHostCrash,
    /// A removal that has happened is taken for one that hasn't.
    ForgetRemoval,
    /// An append that has happened is taken for one that hasn't.
    AppendAgain,
    /// Others go past an interrupted change.
    PassInterrupted,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

static EVERYWHERE: LazyLock<Option<Bug>> = LazyLock::new(|| {
    let name = std::env::var("LEASEFS_PLANTED").ok()?;
    let named = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
    Some(*named.expect("LEASEFS_PLANTED names a planted fault"))
});

/// Whether this one is planted.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    cfg!(debug_assertions) && PLANTED.get().or(*EVERYWHERE) == Some(bug)
}

/// Runs something with a bug planted, on this thread alone.
pub fn with<R>(bug: Option<Bug>, run: impl FnOnce() -> R) -> R {
    struct Uproot;
    impl Drop for Uproot {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
    PLANTED.set(bug);
    let _uproot = Uproot;
    run()
}
