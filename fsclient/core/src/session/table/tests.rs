use super::*;
use crate::session::request::Wait;
use leasefs_protocol::Durability;
use leasefs_protocol::change::{WriteAt, WriteKind};
use leasefs_protocol::{BootId, Caller, OpenId, RawName, SetAttr, Version, change};
use std::time::Duration;

const START: BootTime = BootTime::ZERO;
const NOW: Now = Now {
    boot: START,
    monotonic: START,
};

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

fn unlink() -> Change {
    let unlink = change::Unlink {
        dir: handle(0),
        name: RawName(b"x".to_vec()),
    };
    unlink.into()
}

fn numbering(touches: &[u8]) -> NewChange {
    NewChange {
        life: None,
        locked: None,
        touches: touches.iter().copied().map(handle).collect(),
        dropped: Vec::new(),
    }
}

fn numbered(taken: &Taken) -> Numbered {
    let numbered = taken.send.frame.request.numbered();
    numbered.cloned().expect("a change")
}

fn change(touches: &[u8]) -> New {
    New {
        caller: Caller::default(),
        asked: Asked::Change(unlink(), numbering(touches)),
        payload: Bytes::new(),
        wait: None,
        pid: None,
        places: Default::default(),
    }
}

fn taken(table: &mut Table, touches: &[u8]) -> (RequestId, Numbered) {
    let taken = table.take(change(touches), NOW).expect("taken");
    (taken.send.frame.id, numbered(&taken))
}

#[test]
fn a_change_of_several_objects_follows_each_earlier_one_once_and_in_order() {
    let mut table = Table::new(Opens::default());
    let (_, first) = taken(&mut table, &[1, 2]);
    let (_, second) = taken(&mut table, &[2]);
    let (_, unrelated) = taken(&mut table, &[3, 3]);
    let (_, last) = taken(&mut table, &[2, 1]);
    assert_eq!(first.after, []);
    assert_eq!(second.after, [first.seq]);
    assert_eq!(unrelated.after, []);
    assert_eq!(last.after, [first.seq, second.seq]);
}

fn written(table: &mut Table, object: u8, kind: WriteKind) -> Numbered {
    let write = change::Write {
        open: OpenId(1),
        at: WriteAt::Offset(0),
        kill_priv: false,
        durability: Durability::None,
        kind,
    };
    let new = New {
        asked: Asked::Change(write.into(), numbering(&[object])),
        ..change(&[object])
    };
    let taken = table.take(new, NOW).expect("taken");
    numbered(&taken)
}

#[test]
fn what_the_kernel_writes_back_follows_nothing_but_others_follow_it() {
    let mut table = Table::new(Opens::default());
    taken(&mut table, &[1]);
    let written_back = written(&mut table, 1, WriteKind::Page { late: false });
    assert_eq!(written_back.after, []);
    let (_, next) = taken(&mut table, &[1]);
    assert!(next.after.contains(&written_back.seq));
}

#[test]
fn a_flush_follows_the_flush_of_the_same_file_before_it_alone() {
    let mut table = Table::new(Opens::default());
    let flush = WriteKind::Flush {
        base: Version::default(),
        written: None,
        late: false,
        repeated: false,
        set: SetAttr::default(),
    };
    taken(&mut table, &[1]);
    let [first, other, second] = [1, 2, 1].map(|object| written(&mut table, object, flush));
    taken(&mut table, &[1]);
    let third = written(&mut table, 1, flush);
    assert_eq!([first.after, other.after], [[], []]);
    assert_eq!([second.after, third.after], [[first.seq], [second.seq]]);
}

#[test]
fn one_more_change_than_a_change_may_follow_has_to_wait() {
    let mut table = Table::new(Opens::default());
    let (first, _) = taken(&mut table, &[1]);
    for _ in 0..MAX_AFTER {
        let (_, change) = taken(&mut table, &[1]);
        assert!(change.after.len() <= MAX_AFTER);
    }
    let full = table.take(change(&[1]), NOW);
    assert!(matches!(full, Err(NotTaken::NoRoom(_))));
    assert!(table.has_room(&unlink(), &[handle(2)]));
    table.give_up(first, Refusal::Cancelled);
    assert!(table.has_room(&unlink(), &[handle(1)]));
}

#[test]
fn a_change_further_ahead_of_an_unanswered_one_than_the_server_takes_has_to_wait() {
    let mut table = Table::new(Opens::default());
    let (first, _) = taken(&mut table, &[1]);
    table.next_seq = Seq(table.next_seq.0 + MAX_CHANGES_AHEAD);
    let full = table.take(change(&[2]), NOW);
    assert!(matches!(full, Err(NotTaken::NoRoom(_))));
    table.give_up(first, Refusal::Cancelled);
    assert!(table.has_room(&unlink(), &[handle(2)]));
}

#[test]
fn what_was_never_sent_is_given_up_without_a_trace() {
    let mut table = Table::new(Opens::default());
    let mut taken_first = table.take(change(&[1]), NOW).expect("taken");
    let id = taken_first.send.frame.id;
    assert_eq!(
        table.give_up(id, Refusal::TimedOut),
        None,
        "nothing to cancel"
    );
    match taken_first.outcome.try_recv() {
        Ok(Some(RequestOutcome::GaveUp { refusal, unsettled })) => {
            assert_eq!(refusal, Refusal::TimedOut);
            assert!(unsettled.is_none());
        }
        other => panic!("{other:?}"),
    }
    let (_, next) = taken(&mut table, &[1]);
    assert_eq!(next.after, []);
    assert_eq!(table.low_water(), next.seq);
}

#[test]
fn a_change_that_waits_is_not_sent_in_another_life_of_the_host_than_it_was_made_for() {
    let mut table = Table::new(Opens::default());
    let host = table.host;
    let made_for = |life| {
        let numbering = NewChange {
            life: Some(life),
            ..numbering(&[1])
        };
        New {
            asked: Asked::Change(unlink(), numbering),
            ..change(&[])
        }
    };
    let mut waits = table.take(made_for(host), NOW).expect("taken");
    let next = BootId([9; 16]);
    let mut early = table.take(made_for(next), NOW).expect("taken");
    let mut any = table.take(change(&[1]), NOW).expect("taken");
    table.host = next;
    table.hold_back(false);
    assert!(matches!(
        waits.outcome.try_recv(),
        Ok(Some(RequestOutcome::Overtaken))
    ));
    for outcome in [&mut early.outcome, &mut any.outcome] {
        assert!(matches!(outcome.try_recv(), Ok(None)));
    }
    table.hold_back(true);
    assert!(matches!(
        early.outcome.try_recv(),
        Ok(Some(RequestOutcome::Overtaken))
    ));
    assert!(
        matches!(any.outcome.try_recv(), Ok(None)),
        "any life will do"
    );
}

#[test]
fn a_change_that_may_have_happened_is_never_stale() {
    let mut table = Table::new(Opens::default());
    let mut taken = table.take(change(&[1]), NOW).expect("taken");
    let id = taken.send.frame.id;
    table.entries.get_mut(&id).expect("it waits").sent = Some((START, ConnectionId(0)));
    assert!(
        table.give_up(id, Refusal::Stale).is_some(),
        "to be cancelled"
    );
    match taken.outcome.try_recv() {
        Ok(Some(RequestOutcome::GaveUp { refusal, .. })) => assert_eq!(refusal, Refusal::Lost),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_taken_while_the_server_refuses_the_session() {
    let mut table = Table::new(Opens::default());
    let (waiting, _) = taken(&mut table, &[1]);
    assert_eq!(table.refused(Refusal::Access), [waiting]);
    let refused = table.take(change(&[1]), NOW);
    assert!(matches!(refused, Err(NotTaken::Refused(Refusal::Access))));
}

#[test]
fn each_request_waits_as_long_as_the_contact_allows() {
    let mut table = Table::new(Opens::default());
    let mut new = change(&[1]);
    new.wait = Some(waits(Some(25)));
    let id = table.take(new, NOW).expect("taken").send.frame.id;
    taken(&mut table, &[2]);
    let (contact, silence) = (progress(true, 0, 0), progress(false, 0, 0));
    assert_eq!(table.overdue(at(10), contact), []);
    assert_eq!(table.overdue(at(10), silence), [id]);
    assert_eq!(table.overdue(at(25), contact), [id]);
}

fn at(seconds: u64) -> BootTime {
    START + Duration::from_secs(seconds)
}

/// Something that began at once and waits 10 s for a silent server.
fn waits(at_most: Option<u64>) -> Wait {
    Wait {
        begun: START,
        silent: Duration::from_secs(10),
        at_most: at_most.map(Duration::from_secs),
    }
}

fn progress(in_contact: bool, heard: u64, moved: u64) -> Progress {
    Progress {
        in_contact,
        heard: at(heard),
        moved: at(moved),
    }
}

#[test]
fn only_time_in_which_nothing_happens_counts() {
    let wait = waits(Some(25));
    // Bytes come through.
    assert_eq!(wait.ends(progress(true, 100, 100)), Some(at(125)));
    // They have ceased to, and the server is heard now and then.
    assert_eq!(wait.ends(progress(false, 118, 100)), Some(at(125)));
    // It is silent.
    assert_eq!(wait.ends(progress(false, 103, 100)), Some(at(113)));
    assert_eq!(wait.ends(progress(false, 0, 0)), Some(at(10)));
}

#[test]
fn what_the_servers_disk_works_on_waits_as_long_as_the_server_is_heard() {
    let wait = waits(None);
    assert_eq!(wait.ends(progress(true, 1_000, 0)), None);
    assert_eq!(wait.ends(progress(false, 1_000, 0)), Some(at(1_010)));
}
