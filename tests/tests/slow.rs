//! Writers on a slow and far link: what gets on is waited for, and nothing is torn or lost.

use leasefs_tests::mounted::{Mount, Slow, World, WorldOptions, within};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
const SLOW: Slow = Slow {
    rate: 250_000,
    delay: Duration::from_millis(150),
    queue: 256 * 1024,
};

/// Two mounts, the first of which is 2 Mbit/s and 300 ms away.
fn world(name: &str, options: WorldOptions) -> World {
    let world = World::start(name, &options.with_relays().write_back());
    world.relays[0].slow(Some(SLOW));
    world
}

/// As many as one request of the kernel has: it is buffered at once, however slow the link is.
const ONE_WRITE: usize = 1_000_000;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 997) as u8).collect()
}

/// Nothing was cut off, and nothing kept for people to look after.
fn all_went_well(mount: &Mount) {
    let status = mount.status();
    let of_mount = &status["mounts"][0];
    assert_eq!(of_mount["reconnects"], 0, "{status}");
    assert_eq!(status["kept"].as_array().map(Vec::len), Some(0), "{status}");
}

#[test]
fn an_fsync_that_gets_on_outlasts_the_timeout() {
    let options = WorldOptions::mounts(1).timeout("3s");
    let world = world("slow-fsync", options);
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    let written = bytes(ONE_WRITE);
    file.write_all(&written).expect("written");
    let began = Instant::now();
    let (synced, _) = within("fsync", LIMIT, move || file.sync_all());
    synced.expect("on the disk");
    let took = began.elapsed();
    println!("fsync took {took:?}");
    assert!(took > Duration::from_secs(3), "it shows nothing: {took:?}");
    let host = world.sandbox.root().join("export/f");
    assert!(fs::read(host).expect("the file") == written);
    all_went_well(world.mount(0));
}

#[test]
fn another_mount_waits_for_a_slow_flush_and_sees_it_whole() {
    let world = world("slow-flush", WorldOptions::mounts(2));
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    let written = bytes(ONE_WRITE);
    file.write_all(&written).expect("written");
    let theirs = world.mount(1).path("f");
    let began = Instant::now();
    let (seen, _) = within("reading elsewhere", LIMIT, move || fs::read(theirs));
    let took = began.elapsed();
    println!("seen after {took:?}");
    assert!(seen.expect("read") == written, "not whole");
    assert!(took > Duration::from_secs(3), "it shows nothing: {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    file.sync_all().expect("nothing was refused");
    all_went_well(world.mount(0));
}

#[test]
fn a_mount_that_is_told_to_end_brings_everything_in_however_slow_its_link_is() {
    let mut world = world("slow-end", WorldOptions::mounts(1).term("60s"));
    let written = bytes(4 * MIB);
    fs::write(world.mount(0).path("f"), &written).expect("written");
    let dirty = world.mount(0).status();
    let left = dirty["mounts"][0]["dirty"]["bytes"].as_u64();
    assert!(left.is_some_and(|left| left > MIB as u64), "{dirty}");
    let began = Instant::now();
    world.mounts[0].daemon.signal(Signal::TERM);
    let status = world.mounts[0].daemon.ends_within(LIMIT);
    println!("ended after {:?}", began.elapsed());
    assert!(status.success(), "{status}");
    let host = world.sandbox.root().join("export/f");
    assert!(fs::read(host).expect("the file") == written);
}
