//! A client that is stopped, killed or cut off while it holds read leases delays
//! others by one term at most, and never shows old data afterwards.

use leasefs_tests::mounted::{World, WorldOptions, in_background, within};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const TERM: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(2);
const FILES: usize = 10;
const LIMIT: Duration = Duration::from_secs(60);

fn world(name: &str) -> World {
    let options = WorldOptions::mounts(2).term("3s").with_relays();
    World::start_on(name, &options, |export| {
        for number in 0..FILES {
            fs::write(export.join(format!("f{number}")), b"old").expect("a file");
        }
    })
}

fn file(world: &World, mount: usize, number: usize) -> PathBuf {
    world.mount(mount).path(format!("f{number}"))
}

/// Mount 0 reads the files, so that it holds leases on them.
fn cache_on_mount_0(world: &World, files: usize) {
    let paths: Vec<PathBuf> = (0..files).map(|number| file(world, 0, number)).collect();
    within("reading on mount 0", LIMIT, move || {
        for path in paths {
            assert_eq!(fs::read(&path).expect("the file"), b"old");
            fs::metadata(&path).expect("the file");
        }
    });
}

/// Mount 1 writes `f0`; returns how long that took.
fn write_elsewhere(world: &World) -> Duration {
    let path = file(world, 1, 0);
    let (result, took) = within("the write on mount 1", LIMIT, move || {
        fs::write(path, b"new")
    });
    result.expect("the write works");
    took
}

/// Not much less than a term either: else mount 0 held no lease and nothing is shown.
fn assert_within_a_term(took: Duration) {
    println!("the writer waited {took:?}");
    assert!(
        took >= TERM / 4,
        "the writer waited {took:?} only: did mount 0 hold a lease?"
    );
    assert!(
        took <= TERM + SLACK,
        "the writer waited {took:?}, the term is {TERM:?}"
    );
}

#[test]
fn a_stopped_client_delays_a_writer_by_one_term_and_shows_no_old_data() {
    let mut world = world("stopped");
    cache_on_mount_0(&world, 1);
    world.mounts[0].freeze();
    assert_within_a_term(write_elsewhere(&world));
    let path = file(&world, 0, 0);
    let mut reader = in_background("the read on the stopped mount", move || fs::read(path));
    if let Err((outcome, _)) = reader.still_runs_after(Duration::from_secs(2)) {
        assert_eq!(
            outcome.expect("the file"),
            b"new",
            "a stopped client showed old data"
        );
        return;
    }
    world.mounts[0].thaw();
    let (outcome, _) = reader.done_within(LIMIT);
    assert_eq!(outcome.expect("the file"), b"new");
}

#[test]
fn a_long_held_descriptor_on_a_stopped_client_shows_no_old_data() {
    use std::os::unix::fs::FileExt;
    let mut world = world("stopped-held");
    let path = file(&world, 0, 0);
    let (held, _) = within("opening", LIMIT, move || {
        fs::File::open(path).expect("the file")
    });
    let pread = move || {
        let mut buffer = [0; 3];
        held.read_exact_at(&mut buffer, 0).map(|()| buffer)
    };
    let (first, _) = within("the first read", LIMIT, {
        let path = file(&world, 0, 0);
        move || fs::read(path)
    });
    assert_eq!(first.expect("the file"), b"old");
    world.mounts[0].freeze();
    assert_within_a_term(write_elsewhere(&world));
    let mut reader = in_background("the read on the stopped mount", pread);
    let early = reader.still_runs_after(Duration::from_secs(1));
    world.mounts[0].thaw();
    let outcome = match early {
        Err((outcome, _)) => outcome,
        Ok(()) => reader.done_within(LIMIT).0,
    };
    assert_eq!(&outcome.expect("the file"), b"new");
}

#[test]
fn a_killed_client_delays_a_writer_by_one_term() {
    let mut world = world("killed");
    cache_on_mount_0(&world, 1);
    world.mounts[0].daemon.kill();
    assert_within_a_term(write_elsewhere(&world));
}

#[test]
fn a_client_that_is_cut_off_delays_a_writer_by_one_term_and_shows_no_old_data() {
    let world = world("cut");
    cache_on_mount_0(&world, 1);
    world.relays[0].cut();
    assert_within_a_term(write_elsewhere(&world));
    let path = file(&world, 0, 0);
    let mut reader = in_background("the read on the cut-off mount", move || fs::read(path));
    let early = reader.still_runs_after(Duration::from_secs(2));
    world.relays[0].mend();
    let outcome = match early {
        Err((outcome, _)) => outcome,
        Ok(()) => reader.done_within(LIMIT).0,
    };
    assert_eq!(outcome.expect("the file"), b"new");
}

#[test]
fn ten_files_held_by_a_stopped_client_cost_one_term_in_total() {
    let mut world = world("ten");
    cache_on_mount_0(&world, FILES);
    world.mounts[0].freeze();
    let paths: Vec<PathBuf> = (0..FILES).map(|number| file(&world, 1, number)).collect();
    let (_, took) = within("ten writes on mount 1", LIMIT, move || {
        for path in paths {
            let started = Instant::now();
            fs::write(&path, b"new").expect("the write works");
            println!("{}: {:?}", path.display(), started.elapsed());
        }
    });
    assert_within_a_term(took);
    world.mounts[0].thaw();
}

#[test]
fn a_live_client_delays_a_writer_hardly_at_all() {
    let world = world("alive");
    cache_on_mount_0(&world, 1);
    let took = write_elsewhere(&world);
    assert!(
        took < TERM / 2,
        "the writer waited {took:?} for a live client"
    );
}

#[test]
fn a_client_that_was_stopped_too_long_shows_the_truth_and_caches_again_after_a_while() {
    let mut world = world("probation");
    cache_on_mount_0(&world, 1);
    world.mounts[0].freeze();
    assert_within_a_term(write_elsewhere(&world));
    world.mounts[0].thaw();
    let path = file(&world, 0, 0);
    let read = move || fs::read(&path).expect("the file");
    let (found, took) = within("the first read", LIMIT, read.clone());
    println!("the first read took {took:?}");
    assert_eq!(found, b"new");
    let deadline = Instant::now() + 10 * TERM;
    loop {
        let before = world.mount(0).settled_requests();
        let (found, _) = within("reading again", LIMIT, read.clone());
        assert_eq!(found, b"new");
        let sent = world.mount(0).settled_requests().since(&before);
        if sent.total() == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "it still asks: {sent:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
