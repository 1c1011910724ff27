//! Whether locks keep apart what they should.
//!
//! What a process holds is what it was told that it has, until it gives that up. Whenever somebody is told that he has
//! a lock, no mount may hold one that stands against it; what was written under such a lock, whose holder is away
//! and hasn't heard that he has lost it, must not take effect any more.

use super::Judge;
use super::zones::{ZONES, Zones};
use crate::sim::model::{DeedId, Item, Nanos, Obj};
use leasefs_client::LockStatus;
use leasefs_protocol::{LockKind, LockMode, LockOwner, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Whose locks of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The mount.
    pub session: SessionId,
    /// The file.
    pub object: Obj,
    /// Which locks.
    pub kind: LockKind,
    /// Their owner, as the mount's kernel tells it.
    pub owner: LockOwner,
    /// Its process there.
    pub process: usize,
}

impl Holder {
    fn is(&self, session: SessionId, object: Obj, process: usize) -> bool {
        (self.session, self.object, self.process) == (session, object, process)
    }

    fn is_rival(&self, other: &Self) -> bool {
        self != other && (self.object, self.kind) == (other.object, other.kind)
    }
}

/// An exclusive lock of a zone, from when it was told to when it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantId(u64);

/// What somebody holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    shared: Zones,
    exclusive: Zones,
    /// He lets go of them, and his mount may not have heard that the server knows.
    given_up: Zones,
    /// Somebody else was told that he has them.
    taken: Zones,
    /// He was told that he has lost what he held, and is again until he unlocks or closes.
    told: bool,
    /// The locks of those that are exclusive.
    grants: [Option<GrantId>; ZONES as usize],
}

impl Held {
    fn any(&self) -> Zones {
        self.shared.or(self.exclusive)
    }

    fn against(&self, mode: LockMode, zones: Zones) -> Zones {
        let held = match mode {
            LockMode::Exclusive => self.any(),
            LockMode::Shared => self.exclusive,
        };
        held.and(zones)
    }

    fn drop(&mut self, zones: Zones) {
        self.shared = self.shared.without(zones);
        self.exclusive = self.exclusive.without(zones);
        self.taken = self.taken.without(zones);
    }

    fn take(&mut self, mode: LockMode, zones: Zones, next: &mut u64) {
        let before = self.exclusive;
        self.drop(zones);
        self.given_up = self.given_up.without(zones);
        match mode {
            LockMode::Shared => self.shared = self.shared.or(zones),
            LockMode::Exclusive => {
                self.exclusive = self.exclusive.or(zones);
                self.each_grant(zones.without(before), |grant| {
                    *next += 1;
                    *grant = Some(GrantId(*next));
                });
            }
        }
    }

    fn each_grant(&mut self, zones: Zones, mut with: impl FnMut(&mut Option<GrantId>)) {
        let grants = (0..).zip(&mut self.grants);
        let of = |zone: u32| !Zones::between(zone, zone).and(zones).is_empty();
        grants
            .filter(|(zone, _)| of(*zone))
            .for_each(|(_, grant)| with(grant));
    }
}

/// Somebody was just told that he has a lock.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// Who.
    pub holder: Holder,
    /// Of which mode.
    pub mode: LockMode,
    /// Of what.
    pub zones: Zones,
}

/// A process was just told that its locks of a file are lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The mount.
    pub session: SessionId,
    process: usize,
    object: Obj,
}

/// All that is known of locks.
#[derive(Debug, Default)]
pub struct LockBook {
    held: BTreeMap<Holder, Held>,
    taken: BTreeSet<GrantId>,
    /// Under which locks values are written.
    writes: BTreeMap<u64, Vec<GrantId>>,
    deeds: BTreeMap<DeedId, Vec<GrantId>>,
    /// When locks of a file were last given or given up.
    stirred: BTreeMap<Obj, Nanos>,
    last: u64,
    /// To be compared with what mounts hold.
    pub fresh: Vec<Granted>,
    /// As well.
    pub losses: Vec<Loss>,
}

impl LockBook {
    /// What a process holds.
    pub fn of_process(
        &self,
        session: SessionId,
        process: usize,
    ) -> impl Iterator<Item = (Holder, LockMode, Zones)> {
        let held = self.held.iter();
        let own =
            held.filter(move |(holder, _)| (holder.session, holder.process) == (session, process));
        let modes = |(holder, held): (&Holder, &Held)| {
            let shared = (*holder, LockMode::Shared, held.shared);
            [(*holder, LockMode::Exclusive, held.exclusive), shared]
        };
        own.flat_map(modes).filter(|(.., zones)| !zones.is_empty())
    }

    /// The locks under which a process changes these of a file, through a descriptor.
    pub fn guards(
        &self,
        session: SessionId,
        process: usize,
        (object, descriptor): (Obj, LockOwner),
        zones: Zones,
    ) -> Vec<GrantId> {
        let through = |holder: &Holder| {
            holder.is(session, object, process)
                && (holder.kind == LockKind::Posix || holder.owner == descriptor)
        };
        let held = self.held.iter().filter(|(holder, _)| through(holder));
        let mut guards = BTreeSet::new();
        for (_, mut held) in held.map(|(holder, held)| (holder, *held)) {
            let exclusive = held.exclusive.and(zones);
            held.each_grant(exclusive, |grant| guards.extend(*grant));
        }
        guards.into_iter().collect()
    }

    /// Whether somebody of whom `lives` says so holds locks that keep others waiting.
    pub fn is_held(&self, wants: &Holder, lives: impl Fn(SessionId) -> bool) -> bool {
        let mut held = self.held.iter();
        held.any(|(holder, held)| {
            let stands = !held.any().without(held.taken).is_empty();
            stands && holder.is_rival(wants) && lives(holder.session)
        })
    }

    /// When locks of a file were last given or given up.
    pub fn stirred(&self, object: Obj) -> Nanos {
        self.stirred.get(&object).copied().unwrap_or_default()
    }

    /// What somebody lets go of.
    pub fn given_up(
        &self,
        session: SessionId,
        (object, kind, owner): (Obj, LockKind, LockOwner),
    ) -> Zones {
        let of = |holder: &Holder| {
            (holder.session, holder.object) == (session, object)
                && (holder.kind, holder.owner) == (kind, owner)
        };
        let held = self.held.iter().filter(|(holder, _)| of(holder));
        held.fold(Zones::default(), |all, (_, held)| all.or(held.given_up))
    }

    fn taken_of<'a>(&self, guards: impl IntoIterator<Item = &'a GrantId>) -> bool {
        guards.into_iter().any(|guard| self.taken.contains(guard))
    }
}

impl Judge {
    /// A process asks for a lock, or gives up what it has. `flock` gives up what it converts; who
    /// makes a lock a shared one lets others in.
    pub fn begins_lock(
        &mut self,
        now: Nanos,
        holder: Holder,
        mode: Option<LockMode>,
        zones: Zones,
    ) {
        let known = self.locks.held.get(&holder).copied().unwrap_or_default();
        let gives_up = match (mode, holder.kind) {
            (None, _) => zones,
            (Some(LockMode::Shared), _) => known.exclusive.and(zones),
            (Some(LockMode::Exclusive), LockKind::Flock) => known.shared.and(zones),
            (Some(LockMode::Exclusive), LockKind::Posix) => Zones::default(),
        };
        self.gives_up(now, holder, gives_up);
        if let (None, Some(held)) = (mode, self.locks.held.get_mut(&holder)) {
            held.told = false;
        }
    }

    fn gives_up(&mut self, now: Nanos, holder: Holder, zones: Zones) {
        let held = self.locks.held.entry(holder).or_default();
        held.drop(zones);
        held.given_up = held.given_up.or(zones);
        self.locks.stirred.insert(holder.object, now);
    }

    /// A process closes a descriptor.
    pub fn closes_locks(
        &mut self,
        now: Nanos,
        session: SessionId,
        process: usize,
        (object, descriptor): (Obj, LockOwner),
    ) {
        let ends = |holder: &&Holder| {
            holder.is(session, object, process)
                && (holder.kind == LockKind::Posix || holder.owner == descriptor)
        };
        let ends: Vec<Holder> = self.locks.held.keys().filter(ends).copied().collect();
        for holder in ends {
            self.gives_up(now, holder, Zones::ALL);
            self.locks.held.entry(holder).or_default().told = false;
        }
    }

    /// A process is told that it has lost its locks of a file.
    pub fn told_lock_loss(&mut self, session: SessionId, process: usize, object: Obj) {
        let loss = Loss {
            session,
            process,
            object,
        };
        self.locks.losses.push(loss);
    }

    /// Whether a process that was told of a loss has lost anything, given what its mount holds. It is told again until
    /// it unlocks or closes.
    pub fn check_loss(&mut self, loss: Loss, mounts: Option<&[LockStatus]>) {
        let Loss {
            session,
            process,
            object,
        } = loss;
        let mounts = mounts.unwrap_or_default();
        let own = self.locks.held.iter_mut();
        let own = own.filter(|(holder, _)| holder.is(session, object, process));
        let (mut any, mut again, mut stands) = (false, false, true);
        for (holder, held) in own {
            let lost = held.any().without(held_of(mounts, holder, None));
            (any, again) = (true, again || held.told);
            stands &= lost.is_empty() && !held.any().is_empty();
            if !lost.is_empty() {
                held.drop(lost);
                held.given_up = held.given_up.or(lost);
                held.told = true;
            }
        }
        if !again && (!any || stands) {
            self.accuse(Some(Item::Attrs(object)), || {
                format!("{loss:?} is told, and nothing is lost")
            });
        }
    }

    /// A mount is told for a process that it has a lock.
    pub fn locked(&mut self, now: Nanos, granted: Granted) {
        let Granted {
            holder,
            mode,
            zones,
        } = granted;
        let book = &mut self.locks;
        book.stirred.insert(holder.object, now);
        let rivals = book.held.iter_mut().filter(|(of, _)| of.is_rival(&holder));
        for (_, rival) in rivals {
            let against = rival.against(mode, zones);
            rival.taken = rival.taken.or(against);
            let taken = &mut book.taken;
            rival.each_grant(against, |grant| taken.extend(*grant));
        }
        let held = book.held.entry(holder).or_default();
        held.take(mode, zones, &mut book.last);
        book.fresh.push(granted);
    }

    /// A mount has told a process that it hasn't got a lock: what it may have been given, it gives back.
    pub fn not_locked(&mut self, refused: Granted) {
        let held = self.locks.held.entry(refused.holder).or_default();
        let new = refused.zones.without(held.any());
        held.given_up = held.given_up.or(new);
    }

    /// A value is kept beside because the locks under which it was written are lost: whether they are, given what its mount
    /// holds.
    pub fn check_refused(&mut self, value: u64, held: &[LockStatus]) {
        let Some(guards) = self.locks.writes.get(&value) else {
            return;
        };
        let stands = |guard: &GrantId| {
            let mut all = self.locks.held.iter();
            all.any(|(holder, known)| {
                let of = (0..ZONES).filter(|zone| known.grants[*zone as usize] == Some(*guard));
                let zones = of.map(|zone| Zones::between(zone, zone));
                let zones = zones.fold(Zones::default(), Zones::or).and(known.exclusive);
                !zones.is_empty() && held_of(held, holder, None).contains(zones)
            })
        };
        if guards.iter().all(stands) {
            self.accuse(None, || {
                format!("{value:x} is refused as written under a lock that is lost, which is held")
            });
        }
    }

    /// A process is about to write values under locks.
    pub fn writes_under(&mut self, values: &[u64], guards: &[GrantId]) {
        if !guards.is_empty() {
            let values = values.iter().map(|value| (*value, guards.to_vec()));
            self.locks.writes.extend(values);
        }
    }

    /// It is about to change something else under locks.
    pub fn acts_under(&mut self, deed: DeedId, guards: Vec<GrantId>) {
        if !guards.is_empty() {
            self.locks.deeds.insert(deed, guards);
        }
    }

    /// A value is about to take effect at the host.
    pub(in crate::sim) fn check_guards(&mut self, item: Item, value: u64, by: SessionId) {
        let guards = self.locks.writes.get(&value).into_iter().flatten();
        if self.locks.taken_of(guards) {
            self.accuse(Some(item), || {
                format!(
                    "{by} stores {value:x}, which was written under a lock that another has by now"
                )
            });
        }
    }

    /// As [`Judge::check_guards`], of another change.
    pub(super) fn check_guards_of(&mut self, deed: DeedId, item: Option<Item>) {
        let guards = self.locks.deeds.get(&deed).into_iter().flatten();
        if self.locks.taken_of(guards) {
            self.accuse(item, || {
                format!("{deed:?} was begun under a lock that another has by now")
            });
        }
    }

    /// A mount was told that it has a lock: whether another `holds` one that stands against it. `own`: of the same mount.
    pub fn check_apart(
        &mut self,
        granted: &Granted,
        (session, own): (SessionId, bool),
        held: &[LockStatus],
    ) {
        let Granted {
            holder,
            mode,
            zones,
        } = *granted;
        for status in held {
            let lock = status.lock;
            let same = own && lock.owner == holder.owner;
            let of_it = Obj::of(&status.object) == holder.object && lock.kind == holder.kind;
            let excludes = [mode, lock.mode].contains(&LockMode::Exclusive);
            if same || !of_it || !excludes {
                continue;
            }
            let of = (holder.object, lock.kind, lock.owner);
            let against = Zones::of(lock.range).and(zones);
            if !against.without(self.locks.given_up(session, of)).is_empty() {
                self.accuse(Some(Item::Attrs(holder.object)), || {
                    format!("{holder:?} is told that it has {zones:?} {mode:?}, {session} holds {lock:?}")
                });
            }
        }
    }

    /// A mount was told that it has a lock: whether it has.
    pub fn check_held(&mut self, granted: &Granted, held: &[LockStatus]) {
        let Granted { holder, mode, .. } = *granted;
        let zones = held_of(held, &holder, Some(mode));
        if !zones.contains(granted.zones) {
            self.accuse(Some(Item::Attrs(holder.object)), || {
                format!("{granted:?} is told to its process, and not held")
            });
        }
    }
}

/// What a mount holds for somebody.
fn held_of(held: &[LockStatus], holder: &Holder, mode: Option<LockMode>) -> Zones {
    let own = held.iter().filter(|status| {
        let lock = status.lock;
        let own = (lock.kind, lock.owner) == (holder.kind, holder.owner);
        let of_mode = mode.is_none_or(|mode| mode == lock.mode);
        own && of_mode && Obj::of(&status.object) == holder.object
    });
    let zones = own.map(|status| Zones::of(status.lock.range));
    zones.fold(Zones::default(), Zones::or)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Obj = Obj(1);

    fn holder(session: u8, owner: u64) -> Holder {
        Holder {
            session: SessionId([session; 16]),
            object: FILE,
            kind: LockKind::Posix,
            owner: LockOwner(owner),
            process: owner as usize,
        }
    }

    fn takes(judge: &mut Judge, holder: Holder, zones: Zones) {
        let mode = LockMode::Exclusive;
        let granted = Granted {
            holder,
            mode,
            zones,
        };
        judge.locked(1, granted);
    }

    fn writes(judge: &mut Judge, holder: Holder, value: u64) {
        let Holder {
            session, process, ..
        } = holder;
        let (object, zones) = ((FILE, LockOwner(99)), Zones::of_cells(0, 1));
        let guards = judge.locks.guards(session, process, object, zones);
        judge.writes_under(&[value], &guards);
    }

    #[test]
    fn what_was_written_under_a_lock_that_another_has_must_not_take_effect() {
        let mut judge = Judge::default();
        takes(&mut judge, holder(1, 1), Zones::between(0, 3));
        writes(&mut judge, holder(1, 1), 7);
        takes(&mut judge, holder(2, 1), Zones::between(1, 5));
        judge.check_guards(Item::Cell(FILE, 0), 7, SessionId([1; 16]));
        assert_eq!(judge.violation, None);
        takes(&mut judge, holder(2, 1), Zones::between(0, 0));
        judge.check_guards(Item::Cell(FILE, 0), 7, SessionId([1; 16]));
        assert!(judge.violation.is_some());
    }

    #[test]
    fn what_was_written_before_the_lock_was_given_up_may() {
        let mut judge = Judge::default();
        takes(&mut judge, holder(1, 1), Zones::ALL);
        writes(&mut judge, holder(1, 1), 7);
        judge.begins_lock(2, holder(1, 1), None, Zones::ALL);
        takes(&mut judge, holder(2, 1), Zones::ALL);
        judge.check_guards(Item::Cell(FILE, 0), 7, SessionId([1; 16]));
        assert_eq!(judge.violation, None);
    }
}
