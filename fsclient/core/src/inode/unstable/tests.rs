use super::*;
use crate::cache::fixtures::writer;
use crate::inode::Inodes;
use crate::inode::{Hearers, Writer};
use crate::opens::Opens;
use crate::opens::fixtures::opened;
use bytes::Bytes;
use leasefs_lease::client::{Batch, Leases, Run, Tenure};
use leasefs_protocol::Handle;
use leasefs_protocol::{Caller, Grant, Mode, OpenId, Parts, Refusal, Stamp, Version};
use std::sync::Arc;

const BEFORE: BootId = BootId([1; 16]);
const AFTER: BootId = BootId([2; 16]);

fn object() -> Handle {
    Handle::new(&[1]).expect("one byte")
}

fn changed(inodes: &mut Inodes, host: BootId) {
    inodes.unstable_change(object(), host, true);
}

fn wrote(inodes: &mut Inodes, offset: u64, data: &'static [u8], host: BootId) -> Noted {
    wrote_by(&writer(7), inodes, offset, data, host)
}

fn wrote_by(
    writer: &Writer,
    inodes: &mut Inodes,
    offset: u64,
    data: &'static [u8],
    host: BootId,
) -> Noted {
    inodes.unstable_write(written(writer, offset, data), host)
}

fn written(writer: &Writer, offset: u64, data: &'static [u8]) -> Wrote {
    let run = Run {
        offset,
        data: Bytes::from_static(data),
    };
    Wrote {
        object: object(),
        batch: run.into(),
        version: Version::default(),
        writer: writer.clone(),
        hearers: Arc::new(Hearers::of(writer)),
        path: None,
        tenure: Some(Tenure::default()),
        durable: false,
    }
}

fn commit(inodes: &mut Inodes, host: BootId, told: &LossesTold) -> Committed {
    let covered = inodes.commit_covers(inodes.host_life(), false);
    inodes.committed(&object(), covered, host, told)
}

fn undone(inodes: &mut Inodes, host: BootId) -> Vec<(u64, &'static [u8])> {
    let undone = inodes.server_host_is(host);
    let runs = undone.into_iter().flat_map(|undone| undone.runs);
    let leak = |data: Bytes| &*Box::leak(data.to_vec().into_boxed_slice());
    runs.map(|run| (run.offset, leak(run.data))).collect()
}

#[test]
fn a_commit_after_a_crash_of_the_host_fails_once_for_what_came_before_it() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    changed(&mut inodes, BEFORE);
    changed(&mut inodes, AFTER);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Lost);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
}

#[test]
fn nothing_stays_of_a_file_that_was_forgotten_before_its_bytes_were_written_and_committed() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    inodes.will_be_unstable(&object());
    inodes.nobody_commits(&object());
    let _ = wrote(&mut inodes, 0, b"late", BEFORE);
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Durable);
    assert!(inodes.iter().next().is_none());
}

#[test]
fn who_opens_a_file_that_was_forgotten_is_told_of_what_he_writes_where_others_use_it() {
    let mut inodes = Inodes::default();
    let _ = wrote(&mut inodes, 0, b"kept", BEFORE);
    inodes.nobody_commits(&object());
    let open = inodes.losses_told(&object());
    let shared = Wrote {
        tenure: None,
        ..written(&writer(8), 4, b"shared")
    };
    let _ = inodes.unstable_write(shared, BEFORE);
    assert_eq!(undone(&mut inodes, AFTER), []);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Lost);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
}

#[test]
fn what_the_kernel_has_forgotten_is_committed_and_what_a_crash_has_undone_of_it_is_told_who_opens_it()
 {
    let mut inodes = Inodes::default();
    changed(&mut inodes, BEFORE);
    assert!(!inodes.has_to_commit(), "who has it open may ask for it");
    inodes.nobody_commits(&object());
    assert!(inodes.has_to_commit());
    let covered = inodes.commit_covers(inodes.host_life(), false);
    assert_eq!(
        inodes.all_committed(covered.clone(), BEFORE),
        Committed::Durable
    );
    assert!(inodes.iter().next().is_none() && !inodes.has_to_commit());
    changed(&mut inodes, BEFORE);
    inodes.nobody_commits(&object());
    let covered = inodes.commit_covers(inodes.host_life(), false);
    assert_eq!(inodes.all_committed(covered, AFTER), Committed::Lost);
    let open = inodes.losses_told(&object());
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Lost);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
}

#[test]
fn what_a_disk_has_not_taken_is_lost_and_what_was_written_behind_that_commit_stays() {
    let failed = Refusal::Host(libc::EIO as u16);
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    let _ = wrote(&mut inodes, 0, b"old", BEFORE);
    let covered = inodes.commit_covers(inodes.host_life(), false);
    let _ = wrote(&mut inodes, 8, b"new", BEFORE);
    let (lost, undone) = inodes.not_taken(failed, &covered);
    let runs: Vec<u64> = undone[0].runs.iter().map(|run| run.offset).collect();
    assert_eq!((lost, undone.len(), runs), (1, 1, vec![0]));
    assert!(inodes.keeps_written(&object()));
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Lost);
    assert_eq!(inodes.why_lost(&object()), failed);
    // A copy, a truncation, a name: nothing is kept of it.
    changed(&mut inodes, BEFORE);
    let covered = inodes.commit_covers(inodes.host_life(), false);
    let (lost, undone) = inodes.not_taken(failed, &covered);
    assert_eq!((lost, undone.len()), (1, 0));
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Lost);
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Durable);
}

#[test]
fn of_a_write_of_which_the_server_has_taken_nothing_nothing_is_kept() {
    let mut inodes = Inodes::default();
    assert_eq!(undone(&mut inodes, BEFORE), []);
    let _ = wrote(&mut inodes, 9, b"", BEFORE);
    assert!(!inodes.keeps_written(&object()) && !inodes.has_to_commit());
    assert!(inodes.server_host_is(AFTER).is_empty());
}

#[test]
fn what_is_written_again_is_its_writers_unless_they_were_several_users() {
    let of = |uid| Writer {
        caller: Caller {
            uid,
            ..Caller::default()
        },
        ..writer(7)
    };
    for (users, owner) in [([1, 1], Some(1)), ([1, 2], None)] {
        let mut inodes = Inodes::default();
        for user in users {
            let _ = wrote_by(&of(user), &mut inodes, 0, b"bytes", BEFORE);
        }
        let undone = inodes.server_host_is(AFTER).pop().expect("bytes");
        assert_eq!(undone.owner.map(|owner| owner.uid), owner);
    }
}

#[test]
fn nothing_is_kept_of_a_file_that_went_out_of_reach_and_was_forgotten_while_dirty() {
    let mut inodes = Inodes::default();
    inodes.will_be_unstable(&object());
    inodes.out_of_reach(&object());
    inodes.nobody_commits(&object());
    let _ = wrote(&mut inodes, 0, b"late", BEFORE);
    assert!(!inodes.has_to_commit());
    inodes.nothing_to_flush(&object());
    assert!(inodes.iter().next().is_none());
}

#[test]
fn each_open_of_before_the_loss_is_told_of_it_and_none_of_after_it() {
    let mut inodes = Inodes::default();
    let opens = [inodes.losses_told(&object()), inodes.losses_told(&object())];
    changed(&mut inodes, BEFORE);
    for open in &opens {
        assert_eq!(commit(&mut inodes, AFTER, open), Committed::Lost);
    }
    let later = inodes.losses_told(&object());
    changed(&mut inodes, AFTER);
    for open in [&later, &opens[0], &opens[1]] {
        assert_eq!(commit(&mut inodes, AFTER, open), Committed::Durable);
    }
}

#[test]
fn what_was_committed_before_the_crash_is_no_loss() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    changed(&mut inodes, BEFORE);
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Durable);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
    changed(&mut inodes, AFTER);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
}

#[test]
fn a_change_that_is_answered_while_a_commit_is_under_way_is_not_covered_by_it() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    changed(&mut inodes, BEFORE);
    let covered = inodes.commit_covers(inodes.host_life(), false);
    changed(&mut inodes, BEFORE);
    let first = inodes.committed(&object(), covered, BEFORE, &open);
    assert_eq!(first, Committed::Durable);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Lost);
}

#[test]
fn written_bytes_come_back_after_a_crash_of_the_host_unless_a_commit_covers_them() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert!(!wrote(&mut inodes, 0, b"old", BEFORE).undone);
    let covered = inodes.commit_covers(inodes.host_life(), false);
    assert!(!wrote(&mut inodes, 1, b"new", BEFORE).undone);
    let first = inodes.committed(&object(), covered, BEFORE, &open);
    assert_eq!(first, Committed::Durable);
    assert_eq!(undone(&mut inodes, AFTER), [(1, &b"new"[..])]);
    assert!(!inodes.has_to_commit());
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
}

#[test]
fn a_durable_flush_covers_its_round_and_what_was_answered_before_it() {
    let mut inodes = Inodes::default();
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert!(!wrote(&mut inodes, 0, b"before", BEFORE).undone);
    let mut covered = inodes.commit_covers(inodes.host_life(), false);
    let of_round = wrote(&mut inodes, 10, b"round", BEFORE).number;
    assert!(!wrote(&mut inodes, 20, b"meanwhile", BEFORE).undone);
    let round = of_round.into_iter().collect();
    let flushed = covered.along_with(round, OpenId(7), BEFORE);
    let later = inodes.commit_covers(inodes.host_life(), false);
    assert!(covered.is_within(flushed, OpenId(7)));
    assert!(!covered.is_within(flushed, OpenId(8)));
    assert!(!later.is_within(flushed, OpenId(7)));
    inodes.written_durably(&object(), &covered, BEFORE);
    assert_eq!(undone(&mut inodes, AFTER), [(20, &b"meanwhile"[..])]);
}

#[test]
fn a_commit_that_another_life_of_the_host_answers_must_be_repeated() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert!(!wrote(&mut inodes, 0, b"x", BEFORE).undone);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Again);
    assert_eq!(undone(&mut inodes, AFTER), [(0, &b"x"[..])]);
}

#[test]
fn an_answer_of_an_earlier_life_that_comes_late_is_worth_nothing() {
    let mut inodes = Inodes::default();
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert_eq!(undone(&mut inodes, AFTER), []);
    assert!(wrote(&mut inodes, 0, b"x", BEFORE).undone);
    assert!(!inodes.has_to_commit());
}

#[test]
fn bytes_from_before_a_truncation_do_not_come_back() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert!(!wrote(&mut inodes, 0, b"old", BEFORE).undone);
    changed(&mut inodes, BEFORE);
    assert!(!wrote(&mut inodes, 0, b"n", BEFORE).undone);
    assert_eq!(undone(&mut inodes, AFTER), [(0, &b"n"[..])]);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Lost);
}

#[test]
fn nothing_is_kept_of_a_file_that_nobody_can_reach() {
    let mut inodes = Inodes::default();
    let server = Opens::default();
    let _ = wrote_by(&writes(&server, 7), &mut inodes, 0, b"x", BEFORE);
    inodes.out_of_reach(&object());
    assert!(!server.is_open(OpenId(7)));
    let _ = wrote_by(&writes(&server, 7), &mut inodes, 0, b"late", BEFORE);
    assert!(!server.is_open(OpenId(7)) && !inodes.has_to_commit());
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
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert!(!wrote(&mut inodes, 0, b"old", BEFORE).undone);
    let wrote = Wrote {
        object: object(),
        batch: Batch::from(Run {
            offset: 8,
            data: Bytes::from_static(b"new"),
        }),
        version: Version::default(),
        writer: writer(7),
        hearers: Arc::default(),
        path: None,
        tenure: Some(later()),
        durable: false,
    };
    assert!(!inodes.unstable_write(wrote, BEFORE).undone);
    assert_eq!(undone(&mut inodes, AFTER), [(8, &b"new"[..])]);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Lost);
}

/// A descriptor whose open the server has under this number.
fn writes(server: &Opens, open: u64) -> Writer {
    Writer {
        open: opened(server, open),
        ..writer(open)
    }
}

#[test]
fn an_open_through_which_bytes_may_have_to_be_written_again_is_closed_after_the_commit() {
    let (mut inodes, server) = (Inodes::default(), Opens::default());
    let open = inodes.losses_told(&object());
    for id in [8, 7] {
        let _ = wrote_by(&writes(&server, id), &mut inodes, 0, b"x", BEFORE);
    }
    assert!(!server.is_open(OpenId(8)), "another will do");
    assert!(server.is_open(OpenId(7)));
    inodes.nobody_commits(&object());
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Durable);
    assert!(!server.is_open(OpenId(7)) && inodes.iter().next().is_none());
}

#[test]
fn everybody_who_wrote_hears_what_becomes_of_the_bytes_that_come_back() {
    let mut inodes = Inodes::default();
    inodes.server_host_is(BEFORE);
    let writers: Vec<Writer> = (0..4).map(writer).collect();
    for (place, by) in [(0, 0), (1, 1), (2, 0), (3, 2), (4, 1), (5, 3)] {
        let noted = wrote_by(&writers[by], &mut inodes, place, b"x", BEFORE);
        assert!(!noted.undone);
    }
    let [first, second, third, closed] = <[Writer; 4]>::try_from(writers).expect("four");
    drop(closed.written);
    let undone = inodes.server_host_is(AFTER).remove(0);
    assert_eq!(undone.writer.open.id(), OpenId(3), "the last to write");
    undone.hearers.failed(Refusal::Lost);
    for open in [first, second, third] {
        assert_eq!(open.written.known(), Err(Refusal::Lost));
    }
}

#[test]
fn a_loss_that_only_a_commit_of_everything_has_met_is_told_to_the_next_open() {
    let mut inodes = Inodes::default();
    changed(&mut inodes, BEFORE);
    let covered = inodes.commit_covers(inodes.host_life(), false);
    assert_eq!(inodes.all_committed(covered, AFTER), Committed::Lost);
    let opens = [inodes.losses_told(&object()), inodes.losses_told(&object())];
    for open in &opens {
        assert_eq!(commit(&mut inodes, AFTER, open), Committed::Lost);
    }
    let later = inodes.losses_told(&object());
    assert_eq!(commit(&mut inodes, AFTER, &later), Committed::Durable);
}

#[test]
fn fdatasync_does_not_answer_for_a_change_of_attributes() {
    let mut inodes = Inodes::default();
    let open = inodes.losses_told(&object());
    assert_eq!(undone(&mut inodes, BEFORE), []);
    let data = |inodes: &mut Inodes, host| {
        let covered = inodes.commit_covers(inodes.host_life(), true);
        inodes.committed(&object(), covered, host, &open)
    };
    inodes.unstable_change(object(), BEFORE, true);
    assert_eq!(data(&mut inodes, BEFORE), Committed::Durable);
    assert_eq!(undone(&mut inodes, AFTER), []);
    assert_eq!(commit(&mut inodes, AFTER, &open), Committed::Durable);
    inodes.unstable_change(object(), AFTER, false);
    assert_eq!(data(&mut inodes, AFTER), Committed::Durable);
    assert_eq!(undone(&mut inodes, BEFORE), []);
    assert_eq!(commit(&mut inodes, BEFORE, &open), Committed::Lost);
}

#[test]
fn all_who_may_have_written_a_run_hear_what_becomes_of_it() {
    let mut inodes = Inodes::default();
    assert_eq!(undone(&mut inodes, BEFORE), []);
    let (first, last) = (writer(1), writer(2));
    let mut hearers = Hearers::of(&first);
    hearers.add(&last.written);
    let wrote = Wrote {
        object: object(),
        batch: Batch::from(Run {
            offset: 0,
            data: Bytes::from_static(b"x"),
        }),
        version: Version::default(),
        writer: last.clone(),
        hearers: Arc::new(hearers),
        path: None,
        tenure: Some(Tenure::default()),
        durable: false,
    };
    assert!(!inodes.unstable_write(wrote, BEFORE).undone);
    let undone = inodes.server_host_is(AFTER).remove(0);
    undone.hearers.failed(Refusal::Lost);
    for open in [first, last] {
        assert_eq!(open.written.known(), Err(Refusal::Lost));
    }
}
