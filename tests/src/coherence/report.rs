//! What a run found, and how it is told.

use super::Family;
use std::fmt;
use std::time::Duration;

/// The outcome of one family.
#[derive(Debug, Clone)]
pub struct FamilyReport {
    /// Which family.
    pub family: Family,
    /// Operations in the checked histories.
    pub operations: usize,
    /// Those among them that only looked.
    pub reads: usize,
    /// Changes that took effect.
    pub changes: usize,
    /// Operations that failed without an answer.
    pub unanswered: usize,
    /// Reads whose object was changed last through another mount.
    pub remote_reads: usize,
    /// Requests that the mounts sent on behalf of reads.
    pub read_requests: Option<u64>,
    /// The longest operation and what it was.
    pub slowest: (Duration, &'static str),
    /// Time the operations took.
    pub took: Duration,
    /// Time the check took.
    pub checked_in: Duration,
    /// What is wrong, in words; `None` when every history is linearizable.
    pub fault: Option<String>,
}

impl FamilyReport {
    pub(super) fn empty(family: Family) -> Self {
        Self {
            family,
            operations: 0,
            reads: 0,
            changes: 0,
            unanswered: 0,
            remote_reads: 0,
            read_requests: None,
            slowest: (Duration::ZERO, ""),
            took: Duration::ZERO,
            checked_in: Duration::ZERO,
            fault: None,
        }
    }

    /// Share of reads (0..=1) that followed another mount's change.
    pub fn remote_share(&self) -> f64 {
        share(self.remote_reads as u64, self.reads as u64)
    }

    /// At least this share of reads (0..=1) was answered by a cache, where requests
    /// are counted: each request is taken to have answered a read of its own.
    pub fn cached_share(&self) -> Option<f64> {
        let reads = self.reads as u64;
        self.read_requests
            .map(|requests| share(reads.saturating_sub(requests), reads))
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

impl fmt::Display for FamilyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.fault.is_some() {
            "VIOLATION"
        } else {
            "linearizable"
        };
        write!(
            f,
            "{:<10} {verdict}: {} operations ({} reads, {} changes, {} unanswered), \
             {:.0} % of reads follow another mount's change",
            self.family.name(),
            self.operations,
            self.reads,
            self.changes,
            self.unanswered,
            100.0 * self.remote_share(),
        )?;
        if let Some(cached) = self.cached_share() {
            write!(f, ", at least {:.0} % cached", 100.0 * cached)?;
        }
        let (slowest, how) = self.slowest;
        write!(
            f,
            "; slowest {how} {slowest:.1?}; {:.1?} + check {:.1?}",
            self.took, self.checked_in
        )?;
        match &self.fault {
            Some(fault) => write!(f, "\n{fault}"),
            None => Ok(()),
        }
    }
}

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed it ran with.
    pub seed: u64,
    /// Its families, in order. A stuck family ends the run.
    pub families: Vec<FamilyReport>,
    /// Whether a worker never came back (its thread is still there).
    pub stuck: bool,
}

impl Report {
    /// True when nothing was found wrong.
    pub fn passed(&self) -> bool {
        !self.families.is_empty() && self.families.iter().all(|family| family.fault.is_none())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        for family in &self.families {
            writeln!(f, "{family}")?;
        }
        write!(
            f,
            "{}",
            if self.passed() {
                "PASSED: no read was stale"
            } else {
                "FAILED"
            }
        )
    }
}
