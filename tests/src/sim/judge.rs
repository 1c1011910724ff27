//! Whether what processes saw is right.
//!
//! The server's host is the one place where changes take effect, so their order is known: what was
//! seen must have been current there at some moment of the operation that saw it. That is
//! linearizability, item by item, with the moment of effect as each change's linearization point.
//! What a client has buffered stands over what the host has (`ledger`).

mod locks;
mod zones;

use super::ledger::Ledger;
use super::model::{DeedId, Item, Nanos, Obj, rights_of};
use leasefs_protocol::{Attr, SessionId};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) use locks::{Granted, Holder, LockBook};
pub(super) use zones::{ZONES, Zones};

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

/// What an item was from a moment on.
#[derive(Clone, Debug)]
struct Was {
    at: Nanos,
    value: u64,
    /// A crash of the host has undone these values, which may be written again.
    or: Vec<u64>,
    /// Whose change it is holds it alone, and need not show it before it is told of it.
    own: Option<(SessionId, Vec<u64>)>,
}

impl Was {
    fn fits(&self, who: SessionId, fits: &impl Fn(u64) -> bool) -> bool {
        let own = self.own.iter().filter(|(of, _)| *of == who);
        let mut old = own.flat_map(|(_, old)| old);
        let mut or = self.or.iter();
        fits(self.value) || or.any(|or| fits(*or)) || old.any(|value| fits(*value))
    }
}

/// An item has changed.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Which.
    pub item: Item,
    /// Who did it.
    pub by: Option<SessionId>,
}

/// The order of all changes, for telling runs apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Order {
    pub count: u64,
    pub digest: u64,
}

impl Order {
    fn add(&mut self, item: Item, value: u64) {
        let value = match item {
            Item::Attrs(_) => 0,
            _ => value,
        };
        let mut hasher = DefaultHasher::new();
        (self.digest, item, value).hash(&mut hasher);
        self.digest = hasher.finish();
        self.count += 1;
    }
}

/// What has happened, and what was seen of it.
#[derive(Debug, Default)]
pub struct Judge {
    history: BTreeMap<Item, Vec<Was>>,
    /// Who made each item's last change.
    authors: BTreeMap<Item, Option<SessionId>>,
    deeds: Vec<Known>,
    /// The first thing that was wrong.
    pub violation: Option<Violation>,
    /// What was seen.
    pub seen: u64,
    /// How often items have changed, and in which order; times count for nothing in it.
    pub(crate) order: Order,
    /// What has just changed.
    pub fresh: Vec<Fresh>,
    /// Attributes that were shown, to be compared with those that the host ever had.
    pub(super) shown: Vec<(Obj, Attr)>,
    /// Writes that may not be in the store, or not on its disk.
    pub(super) ledger: Ledger,
    /// Who holds which locks.
    pub(super) locks: LockBook,
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
    pub fn effect(&mut self, now: Nanos, item: Item, value: u64, by: Option<SessionId>) {
        self.note(now, item, value, Vec::new());
        self.authors.insert(item, by);
        self.fresh.push(Fresh { item, by });
    }

    /// The host has these attributes of an object.
    pub fn has_rights(&mut self, now: Nanos, object: Obj, attr: &Attr, by: Option<SessionId>) {
        let (item, value) = (Item::Rights(object), rights_of(attr));
        if self.current(item) != value {
            self.effect(now, item, value, by);
        }
    }

    /// As [`Judge::has_rights`], of what a crash has left, while others may have been shown what it has undone.
    pub fn found_rights(&mut self, now: Nanos, object: Obj, attr: &Attr) {
        let item = Item::Rights(object);
        let was = self.current(item);
        self.note(now, item, rights_of(attr), vec![was]);
    }

    pub(super) fn note(&mut self, at: Nanos, item: Item, value: u64, or: Vec<u64>) {
        let own = None;
        self.order.add(item, value);
        let was = Was { at, value, or, own };
        self.history.entry(item).or_default().push(was);
    }

    /// As [`Judge::effect`], of what `by` need not show before its change is answered.
    pub(super) fn own_effect(&mut self, now: Nanos, item: Item, value: u64, by: SessionId) {
        let last = self.last(item).cloned();
        let before = last.as_ref().map_or(initial(item), |was| was.value);
        let mut old = match last.and_then(|was| was.own) {
            Some((of, old)) if of == by => old,
            _ => Vec::new(),
        };
        old.push(before);
        self.effect(now, item, value, Some(by));
        if let Some(was) = self.last_mut(item) {
            was.own = Some((by, old));
        }
        self.ledger_mut().pending.insert((by, item));
    }

    /// The changes of a file by a session are answered.
    pub fn answered(&mut self, now: Nanos, by: SessionId, object: Obj) {
        let pending = &mut self.ledger_mut().pending;
        let of = |(session, item): &(SessionId, Item)| *session == by && item.object() == object;
        let items: Vec<_> = pending.iter().filter(|p| of(p)).copied().collect();
        pending.retain(|p| !of(p));
        items.iter().for_each(|(_, item)| self.settles(now, *item));
    }

    /// Nobody needs to show an older value of an item any more.
    pub(super) fn settles(&mut self, now: Nanos, item: Item) {
        let last = self.last(item).filter(|was| was.own.is_some());
        if let Some((value, or)) = last.map(|was| (was.value, was.or.clone())) {
            self.note(now, item, value, or);
        }
    }

    /// An item has changed, and `by` shows an older value of it for a while.
    pub(super) fn still_shows(&mut self, item: Item, older: u64, by: SessionId) {
        if let Some(was) = self.last_mut(item) {
            was.own = Some((by, vec![older]));
        }
    }

    fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    fn last(&self, item: Item) -> Option<&Was> {
        self.history.get(&item)?.last()
    }

    fn last_mut(&mut self, item: Item) -> Option<&mut Was> {
        self.history.get_mut(&item)?.last_mut()
    }

    /// What an item is now; `initial` if nothing was ever told of it.
    pub fn current_or(&self, item: Item, initial: u64) -> u64 {
        self.last(item).map_or(initial, |was| was.value)
    }

    /// What an item is now.
    pub fn current(&self, item: Item) -> u64 {
        self.current_or(item, initial(item))
    }

    /// Whether an item may be this now.
    pub fn may_be(&self, item: Item, value: u64) -> bool {
        match self.last(item) {
            Some(was) => was.fits(SessionId::default(), &|v| v == value),
            None => value == initial(item),
        }
    }

    /// Whether an item may be another one than it is.
    pub fn is_unsettled(&self, item: Item) -> bool {
        self.last(item).is_some_and(|was| !was.or.is_empty())
    }

    /// What a crash of the host has undone of it, and may be written again.
    pub(super) fn undone(&self, item: Item) -> Vec<u64> {
        self.last(item).map_or_else(Vec::new, |was| was.or.clone())
    }

    /// As [`Judge::undone`] said before it changed.
    pub(super) fn may_come_back(&mut self, item: Item, undone: Vec<u64>) {
        if let Some(was) = self.last_mut(item) {
            was.or.extend(undone);
        }
    }

    /// Whose change an item shows, where that is known.
    pub fn author(&self, item: Item) -> Option<SessionId> {
        self.authors.get(&item).copied().flatten()
    }

    /// All items that have ever changed.
    pub fn items(&self) -> Vec<Item> {
        self.history.keys().copied().collect()
    }

    /// A change runs and finds nothing to do.
    pub fn happens_idly(&mut self, deed: DeedId) {
        self.known(deed).idle = true;
    }

    fn known(&mut self, deed: DeedId) -> &mut Known {
        &mut self.deeds[deed.0 as usize]
    }

    /// A change that may have taken effect before a crash takes effect again.
    pub fn happens_again(&mut self, deed: DeedId, item: Option<Item>) {
        if self.known(deed).effects == 0 {
            self.happens(deed, item);
        }
    }

    /// A change takes effect.
    pub fn happens(&mut self, deed: DeedId, item: Option<Item>) {
        self.check_guards_of(deed, item);
        let known = self.known(deed);
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
        let known = self.known(deed);
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

    /// Somebody saw these attributes.
    pub fn saw_attr(&mut self, object: Obj, attr: &Attr) {
        self.shown.push((object, *attr));
    }

    /// Somebody saw `item` with a value in an operation from `start` to `end`.
    pub fn saw(&mut self, who: SessionId, item: Item, value: u64, (start, end): (Nanos, Nanos)) {
        let fits = |v| v == value;
        self.saw_any(who, item, (start, end), fits, || format!("{value:x}"));
    }

    /// Somebody saw a value that `fits`.
    pub fn saw_any(
        &mut self,
        who: SessionId,
        item: Item,
        (start, end): (Nanos, Nanos),
        fits: impl Fn(u64) -> bool,
        shown: impl FnOnce() -> String,
    ) {
        self.seen += 1;
        let history = self.history.get(&item).map_or(&[][..], Vec::as_slice);
        let first = history.partition_point(|was| was.at <= start);
        let late = &history[first.saturating_sub(1)..];
        let mut within = late.iter().take_while(|was| was.at <= end);
        let initial = first == 0 && fits(initial(item));
        if initial || within.any(|was| was.fits(who, &fits)) {
            return;
        }
        let was: Vec<String> = late
            .iter()
            .map(|was| {
                let or: String = was.or.iter().map(|or| format!(" or {or:x}")).collect();
                format!("{:x}{or} from {:.3} ms", was.value, was.at as f64 / 1e6)
            })
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

/// What an item is before anything has happened to it.
pub fn initial(item: Item) -> u64 {
    match item {
        Item::Cell(..) => super::model::ABSENT,
        Item::Attrs(_) | Item::Rights(_) | Item::Name(..) => 0,
        Item::Listing(_) => super::model::digest(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{ABSENT, Obj};
    use super::*;

    const PAGE: Item = Item::Cell(Obj(1), 0);
    const WHO: SessionId = SessionId([1; 16]);

    fn judge() -> Judge {
        let mut judge = Judge::default();
        judge.effect(100, PAGE, 7, None);
        judge.effect(200, PAGE, 8, None);
        judge
    }

    #[test]
    fn what_was_current_at_some_moment_of_the_operation_is_right() {
        let mut judge = judge();
        judge.saw(WHO, PAGE, ABSENT, (50, 90));
        judge.saw(WHO, PAGE, 7, (150, 160));
        judge.saw(WHO, PAGE, 7, (199, 300));
        judge.saw(WHO, PAGE, 8, (150, 200));
        assert_eq!(judge.violation, None);
    }

    #[test]
    fn what_was_over_before_the_operation_began_is_stale() {
        let mut judge = judge();
        judge.saw(WHO, PAGE, 7, (200, 300));
        assert!(judge.violation.is_some());
    }

    #[test]
    fn what_came_after_the_operation_is_wrong_too() {
        let mut judge = judge();
        judge.saw(WHO, PAGE, 8, (120, 199));
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
