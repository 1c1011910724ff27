//! The checker against histories whose verdict is known otherwise.

mod renames;

use super::specs::*;
use super::*;
use crate::rng::Rng;
use std::time::{Duration, Instant};

fn entry<Op>(worker: u16, start: u64, end: u64, op: Op) -> Entry<Op> {
    let end = (end != u64::MAX).then_some(end);
    Entry {
        who: Who {
            mount: worker % 3,
            worker,
        },
        how: "test",
        start,
        end,
        op,
    }
}

fn write(worker: u16, start: u64, end: u64, value: u64) -> Entry<RegisterOp> {
    entry(worker, start, end, RegisterOp::Write(value))
}

fn read(worker: u16, start: u64, end: u64, value: u64) -> Entry<RegisterOp> {
    entry(worker, start, end, RegisterOp::Read(value))
}

fn accepted<S: Spec>(spec: &S, history: &[Entry<S::Op>]) -> bool {
    matches!(check(spec, history), Verdict::Linearizable(_))
}

/// Tries every order that `precedes` allows: the definition itself, for short complete
/// histories.
fn by_definition<S: Spec>(
    spec: &S,
    state: &S::State,
    left: &[Entry<S::Op>],
    precedes: &impl Fn(&Entry<S::Op>, &Entry<S::Op>) -> bool,
) -> bool {
    left.is_empty()
        || (0..left.len()).any(|index| {
            let first = &left[index];
            let mut rest = left.to_vec();
            rest.remove(index);
            rest.iter().all(|other| !precedes(other, first))
                && spec
                    .step(state, &first.op)
                    .is_some_and(|next| by_definition(spec, &next, &rest, precedes))
        })
}

/// What `workers` threads see of a register that takes each operation at a
/// moment between its stamps.
fn honest_history(seed: u64, workers: u16, idle: usize, count: usize) -> Vec<Entry<RegisterOp>> {
    let mut rng = Rng::new(seed);
    let mut free_at = vec![0u64; usize::from(workers)];
    let mut planned = Vec::new();
    for number in 0..count {
        let worker = rng.below(usize::from(workers));
        let start = free_at[worker] + rng.between(1, idle) as u64;
        let moment = start + rng.between(0, 40) as u64;
        let end = moment + rng.between(0, 40) as u64;
        free_at[worker] = end;
        planned.push((
            moment,
            worker as u16,
            start,
            end,
            rng.chance(30).then_some(number as u64 + 1),
        ));
    }
    planned.sort_unstable();
    let mut value = 0;
    let carried_out = planned
        .into_iter()
        .map(|(_, worker, start, end, written)| match written {
            Some(new) => {
                value = new;
                write(worker, start, end, new)
            }
            None => read(worker, start, end, value),
        });
    carried_out.collect()
}

#[test]
fn overlapping_operations_may_take_effect_in_either_order() {
    let both = |seen| {
        accepted(
            &Register,
            &[
                write(0, 0, 10, 1),
                write(1, 0, 10, 2),
                read(2, 11, 12, seen),
            ],
        )
    };
    assert!(both(1) && both(2) && !both(0));
}

#[test]
fn a_stale_read_is_a_violation() {
    let history = [write(0, 0, 10, 1), write(0, 11, 20, 2), read(1, 21, 22, 1)];
    assert_eq!(check(&Register, &history), Verdict::Violation);
}

#[test]
fn reads_may_not_go_back_while_a_write_is_under_way() {
    let history = [write(0, 0, 100, 1), read(1, 10, 20, 1), read(2, 30, 40, 0)];
    assert_eq!(check(&Register, &history), Verdict::Violation);
}

#[test]
fn touching_stamps_count_as_overlap() {
    assert!(accepted(
        &Register,
        &[write(0, 0, 10, 1), read(1, 10, 12, 0)]
    ));
}

#[test]
fn an_unanswered_write_may_happen_late_or_never_but_only_once() {
    let lost = write(0, 0, u64::MAX, 1);
    let next = write(1, 20, 30, 2);
    assert!(accepted(&Register, &[lost.clone(), read(1, 10, 11, 0)]));
    assert!(accepted(
        &Register,
        &[lost.clone(), read(1, 10, 11, 0), read(1, 12, 13, 1)]
    ));
    assert!(accepted(
        &Register,
        &[lost.clone(), next.clone(), read(1, 40, 41, 1)]
    ));
    let twice = [lost, read(1, 10, 11, 1), next, read(1, 40, 41, 1)];
    assert_eq!(check(&Register, &twice), Verdict::Violation);
}

#[test]
fn verdicts_on_short_histories_are_those_of_the_definition() {
    let mut refused = 0;
    for seed in 0..3000 {
        let mut history = honest_history(seed, 3, 30, 7);
        if seed % 2 == 1 {
            let mut rng = Rng::new(seed);
            let victim = rng.below(history.len());
            if let RegisterOp::Read(value) = &mut history[victim].op {
                *value = rng.below(8) as u64;
            }
        }
        let truth = by_definition(&Register, &0, &history, &Entry::precedes);
        assert_eq!(
            accepted(&Register, &history),
            truth,
            "seed {seed}: {history:#?}"
        );
        refused += usize::from(!truth);
    }
    assert!(refused > 300, "only {refused} histories were in violation");
}

#[test]
fn a_long_history_is_decided_in_well_under_a_second() {
    let started = Instant::now();
    let history = honest_history(1, 8, 30, 20_000);
    assert!(accepted(&Register, &history));
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "took {:?}",
        started.elapsed()
    );
}

#[test]
fn one_stale_read_among_twenty_thousand_operations_is_found_and_explained() {
    let mut history = honest_history(2, 6, 600, 20_000);
    let index = (15_000..)
        .find(|&i| matches!(history[i].op, RegisterOp::Read(_)))
        .unwrap_or(0);
    history[index].op = RegisterOp::Read(3);
    assert_eq!(check(&Register, &history), Verdict::Violation);
    let explanation = explain(&Register, &history);
    assert!(explanation.offending.contains(&history[index]));
    assert!(explanation.offending.len() <= 12, "{explanation}");
    assert!(!explanation.context.is_empty());
}

#[test]
fn an_explanation_is_itself_a_violation_from_the_states_it_names() {
    for seed in 0..200 {
        let mut history = honest_history(seed, 5, 100, 60);
        let Some(victim) = history
            .iter()
            .rposition(|e| matches!(e.op, RegisterOp::Read(_)))
        else {
            continue;
        };
        history[victim].op = RegisterOp::Read(9999);
        let explanation = explain(&Register, &history);
        for state in &explanation.states {
            let verdict = check_from(&Register, *state, &explanation.offending);
            assert_eq!(verdict, Verdict::Violation, "seed {seed}: {explanation}");
        }
    }
}

#[test]
fn the_order_returned_is_a_legal_run_that_respects_time() {
    let history = honest_history(5, 6, 30, 2000);
    let Verdict::Linearizable(order) = check(&Register, &history) else {
        panic!("an honest history was refused");
    };
    let mut state = 0;
    for (position, &index) in order.iter().enumerate() {
        let stepped = Register.step(&state, &history[index].op);
        state = stepped.unwrap_or_else(|| panic!("step {position} does not fit"));
        let later = &order[position + 1..];
        assert!(
            later
                .iter()
                .take(20)
                .all(|&other| !history[other].precedes(&history[index]))
        );
    }
}

#[test]
fn a_log_knows_its_appends_order_and_sees_lost_ones() {
    let log = Log::ending_as(&[7, 8, 9], 0);
    let append = |worker, start, end, id| entry(worker, start, end, LogOp::Append(id));
    let length = |start, end, found| entry(0, start, end, LogOp::Length(found));
    let good = [
        append(0, 0, 9, 8),
        append(1, 0, 9, 7),
        length(3, 4, 1),
        append(0, 10, 11, 9),
        length(12, 13, 3),
    ];
    assert!(accepted(&log, &good));
    let stale = [append(1, 0, 1, 7), append(0, 2, 3, 8), length(5, 6, 1)];
    assert_eq!(check(&log, &stale), Verdict::Violation);
    let in_the_wrong_order = [append(0, 0, 1, 8), append(1, 2, 3, 7)];
    assert_eq!(check(&log, &in_the_wrong_order), Verdict::Violation);
    let page = [
        append(1, 0, 1, 7),
        entry(0, 2, 3, LogOp::LengthUpTo { found: 1, limit: 1 }),
    ];
    assert!(accepted(&log, &page));
}

#[test]
fn names_follow_create_link_rename_unlink() {
    let at = |time: u64, op| entry(0, time * 10, time * 10 + 1, op);
    let story = [
        at(1, NameOp::Create(0, Some(50))),
        at(2, NameOp::Create(0, None)),
        at(3, NameOp::Link(50, 1, Linked::Done)),
        at(4, NameOp::Links(50, 2)),
        at(5, NameOp::Rename(0, 1, true)),
        at(
            6,
            NameOp::List {
                from: 0,
                found: vec![Some(50), Some(50)],
            },
        ),
        at(7, NameOp::Unlink(0, true)),
        at(8, NameOp::Rename(1, 2, true)),
        at(9, NameOp::Lookup(1, None)),
        at(
            10,
            NameOp::List {
                from: 2,
                found: vec![Some(50)],
            },
        ),
        at(11, NameOp::Unlink(2, true)),
        at(12, NameOp::Links(50, 0)),
    ];
    assert!(accepted(&Names { slots: 3 }, &story));
    for victim in 1..story.len() {
        let mut wrong = story.to_vec();
        wrong[victim].op = match wrong[victim].op.clone() {
            NameOp::Lookup(name, None) => NameOp::Lookup(name, Some(50)),
            NameOp::Links(inode, count) => NameOp::Links(inode, count + 1),
            NameOp::List { from, mut found } => {
                found[0] = None;
                NameOp::List { from, found }
            }
            _ => continue,
        };
        assert_eq!(
            check(&Names { slots: 3 }, &wrong),
            Verdict::Violation,
            "{}",
            wrong[victim].op
        );
    }
}

#[test]
fn an_unseen_server_time_is_bound_by_its_first_reader_and_then_stays() {
    let at_first = AttrsState {
        size: 0,
        mode: 0o644,
        mtime: Mtime::Now,
        nlink: 1,
    };
    let spec = Attrs {
        at_first,
        settled_times: true,
    };
    let now = EXPLICIT_MTIME_LIMIT + 5;
    let seen = |time: u64, mtime| {
        entry(
            1,
            time,
            time + 1,
            AttrsOp::Get(Seen {
                mtime: Some(mtime),
                ..Seen::default()
            }),
        )
    };
    let cut = entry(0, 20, 21, AttrsOp::Set(AttrChange::Truncate(4)));
    assert!(accepted(
        &spec,
        &[seen(1, now), seen(3, now), cut.clone(), seen(30, now + 9)]
    ));
    assert_eq!(
        check(&spec, &[seen(1, now), seen(3, now + 1)]),
        Verdict::Violation
    );
    let set = entry(0, 20, 21, AttrsOp::Set(AttrChange::Mtime(77)));
    assert!(accepted(&spec, &[set.clone(), seen(30, 77)]));
    let cut_later = Entry {
        start: 25,
        end: Some(26),
        ..cut
    };
    assert_eq!(
        check(&spec, &[set, cut_later, seen(30, 77)]),
        Verdict::Violation
    );
}
