//! A quota of the storage host that is used up: its server refuses what goes beyond.

use leasefs_tests::mounted::{World, WorldOptions, Writes};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

const MIB: usize = 1 << 20;
/// What may be written.
const QUOTA: usize = 4 * MIB;

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
