//! Directories that several mounts move about and remove: nobody is told what a local file system would
//! never say.

use leasefs_tests::mounted::{World, WorldOptions, in_background};
use leasefs_tests::rng::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const OPERATIONS: usize = 3000;
const NAMES: usize = 3;
const LIMIT: Duration = Duration::from_secs(240);

/// What was refused in a way that no local file system would, by operation and errno.
type Odd = BTreeMap<(&'static str, i32), usize>;

/// What a race with others may end in on a local file system.
const EXPECTED: [i32; 5] = [
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTEMPTY,
    libc::ENOTDIR,
    // A directory can't be moved below itself: here for a name that another one had by then.
    libc::EINVAL,
];

struct Mover {
    roots: [PathBuf; 2],
    rng: Rng,
    odd: Odd,
    done: usize,
}

impl Mover {
    fn directory(&mut self) -> PathBuf {
        let side = self.rng.below(2);
        self.roots[side].join(format!("d{}", self.rng.below(NAMES)))
    }

    fn file(&mut self) -> PathBuf {
        let directory = self.directory();
        directory.join(format!("f{}", self.rng.below(2)))
    }

    fn note<T>(&mut self, what: &'static str, result: io::Result<T>) {
        match result.map_err(|error| error.raw_os_error().unwrap_or(-1)) {
            Ok(_) => self.done += 1,
            Err(errno) if EXPECTED.contains(&errno) => {}
            Err(errno) => *self.odd.entry((what, errno)).or_default() += 1,
        }
    }

    fn step(&mut self) {
        let (a, b) = (self.directory(), self.directory());
        let (f, g) = (self.file(), self.file());
        match self.rng.below(12) {
            0..=2 => self.note("rename of a directory", fs::rename(a, b)),
            3 => self.note("mkdir", fs::create_dir(a)),
            4 => self.note("rmdir", fs::remove_dir(a)),
            5 => self.note("create", File::create(f)),
            6 => self.note("link", fs::hard_link(f, g)),
            7 => self.note("unlink", fs::remove_file(f)),
            8 => self.note("open", File::open(f)),
            9 => self.note("rename of a file", fs::rename(f, g)),
            10 => self.note("lstat of a file", fs::symlink_metadata(f)),
            _ => self.note("lstat", fs::symlink_metadata(a)),
        }
    }

    fn run(mut self) -> (Odd, usize) {
        (0..OPERATIONS).for_each(|_| self.step());
        (self.odd, self.done)
    }
}

fn mover(root: &Path, seed: u64) -> Mover {
    Mover {
        roots: ["left", "right"].map(|side| root.join(side)),
        rng: Rng::new(seed),
        odd: Odd::new(),
        done: 0,
    }
}

#[test]
fn directories_that_three_mounts_move_and_remove_are_never_stale() {
    let world = World::start_on("moves", &WorldOptions::mounts(3), |export| {
        for side in ["left", "right"] {
            fs::create_dir(export.join(side)).expect("a folder");
        }
    });
    let start = |worker: usize| {
        let mover = mover(&world.mount(worker % 3).dir, worker as u64);
        in_background(format!("mover {worker}"), move || mover.run())
    };
    let movers: Vec<_> = (0..6).map(start).collect();
    let (mut odd, mut done) = (Odd::new(), 0);
    for mut mover in movers {
        let (its_odd, its_done) = mover.done_within(LIMIT).0;
        done += its_done;
        for (what, count) in its_odd {
            *odd.entry(what).or_default() += count;
        }
    }
    println!("{done} operations took effect; odd: {odd:?}");
    assert!(done > OPERATIONS, "only {done} operations took effect");
    assert_eq!(odd, Odd::new());
}
