//! Writes that are buffered under a Write lease: fast, seen at once everywhere else, and never lost
//! in silence.

use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{Storage, World, WorldOptions, eventually, in_background, within};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn world(name: &str, mounts: usize) -> World {
    World::start(name, &WorldOptions::mounts(mounts).term("3s").write_back())
}

fn host(world: &World, name: &str) -> PathBuf {
    world.sandbox.root().join("export").join(name)
}

fn read(path: PathBuf) -> Vec<u8> {
    let what = format!("reading {}", path.display());
    let (bytes, _) = within(what, LIMIT, move || fs::read(path));
    bytes.expect("the file")
}

#[test]
fn small_writes_in_sequence_send_no_request_each() {
    let world = world("sequence", 1);
    let before = world.mount(0).settled_requests();
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    let page = [7; 4096];
    for _ in 0..64 * MIB / page.len() {
        file.write_all(&page).expect("written");
    }
    file.sync_all().expect("on the disk");
    let sent = world.mount(0).settled_requests().since(&before);
    println!("{sent:?}");
    assert!(
        sent.total() < 200,
        "16,384 writes sent {} requests: {sent:?}",
        sent.total()
    );
    assert_eq!(read(host(&world, "f")), vec![7; 64 * MIB]);
}

#[test]
fn what_one_mount_has_written_another_reads_at_once_without_fsync() {
    let world = world("at-once", 2);
    let mut writer = File::create(world.mount(0).path("f")).expect("a file");
    let mut expected = Vec::new();
    for round in 0..50_u8 {
        let bytes = vec![round; 1000 + 37 * usize::from(round)];
        writer.write_all(&bytes).expect("written");
        expected.extend_from_slice(&bytes);
        let there = world.mount(1).path("f");
        let size = fs::metadata(&there).expect("the file").len();
        assert_eq!(size, expected.len() as u64, "round {round}");
        assert_eq!(read(there), expected, "round {round}");
    }
}

#[test]
fn the_writer_reads_its_own_bytes_before_and_after_they_are_flushed() {
    let world = world("own", 1);
    let path = world.mount(0).path("f");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).open(&path);
    let file = file.expect("a file");
    file.write_all_at(b"0123456789", 0).expect("written");
    file.write_all_at(b"AB", 4).expect("written");
    let mut seen = [0; 10];
    file.read_exact_at(&mut seen, 0).expect("read");
    assert_eq!(&seen, b"0123AB6789");
    let reader = File::open(&path).expect("a reader");
    reader.read_exact_at(&mut seen, 0).expect("read");
    assert_eq!(&seen, b"0123AB6789");
    file.write_all_at(b"yz", 8).expect("written");
    reader.read_exact_at(&mut seen, 0).expect("read");
    assert_eq!(&seen, b"0123AB67yz");
    file.write_all_at(b"!", 20).expect("written");
    assert_eq!(read(path), b"0123AB67yz\0\0\0\0\0\0\0\0\0\0!");
}

#[test]
fn times_and_size_of_a_written_file_do_not_change_by_themselves() {
    let world = world("times", 2);
    let path = world.mount(0).path("f");
    let mut file = File::create(&path).expect("a file");
    file.write_all(b"first").expect("written");
    let first = fs::metadata(&path).expect("the file");
    std::thread::sleep(Duration::from_millis(20));
    file.write_all(b"second").expect("written");
    // Whoever asks first, on the other mount here, sees the times of the write.
    let there = fs::metadata(world.mount(1).path("f")).expect("the file");
    assert_eq!(there.len(), 11);
    assert!(times(&there) > times(&first), "the write has moved them");
    std::thread::sleep(Duration::from_secs(2));
    for mount in 0..2 {
        let later = fs::metadata(world.mount(mount).path("f")).expect("the file");
        assert_eq!((later.len(), times(&later)), (11, times(&there)));
    }
}

/// Of change and of modification.
fn times(file: &fs::Metadata) -> [(i64, i64); 2] {
    [
        (file.ctime(), file.ctime_nsec()),
        (file.mtime(), file.mtime_nsec()),
    ]
}

#[test]
fn a_file_is_not_newer_than_one_that_was_written_after_it() {
    let world = world("order", 2);
    let mtime = |mount: usize, name: String| {
        let found = fs::metadata(world.mount(mount).path(name)).expect("the file");
        (found.mtime(), found.mtime_nsec())
    };
    let write = |name: &str, round: u32| {
        let path = world.mount(0).path(format!("{name}{round}"));
        fs::write(path, vec![1; 100 * round as usize + 1]).expect("written");
    };
    for round in 0..30 {
        write("before", round);
        let before = mtime(0, format!("before{round}"));
        write("source", round);
        write("result", round);
        // As make and cargo do; the result is at the server now, and the source later.
        let result = mtime(0, format!("result{round}"));
        std::thread::sleep(Duration::from_millis(20));
        let source = mtime(1, format!("source{round}"));
        assert!(before <= source, "round {round}: {before:?}, {source:?}");
        assert!(source <= result, "round {round}: {source:?}, {result:?}");
    }
}

/// What is written first is there already, and held for writing by its mount: nothing but what it has been
/// told dates what it buffers.
#[test]
fn what_is_written_after_another_mounts_change_was_seen_is_not_older() {
    let world = world("causes", 2);
    let [here, there] = [0, 1].map(|at| world.mount(at).dir.clone());
    let date = |file: &Path| {
        let found = fs::metadata(file).expect("the file");
        (found.mtime(), found.mtime_nsec())
    };
    let stated = |folder: &Path| fs::metadata(folder.join("source")).map(|found| found.len());
    let read = |folder: &Path| fs::read(folder.join("source")).map(|bytes| bytes.len() as u64);
    let listed = |folder: &Path| {
        let sizes = fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len()));
        sizes.sum::<io::Result<u64>>()
    };
    let looks: [fn(&Path) -> io::Result<u64>; 3] = [stated, read, listed];
    for (number, look) in looks.into_iter().enumerate() {
        let mut result = File::create(here.join(format!("result{number}"))).expect("a file");
        for round in 0..40 {
            result.write_all(b"before").expect("written");
            let folder = format!("{number}-{round}");
            fs::create_dir(there.join(&folder)).expect("a folder");
            fs::write(there.join(&folder).join("source"), b"x").expect("written");
            assert_eq!(look(&here.join(&folder)).expect("the file"), 1);
            result.write_all(b"behind").expect("written");
            let source = date(&there.join(&folder).join("source"));
            let result = date(&there.join(format!("result{number}")));
            assert!(
                source <= result,
                "look {number}, round {round}: {source:?}, {result:?}"
            );
        }
    }
}

#[test]
fn two_mounts_append_to_one_log_and_lose_nothing() {
    const RECORDS: usize = 300;
    let world = world("log", 2);
    let append = |mount: usize| {
        let path = world.mount(mount).path("log");
        in_background("appending", move || {
            let mut log = OpenOptions::new().append(true).create(true).open(path)?;
            (0..RECORDS).try_for_each(|n| log.write_all(format!("{mount} {n}\n").as_bytes()))
        })
    };
    let mut writers = [append(0), append(1)];
    for writer in &mut writers {
        writer.done_within(LIMIT).0.expect("appended");
    }
    for mount in 0..2 {
        let log = String::from_utf8(read(world.mount(mount).path("log"))).expect("text");
        for writer in 0..2 {
            let theirs = log
                .lines()
                .filter_map(|l| l.strip_prefix(&format!("{writer} ")));
            let expected = (0..RECORDS).map(|n| n.to_string());
            assert!(theirs.eq(expected), "mount {mount}, of {writer}:\n{log}");
        }
        assert_eq!(log.lines().count(), 2 * RECORDS);
    }
}

#[test]
fn a_file_that_was_closed_comes_to_the_storage_host_within_seconds() {
    let world = world("closed", 1);
    fs::write(world.mount(0).path("f"), vec![3; MIB]).expect("written");
    let there = host(&world, "f");
    let whole = || (fs::read(&there).ok()? == vec![3; MIB]).then_some(());
    eventually("the bytes", Duration::from_secs(5), whole, String::new);
}

#[test]
fn unmounting_brings_everything_to_the_storage_host() {
    let world = world("umount", 1);
    for number in 0..20_u8 {
        let path = world.mount(0).path(format!("f{number}"));
        fs::write(path, vec![number; 100_000]).expect("written");
    }
    let (output, _) = world.mounts[0].umount(&[], LIMIT);
    assert!(output.status.success(), "{output:?}");
    for number in 0..20_u8 {
        assert_eq!(
            read(host(&world, &format!("f{number}"))),
            vec![number; 100_000]
        );
    }
}

/// Ends what `chattr +a` began, or nobody could remove the export.
struct AppendOnly(PathBuf);

impl AppendOnly {
    fn begin(path: PathBuf) -> Self {
        chattr("+a", &path);
        Self(path)
    }
}

impl Drop for AppendOnly {
    fn drop(&mut self) {
        chattr("-a", &self.0);
    }
}

fn chattr(flag: &str, path: &PathBuf) {
    let done = Command::new("chattr").arg(flag).arg(path).status();
    assert!(done.expect("chattr (e2fsprogs)").success(), "{flag}");
}

#[test]
fn a_log_that_can_only_be_appended_to_takes_buffered_appends() {
    let world = world("append-only", 1);
    fs::write(host(&world, "log"), b"0").expect("written");
    let _append_only = AppendOnly::begin(host(&world, "log"));
    let path = world.mount(0).path("log");
    let mut file = OpenOptions::new().append(true).open(path).expect("opened");
    for number in 1..10_u8 {
        file.write_all(&[b'0' + number]).expect("appended");
    }
    file.sync_all().expect("on the disk");
    assert_eq!(read(host(&world, "log")), b"0123456789");
}

#[test]
fn a_file_that_is_renamed_into_place_is_whole_at_the_storage_host_at_once() {
    let world = world("replace", 1);
    let (draft, current) = (world.mount(0).path("draft"), world.mount(0).path("current"));
    for number in 0..50_u8 {
        fs::write(&draft, [number; 10_000]).expect("written");
        fs::rename(&draft, &current).expect("renamed");
        assert_eq!(read(host(&world, "current")), [number; 10_000]);
    }
}

#[test]
fn buffered_writes_survive_a_crash_of_the_server_process() {
    let mut world = world("crash", 1);
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    file.write_all(b"before ").expect("written");
    world.server.daemon.kill();
    file.write_all(b"while it is away ").expect("written");
    world.server.start_again();
    file.write_all(b"after").expect("written");
    let mut sync = in_background("fsync", move || file.sync_all());
    sync.done_within(LIMIT).0.expect("on the disk");
    assert_eq!(read(host(&world, "f")), b"before while it is away after");
}

/// Mount 0 writes `mine`, buffered, and is cut off; mount 1 then writes `theirs` over it.
fn overtaken(name: &str) -> (World, File) {
    let options = WorldOptions::mounts(2)
        .term("2s")
        .with_relays()
        .write_back();
    let world = World::start(name, &options);
    let file = File::create(world.mount(0).path("f")).expect("a file");
    file.write_all_at(b"begun", 0).expect("written");
    file.sync_all().expect("on the disk");
    file.write_all_at(b"mine, and longer", 0).expect("written");
    world.relays[0].cut();
    let theirs = world.mount(1).path("f");
    within("the write elsewhere", LIMIT, move || {
        fs::write(theirs, b"theirs")
    })
    .0
    .expect("written");
    world.relays[0].mend();
    (world, file)
}

#[test]
fn bytes_that_come_too_late_never_overwrite_newer_ones_and_can_be_recovered() {
    let (world, file) = overtaken("late");
    let is_kept = || {
        !world.mounts[0]
            .client(&["recover", "list"])
            .contains("nothing is kept")
    };
    let probe = || is_kept().then_some(());
    eventually("the bytes to be kept", LIMIT, probe, String::new);
    drop(file.try_clone().expect("a copy"));
    let mut sync = in_background("fsync", move || (file.sync_all(), file));
    let (outcome, file) = sync.done_within(LIMIT).0;
    let error = outcome.expect_err("the bytes were not brought in");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    file.sync_all().expect("an error is told once");
    assert_eq!(read(world.mount(0).path("f")), b"theirs");
    assert_eq!(read(host(&world, "f")), b"theirs");

    let mount = world.mount(0);
    let kept: Value =
        serde_json::from_str(&mount.client(&["recover", "list", "--json"])).expect("JSON");
    let item = &kept["items"][0];
    assert_eq!(item["path"], "f", "{kept}");
    assert_eq!(item["why"], "changed_elsewhere", "{kept}");
    assert!(
        mount.client(&["status"]).contains("recover"),
        "status names it"
    );
    let id = item["id"].as_str().expect("an id");
    mount.client(&["recover", "restore", id, "--as", "mine"]);
    assert_eq!(read(mount.path("mine")), b"mine, and longer");
    mount.client(&["recover", "discard", id]);
    assert!(
        mount
            .client(&["recover", "list"])
            .contains("nothing is kept")
    );
}

#[test]
fn a_mount_whose_bytes_were_refused_says_so_at_its_end() {
    let (world, file) = overtaken("refused");
    drop(file);
    let (output, _) = world.mounts[0].umount(&[], LIMIT);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{message}");
    assert!(message.contains("fsclient recover"), "{message}");
    assert!(!world.mounts[0].is_mounted());
}

#[test]
fn a_mapped_page_that_comes_too_late_never_overwrites_newer_bytes_and_can_be_recovered() {
    let options = WorldOptions::mounts(2).term("3s").with_relays();
    let world = World::start("late-page", &options);
    fs::write(world.mount(0).path("f"), b"as it was").expect("a file");
    let file = File::options()
        .read(true)
        .write(true)
        .open(world.mount(0).path("f"))
        .expect("open");
    file.sync_all().expect("on the disk");
    let map = Mapping::new(&file, 0, 9, true).expect("a mapping");
    map.copy_from(0, b"mine");
    world.relays[0].cut();
    let theirs = world.mount(1).path("f");
    let wrote = within("their write", LIMIT, move || {
        fs::write(theirs, b"theirs, the newer")
    });
    wrote.0.expect("their write");
    world.relays[0].mend();
    let mut sync = in_background("msync", move || map.sync());
    let error = sync.done_within(LIMIT).0.expect_err("the page is late");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(read(world.mount(0).path("f")), b"theirs, the newer");
    let kept = world.mount(0).client(&["recover", "list"]);
    assert!(kept.contains("f\n"), "{kept}");
}

#[test]
fn a_mount_that_cannot_flush_says_so_and_keeps_the_bytes() {
    let mut world = world("cannot", 1);
    let mut file = File::create(world.mount(0).path("f")).expect("a file");
    file.write_all(b"written ").expect("written");
    file.sync_all().expect("on the disk");
    file.write_all(b"and not flushed").expect("written");
    drop(file);
    world.server.daemon.kill();
    let (output, _) = world.mounts[0].umount(&[], LIMIT);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && message.contains('f'),
        "{message}"
    );
    world.mounts[0].daemon.signal(Signal::TERM);
    let status = world.mounts[0].daemon.ends_within(LIMIT);
    assert!(!status.success(), "the daemon ends with an error");
    let kept = world.mount(0).client(&["recover", "list"]);
    assert!(kept.contains("f\n") && kept.contains("15 bytes"), "{kept}");
}

#[test]
fn a_full_disk_reaches_the_write_that_meets_it() {
    let disk = Storage::new("full", 16);
    let options = WorldOptions::mounts(1).export(disk.dir()).write_back();
    let world = World::start("full", &options);
    let file = File::create(world.mount(0).path("f")).expect("a file");
    let mut written = Vec::new();
    for at in 0..24 * 16_u64 {
        match file.write_all_at(&[1; MIB / 16], at * (MIB / 16) as u64) {
            Ok(()) => written.push(at),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSPC)),
        }
    }
    assert!(written.len() < 16 * 16, "the disk isn't full");
    file.sync_all().expect("what was written found room");
    let there = fs::read(disk.dir().join("f")).expect("the file");
    for at in written {
        let from = at as usize * MIB / 16;
        assert!(there[from..from + MIB / 16].iter().all(|byte| *byte == 1));
    }
}

/// Fills the disk up to this many bytes.
fn fill(dir: &Path, but: u64) {
    let path = dir.join("fill");
    let mut fill = File::create(&path).expect("the other's file");
    while fill.write_all(&[2; MIB / 4]).is_ok() {}
    fill.sync_all().expect("allocated");
    let size = fill.metadata().expect("its size").len();
    fill.set_len(size - but).expect("shorter");
    fill.sync_all().expect("freed");
}

#[test]
fn of_mapped_pages_some_of_which_find_room_none_is_lost_and_msync_tells() {
    let disk = Storage::new("mapped", 32);
    let world = World::start("mapped", &WorldOptions::mounts(1).export(disk.dir()));
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let file = options.open(world.mount(0).path("f")).expect("a file");
    file.set_len(MIB as u64).expect("its size");
    let map = Mapping::new(&file, 0, MIB, true).expect("a mapping");
    (0..MIB)
        .step_by(4096)
        .for_each(|offset| map.store(offset, 1));
    fill(disk.dir(), MIB as u64 / 2);
    let told = map.sync().expect_err("half of it finds no room");
    assert_eq!(told.raw_os_error(), Some(libc::ENOSPC), "{told}");
    let kept = world.mount(0).client(&["recover", "list"]);
    assert!(kept.contains("f\n"), "{kept}");
}

#[test]
fn a_disk_that_others_fill_is_told_by_fsync_though_some_of_the_bytes_find_room() {
    let disk = Storage::new("filled", 32);
    let options = WorldOptions::mounts(1).export(disk.dir()).write_back();
    let world = World::start("filled", &options);
    for attempt in 0..5 {
        let name = format!("f{attempt}");
        let file = File::create(world.mount(0).path(&name)).expect("a file");
        file.write_all_at(&[1; 4096], 0).expect("through");
        file.write_all_at(&[1; 2 * MIB], 4096).expect("buffered");
        fill(disk.dir(), MIB as u64 / 2);
        let mut sync = in_background("fsync", move || file.sync_all());
        match sync.done_within(LIMIT).0 {
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                let kept = world.mount(0).client(&["recover", "list"]);
                assert!(kept.contains(&name), "{kept}");
                return;
            }
            // It was flushed before the disk was full.
            Ok(()) => fs::remove_file(world.mount(0).path(&name)).expect("removed"),
        }
        fs::remove_file(disk.dir().join("fill")).expect("room again");
    }
    panic!("the bytes found room in every attempt");
}

/// Its writer keeps an open of it until what was written is on the server's disk: not for a file that nobody can reach.
#[test]
fn a_file_that_another_mount_removes_takes_no_room_any_more() {
    let world = world("removed-elsewhere", 2);
    let (here, there) = (world.mount(0).path(""), world.mount(1).path(""));
    let orphans = || {
        let folder = fs::read_dir(world.server.export.join(".leasefs-orphans"));
        folder.map_or(0, Iterator::count)
    };
    for (name, looked_at) in [("closed", false), ("read", true)] {
        fs::write(here.join(name), vec![7; MIB]).expect("written and closed");
        if looked_at {
            assert_eq!(read(there.join(name)).len(), MIB);
        }
        fs::remove_file(there.join(name)).expect("removed");
        let soon = Duration::from_secs(3);
        let none = || (orphans() == 0).then_some(());
        eventually("its room to be free", soon, none, || name.to_owned());
    }
    let mut open = File::create(here.join("open")).expect("a file");
    open.write_all(b"kept").expect("written");
    fs::rename(there.join("new"), there.join("open")).expect_err("nothing there");
    fs::write(there.join("new"), b"new").expect("written");
    fs::rename(there.join("new"), there.join("open")).expect("in its place");
    open.write_all(b" while open").expect("written");
    open.sync_all().expect("on the disk");
    assert_eq!(orphans(), 1, "what is open stays");
    drop(open);
    let soon = Duration::from_secs(3);
    let none = || (orphans() == 0).then_some(());
    eventually("its room to be free", soon, none, String::new);
}
