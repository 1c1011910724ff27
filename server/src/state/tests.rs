//! The state of a server over several lives.

use super::*;
use crate::records::{Recorded, Rights};
use crate::seqs::SeqSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A scratch folder, removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-state-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("scratch folder");
        Self(path)
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

const A: SessionId = SessionId([1; 16]);
const KEY: KeyHash = KeyHash([2; 32]);
const OWNER: Owner = Owner {
    client: KEY,
    rights: Rights([3; 32]),
    birth: [4; 16],
};
const TERM: Duration = Duration::from_secs(10);

fn intent() -> Intent {
    let objects = vec![Handle::new(&[4; 30]).expect("fits")];
    Intent::Repeatable { objects }
}

fn open(scratch: &Scratch) -> (State, Found) {
    let place = Location::find(Some(&scratch.path("state"))).expect("place");
    State::open(place.take().expect("take"), Policy::RootSquash).expect("open")
}

/// A life that has a session.
fn begun(scratch: &Scratch) -> State {
    let (state, _) = open(scratch);
    state.begin_life(TERM, 1000).expect("begin");
    state.record_session(A, OWNER).expect("record");
    state
}

#[test]
fn the_first_life_finds_nothing_to_wait_for() {
    let scratch = Scratch::new();
    let (_, found) = open(&scratch);
    assert!(found.clean && !found.host_crashed);
    assert!(found.sessions.is_empty());
    assert_eq!(found.writes, Writes::Trusted(Vec::new()));
}

#[test]
fn after_a_crash_of_the_process_the_next_life_finds_everything() {
    let scratch = Scratch::new();
    let object = Handle::new(&[3; 40]).expect("fits");
    {
        let state = begun(&scratch);
        state
            .change_begins(A, Seq(1), Seq(0), &intent())
            .expect("journal");
        state.write_lease(A, object).expect("journal");
    }
    let (_, found) = open(&scratch);
    assert!(!found.clean && !found.host_crashed);
    assert_eq!((found.max_term, found.max_drift_ppm), (TERM, 1000));
    let expected = RecordedSession {
        session: A,
        owner: OWNER,
        leased: true,
        host_crashed: false,
        changes: vec![(Seq(1), Recorded::Intent(intent()))],
        lost: SeqSet::default(),
        over: false,
    };
    assert_eq!(found.sessions, [expected]);
    assert_eq!(found.writes, Writes::Trusted(vec![(A, object)]));
}

#[test]
fn a_journal_of_another_format_is_let_go_and_nothing_is_believed_of_the_life_that_wrote_it() {
    for clean in [true, false] {
        let scratch = Scratch::new();
        {
            let state = begun(&scratch);
            if clean {
                state.end_life().expect("end");
            }
        }
        let own = scratch.path("state/server");
        let journal = own.join(JOURNAL);
        for older in ["journal", "journal.1"] {
            std::fs::write(own.join(older), "another format").expect("written");
        }
        let (_, found) = open(&scratch);
        assert_eq!(found.host_crashed, !clean, "what was leased is waited for");
        let sessions: Vec<bool> = found.sessions.iter().map(|s| s.host_crashed).collect();
        assert_eq!(sessions, [true], "what is sent again may have run");
        assert_eq!(
            found.writes == Writes::Unknown,
            !clean,
            "nor what was written before"
        );
        let left = std::fs::read_dir(&own).expect("the folder");
        let left = left.map(|entry| entry.expect("an entry").file_name());
        let journals = left.filter(|name| name.to_string_lossy().starts_with("journal"));
        assert_eq!(
            journals.collect::<Vec<_>>(),
            [journal.file_name().expect("a name")]
        );
    }
}

#[test]
fn what_was_let_go_stays_unknown_when_letting_go_is_cut_short() {
    let scratch = Scratch::new();
    begun(&scratch).end_life().expect("end");
    let other = scratch.path("state/server/journal.1");
    std::fs::create_dir(&other).expect("what can't be removed as a file");
    let place = Location::find(Some(&scratch.path("state"))).expect("place");
    let dir = place.take().expect("take");
    State::open(dir, Policy::RootSquash).expect_err("it can't be let go");
    std::fs::remove_dir(&other).expect("removed");
    let (_, found) = open(&scratch);
    let sessions: Vec<bool> = found.sessions.iter().map(|s| s.host_crashed).collect();
    assert_eq!(sessions, [true]);
}

#[test]
fn a_shorter_term_does_not_shorten_what_is_remembered_while_leases_may_live() {
    let scratch = Scratch::new();
    let short = Duration::from_secs(2);
    drop(begun(&scratch));
    {
        let (state, found) = open(&scratch);
        assert_eq!(found.max_term, TERM);
        state.begin_life(short, 10).expect("begin");
    }
    let (state, found) = open(&scratch);
    assert_eq!((found.max_term, found.max_drift_ppm), (TERM, 1000));
    state.leases_ended(A);
    state.begin_life(short, 10).expect("begin");
    drop(state);
    assert_eq!(open(&scratch).1.max_term, short);
}

#[test]
fn after_an_orderly_end_no_lease_is_alive_even_if_the_next_life_crashes_at_once() {
    let scratch = Scratch::new();
    {
        let state = begun(&scratch);
        state
            .change_begins(A, Seq(7), Seq(0), &intent())
            .expect("journal");
        state.end_life().expect("end");
    }
    for clean in [true, false] {
        let (state, found) = open(&scratch);
        assert_eq!(found.clean, clean);
        assert!(!found.sessions[0].leased);
        let changes = [(Seq(7), Recorded::Intent(intent()))];
        assert_eq!(found.sessions[0].changes, changes);
        state.begin_life(TERM, 1000).expect("begin");
    }
}

#[test]
fn a_session_is_its_clients_own() {
    let scratch = Scratch::new();
    let (state, _) = open(&scratch);
    state.record_session(A, OWNER).expect("record");
    let other = KeyHash([9; 32]);
    let refused = state.admit(other, None, A, "other");
    assert_eq!(refused, Err(HelloRefusal::ForeignSession));
}

/// What a client enrolled with such a ticket has, under a server's policy.
fn rights(policy: Policy, role: Role) -> (IdentityPolicy, Option<Caller>) {
    let scratch = Scratch::new();
    let place = Location::find(Some(&scratch.path("state"))).expect("place");
    let (state, _) = State::open(place.take().expect("take"), policy).expect("open");
    let secret = state.issue(role).expect("ticket");
    let client = state
        .admit(KEY, Some(&secret), A, "host")
        .expect("admitted");
    (client.identity, client.acts_as)
}

#[test]
fn trust_is_given_by_a_ticket_alone_under_every_policy() {
    let plain = Role::default;
    let read_only = Role {
        read_only: true,
        ..plain()
    };
    let trust = Role {
        trust: true,
        ..plain()
    };
    let root_squash = (IdentityPolicy::RootSquash, None);
    for policy in [Policy::RootSquash, Policy::Trust] {
        assert_eq!(rights(policy, plain()), root_squash);
        assert_eq!(rights(policy, read_only.clone()), root_squash);
    }
    assert_eq!(
        rights(Policy::Squash, plain()),
        (IdentityPolicy::Squash, None)
    );
    for policy in [Policy::Squash, Policy::RootSquash, Policy::Trust] {
        assert_eq!(rights(policy, trust.clone()), (IdentityPolicy::Trust, None));
    }
}

#[test]
fn a_ticket_for_one_user_goes_before_every_policy_and_hides_who_that_is() {
    let role = Role {
        acts_as: Some(User { uid: 7, gid: 8 }),
        ..Role::default()
    };
    let user = Caller {
        uid: 7,
        gid: 8,
        groups: Vec::new(),
    };
    for policy in [Policy::Squash, Policy::RootSquash, Policy::Trust] {
        let (identity, acts_as) = rights(policy, role.clone());
        assert_eq!(acts_as, Some(user.clone()));
        let client = Client {
            key: KEY,
            name: String::new(),
            read_only: false,
            identity,
            acts_as,
            border: None,
        };
        assert_eq!(client.policy_shown(), IdentityPolicy::Squash);
        let liar = Caller {
            uid: 0,
            gid: 0,
            groups: vec![0],
        };
        assert_eq!(client.caller(liar), user);
    }
}

#[test]
fn sessions_of_a_client_revoked_while_no_server_ran_are_waited_for_and_get_nothing_more() {
    let scratch = Scratch::new();
    let (state, _) = open(&scratch);
    let secret = state.issue(Role::default()).expect("ticket");
    state
        .admit(KEY, Some(&secret), A, "host")
        .expect("admitted");
    state.begin_life(TERM, 1000).expect("life");
    state.record_session(A, OWNER).expect("record");
    let object = Handle::new(&[3; 40]).expect("fits");
    state.write_lease(A, object).expect("lease");
    state
        .change_begins(A, Seq(1), Seq(0), &intent())
        .expect("journal");
    drop(state);
    let (state, found) = open(&scratch);
    assert_eq!(found.sessions.len(), 1);
    drop(state);
    let place = Location::find(Some(&scratch.path("state"))).expect("place");
    let dir = place.take().expect("take");
    let mut registry = dir.registry().expect("registry");
    registry.revoke("host", 1).expect("revoked");
    drop(dir);
    let (state, found) = open(&scratch);
    let [session] = &found.sessions[..] else {
        panic!("{:?}", found.sessions);
    };
    assert!(session.over && session.leased);
    assert_eq!(session.changes, []);
    assert_eq!(found.writes, Writes::Trusted(vec![(A, object)]));
    // Once nobody waits for it any more nothing is left of it.
    state.leases_ended(A);
    drop(state);
    let (_, found) = open(&scratch);
    assert!(found.sessions.is_empty());
    assert_eq!(found.writes, Writes::Trusted(Vec::new()));
}
