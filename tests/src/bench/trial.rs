//! Work that is being measured.

use super::System;
use super::counts::Costs;
use super::inputs::Inputs;
use super::scale::Scale;
use super::sharing::median;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One row, on one system, once.
pub struct Trial<'a> {
    /// On which.
    pub system: &'a mut dyn System,
    /// How much.
    pub scale: &'a Scale,
    /// With what.
    pub inputs: &'a Inputs,
    /// Tells it from all others.
    pub number: u32,
    /// What records our daemons meanwhile.
    pub perf: Option<&'a Perf>,
}

/// A running `perf record --control fifo:..`.
#[derive(Debug)]
pub struct Perf(File);

impl Perf {
    /// Listening at that FIFO.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn at(fifo: &Path) -> io::Result<Self> {
        File::options().write(true).open(fifo).map(Self)
    }

    fn tell(&self, command: &str) -> io::Result<()> {
        writeln!(&self.0, "{command}")
    }
}

/// Work that was timed.
#[derive(Debug)]
pub struct Timed {
    took: Duration,
    costs: Option<Costs>,
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Sample {
    /// In the row's unit.
    pub value: f64,
    /// All of it.
    pub took: Duration,
    /// Where the system tells.
    pub costs: Option<Costs>,
}

impl Trial<'_> {
    /// A path of the tree, through the first mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.through(0, name)
    }

    /// A path of the tree, through one of the mounts.
    pub fn through(&self, mount: usize, name: &str) -> PathBuf {
        let dirs = self.system.dirs();
        dirs[mount % dirs.len()].join(name)
    }

    /// A name in the tree that nothing has yet.
    pub fn fresh(&self, what: &str) -> String {
        format!("{what}-{}", self.number)
    }

    /// A path of that, through the first mount.
    pub fn fresh_path(&self, what: &str) -> PathBuf {
        self.path(&self.fresh(what))
    }

    /// A new directory there.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn fresh_dir(&self, what: &str) -> io::Result<PathBuf> {
        let dir = self.fresh_path(what);
        std::fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// Does the work, which tells how many operations it was. What follows of it by itself is counted, not timed.
    ///
    /// # Errors
    /// If it fails.
    pub fn timed(&mut self, work: impl FnOnce() -> io::Result<u64>) -> io::Result<Timed> {
        let before = self.system.settled()?;
        let ours = self.perf.filter(|_| before.is_some());
        let tell = |command| ours.map_or(Ok(()), |perf| perf.tell(command));
        tell("enable")?;
        let begin = Instant::now();
        let operations = work()?;
        let took = begin.elapsed();
        tell("disable")?;
        let after = self.system.settled()?;
        let costs = after
            .zip(before)
            .map(|(after, before)| after.since(&before, operations));
        Ok(Timed { took, costs })
    }
}

impl Sample {
    /// How long an operation took, one after the other.
    pub fn each(&self) -> Option<Duration> {
        let operations = self.costs.as_ref()?.operations.max(1);
        Some(self.took.div_f64(operations as f64))
    }
}

impl Timed {
    /// In some unit.
    pub fn with(self, value: f64) -> Sample {
        Sample {
            value,
            took: self.took,
            costs: self.costs,
        }
    }

    /// So much each second.
    pub fn rate(self, amount: f64) -> Sample {
        let seconds = self.took.as_secs_f64();
        self.with(amount / seconds)
    }

    /// So many bytes, in MB each second.
    pub fn megabytes(self, bytes: usize) -> Sample {
        self.rate(bytes as f64 / 1e6)
    }

    /// Seconds.
    pub fn seconds(self) -> Sample {
        let seconds = self.took.as_secs_f64();
        self.with(seconds)
    }

    /// The median of these, in milliseconds.
    pub fn median(self, times: Vec<Duration>) -> Sample {
        let middle = median(times).unwrap_or_default();
        self.with(middle.as_secs_f64() * 1e3)
    }
}
