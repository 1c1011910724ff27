//! Changes of one session: each runs once, behind those it follows, and keeps its answer.
//!
//! Pure. `J` is what runs a change, `S` where its answer goes. A change is *held* while it
//! follows unfinished ones, *waiting* while the lease core has it, then *begun*, then *done*. One
//! that a crash of the server's process has *interrupted* waits for its next copy.

use super::entry::{Entry, State};
use super::violation::check;
use crate::resent::Resent;
use crate::seqs::SeqSet;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::limits::{MAX_ANSWER_BYTES, MAX_ANSWERS, MAX_CHANGES_AHEAD};
use leasefs_protocol::{Numbered, Refusal, Reply, Seq};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use super::violation::Violation;

/// What becomes of a change that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<J, S> {
    /// It is new and its turn has come.
    Run(J),
    /// It is new and follows unfinished changes: a later call hands it out.
    Held,
    /// Its first copy is under way and will answer here.
    Attached,
    /// It is done: this is its answer.
    Repeat(Arc<Reply>, S),
    /// It never runs (again).
    Refuse(Refusal, S),
    /// It may have run before the host crashed: to be finished with [`Refusal::Lost`].
    Lost,
}

/// What a cancel came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Cancelled<J, S> {
    /// Whether it had begun; if not, it never will.
    pub begun: bool,
    /// Whether the lease core still has it and must be told.
    pub withdraw: bool,
    /// Where its refusal goes.
    pub sink: Option<S>,
    /// Changes whose turn has come.
    pub ready: Vec<(Seq, J)>,
}

/// What came of a change of the server's earlier life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// It was answered so, or would have been.
    Answered(Arc<Reply>),
    /// It may have happened and is repeated when it is sent again.
    Interrupted,
}

/// The changes of one session above its low-water mark.
#[derive(Debug)]
pub struct Answers<J, S> {
    low: Seq,
    entries: BTreeMap<Seq, Entry<J, S>>,
    /// Done ones in the order they were done.
    done: VecDeque<Seq>,
    /// What these take.
    bytes: usize,
    /// Done, their answers dropped.
    forgotten: SeqSet,
    /// Which changes that are sent again are lost.
    resent: Resent,
}

impl<J, S> Default for Answers<J, S> {
    fn default() -> Self {
        Self {
            low: Seq(0),
            entries: BTreeMap::new(),
            done: VecDeque::new(),
            bytes: 0,
            forgotten: SeqSet::default(),
            resent: Resent::default(),
        }
    }
}

impl<J, S> Answers<J, S> {
    /// A session's changes after a restart of the server process, and those whose answers are `lost`. What had not begun
    /// before is not among them.
    pub fn after_restart(
        changes: impl IntoIterator<Item = (Seq, Recovered)>,
        lost: SeqSet,
    ) -> Self {
        let mut answers = Self::default();
        if !planted::is(Bug::ForgetAnswers) {
            answers.forgotten = lost;
        }
        for (seq, change) in changes {
            match change {
                _ if planted::is(Bug::ForgetAnswers) => {}
                Recovered::Interrupted => answers.entry(seq).state = State::Interrupted,
                Recovered::Answered(reply) => {
                    answers.entry(seq).state = State::Done(reply);
                    answers.settle(seq);
                }
            }
        }
        answers
    }

    /// These, where the host has crashed: what is sent again and is not among them is lost.
    #[must_use]
    pub fn and_host_crash(mut self) -> Self {
        self.resent.host_crashed();
        self
    }

    /// Whether a frame with this number would bring nothing new, so that its payload needn't be kept.
    pub fn knows(&self, seq: Seq) -> bool {
        let here = |e: &Entry<J, S>| !matches!(e.state, State::Expected | State::Interrupted);
        self.is_past(seq) || self.entries.get(&seq).is_some_and(here)
    }

    fn is_past(&self, seq: Seq) -> bool {
        seq < self.low || self.forgotten.contains(seq)
    }

    /// Takes in a change as it came from the client.
    ///
    /// # Errors
    /// [`Violation`]; nothing has changed then.
    pub fn arrive(
        &mut self,
        change: &Numbered,
        job: J,
        sink: S,
    ) -> Result<Arrival<J, S>, Violation> {
        check(change)?;
        let seq = change.seq;
        if seq < self.low {
            return Ok(Arrival::Refuse(Refusal::Cancelled, sink));
        }
        if seq.0 - self.low.0 > MAX_CHANGES_AHEAD {
            let low = self.low;
            return Err(Violation::TooFarAhead { seq, low });
        }
        if self.forgotten.contains(seq) {
            return Ok(Arrival::Refuse(Refusal::Lost, sink));
        }
        if self.is_lost(change) {
            let entry = self.entry(seq);
            entry.state = State::Begun;
            entry.sink = Some(sink);
            return Ok(Arrival::Lost);
        }
        if !self.knows(seq) {
            return self.take(change, job, sink);
        }
        let Some(entry) = self.entries.get_mut(&seq) else {
            return Ok(Arrival::Refuse(Refusal::Internal, sink));
        };
        Ok(match &entry.state {
            State::Done(reply) => Arrival::Repeat(Arc::clone(reply), sink),
            State::Cancelled => Arrival::Refuse(Refusal::Cancelled, sink),
            State::Expected
            | State::Interrupted
            | State::Held { .. }
            | State::Waiting { .. }
            | State::Begun => {
                entry.sink = Some(sink);
                Arrival::Attached
            }
        })
    }

    /// Notes what is sent for the first time; whether what is sent again is lost.
    fn is_lost(&mut self, change: &Numbered) -> bool {
        if change.resent {
            return self.may_have_run(change.seq);
        }
        self.resent.begins(change.seq);
        false
    }

    /// Whether an unknown change may have run before the host crashed.
    fn may_have_run(&self, seq: Seq) -> bool {
        let state = self.entries.get(&seq).map(|entry| &entry.state);
        let since = matches!(state, Some(State::Interrupted));
        !since && !self.knows(seq) && self.resent.may_have_run(seq)
    }

    fn take(&mut self, change: &Numbered, job: J, sink: S) -> Result<Arrival<J, S>, Violation> {
        if self.entries.len() - self.done.len() + change.after.len() >= MAX_ANSWERS {
            return Err(Violation::TooMany {
                what: "unfinished changes",
                limit: MAX_ANSWERS,
            });
        }
        let missing = change
            .after
            .iter()
            .filter(|after| self.follow(**after, change.seq))
            .count();
        let entry = self.entry(change.seq);
        entry.sink = Some(sink);
        // What had begun follows nothing that had not ended.
        let again = matches!(entry.state, State::Interrupted);
        if missing == 0 || again {
            entry.state = State::Waiting { again };
            return Ok(Arrival::Run(job));
        }
        entry.state = State::Held { job, missing };
        Ok(Arrival::Held)
    }

    fn entry(&mut self, seq: Seq) -> &mut Entry<J, S> {
        self.entries.entry(seq).or_insert_with(|| Entry {
            state: State::Expected,
            sink: None,
            followers: Vec::new(),
        })
    }

    /// Whether `seq` must wait for `after`, and is noted there if so.
    fn follow(&mut self, after: Seq, seq: Seq) -> bool {
        if self.is_past(after) {
            return false;
        }
        let entry = self.entry(after);
        let wait = !matches!(entry.state, State::Done(_) | State::Cancelled);
        if wait {
            entry.followers.push(seq);
        }
        wait
    }

    /// The change's turn at the lease core has come; `false` if it must not run (cancelled).
    pub fn begin(&mut self, seq: Seq) -> bool {
        match self.entries.get_mut(&seq) {
            Some(entry) if matches!(entry.state, State::Waiting { .. } | State::Begun) => {
                entry.state = State::Begun;
                true
            }
            _ => false,
        }
    }

    /// The change is done. Where its answer goes, and the changes whose turn has come.
    pub fn finish(&mut self, seq: Seq, reply: Arc<Reply>) -> (Option<S>, Vec<(Seq, J)>) {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return (None, Vec::new());
        };
        if matches!(entry.state, State::Done(_) | State::Cancelled) {
            return (None, Vec::new());
        }
        entry.state = State::Done(reply);
        let sink = entry.sink.take();
        let ready = self.settle(seq);
        (sink, ready)
    }

    /// Notes that `seq` is done and lets its followers go on.
    fn settle(&mut self, seq: Seq) -> Vec<(Seq, J)> {
        self.done.push_back(seq);
        let followers = match self.entries.get_mut(&seq) {
            Some(entry) => {
                self.bytes += entry.bytes();
                std::mem::take(&mut entry.followers)
            }
            None => Vec::new(),
        };
        while self.done.len() > MAX_ANSWERS || self.bytes > MAX_ANSWER_BYTES {
            let Some(oldest) = self.done.pop_front() else {
                break;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes();
                self.forgotten.insert(oldest);
            }
        }
        followers
            .into_iter()
            .filter_map(|follower| self.release(follower))
            .collect()
    }

    fn release(&mut self, follower: Seq) -> Option<(Seq, J)> {
        let entry = self.entries.get_mut(&follower)?;
        if let State::Held { missing, .. } = &mut entry.state {
            *missing -= 1;
            if *missing > 0 {
                return None;
            }
        }
        let waiting = State::Waiting { again: false };
        match std::mem::replace(&mut entry.state, waiting) {
            State::Held { job, .. } => Some((follower, job)),
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// The client gives up on a change: it has begun, or never will.
    pub fn cancel(&mut self, seq: Seq) -> Cancelled<J, S> {
        let mut outcome = Cancelled {
            begun: false,
            withdraw: false,
            sink: None,
            ready: Vec::new(),
        };
        if self.is_past(seq) {
            outcome.begun = self.forgotten.contains(seq);
            return outcome;
        }
        // It may have run before the host crashed: asked for again, it is answered so.
        if self.may_have_run(seq) {
            outcome.begun = true;
            return outcome;
        }
        let entry = self.entry(seq);
        match entry.state {
            State::Begun | State::Done(_) | State::Interrupted | State::Waiting { again: true } => {
                outcome.begun = !planted::is(Bug::CancelBegun);
                return outcome;
            }
            State::Cancelled => return outcome,
            State::Waiting { again: false } => outcome.withdraw = true,
            State::Expected | State::Held { .. } => (),
        }
        entry.state = State::Cancelled;
        outcome.sink = entry.sink.take();
        outcome.ready = self.settle(seq);
        outcome
    }

    /// Every change below `low` has been answered to the client; `true` if that is news.
    pub fn low_water(&mut self, low: Seq) -> bool {
        if low <= self.low {
            return false;
        }
        self.low = low;
        // What is still under way below the mark was cancelled by its client or is a lie; it
        // stays until it is done.
        let (entries, bytes) = (&mut self.entries, &mut self.bytes);
        self.done.retain(|seq| {
            let keep = *seq >= low && !(planted::is(Bug::DropAnswerAtMark) && *seq == low);
            if !keep && let Some(entry) = entries.remove(seq) {
                *bytes -= entry.bytes();
            }
            keep
        });
        self.forgotten.remove_below(low);
        self.resent.raise(low);
        true
    }

    /// A newer connection has come. Answers go to it when it asks again; held changes are
    /// forgotten, since what they follow may have been lost with the old connection and must not
    /// wait behind their payloads.
    pub fn fence(&mut self) -> Vec<S> {
        let entries = &mut self.entries;
        let sinks = entries.values_mut().filter_map(|e| e.sink.take()).collect();
        entries.retain(|_, e| !matches!(e.state, State::Held { .. } | State::Expected));
        for entry in entries.values_mut() {
            entry.followers.clear();
        }
        sinks
    }

    /// Whether the client numbers its changes closely enough to be remembered.
    ///
    /// # Errors
    /// [`Violation::TooMany`] gaps.
    pub fn scattered(&self) -> Result<(), Violation> {
        match self.forgotten.ranges() > MAX_ANSWERS {
            true => Err(Violation::TooMany {
                what: "gaps between changes",
                limit: MAX_ANSWERS,
            }),
            false => Ok(()),
        }
    }

    /// Changes that are not done.
    pub fn unfinished(&self) -> usize {
        self.entries.len() - self.done.len()
    }
}

#[cfg(test)]
mod tests;
