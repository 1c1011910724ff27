//! A process that locks (`leasefs-locker`), as its parent sees it.

use super::sys::{Kind, Type};
use crate::mounted::{Binaries, eventually};
use leasefs_host::clock::monotonic_time;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// In what time anything that doesn't have to wait is done, on a busy machine too.
pub const SOON: Duration = Duration::from_secs(20);

/// What a process said, and when (`CLOCK_MONOTONIC`, in nanoseconds).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// When it began what this is about.
    pub began: u64,
    /// When it was done.
    pub ended: u64,
    /// What it said.
    pub text: String,
}

impl Answer {
    fn parse(line: &str) -> Self {
        let mut parts = line.splitn(3, ' ');
        let mut next = || parts.next().unwrap_or_default();
        let mut stamp = || next().parse().expect("a stamp");
        Self {
            began: stamp(),
            ended: stamp(),
            text: next().to_owned(),
        }
    }

    /// How long after `moment` it was done.
    pub fn after(&self, moment: u64) -> Duration {
        Duration::from_nanos(self.ended.saturating_sub(moment))
    }
}

/// A process that locks. Dropped, it is killed.
#[derive(Debug)]
pub struct Locker {
    /// What it is called in failures.
    pub name: String,
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Answer>,
    /// Its children, which die after it.
    forked: Vec<String>,
}

impl Locker {
    /// Starts one; `folder` is where it is going to work. It dies with the thread that calls this.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(name: impl Into<String>, folder: &Path) -> Self {
        let mut child = Command::new(Binaries::beside("leasefs-locker"))
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("leasefs-locker can be started");
        let commands = child.stdin.take().expect("a pipe");
        let answers = listen(child.stdout.take().expect("a pipe"));
        Self {
            name: name.into(),
            child,
            commands,
            answers,
            forked: Vec::new(),
        }
    }

    /// Has it make a child that has all its descriptors too, until one of them is killed.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn fork(&mut self) {
        let answer = self.ask("fork");
        let child = answer.strip_prefix("ok ");
        let child = child.unwrap_or_else(|| panic!("{} can't fork: {answer}", self.name));
        self.forked.push(child.to_owned());
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to do something; the answer comes later.
    ///
    /// # Panics
    /// When it doesn't listen.
    pub fn say(&mut self, command: &str) {
        let told = self.commands.write_all(format!("{command}\n").as_bytes());
        told.unwrap_or_else(|error| panic!("{}, told {command}: {error}", self.name));
    }

    /// What it says next, if it does within `limit`; nothing either once it has ended.
    pub fn answer_within(&mut self, limit: Duration) -> Option<Answer> {
        self.answers.recv_timeout(limit).ok()
    }

    /// What it says next.
    ///
    /// # Panics
    /// When it says nothing within `limit`.
    pub fn answer(&mut self, limit: Duration) -> Answer {
        let answer = self.answer_within(limit);
        answer.unwrap_or_else(|| panic!("{} said nothing for {limit:.1?}", self.name))
    }

    /// Tells it to do something and takes its answer.
    ///
    /// # Panics
    /// When there is none soon.
    pub fn ask(&mut self, command: &str) -> String {
        self.say(command);
        let answer = self.answer_within(SOON);
        let answer = answer
            .unwrap_or_else(|| panic!("{} did not do this within {SOON:?}: {command}", self.name));
        answer.text
    }

    /// Has something done that must work.
    ///
    /// # Panics
    /// When it doesn't, or not soon.
    pub fn must(&mut self, command: &str) {
        self.answers_with("ok", command);
    }

    /// Has something done that must have this answer.
    ///
    /// # Panics
    /// When it has another, or none soon.
    pub fn answers_with(&mut self, expected: &str, command: &str) {
        let answer = self.ask(command);
        assert_eq!(answer, expected, "{}, told {command}", self.name);
    }

    /// Opens a file for reading and writing.
    ///
    /// # Panics
    /// When it can't be opened.
    pub fn open(&mut self, slot: u32, path: &Path) {
        self.must(&format!("open {slot} {} rw", path.display()));
    }

    /// Locks or unlocks the whole file, without waiting.
    pub fn try_lock(&mut self, slot: u32, kind: Kind, what: Type) -> String {
        self.ask(&format!("whole {slot} {kind} {what}"))
    }

    /// The same, which must work.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn lock(&mut self, slot: u32, kind: Kind, what: Type) {
        self.must(&format!("whole {slot} {kind} {what}"));
    }

    /// Has it wait for the lock of the whole file, and sees it wait.
    ///
    /// # Panics
    /// When it doesn't wait.
    pub fn waits_for(&mut self, slot: u32, kind: Kind, what: Type) {
        self.waits_in(&format!("whole {slot} {kind} {what} wait"));
    }

    /// Has it do something in which it waits for a lock, and sees it wait.
    ///
    /// # Panics
    /// When it doesn't wait.
    pub fn waits_in(&mut self, command: &str) {
        self.say(command);
        let what = format!("{} to wait in {command}", self.name);
        let probe = || {
            if let Ok(answer) = self.answers.try_recv() {
                panic!("{} did not wait in {command}: {}", self.name, answer.text);
            }
            self.is_waiting().then_some(())
        };
        let pid = self.pid();
        eventually(&what, SOON, probe, || {
            fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default()
        });
    }

    /// Whether it sleeps in a call that may wait for a lock.
    pub fn is_waiting(&self) -> bool {
        is_in_a_lock_call(self.pid())
    }

    /// Fails if it says anything within `time`.
    ///
    /// # Panics
    /// As said.
    pub fn goes_on_waiting(&mut self, time: Duration) {
        if let Some(answer) = self.answer_within(time) {
            panic!("{} did not go on waiting: {}", self.name, answer.text);
        }
    }

    /// Sends it a signal.
    pub fn signal(&mut self, signal: Signal) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            // Not reaped, so the id is still its own.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Kills it and waits for its end.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub fn dies_within(&mut self, limit: Duration) {
        self.signal(Signal::KILL);
        self.ends_within(limit);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub fn ends_within(&mut self, limit: Duration) {
        let what = format!("{} (process {}) to end", self.name, self.pid());
        let kernel = format!("/proc/{}/stack", self.pid());
        let probe = || self.child.try_wait().unwrap_or_default();
        eventually(&what, limit, probe, || {
            fs::read_to_string(kernel).unwrap_or_default()
        });
    }

    /// All it has said and nobody has heard, once it has ended.
    pub fn last_words(&mut self) -> Vec<Answer> {
        let mut words = Vec::new();
        while let Ok(answer) = self.answers.recv_timeout(SOON) {
            words.push(answer);
        }
        words
    }

    /// What it has said and nobody has heard so far.
    pub fn heard(&mut self) -> Vec<Answer> {
        self.answers.try_iter().collect()
    }
}

/// The moment that an answer's stamps are compared with.
pub fn now() -> u64 {
    monotonic_time().as_nanos()
}

fn listen(output: ChildStdout) -> Receiver<Answer> {
    let (sender, answers) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        for line in lines {
            if sender.send(Answer::parse(&line)).is_err() {
                return;
            }
        }
    });
    answers
}

fn is_in_a_lock_call(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|word| word.parse().ok());
    matches!(number, Some(libc::SYS_fcntl | libc::SYS_flock))
}

/// Whether there is such a process, dead ones that nobody has asked for apart.
fn lives(pid: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // It may be stuck in the kernel until its mount is gone.
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut is_there = || {
            let alive = matches!(self.child.try_wait(), Ok(None));
            alive || self.forked.iter().any(|pid| lives(pid))
        };
        while is_there() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
