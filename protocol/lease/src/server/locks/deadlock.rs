//! Who waits for whom.
//!
//! An owner waits for those who hold what stands against its lock, and lets those go first who have waited for longer. Only the
//! former can be a deadlock. Where the latter closes a circle nobody is let first.

use super::{Effort, File, LockTable, Owner, Waiter};
use crate::locks::LockWanted;
use leasefs_protocol::{Handle, LockWait};
use std::collections::{BTreeMap, BTreeSet};

/// For whom each owner waits, as long as nothing changes.
pub(super) type Known = BTreeMap<Owner, Option<BTreeSet<Owner>>>;

/// For what it is waited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Holders,
    HoldersAndEarlier,
}

impl LockTable {
    /// Whether a lock that would wait for those who hold what stands against it would wait for its owner.
    pub(super) fn would_deadlock(
        &self,
        object: &Handle,
        lock: &LockWanted<Owner>,
        effort: &mut Effort,
    ) -> bool {
        let Some(file) = self.files.get(object) else {
            return false;
        };
        let holders = file.held.against(lock).map(|held| held.owner);
        self.reach(holders.collect(), For::Holders, Some(lock.owner), effort)
            .is_some_and(|reached| reached.contains(&lock.owner))
    }

    /// Whether one who has waited for longer goes first: not if he waits for the other one.
    pub(super) fn goes_first(
        &self,
        earlier: &Waiter,
        lock: &LockWanted<Owner>,
        (known, effort): (&mut Known, &mut Effort),
    ) -> bool {
        let owner = earlier.lock.owner;
        let mut reach = || self.reach(vec![owner], For::HoldersAndEarlier, None, effort);
        earlier.lock.is_against(lock)
            && known
                .entry(owner)
                .or_insert_with(&mut reach)
                .as_ref()
                .is_some_and(|reached| !reached.contains(&lock.owner))
    }

    /// These owners, those they wait for, and so on; `None` if there is too much to be looked through. Once `until` is among
    /// them they need not be all.
    fn reach(
        &self,
        mut next: Vec<Owner>,
        what: For,
        until: Option<Owner>,
        effort: &mut Effort,
    ) -> Option<BTreeSet<Owner>> {
        let mut reached = BTreeSet::new();
        while let Some(owner) = next.pop() {
            if !reached.insert(owner) {
                continue;
            }
            if until == Some(owner) {
                break;
            }
            let waits = self.waits.get(&owner).into_iter().flatten();
            for (wait, object) in waits {
                if let Some(file) = self.files.get(object) {
                    // As many as are added at most, so that what is left of them is bounded too.
                    if !effort.spend(file.looked_through()) {
                        return None;
                    }
                    next.extend(file.waits_for(&owner, *wait, what));
                }
            }
        }
        Some(reached)
    }
}

impl File {
    fn waits_for(&self, owner: &Owner, wait: LockWait, what: For) -> Vec<Owner> {
        let is = |w: &Waiter| w.wait == wait && w.lock.owner == *owner;
        let Some(at) = self.waiting.iter().position(is) else {
            return Vec::new();
        };
        let (earlier, own) = (&self.waiting[..at], &self.waiting[at].lock);
        let holders = self.held.against(own).map(|held| held.owner);
        let earlier = earlier.iter().filter(|w| w.lock.is_against(own));
        let earlier = earlier.map(|w| w.lock.owner);
        match what {
            For::Holders => holders.collect(),
            For::HoldersAndEarlier => holders.chain(earlier).collect(),
        }
    }
}
