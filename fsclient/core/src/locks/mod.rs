//! What this mount's processes hold of files' locks, and whether it is decided here who gets one.
//!
//! Where the server has given this mount the right to decide a file's locks (a [`Delegation`](leasefs_protocol::lock::Delegation)) nothing is sent, as long as nobody
//! has to wait. Who has to wait does so at the server, where all who wait are known, with those they wait for. So what is held
//! is said there when the right is taken back.
//!
//! *In turn:* of one file's locks one thing is asked at a time ([`MountLocks::enter`]), so that answers can't overtake each other. What
//! comes unasked, a lock that was waited for, has a stamp: if something was answered that was decided later it is
//! asked for again.
//!
//! *Lost:* when the session's leases end by the own clock, all locks are lost, whether the server has found that out or not: it is
//! told before anything else is asked of locks. What was taken through a descriptor that has lost it fails until it
//! is unlocked or closed.

mod file;

use crate::call::{Fh, LockCall};
use crate::run::{Bell, Places};
use file::FileState;
use futures_channel::oneshot;
use leasefs_lease::locks::LockWanted;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::limits::{MAX_LOCKS, MAX_LOCKS_OF_FILE};
use leasefs_protocol::lock::{
    FileLocks, LockFound, LockGranted, LockHolder, LockOutcome, Locked, Unlocked,
};
use leasefs_protocol::{
    Fence, Handle, HeldLock, LockEpoch, LockKind, LockMode, LockOwner, LockRange, LockWait, Recall,
    Refusal, Scope, Stamp,
};
use std::collections::BTreeMap;
use std::sync::Arc;

impl LockCall {
    pub(crate) fn wanted(&self, mode: LockMode) -> LockWanted<LockOwner> {
        LockWanted {
            owner: self.owner,
            kind: self.kind,
            mode,
            range: self.range,
            pid: self.pid,
        }
    }

    fn of(&self) -> Of {
        (self.kind, self.owner)
    }
}

/// Whose locks of which kind.
pub(crate) type Of = (LockKind, LockOwner);

/// What becomes of what a process wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is done.
    Done,
    /// It can't be had.
    Refused(Refusal),
    /// The server is to be asked.
    Ask,
}

/// What comes of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The lock is held.
    Granted,
    /// It is not known: it is to be asked for again.
    AskAgain,
}

/// What the server's answer has come to.
#[derive(Debug)]
pub(crate) enum Answered {
    Done(Result<(), Refusal>),
    /// It waits.
    Waits(oneshot::Receiver<Woken>),
}

/// Most files whose locks this mount decides though nobody has one.
const MAX_IDLE_RIGHTS: usize = 4096;
const CONFLICTS: Refusal = Refusal::Host(libc::EAGAIN as u16);
const TOO_MANY: Refusal = Refusal::Host(libc::ENOLCK as u16);
const DEADLOCK: Refusal = Refusal::Host(libc::EDEADLK as u16);

#[derive(Debug)]
struct Waiting {
    object: Handle,
    fh: Fh,
    lock: LockWanted<LockOwner>,
    tell: oneshot::Sender<Woken>,
    /// Who holds it up, as the server has said last.
    holder: Option<LockHolder>,
}

/// All locks of one mount.
#[derive(Debug)]
pub(crate) struct MountLocks {
    files: BTreeMap<Handle, FileState>,
    waiting: BTreeMap<LockWait, Waiting>,
    /// For which the server is asked just now; a grant, which comes on a stream of its own, may overtake the answer that
    /// there is something to wait for.
    asking: BTreeMap<LockWait, Option<LockGranted>>,
    last_wait: LockWait,
    /// In which all that is held is held.
    epoch: LockEpoch,
    /// How often all were lost.
    losses: u64,
    /// As of the last time that the server was told.
    told: u64,
    /// Whether the session's leases were valid when that was looked at last.
    live: bool,
    /// Rung when locks are lost that the server may still have.
    lost: Arc<Bell>,
}

impl Default for MountLocks {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            waiting: BTreeMap::new(),
            asking: BTreeMap::new(),
            last_wait: LockWait(0),
            epoch: LockEpoch(0),
            losses: 0,
            told: 0,
            live: false,
            lost: Arc::default(),
        }
    }
}

impl MountLocks {
    /// Decides here what can be. To be [looked](MountLocks::look) at first.
    pub fn decide(&mut self, object: &Handle, fh: Fh, call: &LockCall) -> Decision {
        let live = self.live || planted::is(Bug::LocksOutliveLeases);
        let room = self.has_room();
        let Some(file) = self.files.get_mut(object) else {
            return match call.mode {
                None => Decision::Done,
                Some(_) => Decision::Ask,
            };
        };
        let decision = match call.mode {
            None => file.unlock(live, call, room),
            Some(mode) => file.lock(live, fh, &call.wanted(mode), (call.wait, room)),
        };
        self.tidy(object);
        decision
    }

    /// Whether the mount may hold more locks: of few files it never holds as many as it may.
    fn has_room(&self) -> bool {
        let held = || {
            self.files
                .values()
                .map(|file| file.held.len())
                .sum::<usize>()
        };
        self.files.len() <= MAX_LOCKS / MAX_LOCKS_OF_FILE || held() + 2 <= MAX_LOCKS
    }

    /// The server is asked to take this back, or has answered.
    pub fn gives_up_there(&mut self, object: &Handle, what: Option<(Of, LockRange)>) {
        if let Some(file) = self.files.get_mut(object) {
            file.giving_up = what;
        }
    }

    /// What stands against a lock, if that is known here.
    pub fn test(&self, object: &Handle, call: &LockCall) -> Option<Option<LockFound>> {
        let file = self
            .files
            .get(object)
            .filter(|file| file.decides(self.live))?;
        let lock = call.wanted(call.mode?);
        let found = file.held.against(&lock).next();
        Some(found.map(|held| LockFound {
            mode: held.mode,
            range: held.range,
            pid: Some(held.pid),
        }))
    }

    /// The number of the newest lock of a file that this mount holds.
    pub fn newest(&self, object: &Handle) -> Option<Fence> {
        let file = self.files.get(object)?;
        file.held.iter().map(|held| held.fence).max()
    }

    /// The turn to ask the server about a file's locks; [`MountLocks::leave`] follows.
    pub fn enter(&mut self, object: &Handle) -> Places {
        let file = self.files.entry(*object).or_default();
        file.users += 1;
        file.turn.clone()
    }

    /// Nothing more is asked.
    pub fn leave(&mut self, object: &Handle) {
        if let Some(file) = self.files.get_mut(object) {
            file.users = file.users.saturating_sub(1);
        }
        self.tidy(object);
    }

    pub fn next_wait(&mut self) -> LockWait {
        self.last_wait = self.last_wait.next();
        self.last_wait
    }

    /// The server is asked for a lock; [`MountLocks::was_asked`] follows.
    pub fn asks(&mut self, wait: Option<LockWait>) {
        self.asking.extend(wait.map(|wait| (wait, None)));
    }

    /// It has answered, or won't. What it has granted meanwhile, if anything.
    pub fn was_asked(&mut self, wait: Option<LockWait>) -> Option<LockGranted> {
        self.asking.remove(&wait?)?
    }

    /// How often all locks were lost so far: an answer to what was asked before the last time says nothing.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Whether the server may have locks that are lost here.
    pub fn is_reset_due(&self) -> bool {
        self.losses != self.told
    }

    /// The server has none that were lost by then: what is held from now on is in another tenure.
    pub fn was_reset(&mut self, losses: u64, reset: Unlocked) {
        self.told = self.told.max(losses);
        self.epoch = reset.epoch;
    }

    /// Whether a tenure is over.
    pub fn is_over(&self, epoch: LockEpoch) -> bool {
        self.is_reset_due() || epoch != self.epoch
    }

    /// Rung when [`MountLocks::is_reset_due`].
    pub fn lost_bell(&self) -> Arc<Bell> {
        Arc::clone(&self.lost)
    }

    /// The server has decided about a lock.
    pub fn locked(
        &mut self,
        (object, fh): (&Handle, Fh),
        lock: &LockWanted<LockOwner>,
        wait: Option<LockWait>,
        locked: Locked,
    ) -> Answered {
        let Locked {
            stamp,
            epoch,
            outcome,
            holder,
        } = locked;
        self.epoch = epoch;
        if let Some(wait) = wait {
            self.take_waiting(wait);
        }
        let file = self.files.entry(*object).or_default();
        // Who asks again may be granted it meanwhile, and wouldn't be told twice.
        let is_known = stamp < file.applied && file.held.has(lock).is_some();
        file.applied = file.applied.max(stamp);
        file.held.converts(lock);
        match (outcome, wait) {
            (LockOutcome::Waits, Some(_)) if is_known => Answered::Done(Ok(())),
            (
                LockOutcome::Granted {
                    fence,
                    delegation,
                    held,
                },
                _,
            ) => {
                if file.held.has(lock).is_none() {
                    file.given(lock, fence);
                }
                file.took(fh, (lock.kind, lock.owner));
                if let Some(delegation) = delegation {
                    file.delegated(delegation, held);
                }
                Answered::Done(Ok(()))
            }
            (LockOutcome::Waits, Some(wait)) => {
                let (tell, told) = oneshot::channel();
                let waiting = Waiting {
                    object: *object,
                    fh,
                    lock: *lock,
                    tell,
                    holder,
                };
                file.waits += 1;
                self.waiting.insert(wait, waiting);
                Answered::Waits(told)
            }
            (LockOutcome::Deadlock, _) => Answered::Done(Err(DEADLOCK)),
            (LockOutcome::Conflicts | LockOutcome::Waits, _) => Answered::Done(Err(CONFLICTS)),
        }
    }

    fn take_waiting(&mut self, wait: LockWait) -> Option<Waiting> {
        let waiting = self.waiting.remove(&wait)?;
        if let Some(file) = self.files.get_mut(&waiting.object) {
            file.waits = file.waits.saturating_sub(1);
        }
        Some(waiting)
    }

    /// Gives up what an owner holds of these bytes; false if the server has to be asked.
    pub fn gives_up(&mut self, object: &Handle, of: Of, range: LockRange) -> bool {
        let live = self.live;
        let file = self.files.get_mut(object);
        let Some(file) = file.filter(|file| file.decides(live)) else {
            return false;
        };
        file.give_up(of, range);
        self.tidy(object);
        true
    }

    /// The server has given up what an owner held of these bytes.
    pub fn unlocked(
        &mut self,
        object: &Handle,
        (kind, owner): Of,
        range: LockRange,
        unlocked: Unlocked,
    ) {
        self.epoch = unlocked.epoch;
        if let Some(file) = self.files.get_mut(object) {
            file.applied = file.applied.max(unlocked.stamp);
            file.give_up((kind, owner), range);
        }
        self.tidy(object);
    }

    /// A lock that was waited for is held.
    pub fn granted(&mut self, granted: LockGranted) {
        let Some(waiting) = self.take_waiting(granted.wait) else {
            if let Some(early) = self.asking.get_mut(&granted.wait) {
                *early = Some(granted);
            }
            return;
        };
        let Some(file) = self.files.get_mut(&waiting.object) else {
            return;
        };
        let woken = match granted.stamp > file.applied {
            true => {
                file.applied = granted.stamp;
                self.epoch = granted.epoch;
                file.held.converts(&waiting.lock);
                file.given(&waiting.lock, granted.fence);
                file.took(waiting.fh, (waiting.lock.kind, waiting.lock.owner));
                Woken::Granted
            }
            false => Woken::AskAgain,
        };
        // Who has waited may be gone: what he holds is given up with his descriptor.
        let _ = waiting.tell.send(woken);
        self.tidy(&waiting.object);
    }

    /// A wait is over: the server grants it no more.
    pub fn waits_no_longer(&mut self, object: &Handle, wait: LockWait, cancelled: Unlocked) {
        if let Some(file) = self.files.get_mut(object) {
            file.applied = file.applied.max(cancelled.stamp);
        }
        self.take_waiting(wait);
        self.tidy(object);
    }

    /// Whoever waits asks again: what was sent meanwhile may not have come.
    pub fn wake_all(&mut self) {
        self.asking.values_mut().for_each(|early| *early = None);
        while let Some((&wait, _)) = self.waiting.first_key_value()
            && let Some(waiting) = self.take_waiting(wait)
        {
            // Who has waited may be gone.
            let _ = waiting.tell.send(Woken::AskAgain);
            self.tidy(&waiting.object);
        }
    }

    /// What an owner holds of the bytes of which he wants something.
    pub fn held_within(&self, object: &Handle, call: &LockCall) -> Vec<HeldLock> {
        let held = self.files.get(object).into_iter();
        let held = held.flat_map(|file| file.held.iter());
        let own = held.filter(|held| (held.kind, held.owner) == call.of());
        own.filter_map(|held| {
            let range = held.range.common(call.range)?;
            Some(HeldLock { range, ..*held })
        })
        .collect()
    }

    /// What an owner waits for.
    pub fn waits_of(&self, object: &Handle, (kind, owner): Of) -> Vec<LockWait> {
        let is = |waiting: &Waiting| {
            waiting.object == *object && (waiting.lock.kind, waiting.lock.owner) == (kind, owner)
        };
        let waits = self.waiting.iter().filter(|(_, waiting)| is(waiting));
        waits.map(|(wait, _)| *wait).collect()
    }

    /// Whether something of an owner's locks of a file has to be given up.
    pub fn concerns(&self, object: &Handle, of: Of) -> bool {
        self.files.get(object).is_some_and(|file| file.concerns(of))
    }

    /// Whether an owner holds locks of a file.
    pub fn holds(&self, object: &Handle, of: Of) -> bool {
        self.files.get(object).is_some_and(|file| file.holds(of))
    }

    /// An owner unlocks; whether he had lost something of which he has not been told.
    pub fn forgets_loss(&mut self, object: &Handle, of: Of) -> bool {
        let file = self.files.get_mut(object);
        let lost = file.is_some_and(|file| file.lost.remove(&of).is_some());
        self.tidy(object);
        lost
    }

    /// A process closes a descriptor: what it has lost of the file need not be told any more.
    pub fn closes(&mut self, object: &Handle, owner: LockOwner) {
        if let Some(file) = self.files.get_mut(object) {
            file.lost.remove(&(LockKind::Posix, owner));
        }
        self.tidy(object);
    }

    /// The last descriptor is closed. Returns whose locks were taken through it, and end with it.
    pub fn released(&mut self, object: &Handle, fh: Fh) -> Vec<Of> {
        let Some(file) = self.files.get_mut(object) else {
            return Vec::new();
        };
        file.forget_lost_through(fh);
        let through = file.taken.iter().filter(|(_, fhs)| fhs.contains(&fh));
        let ends = through.map(|(of, _)| *of).collect();
        self.tidy(object);
        ends
    }

    /// Whether what is asked through a descriptor, or by an owner, was asked under a lock that is lost.
    pub fn is_lost(&self, object: &Handle, fh: Option<Fh>, owner: Option<LockOwner>) -> bool {
        let file = self.files.get(object);
        file.is_some_and(|file| file.is_lost(fh, owner))
    }

    /// The tenure in which a file's bytes are changed through a descriptor by who has lost no lock of it, if that is under
    /// one: to be asked for when he begins, since he may lose it before he is through.
    pub fn guard(
        &self,
        object: &Handle,
        fh: Option<Fh>,
        owner: Option<LockOwner>,
    ) -> Option<LockEpoch> {
        let file = self.files.get(object)?;
        file.guards(fh, owner).then_some(self.epoch)
    }

    /// The same of what may have been done by who has lost his locks: a mapped page for one was stored under those.
    pub fn guard_of_anybody(&self, object: &Handle) -> Option<LockEpoch> {
        let file = self.files.get(object)?;
        match file.lost.is_empty() {
            true => (!file.held.is_empty()).then_some(self.epoch),
            false => file.lost_in,
        }
    }

    /// The server takes something back: what of it is decided here isn't any more. Returns of which files it is to be
    /// told what is held, before that is approved.
    pub fn recalled(&mut self, recall: &Recall) -> Vec<Handle> {
        let of = |object: &Handle| match &recall.scope {
            Scope::Everything => true,
            Scope::Object {
                object: taken,
                parts,
                ..
            } => taken == object && parts.contains(leasefs_protocol::Parts::LOCKS),
        };
        let files = self.files.iter_mut().filter(|(object, _)| of(object));
        let mut told = Vec::new();
        for (object, file) in files {
            file.recalled = file.recalled.max(recall.stamp);
            if !planted::is(Bug::DecidesOn) {
                file.right = None;
            }
            if file.delegation != Stamp(0) {
                told.push(*object);
            }
        }
        told
    }

    /// Gives up deciding where nobody holds or wants a lock, once that is so of too many files. Returns the last grants of
    /// what is to be given back, behind what is held there.
    pub fn give_idle_rights_back(&mut self) -> Vec<(Handle, Stamp)> {
        if self.files.len() <= MAX_IDLE_RIGHTS {
            return Vec::new();
        }
        let idle = self.files.iter_mut().filter(|(_, file)| file.idles());
        let mut idle: Vec<(&Handle, &mut FileState)> = idle.collect();
        if idle.len() <= MAX_IDLE_RIGHTS {
            return Vec::new();
        }
        let given_up = idle.iter_mut().map(|(object, file)| {
            file.right = None;
            (**object, file.delegation)
        });
        given_up.collect()
    }

    /// What is held of these files, as the server is told it; with a keep-alive of this number it is known to have come.
    pub fn say(&mut self, files: &[Handle], keep_alive: u64) -> Vec<FileLocks> {
        let mut said = Vec::new();
        for object in files {
            if let Some(file) = self.files.get_mut(object) {
                file.told_by = Some(keep_alive);
                said.push(file.said(*object));
            }
        }
        said
    }

    /// A keep-alive was answered, and what was said before it has come.
    pub fn acknowledged(&mut self, keep_alive: u64) {
        let told = |file: &FileState| file.told_by.is_some_and(|number| number <= keep_alive);
        let told: Vec<Handle> = self
            .files
            .iter()
            .filter(|(_, f)| told(f))
            .map(|(o, _)| *o)
            .collect();
        for object in told {
            if let Some(file) = self.files.get_mut(&object) {
                file.told_by = None;
                if file.right.is_none() {
                    file.delegation = Stamp(0);
                }
            }
            self.tidy(&object);
        }
    }

    /// The connection is lost, and maybe what was said.
    pub fn disconnected(&mut self) {
        self.files.values_mut().for_each(|file| file.told_by = None);
    }

    /// The server is another process: it decides all locks, and its stamps begin anew.
    pub fn restarted(&mut self) {
        for file in self.files.values_mut() {
            file.right = None;
            (file.delegation, file.applied, file.recalled) = <(Stamp, Stamp, Stamp)>::default();
        }
        self.wake_all();
        self.tidy_all();
    }

    /// What is claimed back from a restarted server, and in which tenure it is held. That is claimed without locks, too:
    /// what was written under some that have been given up may be on its way.
    pub fn claims(&self) -> (Vec<FileLocks>, LockEpoch) {
        let held = self.files.iter().filter(|(_, file)| !file.held.is_empty());
        let epoch = match self.is_reset_due() {
            true => LockEpoch::default(),
            false => self.epoch,
        };
        let files = held.map(|(object, file)| file.claimed(*object));
        let files = files.filter(|file| !file.locks.is_empty());
        (files.collect(), epoch)
    }

    /// Locks of a file could not be claimed back.
    pub fn lost(&mut self, object: &Handle) {
        let epoch = self.epoch;
        if let Some(file) = self.files.get_mut(object) {
            file.lose(epoch);
        }
        self.tidy(object);
    }

    /// The session's leases have ended, and with them all locks.
    pub fn lose_all(&mut self) {
        self.live = false;
        if self.files.is_empty() || planted::is(Bug::LocksOutliveLeases) {
            return;
        }
        let epoch = self.epoch;
        self.files.values_mut().for_each(|file| file.lose(epoch));
        self.losses += 1;
        self.lost.ring_one();
        self.wake_all();
        self.tidy_all();
    }

    /// Whether the session's leases are valid by the own clock now: else all locks are lost.
    pub fn look(&mut self, live: bool) {
        if self.live && !live {
            self.lose_all();
        }
        self.live = live;
    }

    /// Whether nothing is held or asked, and nothing lost that anybody has to be told of.
    pub fn is_idle(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether any lock is held.
    pub fn holds_any(&self) -> bool {
        self.files.values().any(|file| !file.held.is_empty())
    }

    /// Files of which locks are held, were lost, or are waited for, for people.
    pub fn status(&self) -> Vec<LockStatus> {
        let waiting = self.waiting.values().map(|waiting| LockStatus {
            object: waiting.object,
            lock: waiting.lock,
            fence: None,
            holder: waiting.holder.clone(),
            decided_here: false,
        });
        self.held().into_iter().chain(waiting).collect()
    }

    /// What is held.
    pub fn held(&self) -> Vec<LockStatus> {
        let held = self.files.iter().flat_map(|(object, file)| {
            file.held.iter().map(|held| LockStatus {
                object: *object,
                lock: leasefs_lease::locks::wanted(held),
                fence: Some(held.fence),
                holder: None,
                decided_here: file.right.is_some(),
            })
        });
        held.collect()
    }

    fn tidy(&mut self, object: &Handle) {
        if self.files.get(object).is_some_and(FileState::is_idle) {
            self.files.remove(object);
        }
    }

    fn tidy_all(&mut self) {
        self.files.retain(|_, file| !file.is_idle());
    }
}

/// A lock that is held or waited for, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// The file.
    pub object: Handle,
    /// The lock.
    pub lock: LockWanted<LockOwner>,
    /// Its number; `None` while it is waited for.
    pub fence: Option<Fence>,
    /// While it is waited for: who holds it up, as the server has said last.
    pub holder: Option<LockHolder>,
    /// Whether this mount decides the file's locks.
    pub decided_here: bool,
}

#[cfg(test)]
mod tests;
