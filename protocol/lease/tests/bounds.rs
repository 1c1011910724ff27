//! A client that takes all it can, under as many sessions as it may have.

use leasefs_lease::server::{Action, Config, Core, Event, OpId, ReadItem, ReadKind, Touch};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::MAX_SESSIONS_PER_CLIENT;
use leasefs_protocol::{Handle, KeyHash, Parts, RawName, SessionId};

const SESSIONS: u8 = MAX_SESSIONS_PER_CLIENT as u8;
const LEASES: usize = 1_000;
const RECALLS: usize = 100;

struct Attack {
    core: Core,
    ops: u64,
}

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn file(number: u64) -> Handle {
    Handle::new(&number.to_be_bytes()).expect("short enough")
}

impl Attack {
    fn new() -> Self {
        let config = Config {
            max_leases_per_client: LEASES,
            max_recalls_per_client: RECALLS,
            ..Config::default()
        };
        let core = Core::new(config, BootTime::ZERO, None);
        let mut attack = Self { core, ops: 0 };
        for number in 0..SESSIONS {
            attack.feed(Event::SessionOpened {
                session: session(number),
                client: KeyHash::default(),
                drift_ppm: 0,
            });
        }
        attack
    }

    /// How many leases that gives.
    fn feed(&mut self, event: Event) -> usize {
        self.core.handle(BootTime::ZERO, event);
        let actions = std::iter::from_fn(|| self.core.poll_action());
        let granted = actions.map(|action| match action {
            Action::Admitted { grants, .. } => grants.len(),
            _ => 0,
        });
        granted.sum()
    }

    fn op(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops)
    }

    fn reads(&mut self, number: u8, kind: ReadKind, object: Handle, parts: Parts) -> usize {
        let item = ReadItem {
            object,
            parts,
            name: None,
        };
        let op = self.op();
        self.feed(Event::AdmitRead {
            op,
            session: session(number),
            kind,
            items: vec![item],
        })
    }

    fn recalls(&self) -> usize {
        self.core.sessions().iter().map(|s| s.recalls).sum()
    }
}

#[test]
fn sixty_four_sessions_that_give_nothing_back_hold_what_one_may() {
    for kind in [
        ReadKind::Metadata,
        ReadKind::FillPages,
        ReadKind::FillForStore,
    ] {
        let mut attack = Attack::new();
        for n in 0..4 * LEASES as u64 {
            let number = (n % u64::from(SESSIONS)) as u8;
            attack.reads(number, kind, file(n), Parts::DATA);
        }
        let held = attack.core.lease_count();
        assert!(held > LEASES && held <= LEASES + LEASES / 8 + 1, "{held}");
        assert!(attack.recalls() <= RECALLS, "{kind:?}");
        attack.core.check_invariants().expect("counted");
    }
}

#[test]
fn another_mount_of_a_client_that_has_all_it_may_takes_the_place_of_the_oldest() {
    let mut attack = Attack::new();
    for n in 0..LEASES as u64 {
        attack.reads(1, ReadKind::Metadata, file(n), Parts::ATTRS);
    }
    let other = file(u64::MAX);
    let granted = attack.reads(2, ReadKind::Metadata, other, Parts::ATTRS);
    assert_eq!(granted, 1);
    let owed = |number| attack.core.open_recalls(session(number)).len();
    assert_eq!((owed(1), owed(2)), (1, 0));
}

#[test]
fn names_that_are_changed_and_given_up_again_and_again_are_recalled_within_bounds() {
    let mut attack = Attack::new();
    let dir = file(0);
    for number in 1..SESSIONS {
        attack.reads(number, ReadKind::Metadata, dir, Parts::NAMES);
    }
    for n in 0..20 * RECALLS {
        let op = attack.op();
        let name = RawName(n.to_string().into_bytes());
        let touch = Touch {
            object: dir,
            parts: Parts::NONE,
            names: vec![name],
        };
        attack.feed(Event::AdmitChange {
            op,
            session: session(0),
            touches: vec![touch],
            dropped: vec![dir],
            writeback: false,
            locked: None,
        });
        attack.feed(Event::Withdraw { op });
        let again = 1 + (n % 60) as u8;
        attack.reads(again, ReadKind::Metadata, dir, Parts::NAMES);
        let open = attack.recalls();
        assert!(open <= RECALLS + usize::from(SESSIONS), "{open}");
    }
    attack.core.check_invariants().expect("counted");
}
