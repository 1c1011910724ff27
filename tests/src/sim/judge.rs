//! Whether what processes saw is right.
//!
//! The server's store is the one place where changes take effect, so their order is known: what was
//! seen must have been current in the store at some moment of the operation that saw it. That is
//! linearizability, item by item, with the moment of effect as each change's linearization point.

use super::ledger::Ledger;
use super::model::{DeedId, Item, Nanos};
use std::collections::BTreeMap;

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What, for people.
    pub what: String,
    /// Of what.
    pub item: Option<Item>,
}

/// What is known of a change.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    effects: u32,
    /// It was found that there was nothing to do.
    idle: bool,
    /// Somebody was told that it never happens.
    never: bool,
}

/// How a change ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was done.
    Done,
    /// It was refused, or never happens.
    Not,
    /// Nobody knows.
    Unknown,
}

/// What has happened, and what was seen of it.
#[derive(Debug, Default)]
pub struct Judge {
    history: BTreeMap<Item, Vec<(Nanos, u64)>>,
    deeds: Vec<Known>,
    /// The first thing that was wrong.
    pub violation: Option<Violation>,
    /// What was seen.
    pub seen: u64,
    /// What has just changed.
    pub fresh: Vec<(Item, u64)>,
    /// Writes that may not be in the store, or not on its disk.
    pub(super) ledger: Ledger,
}

impl Judge {
    /// A new change.
    pub fn deed(&mut self) -> DeedId {
        self.deeds.push(Known::default());
        DeedId(self.deeds.len() as u32 - 1)
    }

    /// Something is wrong.
    pub fn accuse(&mut self, item: Option<Item>, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { what: what(), item });
        }
    }

    /// An item has another value from `now` on.
    pub fn effect(&mut self, now: Nanos, item: Item, value: u64) {
        self.history.entry(item).or_default().push((now, value));
        self.fresh.push((item, value));
    }

    /// What an item is now.
    pub fn current(&self, item: Item) -> u64 {
        let last = self.history.get(&item).and_then(|history| history.last());
        last.map_or(0, |(_, value)| *value)
    }

    /// All items that have ever changed.
    pub fn items(&self) -> Vec<Item> {
        self.history.keys().copied().collect()
    }

    /// A change runs and finds nothing to do.
    pub fn happens_idly(&mut self, deed: DeedId) {
        self.deeds[deed.0 as usize].idle = true;
    }

    /// A change that may have taken effect before a crash takes effect again.
    pub fn happens_again(&mut self, deed: DeedId, item: Option<Item>) {
        if self.deeds[deed.0 as usize].effects == 0 {
            self.happens(deed, item);
        }
    }

    /// A change takes effect.
    pub fn happens(&mut self, deed: DeedId, item: Option<Item>) {
        let known = &mut self.deeds[deed.0 as usize];
        known.effects += 1;
        let known = *known;
        if known.effects > 1 {
            self.accuse(item, || format!("{deed:?} took effect twice"));
        } else if known.never {
            self.accuse(item, || {
                format!("{deed:?} took effect after it was said that it never would")
            });
        }
    }

    /// The caller of a change is told how it ended.
    pub fn ended(&mut self, deed: DeedId, end: End, item: Option<Item>) {
        let known = &mut self.deeds[deed.0 as usize];
        known.never |= end == End::Not;
        let (effects, idle) = (known.effects, known.idle);
        let wrong = match end {
            End::Done => effects != 1 && !(idle && effects == 0),
            End::Not => effects != 0,
            End::Unknown => false,
        };
        if wrong {
            self.accuse(item, || {
                format!("{deed:?} ended as {end:?} having taken effect {effects} times")
            });
        }
    }

    /// Somebody saw `item` with a value in an operation from `start` to `end`.
    pub fn saw(&mut self, item: Item, value: u64, start: Nanos, end: Nanos) {
        self.saw_any(item, start, end, |v| v == value, || format!("{value}"));
    }

    /// Somebody saw a value that `fits`.
    pub fn saw_any(
        &mut self,
        item: Item,
        start: Nanos,
        end: Nanos,
        fits: impl Fn(u64) -> bool,
        shown: impl FnOnce() -> String,
    ) {
        self.seen += 1;
        let history = self.history.get(&item).map_or(&[][..], Vec::as_slice);
        let first = history.partition_point(|(at, _)| *at <= start);
        let within = history[first.saturating_sub(1)..].iter();
        let mut within = within.take_while(|(at, _)| *at <= end);
        let initial = first == 0 && fits(0);
        if initial || within.any(|(_, value)| fits(*value)) {
            return;
        }
        let was: Vec<String> = history[first.saturating_sub(1)..]
            .iter()
            .map(|(at, value)| format!("{value} from {:.3} ms", *at as f64 / 1e6))
            .collect();
        self.accuse(Some(item), || {
            format!(
                "{item:?} was seen as {} between {:.3} and {:.3} ms, but it was {}",
                shown(),
                start as f64 / 1e6,
                end as f64 / 1e6,
                was.join(", ")
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Obj;
    use super::*;

    const PAGE: Item = Item::Page(Obj(1), 0);

    fn judge() -> Judge {
        let mut judge = Judge::default();
        judge.effect(100, PAGE, 7);
        judge.effect(200, PAGE, 8);
        judge
    }

    #[test]
    fn what_was_current_at_some_moment_of_the_operation_is_right() {
        let mut judge = judge();
        judge.saw(PAGE, 0, 50, 90);
        judge.saw(PAGE, 7, 150, 160);
        judge.saw(PAGE, 7, 199, 300);
        judge.saw(PAGE, 8, 150, 200);
        assert_eq!(judge.violation, None);
    }

    #[test]
    fn what_was_over_before_the_operation_began_is_stale() {
        let mut judge = judge();
        judge.saw(PAGE, 7, 200, 300);
        assert!(judge.violation.is_some());
    }

    #[test]
    fn what_came_after_the_operation_is_wrong_too() {
        let mut judge = judge();
        judge.saw(PAGE, 8, 120, 199);
        assert!(judge.violation.is_some());
    }

    #[test]
    fn a_change_happens_once_and_not_at_all_after_it_was_given_up() {
        let mut judge = Judge::default();
        let (once, never) = (judge.deed(), judge.deed());
        judge.happens(once, None);
        judge.ended(once, End::Done, None);
        judge.ended(never, End::Not, None);
        assert_eq!(judge.violation, None);
        judge.happens(never, None);
        assert!(judge.violation.is_some());
    }
}
