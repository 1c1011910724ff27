//! The same random operations on locks in several views of a directory and on the local file system,
//! whose every answer must be the same.
//!
//! Each sequence has a file of its own, and many files are worked on at once, so that a process is told
//! what to do with all of them in one go.

use super::locker::{Locker, SOON};
use super::stage::Stage;
use super::sys::Kind;
use crate::rng::Rng;
use std::time::{Duration, Instant};

mod sequence;

use sequence::{Op, Sequence};

/// Files that are worked on at once.
const FILES: usize = 25;
/// Operations of a sequence.
const STEPS: usize = 20;
/// Processes on each view.
const EACH: usize = 2;
/// How long a lock may outlive the descriptor whose closing ends it: FUSE's RELEASE waits for no answer.
const LINGER: Duration = Duration::from_secs(1);

/// How much was done.
#[derive(Debug, Default)]
pub struct Report {
    /// Sequences.
    pub sequences: usize,
    /// Operations on locks, closes and opens.
    pub operations: usize,
    /// Of these, what was refused on both sides.
    pub refused: usize,
    /// Locks that were told of, and on both sides.
    pub found: usize,
    /// Answers that were right only when asked for again, after a close whose end nobody waits for.
    pub late: usize,
}

/// The processes of one side, those of view 0 first.
struct Side {
    folders: Vec<std::path::PathBuf>,
    lockers: Vec<Locker>,
}

impl Side {
    fn start(stage: &Stage, name: &str) -> Self {
        let views = (0..stage.views()).flat_map(|view| [view; EACH]);
        let side = views.map(|view| {
            let mut locker = stage.locker(view);
            locker.name = format!("{name} {}", locker.name);
            (stage.dir(view).to_owned(), locker)
        });
        let (folders, lockers) = side.unzip();
        Self { folders, lockers }
    }

    fn say(&mut self, process: usize, ops: &[Op]) {
        let folder = &self.folders[process];
        let all = ops.iter().enumerate().filter(|(_, op)| !op.is_nothing());
        let lines: Vec<String> = all.map(|(file, op)| op.command(file, folder)).collect();
        self.lockers[process].say(&lines.join("\n"));
    }

    fn ask(&mut self, process: usize, file: usize, op: &Op) -> String {
        let command = op.command(file, &self.folders[process]);
        self.lockers[process].ask(&command)
    }
}

/// Runs so many sequences.
///
/// # Errors
/// The first answer that is another on the stage than on the local file system.
///
/// # Panics
/// When a process doesn't answer.
pub fn run(stage: &Stage, sequences: usize, seed: u64) -> Result<Report, String> {
    let reference = Stage::on_local("reference", stage.views());
    let mut rounds = Rounds::new(stage, &reference, seed);
    while rounds.report.sequences < sequences {
        rounds
            .round()
            .map_err(|wrong| format!("seed {seed}: {wrong}"))?;
    }
    Ok(rounds.report)
}

struct Rounds<'a> {
    stage: &'a Stage,
    local: Side,
    views: Side,
    rng: Rng,
    report: Report,
    sequences: Vec<Sequence>,
}

impl<'a> Rounds<'a> {
    fn new(stage: &'a Stage, reference: &Stage, seed: u64) -> Self {
        for file in 0..FILES {
            let name = sequence::file_name(file);
            stage.make(&name, super::model::SIZE as usize);
            reference.make(&name, super::model::SIZE as usize);
        }
        let processes = stage.views() * EACH;
        Self {
            stage,
            local: Side::start(reference, "local"),
            views: Side::start(stage, "the stage's"),
            rng: Rng::new(seed),
            report: Report::default(),
            sequences: (0..FILES).map(|_| Sequence::new(processes)).collect(),
        }
    }

    fn round(&mut self) -> Result<(), String> {
        self.sequences.iter_mut().for_each(Sequence::begin);
        for process in 0..self.local.lockers.len() {
            let open = vec![
                Op::Open {
                    slot: 0,
                    mode: "rw"
                };
                FILES
            ];
            self.step(process, &open)?;
        }
        for _ in 0..STEPS {
            let process = self.rng.below(self.local.lockers.len());
            let ops: Vec<Op> = (self.sequences.iter())
                .map(|sequence| sequence.choose(process, &mut self.rng))
                .collect();
            self.step(process, &ops)?;
        }
        for process in 0..self.local.lockers.len() {
            for slot in sequence::SLOTS {
                let close = |sequence: &Sequence| sequence.close(process, slot);
                let ops: Vec<Op> = self.sequences.iter().map(close).collect();
                self.step(process, &ops)?;
            }
        }
        self.report.sequences += FILES;
        Ok(())
    }

    /// What a process does with each of the files.
    fn step(&mut self, process: usize, ops: &[Op]) -> Result<(), String> {
        let expected = ops.iter().filter(|op| !op.is_nothing()).count();
        if expected == 0 {
            return Ok(());
        }
        self.local.say(process, ops);
        self.views.say(process, ops);
        for (file, op) in ops.iter().enumerate().filter(|(_, op)| !op.is_nothing()) {
            let local = self.local.lockers[process].answer(SOON).text;
            let view = self.views.lockers[process].answer(SOON).text;
            // The answers to what follows are there too: nothing is asked again before all are taken.
            self.sequences[file].answers = (local, view);
            self.report.operations += 1;
            self.report.refused += usize::from(op.is_refused(&self.sequences[file].answers.0));
        }
        for (file, op) in ops.iter().enumerate().filter(|(_, op)| !op.is_nothing()) {
            self.judge(process, file, op)?;
        }
        Ok(())
    }

    fn judge(&mut self, process: usize, file: usize, op: &Op) -> Result<(), String> {
        let (local, mut view) = self.sequences[file].answers.clone();
        let deadline = Instant::now() + LINGER;
        let mut again = 0;
        loop {
            let judged = self.compare(process, file, op, &local, &view);
            let lags = self.sequences[file].may_lag(LINGER) && Instant::now() < deadline;
            match judged {
                Ok(found) => {
                    self.report.found += usize::from(found);
                    self.report.late += usize::from(again > 0);
                    self.sequences[file].done(process, op, &local);
                    return Ok(());
                }
                Err(_) if lags && op.may_be_repeated(&view) => {
                    again += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    view = self.views.ask(process, file, op);
                }
                Err(wrong) => return Err(self.sequences[file].explain(process, op, &wrong)),
            }
        }
    }

    /// Whether a lock was told of, and rightly on both sides.
    fn compare(
        &self,
        process: usize,
        file: usize,
        op: &Op,
        local: &str,
        view: &str,
    ) -> Result<bool, String> {
        let sequence = &self.sequences[file];
        let Some(ways) = sequence.in_the_way(process, op) else {
            let same = (local == view).then_some(false);
            return same.ok_or_else(|| format!("locally {local}, on the mount {view}"));
        };
        let pid = |side: &Side, other: usize| side.lockers[other].pid().to_string();
        let by_description = matches!(
            op,
            Op::Test {
                kind: Kind::Ofd,
                ..
            }
        );
        let local_pids = |other: usize| vec![pid(&self.local, other)];
        let view_pids = |other: usize| {
            let own = vec![pid(&self.views, other)];
            if by_description && !self.stage.is_local() {
                // What the kernel keeps of the question says that it is of a description, whoever holds what is found.
                vec!["-1".to_owned()]
            } else if self.stage.share_processes(process / EACH, other / EACH) {
                own
            } else {
                // FUSE has no pid for whom its kernel doesn't know: it makes it 0.
                vec!["-1".to_owned(), "0".to_owned()]
            }
        };
        sequence::check_found(local, &ways, false, local_pids)
            .map_err(|wrong| format!("the model is wrong, locally: {wrong}"))?;
        let lax = !self.stage.is_local();
        sequence::check_found(view, &ways, lax, view_pids)
            .map_err(|wrong| format!("locally {local}, on the mount {wrong}"))?;
        Ok(!ways.is_empty())
    }
}
