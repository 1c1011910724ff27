//! Random operations on one file through a read-write descriptor, each checked
//! against a model in memory and through read-only descriptors: a long-held one on
//! the same mount (which the kernel caches) and one on a second mount.
//!
//! `fsx` opens its file read-write only; this covers what it can't see.

mod action;
mod model;
mod views;

pub use action::Action;

use crate::rng::Rng;
use action::Executor;
use model::Model;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use views::{Look, Views};

/// Actions shown when a run fails.
const REMEMBERED: usize = 24;
/// Everything is compared after one action in this many.
const EVERYWHERE: usize = 16;
/// Ways to read, on two mounts.
const WAYS: usize = 8;

/// What to run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the file is made and changed.
    pub dir: PathBuf,
    /// Another mount of the same export (or the same directory).
    pub second: PathBuf,
    /// Actions.
    pub operations: u64,
    /// Names the run.
    pub seed: u64,
    /// Greatest size of the file in bytes.
    pub max_len: usize,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Actions carried out.
    pub operations: u64,
    /// Ranges compared with the model.
    pub compared: u64,
    /// Actions that the file system does not support.
    pub unsupported: u64,
}

/// A file that is not what it should be.
#[derive(Debug)]
pub struct Failure {
    /// Number of the action after which it showed.
    pub operation: u64,
    /// What is wrong.
    pub what: String,
    /// The last actions, oldest first.
    pub last: Vec<(u64, Action)>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "after operation {}: {}", self.operation, self.what)?;
        writeln!(f, "the last operations:")?;
        self.last
            .iter()
            .try_for_each(|(number, action)| writeln!(f, "  {number:>7} {action:?}"))
    }
}

impl std::error::Error for Failure {}

/// Where a run is, for a watchdog or a signal handler.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of the action under way.
    pub operation: AtomicU64,
}

/// Carries out the actions that `config` names.
///
/// # Errors
/// At the first difference from the model, or when an operation fails.
pub fn run(config: &Config, progress: &Progress) -> Result<Summary, Box<Failure>> {
    let mut last = VecDeque::new();
    let mut summary = Summary::default();
    let fail = |operation, what: String, last: VecDeque<_>| {
        Box::new(Failure {
            operation,
            what,
            last: last.into(),
        })
    };
    let mut run = match Run::start(config) {
        Ok(run) => run,
        Err(error) => return Err(fail(0, format!("can't start: {error}"), last)),
    };
    for number in 1..=config.operations {
        progress.operation.store(number, Ordering::Relaxed);
        let action = Action::random(&mut run.rng, run.model.len(), config.max_len);
        last.push_back((number, action));
        if last.len() > REMEMBERED {
            last.pop_front();
        }
        match run.step(number, action) {
            Ok(counted) => summary.add(counted),
            Err(what) => return Err(fail(number, what, last)),
        }
    }
    match run.finish() {
        Ok(compared) => summary.compared += compared,
        Err(what) => return Err(fail(config.operations, what, last)),
    }
    Ok(summary)
}

impl Summary {
    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.compared += other.compared;
        self.unsupported += other.unsupported;
    }
}

struct Run {
    rng: Rng,
    model: Model,
    executor: Executor,
    views: Views,
    path: PathBuf,
}

impl Run {
    fn start(config: &Config) -> io::Result<Self> {
        let name = format!("leasefs-fsx2-{}-{}", std::process::id(), config.seed);
        let path = config.dir.join(&name);
        let executor = Executor::create(&path, config.max_len)?;
        let views = Views::open(&path, &config.second.join(&name), config.max_len);
        let views = views.inspect_err(|_| remove(&path))?;
        Ok(Self {
            rng: Rng::new(config.seed),
            model: Model::default(),
            executor,
            views,
            path,
        })
    }

    fn step(&mut self, number: u64, action: Action) -> Result<Summary, String> {
        let applied = self.executor.carry_out(number, action, &mut self.model);
        let supported = applied.map_err(|error| format!("{action:?} failed: {error}"))?;
        if matches!(action, Action::ReopenReaders) {
            self.views
                .reopen()
                .map_err(|error| format!("reopening failed: {error}"))?;
        }
        let mut ranges = vec![self.random_range()];
        ranges.extend(action.touched().filter(|_| supported));
        // All ways at once now and then; in between one, so that nothing refreshes another.
        let look = match self.rng.below(EVERYWHERE) {
            0 => Look::Everywhere,
            _ => Look::At(self.rng.below(WAYS)),
        };
        let compared = self.compare(look, &ranges)?;
        Ok(Summary {
            operations: 1,
            compared,
            unsupported: u64::from(!supported),
        })
    }

    fn random_range(&mut self) -> (usize, usize) {
        let len = self.model.len();
        let offset = self.rng.below(len);
        (offset, self.rng.between(1, 32 * 1024))
    }

    fn compare(&self, look: Look, ranges: &[(usize, usize)]) -> Result<u64, String> {
        let (views, writer) = (&self.views, self.executor.writer());
        let mut compared = views.compare_size(look, writer, &self.model)?;
        for range in ranges {
            compared += views.compare(look, writer, &self.model, *range)?;
        }
        Ok(compared)
    }

    fn finish(mut self) -> Result<u64, String> {
        let whole = (0, self.model.len());
        let mut compared = self.compare(Look::Everywhere, &[whole])?;
        self.views
            .reopen()
            .map_err(|error| format!("reopening failed: {error}"))?;
        compared += self.compare(Look::Everywhere, &[whole])?;
        Ok(compared)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &std::path::Path) {
    if let Err(error) = std::fs::remove_file(path) {
        eprintln!("{} could not be removed: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, seed: u64) -> Config {
        let dir = std::env::temp_dir().join(format!("leasefs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a scratch folder");
        Config {
            second: dir.clone(),
            dir,
            operations: 1500,
            seed,
            max_len: 128 * 1024,
        }
    }

    #[test]
    fn a_local_file_is_what_the_model_says() {
        for seed in 0..4 {
            let config = config("fsx2", seed);
            let outcome = run(&config, &Progress::default());
            std::fs::remove_dir_all(&config.dir).expect("the scratch folder goes");
            let summary = outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
            assert_eq!(summary.operations, 1500);
            assert!(summary.compared > 5 * 1500, "{summary:?}");
        }
    }

    #[test]
    fn a_second_mount_that_shows_something_else_is_noticed() {
        let honest = config("fsx2-other", 1);
        let other = honest.dir.join("other");
        std::fs::create_dir(&other).expect("a folder");
        let name = format!("leasefs-fsx2-{}-1", std::process::id());
        std::fs::write(other.join(&name), b"something else").expect("a file");
        let outcome = run(
            &Config {
                second: other,
                ..honest.clone()
            },
            &Progress::default(),
        );
        std::fs::remove_dir_all(&honest.dir).expect("the scratch folder goes");
        let failure = outcome.expect_err("the sizes differ");
        assert!(failure.what.contains("second"), "{failure}");
    }
}
