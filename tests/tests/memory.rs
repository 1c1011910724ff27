//! A mount keeps within the memory it was given.

use leasefs_tests::mounted::{Mount, World, WorldOptions, within};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// What the mount is given.
const MEMORY: usize = 64 * MIB;
/// What a daemon takes for itself: its program, its threads' stacks, leases, what is under way.
const ITSELF: usize = 64 * MIB;
/// What is written and read: many times what may be kept.
const WRITTEN: usize = 512 * MIB;
const FILES: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(240);

fn many_files(export: &Path) {
    let dir = export.join("many");
    fs::create_dir(&dir).expect("a directory");
    for file in 0..FILES {
        fs::write(dir.join(format!("file-{file}")), b"").expect("a file");
    }
}

/// Writes a large file, reads it through a descriptor that may write, and looks at many files.
fn work(mount: &Path) {
    let mut options = OpenOptions::new();
    let big = options.read(true).write(true).create(true).truncate(true);
    let mut big = big.open(mount.join("big")).expect("a file");
    let block = vec![7; MIB];
    for _ in 0..WRITTEN / MIB {
        big.write_all(&block).expect("a write");
    }
    let mut back = vec![0; MIB];
    for at in 0..WRITTEN / MIB {
        big.read_exact_at(&mut back, (at * MIB) as u64)
            .expect("a read");
        assert!(back == block, "MiB {at} is not what was written");
    }
    for entry in fs::read_dir(mount.join("many")).expect("a listing") {
        entry.and_then(|entry| entry.metadata()).expect("a file");
    }
}

/// The most memory that the daemon ever had.
fn most_resident(mount: &Mount) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.daemon.pid()));
    let status = status.expect("the daemon runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a number")
        << 10
}

#[test]
fn a_mount_that_writes_and_reads_much_keeps_within_the_memory_it_was_given() {
    let mut options = WorldOptions::mounts(1).write_back();
    options.mount.options = vec!["--memory".into(), format!("{}MiB", MEMORY / MIB)];
    let world = World::start_on("memory", &options, many_files);
    let mount = world.mount(0);
    let dir = mount.dir.clone();
    within("the work", LIMIT, move || work(&dir));
    let memory = &mount.status()["mounts"][0]["memory"];
    assert_eq!(memory["limit"].as_u64(), Some(MEMORY as u64), "{memory}");
    let shares = ["cached", "clean", "dirty", "unstable"];
    let used = shares.map(|kind| memory[kind].as_u64().expect("a number") as usize);
    assert!(used.iter().sum::<usize>() <= MEMORY, "{memory}");
    assert!(used[0] > 0 && used[1] > 0, "nothing is cached: {memory}");
    let most = most_resident(mount);
    eprintln!("at most {} MiB resident; in the end {memory}", most / MIB);
    assert!(most <= MEMORY + ITSELF, "{} MiB, {memory}", most / MIB);
}
