//! The server's lease core: who holds which lease, who waits for whom, and until when.
//!
//! A pure state machine. [`Core::handle`] takes in what happened, [`Core::poll_action`] says what
//! to do, [`Core::next_deadline`] when time alone changes something.
//!
//! - A **read** is admitted before the store is read; its leases are registered, with a stamp,
//!   at that moment. A change that comes later finds them.
//! - A **change** recalls all conflicting leases at once and runs when every holder has approved
//!   or its session has expired, and every earlier change it meets has finished.
//! - Reads that leave nothing behind without a lease never wait for a change. Page fills do, but
//!   not while the holders are slow (then their lease is *born recalled*), and never while their
//!   own session owes an approval for the object: its kernel may keep what the approval needs.
//!
//! What a page fill shows is its object's DATA, whatever parts the item names.

mod api;
mod bounce;
mod change;
mod conduct;
mod cover;
mod dates;
mod grace;
mod holders;
mod ids;
mod index;
mod invariants;
mod lease;
mod life;
mod locking;
mod locks;
mod op;
mod probation;
mod read;
mod recall;
mod reclaim;
mod session;
mod slab;
mod status;
mod table;
mod term_zero;
mod timer;
mod turn;

pub use api::{
    Action, Bouncing, Config, Event, Grace, LockAnswer, LockAsk, LoggedWrites, OpId, OpState,
    ReadItem, ReadKind, ReclaimRefusal, Reclaimed, Standing, Touch, Wanted,
};
pub use holders::{HolderStatus, ObjectStatus};
pub use status::{LockStatus, MOST_LOCKS_TOLD, RecallStatus, SessionStatus, TermZero, Waiting};

use crate::time::BootTime;
use bounce::Bounces;
use change::ChangeBy;
use conduct::Conduct;
use grace::GraceState;
use ids::ObjId;
use leasefs_protocol::KeyHash;
use locks::LockTable;
use op::Op;
use session::Sessions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use table::Table;
use timer::Timer;

/// The lease core. Feed it with [`Core::handle`], then drain [`Core::poll_action`], and send
/// [`Event::Tick`] at [`Core::next_deadline`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    config: Config,
    sessions: Sessions,
    table: Table,
    /// Waiting operations and running changes.
    ops: BTreeMap<OpId, Op>,
    arrivals: u64,
    /// Of clients that have held others up lately.
    conduct: BTreeMap<KeyHash, Conduct>,
    /// Files that bounce between sessions.
    bounces: Bounces,
    locks: LockTable,
    timers: BTreeSet<(BootTime, Timer)>,
    grace: Option<GraceState>,
    shutdown: bool,
    /// Objects where some operation may have become ready.
    dirty: BTreeSet<ObjId>,
    /// Operations that may be ready, and no others for that.
    came: BTreeSet<OpId>,
    /// Objects that may not be needed any more.
    untidy: Vec<ObjId>,
    actions: VecDeque<Action>,
}

impl Core {
    /// A core that begins at `now`; in grace if `grace` names sessions.
    pub fn new(config: Config, now: BootTime, grace: Option<Grace>) -> Self {
        let grace = grace.and_then(|known| GraceState::begin(known, now));
        let timers = grace.iter().map(|g| (g.ends, Timer::Grace)).collect();
        Self {
            bounces: Bounces::new(config.bouncing),
            locks: LockTable::new(config.first_fence),
            config,
            sessions: Sessions::new(),
            table: Table::new(),
            ops: BTreeMap::new(),
            arrivals: 0,
            conduct: BTreeMap::new(),
            timers,
            grace,
            shutdown: false,
            dirty: BTreeSet::new(),
            came: BTreeSet::new(),
            untidy: Vec::new(),
            actions: VecDeque::new(),
        }
    }

    /// Takes in what happened at `now`, which never goes back.
    pub fn handle(&mut self, now: BootTime, event: Event) {
        self.run_timers(now);
        self.bounces.run(now);
        self.settle(now);
        self.take_in(now, event);
        self.settle(now);
    }

    fn take_in(&mut self, now: BootTime, event: Event) {
        match event {
            Event::Tick => {}
            Event::SessionOpened {
                session,
                client,
                drift_ppm,
            } => self.open_session(now, session, client, drift_ppm),
            Event::RoundTrip { session, rtt } => self.note_round_trip(session, rtt),
            Event::SessionEnded { session } => self.end_session(now, session),
            Event::AdmitRead {
                op,
                session,
                kind,
                items,
            } => self.admit_read(now, op, session, kind, items),
            Event::AdmitChange {
                op,
                session,
                touches,
                dropped,
                writeback,
                locked,
            } => {
                let by = ChangeBy {
                    op,
                    session,
                    writeback,
                    locked,
                };
                self.admit_change(now, by, touches, &dropped);
            }
            Event::Lock {
                op,
                session,
                object,
                ask,
            } => self.ask_lock(now, (op, session), object, ask),
            Event::Held { session, files } => self.hold_locks(now, session, files),
            Event::Requeue {
                op,
                touches,
                dropped,
            } => self.requeue(now, op, touches, &dropped),
            Event::FinishChange { op, wants } => self.finish_change(now, op, wants),
            Event::Withdraw { op } => self.withdraw(op),
            Event::Approve { session, recall } => self.approve(now, session, recall),
            Event::Flushed {
                session,
                object,
                bytes,
            } => self.note_flushed(now, session, &object, bytes),
            Event::Release {
                session,
                object,
                parts,
                seen,
            } => self.release(session, &object, parts, seen),
            Event::TakeBack {
                session,
                object,
                parts,
            } => self.take_back(now, session, &object, parts),
            Event::Gone { object } => self.recall_gone(now, &object),
            Event::ReclaimDone { session } => self.reclaim_done(now, session),
            Event::Shutdown => self.shut_down(now),
        }
    }

    /// The next thing to do. The actions for one session come in the order of their stamps.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn next_deadline(&self) -> Option<BootTime> {
        self.timers.first().map(|(at, _)| *at)
    }
}
