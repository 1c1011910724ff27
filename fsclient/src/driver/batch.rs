//! What one event has brought up, to be done when the core isn't locked any more.

use super::caller::pending_signal;
use super::{Driver, Waiter};
use crate::clock;
use crate::session::{Out, is_ours};
use leasefs_client::{
    Action, Answer, CallId, Effect, EffectId, Event, Notice, Noticed, Signals, Undelivered,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::Refusal;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Actions by who carries them out. Of each the order is kept; between them none is needed: what must be
/// done before something else is decided is answered for by an event.
pub(super) struct Batch<W> {
    /// When it was decided.
    decided: BootTime,
    /// Most events bring one answer and nothing else, and that allocates nothing.
    first: Option<(W, Result<Answer, Refusal>)>,
    answers: Vec<(W, Result<Answer, Refusal>)>,
    sends: Vec<Effect>,
    notices: Vec<(EffectId, Notice)>,
    watches: Vec<(CallId, u32, Signals)>,
    keeps: Vec<(EffectId, Undelivered)>,
    ended: bool,
}

/// An answer that was decided so long ago is given too late: a lease that covers it has longer to go (an eighth of the shortest term).
const LATE: Duration = Duration::from_millis(60);

/// The answer to a request of `decided`, as it may be given now. A stop of this process that comes behind this is as good as
/// one of the asker.
pub(super) fn as_of_now(
    decided: BootTime,
    answer: Result<Answer, Refusal>,
) -> Result<Answer, Refusal> {
    match clock::boot().since(decided) > LATE {
        true => answer.map(Answer::for_now),
        false => answer,
    }
}

impl<W> Batch<W> {
    pub fn of(decided: BootTime) -> Self {
        Self {
            decided,
            first: None,
            answers: Vec::new(),
            sends: Vec::new(),
            notices: Vec::new(),
            watches: Vec::new(),
            keeps: Vec::new(),
            ended: false,
        }
    }
}

impl<W: Waiter> Batch<W> {
    /// Takes in an action; a notice that is to be done at once is given back.
    pub fn take_in(&mut self, action: Action<W>) -> Option<(EffectId, Notice)> {
        match action {
            Action::Answer(waiter, answer) => match &self.first {
                None => self.first = Some((waiter, answer)),
                Some(_) => self.answers.push((waiter, answer)),
            },
            Action::Do(effect) if is_ours(&effect) => self.sends.push(effect),
            Action::Do(Effect::Notify(id, notice)) => match notice.never_blocks() {
                true => return Some((id, notice)),
                false => self.notices.push((id, notice)),
            },
            Action::Do(Effect::Watch(call, pid, signals)) => {
                self.watches.push((call, pid, signals));
            }
            Action::Do(Effect::Keep(id, undelivered)) => self.keeps.push((id, undelivered)),
            Action::Do(Effect::Ended) => self.ended = true,
            Action::Do(_) => {}
        }
        None
    }

    pub fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Carries out what concerns connections.
    pub fn send(&mut self, out: Option<Out<'_, W>>, more: &mut VecDeque<Event<W>>) {
        let Some(mut out) = out else { return };
        let sends = self.sends.drain(..);
        more.extend(sends.filter_map(|effect| out.carry_out(effect)));
    }

    /// Carries out the rest.
    pub fn perform(self, driver: &Driver<W>) {
        for (id, notice) in self.notices {
            driver.notify(id, notice);
        }
        for (waiter, answer) in self.first.into_iter().chain(self.answers) {
            waiter.answer(as_of_now(self.decided, answer));
        }
        if !self.watches.is_empty() {
            driver.watch(self.watches);
        }
        for (id, undelivered) in self.keeps {
            driver.keep(id, undelivered);
        }
        if self.ended {
            driver.ended.send_replace(true);
        }
    }
}

impl<W: Waiter> Driver<W> {
    /// On a thread of its own.
    fn notify(&self, id: EffectId, notice: Notice) {
        let (driver, kernel) = (self.me.clone(), Arc::clone(&self.kernel));
        let looked_at = notice.is_done_when_it_blocks();
        let under_way = looked_at.then(|| self.under_way.add(id));
        let crowded = self.threads.run(move || {
            if let Some(under_way) = &under_way {
                under_way.begins();
            }
            let noticed: Noticed = kernel.tell(&notice);
            let is_news = under_way.is_none_or(|under_way| under_way.settle());
            if let Some(driver) = driver.upgrade().filter(|_| is_news) {
                driver.drive(Event::Notified(id, noticed));
            }
        });
        if crowded || looked_at {
            self.ticker.hurry();
        }
    }

    /// Many may wait; whoever is at work here shouldn't.
    fn watch(&self, watches: Vec<(CallId, u32, Signals)>) {
        let driver = self.me.clone();
        self.runtime.spawn(async move {
            for (call, pid, signals) in watches {
                let Some(pending) = pending_signal(pid, signals) else {
                    continue;
                };
                if let Some(driver) = driver.upgrade() {
                    driver.drive(match pending {
                        Signals::Fatal => Event::Left(call),
                        Signals::All => Event::Interrupted(call),
                    });
                }
            }
        });
    }

    fn keep(&self, id: EffectId, undelivered: Undelivered) {
        let (driver, keeping) = (self.me.clone(), Arc::clone(&self.keeping));
        self.runtime.spawn_blocking(move || {
            keeping.keep_for_later(undelivered);
            if let Some(driver) = driver.upgrade() {
                driver.drive(Event::Kept(id));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_client::call::{Shown, ShownFor};

    #[test]
    fn an_answer_that_is_given_long_after_it_was_decided_is_believed_for_no_longer() {
        let valid = Duration::from_secs(8);
        let attr = super::super::tests::fake::attr();
        let shown = Shown { ino: 1, attr };
        let told = |decided| match as_of_now(decided, Ok(Answer::Attr(ShownFor { shown, valid }))) {
            Ok(Answer::Attr(told)) => told.valid,
            other => panic!("another answer: {other:?}"),
        };
        assert_eq!(told(clock::boot()), valid);
        assert_eq!(
            told(BootTime::ZERO),
            Duration::ZERO,
            "since the machine has booted"
        );
    }
}
