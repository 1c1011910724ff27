//! What is journalled of a session's changes.

use crate::intent::Intent;
use crate::records::{Recorded, token_size};
use crate::resent::Resent;
use crate::seqs::SeqSet;
use leasefs_protocol::limits::{MAX_ANSWER_BYTES, MAX_ANSWERS};
use leasefs_protocol::{Refusal, Response, Seq};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// So many lost ones in a row are told one by one.
const FEW: u64 = 256;

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
    /// The answers of all from one to another are not kept, and nothing else is known of them.
    LostAll { first: Seq, last: Seq },
}

/// The changes of a session that have begun, above its low-water mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    low: Seq,
    all: BTreeMap<Seq, Change>,
    /// Those of them whose answers are kept, in the order in which they were answered: by a number of their own.
    answered: BTreeMap<u64, Seq>,
    ends: u64,
    /// What these take.
    bytes: usize,
    /// Those whose answers are not.
    lost: SeqSet,
    /// Others, which ran before a crash of the host.
    resent: Resent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Begun(Intent),
    /// With its number among the answered.
    Answered(Answer, u64),
}

impl Change {
    fn bytes(&self) -> usize {
        match self {
            Self::Begun(_) => 0,
            Self::Answered(answer, _) => size_of::<Self>() + token_size(answer),
        }
    }
}

impl Changes {
    /// Those that had begun, for the next life; and those whose answers are not kept.
    pub fn into_recorded(self) -> (Vec<(Seq, Recorded)>, SeqSet) {
        let recorded = |change| match change {
            Change::Begun(intent) => Recorded::Intent(intent),
            Change::Answered(answer, _) => Recorded::Answered(answer),
        };
        let kept = self.all.into_iter();
        let kept = kept.map(|(seq, change)| (seq, recorded(change)));
        (kept.collect(), self.lost)
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
                self.put(seq, Change::Begun(intent));
                self.raise(low);
            }
            Event::Ends { seq, answer } => self.end(seq, answer),
            Event::Undone { seq } => self.drop_one(seq),
            Event::Lost { seq } => self.lose(seq),
            Event::HostCrashed => self.resent.host_crashed(),
            Event::LostAll { first, last } => self.lost.insert_all((first, last)),
        }
    }

    pub(super) fn snapshot(&self) -> impl Iterator<Item = Event> {
        let crashed = self.host_crashed().then_some(Event::HostCrashed);
        let begun = self.all.iter().filter_map(|(seq, change)| match change {
            Change::Begun(intent) => Some(Event::Begins {
                seq: *seq,
                low: self.low,
                intent: intent.clone(),
            }),
            Change::Answered(..) => None,
        });
        let answered = self
            .answered
            .values()
            .filter_map(|seq| match self.all.get(seq)? {
                Change::Answered(answer, _) => Some(Event::Ends {
                    seq: *seq,
                    answer: answer.clone(),
                }),
                Change::Begun(_) => None,
            });
        let lost = self.lost.all().flat_map(lost);
        crashed.into_iter().chain(begun).chain(answered).chain(lost)
    }

    /// As many answers are kept as the running server keeps, and the same.
    fn end(&mut self, seq: Seq, answer: Answer) {
        self.ends += 1;
        self.put(seq, Change::Answered(answer, self.ends));
        self.answered.insert(self.ends, seq);
        while self.answered.len() > MAX_ANSWERS || self.bytes > MAX_ANSWER_BYTES {
            let Some((_, oldest)) = self.answered.pop_first() else {
                break;
            };
            self.lose(oldest);
        }
    }

    fn put(&mut self, seq: Seq, change: Change) {
        self.bytes += change.bytes();
        let before = self.all.insert(seq, change);
        before.iter().for_each(|before| self.has_gone(before));
    }

    fn drop_one(&mut self, seq: Seq) {
        let before = self.all.remove(&seq);
        before.iter().for_each(|before| self.has_gone(before));
    }

    fn has_gone(&mut self, change: &Change) {
        self.bytes -= change.bytes();
        if let Change::Answered(_, number) = change {
            self.answered.remove(number);
        }
    }

    fn lose(&mut self, seq: Seq) {
        self.drop_one(seq);
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
            let kept = self.all.split_off(&low);
            let gone = std::mem::replace(&mut self.all, kept);
            gone.values().for_each(|change| self.has_gone(change));
            self.lost.remove_below(low);
        }
    }
}

/// A few in a row as each server has them, that of the release before too.
fn lost((first, last): (Seq, Seq)) -> Vec<Event> {
    match last.0 - first.0 < FEW {
        true => (first.0..=last.0)
            .map(|seq| Event::Lost { seq: Seq(seq) })
            .collect(),
        false => vec![Event::LostAll { first, last }],
    }
}
