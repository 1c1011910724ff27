//! Modes and dates of files that were just written go to the server with their bytes.

use leasefs_tests::mounted::{Mount, World, WorldOptions, in_background};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::{Duration, SystemTime};

const FILES: u64 = 50;
const LIMIT: Duration = Duration::from_secs(60);
const ROOT: u32 = 0;
const MODE: u32 = 0o644;

fn world(name: &str, mounts: usize) -> World {
    World::start(name, &WorldOptions::mounts(mounts).write_back())
}

fn day(number: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * number)
}

/// As tar brings it in.
fn unpack(path: &Path, number: u64) {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.expect("a file");
    write!(file, "file {number}").expect("written");
    file.set_modified(day(number)).expect("dated");
    fchown(&file, Some(ROOT), Some(ROOT)).expect("kept");
    let mode = Permissions::from_mode(MODE);
    file.set_permissions(mode).expect("readable");
}

fn check(found: &Metadata, number: u64) {
    let expected = format!("file {number}").len() as u64;
    assert_eq!(found.len(), expected);
    assert_eq!(found.mode() & 0o7777, MODE);
    assert_eq!((found.uid(), found.gid()), (ROOT, ROOT));
    assert_eq!(found.modified().expect("a date"), day(number));
}

fn name(number: u64) -> String {
    format!("f{number}")
}

fn stat(mount: &Mount, number: u64) -> Metadata {
    fs::symlink_metadata(mount.path(name(number))).expect("the file")
}

#[test]
fn they_send_no_request_each_and_stay_as_they_were_set() {
    let world = world("sets", 2);
    let mount = world.mount(0);
    let before = mount.settled_requests();
    for number in 0..FILES {
        unpack(&mount.path(name(number)), number);
    }
    // What is buffered is sent.
    std::thread::sleep(Duration::from_secs(3));
    let sent = mount.settled_requests().since(&before);
    println!("{sent:?}");
    assert_eq!(sent.of("setattr"), 0, "{sent:?}");
    assert!(sent.of("write") <= FILES, "{sent:?}");
    for number in 0..FILES {
        let (here, there) = (stat(mount, number), stat(world.mount(1), number));
        check(&here, number);
        check(&there, number);
        assert_eq!(
            (here.ctime(), here.ctime_nsec()),
            (there.ctime(), there.ctime_nsec())
        );
    }
}

#[test]
fn they_are_seen_on_every_mount_at_once() {
    let world = world("sets-seen", 2);
    for number in 0..FILES {
        unpack(&world.mount(0).path(name(number)), number);
        let first = number as usize % 2;
        for mount in [first, 1 - first] {
            check(&stat(world.mount(mount), number), number);
        }
    }
}

#[test]
fn a_write_after_them_dates_the_file_anew() {
    let world = world("sets-written", 2);
    let path = world.mount(0).path("f");
    let mut file = File::create(&path).expect("a file");
    file.write_all(b"before").expect("written");
    file.set_modified(day(3)).expect("dated");
    file.write_all(b"after").expect("written");
    for mount in 0..2 {
        let found = fs::metadata(world.mount(mount).path("f")).expect("the file");
        let age = SystemTime::now().duration_since(found.modified().expect("a date"));
        assert!(age.is_ok_and(|age| age < LIMIT), "{found:?}");
    }
}

#[test]
fn they_survive_a_crash_of_the_server_process() {
    let mut world = world("sets-crash", 1);
    for number in 0..FILES {
        unpack(&world.mount(0).path(name(number)), number);
        if number == FILES / 2 {
            world.server.daemon.kill();
            world.server.start_again();
        }
    }
    let path = world.mount(0).path(name(FILES - 1));
    let mut sync = in_background("fsync", move || File::open(path)?.sync_all());
    sync.done_within(LIMIT).0.expect("on the disk");
    for number in 0..FILES {
        check(&stat(world.mount(0), number), number);
    }
}
