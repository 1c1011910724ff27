//! Who holds which locks, who waits for which, and who decides them.
//!
//! A file whose locks one session decides (a Write lease on LOCKS) has nobody else's here, and nobody waits: what is
//! here of it is what the session had when it was given that right, or has [said](LockTable::declare) since. So whoever wants a lock of
//! it has the lease recalled first, and finds here what is held.

mod deadlock;
mod granting;
mod invariants;

pub(super) use granting::Effort;

use crate::locks::{LockWanted, Locks};
use crate::time::BootTime;
use leasefs_protocol::limits::{
    FENCES_DELEGATED, FENCES_OF_LIFE, MAX_LOCK_WAITS, MAX_LOCKS, MAX_LOCKS_OF_FILE,
};
use leasefs_protocol::lock::{Delegation, FileLocks, LockFound};
use leasefs_protocol::{
    Fence, Handle, HeldLock, LockEpoch, LockKind, LockOwner, LockRange, LockWait, SessionId, Stamp,
};
use std::collections::{BTreeMap, BTreeSet};

/// Whose a lock is: of which session, and whose there.
pub(super) type Owner = (SessionId, LockOwner);

/// A lock that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) wait: LockWait,
    pub(super) lock: LockWanted<Owner>,
    pub(super) since: BootTime,
}

/// The locks of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) held: Locks<Owner>,
    /// In the order in which they came.
    pub(super) waiting: Vec<Waiter>,
    /// The session that decides them, and since which grant.
    pub(super) decides: Option<(SessionId, Stamp)>,
    /// Since when each lock is held, as far as the server knows.
    since: BTreeMap<Fence, BootTime>,
}

impl File {
    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty() && self.decides.is_none()
    }

    fn held_by(&self, session: SessionId) -> impl Iterator<Item = &HeldLock<Owner>> {
        self.held.iter().filter(move |held| held.owner.0 == session)
    }

    fn take(&mut self, now: BootTime, lock: &LockWanted<Owner>, fence: Fence) {
        self.held.take(lock, fence);
        self.note(now, [fence]);
    }

    /// Locks that are held by now.
    fn note(&mut self, now: BootTime, fences: impl IntoIterator<Item = Fence>) {
        for fence in fences {
            self.since.entry(fence).or_insert(now);
        }
        if self.since.len() > self.held.len() {
            let held: BTreeSet<Fence> = self.held.iter().map(|held| held.fence).collect();
            self.since.retain(|fence, _| held.contains(fence));
        }
    }

    /// Since when a lock is held, as far as the server knows.
    pub(super) fn since(&self, held: &HeldLock<Owner>) -> BootTime {
        self.since.get(&held.fence).copied().unwrap_or_default()
    }

    fn concerns(&self, session: SessionId) -> bool {
        self.held_by(session).next().is_some()
            || self.waiting.iter().any(|w| w.lock.owner.0 == session)
            || self.decides.is_some_and(|(decides, _)| decides == session)
    }
}

/// What a session has, in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct OfSession {
    files: BTreeMap<Handle, usize>,
    held: usize,
    waits: usize,
}

/// What becomes of a lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Taken {
    Held(Fence),
    Waits,
    Conflicts,
    Deadlock,
    TooMany,
}

/// All locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockTable {
    files: BTreeMap<Handle, File>,
    sessions: BTreeMap<SessionId, OfSession>,
    /// Where an owner waits.
    waits: BTreeMap<Owner, BTreeSet<(LockWait, Handle)>>,
    /// Files in which somebody who waits may have his lock now.
    pub(super) changed: BTreeSet<Handle>,
    /// Files in which somebody only lets others go first.
    polite: BTreeSet<Handle>,
    /// Of the changed ones those that are looked at when the time has come to.
    put_off: BTreeSet<Handle>,
    next_fence: u64,
    /// The first number that is another life's.
    last_fence: u64,
    /// Of lives, too, none has one of another.
    last_epoch: LockEpoch,
}

impl LockTable {
    pub(super) fn new(first: Fence) -> Self {
        Self {
            files: BTreeMap::new(),
            sessions: BTreeMap::new(),
            waits: BTreeMap::new(),
            changed: BTreeSet::new(),
            polite: BTreeSet::new(),
            put_off: BTreeSet::new(),
            next_fence: first.0,
            last_fence: first.0.saturating_add(FENCES_OF_LIFE),
            last_epoch: LockEpoch(first.0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let idle = |file: &File| file.held.is_empty() && file.waiting.is_empty();
        self.files.values().all(idle)
    }

    pub(super) fn file(&self, object: &Handle) -> Option<&File> {
        self.files.get(object)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&Handle, &File)> {
        self.files.iter()
    }

    /// Numbers that nothing had before; `None` once this life has none left.
    pub(super) fn fences(&mut self, count: u64) -> Option<Fence> {
        let first = self.next_fence;
        let next = first.checked_add(count)?;
        if next > self.last_fence {
            return None;
        }
        self.next_fence = next;
        Some(Fence(first))
    }

    pub(super) fn decides(&self, session: SessionId, object: &Handle) -> bool {
        let file = self.files.get(object);
        file.and_then(|file| file.decides)
            .is_some_and(|(id, _)| id == session)
    }

    /// The files whose locks the session decides.
    pub(super) fn decided_by(&self, session: SessionId) -> Vec<Handle> {
        let of = self.sessions.get(&session);
        let files = of.into_iter().flat_map(|of| of.files.keys());
        files
            .filter(|file| self.decides(session, file))
            .copied()
            .collect()
    }

    /// A tenure that no session had before.
    pub(super) fn next_epoch(&mut self) -> LockEpoch {
        self.last_epoch = self.last_epoch.next();
        self.last_epoch
    }

    /// Takes a lock, or its place among those who wait.
    pub(super) fn take(
        &mut self,
        now: BootTime,
        object: Handle,
        lock: LockWanted<Owner>,
        wait: Option<LockWait>,
    ) -> Taken {
        let file = self.files.entry(object).or_default();
        let before = file.held.len();
        file.held.converts(&lock);
        if file.held.len() != before {
            self.changed.insert(object);
        }
        if let Some(fence) = file.held.has(&lock) {
            self.stops_waiting(object, lock.owner.0, wait);
            return Taken::Held(fence);
        }
        let effort = &mut Effort::of_one_event();
        let taken = match self.stands_against(&object, &lock, wait, effort) {
            true => self.queue(now, object, lock, wait, effort),
            false => self.take_free(now, object, lock, wait),
        };
        self.recount(lock.owner.0, object);
        self.tidy(object);
        taken
    }

    fn take_free(
        &mut self,
        now: BootTime,
        object: Handle,
        lock: LockWanted<Owner>,
        wait: Option<LockWait>,
    ) -> Taken {
        if self.is_full(lock.owner.0, &object) {
            return Taken::TooMany;
        }
        let Some(fence) = self.fences(1) else {
            return Taken::TooMany;
        };
        let file = self.files.entry(object).or_default();
        file.take(now, &lock, fence);
        self.stops_waiting(object, lock.owner.0, wait);
        // It may be less than its owner held; and somebody may wait for him now who was let go first.
        self.changed.insert(object);
        self.changed.extend(&self.polite);
        Taken::Held(fence)
    }

    /// One lock may split another one, so there is room for two more.
    fn is_full(&self, session: SessionId, object: &Handle) -> bool {
        let Some(of) = self.sessions.get(&session) else {
            return false;
        };
        let here = of.files.get(object).copied().unwrap_or(0);
        here + 2 > MAX_LOCKS_OF_FILE || of.held + 2 > MAX_LOCKS
    }

    fn queue(
        &mut self,
        now: BootTime,
        object: Handle,
        lock: LockWanted<Owner>,
        wait: Option<LockWait>,
        effort: &mut Effort,
    ) -> Taken {
        let Some(wait) = wait else {
            return Taken::Conflicts;
        };
        let session = lock.owner.0;
        if lock.kind == LockKind::Posix && self.would_deadlock(&object, &lock, effort) {
            self.stops_waiting(object, session, Some(wait));
            return Taken::Deadlock;
        }
        let is_known = |w: &Waiter| w.wait == wait && w.lock.owner.0 == session;
        let known = self.files.get(&object);
        let known = known.is_some_and(|file| file.waiting.iter().any(is_known));
        let of = self.sessions.get(&session);
        if !known && of.is_some_and(|of| of.waits >= MAX_LOCK_WAITS) {
            return Taken::TooMany;
        }
        let file = self.files.entry(object).or_default();
        if !known {
            file.waiting.push(Waiter {
                wait,
                lock,
                since: now,
            });
            self.waits
                .entry(lock.owner)
                .or_default()
                .insert((wait, object));
            self.sessions.entry(session).or_default().waits += 1;
            let is_polite = file.held.against(&lock).next().is_none();
            // Who lets another one go first may have to no longer, since that one waits for him now.
            self.changed.extend(&self.polite);
            if is_polite {
                self.polite.insert(object);
            }
        }
        Taken::Waits
    }

    /// Gives up what an owner holds of these bytes. `None` if that would make more locks than there may be.
    pub(super) fn give_up(
        &mut self,
        object: Handle,
        owner: Owner,
        kind: LockKind,
        range: LockRange,
    ) -> Option<bool> {
        let Some(file) = self.files.get(&object) else {
            return Some(false);
        };
        if file.held.splits(owner, kind, range) && self.is_full(owner.0, &object) {
            return None;
        }
        let file = self.files.get_mut(&object)?;
        let any = file.held.give_up(owner, kind, range);
        self.changed.insert(object);
        self.recount(owner.0, object);
        self.tidy(object);
        Some(any)
    }

    /// What stands against a lock.
    pub(super) fn found(
        &self,
        object: &Handle,
        lock: &LockWanted<Owner>,
    ) -> Option<HeldLock<Owner>> {
        self.files.get(object)?.held.against(lock).next().copied()
    }

    /// Who holds a lock up: who holds what stands against it, or waits for longer.
    pub(super) fn holds_up(
        &self,
        object: &Handle,
        lock: &LockWanted<Owner>,
    ) -> Option<(SessionId, u32)> {
        let file = self.files.get(object)?;
        let holder = file.held.against(lock).next();
        let holder = holder.map(|held| (held.owner.0, held.pid));
        let earlier = || {
            let mut waiting = file.waiting.iter().map(|w| &w.lock);
            let earlier = waiting.find(|earlier| earlier.is_against(lock))?;
            Some((earlier.owner.0, earlier.pid))
        };
        holder.or_else(earlier)
    }

    /// Waits no longer; whether it did.
    pub(super) fn stops_waiting(
        &mut self,
        object: Handle,
        session: SessionId,
        wait: Option<LockWait>,
    ) -> bool {
        let (Some(wait), Some(file)) = (wait, self.files.get_mut(&object)) else {
            return false;
        };
        let is = |w: &Waiter| w.wait == wait && w.lock.owner.0 == session;
        let Some(at) = file.waiting.iter().position(is) else {
            return false;
        };
        let waiter = file.waiting.remove(at);
        self.forget_wait(&waiter, object);
        self.changed.insert(object);
        self.recount(session, object);
        self.tidy(object);
        true
    }

    fn forget_wait(&mut self, waiter: &Waiter, object: Handle) {
        let owner = waiter.lock.owner;
        if let Some(of) = self.sessions.get_mut(&owner.0) {
            of.waits = of.waits.saturating_sub(1);
        }
        if let Some(waits) = self.waits.get_mut(&owner) {
            waits.remove(&(waiter.wait, object));
            if waits.is_empty() {
                self.waits.remove(&owner);
            }
        }
    }

    /// Whether nobody but this session has a lock of the file, and nobody waits for one.
    pub(super) fn is_alone(&self, session: SessionId, object: &Handle) -> bool {
        self.files.get(object).is_none_or(|file| {
            let mut others = file.held.iter().filter(|held| held.owner.0 != session);
            file.waiting.is_empty() && others.next().is_none()
        })
    }

    /// The session decides the file's locks from this grant on; with what it holds of it.
    pub(super) fn delegate(
        &mut self,
        session: SessionId,
        object: Handle,
        stamp: Stamp,
        first: Fence,
    ) -> (Delegation, Vec<HeldLock>) {
        let file = self.files.entry(object).or_default();
        file.decides = Some((session, stamp));
        let held = file.held_by(session).map(|held| held.of(held.owner.1));
        let held = held.collect();
        self.recount(session, object);
        let delegation = Delegation {
            stamp,
            first,
            count: FENCES_DELEGATED,
        };
        (delegation, held)
    }

    /// The session decides them no longer.
    pub(super) fn decides_no_longer(&mut self, session: SessionId, object: Handle) {
        if let Some(file) = self.files.get_mut(&object)
            && file.decides.is_some_and(|(decides, _)| decides == session)
        {
            file.decides = None;
            self.changed.insert(object);
            self.recount(session, object);
            self.tidy(object);
        }
    }

    /// What a session holds of a file that it decides, as it says; false if that is more than it may, so that it isn't known here.
    pub(super) fn declare(&mut self, now: BootTime, session: SessionId, file: FileLocks) -> bool {
        let decides = self.files.get(&file.object).and_then(|known| known.decides);
        decides != Some((session, file.delegation)) || self.replace(now, session, file)
    }

    /// What a session held of a file in the server's earlier life; false if that can't be.
    pub(super) fn restore(&mut self, now: BootTime, session: SessionId, file: FileLocks) -> bool {
        let others = self.files.get(&file.object).map(|known| {
            let mut others = known.held.clone();
            others.retain(|held| held.owner.0 != session);
            others.obstacles()
        });
        let against = |held: &HeldLock| {
            let lock = crate::locks::wanted(&owned(session, held));
            let others = others.as_ref();
            others.is_some_and(|others| others.any_against(&lock))
        };
        !file.locks.iter().any(against) && self.replace(now, session, file)
    }

    /// A session holds nothing of a file.
    pub(super) fn has_lost(&mut self, now: BootTime, session: SessionId, object: Handle) {
        let of = self.sessions.get(&session);
        if of.is_some_and(|of| of.files.contains_key(&object)) {
            let nothing = FileLocks {
                object,
                delegation: Stamp::default(),
                locks: Vec::new(),
            };
            self.replace(now, session, nothing);
        }
    }

    fn replace(&mut self, now: BootTime, session: SessionId, file: FileLocks) -> bool {
        let FileLocks { object, locks, .. } = file;
        let of = self.sessions.get(&session);
        let here = of
            .and_then(|of| of.files.get(&object))
            .copied()
            .unwrap_or(0);
        let in_all = of.map_or(0, |of| of.held) - here + locks.len();
        let are_ranges = locks.iter().all(|held| held.range.is_one());
        if locks.len() > MAX_LOCKS_OF_FILE || in_all > MAX_LOCKS || !are_ranges {
            return false;
        }
        let known = self.files.entry(object).or_default();
        known.held.retain(|held| held.owner.0 != session);
        known
            .held
            .restore(locks.iter().map(|held| owned(session, held)));
        known.note(now, locks.iter().map(|held| held.fence));
        self.changed.insert(object);
        self.recount(session, object);
        self.tidy(object);
        true
    }

    /// Everything the session has is gone.
    pub(super) fn end_session(&mut self, session: SessionId) {
        let Some(of) = self.sessions.remove(&session) else {
            return;
        };
        for object in of.files.into_keys() {
            let Some(file) = self.files.get_mut(&object) else {
                continue;
            };
            file.held.retain(|held| held.owner.0 != session);
            file.decides.take_if(|(decides, _)| *decides == session);
            let is_own = |w: &mut Waiter| w.lock.owner.0 == session;
            let gone: Vec<Waiter> = file.waiting.extract_if(.., is_own).collect();
            gone.iter()
                .for_each(|waiter| self.forget_wait(waiter, object));
            self.changed.insert(object);
            self.tidy(object);
        }
    }

    fn recount(&mut self, session: SessionId, object: Handle) {
        let file = self.files.get(&object);
        let held = file.map_or(0, |file| file.held_by(session).count());
        let concerns = file.is_some_and(|file| file.concerns(session));
        let of = self.sessions.entry(session).or_default();
        let before = match concerns {
            true => of.files.insert(object, held),
            false => of.files.remove(&object),
        };
        of.held = of.held - before.unwrap_or(0) + held;
        if of.files.is_empty() {
            self.sessions.remove(&session);
        }
    }

    fn tidy(&mut self, object: Handle) {
        if self.files.get(&object).is_some_and(File::is_idle) {
            self.files.remove(&object);
        }
    }

    pub(super) fn rebase(&mut self, move_back: impl Fn(&mut BootTime)) {
        let waiting = self.files.values_mut().flat_map(|file| &mut file.waiting);
        waiting.for_each(|waiter| move_back(&mut waiter.since));
        let held = self
            .files
            .values_mut()
            .flat_map(|file| file.since.values_mut());
        held.for_each(move_back);
    }
}

/// As the server has it.
fn owned(session: SessionId, held: &HeldLock) -> HeldLock<Owner> {
    held.of((session, held.owner))
}

/// As the client is told it, whose own process it may be.
pub(super) fn shown(held: &HeldLock<Owner>, own: bool) -> LockFound {
    LockFound {
        mode: held.mode,
        range: held.range,
        pid: own.then_some(held.pid),
    }
}
