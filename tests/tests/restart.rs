//! A server that is killed and started again.

use leasefs_tests::mounted::{World, WorldOptions, in_background, within};
use rustix::process::Signal;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// The term of sessions that never come back.
const TERM_OF_THE_DEAD: Duration = Duration::from_secs(6);
/// What starting the server and finding it again may add on a busy machine.
const RECONNECTING: Duration = Duration::from_secs(4);

fn world(name: &str, term: &str) -> World {
    let options = WorldOptions::mounts(2).term(term);
    World::start_on(name, &options, |export| {
        for name in ["f", "g", "h"] {
            fs::write(export.join(name), b"old").expect("a file");
        }
    })
}

fn read(path: PathBuf) -> (io::Result<Vec<u8>>, Duration) {
    within(format!("reading {}", path.display()), LIMIT, move || {
        fs::read(path)
    })
}

fn write(path: PathBuf) -> Duration {
    let what = format!("writing {}", path.display());
    let (result, took) = within(what, LIMIT, move || fs::write(path, b"new"));
    result.expect("the write works");
    took
}

/// Both mounts have cached `f`, so both hold leases and are on record.
fn both_hold_leases(world: &World) {
    for mount in &world.mounts {
        assert_eq!(read(mount.path("f")).0.expect("the file"), b"old");
    }
}

#[test]
fn callers_wait_for_a_killed_server_and_go_on_after_its_restart() {
    let mut world = world("wait", "3s");
    both_hold_leases(&world);
    world.server.daemon.kill();
    let (uncached, changed, made) = (
        world.mount(0).path("g"),
        world.mount(0).path("h"),
        world.mount(1).path("made"),
    );
    let mut reader = in_background("a read without a server", move || fs::read(uncached));
    let mut writer = in_background("a write without a server", move || {
        fs::write(changed, b"new")
    });
    let mut maker = in_background("a create without a server", move || {
        fs::write(made, b"made")
    });
    reader
        .still_runs_after(Duration::from_secs(1))
        .expect("the read waits");
    writer
        .still_runs_after(Duration::from_millis(100))
        .expect("the write waits");
    maker
        .still_runs_after(Duration::from_millis(100))
        .expect("the create waits");
    world.server.start_again();
    assert_eq!(
        reader.done_within(LIMIT).0.expect("the read goes on"),
        b"old"
    );
    writer.done_within(LIMIT).0.expect("the write goes on");
    maker.done_within(LIMIT).0.expect("the create goes on");
    assert_eq!(read(world.mount(1).path("h")).0.expect("the file"), b"new");
    assert_eq!(
        read(world.mount(0).path("made")).0.expect("the file"),
        b"made"
    );
}

#[test]
fn changes_go_on_early_when_every_session_has_reclaimed() {
    let mut world = world("reclaim", "20s");
    both_hold_leases(&world);
    world.server.daemon.kill();
    world.server.start_again();
    let took = write(world.mount(0).path("f"));
    println!("the write took {took:?}");
    assert!(
        took < Duration::from_secs(8),
        "the write took {took:?} though all have reclaimed"
    );
    assert_eq!(read(world.mount(1).path("f")).0.expect("the file"), b"new");
}

#[test]
fn changes_wait_for_the_term_of_a_session_that_does_not_reclaim_and_reads_do_not() {
    let mut world = world("no-reclaim", "6s");
    both_hold_leases(&world);
    world.mounts[1].daemon.kill();
    world.server.daemon.kill();
    let restarted = Instant::now();
    world.server.start_again();
    let path = world.mount(0).path("f");
    let mut writer = in_background("the write in grace", move || fs::write(path, b"new"));
    let (seen, took) = read(world.mount(0).path("g"));
    assert_eq!(seen.expect("the file"), b"old");
    writer
        .still_runs_after(Duration::ZERO)
        .expect("the read does not wait for the grace to end, which the write does");
    writer.done_within(LIMIT).0.expect("the write works");
    let waited = restarted.elapsed();
    println!("the read took {took:?}, the write was done {waited:?} after the restart");
    assert!(
        waited >= TERM_OF_THE_DEAD,
        "the write was done after {waited:?} only"
    );
    assert!(
        waited <= TERM_OF_THE_DEAD + RECONNECTING,
        "the write was done only after {waited:?}"
    );
}

#[test]
fn a_shorter_term_on_restart_does_not_shorten_the_wait() {
    let mut world = world("shorter", "6s");
    both_hold_leases(&world);
    world.mounts[1].daemon.kill();
    world.server.daemon.kill();
    world.server.options.term = Some("1s".to_owned());
    let restarted = Instant::now();
    world.server.start_again();
    write(world.mount(0).path("f"));
    let waited = restarted.elapsed();
    println!("the write was done {waited:?} after the restart");
    assert!(
        waited >= TERM_OF_THE_DEAD,
        "the write was done after {waited:?} only"
    );
}

#[test]
fn an_orderly_shutdown_leaves_no_grace() {
    let mut world = world("orderly", "20s");
    both_hold_leases(&world);
    world.server.daemon.signal(Signal::TERM);
    let status = world.server.daemon.ends_within(Duration::from_secs(10));
    assert!(status.success(), "the server ended with {status}");
    world.mounts[1].daemon.kill();
    world.server.start_again();
    let took = write(world.mount(0).path("f"));
    println!("the write took {took:?}");
    assert!(
        took < Duration::from_secs(5),
        "the write took {took:?} after an orderly shutdown"
    );
}

#[test]
fn open_files_survive_a_restart_also_unlinked_ones() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let mut world = world("open", "3s");
    let path = world.mount(0).path("f");
    let (file, _) = within("opening and unlinking", LIMIT, move || {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("the file");
        fs::remove_file(&path).expect("it can be unlinked");
        file
    });
    world.server.daemon.kill();
    world.server.start_again();
    within("using the unlinked file", LIMIT, move || {
        file.write_all_at(b"NEW", 0).expect("a write");
        let mut buffer = [0; 3];
        file.read_exact_at(&mut buffer, 0).expect("a read");
        assert_eq!(&buffer, b"NEW");
        assert_eq!(file.metadata().expect("its attributes").nlink(), 0);
    });
    assert!(!world.mount(1).path("f").exists());
}
