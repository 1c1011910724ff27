use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const BYTES: u64 = 24;

fn range(first: u64, last: u64) -> LockRange {
    LockRange::new(first, last).expect("a range")
}

fn wants(owner: u8, mode: LockMode, first: u64, last: u64) -> LockWanted<u8> {
    LockWanted {
        owner,
        kind: LockKind::Posix,
        mode,
        range: range(first, last),
        pid: u32::from(owner),
    }
}

fn shown(locks: &Locks<u8>) -> Vec<(u8, LockMode, u64, u64)> {
    let shown =
        |held: &HeldLock<u8>| (held.owner, held.mode, held.range.first(), held.range.last());
    locks.iter().map(shown).collect()
}

use LockMode::{Exclusive, Shared};

#[test]
fn a_lock_in_the_middle_of_another_mode_splits_it() {
    let mut locks = Locks::default();
    locks.take(&wants(1, Exclusive, 0, 9), Fence(1));
    locks.take(&wants(1, Shared, 3, 5), Fence(2));
    let split = [
        (1, Exclusive, 0, 2),
        (1, Shared, 3, 5),
        (1, Exclusive, 6, 9),
    ];
    assert_eq!(shown(&locks), split);
}

#[test]
fn neighbours_of_one_mode_are_one_lock() {
    let mut locks = Locks::default();
    locks.take(&wants(1, Shared, 0, 3), Fence(1));
    locks.take(&wants(1, Shared, 8, 9), Fence(2));
    locks.take(&wants(1, Shared, 4, 7), Fence(3));
    assert_eq!(shown(&locks), [(1, Shared, 0, 9)]);
}

#[test]
fn who_holds_a_lock_does_not_stand_in_its_own_way() {
    let mut locks = Locks::default();
    locks.take(&wants(1, Shared, 0, 3), Fence(1));
    assert_eq!(locks.against(&wants(1, Exclusive, 0, 9)).count(), 0);
    assert_eq!(locks.against(&wants(2, Shared, 0, 9)).count(), 0);
    assert_eq!(locks.against(&wants(2, Exclusive, 3, 9)).count(), 1);
    assert_eq!(locks.against(&wants(2, Exclusive, 4, 9)).count(), 0);
}

#[test]
fn of_several_that_stand_in_the_way_the_owner_that_came_first_is_told() {
    let mut locks = Locks::default();
    locks.take(&wants(2, Shared, 5, 9), Fence(1));
    locks.take(&wants(1, Shared, 0, 9), Fence(2));
    locks.take(&wants(2, Shared, 0, 1), Fence(3));
    let found: Vec<u64> = locks
        .against(&wants(3, Exclusive, 0, 9))
        .map(|held| held.range.first())
        .collect();
    assert_eq!(found, [0, 5, 0]);
}

#[test]
fn who_makes_way_for_a_lock_keeps_what_does_not_stand_against_it() {
    let mut locks = Locks::default();
    locks.take(&wants(1, Exclusive, 0, 9), Fence(1));
    locks.take(&wants(1, Shared, 5, 9), Fence(2));
    locks.make_way(&wants(2, Shared, 3, 7));
    assert_eq!(shown(&locks), [(1, Exclusive, 0, 2), (1, Shared, 5, 9)]);
    locks.make_way(&wants(2, Exclusive, 2, 6));
    assert_eq!(shown(&locks), [(1, Exclusive, 0, 1), (1, Shared, 7, 9)]);
}

#[test]
fn a_flock_that_is_converted_is_given_up_first() {
    let mut locks = Locks::default();
    let flock = |owner, mode| LockWanted {
        kind: LockKind::Flock,
        range: LockRange::ALL,
        ..wants(owner, mode, 0, 0)
    };
    locks.take(&flock(1, Shared), Fence(1));
    locks.take(&flock(2, Shared), Fence(2));
    let exclusive = flock(1, Exclusive);
    locks.converts(&exclusive);
    assert_eq!(locks.against(&exclusive).count(), 1);
    assert_eq!(shown(&locks), [(2, Shared, 0, LockRange::END)]);
    assert_eq!(
        locks.against(&wants(3, Exclusive, 0, 9)).count(),
        0,
        "another kind"
    );
}

/// Each owner's mode of each byte.
type Bytes = Vec<[Option<LockMode>; BYTES as usize]>;

#[derive(Clone, Debug)]
enum Step {
    Take(u8, LockMode, u64, u64),
    GiveUp(u8, u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mode = prop_oneof![Just(Shared), Just(Exclusive)];
    let step =
        (0..3u8, mode, 0..BYTES, 0..BYTES, any::<bool>()).prop_map(|(owner, mode, a, b, takes)| {
            let (first, last) = (a.min(b), a.max(b));
            match takes {
                true => Step::Take(owner, mode, first, last),
                false => Step::GiveUp(owner, first, last),
            }
        });
    vec(step, 1..40)
}

fn set(bytes: &mut Bytes, owner: u8, (first, last): (u64, u64), mode: Option<LockMode>) {
    bytes[usize::from(owner)][first as usize..=last as usize].fill(mode);
}

fn may(bytes: &Bytes, owner: u8, mode: LockMode, (first, last): (u64, u64)) -> bool {
    let others = bytes
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != usize::from(owner));
    let mut held = others
        .flat_map(|(_, of)| &of[first as usize..=last as usize])
        .flatten();
    !held.any(|held| mode == Exclusive || *held == Exclusive)
}

fn bytes_of(locks: &Locks<u8>) -> Bytes {
    let mut bytes = vec![[None; BYTES as usize]; 3];
    for held in locks.iter() {
        let range = (held.range.first(), held.range.last());
        set(&mut bytes, held.owner, range, Some(held.mode));
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn whatever_is_taken_and_given_up_each_byte_is_as_its_owner_last_said(steps in steps()) {
        let mut locks = Locks::default();
        let mut model: Bytes = vec![[None; BYTES as usize]; 3];
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Take(owner, mode, first, last) => {
                    let lock = wants(owner, mode, first, last);
                    let free = locks.against(&lock).next().is_none();
                    prop_assert_eq!(free, may(&model, owner, mode, (first, last)));
                    prop_assert_eq!(free, !locks.obstacles().any_against(&lock));
                    if free {
                        locks.take(&lock, Fence(number as u64));
                        set(&mut model, owner, (first, last), Some(mode));
                        prop_assert!(locks.has(&lock).is_some());
                    }
                }
                Step::GiveUp(owner, first, last) => {
                    let had = model[usize::from(owner)][first as usize..=last as usize].iter().any(Option::is_some);
                    prop_assert_eq!(locks.give_up(owner, LockKind::Posix, range(first, last)), had);
                    set(&mut model, owner, (first, last), None);
                }
            }
            prop_assert_eq!(bytes_of(&locks), model.clone());
            for pair in locks.0.windows(2) {
                let [a, b] = pair else { continue };
                let joins = a.owner == b.owner && a.mode == b.mode && a.range.touches(b.range);
                prop_assert!(!joins, "neighbours of one mode are one lock");
                prop_assert!(a.owner != b.owner || a.range.last() < b.range.first());
            }
        }
    }
}
