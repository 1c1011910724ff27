//! The grace of a server that was killed and started again, with clients that buffer writes.

use leasefs_tests::mounted::{Background, World, WorldOptions, in_background, within};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// What the first change may take when every client is back.
const ALL_BACK: Duration = Duration::from_secs(2);
/// The term of a client that never comes back.
const TERM_OF_THE_DEAD: Duration = Duration::from_secs(8);
/// What starting the server and finding it again may add on a busy machine.
const RECONNECTING: Duration = Duration::from_secs(4);

const IDLE: usize = 0;
const DIRTY: usize = 1;
const DEAD: usize = 2;

fn world(name: &str, mounts: usize, term: &str) -> World {
    let options = WorldOptions::mounts(mounts).term(term).write_back();
    let world = World::start_on(name, &options, |export| {
        for name in ["cached", "other", "unread"] {
            fs::write(export.join(name), b"old").expect("a file");
        }
    });
    for mount in &world.mounts {
        assert_eq!(read(mount.path("cached")).0.expect("the file"), b"old");
    }
    world
}

fn read(path: PathBuf) -> (io::Result<Vec<u8>>, Duration) {
    let what = format!("reading {}", path.display());
    within(what, LIMIT, move || fs::read(path))
}

/// Writes to a file without `fsync`: the bytes stay with the client for a while.
fn buffer(path: PathBuf, bytes: &'static [u8]) -> File {
    let what = format!("writing {}", path.display());
    let (file, _) = within(what, LIMIT, move || {
        let mut file = File::create(path)?;
        file.write_all(bytes).map(|()| file)
    });
    file.expect("written")
}

/// Overwrites a file on the server's disk.
fn change(path: PathBuf) -> Background<io::Result<()>> {
    in_background(format!("changing {}", path.display()), move || {
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.write_all(b"new").and_then(|()| file.sync_all())
    })
}

/// How long the first change of a file that all have cached takes a mount, from when the server
/// serves again, with one client idle and one with dirty data.
fn first_change_by(mount: usize, name: &str) -> Duration {
    let mut world = world(name, 2, "20s");
    let dirty = buffer(world.mount(DIRTY).path("dirty"), b"buffered");
    world.server.daemon.kill();
    world.server.start_again();
    let mut first = change(world.mount(mount).path("cached"));
    let (changed, took) = first.done_within(LIMIT);
    changed.expect("the change works");
    println!("the first change took {took:?}");
    for mount in [IDLE, DIRTY] {
        let seen = |name| read(world.mount(mount).path(name)).0.expect("the file");
        assert_eq!(seen("cached"), b"new");
        assert_eq!(seen("dirty"), b"buffered");
    }
    drop(dirty);
    took
}

#[test]
fn the_first_write_of_an_idle_client_does_not_wait_when_all_are_back() {
    let took = first_change_by(IDLE, "idle-first");
    assert!(took < ALL_BACK, "it took {took:?}");
}

#[test]
fn the_first_write_of_a_client_with_dirty_data_does_not_wait_when_all_are_back() {
    let took = first_change_by(DIRTY, "dirty-first");
    assert!(took < ALL_BACK, "it took {took:?}");
}

/// Asked of a server in grace, and to wait for its end.
struct Waiting {
    /// From the restart until it was asked.
    asked: Duration,
    /// Of a file whose Write lease the dead client held.
    read: Background<Vec<u8>>,
    changes: [Background<io::Result<()>>; 2],
}

impl Waiting {
    fn of(world: &World, restarted: Instant) -> Self {
        let hidden = world.mount(IDLE).path("of-the-dead");
        Self {
            asked: restarted.elapsed(),
            read: in_background("a read of what may be newer", move || {
                fs::read(hidden).expect("the file")
            }),
            changes: [IDLE, DIRTY].map(|mount| change(world.mount(mount).path("other"))),
        }
    }

    fn all_still_wait(&mut self) {
        let read = self.read.still_runs_after(Duration::ZERO);
        assert_eq!(read, Ok(()), "the read has not waited");
        for change in &mut self.changes {
            let went_on = change.still_runs_after(Duration::ZERO).is_err();
            assert!(!went_on, "the change has not waited");
        }
    }

    /// How long after the restart each went on.
    fn ends(mut self) -> [Duration; 3] {
        let (seen, read) = self.read.done_within(LIMIT);
        assert_eq!(seen, b"synced", "what the dead client had not flushed");
        let changes = self.changes.each_mut().map(|change| {
            let (changed, took) = change.done_within(LIMIT);
            changed.expect("the change works");
            took
        });
        [read, changes[0], changes[1]].map(|took| self.asked + took)
    }
}

#[test]
fn with_a_client_dead_writes_and_reads_of_its_write_leases_wait_for_its_term_and_others_do_not() {
    let mut world = world("one-dead", 3, "8s");
    let mut lost = buffer(world.mount(DEAD).path("of-the-dead"), b"synced");
    lost.sync_all().expect("on the disk");
    lost.write_all(b" and lost").expect("written");
    let dirty = buffer(world.mount(DIRTY).path("dirty"), b"buffered");
    world.server.daemon.kill();
    world.kill_client(DEAD);
    let restarted = Instant::now();
    world.server.start_again();

    let mut waiting = Waiting::of(&world, restarted);
    for mount in [IDLE, DIRTY] {
        let (seen, took) = read(world.mount(mount).path("unread"));
        assert_eq!(seen.expect("the file"), b"old");
        println!("mount {mount} read what nobody may have changed within {took:?}");
        waiting.all_still_wait();
    }
    let ends = waiting.ends();
    println!("what had to wait went on {ends:?} after the restart");
    assert!(
        ends.iter().all(|end| *end >= TERM_OF_THE_DEAD),
        "something went on {ends:?} after the restart"
    );
    assert!(
        ends.iter()
            .all(|end| *end <= TERM_OF_THE_DEAD + RECONNECTING),
        "something went on {ends:?} after the restart only"
    );
    let (seen, _) = read(world.mount(IDLE).path("dirty"));
    assert_eq!(seen.expect("the file"), b"buffered");
    drop((lost, dirty));
}

#[test]
fn what_a_reader_waits_for_is_flushed_in_grace_though_a_client_is_dead_and_the_term_is_shorter() {
    let mut world = world("flushed-in-grace", 3, "8s");
    let mut dirty = buffer(world.mount(DIRTY).path("dirty"), b"buffered");
    world.server.daemon.kill();
    world.kill_client(DEAD);
    world.server.options.term = Some("2s".to_owned());
    let restarted = Instant::now();
    world.server.start_again();
    let (seen, _) = read(world.mount(IDLE).path("dirty"));
    let after = restarted.elapsed();
    println!("what was buffered was read {after:?} after the restart");
    assert_eq!(seen.expect("the file"), b"buffered");
    assert!(
        after < TERM_OF_THE_DEAD,
        "it was flushed {after:?} after the restart only"
    );
    dirty.write_all(b" still").expect("written");
    dirty.sync_all().expect("on the disk");
}
