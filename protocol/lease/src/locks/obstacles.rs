//! What is held of a file, arranged so that it costs little to ask of many locks whether anything stands against them.

use super::{LockWanted, Locks};
use leasefs_protocol::{HeldLock, LockKind, LockMode};

/// Of the locks that begin up to a byte: how far they reach.
#[derive(Clone, Copy, Debug)]
struct Reach<O> {
    /// Up to which byte: where the last of them begins.
    first: u64,
    /// The owner whose lock reaches furthest, and the last byte of that.
    furthest: (O, u64),
    /// The same, of all other owners.
    others: Option<(O, u64)>,
}

impl<O: Copy + Eq> Reach<O> {
    fn begins(owner: O, first: u64, last: u64) -> Self {
        Self {
            first,
            furthest: (owner, last),
            others: None,
        }
    }

    /// With a further lock, which begins behind all others.
    fn and(self, owner: O, first: u64, last: u64) -> Self {
        let (mut furthest, mut others) = (self.furthest, self.others);
        if owner == furthest.0 {
            furthest.1 = furthest.1.max(last);
        } else if last > furthest.1 {
            others = Some(furthest);
            furthest = (owner, last);
        } else if others.is_none_or(|(_, reached)| last > reached) {
            others = Some((owner, last));
        }
        Self {
            first,
            furthest,
            others,
        }
    }

    /// The last byte of what others than this owner have.
    fn of_others(&self, owner: O) -> Option<u64> {
        match self.furthest {
            (furthest, last) if furthest != owner => Some(last),
            _ => self.others.map(|(_, last)| last),
        }
    }
}

/// The locks of a file, by kind: those that keep shared ones out, and those that keep exclusive ones out.
#[derive(Clone, Debug)]
pub(crate) struct Obstacles<O> {
    posix: [Vec<Reach<O>>; 2],
    flock: [Vec<Reach<O>>; 2],
}

impl<O: Copy + Eq> Locks<O> {
    /// Costs as much as sorting them.
    pub(crate) fn obstacles(&self) -> Obstacles<O> {
        let mut all: Vec<&HeldLock<O>> = self.iter().collect();
        all.sort_by_key(|held| held.range.first());
        let of = |kind: LockKind| {
            let of_kind = || all.iter().copied().filter(move |held| held.kind == kind);
            let exclusive = of_kind().filter(|held| held.mode == LockMode::Exclusive);
            [reaches(exclusive), reaches(of_kind())]
        };
        Obstacles {
            posix: of(LockKind::Posix),
            flock: of(LockKind::Flock),
        }
    }
}

fn reaches<'a, O: Copy + Eq + 'a>(sorted: impl Iterator<Item = &'a HeldLock<O>>) -> Vec<Reach<O>> {
    let mut reaches: Vec<Reach<O>> = Vec::new();
    for held in sorted {
        let (owner, first, last) = (held.owner, held.range.first(), held.range.last());
        let next = match reaches.last() {
            Some(before) => before.and(owner, first, last),
            None => Reach::begins(owner, first, last),
        };
        reaches.push(next);
    }
    reaches
}

impl<O: Copy + Eq> Obstacles<O> {
    /// Whether anything stands against it, as [`Locks::against`] has it.
    pub(crate) fn any_against(&self, lock: &LockWanted<O>) -> bool {
        let [to_shared, to_exclusive] = match lock.kind {
            LockKind::Posix => &self.posix,
            LockKind::Flock => &self.flock,
        };
        let reaches = match lock.mode {
            LockMode::Shared => to_shared,
            LockMode::Exclusive => to_exclusive,
        };
        let begun = reaches.partition_point(|reach| reach.first <= lock.range.last());
        let reach = begun.checked_sub(1).and_then(|at| reaches.get(at));
        let last = reach.and_then(|reach| reach.of_others(lock.owner));
        last.is_some_and(|last| last >= lock.range.first())
    }
}
