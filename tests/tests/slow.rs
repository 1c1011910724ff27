//! Writers on a slow and far link: what gets on is waited for, and nothing is torn or lost.
//!
//! What takes minutes is ignored here and run by `scripts/slow-link`.

use leasefs_tests::mounted::{Binaries, Mount, MountOptions, Slow, World, WorldOptions, within};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
const SLOW: Slow = Slow {
    rate: 250_000,
    delay: Duration::from_millis(150),
    queue: 256 * 1024,
};

/// Mounts, the first of which is 2 Mbit/s and 300 ms away.
fn world(name: &str, options: WorldOptions) -> World {
    world_over(SLOW, name, options)
}

fn world_over(link: Slow, name: &str, options: WorldOptions) -> World {
    let world = World::start(name, &options.with_relays().write_back());
    world.relays[0].slow(Some(link));
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

/// How a mount ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// As a shutdown ends it.
    Signal,
    /// By umount(8), which returns at once.
    Umount8,
    /// By `fsclient umount`.
    Asked,
    /// By `fsclient umount`, which Ctrl-C ends before it is done.
    Interrupted,
    /// By `fsclient umount --force`, with a file open.
    Forced,
}

/// Asks for it, and stops waiting as soon as it is said how it gets on.
fn unmount_impatiently(dir: &Path) {
    let mut umount = Command::new(&Binaries::get().client);
    umount.arg("umount").arg(dir).stderr(Stdio::piped());
    let mut umount = umount.spawn().expect("it runs");
    let mut said = BufReader::new(umount.stderr.take().expect("a pipe")).lines();
    let first = said.next().expect("a line").expect("text");
    assert!(first.contains("writing back"), "{first}");
    let pid = Pid::from_child(&umount);
    kill_process(pid, Signal::INT).expect("interrupted");
    let rest: Vec<String> = said.map(|line| line.expect("text")).collect();
    let status = umount.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(rest.concat().contains("in the background"), "{rest:?}");
}

/// Ends a mount with this in a file; all of it is at the server then, and nothing kept.
fn ends_with_everything_brought_in(mut world: World, end: End, len: usize, limit: Duration) {
    let written = bytes(len);
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    file.write_all(&written).expect("written");
    let open = matches!(end, End::Forced).then_some(file);
    let status = world.mount(0).status();
    let left = status["mounts"][0]["dirty"]["bytes"].as_u64();
    assert!(left.is_some_and(|left| left > MIB as u64 / 2), "{status}");
    let began = Instant::now();
    let mount = &mut world.mounts[0];
    match end {
        End::Signal => mount.daemon.signal(Signal::TERM),
        End::Umount8 => {
            let umount = Command::new("umount").arg(&mount.dir).status();
            assert!(umount.is_ok_and(|status| status.success()));
        }
        End::Interrupted => unmount_impatiently(&mount.dir),
        End::Asked => succeeds(&mount.umount(&[], limit).0),
        End::Forced => succeeds(&mount.umount(&["--force"], limit).0),
    }
    let told = began.elapsed();
    let status = mount.daemon.ends_within(limit);
    println!(
        "{end:?}: {left:?} left, told after {told:?}, ended after {:?}",
        began.elapsed()
    );
    drop(open);
    assert!(status.success(), "{status}");
    let host = world.sandbox.root().join("export/f");
    assert!(fs::read(host).expect("the file") == written, "not whole");
    let kept = mount_kept(&world.mounts[0]);
    assert_eq!(kept, 0, "kept for people to look after");
}

fn succeeds(output: &Output) {
    println!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{output:?}");
}

/// Items of its recovery folder.
fn mount_kept(mount: &Mount) -> usize {
    let list = mount.client(&["recover", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    list["items"].as_array().map_or(0, Vec::len)
}

fn ends_slowly(name: &str, end: End) {
    let world = world(name, WorldOptions::mounts(1).term("60s"));
    ends_with_everything_brought_in(world, end, 2 * MIB, LIMIT);
}

#[test]
fn who_stops_waiting_for_an_unmount_leaves_it_to_the_daemon() {
    ends_slowly("interrupted", End::Interrupted);
}

#[test]
fn a_mount_that_is_told_to_end_brings_everything_in_however_slow_its_link_is() {
    ends_slowly("slow-end", End::Signal);
}

#[test]
fn a_mount_that_is_taken_away_by_umount_8_brings_everything_in_however_slow_its_link_is() {
    ends_slowly("slow-umount8", End::Umount8);
}

#[test]
fn a_mount_that_is_unmounted_brings_everything_in_however_slow_its_link_is() {
    ends_slowly("slow-umount", End::Asked);
}

#[test]
fn a_mount_that_is_unmounted_by_force_brings_everything_in_however_slow_its_link_is() {
    ends_slowly("slow-force", End::Forced);
}

// ---- what takes minutes ----------------------------------------------------

const LONG: Duration = Duration::from_secs(400);

/// One writer alone writes so much and has it synced: no reconnect, nothing kept.
fn alone(name: &str, link: Slow, mebibytes: usize) {
    let world = world_over(link, name, WorldOptions::mounts(1));
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    let written = bytes(mebibytes * MIB);
    let began = Instant::now();
    let data = written.clone();
    let work = move || file.write_all(&data).and_then(|()| file.sync_all());
    within("writing and fsync", LONG, work).0.expect("synced");
    println!("{mebibytes} MiB in {:?}", began.elapsed());
    let host = world.sandbox.root().join("export/f");
    assert!(fs::read(host).expect("the file") == written, "not whole");
    all_went_well(world.mount(0));
}

#[test]
#[ignore = "takes minutes: scripts/slow-link"]
fn heavy_24_mib_over_2_mbit_and_300_ms_are_synced_without_a_reconnect() {
    alone("slow-24", SLOW, 24);
}

#[test]
#[ignore = "takes minutes: scripts/slow-link"]
fn heavy_96_mib_over_10_mbit_and_100_ms_are_synced_without_a_reconnect() {
    let link = Slow {
        rate: 1_250_000,
        delay: Duration::from_millis(50),
        queue: 256 * 1024,
    };
    alone("slow-96", link, 96);
}

fn ends_after_80_mb(name: &str, end: End) {
    let link = Slow {
        rate: 5_000_000,
        delay: Duration::from_millis(10),
        queue: 256 * 1024,
    };
    let world = world_over(link, name, WorldOptions::mounts(1));
    ends_with_everything_brought_in(world, end, 80_000_000, LONG);
}

#[test]
#[ignore = "takes minutes: scripts/slow-link"]
fn heavy_80_mb_over_40_mbit_are_brought_in_when_the_mount_is_told_to_end() {
    ends_after_80_mb("slow-80-end", End::Signal);
}

#[test]
#[ignore = "takes minutes: scripts/slow-link"]
fn heavy_80_mb_over_40_mbit_are_brought_in_after_umount_8() {
    ends_after_80_mb("slow-80-umount8", End::Umount8);
}

#[test]
#[ignore = "takes minutes: scripts/slow-link"]
fn heavy_80_mb_over_40_mbit_are_brought_in_when_the_mount_is_unmounted() {
    ends_after_80_mb("slow-80-umount", End::Asked);
}

#[test]
#[ignore = "takes minutes: scripts/slow-link"]
fn heavy_80_mb_over_40_mbit_are_brought_in_when_the_mount_is_unmounted_by_force() {
    ends_after_80_mb("slow-80-force", End::Forced);
}

#[test]
fn a_mount_is_made_where_another_has_just_been_unmounted_and_is_still_bringing_its_bytes_in() {
    let mut world = world("slow-again", WorldOptions::mounts(1).term("60s"));
    let written = bytes(ONE_WRITE);
    fs::write(world.mount(0).path("f"), &written).expect("written");
    // As umount(8) does: it doesn't wait for the daemon.
    unmount(&world.mount(0).dir, UnmountFlags::empty()).expect("unmounted");
    assert_eq!(
        world.mounts[0].daemon.exited(),
        None,
        "it had nothing to do"
    );
    let source = format!("{}:/", world.relays[0].address());
    let again = Mount::start(&world.sandbox, "mount0", &source, &MountOptions::default());
    let mut before = std::mem::replace(&mut world.mounts[0], again);
    let status = before.daemon.ends_within(LIMIT);
    assert!(status.success(), "{status}");
    assert!(fs::read(world.mount(0).path("f")).expect("the file") == written);
}
