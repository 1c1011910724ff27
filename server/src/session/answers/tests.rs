//! Claims about the changes of one session. A job is its number, a sink a letter.

use super::*;
use leasefs_protocol::Grant;
use leasefs_protocol::{RequestId, Response, Stamp};

type Changes = Answers<u64, char>;

fn change(seq: u64, after: &[u64]) -> Numbered {
    Numbered {
        seq: Seq(seq),
        after: after.iter().map(|n| Seq(*n)).collect(),
        resent: false,
        dropped: Vec::new(),
        closed: Vec::new(),
        locked: None,
    }
}

fn resent(seq: u64) -> Numbered {
    Numbered {
        resent: true,
        ..change(seq, &[])
    }
}

fn answer(stamp: u64) -> Arc<Reply> {
    Arc::new(Reply {
        id: RequestId(0),
        renews: false,
        stamp: Stamp(stamp),
        grants: Vec::new(),
        touched: Vec::new(),
        room: None,
        result: Ok(Response::Done),
    })
}

fn arrive(changes: &mut Changes, seq: u64, after: &[u64]) -> Arrival<u64, char> {
    changes
        .arrive(&change(seq, after), seq, 'a')
        .expect("a lawful change")
}

fn run(changes: &mut Changes, seq: u64) -> Vec<u64> {
    assert!(changes.begin(Seq(seq)));
    let (_, ready) = changes.finish(Seq(seq), answer(seq));
    ready.into_iter().map(|(_, job)| job).collect()
}

#[test]
fn a_change_sent_again_gets_its_first_answer_and_does_not_run_again() {
    let mut changes = Changes::default();
    assert_eq!(arrive(&mut changes, 1, &[]), Arrival::Run(1));
    assert!(changes.begin(Seq(1)));
    assert_eq!(changes.arrive(&resent(1), 1, 'b'), Ok(Arrival::Attached));
    let (sink, _) = changes.finish(Seq(1), answer(7));
    assert_eq!(sink, Some('b'));
    assert_eq!(
        changes.arrive(&resent(1), 1, 'c'),
        Ok(Arrival::Repeat(answer(7), 'c'))
    );
}

#[test]
fn a_change_runs_only_behind_those_it_follows_in_whatever_order_they_arrive() {
    let mut changes = Changes::default();
    assert_eq!(arrive(&mut changes, 3, &[1, 2]), Arrival::Held);
    assert_eq!(arrive(&mut changes, 2, &[]), Arrival::Run(2));
    assert_eq!(run(&mut changes, 2), Vec::<u64>::new());
    assert_eq!(arrive(&mut changes, 1, &[]), Arrival::Run(1));
    assert_eq!(run(&mut changes, 1), [3]);
    assert_eq!(arrive(&mut changes, 4, &[1, 2]), Arrival::Run(4));
}

#[test]
fn a_cancelled_change_never_runs_and_its_followers_do() {
    let mut changes = Changes::default();
    arrive(&mut changes, 1, &[]);
    arrive(&mut changes, 2, &[1]);
    let outcome = changes.cancel(Seq(1));
    assert!(!outcome.begun && outcome.withdraw);
    assert_eq!(outcome.ready, [(Seq(2), 2)]);
    assert!(!changes.begin(Seq(1)));
    assert_eq!(
        changes.arrive(&resent(1), 1, 'b'),
        Ok(Arrival::Refuse(Refusal::Cancelled, 'b'))
    );
}

#[test]
fn a_change_cancelled_before_it_arrives_never_runs_even_below_the_low_water_mark() {
    let mut changes = Changes::default();
    assert!(!changes.cancel(Seq(1)).begun);
    changes.low_water(Seq(2));
    assert_eq!(
        arrive(&mut changes, 1, &[]),
        Arrival::Refuse(Refusal::Cancelled, 'a')
    );
}

#[test]
fn a_begun_change_can_not_be_cancelled() {
    let mut changes = Changes::default();
    arrive(&mut changes, 1, &[]);
    assert!(changes.begin(Seq(1)));
    let outcome = changes.cancel(Seq(1));
    assert!(outcome.begun && !outcome.withdraw);
    assert_eq!(changes.finish(Seq(1), answer(1)).0, Some('a'));
}

#[test]
fn the_low_water_mark_forgets_answers() {
    let mut changes = Changes::default();
    for seq in 1..=3 {
        arrive(&mut changes, seq, &[]);
        run(&mut changes, seq);
    }
    changes.low_water(Seq(3));
    assert_eq!(changes.entries.len(), 1);
    assert!(changes.knows(Seq(2)) && changes.knows(Seq(3)) && !changes.knows(Seq(4)));
}

#[test]
fn answers_are_bounded_while_one_change_waits_and_those_dropped_are_lost_not_run_again() {
    let mut changes = Changes::default();
    arrive(&mut changes, 1, &[]);
    let many = MAX_ANSWERS as u64 + 10;
    for seq in 2..2 + many {
        assert_eq!(arrive(&mut changes, seq, &[]), Arrival::Run(seq));
        run(&mut changes, seq);
    }
    assert_eq!(changes.entries.len(), MAX_ANSWERS + 1);
    assert_eq!(
        changes.arrive(&resent(2), 2, 'b'),
        Ok(Arrival::Refuse(Refusal::Lost, 'b'))
    );
    assert_eq!(changes.scattered(), Ok(()));
}

#[test]
fn after_a_restart_what_was_answered_is_answered_so_and_what_had_not_begun_runs() {
    let mut changes = Changes::after_restart(
        [(Seq(4), Recovered::Answered(answer(7)))],
        SeqSet::default(),
    );
    assert_eq!(
        changes.arrive(&resent(4), 4, 'a'),
        Ok(Arrival::Repeat(answer(7), 'a'))
    );
    assert!(changes.cancel(Seq(4)).begun);
    let follower = Numbered {
        after: vec![Seq(4)],
        ..resent(5)
    };
    assert_eq!(changes.arrive(&follower, 5, 'a'), Ok(Arrival::Run(5)));
}

fn of(seq: u64) -> SeqSet {
    let mut set = SeqSet::default();
    set.insert(Seq(seq));
    set
}

#[test]
fn after_a_restart_what_was_lost_is_refused() {
    let mut changes = Changes::after_restart([], of(4));
    assert_eq!(
        changes.arrive(&resent(4), 4, 'a'),
        Ok(Arrival::Refuse(Refusal::Lost, 'a'))
    );
}

#[test]
fn an_interrupted_change_runs_when_it_is_sent_again_and_its_followers_wait_for_that() {
    let mut changes = Changes::after_restart([(Seq(4), Recovered::Interrupted)], SeqSet::default());
    assert!(!changes.knows(Seq(4)), "its payload is wanted");
    assert_eq!(arrive(&mut changes, 5, &[4]), Arrival::Held);
    assert_eq!(changes.arrive(&resent(4), 4, 'a'), Ok(Arrival::Run(4)));
    assert_eq!(run(&mut changes, 4), [5]);
}

#[test]
fn an_interrupted_change_can_not_be_cancelled_since_it_may_have_happened() {
    let mut changes = Changes::after_restart([(Seq(4), Recovered::Interrupted)], SeqSet::default());
    assert!(changes.cancel(Seq(4)).begun);
    assert_eq!(changes.arrive(&resent(4), 4, 'a'), Ok(Arrival::Run(4)));
    let outcome = changes.cancel(Seq(4));
    assert!(outcome.begun && !outcome.withdraw);
    assert!(changes.begin(Seq(4)));
}

#[test]
fn an_interrupted_change_waits_for_its_next_copy_also_behind_a_newer_connection() {
    let mut changes = Changes::after_restart([(Seq(4), Recovered::Interrupted)], SeqSet::default());
    changes.fence();
    assert!(changes.cancel(Seq(4)).begun);
    assert_eq!(changes.arrive(&resent(4), 4, 'a'), Ok(Arrival::Run(4)));
}

#[test]
fn after_a_host_crash_whatever_is_sent_again_is_lost_and_followers_go_on() {
    let mut changes = Changes::default().and_host_crash();
    assert_eq!(arrive(&mut changes, 9, &[8]), Arrival::Held);
    assert_eq!(changes.arrive(&resent(8), 8, 'a'), Ok(Arrival::Lost));
    assert_eq!(changes.finish(Seq(8), answer(0)).1, [(Seq(9), 9)]);
    assert_eq!(changes.arrive(&resent(10), 10, 'a'), Ok(Arrival::Run(10)));
}

#[test]
fn what_has_begun_since_a_host_crash_is_not_lost_with_the_next_crash_of_the_process() {
    let began = [
        (Seq(8), Recovered::Answered(answer(7))),
        (Seq(9), Recovered::Interrupted),
    ];
    let mut changes = Changes::after_restart(began, SeqSet::default()).and_host_crash();
    assert_eq!(changes.arrive(&resent(4), 4, 'a'), Ok(Arrival::Lost));
    let repeat = Ok(Arrival::Repeat(answer(7), 'b'));
    assert_eq!(changes.arrive(&resent(8), 8, 'b'), repeat);
    assert_eq!(changes.arrive(&resent(9), 9, 'c'), Ok(Arrival::Run(9)));
}

#[test]
fn after_a_host_crash_a_cancel_does_not_claim_that_a_change_never_happens() {
    let mut changes = Changes::default().and_host_crash();
    assert!(changes.cancel(Seq(3)).begun);
    assert_eq!(changes.arrive(&resent(3), 3, 'a'), Ok(Arrival::Lost));
    assert_eq!(arrive(&mut changes, 9, &[]), Arrival::Run(9));
    assert!(!changes.cancel(Seq(10)).begun);
}

#[test]
fn a_newer_connection_forgets_held_changes_and_keeps_waiting_ones() {
    let mut changes = Changes::default();
    arrive(&mut changes, 1, &[]);
    arrive(&mut changes, 2, &[1]);
    assert_eq!(changes.fence().len(), 2);
    assert_eq!(changes.arrive(&resent(1), 1, 'b'), Ok(Arrival::Attached));
    assert_eq!(
        changes.arrive(
            &Numbered {
                after: vec![Seq(1)],
                ..resent(2)
            },
            2,
            'b'
        ),
        Ok(Arrival::Held)
    );
    assert_eq!(run(&mut changes, 1), [2]);
}

#[test]
fn a_change_that_follows_itself_or_a_later_one_is_a_violation() {
    let mut changes = Changes::default();
    let outcome = changes.arrive(&change(2, &[2]), 2, 'a');
    assert_eq!(
        outcome,
        Err(Violation::FollowsLater {
            seq: Seq(2),
            after: Seq(2)
        })
    );
    let outcome = changes.arrive(&change(0, &[]), 0, 'a');
    assert_eq!(outcome, Err(Violation::Unnumbered));
}

#[test]
fn unfinished_changes_are_bounded() {
    let mut changes = Changes::default();
    let outcome = (1..=MAX_ANSWERS as u64 + 1)
        .try_for_each(|seq| changes.arrive(&change(seq, &[]), seq, 'a').map(|_| ()));
    assert!(matches!(outcome, Err(Violation::TooMany { .. })));
    assert_eq!(changes.unfinished(), MAX_ANSWERS);
}

#[test]
fn answers_are_bounded_by_what_they_take() {
    let mut changes = Changes::default();
    let grant = Grant {
        object: leasefs_protocol::Handle::new(b"f").expect("short"),
        parts: leasefs_protocol::Parts::ALL,
        mode: leasefs_protocol::Mode::Read,
        stamp: Stamp(1),
    };
    for seq in 1..=1000 {
        arrive(&mut changes, seq, &[]);
        assert!(changes.begin(Seq(seq)));
        let large = Reply {
            grants: vec![grant; 100],
            ..(*answer(seq)).clone()
        };
        changes.finish(Seq(seq), Arc::new(large));
    }
    assert!(changes.bytes <= MAX_ANSWER_BYTES);
    assert!(changes.done.len() * 100 * size_of::<Grant>() <= MAX_ANSWER_BYTES);
    let (first, last) = (resent(1), resent(1000));
    assert_eq!(
        changes.arrive(&first, 1, 'b'),
        Ok(Arrival::Refuse(Refusal::Lost, 'b'))
    );
    assert!(matches!(
        changes.arrive(&last, 1, 'b'),
        Ok(Arrival::Repeat(..))
    ));
    changes.low_water(Seq(1001));
    assert_eq!((changes.bytes, changes.entries.len()), (0, 0));
}

#[test]
fn changes_far_ahead_of_one_without_an_answer_are_a_violation() {
    let mut changes = Changes::default();
    changes.low_water(Seq(5));
    let far = |seq| change(5 + MAX_CHANGES_AHEAD + seq, &[]);
    assert_eq!(changes.arrive(&far(0), 1, 'a'), Ok(Arrival::Run(1)));
    let outcome = changes.arrive(&far(1), 1, 'a');
    assert!(matches!(outcome, Err(Violation::TooFarAhead { .. })));
}
