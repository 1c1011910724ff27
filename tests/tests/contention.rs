//! Mounts that get into each other's way: nothing takes longer than a second.

use leasefs_tests::coherence::{Config, Family, run};
use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{Background, World, WorldOptions, in_background, within};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILES: usize = 2000;
const RENAMES: usize = 500;
const PAGE: usize = 4096;
const LONGEST: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(240);

/// The slowest of many operations.
#[derive(Debug, Default, Clone)]
struct Slowest {
    took: Duration,
    what: String,
    count: usize,
}

impl Slowest {
    fn time<T>(&mut self, what: impl FnOnce() -> String, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        let took = started.elapsed();
        self.count += 1;
        if took > self.took {
            (self.took, self.what) = (took, what());
        }
        result
    }

    fn check(&self) {
        println!(
            "{} operations, the slowest {} took {:?}",
            self.count, self.what, self.took
        );
        assert!(self.took <= LONGEST, "{} took {:?}", self.what, self.took);
    }
}

fn check_all(workers: Vec<Background<Slowest>>) {
    let outcomes: Vec<Slowest> = workers
        .into_iter()
        .map(|mut worker| worker.done_within(LIMIT).0)
        .collect();
    outcomes.iter().for_each(Slowest::check);
}

fn create_and_remove(folder: PathBuf, tag: usize) -> Slowest {
    let mut slowest = Slowest::default();
    let name = |number: usize| folder.join(format!("m{tag}-{number}"));
    for number in 0..FILES {
        slowest
            .time(
                || format!("creating {number}"),
                || File::create_new(name(number)),
            )
            .expect("new");
    }
    for number in 0..FILES {
        let removed = slowest.time(
            || format!("removing {number}"),
            || fs::remove_file(name(number)),
        );
        removed.expect("it is there");
    }
    slowest
}

#[test]
fn two_mounts_create_and_remove_2000_files_each_in_one_directory() {
    let world = World::start_on("files", &WorldOptions::mounts(2), |export| {
        fs::create_dir(export.join("shared")).expect("a folder");
    });
    let start = |index: usize| {
        let folder = world.mount(index).path("shared");
        in_background(format!("mount {index}"), move || {
            create_and_remove(folder, index)
        })
    };
    check_all((0..2).map(start).collect());
    assert_eq!(
        fs::read_dir(world.mount(0).path("shared"))
            .expect("the folder")
            .count(),
        0
    );
}

fn rename_back_and_forth(from: PathBuf, to: PathBuf, tag: usize) -> Slowest {
    let mut slowest = Slowest::default();
    let name = |folder: &Path, number: usize| folder.join(format!("m{tag}-{number}"));
    for number in 0..RENAMES {
        fs::write(name(&from, number), b"x").expect("new");
    }
    for (old, new) in [(&from, &to), (&to, &from)] {
        for number in 0..RENAMES {
            let moved = slowest.time(
                || format!("rename {number} to {}", new.display()),
                || fs::rename(name(old, number), name(new, number)),
            );
            moved.expect("it is there");
        }
    }
    slowest
}

#[test]
fn two_mounts_rename_between_two_directories_in_opposite_directions() {
    let world = World::start_on("renames", &WorldOptions::mounts(2), |export| {
        for name in ["left", "right"] {
            fs::create_dir(export.join(name)).expect("a folder");
        }
    });
    let start = |index: usize| {
        let mount = world.mount(index);
        let ends = [mount.path("left"), mount.path("right")];
        let [from, to] = if index == 0 {
            ends
        } else {
            [ends[1].clone(), ends[0].clone()]
        };
        in_background(format!("mount {index}"), move || {
            rename_back_and_forth(from, to, index)
        })
    };
    check_all((0..2).map(start).collect());
    let count = |name: &str| {
        fs::read_dir(world.mount(1).path(name))
            .expect("a folder")
            .count()
    };
    assert_eq!((count("left"), count("right")), (RENAMES, RENAMES));
}

fn number_in(bytes: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*bytes)
}

fn read_in_a_tight_loop(path: PathBuf, stop: Arc<AtomicBool>) -> Slowest {
    let file = File::open(path).expect("the file");
    let mut slowest = Slowest::default();
    let (mut last, mut changes) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let mut buffer = [0; 8];
        let read = slowest.time(
            || "a read".to_owned(),
            || file.read_exact_at(&mut buffer, 0),
        );
        read.expect("a read");
        let now = number_in(&buffer);
        assert!(now >= last, "a read went back from {last} to {now}");
        changes += u64::from(now > last);
        last = now;
    }
    assert!(changes > 10, "the reader saw {changes} changes only");
    slowest
}

fn map_in_a_tight_loop(path: PathBuf, stop: Arc<AtomicBool>) -> Slowest {
    let file = File::open(path).expect("the file");
    let map = Mapping::new(&file, 0, PAGE, false).expect("a mapping");
    let mut slowest = Slowest::default();
    let (mut last, mut changes) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let now = slowest.time(|| "a load".to_owned(), || map.load(0));
        assert!(now >= last, "a load went back from {last} to {now}");
        changes += u64::from(now > last);
        last = now;
    }
    assert!(changes > 10, "the mapping showed {changes} changes only");
    slowest
}

fn keep_writing(path: PathBuf, time: Duration, stop: Arc<AtomicBool>) -> Slowest {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .expect("the file");
    let mut slowest = Slowest::default();
    let started = Instant::now();
    let mut number = 0u64;
    while started.elapsed() < time {
        number += 1;
        let bytes = number.to_le_bytes();
        let written = slowest.time(
            || format!("write {number}"),
            || file.write_all_at(&bytes, 0),
        );
        written.expect("a write");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(number > 20, "only {number} writes in {time:?}");
    slowest
}

#[test]
fn tight_readers_and_a_writer_elsewhere_starve_nobody() {
    let world = World::start_on("tight", &WorldOptions::mounts(2), |export| {
        fs::write(export.join("page"), vec![0; PAGE]).expect("a file");
    });
    let stop = Arc::new(AtomicBool::new(false));
    let path = |index: usize| world.mount(index).path("page");
    let (read, map, write) = (path(0), path(0), path(1));
    let stops = [Arc::clone(&stop), Arc::clone(&stop), stop];
    let [stop_read, stop_map, stop_write] = stops;
    let workers = vec![
        in_background("the writer", move || {
            keep_writing(write, Duration::from_secs(8), stop_write)
        }),
        in_background("the reader", move || read_in_a_tight_loop(read, stop_read)),
        in_background("the mapped reader", move || {
            map_in_a_tight_loop(map, stop_map)
        }),
    ];
    check_all(workers);
}

/// The contended paths again, under the checker: nothing above was stale either.
#[test]
fn eight_workers_on_two_mounts_stay_below_a_second_each_time() {
    let world = World::start("eight", &WorldOptions::mounts(2));
    let mut config = Config::new(world.mounts.iter().map(|mount| mount.dir.clone()).collect());
    config.workers_per_dir = 4;
    config.operations = 6000;
    config.families = vec![Family::Names, Family::Registers];
    let (report, _) = within("the run", LIMIT, move || run(&config));
    let report = report.expect("the mounts show the same files");
    println!("{report}");
    assert!(report.passed(), "{report}");
    for family in &report.families {
        assert!(family.slowest.0 <= LONGEST, "{family}");
    }
}
