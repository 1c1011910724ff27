//! Processes that increment one counter, and what befalls them.

use super::ledger::Ledger;
use super::locker::{Answer, Locker, SOON};
use super::stage::Stage;
use super::sys::{Kind, Type};
use crate::mounted::eventually;
use crate::rng::Rng;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How a crew counts.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// By which lock.
    pub kind: Kind,
    /// How often each increments.
    pub times: usize,
    /// How long each stays between reading and writing.
    pub linger: Duration,
    /// Whether an increment counts as written only when it is at the server.
    pub sync: bool,
}

#[derive(Debug)]
struct Member {
    locker: Locker,
    view: usize,
    written: u64,
    /// It has done all it was told to do.
    done: bool,
}

/// Processes that increment one counter.
#[derive(Debug)]
pub struct Crew {
    task: Task,
    /// The counter in each view.
    paths: Vec<PathBuf>,
    members: Vec<Member>,
    ledger: Ledger,
}

impl Crew {
    /// Starts it, two for each view, on a new counter.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(stage: &Stage, task: Task) -> Self {
        let name = format!("counter-{}", task.kind);
        stage.make(&name, 8);
        let mut crew = Self {
            task,
            paths: (0..stage.views())
                .map(|view| stage.path(view, &name))
                .collect(),
            members: Vec::new(),
            ledger: Ledger::default(),
        };
        let mut gate = stage.locker_on(0, &name);
        gate.lock(0, task.kind, Type::Write);
        for view in (0..stage.views()).chain(0..stage.views()) {
            let member = crew.recruit(view);
            crew.members.push(member);
        }
        crew.all_have_come();
        gate.lock(0, task.kind, Type::Unlock);
        crew
    }

    /// Waits until all wait for the lock, or count already, where it is none.
    fn all_have_come(&mut self) {
        for index in 0..self.members.len() {
            let come = || {
                self.hear();
                let member = &self.members[index];
                (member.written > 0 || member.locker.is_waiting()).then_some(())
            };
            eventually("a process to wait for its turn", SOON, come, String::new);
        }
    }

    fn recruit(&self, view: usize) -> Member {
        let path = &self.paths[view];
        let folder = path.parent().expect("it is in a view");
        let Task {
            kind,
            times,
            linger,
            sync,
        } = self.task;
        let mut locker = Locker::start(format!("a counter by {kind} on mount {view}"), folder);
        locker.say(&format!(
            "count {} {kind} {times} {} {}",
            path.display(),
            linger.as_micros(),
            if sync { "sync" } else { "nosync" }
        ));
        Member {
            locker,
            view,
            written: 0,
            done: false,
        }
    }

    /// Kills one of them (SIGKILL), wherever it is, and has another take its place.
    ///
    /// # Panics
    /// When it doesn't die.
    pub fn kill_one(&mut self, rng: &mut Rng) {
        let index = rng.below(self.members.len());
        let member = &mut self.members[index];
        member.locker.dies_within(SOON);
        let words = member.locker.last_words();
        let view = member.view;
        words.iter().for_each(|word| self.take_in(index, word));
        self.members[index] = self.recruit(view);
    }

    fn take_in(&mut self, index: usize, answer: &Answer) {
        let member = &mut self.members[index];
        if answer.text == "ok" {
            member.done = true;
        } else if self.ledger.hear(answer) {
            member.written += 1;
        }
    }

    fn hear(&mut self) {
        for index in 0..self.members.len() {
            let heard = self.members[index].locker.heard();
            heard.iter().for_each(|answer| self.take_in(index, answer));
        }
    }

    /// Waits until each of them has written once more.
    ///
    /// # Panics
    /// When one has not within `limit`.
    pub fn all_get_on_within(&mut self, limit: Duration) {
        self.hear();
        let before: Vec<u64> = self.members.iter().map(|member| member.written).collect();
        let deadline = Instant::now() + limit;
        loop {
            self.hear();
            let stuck: Vec<&str> = (self.members.iter().zip(&before))
                .filter(|(member, before)| member.written <= **before)
                .map(|(member, _)| member.locker.name.as_str())
                .collect();
            if stuck.is_empty() {
                return;
            }
            let ledger = self.ledger.summary();
            assert!(
                Instant::now() < deadline,
                "stuck for {limit:?}: {stuck:?}; {ledger}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all have done what they were told to do.
    ///
    /// # Panics
    /// When one has not within `limit`.
    pub fn finishes_within(&mut self, limit: Duration) {
        let what = format!("the counters by {}", self.task.kind);
        let crew = std::cell::RefCell::new(self);
        let probe = || {
            crew.borrow_mut().hear();
            let all = crew.borrow().members.iter().all(|member| member.done);
            all.then_some(())
        };
        eventually(&what, limit, probe, || crew.borrow().ledger.summary());
    }

    /// Has them stop after the increment they are at.
    pub fn stop(&mut self) {
        for member in &mut self.members {
            member.locker.say("exit");
        }
    }

    /// What they said, and the counter as every view has it, and as it is behind them.
    ///
    /// # Panics
    /// When the views don't agree.
    pub fn outcome(&self, stage: &Stage) -> (&Ledger, u64) {
        let name = self.paths[0].file_name().expect("a counter has a name");
        let behind = stage.export().join(name);
        let values: Vec<u64> = self.paths.iter().map(value_in).collect();
        let value = values[0];
        assert!(
            values.iter().all(|other| *other == value),
            "the views have {values:?}"
        );
        let flushed = || (value_in(&behind) == value).then_some(());
        eventually("the counter behind the views", SOON, flushed, || {
            format!("the views have {value}, there it is {}", value_in(&behind))
        });
        (&self.ledger, value)
    }
}

fn value_in(path: &PathBuf) -> u64 {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
