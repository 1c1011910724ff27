//! What is told of those who hold an object: who asks first, as many as are wanted, and nothing is changed by asking.

use leasefs_lease::server::{Action, Config, Core, Event, OpId, ReadItem, ReadKind, Touch};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Handle, KeyHash, Parts, SessionId};
use std::time::Duration;

const MOST: usize = 64;
const START: BootTime = BootTime::ZERO;

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn file() -> Handle {
    Handle::new(b"f").expect("one byte")
}

fn feed(core: &mut Core, event: Event) -> Vec<Action> {
    core.handle(START, event);
    std::iter::from_fn(|| core.poll_action()).collect()
}

/// A core in which so many sessions have read the file.
fn read_by(sessions: u8) -> Core {
    let mut core = Core::new(Config::default(), START, None);
    for number in 0..sessions {
        let opened = Event::SessionOpened {
            session: session(number),
            client: KeyHash([number; 32]),
            drift_ppm: 0,
        };
        feed(&mut core, opened);
        let item = ReadItem {
            object: file(),
            parts: Parts::ATTRS | Parts::DATA,
            name: None,
        };
        let read = Event::AdmitRead {
            op: OpId(number.into()),
            session: session(number),
            kind: ReadKind::Metadata,
            items: vec![item],
        };
        feed(&mut core, read);
    }
    core
}

#[test]
fn who_asks_stands_first_and_the_rest_is_counted() {
    let core = read_by(100);
    let told = core.object(START, &file(), session(99), MOST);
    assert_eq!((told.holders.len(), told.more), (MOST, 36));
    assert_eq!(told.holders[0].session, session(99));
    let of_nobody = core.object(START, &file(), session(200), MOST);
    assert_eq!((of_nobody.holders.len(), of_nobody.more), (MOST, 36));
    assert!(
        of_nobody
            .holders
            .iter()
            .all(|h| h.write.is_empty() && !h.silent)
    );
}

#[test]
fn asking_changes_nothing() {
    let core = read_by(3);
    let before = core.clone();
    core.object(START, &file(), session(0), MOST);
    core.object(START, &Handle::NONE, session(0), MOST);
    assert!(core == before);
}

#[test]
fn a_recall_is_told_with_since_when_and_who_is_silent_for_half_a_term_is_silent() {
    let mut core = read_by(2);
    let change = Event::AdmitChange {
        op: OpId(77),
        session: session(0),
        touches: vec![Touch {
            object: file(),
            parts: Parts::DATA | Parts::ATTRS,
            names: Vec::new(),
        }],
        dropped: vec![file()],
        writeback: false,
        locked: None,
    };
    feed(&mut core, change);
    let later = START + Duration::from_secs(6);
    let told = core.object(later, &file(), session(0), MOST);
    assert_eq!(told.waiting, 1);
    let (own, other) = (&told.holders[0], &told.holders[1]);
    assert_eq!(own.recall, None, "it has dropped the file itself");
    let (since, until) = other.recall.expect("it is asked to give it back");
    assert_eq!(since, START);
    assert!(until > later && other.silent);
}
