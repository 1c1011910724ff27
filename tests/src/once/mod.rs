//! A load of changes that each must take effect once, while connections are cut and the server is
//! killed: every answer agrees with the final tree.

mod log;
mod model;
mod worker;

use crate::mounted::{Background, in_background};
use crate::rng::Rng;
use log::{Log, check_log};
use model::Model;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use worker::Wrong;

/// Workers with a tree of their own, on each mount.
const TREES: usize = 2;
/// Within this time what was buffered is at the storage host.
const SETTLES: Duration = Duration::from_secs(10);

/// How far all have come, and whether to go on.
#[derive(Debug, Default)]
pub struct Mark {
    stop: AtomicBool,
    operations: AtomicU64,
    wrong: AtomicBool,
}

impl Mark {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn done(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations done.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Whether a worker has stopped at an answer that can't be true.
    pub fn is_wrong(&self) -> bool {
        self.wrong.load(Ordering::Relaxed)
    }
}

/// What a worker came to.
enum Outcome {
    Tree(String, Model),
    Log(usize, Log),
    Race(Vec<bool>),
    Replaced(u64),
    Watched,
}

/// A running load.
pub struct Load {
    mark: Arc<Mark>,
    workers: Vec<Background<Result<Outcome, Wrong>>>,
}

type Work = dyn FnOnce(&Path, &Mark) -> Result<Outcome, Wrong> + Send;

impl Load {
    /// Starts the workers: trees, a log and a race on each mount; a file that is replaced on the
    /// first and looked at on all.
    ///
    /// # Panics
    /// If the first file can't be made.
    pub fn start(mounts: &[PathBuf], seed: u64) -> Self {
        let first = mounts.first().expect("a mount");
        fs::write(first.join("current"), "0.\n").expect("the file to replace");
        let mut load = Self {
            mark: Arc::default(),
            workers: Vec::new(),
        };
        let rng = Rng::new(seed);
        for (index, dir) in mounts.iter().enumerate() {
            for tree in 0..TREES {
                let prefix = format!("t{index}{tree}");
                let rng = rng.fork((index * TREES + tree) as u64);
                load.add(dir, &prefix.clone(), move |dir, mark| {
                    let model = worker::tree(dir, &prefix, rng, mark)?;
                    Ok(Outcome::Tree(prefix, model))
                });
            }
            load.add(dir, "log", move |dir, mark| {
                let (records, refused) = worker::log(dir, index, mark)?;
                Ok(Outcome::Log(index, Log { records, refused }))
            });
            load.add(dir, "race", |dir, mark| {
                worker::race(dir, mark).map(Outcome::Race)
            });
            load.add(dir, "watch", |dir, mark| {
                worker::watch(dir, mark).map(|()| Outcome::Watched)
            });
        }
        load.add(first, "replace", |dir, mark| {
            worker::replace(dir, mark).map(Outcome::Replaced)
        });
        load
    }

    fn add(
        &mut self,
        dir: &Path,
        what: &str,
        work: impl FnOnce(&Path, &Mark) -> Result<Outcome, Wrong> + Send + 'static,
    ) {
        let (dir, mark, work) = (dir.to_owned(), Arc::clone(&self.mark), Box::new(work));
        let what = format!("{what} on {}", dir.display());
        let named = what.clone();
        self.workers.push(in_background(what, move || {
            run(&dir, &mark, work).map_err(|wrong| format!("{named}: {wrong}"))
        }));
    }

    /// How far it has come.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Ends it.
    ///
    /// # Errors
    /// The answers that can't be true.
    ///
    /// # Panics
    /// If a worker doesn't end within `limit`.
    pub fn finish(mut self, limit: Duration) -> Result<Answers, Vec<Wrong>> {
        self.mark.stop.store(true, Ordering::Relaxed);
        let (mut outcomes, mut wrong) = (Vec::new(), Vec::new());
        for worker in &mut self.workers {
            match worker.done_within(limit).0 {
                Ok(outcome) => outcomes.push(outcome),
                Err(found) => wrong.push(found),
            }
        }
        match wrong.is_empty() {
            true => Ok(Answers(outcomes)),
            false => Err(wrong),
        }
    }
}

/// What the workers of a load were told.
pub struct Answers(Vec<Outcome>);

impl Answers {
    /// Compares with what the export holds and with what each mount has kept of the log in its
    /// recovery folder. Returns what differs.
    pub fn differences(&self, export: &Path, kept: &[String]) -> Vec<Wrong> {
        // Buffered bytes come within seconds.
        let until = Instant::now() + SETTLES;
        let mut wrong = check(export, &self.0, kept);
        while !wrong.is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(100));
            wrong = check(export, &self.0, kept);
        }
        wrong
    }
}

fn run(dir: &Path, mark: &Mark, work: Box<Work>) -> Result<Outcome, Wrong> {
    let outcome = work(dir, mark);
    if outcome.is_err() {
        mark.wrong.store(true, Ordering::Relaxed);
    }
    outcome
}

fn check(export: &Path, outcomes: &[Outcome], kept: &[String]) -> Vec<Wrong> {
    let found = match entries(export) {
        Ok(found) => found,
        Err(error) => return vec![format!("{}: {error}", export.display())],
    };
    let mut wrong = Vec::new();
    let (mut races, mut logs) = (Vec::new(), BTreeMap::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Tree(prefix, model) => {
                let own = |name: &str| name.starts_with(&format!("{prefix}-"));
                let found = found.iter().filter(|(name, _)| own(name));
                let found = found.map(|(name, entry)| (name.clone(), entry.clone()));
                wrong.extend(model.differences(&found.collect()));
            }
            Outcome::Log(number, log) => drop(logs.insert(*number, *log)),
            Outcome::Race(won) => races.push(won.as_slice()),
            Outcome::Replaced(number) => {
                let current = found.get("current").and_then(|(text, _)| text.as_deref());
                if current != Some(format!("{number}.\n").as_str()) {
                    wrong.push(format!("current: expected {number}, found {current:?}"));
                }
            }
            Outcome::Watched => (),
        }
    }
    wrong.extend(check_race(&races));
    let log = found.get("log").and_then(|(text, _)| text.as_deref());
    wrong.extend(check_log(log.unwrap_or_default(), &logs, kept));
    wrong
}

/// Each name in a directory, with its content if it is a file, and its inode.
fn entries(dir: &Path) -> io::Result<BTreeMap<String, (Option<String>, u64)>> {
    let mut entries = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        let content = match meta.is_dir() {
            true => None,
            false => Some(fs::read_to_string(entry.path())?),
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.insert(name, (content, meta.ino()));
    }
    Ok(entries)
}

/// Every name that somebody tried to create was created by one.
fn check_race(races: &[&[bool]]) -> Vec<String> {
    let longest = races.iter().map(|won| won.len()).max().unwrap_or(0);
    let winners = |round: usize| {
        let won = |won: &&&[bool]| won.get(round) == Some(&true);
        races.iter().filter(won).count()
    };
    let wrong = (0..longest).filter(|round| winners(*round) != 1);
    wrong
        .map(|round| format!("race-{round} was created by {}", winners(round)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_that_nobody_or_everybody_has_won_is_flagged() {
        assert!(check_race(&[&[true, false], &[false, true, true]]).is_empty());
        assert_eq!(check_race(&[&[true, false], &[true, true]]).len(), 1);
        assert_eq!(check_race(&[&[true, false], &[false, false]]).len(), 1);
    }
}
