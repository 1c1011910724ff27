//! What a local file system does.

use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{World, WorldOptions};
use leasefs_tests::rng::Rng;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, SeekFrom, renameat_with};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

const PAGE: usize = 4096;
const ROUNDS: usize = 300;

fn worlds(name: &str) -> [World; 2] {
    let (back, through) = (WorldOptions::mounts(2), WorldOptions::mounts(2));
    let through = through.writes(leasefs_tests::mounted::Writes::Through);
    [
        World::start(&format!("{name}-back"), &back.write_back()),
        World::start(&format!("{name}-through"), &through),
    ]
}

/// The byte at a place of the log.
fn byte(at: usize) -> u8 {
    (at / 7 % 251) as u8 + 1
}

fn record(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

#[test]
fn a_map_of_a_log_that_grows_on_another_mount_is_read_on_from_its_last_page() {
    for world in worlds("growing") {
        let (mut rng, mut size, mut read) = (Rng::new(13), 0, 0);
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(world.mount(0).path("log"))
            .expect("a log");
        log.write_all(&record(0, 100)).expect("a record");
        size += 100;
        let file = File::open(world.mount(1).path("log")).expect("the log");
        let map = Mapping::new(&file, 0, ROUNDS * PAGE * 9, false).expect("a mapping");
        for round in 0..ROUNDS {
            for _ in 0..rng.between(1, 3) {
                let len = rng.between(1, 3 * PAGE);
                log.write_all(&record(size, len)).expect("a record");
                size += len;
            }
            let mut seen = vec![0; size - read];
            let copied = map.try_copy_to(read, &mut seen);
            assert!(
                copied.is_ok(),
                "round {round}: {copied:?} at {read} of {size}"
            );
            assert_eq!(seen, record(read, size - read), "round {round}");
            read = size;
        }
    }
}

#[test]
fn data_and_holes_before_the_beginning_are_none() {
    let world = World::start("seek", &WorldOptions::mounts(1));
    let path = world.mount(0).path("f");
    fs::write(&path, b"x").expect("a file");
    let file = File::open(&path).expect("the file");
    for from in [SeekFrom::Data(u64::MAX), SeekFrom::Hole(u64::MAX)] {
        let refused = rustix::fs::seek(&file, from);
        assert_eq!(refused, Err(rustix::io::Errno::NXIO), "{from:?}");
    }
}

#[test]
fn a_rename_can_leave_a_whiteout_as_overlayfs_wants_it() {
    for world in worlds("whiteout") {
        let here = |name: &str| world.mount(0).path(name);
        fs::write(here("a"), "moved").expect("a file");
        fs::write(here("b"), "replaced").expect("a file");
        assert_eq!(
            fs::read(world.mount(1).path("a")).expect("the file"),
            b"moved"
        );
        let flags = RenameFlags::WHITEOUT;
        renameat_with(CWD, here("a"), CWD, here("b"), flags).expect("renamed");
        for mount in [0, 1] {
            let path = |name: &str| world.mount(mount).path(name);
            let left = fs::symlink_metadata(path("a")).expect("a whiteout");
            assert!(left.file_type().is_char_device() && left.rdev() == 0);
            assert_eq!(fs::read(path("b")).expect("the file"), b"moved");
        }
    }
}

#[test]
fn who_is_in_a_directory_that_another_mount_moves_goes_on_there() {
    let world = World::start("moved", &WorldOptions::mounts(2));
    let (here, there) = (world.mount(0), world.mount(1));
    for name in ["left", "right", "left/d", "left/d/e"] {
        fs::create_dir(here.path(name)).expect("a directory");
    }
    let inside = File::open(here.path("left/d")).expect("the directory");
    let before = inside.metadata().expect("stat").ino();
    fs::rename(there.path("left/d"), there.path("right/d")).expect("a rename");
    assert!(fs::symlink_metadata(here.path("left/d")).is_err());
    let after = fs::symlink_metadata(here.path("right/d")).expect("stat");
    assert_eq!(after.ino(), before);
    assert_eq!(inside.metadata().expect("fstat").ino(), before);
    let flags = OFlags::CREATE | OFlags::WRONLY;
    rustix::fs::openat(&inside, "new", flags, Mode::RUSR).expect("a file");
    assert!(fs::symlink_metadata(there.path("right/d/new")).is_ok());
    assert!(fs::symlink_metadata(here.path("right/d/new")).is_ok());
    // Names below it are seen in both, whoever changes them.
    fs::remove_dir(there.path("right/d/e")).expect("rmdir");
    let gone = rustix::fs::statat(&inside, "e", rustix::fs::AtFlags::empty());
    assert_eq!(gone.map(drop), Err(rustix::io::Errno::NOENT));
    let seen = rustix::fs::openat(CWD, here.path("right/d/e"), OFlags::PATH, Mode::empty());
    assert_eq!(seen.map(drop), Err(rustix::io::Errno::NOENT));
}
