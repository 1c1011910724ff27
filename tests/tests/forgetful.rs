//! Attributes and names while the kernel forgets inodes all the time, and learns them anew: attributes that come with a name
//! are on their way to an inode that it doesn't know, and can't be told to drop anything of; names that come with a listing
//! are believed from when they are taken up.

use leasefs_tests::mounted::{Mount, World, WorldOptions, within};
use rustix::fs::{Mode, OFlags, RawDir, Timespec, Timestamps};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
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

/// Until it is over.
fn forgets(over: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            forget();
            thread::sleep(Duration::from_millis(1));
        }
    })
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
        let forgets = forgets(over.clone());
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

/// So many names come with one answer, which takes the kernel some milliseconds to take up.
const NAMES: usize = 3_000;
/// Of these so many go, one after another, each when the kernel has been told names for a while.
const REMOVED: usize = 12;
const CALM: Duration = Duration::from_millis(1_100);

fn is_gone(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Lists a directory again and again when the kernel has just forgotten what is in it, in as few requests as can be. How
/// many entries there were.
fn lists(dir: &Path, over: &AtomicBool) -> u64 {
    let mut buffer = vec![MaybeUninit::uninit(); 1 << 20];
    let mut entries = 0;
    while !over.load(Ordering::Relaxed) {
        forget();
        let open = File::open(dir).expect("a directory");
        let mut listing = RawDir::new(open, &mut buffer);
        let mut last = PathBuf::new();
        while let Some(entry) = listing.next() {
            let name = entry.expect("an entry").file_name().to_bytes().to_owned();
            last = dir.join(OsStr::from_bytes(&name));
            entries += 1;
        }
        // Who looks at no files is told none.
        let _ = fs::symlink_metadata(&last);
    }
    entries
}

/// How often a name was looked for that had gone before; it panics if one is found.
fn looks_for_removed(dir: &Path, names: &[PathBuf], gone: &AtomicUsize, over: &AtomicBool) -> u64 {
    let mut looks = 0;
    while !over.load(Ordering::Relaxed) {
        let last = gone.load(Ordering::Acquire).checked_sub(1);
        if let Some(name) = last.map(|last| &names[last]) {
            let found = !is_gone(&dir.join(name));
            assert!(!found, "{} was removed", name.display());
            looks += 1;
        }
    }
    looks
}

/// The last of a listing are taken up last.
#[test]
fn names_that_come_with_listings_are_never_stale() {
    let world = World::start("listings", &WorldOptions::mounts(2));
    let [writer, reader] = [0, 1].map(|at| world.mounts[at].dir.clone());
    for number in 0..NAMES {
        File::create(writer.join(format!("name{number}"))).expect("a file");
    }
    let listed = fs::read_dir(&writer).expect("a directory");
    let names: Vec<PathBuf> = listed
        .map(|entry| entry.expect("an entry").file_name().into())
        .collect();
    let names: Arc<Vec<PathBuf>> = Arc::new(names.into_iter().rev().collect());
    let before = kernel_requests(&world.mounts[1]);
    let work = move || {
        let (gone, over) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let readers: Vec<_> = (0..READERS)
            .map(|how| {
                let (dir, names) = (reader.clone(), names.clone());
                let (gone, over) = (gone.clone(), over.clone());
                thread::spawn(move || match how {
                    0 => lists(&dir, &over),
                    _ => looks_for_removed(&dir, &names, &gone, &over),
                })
            })
            .collect();
        for (at, name) in names.iter().take(REMOVED).enumerate() {
            thread::sleep(CALM);
            fs::remove_file(writer.join(name)).expect("it goes");
            gone.store(at + 1, Ordering::Release);
        }
        thread::sleep(CALM);
        over.store(true, Ordering::Relaxed);
        let looks = readers.into_iter().map(|reader| reader.join());
        looks.collect::<Result<Vec<u64>, _>>()
    };
    let (looks, _) = within("the readers", 4 * LASTS, work);
    let looks = looks.expect("nothing is stale");
    let asked = kernel_requests(&world.mounts[1]) - before;
    println!("{looks:?} entries and looks, {asked} requests of the kernel");
    assert!(looks[0] > 50 * NAMES as u64, "nothing could be stale");
}
