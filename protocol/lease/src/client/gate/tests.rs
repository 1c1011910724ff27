use super::*;

mod sim;

const MIB: u64 = 1 << 20;

fn read(id: u64) -> ReadId {
    ReadId(id)
}

fn cause(id: u64) -> DropId {
    DropId(id)
}

/// `len` MiB from `start` MiB.
fn mib(start: u64, len: u64) -> Span {
    Span::new(start * MIB, len * MIB)
}

fn filled(span: Span) -> PageGate {
    let mut gate = PageGate::new();
    assert_eq!(gate.read_arrives(read(1), span), Arrival::Go);
    assert_eq!(
        gate.read_answered(read(1), ReadReply::Leased),
        Verdict::Deliver
    );
    gate
}

fn begins(gate: &mut PageGate) -> Span {
    match gate.next_step() {
        Step::Drop(span) => span,
        other => panic!("nothing to drop: {other:?}"),
    }
}

fn drop_everything(gate: &mut PageGate) {
    while let Step::Drop(span) = gate.next_step() {
        gate.dropped(span);
    }
}

#[test]
fn a_file_without_pages_is_clear_at_once() {
    let mut gate = PageGate::new();
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    assert_eq!(gate.poll_clear(), Some(cause(1)));
    assert_eq!(gate.next_step(), Step::Idle);
    gate.close(cause(1));
    assert!(gate.is_idle());
}

#[test]
fn a_recall_is_clear_when_its_pages_are_dropped() {
    let mut gate = filled(mib(0, 6));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    assert_eq!(gate.next_step(), Step::Drop(mib(0, 4)));
    assert_eq!(gate.next_step(), Step::Wait);
    gate.dropped(mib(0, 4));
    assert_eq!(gate.next_step(), Step::Drop(mib(4, 2)));
    assert_eq!(gate.poll_clear(), None);
    gate.dropped(mib(4, 2));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
    gate.close(cause(1));
    assert!(gate.is_idle());
}

#[test]
fn a_read_in_flight_is_left_out_and_dropped_after_its_answer() {
    let mut gate = filled(mib(0, 4));
    gate.read_arrives(read(2), mib(1, 1));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    assert_eq!(gate.next_step(), Step::Drop(mib(0, 1)));
    gate.dropped(mib(0, 1));
    assert_eq!(gate.next_step(), Step::Drop(mib(2, 2)));
    gate.dropped(mib(2, 2));
    assert_eq!(gate.next_step(), Step::Wait);
    assert_eq!(gate.poll_clear(), None);
    // Its grant is older than the recall: a lease stood behind it when it was read.
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Leased),
        Verdict::Deliver
    );
    assert_eq!(gate.next_step(), Step::Drop(mib(1, 1)));
    gate.dropped(mib(1, 1));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
}

#[test]
fn a_read_that_arrives_during_a_pass_waits_for_the_approval() {
    let mut gate = filled(mib(0, 8));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    let begun = begins(&mut gate);
    gate.dropped(begun);
    assert_eq!(gate.read_arrives(read(2), mib(0, 1)), Arrival::Wait);
    assert_eq!(gate.read_arrives(read(3), mib(4, 1)), Arrival::Wait);
    assert_eq!(
        gate.next_step(),
        Step::Drop(mib(5, 3)),
        "where it reads there is nothing"
    );
    gate.dropped(mib(5, 3));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
    assert_eq!(gate.poll_released(), None);
    gate.close(cause(1));
    assert_eq!(gate.poll_released(), Some(read(2)));
    assert_eq!(gate.poll_released(), Some(read(3)));
}

#[test]
fn a_read_in_the_range_being_dropped_waits_for_the_drop_unless_that_is_stuck() {
    let mut gate = filled(mib(0, 4));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    let begun = begins(&mut gate);
    assert_eq!(gate.read_arrives(read(2), mib(0, 1)), Arrival::Wait);
    assert_eq!(gate.poll_released(), None);
    gate.stuck(begun);
    assert_eq!(gate.poll_released(), Some(read(2)));
    gate.read_answered(read(2), ReadReply::Bare);
    gate.dropped(begun);
    assert_eq!(
        gate.poll_clear(),
        None,
        "what was answered is dropped again"
    );
    assert_eq!(gate.next_step(), Step::Drop(mib(0, 1)));
    gate.dropped(mib(0, 1));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
}

#[test]
fn what_a_stuck_drop_does_not_get_to_is_dropped_beside_it() {
    let mut gate = filled(mib(0, 8));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    let stuck = begins(&mut gate);
    gate.write_arrives(WriteId(2), mib(1, 1));
    assert_eq!(gate.next_step(), Step::Wait, "it may get there itself");
    gate.stuck(stuck);
    for span in [mib(4, 4), mib(0, 1), mib(2, 1), mib(3, 1)] {
        assert_eq!(gate.next_step(), Step::Drop(span));
        gate.dropped(span);
    }
    assert_eq!(
        gate.next_step(),
        Step::Wait,
        "all that is left is in flight"
    );
    assert_eq!(gate.poll_clear(), None);
    gate.write_ended(WriteId(2));
    gate.dropped(stuck);
    assert_eq!(gate.next_step(), Step::Idle);
    assert_eq!(gate.poll_clear(), Some(cause(1)));
}

/// Of what blocks it nothing may be known here: the answer to a READ that the kernel hasn't taken in, a folio that others share.
#[test]
fn one_page_keeps_no_other_from_being_dropped() {
    let mut gate = filled(mib(0, 8));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    let blocked = [Span::new(5 << 12, 1 << 12), Span::new(3 << 20, 1 << 12)];
    let mut left = Spans::default();
    left.insert(mib(0, 8));
    let mut stuck = Vec::new();
    while let Step::Drop(span) = gate.next_step() {
        match blocked.iter().any(|page| span.intersects(*page)) {
            true => {
                gate.stuck(span);
                stuck.push(span);
            }
            false => {
                left.remove(span);
                gate.dropped(span);
            }
        }
    }
    assert_eq!(left.iter().collect::<Vec<_>>(), blocked);
    assert!(stuck.len() < AT_ONCE, "there is room for another page");
    gate.open(cause(2), DropKind::Sweep, Span::ALL);
    assert_eq!(gate.next_step(), Step::Wait, "it is being dropped");
    stuck.into_iter().for_each(|span| gate.dropped(span));
    assert_eq!(gate.next_step(), Step::Idle);
}

#[test]
fn a_drop_stuck_for_long_lets_every_read_go() {
    let mut gate = filled(mib(0, 8));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    let begun = begins(&mut gate);
    gate.dropped(begun);
    assert_eq!(gate.read_arrives(read(2), mib(0, 1)), Arrival::Wait);
    let begun = begins(&mut gate);
    gate.stuck(begun);
    assert_eq!(gate.poll_released(), None);
    (1..HELPLESS).for_each(|_| gate.stuck(begun));
    assert_eq!(gate.poll_released(), Some(read(2)));
}

#[test]
fn a_drop_stuck_for_long_lets_no_read_go_that_an_own_change_holds_back() {
    let mut gate = filled(mib(0, 4));
    gate.open(cause(1), DropKind::Change, mib(8, 1));
    assert_eq!(gate.poll_clear(), Some(cause(1)), "the change is sent");
    gate.open(cause(2), DropKind::Recall, Span::ALL);
    let begun = begins(&mut gate);
    assert_eq!(gate.read_arrives(read(2), mib(8, 1)), Arrival::Wait);
    (0..2 * HELPLESS).for_each(|_| gate.stuck(begun));
    assert_eq!(gate.poll_released(), None);
    gate.close(cause(1));
    assert_eq!(gate.poll_released(), Some(read(2)));
}

#[test]
fn a_write_back_is_left_out_and_keeps_the_recall_open_until_it_is_answered() {
    let mut gate = filled(mib(0, 2));
    gate.write_arrives(WriteId(1), mib(1, 1));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    drop_everything(&mut gate);
    assert_eq!(gate.poll_clear(), None);
    gate.write_ended(WriteId(1));
    assert_eq!(gate.next_step(), Step::Drop(mib(1, 1)));
    gate.dropped(mib(1, 1));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
}

#[test]
fn a_bare_answer_is_delivered_only_under_the_recall_it_was_sent_under() {
    let mut gate = filled(mib(0, 4));
    gate.read_arrives(read(2), mib(0, 1));
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Bare),
        Verdict::AskAgain,
        "nothing stands behind it"
    );
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Bare),
        Verdict::AskAgain,
        "it may have overtaken the approval of an earlier recall"
    );
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Bare),
        Verdict::Deliver
    );
}

#[test]
fn an_own_change_concerns_its_range_alone() {
    let mut gate = filled(mib(0, 8));
    gate.open(cause(1), DropKind::Change, mib(2, 1));
    assert_eq!(gate.next_step(), Step::Drop(mib(2, 1)));
    gate.dropped(mib(2, 1));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
    assert_eq!(gate.next_step(), Step::Idle);
    assert_eq!(gate.read_arrives(read(2), mib(3, 1)), Arrival::Go);
    assert_eq!(gate.read_arrives(read(3), mib(2, 1)), Arrival::Wait);
    gate.close(cause(1));
    assert_eq!(gate.poll_released(), Some(read(3)));
}

#[test]
fn after_expiry_everything_goes_and_reads_in_flight_ask_again() {
    let mut gate = filled(mib(0, 2));
    gate.read_arrives(read(2), mib(4, 1));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    gate.expire(cause(2));
    assert!(gate.is_unclean());
    drop_everything(&mut gate);
    for id in [1, 2] {
        assert_eq!(gate.poll_clear(), Some(cause(id)), "none waits for READs");
    }
    gate.close(cause(1));
    assert!(!gate.is_unclean());
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Bare),
        Verdict::AskAgain
    );
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Leased),
        Verdict::Deliver
    );
}

/// The server leases nothing to who owes an approval, and that waits for the READ.
#[test]
fn a_recall_that_outlives_the_leases_covers_what_a_drop_is_stuck_on() {
    let mut gate = filled(mib(0, 2));
    gate.open(cause(3), DropKind::Change, mib(0, 2));
    let Step::Drop(stuck) = gate.next_step() else {
        panic!("nothing to drop");
    };
    assert_eq!(gate.read_arrives(read(2), mib(0, 1)), Arrival::Wait);
    gate.stuck(stuck);
    assert_eq!(gate.poll_released(), Some(read(2)));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    gate.expire(cause(2));
    for reply in [ReadReply::Bare, ReadReply::Void] {
        assert_eq!(gate.read_answered(read(2), reply), Verdict::AskAgain);
    }
    assert_eq!(
        gate.read_answered(read(2), ReadReply::Bare),
        Verdict::Deliver
    );
    gate.dropped(stuck);
    assert_eq!(gate.poll_clear(), None, "it is to be dropped again");
    drop_everything(&mut gate);
    for id in [1, 2, 3] {
        assert_eq!(gate.poll_clear(), Some(cause(id)));
    }
}

#[test]
fn what_outlives_its_lease_does_so_until_it_is_dropped_or_read_in_again() {
    let mut gate = filled(mib(0, 8));
    assert!(!gate.have_outlived(mib(0, 8)));
    gate.outlive();
    gate.expire(cause(1));
    assert!(gate.have_outlived(mib(2, 1)));
    // The kernel has no page there any more.
    assert_eq!(gate.read_arrives(read(2), mib(2, 1)), Arrival::Go);
    gate.read_answered(read(2), ReadReply::Leased);
    assert!(!gate.have_outlived(mib(2, 1)), "under the new lease");
    assert!(gate.have_outlived(mib(3, 1)));
    drop_everything(&mut gate);
    assert!(!gate.have_outlived(mib(0, 8)));
}

#[test]
fn what_is_being_read_in_outlives_nothing() {
    let mut gate = filled(mib(0, 8));
    // It had gone from the kernel, unnoticed.
    gate.read_arrives(read(2), mib(2, 1));
    gate.outlive();
    assert!(gate.have_outlived(mib(1, 1)) && !gate.have_outlived(mib(2, 1)));
}

#[test]
fn a_read_that_ends_without_pages_lets_the_recall_go_on() {
    let mut gate = filled(mib(0, 1));
    gate.read_arrives(read(2), mib(4, 1));
    gate.open(cause(1), DropKind::Recall, Span::ALL);
    drop_everything(&mut gate);
    assert_eq!(gate.poll_clear(), None);
    gate.read_ended(read(2));
    assert_eq!(gate.poll_clear(), Some(cause(1)));
}

#[test]
fn a_file_the_kernel_forgets_has_no_pages() {
    let mut gate = filled(mib(0, 1));
    gate.forgotten();
    assert!(gate.is_idle());
}

#[test]
fn a_read_whose_answer_may_not_be_used_is_parked_and_keeps_no_recall_open() {
    let mut gate = PageGate::new();
    let (read, recall) = (ReadId(1), DropId(1));
    let span = Span::new(0, 4096);
    assert_eq!(gate.read_arrives(read, span), Arrival::Go);
    assert!(!gate.read_parks(read), "nothing is recalled");
    gate.open(recall, DropKind::Recall, Span::ALL);
    assert_eq!(gate.poll_clear(), None, "the READ may bring something");
    assert!(gate.read_parks(read));
    assert_eq!(gate.poll_clear(), Some(recall));
    assert_eq!(gate.poll_released(), None);
    gate.close(recall);
    assert_eq!(gate.poll_released(), Some(read));
}
