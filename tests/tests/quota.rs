//! A quota of the storage host that is used up: its server refuses what goes beyond.

use leasefs_tests::mounted::{World, WorldOptions, Writes, eventually};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// What may be written.
const QUOTA: usize = 4 * MIB;
const SOON: Duration = Duration::from_secs(20);

fn world(name: &str, writes: Writes) -> World {
    let mut options = WorldOptions::mounts(1).writes(writes);
    let fault = ("LEASEFS_TEST_FAULT".to_owned(), format!("quota:{QUOTA}"));
    options.server.env.push(fault);
    World::start(name, &options)
}

fn is_quota(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EDQUOT)
}

/// Twice as much as the quota allows, until a write is refused.
fn write_too_much(file: &mut File) -> io::Result<()> {
    (0..2 * QUOTA / MIB).try_for_each(|_| file.write_all(&[1; MIB]))
}

#[test]
fn a_used_up_quota_reaches_the_write_that_meets_it() {
    let world = world("quota", Writes::Through);
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    let error = write_too_much(&mut file).expect_err("the quota is used up");
    assert!(is_quota(&error), "{error}");
    file.sync_all().expect("what was taken is on the disk");
    let host = fs::read(world.server.export.join("f")).expect("the host's file");
    assert!(host == vec![1; QUOTA], "{} bytes are there", host.len());
}

#[test]
fn with_write_back_a_used_up_quota_reaches_write_or_fsync_once_and_the_bytes_are_kept() {
    let world = world("quota-wb", Writes::Back);
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    let wrote = write_too_much(&mut file);
    let synced = file.sync_all();
    let told = wrote.and(synced).expect_err("the quota is used up");
    assert!(is_quota(&told), "{told}");
    file.sync_all().expect("it is told once");
    let kept = world.mount(0).client(&["recover", "list"]);
    assert!(kept.contains("f\n"), "{kept}");
}

#[test]
fn with_write_back_a_used_up_quota_reaches_every_descriptor_that_wrote() {
    let world = world("quota-fds", Writes::Back);
    let files = [0, 1].map(|_| {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true);
        file.open(world.mount(0).path("f")).expect("a file")
    });
    for (number, file) in (0..).zip(&files) {
        let wrote = file.write_all_at(&[1; 3 * MIB], 3 * number * MIB as u64);
        if let Err(error) = wrote {
            assert!(is_quota(&error), "{error}");
        }
    }
    let errors = files.map(|file| file.sync_all().expect_err("the quota is used up"));
    assert!(errors.iter().all(is_quota), "{errors:?}");
}

/// Leaves so much of the quota, and a file `draft` of twice as much that nobody has open any more, and of which nobody was told
/// that it can't be brought in. `waits` until that has been tried.
fn draft(world: &World, leaves: usize, waits: bool) {
    let mount = world.mount(0);
    let mut filler = File::create(mount.path("filler")).expect("a file");
    filler.write_all(&vec![1; QUOTA - leaves]).expect("room");
    filler.sync_all().expect("room");
    fs::write(mount.path("draft"), vec![2; 2 * leaves]).expect("it is buffered");
    let kept = || {
        let listed = mount.client(&["recover", "list"]);
        listed.contains("draft\n").then_some(())
    };
    if waits {
        eventually("the bytes to be kept", SOON, kept, String::new);
    }
}

#[test]
fn with_write_back_who_syncs_a_file_is_told_of_what_was_refused_of_it_whoever_wrote_it() {
    for (name, waits) in [("quota-sync", false), ("quota-late-sync", true)] {
        let world = world(name, Writes::Back);
        draft(&world, 64 * 1024, waits);
        let file = File::open(world.mount(0).path("draft")).expect("a file");
        let error = file.sync_all().expect_err("some of it was refused");
        assert!(is_quota(&error), "{error}");
        file.sync_all().expect("it is told once");
    }
}

#[test]
fn with_write_back_a_file_of_which_something_was_refused_takes_no_other_name_before_that_is_told() {
    for (name, waits) in [("quota-rename", false), ("quota-late-rename", true)] {
        let world = world(name, Writes::Back);
        let [current, linked, drafted] =
            ["current", "linked", "draft"].map(|name| world.mount(0).path(name));
        fs::write(&current, "good").expect("room");
        File::open(&current)
            .expect("there")
            .sync_all()
            .expect("room");
        draft(&world, 64 * 1024, waits);
        if waits {
            // What the kernel forgets meanwhile isn't forgotten.
            fs::write("/proc/sys/vm/drop_caches", "2").expect("dropped");
        }
        let error = fs::rename(&drafted, &current).expect_err("it isn't whole");
        assert!(is_quota(&error), "{error}");
        let host = fs::read_to_string(world.server.export.join("current"));
        assert_eq!(host.expect("the host's file"), "good");
        fs::hard_link(&drafted, &linked).expect("it is told once");
        fs::rename(&drafted, &current).expect("it is told once");
    }
}

#[test]
fn with_write_back_a_file_that_is_written_anew_is_whole_whatever_was_refused_of_it_before() {
    let world = world("quota-anew", Writes::Back);
    let [current, drafted] = ["current", "draft"].map(|name| world.mount(0).path(name));
    draft(&world, 64 * 1024, true);
    fs::write(&drafted, "short").expect("room");
    fs::rename(&drafted, &current).expect("it is whole");
    let host = fs::read_to_string(world.server.export.join("current"));
    assert_eq!(host.expect("the host's file"), "short");
}
