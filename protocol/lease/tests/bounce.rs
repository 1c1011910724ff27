//! What bounces between sessions is written without exclusive leases for as long as that is cheaper.

use leasefs_lease::server::{
    Action, Bouncing, Config, Core, Event, OpId, ReadItem, ReadKind, TermZero, Touch, Wanted,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::{EXCLUSIVE_AGAIN, MAX_BOUNCING, MAX_UNFOUND, TERM_ZERO_TRIAL};
use leasefs_protocol::{Grant, Handle, KeyHash, Mode, Parts, RawName, SessionId};
use std::time::Duration;

const A: u8 = 1;
const B: u8 = 2;
const MS: Duration = Duration::from_millis(1);
const USUAL: Bouncing = Bouncing {
    waits: 8,
    window: Duration::from_secs(2),
    period: Duration::from_secs(4),
};

/// What a write changes.
fn content() -> Parts {
    Parts::ATTRS | Parts::DATA
}

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn dir() -> Handle {
    Handle::new(b"directory").expect("short enough")
}

fn file(number: usize) -> Handle {
    Handle::new(&number.to_be_bytes()).expect("short enough")
}

/// Sessions that are renewed all the time and approve at once what they are asked for.
struct World {
    core: Core,
    now: BootTime,
    ops: u64,
    recalls: usize,
}

impl World {
    fn new(bouncing: Bouncing) -> Self {
        let config = Config {
            bouncing,
            ..Config::default()
        };
        let mut world = Self {
            core: Core::new(config, BootTime::ZERO, None),
            now: BootTime::ZERO,
            ops: 0,
            recalls: 0,
        };
        for number in [A, B] {
            world.feed(Event::SessionOpened {
                session: session(number),
                client: KeyHash([number; 32]),
                drift_ppm: 0,
            });
        }
        world
    }

    fn passes(&mut self, time: Duration) {
        let step = time.min(Duration::from_secs(1));
        if step < time {
            self.passes(time - step);
        }
        self.now = self.now + step;
        for number in [A, B] {
            assert!(self.core.renew(self.now, session(number)), "it ends");
        }
        self.feed(Event::Tick);
    }

    /// What is granted by it.
    fn feed(&mut self, event: Event) -> Vec<Grant> {
        self.core.handle(self.now, event);
        let mut all = Vec::new();
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Recall { session, recall } => {
                    self.recalls += 1;
                    let recall = recall.id;
                    let approval = Event::Approve { session, recall };
                    self.core.handle(self.now, approval);
                }
                Action::Admitted { grants, .. } | Action::Finished { grants, .. } => {
                    all.extend(grants);
                }
                _ => {}
            }
        }
        self.core.check_invariants().expect("they hold");
        all
    }

    fn op(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops)
    }

    fn asks(&mut self, who: u8, kind: ReadKind, object: Handle, parts: Parts) -> Vec<Grant> {
        let name = None;
        let item = ReadItem {
            object,
            parts,
            name,
        };
        self.asks_for(who, kind, vec![item])
    }

    fn asks_for(&mut self, who: u8, kind: ReadKind, items: Vec<ReadItem>) -> Vec<Grant> {
        let (op, session) = (self.op(), session(who));
        self.feed(Event::AdmitRead {
            op,
            session,
            kind,
            items,
        })
    }

    /// Opens it and reads a page; how many recalls that took.
    fn reads(&mut self, who: u8, object: Handle) -> usize {
        let before = self.recalls;
        let opened = self.asks(who, ReadKind::Metadata, object, Parts::ATTRS);
        let filled = self.asks(who, ReadKind::FillPages, object, Parts::DATA);
        let leased = opened.iter().chain(&filled).map(|grant| grant.parts);
        assert_eq!(leased.fold(Parts::NONE, |all, p| all | p), content());
        self.recalls - before
    }

    /// Whether that makes its data the writer's own, so that it buffers the next.
    fn writes(&mut self, who: u8, object: Handle) -> bool {
        let touch = Touch {
            object,
            parts: content(),
            names: Vec::new(),
        };
        self.changes(who, touch, object)
    }

    /// Whether a change gives its sender what it asks for exclusively.
    fn changes(&mut self, who: u8, touch: Touch, wanted: Handle) -> bool {
        let (op, session) = (self.op(), session(who));
        self.feed(Event::AdmitChange {
            op,
            session,
            dropped: vec![touch.object],
            touches: vec![touch],
            writeback: false,
            locked: None,
        });
        let wants = vec![Wanted::write(wanted, content())];
        let grants = self.feed(Event::FinishChange { op, wants });
        assert_eq!(grants.len(), 1, "a lease comes, whatever its mode");
        grants.iter().any(|grant| grant.mode == Mode::Write)
    }

    /// One writes and another reads it, so many times. How often the writer had it to itself.
    fn bounces(&mut self, object: Handle, turns: usize) -> usize {
        let turn = |_: &usize| {
            let exclusive = self.writes(A, object);
            self.reads(B, object);
            self.passes(10 * MS);
            exclusive
        };
        (0..turns).filter(turn).count()
    }

    /// Looks a name up; what it denotes, if anything.
    fn looks_up(&mut self, who: u8, name: &str, found: Option<Handle>) {
        self.looks_up_in(who, dir(), name, found);
    }

    fn looks_up_in(&mut self, who: u8, dir: Handle, name: &str, found: Option<Handle>) {
        let mut items = vec![ReadItem {
            object: dir,
            parts: Parts::NAMES,
            name: Some(RawName(name.into())),
        }];
        items.extend(found.map(|object| ReadItem {
            object,
            parts: Parts::ATTRS,
            name: None,
        }));
        self.asks_for(who, ReadKind::Metadata, items);
    }

    /// Whether the maker has the new file to itself.
    fn makes(&mut self, who: u8, name: &str, object: Handle) -> bool {
        self.makes_in(who, dir(), name, object)
    }

    fn makes_in(&mut self, who: u8, dir: Handle, name: &str, object: Handle) -> bool {
        let touch = Touch {
            object: dir,
            parts: Parts::ATTRS | Parts::LISTING,
            names: vec![RawName(name.into())],
        };
        self.changes(who, touch, object)
    }

    fn zero(&self) -> Option<TermZero> {
        self.core.term_zero().pop()
    }
}

#[test]
fn an_object_that_bounces_is_written_without_exclusive_leases() {
    let mut world = World::new(USUAL);
    assert_eq!(world.bounces(file(1), 100), 4, "each brings two waits");
    assert!(!world.writes(A, file(1)));
    assert_eq!(world.reads(B, file(1)), 0, "nothing is to be recalled");
    let zero = world.zero().expect("it bounces");
    assert_eq!(zero.object, file(1));
    assert!(zero.since < world.now && world.now < zero.until);
    assert_eq!((zero.hits, zero.recalls), (0, 2 * 97));
}

#[test]
fn what_is_changed_now_and_then_is_not_denied_anybody() {
    let mut world = World::new(USUAL);
    for _ in 0..50 {
        assert!(world.writes(A, file(1)));
        assert_eq!(world.reads(B, file(1)), 2);
        world.passes(Duration::from_secs(1));
    }
    assert_eq!(world.zero(), None);
}

#[test]
fn reads_that_wait_together_are_one() {
    let mut world = World::new(Bouncing { waits: 2, ..USUAL });
    assert!(world.writes(A, file(1)));
    let item = ReadItem {
        object: file(1),
        parts: Parts::ATTRS,
        name: None,
    };
    for _ in 0..9 {
        let (op, session, kind) = (world.op(), session(B), ReadKind::Metadata);
        let items = vec![item.clone()];
        let read = Event::AdmitRead {
            op,
            session,
            kind,
            items,
        };
        world.core.handle(world.now, read);
    }
    assert_eq!(world.zero(), None);
}

#[test]
fn what_one_session_alone_uses_never_bounces() {
    let mut world = World::new(USUAL);
    for _ in 0..1000 {
        assert!(world.writes(A, file(1)));
        world.reads(A, file(1));
    }
    assert_eq!((world.recalls, world.zero()), (0, None));
}

#[test]
fn a_writer_that_writes_again_and_again_gets_its_lease_back() {
    let mut world = World::new(USUAL);
    world.bounces(file(1), 5);
    world.passes(MS);
    let denied = (0..100).take_while(|_| !world.writes(A, file(1))).count();
    assert!(
        (1..=TERM_ZERO_TRIAL as usize + 4).contains(&denied),
        "{denied}"
    );
    assert_eq!(world.zero(), None);
    assert_eq!(world.bounces(file(1), 50), 50, "it isn't tried again soon");
}

#[test]
fn term_zero_is_tried_again_later_and_later() {
    let mut world = World::new(USUAL);
    let mut denied_again = |after: Duration| {
        world.bounces(file(1), 10);
        let tried = world.zero().is_some();
        while world.zero().is_some() {
            world.writes(A, file(1));
        }
        world.passes(after);
        tried
    };
    assert!(denied_again(EXCLUSIVE_AGAIN));
    assert!(denied_again(EXCLUSIVE_AGAIN));
    assert!(!denied_again(EXCLUSIVE_AGAIN), "twice as long by now");
    assert!(denied_again(Duration::ZERO));
}

#[test]
fn it_goes_on_while_it_pays_and_ends_when_nothing_bounces_any_more() {
    let mut world = World::new(USUAL);
    world.bounces(file(1), 1000);
    let zero = world.zero().expect("still");
    assert!(world.now.since(zero.since) > 2 * USUAL.period);
    world.passes(USUAL.period);
    world.passes(USUAL.period);
    assert_eq!(world.zero(), None);
    assert!(world.writes(A, file(1)));
}

#[test]
fn who_has_it_exclusively_keeps_it_until_somebody_asks() {
    let mut world = World::new(Bouncing { waits: 1, ..USUAL });
    assert!(world.writes(A, file(1)));
    assert_eq!(
        world
            .asks(B, ReadKind::Metadata, file(1), Parts::ATTRS)
            .len(),
        1
    );
    assert!(world.zero().is_some());
    assert!(world.core.holds_write(session(A), &file(1)));
    assert_eq!(world.reads(B, file(1)), 1);
    assert!(!world.core.holds_write(session(A), &file(1)));
}

#[test]
fn a_fill_for_store_is_exclusive_also_at_term_zero() {
    let mut world = World::new(USUAL);
    world.bounces(file(1), 10);
    let grants = world.asks(A, ReadKind::FillForStore, file(1), Parts::DATA);
    assert!(grants.iter().any(|grant| grant.mode == Mode::Write));
    assert_eq!(world.reads(B, file(1)), 1, "and recalled as ever");
}

#[test]
fn what_is_made_where_another_looks_is_shown_without_a_recall() {
    let mut world = World::new(USUAL);
    for number in 0..100 {
        let name = format!("f{number}");
        world.looks_up(B, &name, None);
        assert!(!world.makes(A, &name, file(number)));
        let before = world.recalls;
        world.looks_up(B, &name, Some(file(number)));
        assert_eq!(world.recalls, before);
        world.passes(100 * MS);
    }
    assert!(world.writes(A, file(99)), "who writes it has it to himself");
    let zero = world.zero().expect("the directory");
    assert_eq!((zero.object, zero.hits), (dir(), 0));
    assert!(zero.recalls > 10, "{zero:?}");
}

#[test]
fn what_is_made_where_nobody_else_looks_is_its_makers() {
    let mut world = World::new(USUAL);
    for number in 0..100 {
        let name = format!("f{number}");
        world.looks_up(A, &name, None);
        assert!(world.makes(A, &name, file(number)));
    }
    assert_eq!(world.zero(), None);
}

#[test]
fn two_who_make_files_in_one_directory_and_read_none_of_the_others_soon_have_them_to_themselves() {
    let mut world = World::new(USUAL);
    let mut denied = 0;
    for number in 0..200 {
        let (who, name) = ([A, B][number % 2], format!("f{number}"));
        world.looks_up(who, &name, None);
        denied += usize::from(!world.makes(who, &name, file(number)));
    }
    let trial = TERM_ZERO_TRIAL as usize;
    assert!((1..=trial + 4).contains(&denied), "{denied}");
}

#[test]
fn a_tree_that_another_has_looked_at_is_filled_with_few_files_denied() {
    let mut world = World::new(USUAL);
    let mut denied = 0;
    for number in 0..1000 {
        let dir = file(10_000 + number);
        world.looks_up_in(B, dir, "f", None);
        denied += usize::from(!world.makes_in(A, dir, "f", file(number)));
    }
    assert_eq!(denied, MAX_UNFOUND as usize);
    world.passes(EXCLUSIVE_AGAIN);
    world.looks_up(B, "g", None);
    assert!(!world.makes(A, "g", file(1001)), "tried again");
}

#[test]
fn names_that_were_there_before_are_not_what_is_new() {
    let mut world = World::new(USUAL);
    let mut denied = 0;
    for number in 0..100 {
        world.looks_up(B, "old", Some(file(5000)));
        denied += usize::from(!world.makes(A, &format!("f{number}"), file(number)));
    }
    let trial = TERM_ZERO_TRIAL as usize;
    assert!((1..=trial + 4).contains(&denied), "{denied}");
}

#[test]
fn the_table_is_bounded() {
    let mut world = World::new(Bouncing { waits: 1, ..USUAL });
    for number in 0..=MAX_BOUNCING {
        world.writes(A, file(number));
        world.reads(B, file(number));
    }
    assert_eq!(world.core.term_zero().len(), MAX_BOUNCING);
    assert!(world.writes(A, file(0)), "the oldest has left");
    assert!(!world.writes(A, file(MAX_BOUNCING)));
}

#[test]
fn without_a_limit_nothing_is_ever_denied() {
    let mut world = World::new(Bouncing { waits: 0, ..USUAL });
    assert_eq!(world.bounces(file(1), 100), 100);
}
