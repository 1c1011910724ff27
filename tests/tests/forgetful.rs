//! Attributes while the kernel forgets inodes all the time, and learns them anew: those that come with a name are on
//! their way to an inode that it doesn't know, and can't be told to drop anything of.

use leasefs_tests::mounted::{Mount, World, WorldOptions, within};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const FILES: usize = 6;
const READERS: usize = 6;
const LASTS: Duration = Duration::from_secs(15);
/// Between two changes, at most.
const PAUSE: u64 = 4_000;

/// What was set of each file last, before anybody looks at it.
type Floors = [AtomicI64; FILES];

fn file(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("f{number}"))
}

fn set_time(path: &Path, seconds: i64) {
    let at = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: at,
        last_modification: at,
    };
    let flags = rustix::fs::AtFlags::empty();
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("utimensat");
}

/// A file's time, by its path or by a descriptor that is opened before: what counts is what was set before the last
/// call.
fn look(how: usize, path: &Path, floor: &AtomicI64) -> (i64, i64) {
    let held = match how % 3 {
        0 => None,
        1 => Some(rustix::fs::open(path, OFlags::PATH, Mode::empty()).expect("a descriptor")),
        _ => Some(File::open(path).expect("the file").into()),
    };
    let before = floor.load(Ordering::Acquire);
    let seen = match held {
        None => fs::metadata(path).expect("the file").mtime(),
        Some(held) => rustix::fs::fstat(held).expect("the file").st_mtime,
    };
    (before, seen)
}

/// Of how many looks; it panics if one is stale. (Once, and not again at once, the kernel may tell what it had before:
/// docs/semantics.md.)
fn reads(dir: &Path, how: usize, floors: &Floors, over: &AtomicBool) -> u64 {
    let mut looks = 0;
    while !over.load(Ordering::Relaxed) {
        let number = looks as usize % FILES;
        let path = file(dir, number);
        let is_stale = || {
            let (before, seen) = look(how, &path, &floors[number]);
            (seen < before).then_some((before, seen))
        };
        let stale = is_stale().and_then(|_| is_stale());
        assert_eq!(
            stale, None,
            "f{number}: what was set, what is seen {looks} looks on"
        );
        looks += 1;
    }
    looks
}

/// The kernel drops inodes and names that nobody uses.
fn forget() {
    const DROP: &str = "echo 2 > /proc/sys/vm/drop_caches";
    if fs::write("/proc/sys/vm/drop_caches", "2").is_err() {
        let sudo = Command::new("sudo").args(["-n", "sh", "-c", DROP]).status();
        let done = sudo.is_ok_and(|status| status.success());
        assert!(done, "it needs root, or sudo without a password");
    }
}

fn kernel_requests(mount: &Mount) -> u64 {
    let status = mount.status();
    let requests = status.pointer("/mounts/0/kernel_requests");
    requests.and_then(serde_json::Value::as_u64).expect("told")
}

#[test]
fn attributes_that_come_with_names_are_never_stale() {
    let world = World::start("forgetful", &WorldOptions::mounts(2));
    let [writer, reader] = [0, 1].map(|at| world.mounts[at].dir.clone());
    for number in 0..FILES {
        File::create(file(&writer, number)).expect("a file");
        set_time(&file(&writer, number), 1);
    }
    let before = kernel_requests(&world.mounts[1]);
    let work = move || {
        let floors: Arc<Floors> = Arc::new(std::array::from_fn(|_| AtomicI64::new(1)));
        let over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..READERS)
            .map(|how| {
                let (dir, floors, over) = (reader.clone(), floors.clone(), over.clone());
                thread::spawn(move || reads(&dir, how, &floors, &over))
            })
            .collect();
        let forgets = {
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    forget();
                    thread::sleep(Duration::from_millis(1));
                }
            })
        };
        let (begin, mut time) = (Instant::now(), 1);
        while begin.elapsed() < LASTS && !readers.iter().any(thread::JoinHandle::is_finished) {
            time += 1;
            let number = time as usize * 7 % FILES;
            set_time(&file(&writer, number), time);
            floors[number].store(time, Ordering::Release);
            thread::sleep(Duration::from_micros(time as u64 * 997 % PAUSE));
        }
        over.store(true, Ordering::Relaxed);
        forgets.join().expect("it forgets");
        let looks = readers.into_iter().map(|reader| reader.join());
        (time, looks.collect::<Result<Vec<u64>, _>>())
    };
    let ((changes, looks), _) = within("the readers", 4 * LASTS, work);
    let looks: u64 = looks.expect("nothing is stale").iter().sum();
    let asked = kernel_requests(&world.mounts[1]) - before;
    println!("{changes} changes, {looks} looks, {asked} requests of the kernel");
    assert!(changes > 500 && asked > 10_000, "nothing could be stale");
}
