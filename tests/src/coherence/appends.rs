//! Logs that all workers append to. A log takes a bounded number of records; then
//! the workers go on to the next.

use super::Config;
use super::files::{PAGE, map_page, pread, through_sendfile, words};
use super::judge::{by_object, judge};
use super::report::FamilyReport;
use super::run::Program;
use super::worker::{At, Problem, Worker};
use crate::lin::specs::{Log, LogOp, RecordId};
use crate::lin::{Entry, Who};
use crate::mapping::Mapping;
use crate::rng::Rng;
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const RECORD: usize = 64;
const RECORDS_PER_PAGE: usize = PAGE / RECORD;
/// Records after which a log is full: some more than fit into one page.
const CAPACITY: usize = 96;
/// Most bytes a log can have (workers may overshoot its capacity a little).
const LONGEST: usize = 4 * CAPACITY * RECORD;
/// Logs in use at any time.
const ACTIVE: usize = 6;
/// The record every log begins with, so that its first page exists.
const FIRST: RecordId = 1;

/// What one mount holds of one log, opened when it is first used.
struct Held {
    path: PathBuf,
    reader: OnceLock<File>,
    appender: OnceLock<File>,
    map: OnceLock<Mapping>,
}

pub(super) struct Appends {
    /// By mount, then by log.
    held: Vec<Vec<Held>>,
    started: Vec<AtomicUsize>,
    first_open: AtomicUsize,
    next_record: AtomicU64,
}

fn record_bytes(id: RecordId) -> Vec<u8> {
    (0..RECORD as u64 / 8)
        .flat_map(|word| word_of(id, word).to_le_bytes())
        .collect()
}

fn word_of(id: RecordId, index: u64) -> u64 {
    id.wrapping_mul(2 * index + 1)
}

/// The record in `bytes`, if it is whole.
fn record_id(bytes: &[u8]) -> Option<RecordId> {
    let id = words(bytes).next().filter(|id| *id != 0)?;
    let whole = bytes.len() == RECORD
        && words(bytes)
            .zip(0..)
            .all(|(word, index)| word == word_of(id, index));
    whole.then_some(id)
}

fn records(bytes: &[u8]) -> io::Result<Vec<RecordId>> {
    let parsed = bytes.chunks(RECORD).enumerate().map(|(index, chunk)| {
        record_id(chunk)
            .ok_or_else(|| io::Error::other(format!("record {index} is torn: {chunk:x?}")))
    });
    parsed.collect()
}

impl Held {
    fn new(path: PathBuf) -> Self {
        let (reader, appender, map) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self {
            path,
            reader,
            appender,
            map,
        }
    }

    fn reader(&self) -> io::Result<&File> {
        once(&self.reader, || File::open(&self.path))
    }

    fn appender(&self) -> io::Result<&File> {
        once(&self.appender, || self.open_to_append())
    }

    fn open_to_append(&self) -> io::Result<File> {
        OpenOptions::new().append(true).open(&self.path)
    }

    fn first_page(&self) -> io::Result<&Mapping> {
        once(&self.map, || map_page(self.reader()?, 0))
    }
}

fn once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
    if let Some(made) = cell.get() {
        return Ok(made);
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made))
}

/// Counts the records in a mapped page. They are read in rising order and a log
/// only grows, so the count was true when its last load happened.
fn count_in_page(map: &Mapping) -> usize {
    (0..RECORDS_PER_PAGE)
        .take_while(|index| map.load(index * RECORD + RECORD - 8) != 0)
        .count()
}

fn whole_records(bytes: u64) -> io::Result<usize> {
    if !bytes.is_multiple_of(RECORD as u64) {
        return Err(io::Error::other(format!(
            "size {bytes} ends inside a record"
        )));
    }
    Ok(bytes as usize / RECORD)
}

/// What an operation saw, before the final content is known.
#[derive(Debug, Clone)]
pub(super) enum Saw {
    /// Appended this record.
    Append(RecordId),
    /// Read these records, all there were.
    Records(Vec<RecordId>),
    /// Learned the length only.
    Length(usize),
    /// Learned how many records the first page has.
    FirstPage(usize),
}

impl Appends {
    fn append(&self, worker: &mut Worker<Saw>, at: At) -> Result<(), Problem> {
        let held = &self.held[at.mount][at.object];
        let id = self.next_record.fetch_add(1, Ordering::Relaxed);
        self.started[at.object].fetch_add(1, Ordering::Relaxed);
        let appended = Saw::Append(id);
        let write = |mut file: &File| match file.write(&record_bytes(id))? {
            RECORD => Ok(Saw::Append(id)),
            short => Err(io::Error::other(format!(
                "only {short} bytes of a record were written"
            ))),
        };
        if worker.rng.chance(30) {
            worker.change(at, "open+append", appended, || {
                write(&held.open_to_append()?)
            })?;
        } else {
            worker.change(at, "append", appended, || write(held.appender()?))?;
        }
        Ok(())
    }

    /// The final content, which must be the same on each mount.
    fn final_content(&self, object: usize) -> Result<Vec<RecordId>, Problem> {
        let content =
            |held: &Held| -> io::Result<Vec<RecordId>> { records(&std::fs::read(&held.path)?) };
        let mut first: Option<Vec<RecordId>> = None;
        for (mount, logs) in self.held.iter().enumerate() {
            let found = content(&logs[object]).map_err(|error| {
                Problem(format!(
                    "log {object} read at the end through mount {mount}: {error}"
                ))
            })?;
            if first.as_ref().is_some_and(|first| *first != found) {
                return Err(Problem(format!(
                    "log {object} ends differently on mounts 0 and {mount}"
                )));
            }
            first = Some(found);
        }
        Ok(first.unwrap_or_default())
    }
}

impl Program for Appends {
    type Op = Saw;
    type Local = ();

    fn prepare(dirs: &[PathBuf], config: &Config) -> io::Result<Self> {
        let logs = ACTIVE + config.operations / (2 * CAPACITY);
        let name = |log: usize| format!("log{log}");
        for log in 0..logs {
            std::fs::write(dirs[0].join(name(log)), record_bytes(FIRST))?;
        }
        let of_mount = |dir: &PathBuf| {
            (0..logs)
                .map(|log| Held::new(dir.join(name(log))))
                .collect()
        };
        Ok(Self {
            held: dirs.iter().map(of_mount).collect(),
            started: (0..logs).map(|_| AtomicUsize::new(0)).collect(),
            first_open: AtomicUsize::new(0),
            next_record: AtomicU64::new(FIRST + 1),
        })
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        let first = self.first_open.load(Ordering::Relaxed);
        let full = self.started[first].load(Ordering::Relaxed) >= CAPACITY;
        if full && first + ACTIVE < self.started.len() {
            // Losing the race means that somebody else has moved on already.
            let _ = self.first_open.compare_exchange(
                first,
                first + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        first + rng.below(ACTIVE)
    }

    fn change(&self, worker: &mut Worker<Saw>, (): &mut (), at: At) -> Result<(), Problem> {
        if self.started[at.object].load(Ordering::Relaxed) >= 2 * CAPACITY {
            return Ok(());
        }
        self.append(worker, at)
    }

    fn read(&self, worker: &mut Worker<Saw>, (): &mut (), at: At) -> Result<(), Problem> {
        let held = &self.held[at.mount][at.object];
        let whole = |bytes: Vec<u8>| records(&bytes).map(|found| vec![Saw::Records(found)]);
        let length = |bytes: u64| whole_records(bytes).map(|found| vec![Saw::Length(found)]);
        match worker.rng.below(12) {
            0..3 => worker.read(at, "pread", || {
                pread(held.reader()?, 0, LONGEST).and_then(whole)
            }),
            3..5 => worker.read(at, "open+pread", || {
                pread(&File::open(&held.path)?, 0, LONGEST).and_then(whole)
            }),
            5..7 => worker.read(at, "mmap", || {
                Ok(vec![Saw::FirstPage(count_in_page(held.first_page()?))])
            }),
            7 => worker.read(at, "sendfile", || {
                // As programs do that send a file. Splicing asks for no attributes: behind
                // the size that was looked at last it finds the end.
                held.reader()?.metadata()?;
                through_sendfile(held.reader()?, 0, LONGEST).and_then(whole)
            }),
            8 => worker.read(at, "lseek end", || {
                length(rustix::fs::seek(
                    held.reader()?,
                    rustix::fs::SeekFrom::End(0),
                )?)
            }),
            9 => worker.read(at, "fstat", || length(held.reader()?.metadata()?.len())),
            _ => worker.read(at, "stat", || length(std::fs::metadata(&held.path)?.len())),
        }
    }

    fn judge(
        &self,
        entries: Vec<(usize, Entry<Saw>)>,
        report: &mut FamilyReport,
    ) -> Result<(), Problem> {
        let mut logs = HashMap::new();
        let mut histories = std::collections::BTreeMap::new();
        for (object, history) in by_object(entries) {
            let content = self.final_content(object)?;
            whole_and_single(object, &content, &history)?;
            let history = history
                .into_iter()
                .filter_map(|entry| reduced(object, entry, &content));
            histories.insert(object, history.collect::<Result<Vec<_>, _>>()?);
            logs.insert(object, Log::ending_as(&content, 1));
        }
        judge(
            report,
            &histories,
            |object| logs[&object].clone(),
            |object| format!("file log{object}"),
        );
        Ok(())
    }
}

/// Nothing that was acknowledged is missing, nothing is there twice, nothing is
/// there that nobody wrote.
fn whole_and_single(
    log: usize,
    content: &[RecordId],
    history: &[Entry<Saw>],
) -> Result<(), Problem> {
    let mut found = HashSet::new();
    if let Some(id) = content.iter().find(|id| !found.insert(**id)) {
        return Err(Problem(format!("log {log}: record {id:#x} is there twice")));
    }
    let mut known = HashSet::from([FIRST]);
    for entry in history {
        let Saw::Append(id) = entry.op else { continue };
        known.insert(id);
        if entry.end.is_some() && !found.contains(&id) {
            let Who { mount, worker } = entry.who;
            return Err(Problem(format!(
                "log {log}: record {id:#x}, acknowledged to worker {worker} on mount {mount}, is lost"
            )));
        }
    }
    match content.iter().find(|id| !known.contains(id)) {
        Some(id) => Err(Problem(format!("log {log}: nobody wrote record {id:#x}"))),
        None => Ok(()),
    }
}

/// The operation in terms of the log's length; an append that never happened is
/// none.
fn reduced(
    log: usize,
    entry: Entry<Saw>,
    content: &[RecordId],
) -> Option<Result<Entry<LogOp>, Problem>> {
    let Entry {
        who,
        how,
        start,
        end,
        op,
    } = entry;
    let op = match op {
        Saw::Append(id) if end.is_none() && !content.contains(&id) => return None,
        Saw::Append(id) => LogOp::Append(id),
        Saw::Length(found) => LogOp::Length(found),
        Saw::FirstPage(found) => LogOp::LengthUpTo {
            found,
            limit: RECORDS_PER_PAGE,
        },
        Saw::Records(found) if content.starts_with(&found) => LogOp::Length(found.len()),
        Saw::Records(found) => {
            let at = found
                .iter()
                .zip(content)
                .take_while(|(a, b)| a == b)
                .count();
            return Some(Err(Problem(format!(
                "log {log}: {how} by {who} at {start} ns saw record {:#x?} in place {at}, which \
                 ended as {:#x?}",
                found.get(at),
                content.get(at),
            ))));
        }
    };
    Some(Ok(Entry {
        who,
        how,
        start,
        end,
        op,
    }))
}
