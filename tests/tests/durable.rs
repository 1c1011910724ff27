//! What was acknowledged as durable survives crashes at random moments, and no byte appears that
//! nobody wrote. `LEASEFS_DURABLE_ROUNDS` is the number of rounds of each kind.

use leasefs_tests::durable::arena::{Arena, Crash, Report};
use leasefs_tests::durable::program;
use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{StateOn, World, WorldOptions, eventually, within};
use leasefs_tests::rng::fresh_seed;
use std::env;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds of each kind, as a rule.
const ROUNDS: usize = 3;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

fn rounds() -> usize {
    number("LEASEFS_DURABLE_ROUNDS").map_or(ROUNDS, |rounds| rounds as usize)
}

fn seed() -> u64 {
    program(env!("CARGO_BIN_EXE_leasefs-durable-writer"));
    let seed = number("LEASEFS_DURABLE_SEED").unwrap_or_else(fresh_seed);
    println!("LEASEFS_DURABLE_SEED={seed}");
    seed
}

/// Runs them all, so that one failure doesn't hide the next.
fn run(arena: &mut Arena, crash: Crash, rounds: usize) {
    let (started, mut total) = (Instant::now(), Report::default());
    for round in 0..rounds {
        let report = arena.round(crash);
        for finding in &report.findings {
            println!("{crash:?} round {round}: {finding}");
        }
        total.calls += report.calls;
        total.synced += report.synced;
        total.failed += report.failed;
        total.findings.extend(report.findings);
    }
    let (
        took,
        Report {
            calls,
            synced,
            failed,
            ..
        },
    ) = (started.elapsed(), &total);
    println!(
        "{crash:?}: {rounds} rounds in {took:.1?}, {calls} calls, {synced} acknowledged as durable, {failed} failed"
    );
    assert!(
        *synced >= rounds,
        "nothing was acknowledged: nothing is shown"
    );
    assert!(
        total.findings.is_empty(),
        "{} findings, see above",
        total.findings.len()
    );
}

#[test]
fn what_was_synced_survives_sigkill_of_the_client() {
    run(
        &mut Arena::new("client", seed(), None),
        Crash::Client,
        rounds(),
    );
}

#[test]
fn what_was_written_survives_sigkill_of_the_server() {
    run(
        &mut Arena::new("server", seed(), None),
        Crash::Server,
        rounds(),
    );
}

#[test]
fn what_was_synced_survives_sigkill_of_client_and_server() {
    run(&mut Arena::new("both", seed(), None), Crash::Both, rounds());
}

#[test]
fn what_was_synced_survives_a_power_cut_of_the_storage() {
    let mut arena = Arena::new("power", seed(), Some(StateOn::AnotherDisk));
    run(&mut arena, Crash::Power, rounds());
}

#[test]
fn what_was_synced_survives_a_power_cut_that_the_servers_state_suffers_too() {
    let mut arena = Arena::new("power-state", seed(), Some(StateOn::TheStorage));
    run(&mut arena, Crash::Power, rounds());
}

fn cut_power(world: &mut World) {
    world.power_fails();
    world.power_returns();
    world.server.start_again();
}

/// One mount of a storage that can lose its power, with a durable file and a durable directory.
fn world_with_something_durable(name: &str) -> World {
    durable_world(name, &WorldOptions::mounts(1).term("1s"))
}

fn durable_world(name: &str, options: &WorldOptions) -> World {
    let world = World::start_on_storage(name, options, StateOn::AnotherDisk);
    fs::write(world.server.export.join("file"), b"old").expect("a file");
    fs::create_dir(world.server.export.join("dir")).expect("a directory");
    world.storage().sync();
    world
}

fn on_mount<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    within(what, Duration::from_secs(60), work).0
}

/// Syncs twice what may have been lost; whether the first acknowledged it.
fn sync_twice(what: &str, file: File) -> bool {
    let outcome = on_mount(what, move || Ok((file.sync_all(), file.sync_all())));
    let (first, second) = outcome.expect("both have an outcome");
    println!("the {what} after the power cut: {first:?}, then {second:?}");
    if let Err(error) = &first {
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    second.expect("a loss is told once");
    first.is_ok()
}

#[test]
fn a_sync_after_a_power_cut_acknowledges_no_bytes_that_are_lost() {
    let mut world = world_with_something_durable("truth-bytes");
    let (path, export): (PathBuf, _) = (
        world.mount(0).path("file"),
        world.server.export.join("file"),
    );
    let file = on_mount("a write", move || {
        let file = File::options().write(true).open(path)?;
        file.write_all_at(b"new", 0)?;
        Ok(file)
    });
    cut_power(&mut world);
    let acknowledged = sync_twice("sync of the file", file.expect("the write works"));
    cut_power(&mut world);
    let left = fs::read(export).expect("the file");
    assert!(
        left == b"new" || !acknowledged,
        "{left:?} is left of what was acknowledged"
    );
}

#[test]
fn what_was_written_and_not_synced_is_written_again_after_a_power_cut() {
    // Its lease must last until the server is back.
    let mut world = durable_world("again", &WorldOptions::mounts(1).term("20s"));
    let (path, export) = (
        world.mount(0).path("file"),
        world.server.export.join("file"),
    );
    let file = on_mount("two writes", move || {
        let file = File::options().write(true).open(path)?;
        file.write_all_at(b"new and", 0)?;
        file.write_all_at(b" longer", 7)?;
        Ok(file)
    });
    let file = file.expect("the writes work");
    let there = || fs::read(&export).is_ok_and(|bytes| bytes == b"new and longer");
    let await_it = |what| {
        eventually(
            what,
            Duration::from_secs(20),
            || there().then_some(()),
            String::new,
        )
    };
    await_it("the bytes to be flushed");
    cut_power(&mut world);
    await_it("the bytes to be written again");
    let synced = on_mount("sync", move || file.sync_all());
    synced.expect("nothing is lost, so nothing is to be told");
    cut_power(&mut world);
    assert!(there(), "what was acknowledged is there");
}

#[test]
fn a_mapping_shows_after_a_power_cut_what_the_server_has() {
    // Long enough for no lease to end meanwhile.
    let mut world = durable_world("truth-mapped", &WorldOptions::mounts(2).term("20s"));
    let (path, export) = (
        world.mount(0).path("file"),
        world.server.export.join("file"),
    );
    fs::write(&export, b"old page").expect("a file");
    world.storage().sync();
    let new = u64::from_ne_bytes(*b"new page");
    let mapped = on_mount("a store", move || {
        let file = File::options().read(true).write(true).open(path)?;
        let map = Mapping::new(&file, 0, 8, true)?;
        map.store(0, new);
        // Has the kernel write back; commits nothing.
        rustix::fs::syncfs(&file)?;
        Ok((file, map))
    });
    let (_file, map) = mapped.expect("the store works");
    let await_it = |what| {
        let there = || fs::read(&export).is_ok_and(|bytes| bytes == b"new page");
        let limit = Duration::from_secs(20);
        eventually(what, limit, || there().then_some(()), String::new);
    };
    await_it("the store to be written back");
    // Takes the lease on the file's attributes away: that on its data is left alone.
    let other = world.mount(1).path("file");
    let chmod = move || fs::set_permissions(other, Permissions::from_mode(0o600));
    on_mount("a chmod elsewhere", chmod).expect("a mode");
    cut_power(&mut world);
    await_it("the store to be written again");
    let shown = on_mount("a load", move || Ok(map.load(0)));
    assert_eq!(shown.expect("a page"), new);
}

#[test]
fn a_file_that_a_power_cut_has_lost_is_stale_for_those_who_have_it_open() {
    let mut world = world_with_something_durable("gone");
    let (path, export) = (
        world.mount(0).path("never synced"),
        world.server.export.join("never synced"),
    );
    // So that the storage's own commits, every few seconds, don't come in between.
    world.storage().sync();
    let file = on_mount("a create", move || {
        let mut options = File::options();
        options.read(true).write(true).create_new(true).open(path)
    });
    let file = Arc::new(file.expect("the create works"));
    cut_power(&mut world);
    assert!(!export.exists(), "the power cut has lost nothing");
    let failed = || {
        let file = Arc::clone(&file);
        on_mount("a read", move || file.read_at(&mut [0], 0)).err()
    };
    // Until the client has heard of it the file is what it was.
    let limit = Duration::from_secs(20);
    let error = eventually("reads to fail", limit, failed, String::new);
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn a_sync_after_a_power_cut_acknowledges_no_name_that_is_lost() {
    let mut world = world_with_something_durable("truth-names");
    let (path, export) = (
        world.mount(0).path("dir"),
        world.server.export.join("dir/name"),
    );
    let dir = on_mount("a create", move || {
        let dir = File::open(&path)?;
        fs::create_dir(path.join("name"))?;
        Ok(dir)
    });
    cut_power(&mut world);
    let acknowledged = sync_twice("sync of the directory", dir.expect("the create works"));
    cut_power(&mut world);
    assert!(
        export.exists() || !acknowledged,
        "the name is lost that was acknowledged"
    );
}
