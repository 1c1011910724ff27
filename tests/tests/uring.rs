//! Programs that read and write asynchronously, as databases and virtual machines do: by io_uring, and past the cache.

use io_uring::{IoUring, opcode, squeue, types};
use leasefs_tests::mounted::{World, WorldOptions, Writes};
use leasefs_tests::rng::Rng;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const LONGEST: usize = 20_000;
/// Where reads and writes begin, at most: so most end behind the file's end.
const LAST: usize = 60_000;
const STEPS: usize = 400;
/// Reads at once.
const AT_ONCE: usize = 8;
const TURNS: u64 = 20;

struct Ring(IoUring);

impl Ring {
    fn new() -> Self {
        Self(IoUring::new(AT_ONCE as u32 * 2).expect("io_uring"))
    }

    /// Results in the order of the requests.
    fn run(&mut self, entries: Vec<squeue::Entry>) -> Vec<i32> {
        let count = entries.len();
        for (number, entry) in (0..).zip(entries) {
            let entry = entry.user_data(number);
            // SAFETY: who makes the entries waits here until they are done, with their files and buffers in its hands.
            unsafe { self.0.submission().push(&entry) }.expect("room for it");
        }
        self.0.submit_and_wait(count).expect("submitted");
        let mut results = vec![i32::MIN; count];
        for done in self.0.completion() {
            results[done.user_data() as usize] = done.result();
        }
        results
    }

    fn read(&mut self, file: &File, buffer: &mut [u8], offset: u64) -> i32 {
        self.run(vec![read(file, buffer, offset)])[0]
    }

    /// What many reads bring that are under way together.
    fn read_together(&mut self, file: &File, len: usize, offset: u64) -> Vec<Vec<u8>> {
        let mut buffers = vec![vec![0; len]; AT_ONCE];
        let places = (0..).map(|number| offset + number * len as u64);
        let reads = buffers
            .iter_mut()
            .zip(places)
            .map(|(buffer, place)| read(file, buffer, place));
        let results = self.run(reads.collect());
        for (buffer, result) in buffers.iter_mut().zip(results) {
            buffer.truncate(usize::try_from(result).expect("a read"));
        }
        buffers
    }

    /// Writes, syncs and reads again in one chain.
    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) {
        let mut again = vec![0; bytes.len()];
        let fd = types::Fd(file.as_raw_fd());
        let write = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(offset);
        let linked = |entry: squeue::Entry| entry.flags(squeue::Flags::IO_LINK);
        let results = self.run(vec![
            linked(write.build()),
            linked(opcode::Fsync::new(fd).build()),
            read(file, &mut again, offset),
        ]);
        let len = bytes.len() as i32;
        assert_eq!(results, [len, 0, len]);
        assert!(
            again == bytes,
            "what was written at {offset} reads otherwise"
        );
    }
}

fn read(file: &File, buffer: &mut [u8], offset: u64) -> squeue::Entry {
    let fd = types::Fd(file.as_raw_fd());
    let read = opcode::Read::new(fd, buffer.as_mut_ptr(), buffer.len() as u32);
    read.offset(offset).build()
}

fn open(path: &Path, writes: bool, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(writes).custom_flags(flags);
    options.open(path).expect("an open file")
}

/// What is read of the file in all ways there are, until its end.
fn expect_all(ring: &mut Ring, file: &File, expected: &[u8], offset: u64) {
    let rest = expected.get(offset as usize..).unwrap_or_default();
    let mut buffer = vec![0; expected.len() + LONGEST];
    let read = ring.read(file, &mut buffer, offset);
    assert!(
        read == rest.len() as i32 && buffer.starts_with(rest),
        "{read} bytes at {offset}, of {}",
        expected.len()
    );
    let len = 1 + rest.len() / (AT_ONCE - 2);
    let together = ring.read_together(file, len, offset).concat();
    assert!(together == rest, "reads at once at {offset} differ");
    let read = file.read_at(&mut buffer, offset).expect("a read");
    assert_eq!(read, rest.len(), "pread at {offset}");
}

fn works_as_locally(writes: Writes) {
    let world = World::start("uring", &WorldOptions::mounts(1).writes(writes));
    let (path, local) = (
        world.mount(0).path("f"),
        world.server.export.join("../local"),
    );
    let mut ring = Ring::new();
    for seed in 0..2 {
        let mut rng = Rng::new(seed);
        fs::write(&path, []).expect("a file");
        let twin = File::create_new(&local).expect("a local file");
        let direct = libc::O_DIRECT;
        let files = [(true, 0), (true, direct), (false, 0), (false, direct)];
        let files = files.map(|(writes, flags)| open(&path, writes, flags));
        for _ in 0..STEPS {
            let (offset, len) = (rng.below(LAST) as u64, 1 + rng.below(LONGEST));
            let file = &files[rng.below(4)];
            let writer = &files[rng.below(2)];
            match rng.below(8) {
                0..3 => {
                    let bytes = (0..len).map(|_| rng.next_u64() as u8).collect::<Vec<_>>();
                    ring.write(writer, &bytes, offset);
                    twin.write_all_at(&bytes, offset).expect("a local write");
                }
                3 => {
                    for file in [writer, &twin] {
                        file.set_len(offset).expect("truncated");
                    }
                }
                _ => expect_all(
                    &mut ring,
                    file,
                    &fs::read(&local).expect("the local file"),
                    offset,
                ),
            }
        }
        fs::remove_file(&local).expect("removed");
    }
}

#[test]
fn io_uring_reads_and_writes_as_on_a_local_file() {
    works_as_locally(Writes::Back);
}

#[test]
fn io_uring_reads_and_writes_as_on_a_local_file_where_nothing_is_buffered() {
    works_as_locally(Writes::Through);
}

/// What another mount appends, turn by turn, is read here each time, after `before` each.
fn what_is_appended_is_read(name: &str, writes: bool, before: impl Fn(&File) -> io::Result<()>) {
    let world = World::start(name, &WorldOptions::mounts(2).write_back());
    let mut other = Vec::new();
    fs::write(world.mount(1).path("f"), &other).expect("a file");
    let appender = open(&world.mount(1).path("f"), true, 0);
    let mut ring = Ring::new();
    let here = [0, libc::O_DIRECT].map(|flags| open(&world.mount(0).path("f"), writes, flags));
    for turn in 0..TURNS {
        let end = other.len() as u64;
        let new = vec![turn as u8; 3_000];
        appender.write_all_at(&new, end).expect("appended");
        other.extend(&new);
        for file in &here {
            before(file).expect("the size");
            expect_all(&mut ring, file, &other, end);
        }
    }
}

#[test]
fn a_read_only_descriptor_reads_by_io_uring_what_another_mount_has_just_appended() {
    what_is_appended_is_read("uring-r", false, |_| Ok(()));
}

#[test]
fn a_writable_descriptor_reads_by_io_uring_what_another_mount_had_appended_when_it_asked_for_the_size()
 {
    what_is_appended_is_read("uring-rw", true, |file| file.metadata().map(drop));
}

/// The kernel cuts a file off where it believes it to end when such a write fails.
#[test]
fn a_write_by_io_uring_that_fails_leaves_what_another_mount_has_appended() {
    const BEYOND_ALL: u64 = 1 << 50;
    let world = World::start("uring-fails", &WorldOptions::mounts(2).write_back());
    let [here, there] = [0, 1].map(|mount| world.mount(mount).path("f"));
    fs::write(&here, "here").expect("a file");
    let file = open(&here, true, 0);
    assert_eq!(file.metadata().expect("stat").len(), 4);
    open(&there, true, 0)
        .write_all_at(b"there", 4)
        .expect("appended");
    let fd = types::Fd(file.as_raw_fd());
    let bytes = [1; 4096];
    let write = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(BEYOND_ALL);
    let results = Ring::new().run(vec![write.build()]);
    assert_eq!(results, [-libc::EFBIG]);
    assert_eq!(fs::read(&there).expect("a read"), b"herethere");
    assert_eq!(fs::read(&here).expect("a read"), b"herethere");
}
