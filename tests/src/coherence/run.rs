//! Runs a family: prepares its objects, drives the workers, judges.

use super::appends::Appends;
use super::attributes::Attributes;
use super::directories::Directories;
use super::names::NameSpace;
use super::registers::Registers;
use super::report::{FamilyReport, Report};
use super::watchdog::Slot;
use super::worker::{At, Problem, Record, Worker};
use super::{Config, Family};
use crate::lin::Entry;
use crate::rng::Rng;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Of a hundred turns, those that begin with a change.
const CHANGES: usize = 50;
/// Of a hundred changes, those followed by reads through another mount.
const FOLLOWED: usize = 80;
/// Reads of one object in a row: in most turns few, so that changes and reads meet often.
const FEW: (usize, usize) = (1, 4);
/// In some turns many, so that caches are filled and then used until the next change.
const MANY: (usize, usize) = (8, 24);
/// Of a hundred turns with reads, those with many.
const LONG: usize = 25;

/// What a family does; one value is shared by all workers.
pub(super) trait Program: Send + Sync + Sized + 'static {
    /// Its operations.
    type Op: Clone + Send + 'static;
    /// What each worker keeps to itself.
    type Local: Default;

    /// Makes the objects; `dirs` is one empty folder seen through each mount.
    fn prepare(dirs: &[PathBuf], config: &Config) -> io::Result<Self>;
    /// The object of the next turn.
    fn pick(&self, rng: &mut Rng) -> usize;
    /// One change.
    fn change(
        &self,
        worker: &mut Worker<Self::Op>,
        own: &mut Self::Local,
        at: At,
    ) -> Result<(), Problem>;
    /// One read.
    fn read(
        &self,
        worker: &mut Worker<Self::Op>,
        own: &mut Self::Local,
        at: At,
    ) -> Result<(), Problem>;
    /// Last reads and the verdict.
    fn judge(
        &self,
        entries: Vec<(usize, Entry<Self::Op>)>,
        report: &mut FamilyReport,
    ) -> Result<(), Problem>;
}

/// Runs all families of `config`, one after another.
///
/// # Errors
/// When the directories can't be used, or don't show the same files.
pub fn run(config: &Config) -> io::Result<Report> {
    let mut report = Report {
        seed: config.seed,
        families: Vec::new(),
        stuck: false,
    };
    raise_descriptor_limit();
    for &family in &config.families {
        let folder = Folder::make(config, family)?;
        let (outcome, stuck) = run_named(config, family, &folder.seen_through);
        report.families.push(outcome);
        if stuck {
            report.stuck = true;
            folder.keep();
            break;
        }
    }
    Ok(report)
}

fn run_named(config: &Config, family: Family, dirs: &[PathBuf]) -> (FamilyReport, bool) {
    match family {
        Family::Registers => run_family::<Registers>(config, family, dirs),
        Family::Appends => run_family::<Appends>(config, family, dirs),
        Family::Names => run_family::<NameSpace>(config, family, dirs),
        Family::Directories => run_family::<Directories>(config, family, dirs),
        Family::Attributes => run_family::<Attributes>(config, family, dirs),
    }
}

fn run_family<P: Program>(
    config: &Config,
    family: Family,
    dirs: &[PathBuf],
) -> (FamilyReport, bool) {
    let mut report = FamilyReport::empty(family);
    let program = match P::prepare(dirs, config) {
        Ok(program) => Arc::new(program),
        Err(error) => {
            report.fault = Some(format!("the objects could not be made: {error}"));
            return (report, false);
        }
    };
    let requests_before = read_requests(config);
    let started = Instant::now();
    let outcome = drive(config, &program);
    report.took = started.elapsed();
    let requests_after = read_requests(config);
    report.read_requests = requests_after
        .zip(requests_before)
        .map(|(after, before)| after - before);
    let stuck = matches!(outcome, Err(Ended::Stuck(_)));
    let checking = Instant::now();
    match outcome {
        Ok(records) => judge_records(&*program, records, &mut report),
        Err(Ended::Stuck(what) | Ended::Problem(what)) => report.fault = Some(what),
    }
    report.checked_in = checking.elapsed();
    (report, stuck)
}

fn judge_records<P: Program>(program: &P, records: Vec<Record<P::Op>>, report: &mut FamilyReport) {
    let mut entries = Vec::new();
    for record in records {
        report.unanswered += record.lost_reads;
        report.slowest = report.slowest.max(record.slowest);
        entries.extend(record.entries);
    }
    if let Err(problem) = program.judge(entries, report) {
        report.fault = Some(problem.to_string());
    }
}

fn read_requests(config: &Config) -> Option<u64> {
    let count = config.read_requests.as_ref()?;
    (0..config.dirs.len()).map(|mount| count(mount)).sum()
}

/// Why the workers have no complete record.
enum Ended {
    Stuck(String),
    Problem(String),
}

/// What the workers share.
struct Progress {
    done: AtomicUsize,
    stop: AtomicBool,
}

type Outcome<Op> = Result<Record<Op>, Problem>;

fn drive<P: Program>(config: &Config, program: &Arc<P>) -> Result<Vec<Record<P::Op>>, Ended> {
    let progress = Arc::new(Progress {
        done: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });
    let (sender, finished) = mpsc::channel::<Outcome<P::Op>>();
    let mounts = config.dirs.len();
    let seeds = Rng::new(config.seed);
    let mut slots = Vec::new();
    for id in 0..mounts * config.workers_per_dir {
        let rng = seeds.fork(id as u64);
        let mut worker = Worker::new(id as u16, id % mounts, rng, config.pretend_stale);
        slots.push(Arc::clone(&worker.slot));
        let (program, progress) = (Arc::clone(program), Arc::clone(&progress));
        let (sender, goal) = (sender.clone(), config.operations);
        thread::spawn(move || {
            let result = work(&*program, &mut worker, &progress, goal, mounts);
            progress.stop.fetch_or(result.is_err(), Ordering::Relaxed);
            // Nobody listens any more once another worker was found stuck.
            let _ = sender.send(result.map(|()| worker.record));
        });
    }
    drop(sender);
    collect(&finished, &slots, config.limit)
}

fn work<P: Program>(
    program: &P,
    worker: &mut Worker<P::Op>,
    progress: &Progress,
    goal: usize,
    mounts: usize,
) -> Result<(), Problem> {
    let mut own = P::Local::default();
    while progress.done.load(Ordering::Relaxed) < goal && !progress.stop.load(Ordering::Relaxed) {
        let before = worker.record.entries.len() + worker.record.lost_reads;
        turn(program, worker, &mut own, mounts)?;
        let after = worker.record.entries.len() + worker.record.lost_reads;
        progress.done.fetch_add(after - before, Ordering::Relaxed);
    }
    Ok(())
}

/// A change through the worker's own mount, followed at once by reads through
/// another (the moment at which a stale cache shows), or just some reads.
fn turn<P: Program>(
    program: &P,
    worker: &mut Worker<P::Op>,
    own: &mut P::Local,
    mounts: usize,
) -> Result<(), Problem> {
    let object = program.pick(&mut worker.rng);
    let home = worker.home;
    let mut mount = home;
    if worker.rng.chance(CHANGES) {
        program.change(
            worker,
            own,
            At {
                mount: home,
                object,
            },
        )?;
        if !worker.rng.chance(FOLLOWED) {
            return Ok(());
        }
        mount = (home + worker.rng.between(1, mounts.max(2) - 1)) % mounts;
    }
    let (least, most) = if worker.rng.chance(LONG) { MANY } else { FEW };
    for _ in 0..worker.rng.between(least, most) {
        program.read(worker, own, At { mount, object })?;
    }
    Ok(())
}

fn collect<Op>(
    finished: &Receiver<Outcome<Op>>,
    slots: &[Arc<Slot>],
    limit: Duration,
) -> Result<Vec<Record<Op>>, Ended> {
    let mut records = Vec::new();
    let mut problem = None;
    while records.len() < slots.len() {
        match finished.recv_timeout(Duration::from_millis(100)) {
            Ok(Ok(record)) => records.push(record),
            Ok(Err(found)) => problem = problem.or(Some(found.0)),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let late: Vec<String> = slots
                    .iter()
                    .filter_map(|slot| slot.overdue(limit))
                    .map(|c| c.to_string())
                    .collect();
                if !late.is_empty() {
                    let late = late.join("\n  ");
                    return Err(Ended::Stuck(format!(
                        "took longer than {limit:?}:\n  {late}"
                    )));
                }
            }
        }
    }
    match problem {
        Some(problem) => Err(Ended::Problem(problem)),
        None if records.len() < slots.len() => Err(Ended::Problem("a worker panicked".to_owned())),
        None => Ok(records),
    }
}

/// The folder of one family, through each mount; removed on drop.
struct Folder {
    seen_through: Vec<PathBuf>,
}

impl Folder {
    fn make(config: &Config, family: Family) -> io::Result<Self> {
        let name = format!(
            "leasefs-coherence-{}-{}-{}",
            std::process::id(),
            config.seed,
            family.name()
        );
        let seen_through: Vec<PathBuf> = config.dirs.iter().map(|dir| dir.join(&name)).collect();
        let first = seen_through
            .first()
            .ok_or_else(|| io::Error::other("no directory given"))?;
        fs::create_dir(first).map_err(|error| at_path(first, &error))?;
        let folder = Self { seen_through };
        for path in &folder.seen_through {
            fs::metadata(path).map_err(|error| at_path(path, &error))?;
        }
        Ok(folder)
    }

    /// Leaves the folder there: a stuck worker still uses it.
    fn keep(mut self) {
        self.seen_through.clear();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(first) = self.seen_through.first() {
            remove(first);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        eprintln!("{} could not be removed: {error}", path.display());
    }
}

fn at_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Long-held descriptors are the point of some families: ask for all we may have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With the usual 1,024 the default run still fits.
    let _ = setrlimit(Resource::Nofile, limit);
}
