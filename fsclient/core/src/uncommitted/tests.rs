use super::*;
use crate::cache::fixtures::writer;
use bytes::Bytes;
use leasefs_lease::client::{Leases, Run, Tenure};
use leasefs_protocol::{Grant, Mode, Parts, Stamp, Version};

const BEFORE: BootId = BootId([1; 16]);
const AFTER: BootId = BootId([2; 16]);

fn object() -> Handle {
    Handle::new(&[1]).expect("one byte")
}

fn changed(uncommitted: &Uncommitted, host: BootId) {
    let noted = uncommitted.changed(object(), host, true);
    assert_eq!(noted, Noted::default());
}

fn wrote(uncommitted: &Uncommitted, offset: u64, data: &'static [u8], host: BootId) -> Noted {
    wrote_by(7, uncommitted, offset, data, host)
}

fn wrote_by(
    open: u64,
    uncommitted: &Uncommitted,
    offset: u64,
    data: &'static [u8],
    host: BootId,
) -> Noted {
    let run = Run {
        offset,
        data: Bytes::from_static(data),
    };
    let wrote = Wrote {
        object: object(),
        run,
        version: Version::default(),
        writer: writer(open),
        writers: [writer(open)].into(),
        path: None,
        tenure: Some(Tenure::default()),
        durable: false,
    };
    uncommitted.wrote(wrote, host)
}

fn commit(uncommitted: &Uncommitted, host: BootId, told: &Told) -> Committed {
    let covered = uncommitted.commits(uncommitted.life(), false);
    uncommitted.committed(&object(), covered, host, told).1
}

fn undone(uncommitted: &Uncommitted, host: BootId) -> Vec<(u64, &'static [u8])> {
    let undone = uncommitted.host_is(host);
    let runs = undone.into_iter().flat_map(|undone| undone.runs);
    let leak = |data: Bytes| &*Box::leak(data.to_vec().into_boxed_slice());
    runs.map(|run| (run.offset, leak(run.data))).collect()
}

#[test]
fn a_commit_after_a_crash_of_the_host_fails_once_for_what_came_before_it() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    changed(&uncommitted, BEFORE);
    changed(&uncommitted, AFTER);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Lost);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Durable);
}

#[test]
fn nothing_stays_of_a_file_that_was_forgotten_before_its_bytes_were_written_and_committed() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    uncommitted.buffered(object());
    uncommitted.forget(&object());
    let _ = wrote(&uncommitted, 0, b"late", BEFORE);
    assert_eq!(commit(&uncommitted, BEFORE, &open), Committed::Durable);
    assert!(uncommitted.inner().objects.is_empty());
}

#[test]
fn nothing_is_kept_of_a_file_that_went_out_of_reach_and_was_forgotten_while_dirty() {
    let uncommitted = Uncommitted::default();
    uncommitted.buffered(object());
    assert_eq!(uncommitted.out_of_reach(&object()), Vec::new());
    uncommitted.forget(&object());
    let _ = wrote(&uncommitted, 0, b"late", BEFORE);
    assert!(!uncommitted.close_later(&object(), OpenId(7)));
    uncommitted.flushed(&object());
    assert!(uncommitted.inner().objects.is_empty());
}

#[test]
fn each_open_of_before_the_loss_is_told_of_it_and_none_of_after_it() {
    let uncommitted = Uncommitted::default();
    let opens = [uncommitted.told(&object()), uncommitted.told(&object())];
    changed(&uncommitted, BEFORE);
    for open in &opens {
        assert_eq!(commit(&uncommitted, AFTER, open), Committed::Lost);
    }
    let later = uncommitted.told(&object());
    changed(&uncommitted, AFTER);
    for open in [&later, &opens[0], &opens[1]] {
        assert_eq!(commit(&uncommitted, AFTER, open), Committed::Durable);
    }
}

#[test]
fn what_was_committed_before_the_crash_is_no_loss() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    changed(&uncommitted, BEFORE);
    assert_eq!(commit(&uncommitted, BEFORE, &open), Committed::Durable);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Durable);
    changed(&uncommitted, AFTER);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Durable);
}

#[test]
fn a_change_that_is_answered_while_a_commit_is_under_way_is_not_covered_by_it() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    changed(&uncommitted, BEFORE);
    let covered = uncommitted.commits(uncommitted.life(), false);
    changed(&uncommitted, BEFORE);
    let first = uncommitted.committed(&object(), covered, BEFORE, &open);
    assert_eq!(first.1, Committed::Durable);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Lost);
}

#[test]
fn written_bytes_come_back_after_a_crash_of_the_host_unless_a_commit_covers_them() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    assert_eq!(undone(&uncommitted, BEFORE), []);
    assert_eq!(wrote(&uncommitted, 0, b"old", BEFORE), Noted::default());
    let covered = uncommitted.commits(uncommitted.life(), false);
    assert_eq!(wrote(&uncommitted, 1, b"new", BEFORE), Noted::default());
    let first = uncommitted.committed(&object(), covered, BEFORE, &open);
    assert_eq!(first.1, Committed::Durable);
    assert_eq!(undone(&uncommitted, AFTER), [(1, &b"new"[..])]);
    assert!(!uncommitted.keeps());
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Durable);
}

#[test]
fn a_commit_that_another_life_of_the_host_answers_must_be_repeated() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    assert_eq!(undone(&uncommitted, BEFORE), []);
    assert_eq!(wrote(&uncommitted, 0, b"x", BEFORE), Noted::default());
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Again);
    assert_eq!(undone(&uncommitted, AFTER), [(0, &b"x"[..])]);
}

#[test]
fn an_answer_of_an_earlier_life_that_comes_late_is_worth_nothing() {
    let uncommitted = Uncommitted::default();
    assert_eq!(undone(&uncommitted, BEFORE), []);
    assert_eq!(undone(&uncommitted, AFTER), []);
    assert!(wrote(&uncommitted, 0, b"x", BEFORE).undone);
    assert!(!uncommitted.keeps());
}

#[test]
fn bytes_from_before_a_truncation_do_not_come_back() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    assert_eq!(undone(&uncommitted, BEFORE), []);
    assert_eq!(wrote(&uncommitted, 0, b"old", BEFORE), Noted::default());
    changed(&uncommitted, BEFORE);
    assert_eq!(wrote(&uncommitted, 0, b"n", BEFORE), Noted::default());
    assert_eq!(undone(&uncommitted, AFTER), [(0, &b"n"[..])]);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Lost);
}

#[test]
fn nothing_is_kept_of_a_file_that_nobody_can_reach() {
    let uncommitted = Uncommitted::default();
    assert_eq!(wrote(&uncommitted, 0, b"x", BEFORE), Noted::default());
    assert!(uncommitted.close_later(&object(), OpenId(7)));
    assert_eq!(uncommitted.out_of_reach(&object()), [OpenId(7)]);
    assert_eq!(
        wrote(&uncommitted, 0, b"flushed late", BEFORE),
        Noted::default()
    );
    assert!(!uncommitted.close_later(&object(), OpenId(7)));
    assert!(!uncommitted.keeps());
}

/// A tenure later than the first.
fn later() -> Tenure {
    let mut leases = Leases::new();
    let grant = Grant {
        object: object(),
        parts: Parts::DATA,
        mode: Mode::Write,
        stamp: Stamp(1),
    };
    leases.granted(leases.ask(), &grant);
    leases.tenure(&object()).expect("held")
}

#[test]
fn bytes_of_an_earlier_tenure_are_not_written_again_and_the_next_commit_tells_of_them() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    assert_eq!(undone(&uncommitted, BEFORE), []);
    assert_eq!(wrote(&uncommitted, 0, b"old", BEFORE), Noted::default());
    let wrote = Wrote {
        object: object(),
        run: Run {
            offset: 8,
            data: Bytes::from_static(b"new"),
        },
        version: Version::default(),
        writer: writer(7),
        writers: [writer(7)].into(),
        path: None,
        tenure: Some(later()),
        durable: false,
    };
    assert_eq!(uncommitted.wrote(wrote, BEFORE), Noted::default());
    assert_eq!(undone(&uncommitted, AFTER), [(8, &b"new"[..])]);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Lost);
}

#[test]
fn an_open_through_which_bytes_may_have_to_be_written_again_is_closed_after_the_commit() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    assert_eq!(wrote(&uncommitted, 0, b"x", BEFORE), Noted::default());
    assert!(!uncommitted.close_later(&object(), OpenId(8)));
    assert!(uncommitted.close_later(&object(), OpenId(7)));
    uncommitted.forget(&object());
    let covered = uncommitted.commits(uncommitted.life(), false);
    let (closes, verdict) = uncommitted.committed(&object(), covered, BEFORE, &open);
    assert_eq!((closes, verdict), (vec![OpenId(7)], Committed::Durable));
    assert!(uncommitted.inner().objects.is_empty());
}

#[test]
fn everybody_who_wrote_hears_what_becomes_of_the_bytes_that_come_back() {
    let uncommitted = Uncommitted::default();
    uncommitted.host_is(BEFORE);
    for (place, open) in [(0, 1), (1, 2), (2, 1), (3, 3), (4, 2)] {
        let noted = wrote_by(open, &uncommitted, place, b"x", BEFORE);
        assert_eq!(noted, Noted::default());
    }
    let undone = uncommitted.host_is(AFTER);
    let writers: Vec<u64> = undone[0].writers.iter().map(|w| w.open.0).collect();
    assert_eq!(writers, [1, 3, 2], "the last to write last");
}

#[test]
fn a_loss_that_only_a_commit_of_everything_has_met_is_told_to_the_next_open() {
    let uncommitted = Uncommitted::default();
    changed(&uncommitted, BEFORE);
    let covered = uncommitted.commits(uncommitted.life(), false);
    assert_eq!(uncommitted.all_committed(covered, AFTER).1, Committed::Lost);
    let opens = [uncommitted.told(&object()), uncommitted.told(&object())];
    for open in &opens {
        assert_eq!(commit(&uncommitted, AFTER, open), Committed::Lost);
    }
    let later = uncommitted.told(&object());
    assert_eq!(commit(&uncommitted, AFTER, &later), Committed::Durable);
}

#[test]
fn fdatasync_does_not_answer_for_a_change_of_attributes() {
    let uncommitted = Uncommitted::default();
    let open = uncommitted.told(&object());
    assert_eq!(undone(&uncommitted, BEFORE), []);
    let data = |uncommitted: &Uncommitted, host| {
        let covered = uncommitted.commits(uncommitted.life(), true);
        uncommitted.committed(&object(), covered, host, &open).1
    };
    let _ = uncommitted.changed(object(), BEFORE, true);
    assert_eq!(data(&uncommitted, BEFORE), Committed::Durable);
    assert_eq!(undone(&uncommitted, AFTER), []);
    assert_eq!(commit(&uncommitted, AFTER, &open), Committed::Durable);
    let _ = uncommitted.changed(object(), AFTER, false);
    assert_eq!(data(&uncommitted, AFTER), Committed::Durable);
    assert_eq!(undone(&uncommitted, BEFORE), []);
    assert_eq!(commit(&uncommitted, BEFORE, &open), Committed::Lost);
}

#[test]
fn all_who_may_have_written_a_run_hear_what_becomes_of_it() {
    let uncommitted = Uncommitted::default();
    assert_eq!(undone(&uncommitted, BEFORE), []);
    let wrote = Wrote {
        object: object(),
        run: Run {
            offset: 0,
            data: Bytes::from_static(b"x"),
        },
        version: Version::default(),
        writer: writer(2),
        writers: [writer(1), writer(2)].into(),
        path: None,
        tenure: Some(Tenure::default()),
        durable: false,
    };
    assert_eq!(uncommitted.wrote(wrote, BEFORE), Noted::default());
    let undone = uncommitted.host_is(AFTER);
    let writers: Vec<u64> = undone[0].writers.iter().map(|w| w.open.0).collect();
    assert_eq!(writers, [1, 2]);
}
