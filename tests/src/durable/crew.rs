//! The writers of a round, each a process of its own.

use super::journal::{self, Entry, Op};
use super::model::WriterModel;
use crate::mounted::eventually;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Calls that each writer makes before the crash, at least.
const BEFORE: usize = 8;
/// And after it.
const AFTER: usize = 3;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Names `leasefs-durable-writer`, whose path only a test knows.
pub fn program(path: &str) {
    PROGRAM.get_or_init(|| path.into());
}

/// A writer's process.
#[derive(Debug)]
pub struct Member {
    /// Which it is.
    pub writer: u16,
    journal: PathBuf,
    errors: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
}

/// The writers of a round.
#[derive(Debug)]
pub struct Crew {
    /// The round's seed.
    pub seed: u64,
    /// They.
    pub members: Vec<Member>,
}

impl Crew {
    /// Starts them: each works in `root` of the mount that `mount` names for it.
    ///
    /// # Panics
    /// If they can't be started.
    pub fn start(
        journals: &Path,
        root: &Path,
        seed: u64,
        writers: u16,
        mount: impl Fn(u16) -> PathBuf,
    ) -> Self {
        let start = |writer: u16| {
            let file = |kind: &str| {
                let name = format!("{}-w{writer}.{kind}", root.display());
                journals.join(name)
            };
            let (journal, errors) = (file("journal"), file("log"));
            let mut command = Command::new(PROGRAM.get().expect("the test has named the program"));
            command.arg(mount(writer).join(root)).arg(&journal);
            for (name, value) in [
                ("--writer", u64::from(writer)),
                ("--writers", writers.into()),
                ("--seed", seed),
            ] {
                command.arg(name).arg(value.to_string());
            }
            command.stdin(Stdio::piped());
            command.stderr(File::create(&errors).expect("a file for its errors"));
            let child = command.spawn().expect("a writer can be started");
            Member {
                writer,
                journal,
                errors,
                child,
                ended: None,
            }
        };
        Self {
            seed,
            members: (0..writers).map(start).collect(),
        }
    }

    /// Waits until each has worked for a while.
    ///
    /// # Panics
    /// If one has not within `limit`.
    pub fn have_worked(&mut self, limit: Duration) {
        for member in &mut self.members {
            member.reaches(BEFORE, limit);
        }
    }

    /// Waits until each of those that can go on has done so.
    ///
    /// # Panics
    /// If one has not within `limit`.
    pub fn work_on(&mut self, limit: Duration, can: impl Fn(&Member) -> bool) {
        for member in self.members.iter_mut().filter(|member| can(member)) {
            let so_far = member.ended_calls();
            member.reaches(so_far + AFTER, limit);
        }
    }

    /// Ends those whose mount has died.
    ///
    /// # Panics
    /// If one does not end within `limit`.
    pub fn lose(&mut self, limit: Duration, lost: impl Fn(&Member) -> bool) {
        for member in self.members.iter_mut().filter(|member| lost(member)) {
            // It has ended itself, unless its mount is gone before it has noticed.
            let _ = member.child.kill();
            member.ends(limit);
        }
    }

    /// Lets them finish their calls; tells of those that have failed, but may not.
    ///
    /// # Panics
    /// If one does not end within `limit`.
    pub fn end(&mut self, limit: Duration, may: impl Fn(&Member) -> bool) -> Vec<String> {
        for member in &mut self.members {
            drop(member.child.stdin.take());
        }
        let mut findings = Vec::new();
        for member in &mut self.members {
            let well = member.ends(limit).success();
            if !well && !may(member) {
                let errors = fs::read_to_string(&member.errors).unwrap_or_default();
                let (writer, errors) = (member.writer, errors.trim());
                findings.push(format!("writer {writer} has failed: {errors}"));
            }
        }
        findings
    }

    /// What they have asked for and been told, for people.
    pub fn journals(&self) -> String {
        let journal = |member: &Member| {
            let told = fs::read_to_string(&member.journal).unwrap_or_default();
            format!("--- writer {}\n{told}", member.writer)
        };
        self.members.iter().map(journal).collect()
    }
}

impl Member {
    fn entries(&self) -> Vec<Entry> {
        let entries = journal::read(&self.journal);
        entries.unwrap_or_else(|error| panic!("{}: {error}", self.journal.display()))
    }

    /// What its journal says.
    ///
    /// # Panics
    /// If it can't be read.
    pub fn model(&self, stripes: u64) -> WriterModel {
        WriterModel::new(&self.entries(), stripes)
    }

    /// Calls that have succeeded, acknowledgements of durability among them, and failed ones.
    ///
    /// # Panics
    /// If its journal can't be read.
    pub fn counts(&self) -> (usize, usize, usize) {
        let (mut done, mut failed, mut syncing) = (0, 0, BTreeSet::new());
        let mut synced = 0;
        for entry in self.entries() {
            match entry {
                Entry::Begin {
                    seq,
                    op: Op::Sync { .. } | Op::SyncDir | Op::Write { synced: true, .. },
                } => drop(syncing.insert(seq)),
                Entry::Begin { .. } => {}
                Entry::Done { seq } => {
                    done += 1;
                    synced += usize::from(syncing.contains(&seq));
                }
                Entry::Failed { .. } => failed += 1,
            }
        }
        (done, synced, failed)
    }

    fn ended_calls(&self) -> usize {
        let (done, _, failed) = self.counts();
        done + failed
    }

    fn reaches(&mut self, calls: usize, limit: Duration) {
        let what = format!("writer {} to have made {calls} calls", self.writer);
        let journal = self.journal.clone();
        let probe = || {
            let over = self.child.try_wait().is_ok_and(|status| status.is_some());
            (over || self.ended_calls() >= calls).then_some(())
        };
        eventually(&what, limit, probe, move || last_lines(&journal));
    }

    /// Whether it has ended by this signal.
    pub fn was_killed_by(&self, signal: i32) -> bool {
        self.ended.and_then(|status| status.signal()) == Some(signal)
    }

    /// Waits for its end.
    fn ends(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("writer {} to end", self.writer);
        let journal = self.journal.clone();
        let probe = || self.child.try_wait().unwrap_or_default();
        let status = eventually(&what, limit, probe, move || last_lines(&journal));
        self.ended = Some(status);
        status
    }
}

fn last_lines(journal: &Path) -> String {
    let text = fs::read_to_string(journal).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(4)..].join("\n");
    format!("its journal ends:\n{last}")
}

impl Drop for Member {
    fn drop(&mut self) {
        // Not waited for: it may be stuck in the kernel until its mount is gone.
        let _ = self.child.kill();
    }
}
