//! Answers that the kernel takes in late, because the thread that asked has to wait for a CPU: what
//! they say may be outdated by then, and must not spoil pages that are newer.

use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{World, WorldOptions, within};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// How long the test goes on.
const LASTS: Duration = Duration::from_secs(6);
/// Between two records: time for the page to be read in, and be looked at.
const BETWEEN: Duration = Duration::from_micros(700);
/// For how long the CPU of the one who asks is taken, and left.
const TAKEN: Duration = Duration::from_micros(1500);
const LEFT: Duration = Duration::from_micros(500);
/// So often a name is made beside the log, so that its directory is never calm: the kernel isn't
/// told names for a time then, but looks them up.
const STIRS_EVERY: u64 = 50;

const PAGE: usize = 4096;
/// Bytes of a record.
const RECORD: usize = 8;
/// Records of one page.
const RECORDS: usize = PAGE / RECORD;

/// This thread runs on the first CPU alone; `late`: only when nobody else wants it.
fn on_first_cpu(late: bool) {
    let policy = if late {
        libc::SCHED_IDLE
    } else {
        libc::SCHED_OTHER
    };
    // SAFETY: plain data, told with its size.
    let done = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpus);
        let none: libc::sched_param = std::mem::zeroed();
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus) == 0
            && libc::sched_setscheduler(0, policy, &raw const none) == 0
    };
    assert!(done, "{}", io::Error::last_os_error());
}

fn take_first_cpu(ended: &AtomicBool) {
    on_first_cpu(false);
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        while begin.elapsed() < TAKEN {
            std::hint::spin_loop();
        }
        thread::sleep(LEFT);
    }
}

/// Looks the log up by its name until told. Returns how often.
fn look_up(log: &Path, ended: &AtomicBool) -> u64 {
    on_first_cpu(true);
    let side = log.with_extension("side");
    let mut times = 0;
    while !ended.load(Ordering::Relaxed) {
        if times % STIRS_EVERY == 0 {
            File::create(&side).expect("a name");
            fs::remove_file(&side).expect("the name");
        }
        fs::metadata(log).expect("attributes");
        times += 1;
    }
    times
}

fn append(mut log: &File, ended: &AtomicBool) {
    for _ in 1..RECORDS {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        log.write_all(&[1; RECORD]).expect("a record");
        thread::sleep(BETWEEN);
    }
}

/// Counts the records of the page until told, or until there are less of them.
fn watch(page: &Mapping, ended: &AtomicBool) -> Result<(), String> {
    let mut last = 0;
    while !ended.load(Ordering::Relaxed) {
        let there = |at: &usize| page.load(at * RECORD) != 0;
        let now = (0..RECORDS).take_while(there).count();
        if now < last {
            return Err(format!("{last} records, then {now}"));
        }
        last = now;
    }
    Ok(())
}

/// One page of a log is written on one mount, and watched on another where it is looked up late.
fn one_page(here: &Path, there: &Path) -> Result<u64, String> {
    let mut options = OpenOptions::new();
    let options = options.create_new(true).append(true);
    let log = options.custom_flags(libc::O_DSYNC).open(there);
    let mut log = log.expect("the log");
    log.write_all(&[1; RECORD]).expect("a first record");
    let file = File::open(here).expect("the log");
    let page = Mapping::new(&file, 0, PAGE, false).expect("a mapping");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| take_first_cpu(&ended));
        let looks = scope.spawn(|| look_up(here, &ended));
        scope.spawn(|| {
            append(&log, &ended);
            ended.store(true, Ordering::Relaxed);
        });
        let watched = watch(&page, &ended);
        ended.store(true, Ordering::Relaxed);
        watched.map(|()| looks.join().expect("looks"))
    })
}

#[test]
fn a_name_looked_up_late_never_cuts_off_the_end_of_a_page() {
    let world = World::start("late", &WorldOptions::mounts(2));
    let dirs = [0, 1].map(|at| world.mount(at).dir.clone());
    let (looks, _) = within("logs that grow", LIMIT, move || {
        let begin = Instant::now();
        let (mut looks, mut log) = (0, 0);
        while begin.elapsed() < LASTS {
            log += 1;
            let [here, there] = dirs.each_ref().map(|dir| dir.join(format!("log{log}")));
            let watched = one_page(&here, &there);
            looks += watched.unwrap_or_else(|wrong| panic!("log {log}: {wrong}"));
        }
        looks
    });
    assert!(looks >= 200, "looked up {looks} times");
}
