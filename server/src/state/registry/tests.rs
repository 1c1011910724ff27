//! Who is let in, and what a list of clients that was put back does not bring back.

use super::*;
use crate::state::tests::Scratch;
use leasefs_protocol::Handle;

const A: KeyHash = KeyHash([1; 32]);
const B: KeyHash = KeyHash([2; 32]);
const NOW: u64 = 1_000_000;

fn open(scratch: &Scratch) -> Registry {
    let (list, spent) = (scratch.path("clients.json"), scratch.path("spent"));
    Registry::open(&list, &spent, NOW).expect("open")
}

fn registry() -> (Scratch, Registry) {
    let scratch = Scratch::new();
    let registry = open(&scratch);
    (scratch, registry)
}

#[test]
fn a_ticket_enrols_one_key_which_may_repeat_it() {
    let (scratch, mut registry) = registry();
    let secret = registry.issue(Role::default(), NOW).expect("ticket");
    let enrol = |registry: &mut Registry, key| {
        let admitted = registry.admit(key, Some(&secret), "host", NOW);
        admitted.map(|client| client.key)
    };
    assert_eq!(enrol(&mut registry, A), Ok(A));
    assert_eq!(enrol(&mut registry, A), Ok(A));
    assert_eq!(enrol(&mut registry, B), Err(HelloRefusal::TicketUsed));
    let mut again = open(&scratch);
    assert_eq!(again.content, registry.content);
    assert!(again.admit(A, None, "host", NOW).is_ok());
    let unknown = again.admit(B, None, "host", NOW);
    assert_eq!(unknown, Err(HelloRefusal::UnknownClient(B)));
}

#[test]
fn expired_and_foreign_tickets_are_refused_with_their_reason() {
    let (_scratch, mut registry) = registry();
    let secret = registry.issue(Role::default(), NOW).expect("ticket");
    let late = NOW + TICKET_LIFE.as_secs();
    let expired = registry.admit(A, Some(&secret), "host", late);
    assert_eq!(expired, Err(HelloRefusal::TicketExpired));
    let foreign = registry.admit(A, Some(&[9; 32]), "host", NOW);
    assert_eq!(foreign, Err(HelloRefusal::TicketUnknown));
}

#[test]
fn a_revoked_client_needs_a_ticket_made_since() {
    let (_scratch, mut registry) = registry();
    let first = registry.issue(Role::default(), NOW).expect("ticket");
    let old = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&first), "host:/mnt", NOW)
        .expect("enrolled");
    registry.revoke("host", NOW + 1).expect("revoked");
    let revoked = Err(HelloRefusal::Revoked(A));
    assert_eq!(registry.admit(A, None, "host", NOW + 2), revoked);
    assert_eq!(registry.admit(A, Some(&first), "host", NOW + 2), revoked);
    assert_eq!(registry.admit(A, Some(&old), "host", NOW + 2), revoked);
    let fresh = registry.issue(Role::default(), NOW + 3).expect("ticket");
    assert!(registry.admit(A, Some(&fresh), "host", NOW + 4).is_ok());
}

#[test]
fn a_client_is_revoked_by_name_or_key_if_only_one_is_meant() {
    let (_scratch, mut registry) = registry();
    for key in [A, B] {
        let secret = registry.issue(Role::default(), NOW).expect("ticket");
        registry
            .admit(key, Some(&secret), "same", NOW)
            .expect("enrolled");
    }
    let ambiguous = registry.revoke("same", NOW);
    assert!(matches!(ambiguous, Err(RevokeError::Ambiguous { .. })));
    assert_eq!(registry.revoke("0202", NOW).expect("revoked").key, B);
    let unknown = registry.revoke("02", NOW);
    assert!(matches!(unknown, Err(RevokeError::Unknown(_))));
}

fn enrolled(registry: &mut Registry, key: KeyHash, name: &str) {
    let secret = registry.issue(Role::default(), NOW).expect("ticket");
    let client = registry.admit(key, Some(&secret), name, NOW);
    client.expect("enrolled");
}

#[test]
fn a_client_named_like_anothers_key_does_not_take_its_place() {
    let (_scratch, mut registry) = registry();
    let c = KeyHash([3; 32]);
    enrolled(&mut registry, A, &B.to_string());
    enrolled(&mut registry, B, "victim");
    enrolled(&mut registry, c, "0202020202020202");
    let Err(RevokeError::Ambiguous { candidates, .. }) = registry.revoke("0202020202020202", NOW)
    else {
        panic!("the name of one, the key of the other");
    };
    let keys: Vec<KeyHash> = candidates.iter().map(|client| client.key).collect();
    assert_eq!(keys, [B, c]);
    // A whole key means its owner, whoever calls itself so.
    for key in [B, A] {
        assert_eq!(
            registry.revoke(&key.to_string(), NOW).expect("one").key,
            key
        );
    }
}

#[test]
fn a_fresh_ticket_changes_the_role_and_unused_ones_are_bounded() {
    let (_scratch, mut registry) = registry();
    let plain = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&plain), "host", NOW)
        .expect("enrolled");
    let role = Role {
        read_only: true,
        ..Role::default()
    };
    let secret = registry.issue(role.clone(), NOW).expect("ticket");
    let client = registry.admit(A, Some(&secret), "host", NOW);
    assert_eq!(client.expect("admitted").role, role);
    registry.content.tickets = vec![
        Unused {
            hash: B,
            role: role.clone(),
            made: NOW,
            expires: NOW,
            number: 1,
        };
        MAX_TICKETS
    ];
    registry.issue(role, NOW).expect("ticket");
    assert_eq!(registry.content.tickets.len(), MAX_TICKETS);
}

#[test]
fn a_ticket_made_in_the_second_of_a_revocation_lets_the_client_in_again() {
    let (_scratch, mut registry) = registry();
    let first = registry.issue(Role::default(), NOW).expect("ticket");
    let before = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&first), "host", NOW)
        .expect("enrolled");
    registry.revoke("host", NOW).expect("revoked");
    let since = registry.issue(Role::default(), NOW).expect("ticket");
    let refused = registry.admit(A, Some(&before), "host", NOW);
    assert_eq!(refused, Err(HelloRefusal::Revoked(A)));
    assert!(registry.admit(A, Some(&since), "host", NOW).is_ok());
    assert!(registry.admit(A, None, "host", NOW).is_ok());
    registry.revoke("host", NOW).expect("revoked again");
    let refused = registry.admit(A, Some(&since), "host", NOW);
    assert_eq!(refused, Err(HelloRefusal::Revoked(A)));
}

#[test]
fn a_list_put_back_from_a_copy_revives_neither_a_revoked_key_nor_a_used_ticket_and_says_so() {
    let (scratch, mut registry) = registry();
    let first = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&first), "host", NOW)
        .expect("enrolled");
    let second = registry.issue(Role::default(), NOW).expect("ticket");
    let old = std::fs::read(scratch.path("clients.json")).expect("read");
    registry
        .admit(B, Some(&second), "other", NOW)
        .expect("enrolled");
    registry.revoke("host", NOW).expect("revoked");
    std::fs::write(scratch.path("clients.json"), old).expect("written");
    let mut registry = open(&scratch);
    let note = registry.note().expect("it is said").to_owned();
    assert!(note.contains("put back from a copy"), "{note}");
    let (a, b) = (&A.to_string()[..16], &B.to_string()[..16]);
    assert!(note.contains(&format!("lets them in: {a}.")), "{note}");
    assert!(note.contains(&format!("fresh ticket: {b}.")), "{note}");
    let revoked = Err(HelloRefusal::Revoked(A));
    assert_eq!(registry.admit(A, None, "host", NOW), revoked);
    assert_eq!(registry.admit(A, Some(&first), "host", NOW), revoked);
    let thief = KeyHash([3; 32]);
    let used = Err(HelloRefusal::TicketUsed);
    assert_eq!(registry.admit(thief, Some(&second), "thief", NOW), used);
    assert_eq!(registry.admit(A, Some(&second), "host", NOW), used);
    // A crash between the two files looks the same: whom the ticket has enrolled may repeat it.
    assert!(registry.admit(B, Some(&second), "other", NOW).is_ok());
    assert_eq!(open(&scratch).note(), None);
    assert_eq!(open(&scratch).content, registry.content);
}

#[test]
fn without_its_list_the_record_alone_keeps_revoked_keys_out() {
    let (scratch, mut registry) = registry();
    let first = registry.issue(Role::default(), NOW).expect("ticket");
    let second = registry.issue(Role::default(), NOW).expect("ticket");
    let old = std::fs::read(scratch.path("clients.json")).expect("read");
    registry
        .admit(A, Some(&first), "host", NOW)
        .expect("enrolled");
    registry.revoke("host", NOW).expect("revoked");
    std::fs::remove_file(scratch.path("clients.json")).expect("removed");
    let mut registry = open(&scratch);
    assert!(registry.note().is_some());
    let unknown = Err(HelloRefusal::UnknownClient(A));
    assert_eq!(registry.admit(A, None, "host", NOW), unknown);
    std::fs::write(scratch.path("clients.json"), old).expect("written");
    let mut registry = open(&scratch);
    let revoked = Err(HelloRefusal::Revoked(A));
    assert_eq!(registry.admit(A, Some(&second), "host", NOW), revoked);
    let fresh = registry.issue(Role::default(), NOW).expect("ticket");
    assert!(registry.admit(A, Some(&fresh), "host", NOW).is_ok());
}

#[test]
fn a_role_that_was_taken_away_does_not_come_back_with_an_older_list() {
    let (scratch, mut registry) = registry();
    let wide = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&wide), "host", NOW)
        .expect("enrolled");
    let old = std::fs::read(scratch.path("clients.json")).expect("read");
    let role = Role {
        read_only: true,
        ..Role::default()
    };
    let narrow = registry.issue(role, NOW).expect("ticket");
    registry
        .admit(A, Some(&narrow), "host", NOW)
        .expect("enrolled");
    std::fs::write(scratch.path("clients.json"), old).expect("written");
    let mut registry = open(&scratch);
    let unknown = Err(HelloRefusal::UnknownClient(A));
    assert_eq!(registry.admit(A, None, "host", NOW), unknown);
    let used = Err(HelloRefusal::TicketUsed);
    assert_eq!(registry.admit(A, Some(&wide), "host", NOW), used);
}

#[test]
fn a_list_and_a_revocation_of_a_version_without_numbers_are_taken_over() {
    let scratch = Scratch::new();
    let client = |key: KeyHash, revoked: &str| {
        format!(
            r#"{{"key": "{key}", "name": "n", "role": {{"read_only": false, "trust": true}},
                "enrolled": 5, "revoked": {revoked}, "ticket": "{key}"}}"#
        )
    };
    let (a, b) = (client(A, "7"), client(B, "null"));
    let unused = format!(
        r#"{{"hash": "{}", "role": {{"read_only": false, "trust": false}}, "made": 9, "expires": {}}}"#,
        hash(&[8; 32]),
        NOW + 1
    );
    let list = format!(r#"{{"clients": [{a}, {b}], "tickets": [{unused}]}}"#);
    std::fs::write(scratch.path("clients.json"), &list).expect("written");
    let mut registry = open(&scratch);
    assert_eq!(registry.note(), None);
    let revoked = Err(HelloRefusal::Revoked(A));
    assert_eq!(registry.admit(A, None, "host", NOW), revoked);
    let old_ticket = registry.admit(A, Some(&[8; 32]), "host", NOW);
    assert_eq!(old_ticket, revoked);
    assert!(
        registry
            .admit(B, None, "host", NOW)
            .expect("known")
            .role
            .trust
    );
    let fresh = registry.issue(Role::default(), NOW).expect("ticket");
    assert!(registry.admit(A, Some(&fresh), "host", NOW).is_ok());
    std::fs::write(scratch.path("clients.json"), &list).expect("written");
    assert!(open(&scratch).note().is_some());
}

#[test]
fn a_record_that_is_gone_is_said_and_written_anew_from_the_list() {
    let (scratch, mut registry) = registry();
    let first = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&first), "host", NOW)
        .expect("enrolled");
    let old = std::fs::read(scratch.path("clients.json")).expect("read");
    registry.revoke("host", NOW).expect("revoked");
    std::fs::remove_file(scratch.path("spent")).expect("removed");
    let mut registry = open(&scratch);
    assert_eq!(registry.note(), Some(spent::RECORD_IS_OLD));
    registry.issue(Role::default(), NOW).expect("ticket");
    std::fs::write(scratch.path("clients.json"), old).expect("written");
    let revoked = Err(HelloRefusal::Revoked(A));
    assert_eq!(open(&scratch).admit(A, None, "host", NOW), revoked);
}

#[test]
fn a_record_written_anew_says_the_same() {
    let (scratch, mut registry) = registry();
    let secrets = [A, B].map(|key| {
        let secret = registry.issue(Role::default(), NOW).expect("ticket");
        registry
            .admit(key, Some(&secret), &key.to_string(), NOW)
            .expect("enrolled");
        secret
    });
    registry.revoke(&A.to_string(), NOW).expect("revoked");
    registry.spent.0.rewrite().expect("rewritten");
    std::fs::remove_file(scratch.path("clients.json")).expect("removed");
    let again = open(&scratch);
    assert_eq!(again.spent.last(), registry.spent.last());
    assert_eq!(again.spent.revocation(A), registry.spent.revocation(A));
    assert!(again.spent.is_used(hash(&secrets[1]), A));
    assert!(!again.spent.is_used(hash(&secrets[1]), B));
}

#[test]
fn a_user_is_two_numbers_and_not_root() {
    assert_eq!("7:0".parse(), Ok(User { uid: 7, gid: 0 }));
    for bad in [
        "",
        "7",
        "7:",
        ":7",
        "a:b",
        "-1:1",
        "0:0",
        "0:5",
        "4294967295:1",
        "1:4294967295",
    ] {
        assert!(bad.parse::<User>().is_err(), "{bad}");
    }
}

#[test]
fn a_client_is_enrolled_for_another_directory_only_after_a_revocation() {
    let (_scratch, mut registry) = registry();
    let within = |path: &str| Role {
        border: Some(Directory {
            path: path.to_owned(),
            handle: Handle::new(path.as_bytes()).expect("fits"),
        }),
        ..Role::default()
    };
    let enrol = |registry: &mut Registry, role: Role| {
        let secret = registry.issue(role, NOW).expect("ticket");
        registry.admit(A, Some(&secret), "host", NOW)
    };
    let of = |client: Enrolled| client.role.confined_to();
    let one = enrol(&mut registry, within("one")).expect("enrolled");
    assert_eq!(of(one), within("one").confined_to());
    for other in [within("two"), Role::default()] {
        let refused = enrol(&mut registry, other);
        assert!(matches!(refused, Err(HelloRefusal::NoDirectory(_))));
    }
    assert!(enrol(&mut registry, within("one")).is_ok());
    registry.revoke("host", NOW).expect("revoked");
    let two = enrol(&mut registry, within("two")).expect("enrolled");
    assert_eq!(of(two), within("two").confined_to());
}

#[test]
fn a_list_whose_numbers_have_run_out_lets_no_revoked_client_in() {
    let (scratch, mut registry) = registry();
    let first = registry.issue(Role::default(), NOW).expect("ticket");
    registry
        .admit(A, Some(&first), "host", NOW)
        .expect("enrolled");
    registry.content.last = u64::MAX;
    registry.revoke("host", NOW).expect("revoked");
    let mut again = open(&scratch);
    let later = again.issue(Role::default(), NOW).expect("ticket");
    let revoked = Err(HelloRefusal::Revoked(A));
    assert_eq!(again.admit(A, Some(&later), "host", NOW), revoked);
}
