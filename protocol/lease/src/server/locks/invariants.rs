//! What is true of locks between any two events.

use super::deadlock::Known;
use super::{Effort, File, LockTable, Owner, Waiter};
use crate::locks::wanted;
use leasefs_protocol::{Handle, HeldLock, LockWait, SessionId};
use std::collections::{BTreeMap, BTreeSet};

type Checked = Result<(), String>;

fn require(holds: bool, claim: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(claim()) }
}

impl LockTable {
    /// Checks what is always true. `waits_on` says of which files those who wait may have to wait for something
    /// that isn't a lock.
    pub(in crate::server) fn check(&self, waits_on: impl Fn(&Handle) -> bool) -> Checked {
        require(self.changed.is_empty(), || "grants are left undone".into())?;
        for (object, file) in &self.files {
            self.check_file(object, file, &waits_on)
                .map_err(|e| format!("locks of {object}: {e}"))?;
        }
        self.check_waits()?;
        self.check_counts()
    }

    fn check_file(
        &self,
        object: &Handle,
        file: &File,
        waits_on: impl Fn(&Handle) -> bool,
    ) -> Checked {
        require(!file.is_idle(), || "kept though nobody needs them".into())?;
        for held in file.held.iter() {
            let lock = wanted(held);
            let against = file.held.against(&lock).next();
            require(against.is_none(), || {
                format!("{held:?} against {against:?}")
            })?;
        }
        if let Some((session, _)) = file.decides {
            let others = |held: &&HeldLock<Owner>| held.owner.0 != session;
            let alone = !file.held.iter().any(|held| others(&held));
            require(alone && file.waiting.is_empty(), || {
                format!("{session} decides them, and isn't alone")
            })?;
        }
        let grantable = file.waiting.iter().enumerate().find(|(at, waiter)| {
            let before = &file.waiting[..*at];
            self.may_have(object, file, waiter, before)
        });
        let put_off = self.put_off.contains(object);
        require(grantable.is_none() || put_off || waits_on(object), || {
            format!("{grantable:?} waits for nothing")
        })
    }

    fn may_have(&self, object: &Handle, file: &File, waiter: &Waiter, before: &[Waiter]) -> bool {
        let free = file.held.against(&waiter.lock).next().is_none();
        let (known, effort) = (&mut Known::new(), &mut Effort::of_one_event());
        let room = !self.is_full(waiter.lock.owner.0, object);
        let mut before = before.iter();
        let lock = &waiter.lock;
        free && room
            && !before.any(|first| self.goes_first(first, lock, (&mut *known, &mut *effort)))
    }

    /// Where each owner waits is known at both ends.
    fn check_waits(&self) -> Checked {
        let waiting = self.files.iter().flat_map(|(object, file)| {
            let waiting = file.waiting.iter();
            waiting.map(|w| (w.lock.owner, w.wait, *object))
        });
        let at_files: BTreeSet<(Owner, LockWait, Handle)> = waiting.collect();
        let at_owners = self.waits.iter().flat_map(|(owner, waits)| {
            let waits = waits.iter();
            waits.map(|(wait, object)| (*owner, *wait, *object))
        });
        let at_owners: BTreeSet<(Owner, LockWait, Handle)> = at_owners.collect();
        require(at_files == at_owners, || {
            format!("{at_files:?} wait, known are {at_owners:?}")
        })
    }

    fn check_counts(&self) -> Checked {
        let mut counts: BTreeMap<SessionId, (usize, usize)> = BTreeMap::new();
        for file in self.files.values() {
            for held in file.held.iter() {
                counts.entry(held.owner.0).or_default().0 += 1;
            }
            for waiter in &file.waiting {
                counts.entry(waiter.lock.owner.0).or_default().1 += 1;
            }
            if let Some((session, _)) = file.decides {
                counts.entry(session).or_default();
            }
        }
        let known = self.sessions.iter();
        let known = known.map(|(id, of)| (*id, (of.held, of.waits))).collect();
        require(counts == known, || {
            format!("{counts:?} held and waited for, counted {known:?}")
        })?;
        for (session, of) in &self.sessions {
            let concerned = self
                .files
                .iter()
                .filter(|(_, file)| file.concerns(*session));
            let concerned = concerned.map(|(o, file)| (*o, file.held_by(*session).count()));
            require(concerned.eq(of.files.iter().map(|(o, n)| (*o, *n))), || {
                format!("misjudges what concerns {session}")
            })?;
        }
        Ok(())
    }
}
