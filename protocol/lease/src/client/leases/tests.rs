use super::*;

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

fn grant(object: u8, parts: Parts, stamp: u64) -> Grant {
    Grant {
        object: handle(object),
        parts,
        mode: Mode::Read,
        stamp: Stamp(stamp),
    }
}

fn write_grant(object: u8, parts: Parts, stamp: u64) -> Grant {
    Grant {
        mode: Mode::Write,
        ..grant(object, parts, stamp)
    }
}

fn names(of: &[&str]) -> Vec<RawName> {
    of.iter()
        .map(|name| RawName(name.as_bytes().to_vec()))
        .collect()
}

fn recall(id: u64, stamp: u64, object: u8, parts: Parts, of: &[&str]) -> Recall {
    Recall {
        id: RecallId(id),
        stamp: Stamp(stamp),
        scope: Scope::Object {
            object: handle(object),
            parts,
            names: names(of),
        },
    }
}

fn change(object: u8, parts: Parts, of: &[&str]) -> Vec<ChangeOf> {
    vec![ChangeOf {
        object: handle(object),
        parts,
        names: names(of),
    }]
}

const FILE: Parts = Parts::ATTRS;

#[test]
fn what_is_granted_is_held_and_cacheable() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    assert_eq!(leases.granted(asked, &grant(1, FILE, 5)), FILE);
    assert_eq!(leases.held(&handle(1)), FILE);
    assert_eq!(leases.len(), 1);
}

#[test]
fn a_grant_that_comes_behind_its_recall_is_neither_held_nor_cached() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.recall(&recall(1, 6, 1, FILE, &[]));
    leases.approved(RecallId(1));
    assert_eq!(leases.granted(asked, &grant(1, FILE, 5)), Parts::NONE);
    assert!(leases.is_empty());
    assert_eq!(leases.granted(asked, &grant(1, FILE, 7)), FILE);
}

#[test]
fn nothing_is_cacheable_while_a_recall_is_open() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.recall(&recall(1, 6, 1, FILE, &[]));
    assert_eq!(leases.granted(asked, &grant(1, FILE, 7)), Parts::NONE);
    assert_eq!(leases.held(&handle(1)), FILE, "it will be recalled again");
    leases.approved(RecallId(1));
    assert_eq!(leases.cacheable(asked, &handle(1), FILE, Stamp(7)), FILE);
}

#[test]
fn a_recall_concerns_its_parts_alone() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    let all = Parts::ATTRS | Parts::LISTING | Parts::NAMES;
    leases.granted(asked, &grant(1, all, 5));
    leases.recall(&recall(1, 6, 1, Parts::ATTRS | Parts::LISTING, &["a"]));
    assert_eq!(leases.held(&handle(1)), Parts::NAMES);
    assert!(!leases.name_cacheable(asked, &handle(1), b"a", Stamp(5)));
    assert!(leases.name_cacheable(asked, &handle(1), b"b", Stamp(5)));
    leases.approved(RecallId(1));
    assert!(!leases.name_cacheable(asked, &handle(1), b"a", Stamp(5)));
    assert!(leases.name_cacheable(asked, &handle(1), b"a", Stamp(7)));
}

#[test]
fn a_recall_sent_again_is_recognised_until_it_is_approved() {
    let mut leases = Leases::new();
    let again = recall(1, 6, 1, FILE, &["a"]);
    assert!(leases.recall(&again));
    assert!(!leases.recall(&again));
    leases.approved(RecallId(1));
    assert!(leases.recall(&again));
}

#[test]
fn an_own_change_hides_what_is_read_around_it() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, FILE, 5));
    let scope = change(1, FILE, &[]);
    leases.begin_change(&scope);
    assert_eq!(leases.granted(asked, &grant(1, FILE, 6)), Parts::NONE);
    leases.end_change(&scope, Some(Stamp(7)));
    assert_eq!(
        leases.cacheable(asked, &handle(1), FILE, Stamp(6)),
        Parts::NONE,
        "read before the change"
    );
    assert_eq!(leases.granted(asked, &grant(1, FILE, 7)), FILE, "its own");
    assert_eq!(leases.held(&handle(1)), FILE);
}

#[test]
fn of_two_changes_at_once_the_later_one_counts_in_whatever_order_they_are_answered() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    let scope = change(1, FILE, &[]);
    leases.begin_change(&scope);
    leases.begin_change(&scope);
    leases.end_change(&scope, Some(Stamp(8)));
    assert_eq!(leases.granted(asked, &grant(1, FILE, 8)), Parts::NONE);
    leases.end_change(&scope, Some(Stamp(7)));
    assert_eq!(leases.granted(asked, &grant(1, FILE, 7)), Parts::NONE);
    assert_eq!(leases.cacheable(asked, &handle(1), FILE, Stamp(8)), FILE);
}

#[test]
fn a_change_without_an_answer_spoils_everything_under_way() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    let scope = change(1, FILE, &["a"]);
    leases.begin_change(&scope);
    leases.end_change(&scope, None);
    assert_eq!(leases.granted(asked, &grant(2, FILE, 9)), Parts::NONE);
    let asked = leases.ask();
    assert_eq!(leases.granted(asked, &grant(2, FILE, 10)), FILE);
}

#[test]
fn after_expiry_nothing_is_held_and_replies_under_way_are_not_cached() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, FILE, 5));
    leases.recall(&recall(1, 6, 2, FILE, &[]));
    leases.expire();
    assert!(leases.is_empty());
    assert_eq!(leases.granted(asked, &grant(1, FILE, 9)), Parts::NONE);
    assert_eq!(leases.generation(), 1);
}

#[test]
fn a_recall_outlives_the_expiry_by_the_own_clock_and_takes_nothing_back_that_expired() {
    let mut leases = Leases::new();
    leases.granted(leases.ask(), &write_grant(1, FILE | Parts::DATA, 5));
    leases.recall(&recall(1, 6, 1, FILE | Parts::DATA, &[]));
    leases.expire();
    assert_eq!(leases.open_recalls().count(), 1);
    assert!(
        !leases.recall(&recall(1, 6, 1, FILE | Parts::DATA, &[])),
        "repeated"
    );
    let cached = leases.granted(leases.ask(), &grant(1, FILE, 9));
    assert_eq!(cached, Parts::NONE, "not before the approval");
    leases.restarted();
    assert!(!leases.is_exclusive(&handle(1)));
    assert_eq!(leases.open_recalls().count(), 0);
}

#[test]
fn an_own_change_outlives_expiry() {
    let mut leases = Leases::new();
    let scope = change(1, FILE, &["a"]);
    leases.begin_change(&scope);
    leases.expire();
    let asked = leases.ask();
    assert_eq!(leases.granted(asked, &grant(1, FILE, 9)), Parts::NONE);
    leases.end_change(&scope, Some(Stamp(10)));
    assert_eq!(leases.granted(asked, &grant(1, FILE, 10)), FILE);
}

#[test]
fn a_restarted_server_counts_anew() {
    let mut leases = Leases::new();
    let before = leases.ask();
    leases.granted(before, &grant(1, FILE, 500));
    leases.recall(&recall(7, 501, 2, FILE, &[]));
    leases.restarted();
    assert_eq!(leases.held(&handle(1)), FILE, "to be reclaimed");
    assert_eq!(leases.reclaim_list().count(), 1);
    assert_eq!(leases.granted(before, &grant(2, FILE, 502)), Parts::NONE);
    let asked = leases.ask();
    assert_eq!(leases.granted(asked, &grant(2, FILE, 1)), FILE);
    assert!(leases.recall(&recall(7, 2, 2, FILE, &[])), "another recall");
}

#[test]
fn a_session_that_begins_anew_counts_anew() {
    let mut leases = Leases::new();
    leases.granted(leases.ask(), &grant(1, FILE, 500));
    let everything = Recall {
        id: RecallId(7),
        stamp: Stamp(501),
        scope: Scope::Everything,
    };
    leases.recall(&everything);
    leases.expire();
    assert_eq!(
        leases.granted(leases.ask(), &grant(2, FILE, 1)),
        Parts::NONE
    );
    leases.begin_anew();
    let asked = leases.ask();
    assert_eq!(leases.granted(asked, &grant(1, FILE, 1)), FILE);
    assert!(leases.recall(&recall(7, 2, 2, FILE, &[])), "another recall");
}

#[test]
fn a_write_lease_whose_recall_was_not_approved_is_claimed_from_a_restarted_server() {
    let content = FILE | Parts::DATA;
    let write = |object, stamp| write_grant(object, content, stamp);
    let mut leases = Leases::new();
    let asked = leases.ask();
    for object in [1, 2] {
        leases.granted(asked, &write(object, object.into()));
    }
    leases.granted(asked, &grant(3, FILE, 3));
    leases.recall(&recall(1, 4, 1, FILE, &[]));
    leases.recall(&recall(2, 5, 1, Parts::DATA, &[]));
    leases.recall(&recall(3, 6, 2, content, &[]));
    leases.approved(RecallId(3));
    leases.recall(&recall(4, 7, 3, FILE, &[]));
    assert!(leases.is_empty(), "all is given up");
    leases.restarted();
    let claims: Vec<_> = leases.reclaim_list().collect();
    let claimed = ReclaimLease {
        object: handle(1),
        parts: content,
        mode: Mode::Write,
    };
    assert_eq!((claims, leases.len()), (vec![claimed], 1));
}

#[test]
fn a_file_that_was_given_up_in_between_is_held_in_another_tenure() {
    let content = FILE | Parts::DATA;
    let write = |stamp| write_grant(1, content, stamp);
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, content, 1));
    assert_eq!(leases.tenure(&handle(1)), None, "others may read it");
    leases.granted(asked, &write(2));
    let first = leases.tenure(&handle(1)).expect("held");
    leases.granted(asked, &write(3));
    assert_eq!(leases.tenure(&handle(1)), Some(first));
    leases.recall(&recall(1, 4, 1, Parts::DATA, &[]));
    assert_eq!(leases.tenure(&handle(1)), None);
    leases.approved(RecallId(1));
    leases.granted(asked, &write(5));
    let second = leases.tenure(&handle(1)).expect("held");
    assert_ne!(first, second);
}

#[test]
fn a_lease_goes_on_in_its_tenure_when_the_servers_process_has_restarted() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    let write = write_grant(1, FILE | Parts::DATA, 1);
    leases.granted(asked, &write);
    let first = leases.tenure(&handle(1)).expect("held");
    leases.restarted();
    assert_eq!(leases.tenure(&handle(1)), Some(first));
}

#[test]
fn what_a_recall_of_everything_takes_of_write_leases_is_claimed_too() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    let write = write_grant(1, Parts::DATA, 1);
    leases.granted(asked, &write);
    leases.granted(asked, &grant(2, FILE, 2));
    leases.recall(&Recall {
        id: RecallId(1),
        stamp: Stamp(3),
        scope: Scope::Everything,
    });
    assert!(leases.is_empty());
    leases.restarted();
    assert_eq!(leases.held(&handle(1)), Parts::DATA);
    assert_eq!(leases.held(&handle(2)), Parts::NONE);
}

#[test]
fn what_is_released_is_not_cached_from_replies_the_server_takes_it_from() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, FILE | Parts::DATA, 5));
    let release = leases.release(&handle(1), Parts::ALL).expect("held");
    assert_eq!(
        (release.parts, release.seen),
        (FILE | Parts::DATA, Stamp(5))
    );
    assert_eq!(leases.granted(asked, &grant(1, FILE, 5)), Parts::NONE);
    assert_eq!(leases.granted(asked, &grant(1, FILE, 6)), FILE);
    assert_eq!(leases.release(&handle(2), Parts::ALL), None);
}

#[test]
fn a_recall_of_everything_leaves_nothing() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, FILE, 5));
    let all = Recall {
        id: RecallId(3),
        stamp: Stamp(9),
        scope: Scope::Everything,
    };
    leases.recall(&all);
    assert!(leases.is_empty());
    assert_eq!(leases.granted(asked, &grant(2, FILE, 8)), Parts::NONE);
    leases.approved(RecallId(3));
    assert_eq!(leases.granted(asked, &grant(2, FILE, 8)), Parts::NONE);
    assert_eq!(leases.granted(asked, &grant(2, FILE, 10)), FILE);
}

#[test]
fn what_is_held_exclusively_stays_so_until_its_recall_is_approved() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    let write = write_grant(1, Parts::DATA, 5);
    leases.granted(asked, &write);
    assert!(leases.is_exclusive(&handle(1)));
    leases.recall(&recall(1, 6, 1, Parts::DATA, &[]));
    assert_eq!(leases.held(&handle(1)), Parts::NONE);
    assert!(leases.is_exclusive(&handle(1)));
    leases.approved(RecallId(1));
    assert!(!leases.is_exclusive(&handle(1)));
}

#[test]
fn too_many_remembered_names_become_one_stamp_for_all() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, Parts::NAMES, 1));
    for i in 0..3_000 {
        let name = format!("n{i}");
        leases.recall(&recall(i, i + 2, 1, Parts::NONE, &[&name]));
        leases.approved(RecallId(i));
    }
    assert_eq!(leases.held(&handle(1)), Parts::NAMES);
    let newest = "n2999".as_bytes();
    assert!(!leases.name_cacheable(asked, &handle(1), newest, Stamp(3_000)));
    assert!(leases.name_cacheable(asked, &handle(1), newest, Stamp(3_001)));
    let unknown = leases.name_cacheable(asked, &handle(1), b"x", Stamp(2));
    assert!(!unknown, "too old to tell");
}

#[test]
fn too_many_forgotten_objects_become_one_stamp_for_all() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    for i in 0..20_000_u64 {
        let object = Handle::new(&i.to_le_bytes()).expect("eight bytes");
        let scope = Scope::Object {
            object,
            parts: FILE,
            names: Vec::new(),
        };
        let stamp = Stamp(i + 2);
        let id = RecallId(i);
        leases.recall(&Recall { id, stamp, scope });
        leases.approved(id);
    }
    assert!(leases.objects.len() <= MAX_FORGOTTEN);
    assert_eq!(leases.granted(asked, &grant(1, FILE, 1)), Parts::NONE);
    assert_eq!(leases.granted(asked, &grant(1, FILE, 20_002)), FILE);
}

#[test]
fn a_server_that_grants_without_end_is_believed_only_so_far() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, FILE, 5));
    leases.held = MOST_HELD;
    assert_eq!(leases.granted(asked, &grant(2, FILE, 6)), Parts::NONE);
    assert_eq!(leases.objects.len(), 1);
    let more = leases.granted(asked, &grant(1, Parts::DATA, 6));
    assert_eq!(more, Parts::DATA, "of what is held already");
}

#[test]
fn a_stamp_at_the_end_of_all_numbers_overflows_nothing() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, FILE, u64::MAX));
    let release = leases.release(&handle(1), FILE).expect("held");
    assert_eq!(release.seen, Stamp(u64::MAX));
    assert_eq!(leases.held(&handle(1)), Parts::NONE);
}

#[test]
fn pages_that_a_recall_was_taking_back_are_claimed_from_a_restarted_server() {
    let mut leases = Leases::new();
    let asked = leases.ask();
    leases.granted(asked, &grant(1, Parts::DATA, 1));
    leases.recall(&recall(1, 3, 1, Parts::DATA, &[]));
    // This grant came behind its recall: what the READ brought is in the kernel nevertheless.
    leases.recall(&recall(2, 4, 2, Parts::DATA, &[]));
    let late = leases.granted(asked, &write_grant(2, Parts::DATA, 2));
    assert_eq!((late, leases.len()), (Parts::NONE, 0));
    leases.restarted();
    let claims: Vec<_> = leases.reclaim_list().collect();
    let claimed = |object, mode| ReclaimLease {
        object: handle(object),
        parts: Parts::DATA,
        mode,
    };
    assert_eq!(claims, [claimed(1, Mode::Read), claimed(2, Mode::Write)]);
}
