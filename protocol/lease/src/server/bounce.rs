//! Objects that bounce between sessions get no exclusive lease for as long as that is cheaper.
//!
//! An exclusive lease lets its holder keep what it writes, and saves a round trip with each write; it costs one
//! with each read elsewhere, which has to wait until it has been recalled (Gray & Cheriton 1989, whose model says
//! when a term of zero is best). While it is given only the recalls are seen. At *term zero* every write
//! is, and it is counted who would have had the lease: what that would have saved, and what it would have cost.
//!
//! The same goes for what is new in a directory: when another session has names of that cached, it is likely to look at
//! what is made there next, and the directory is at term zero for it from the first on.
//!
//! Read leases are given as ever: a term of zero doesn't pay for these. What the kernel is told without a timeout
//! it asks for again before each read, and pages that are taken back at once it reads twice.
//!
//! No promise depends on anything here. It decides only whether who could have a Write lease with the answer
//! of a change gets a Read lease instead. Whatever is forgotten here, or counted wrong, costs time; and what is written without
//! the lease isn't kept by its writer to be written again after a crash of the server's host.

use super::api::Bouncing;
use crate::time::BootTime;
use leasefs_protocol::limits::{
    EXCLUSIVE_AGAIN, MAX_BOUNCING, MAX_EXCLUSIVE_AGAIN, MAX_UNFOUND, TERM_ZERO_TRIAL,
};
use leasefs_protocol::{Handle, Parts, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// An object at term zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Zero {
    pub(super) since: BootTime,
    /// Of this period, which ends when the object's entry does: writes that the lease would have saved.
    pub(super) hits: u64,
    /// Reads that would have had to wait for its recall.
    pub(super) recalls: u64,
    /// Who would hold it now, and what of it has not been recalled.
    exclusive: Option<(SessionId, Parts)>,
    /// Of a directory: what was made there last, and by whom, until another has found it.
    newest: Option<(SessionId, Handle)>,
}

impl Zero {
    fn begins(since: BootTime) -> Self {
        Self {
            since,
            hits: 0,
            recalls: 0,
            exclusive: None,
            newest: None,
        }
    }

    fn read(&mut self, reader: SessionId, parts: Parts) {
        if let Some((holder, held)) = self.exclusive.filter(|(holder, _)| *holder != reader) {
            self.recalls += u64::from(held.intersects(parts));
            let left = held - parts;
            self.exclusive = (!left.is_empty()).then_some((holder, left));
        }
    }

    /// The session would be granted these parts exclusively: nobody else holds any of them.
    fn written(&mut self, writer: SessionId, parts: Parts) {
        let would = Some((writer, parts));
        self.hits += u64::from(self.exclusive == would);
        self.exclusive = would;
    }

    /// The session would have to itself what it has made in the directory. What was made there before, by whomever, would
    /// have paid if nobody has found it since.
    fn made(&mut self, maker: SessionId, object: Handle) {
        self.hits += u64::from(self.newest.is_some());
        self.newest = Some((maker, object));
    }

    /// Whether it is what another has made there last.
    fn found(&mut self, finder: SessionId, object: &Handle) -> bool {
        let newest = self.newest;
        let found = newest.is_some_and(|(maker, newest)| maker != finder && newest == *object);
        if found {
            self.recalls += 1;
            self.newest = None;
        }
        found
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Standing {
    /// Reads have waited lately; when each of them leaves the window.
    Watched(VecDeque<BootTime>),
    Zero(Zero),
    /// The exclusive lease has turned out to pay: it isn't denied.
    Pays,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    /// When its standing ends, or is looked at again.
    ends: BootTime,
    /// How often the exclusive lease has turned out to pay.
    times: u32,
    standing: Standing,
}

impl Entry {
    /// It is at term zero for this long.
    fn begins(&mut self, now: BootTime, period: Duration) {
        self.standing = Standing::Zero(Zero::begins(now));
        self.ends = now + period;
    }
}

/// The objects whose Write leases have been waited for lately, [`MAX_BOUNCING`] at most: what would end first
/// leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounces {
    config: Bouncing,
    entries: BTreeMap<Handle, Entry>,
    /// The entries by when they end.
    by_end: BTreeSet<(BootTime, Handle)>,
    /// How many are at term zero: most of the time none, and nothing is looked up.
    zeros: usize,
    /// New files that were denied their makers and that nobody else has found yet, in all directories; up to [`MAX_UNFOUND`].
    unfound: u32,
    /// There were as many: until then nothing new is denied anybody.
    not_before: BootTime,
}

impl Bounces {
    pub(super) fn new(config: Bouncing) -> Self {
        Self {
            config,
            entries: BTreeMap::new(),
            by_end: BTreeSet::new(),
            zeros: 0,
            unfound: 0,
            not_before: BootTime::ZERO,
        }
    }

    /// Whether anything is at term zero.
    pub(super) fn has_zeros(&self) -> bool {
        self.zeros > 0
    }

    /// The objects at term zero, and when it is looked at them again.
    pub(super) fn zeros(&self) -> impl Iterator<Item = (&Handle, &Zero, BootTime)> {
        self.entries
            .iter()
            .filter_map(|(object, e)| match &e.standing {
                Standing::Zero(zero) => Some((object, zero, e.ends)),
                Standing::Watched(_) | Standing::Pays => None,
            })
    }

    /// Until when the object is at term zero, if it is.
    pub(super) fn zero_until(&self, object: &Handle) -> Option<BootTime> {
        let entry = self.entries.get(object)?;
        matches!(entry.standing, Standing::Zero(_)).then_some(entry.ends)
    }

    /// A read waits for another session's Write lease on the object.
    pub(super) fn has_to_wait(&mut self, now: BootTime, object: Handle) {
        let Bouncing { waits, window, .. } = self.config;
        let Some(mut entry) = self.take_to_watch(now, &object) else {
            return;
        };
        if let Standing::Watched(seen) = &mut entry.standing {
            seen.retain(|leaves| !leaves.has_come(now));
            seen.push_back(now + window);
            entry.ends = entry.ends.max(now + window);
            if seen.len() >= waits {
                entry.begins(now, self.config.period);
            }
        }
        self.put(object, entry);
    }

    /// Something is made in a directory of which another session has names cached: it looks there, and may look for this.
    pub(super) fn is_watched(&mut self, now: BootTime, dir: Handle) {
        let Some(mut entry) = self.take_to_watch(now, &dir) else {
            return;
        };
        if let Standing::Watched(_) = entry.standing {
            entry.begins(now, self.config.period);
        }
        self.put(dir, entry);
    }

    /// The object's entry, which is to be put back; one that is new has room. None if nothing is ever at term zero.
    fn take_to_watch(&mut self, now: BootTime, object: &Handle) -> Option<Entry> {
        if self.config.waits == 0 {
            return None;
        }
        let known = self.take(object);
        if known.is_none() {
            self.make_room();
        }
        Some(known.unwrap_or(Entry {
            ends: now,
            times: 0,
            standing: Standing::Watched(VecDeque::new()),
        }))
    }

    /// Somebody finds an object in a directory.
    pub(super) fn note_found(&mut self, dir: &Handle, finder: SessionId, object: &Handle) {
        let zero = self.zero_mut(dir);
        if zero.is_some_and(|zero| zero.found(finder, object)) {
            self.unfound = self.unfound.saturating_sub(1);
        }
    }

    /// Somebody reads these parts.
    pub(super) fn note_read(&mut self, object: &Handle, reader: SessionId, parts: Parts) {
        if let Some(zero) = self.zero_mut(object) {
            zero.read(reader, parts);
        }
    }

    /// Whether the session, which could have these parts exclusively, doesn't get them so.
    pub(super) fn denies(
        &mut self,
        now: BootTime,
        object: &Handle,
        writer: SessionId,
        parts: Parts,
    ) -> bool {
        self.judges(now, object, |zero| zero.written(writer, parts))
    }

    /// Whether the session doesn't get exclusively the object that it has made in the directory.
    pub(super) fn denies_new(
        &mut self,
        now: BootTime,
        dir: &Handle,
        maker: SessionId,
        object: Handle,
    ) -> bool {
        let denied = self.judges(now, dir, |zero| zero.made(maker, object));
        if !denied || !self.not_before.has_come(now) {
            return false;
        }
        self.unfound += 1;
        if self.unfound == MAX_UNFOUND {
            self.unfound = 0;
            self.not_before = now + EXCLUSIVE_AGAIN;
        }
        true
    }

    fn judges(&mut self, now: BootTime, object: &Handle, note: impl FnOnce(&mut Zero)) -> bool {
        let Some(zero) = self.zero_mut(object) else {
            return false;
        };
        note(zero);
        // A wrong trial costs no more than this.
        let wrong = zero.hits > zero.recalls + TERM_ZERO_TRIAL;
        if let Some(entry) = wrong.then(|| self.take(object)).flatten() {
            self.put(*object, pays(now, entry.times));
        }
        !wrong
    }

    fn zero_mut(&mut self, object: &Handle) -> Option<&mut Zero> {
        if self.zeros == 0 {
            return None;
        }
        match &mut self.entries.get_mut(object)?.standing {
            Standing::Zero(zero) => Some(zero),
            Standing::Watched(_) | Standing::Pays => None,
        }
    }

    /// Looks at what has come to an end.
    pub(super) fn run(&mut self, now: BootTime) {
        while let Some((ends, object)) = self.by_end.first().copied()
            && ends.has_come(now)
        {
            let ended = self.take(&object);
            if let Some(next) = ended.and_then(|entry| self.next(now, entry)) {
                self.put(object, next);
            }
        }
    }

    /// What follows when its standing has ended; `None` if it is forgotten.
    fn next(&self, now: BootTime, entry: Entry) -> Option<Entry> {
        match entry.standing {
            Standing::Watched(_) => None,
            // Its times are remembered for as long again.
            Standing::Pays => Some(Entry {
                ends: now + exclusive_again(entry.times),
                standing: Standing::Watched(VecDeque::new()),
                ..entry
            }),
            Standing::Zero(zero) if zero.hits >= zero.recalls => {
                (zero.hits > 0).then(|| pays(now, entry.times))
            }
            // It no longer bounces so often that either would matter.
            Standing::Zero(zero) if zero.recalls < self.config.waits as u64 => None,
            Standing::Zero(zero) => Some(Entry {
                ends: now + self.config.period,
                times: 0,
                standing: Standing::Zero(Zero {
                    hits: 0,
                    recalls: 0,
                    ..zero
                }),
            }),
        }
    }

    fn make_room(&mut self) {
        if self.entries.len() >= MAX_BOUNCING
            && let Some((_, first)) = self.by_end.first().copied()
        {
            self.take(&first);
        }
    }

    fn put(&mut self, object: Handle, entry: Entry) {
        self.by_end.insert((entry.ends, object));
        self.zeros += usize::from(matches!(entry.standing, Standing::Zero(_)));
        self.entries.insert(object, entry);
    }

    fn take(&mut self, object: &Handle) -> Option<Entry> {
        let entry = self.entries.remove(object)?;
        self.by_end.remove(&(entry.ends, *object));
        self.zeros -= usize::from(matches!(entry.standing, Standing::Zero(_)));
        Some(entry)
    }

    pub(super) fn rebase(&mut self, now: BootTime) {
        let move_back = |at: &mut BootTime| *at = BootTime::ZERO + at.since(now);
        move_back(&mut self.not_before);
        for entry in self.entries.values_mut() {
            move_back(&mut entry.ends);
            match &mut entry.standing {
                Standing::Watched(waits) => waits.iter_mut().for_each(move_back),
                Standing::Zero(zero) => move_back(&mut zero.since),
                Standing::Pays => {}
            }
        }
        self.by_end = self.ends().collect();
    }

    fn ends(&self) -> impl Iterator<Item = (BootTime, Handle)> {
        self.entries.iter().map(|(object, e)| (e.ends, *object))
    }

    /// Bounded, each entry has an end, and those at term zero are counted.
    pub(super) fn is_sound(&self) -> bool {
        let by_end: BTreeSet<_> = self.ends().collect();
        let bounded = self.entries.len() <= MAX_BOUNCING;
        bounded && by_end == self.by_end && self.zeros().count() == self.zeros
    }
}

fn pays(now: BootTime, times: u32) -> Entry {
    Entry {
        ends: now + exclusive_again(times),
        times: times.saturating_add(1),
        standing: Standing::Pays,
    }
}

/// For how long term zero isn't tried again.
fn exclusive_again(times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    let longer = EXCLUSIVE_AGAIN.saturating_mul(factor);
    longer.min(MAX_EXCLUSIVE_AGAIN)
}
