//! What is journalled of a session's changes.

use crate::intent::Intent;
use crate::records::Recorded;
use crate::resent::Resent;
use leasefs_protocol::limits::MAX_ANSWERS;
use leasefs_protocol::{Refusal, Response, Seq};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a change was answered.
pub(super) type Answer = Result<Response, Refusal>;

/// What happens to the changes of a session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// One is about to begin.
    Begins {
        seq: Seq,
        /// Below it the session's changes are no longer asked for.
        low: Seq,
        intent: Intent,
    },
    /// One was answered.
    Ends { seq: Seq, answer: Answer },
    /// One that had begun has not happened.
    Undone { seq: Seq },
    /// The answer of one is not kept.
    Lost { seq: Seq },
    /// Those may be sent again that ran before the host crashed.
    HostCrashed,
}

/// The changes of a session that have begun, above its low-water mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    low: Seq,
    all: BTreeMap<Seq, Change>,
    /// Those of them whose answers are kept.
    answered: BTreeSet<Seq>,
    /// Those whose answers are not.
    lost: BTreeSet<Seq>,
    /// Others, which ran before a crash of the host.
    resent: Resent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Begun(Intent),
    Answered(Answer),
}

impl Changes {
    /// Those that had begun, for the next life.
    pub fn into_recorded(self) -> Vec<(Seq, Recorded)> {
        let kept = self.all.into_iter().map(|(seq, change)| {
            let recorded = match change {
                Change::Begun(intent) => Recorded::Intent(intent),
                Change::Answered(answer) => Recorded::Answered(answer),
            };
            (seq, recorded)
        });
        let lost = self.lost.into_iter().map(|seq| (seq, Recorded::Lost));
        kept.chain(lost).collect()
    }

    /// Whether the session may send changes again that ran before a crash of the host.
    pub fn host_crashed(&self) -> bool {
        self.resent.may_come()
    }

    /// Whether this one has begun and was not answered.
    pub(super) fn is_begun(&self, seq: Seq) -> bool {
        matches!(self.all.get(&seq), Some(Change::Begun(_)))
    }

    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Begins { seq, low, intent } => {
                self.resent.begins(seq);
                self.all.insert(seq, Change::Begun(intent));
                self.raise(low);
            }
            Event::Ends { seq, answer } => self.end(seq, answer),
            Event::Undone { seq } => {
                self.all.remove(&seq);
            }
            Event::Lost { seq } => self.lose(seq),
            Event::HostCrashed => self.resent.host_crashed(),
        }
    }

    pub(super) fn snapshot(&self) -> impl Iterator<Item = Event> {
        let crashed = self.host_crashed().then_some(Event::HostCrashed);
        let changes = self.all.iter().map(|(seq, change)| match change {
            Change::Begun(intent) => Event::Begins {
                seq: *seq,
                low: self.low,
                intent: intent.clone(),
            },
            Change::Answered(answer) => Event::Ends {
                seq: *seq,
                answer: answer.clone(),
            },
        });
        let lost = self.lost.iter().map(|seq| Event::Lost { seq: *seq });
        crashed.into_iter().chain(changes).chain(lost)
    }

    /// As many answers are kept as the running server keeps.
    fn end(&mut self, seq: Seq, answer: Answer) {
        self.all.insert(seq, Change::Answered(answer));
        self.answered.insert(seq);
        if self.answered.len() > MAX_ANSWERS
            && let Some(oldest) = self.answered.pop_first()
        {
            self.lose(oldest);
        }
    }

    fn lose(&mut self, seq: Seq) {
        self.all.remove(&seq);
        self.answered.remove(&seq);
        self.lost.insert(seq);
    }

    pub(super) fn lose_begun(&mut self) {
        let begun = self.all.iter();
        let begun = begun.filter(|(_, change)| matches!(change, Change::Begun(_)));
        let begun: Vec<Seq> = begun.map(|(seq, _)| *seq).collect();
        begun.into_iter().for_each(|seq| self.lose(seq));
    }

    fn raise(&mut self, low: Seq) {
        if low > self.low {
            self.low = low;
            self.resent.raise(low);
            self.all = self.all.split_off(&low);
            self.answered = self.answered.split_off(&low);
            self.lost = self.lost.split_off(&low);
        }
    }
}
