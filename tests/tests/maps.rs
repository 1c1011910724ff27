//! Shared writable mappings of one file on two mounts, with and without buffered writes.

use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{World, WorldOptions, Writes, within};
use rustix::fs::{SeekFrom, copy_file_range, seek};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const PAGE: usize = 4096;
const PAGES: usize = 4;
const ROUNDS: u64 = 200;

/// What a process has of the file.
struct Place {
    /// Read-write, and mapped so.
    file: File,
    map: Mapping,
    /// Read-only, and mapped so.
    reader: File,
    seen: Mapping,
}

impl Place {
    fn open(dir: &Path) -> Self {
        let path = dir.join("f");
        let reader = File::open(&path).expect("a reader");
        let seen = Mapping::new(&reader, 0, PAGES * PAGE, false).expect("a mapping to read");
        // Every page is in this kernel, read in through a descriptor that can't write.
        assert!((0..PAGES).all(|page| seen.load(page * PAGE) == 0));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.expect("a writer");
        let map = Mapping::new(&file, 0, PAGES * PAGE, true).expect("a mapping to store into");
        Self {
            file,
            map,
            reader,
            seen,
        }
    }

    /// What is at `offset`, in every way there is to read it.
    fn reads(&self, offset: usize) -> [u64; 4] {
        let pread = |file: &File| {
            let mut word = [0; 8];
            let read = file.read_exact_at(&mut word, offset as u64);
            read.map(|()| u64::from_ne_bytes(word)).expect("a read")
        };
        [
            self.seen.load(offset),
            pread(&self.reader),
            self.map.load(offset),
            pread(&self.file),
        ]
    }

    fn write(&self, offset: usize, value: u64) {
        let wrote = self.file.write_all_at(&value.to_ne_bytes(), offset as u64);
        wrote.expect("written");
    }
}

/// Two mounts with the file open; at the end both and the storage host have `last` in the first
/// words of the pages.
fn on_two_mounts(
    name: &str,
    writes: Writes,
    work: impl FnOnce(&[Place; 2]) -> [u64; PAGES] + Send + 'static,
) {
    let options = WorldOptions::mounts(2).writes(writes);
    let world = World::start_on(name, &options, |export| {
        fs::write(export.join("f"), vec![0; PAGES * PAGE]).expect("a file");
    });
    let dirs = [0, 1].map(|mount| world.mount(mount).path(""));
    let host = world.server.export.join("f");
    within(name, LIMIT, move || {
        let places = dirs.map(|dir| Place::open(&dir));
        let last = work(&places);
        for place in &places {
            place.map.sync().expect("msync");
            place.file.sync_all().expect("fsync");
        }
        let bytes = fs::read(host).expect("the storage host's file");
        for (page, value) in last.into_iter().enumerate() {
            let offset = page * PAGE;
            assert_eq!(bytes[offset..offset + 8], value.to_ne_bytes());
            for place in &places {
                assert_eq!(place.reads(offset), [value; 4], "page {page}");
            }
        }
    });
}

/// Each stores into a page of its own, and looks at the other's after every store there.
fn stores_into_different_pages(places: &[Place; 2]) -> [u64; PAGES] {
    for round in 1..=ROUNDS {
        for writer in 0..2 {
            let offset = writer * PAGE;
            places[writer].map.store(offset, round);
            let there = places[1 - writer].reads(offset);
            assert_eq!(there, [round; 4], "mount {writer} has stored {round}");
        }
    }
    [ROUNDS, ROUNDS, 0, 0]
}

/// Each as fast as it can, at the same time; no store may be lost to the other's page.
fn stores_at_once(places: &[Place; 2]) -> [u64; PAGES] {
    thread::scope(|scope| {
        for (writer, place) in places.iter().enumerate() {
            scope.spawn(move || {
                for round in 1..=10 * ROUNDS {
                    let offset = writer * PAGE;
                    assert_eq!(place.map.load(offset), round - 1, "an own store is lost");
                    place.map.store(offset, round);
                    if round.is_multiple_of(ROUNDS) {
                        place.map.sync().expect("msync");
                    }
                }
            });
        }
    });
    [10 * ROUNDS, 10 * ROUNDS, 0, 0]
}

/// Each waits for its turn, looking at the page, and adds one. Before its store it reads the page in
/// through its read-only descriptor.
fn turns_in_one_page(places: &[Place; 2]) -> [u64; PAGES] {
    thread::scope(|scope| {
        for (mount, place) in (0..).zip(places) {
            scope.spawn(move || {
                for turn in (mount..ROUNDS).step_by(2) {
                    while place.map.load(0) != turn {
                        thread::yield_now();
                    }
                    assert_eq!(place.reads(0), [turn; 4], "mount {mount}");
                    place.map.store(0, turn + 1);
                }
            });
        }
    });
    [ROUNDS, 0, 0, 0]
}

/// One writes what the other's mapping shows, and the other stores what `read` shows here.
fn writes_beside_stores(places: &[Place; 2]) -> [u64; PAGES] {
    let [writer, mapper] = places;
    for round in 1..=ROUNDS {
        writer.write(0, round);
        assert_eq!(mapper.reads(0), [round; 4], "written elsewhere");
        mapper.map.store(PAGE, round);
        assert_eq!(writer.reads(PAGE), [round; 4], "stored elsewhere");
        // In one page, on one mount.
        writer.write(2 * PAGE, round);
        writer.map.store(2 * PAGE + 8, round);
        assert_eq!(writer.reads(2 * PAGE), [round; 4], "written here");
        assert_eq!(writer.reads(2 * PAGE + 8), [round; 4], "stored here");
    }
    assert_eq!(mapper.reads(2 * PAGE + 8), [ROUNDS; 4]);
    [ROUNDS, ROUNDS, ROUNDS, 0]
}

/// Words of each page of one mount's file: every other one is stored, the others are written.
const WORDS: usize = 8;
const WORD: usize = PAGE / WORDS;
/// How many pages, none of which the kernel has, one round goes over.
const FRESH: usize = 64;
const FRESH_ROUNDS: usize = 40;

/// One of the words of each page of a round.
fn marks(file: &File, map: &Mapping, round: usize, word: usize) {
    for page in 0..FRESH {
        let offset = (round * FRESH + page) * PAGE + word * WORD;
        match word % 2 {
            0 => map.store(offset, 1),
            _ => {
                let wrote = file.write_all_at(&1u64.to_ne_bytes(), offset as u64);
                wrote.expect("written");
            }
        }
    }
}

/// Stores and writes beside each other in the same pages, by several threads at once; none is lost.
fn writes_beside_stores_on_one_mount(name: &str, writes: Writes) {
    const LEN: usize = FRESH_ROUNDS * FRESH * PAGE;
    let options = WorldOptions::mounts(1).writes(writes);
    let world = World::start_on(name, &options, |export| {
        let file = File::create(export.join("f")).expect("a file");
        file.set_len(LEN as u64).expect("a hole");
    });
    let path = world.mount(0).path("f");
    let host = world.server.export.join("f");
    within(name, LIMIT, move || {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("a file");
        let map = Mapping::new(&file, 0, LEN, true).expect("a mapping");
        let start = Barrier::new(WORDS);
        thread::scope(|scope| {
            for word in 0..WORDS {
                let (file, map, start) = (&file, &map, &start);
                scope.spawn(move || {
                    for round in 0..FRESH_ROUNDS {
                        start.wait();
                        marks(file, map, round, word);
                    }
                });
            }
        });
        let places = (0..LEN).step_by(WORD);
        let lost: Vec<usize> = places.clone().filter(|at| map.load(*at) != 1).collect();
        assert!(lost.is_empty(), "lost at {lost:?}");
        map.sync().expect("msync");
        file.sync_all().expect("fsync");
        let bytes = fs::read(host).expect("the storage host's file");
        let lost: Vec<usize> = places.filter(|at| bytes[*at] != 1).collect();
        assert!(lost.is_empty(), "lost on the storage host at {lost:?}");
    });
}

/// What another mount appends to a file behind a page's last byte shows in the page, is there after the page has been written
/// back, and isn't written over by it: its kernel knows where the file ends before it has the page.
#[test]
fn what_another_mount_appends_to_a_page_that_is_stored_into_stays() {
    const FIRST: usize = 1000;
    const APPENDED: [u8; 1000] = [b'b'; 1000];
    let name = "what another mount appends to a page";
    let world = World::start_on(name, &WorldOptions::mounts(2), |export| {
        fs::write(export.join("f"), [b'a'; FIRST]).expect("a file");
    });
    let [appends, stores] = [0, 1].map(|mount| world.mount(mount).path("f"));
    let host = world.server.export.join("f");
    within(name, LIMIT, move || {
        let file = OpenOptions::new().read(true).write(true).open(stores);
        let file = file.expect("a file to store into");
        let map = Mapping::new(&file, 0, PAGE, true).expect("a mapping");
        map.store(0, 1);
        map.sync().expect("msync");
        let to_append = OpenOptions::new().append(true).open(appends);
        let to_append = to_append.expect("a file to append to");
        for round in 1..=3 {
            (&to_append).write_all(&APPENDED).expect("appended");
            let end = FIRST + round * APPENDED.len();
            let mut seen = vec![0; end - FIRST];
            for value in 2..=4 {
                map.store(0, value);
                map.copy_to(FIRST, &mut seen);
                assert_eq!(seen, vec![b'b'; end - FIRST], "in round {round}");
                map.sync().expect("msync");
            }
            map.store(0, 5);
            assert_eq!(file.metadata().expect("stat").len(), end as u64);
            map.sync().expect("msync");
            let stored = fs::read(&host).expect("the storage host's file");
            assert_eq!(stored[FIRST..], vec![b'b'; end - FIRST], "in round {round}");
        }
    });
}

/// Stores numbers at one place until all is done. No store may be lost. Returns the last.
fn stores_until(done: &AtomicBool, map: &Mapping, offset: usize) -> u64 {
    let mut round = 0;
    while !done.load(Ordering::Relaxed) {
        assert_eq!(map.load(offset), round, "an own store is lost");
        round += 1;
        map.store(offset, round);
    }
    round
}

/// Each stores into a page of its own for as long as the second cuts off and brings back pages behind them. Its kernel writes
/// nothing back meanwhile; what waits for that must not be what a truncation waits for, here or at the server.
fn stores_beside_truncations(places: &[Place; 2]) -> [u64; PAGES] {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let stores = [0, 1].map(|writer| {
            let (map, done) = (&places[writer].map, &done);
            scope.spawn(move || stores_until(done, map, writer * PAGE))
        });
        for round in 0..ROUNDS {
            let len = 2 * PAGE as u64 + round * 8;
            places[1].file.set_len(len).expect("truncated");
        }
        let whole = (PAGES * PAGE) as u64;
        places[1].file.set_len(whole).expect("made longer");
        done.store(true, Ordering::Relaxed);
        let [first, second] = stores.map(|stores| stores.join().expect("nothing is lost"));
        [first, second, 0, 0]
    })
}

/// What is copied into a page by `copy_file_range` leaves what is stored beside it.
fn copies_beside_stores(places: &[Place; 2]) -> [u64; PAGES] {
    const STORED: usize = PAGE - 8;
    let (map, file, done) = (&places[0].map, &places[0].file, AtomicBool::new(false));
    places[0].write(PAGE, 7);
    thread::scope(|scope| {
        let stores = scope.spawn(|| stores_until(&done, map, STORED));
        for _ in 0..5 * ROUNDS {
            let (mut from, mut to) = (PAGE as u64, 0);
            let copied = copy_file_range(file, Some(&mut from), file, Some(&mut to), 8);
            assert_eq!(copied, Ok(8));
        }
        done.store(true, Ordering::Relaxed);
        stores.join().expect("nothing is lost");
    });
    [7, 7, 0, 0]
}

#[test]
fn stores_and_truncations_of_two_mounts_never_wait_for_each_other() {
    let name = "stores beside truncations";
    on_two_mounts(name, Writes::Back, stores_beside_truncations);
}

#[test]
fn a_copy_beside_a_store_into_the_same_page_leaves_it() {
    let name = "copies beside stores";
    on_two_mounts(name, Writes::Back, copies_beside_stores);
}

#[test]
fn what_is_stored_in_a_mapping_is_data_to_who_looks_for_holes() {
    const LEN: u64 = 1 << 20;
    const STORED: usize = 64 << 10;
    let name = "holes with stores";
    let world = World::start_on(name, &WorldOptions::mounts(1), |export| {
        let file = File::create(export.join("f")).expect("a file");
        file.set_len(LEN).expect("a hole");
    });
    let path = world.mount(0).path("f");
    within(name, LIMIT, move || {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("a file");
        let map = Mapping::new(&file, 0, LEN as usize, true).expect("a mapping");
        map.store(STORED, 1);
        let data = seek(&file, SeekFrom::Data(0)).expect("there is data");
        assert!(data <= STORED as u64, "data begins at {data}");
        let hole = seek(&file, SeekFrom::Hole(STORED as u64)).expect("the end at the latest");
        assert!(hole > STORED as u64, "a hole at {hole}");
        assert_eq!(map.load(STORED), 1);
    });
}

#[test]
fn a_write_beside_a_store_into_the_same_page_is_never_lost() {
    writes_beside_stores_on_one_mount("one-page", Writes::Through);
}

#[test]
fn a_write_beside_a_store_into_the_same_page_is_never_lost_with_write_back() {
    writes_beside_stores_on_one_mount("one-page-wb", Writes::Back);
}

#[test]
fn stores_into_different_pages_are_seen_on_the_other_mount_at_once() {
    on_two_mounts("pages", Writes::Through, stores_into_different_pages);
}

#[test]
fn stores_into_different_pages_are_seen_on_the_other_mount_at_once_with_write_back() {
    on_two_mounts("pages-wb", Writes::Back, stores_into_different_pages);
}

#[test]
fn stores_into_different_pages_at_the_same_time_are_never_lost() {
    on_two_mounts("at-once", Writes::Through, stores_at_once);
}

#[test]
fn stores_into_different_pages_at_the_same_time_are_never_lost_with_write_back() {
    on_two_mounts("at-once-wb", Writes::Back, stores_at_once);
}

#[test]
fn two_mounts_take_turns_in_one_page_that_was_read_in_through_a_read_only_descriptor() {
    on_two_mounts("turns", Writes::Through, turns_in_one_page);
}

#[test]
fn two_mounts_take_turns_in_one_page_with_write_back() {
    on_two_mounts("turns-wb", Writes::Back, turns_in_one_page);
}

#[test]
fn writes_and_stores_of_two_mounts_see_each_other() {
    on_two_mounts("beside", Writes::Through, writes_beside_stores);
}

#[test]
fn writes_and_stores_of_two_mounts_see_each_other_with_write_back() {
    on_two_mounts("beside-wb", Writes::Back, writes_beside_stores);
}
