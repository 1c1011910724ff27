//! What the session holds, and whether what a reply says may be cached.

use super::object::{Object, Tenure};
use crate::planted::{self, Bug};
use leasefs_protocol::control::ReclaimLease;
use leasefs_protocol::limits::{MAX_LEASES_PER_CLIENT, MAX_RECALLS_OPEN};
use leasefs_protocol::{
    Grant, Handle, Mode, Parts, RawName, Recall, RecallId, Release, Scope, Stamp,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most objects without a lease whose stamps are remembered singly.
const MAX_FORGOTTEN: usize = 8192;

/// Most objects on which leases are held. No server grants more: it recalls the oldest, and these
/// recalls may be under way.
const MOST_HELD: usize = MAX_LEASES_PER_CLIENT + MAX_RECALLS_OPEN;

/// When a request was made, as far as caching its reply goes: after leases were lost or the
/// server restarted, replies to earlier requests are answered but not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked(u64);

/// What a change changes of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChangeOf {
    /// The object.
    pub object: Handle,
    /// Parts changed as a whole.
    pub parts: Parts,
    /// Names of it, where it is a directory.
    pub names: Vec<RawName>,
}

impl ChangeOf {
    /// All of an object.
    pub fn whole(object: Handle) -> Self {
        Self {
            object,
            parts: Parts::ALL,
            names: Vec::new(),
        }
    }
}

/// A recall that is not approved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Open {
    recall: Recall,
    yields: Vec<Yield>,
}

/// What a recall takes back and the server has until the approval, a new life of it too: pages may still be
/// in the kernel, and bytes under a Write lease on their way to the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Yield {
    object: Handle,
    held: Parts,
    write: Parts,
}

impl Yield {
    /// Attributes and names have left the kernel before anything else is done.
    fn of(object: Handle, held: Parts, write: Parts) -> Option<Self> {
        let held = (held & Parts::DATA) | write;
        let yields = Self {
            object,
            held,
            write,
        };
        (!held.is_empty()).then_some(yields)
    }
}

/// What is known of each object.
type Objects = BTreeMap<Arc<Handle>, Object>;

/// All leases of a session.
///
/// A lease is *held* from the grant on, if no newer recall of the part has been acted on. What a
/// reply says is *cacheable* if in addition nothing of the part is under way: no recall open, no
/// own change unanswered. Both are judged by stamps, so replies, recalls and the answers of own
/// changes may arrive in any order:
///
/// - *Grant reply behind the recall that takes it back:* the recall's stamp is newer; the grant is
///   neither held nor cached.
/// - *Recall behind a later grant:* can't take anything that must stay: dropping is always safe.
/// - *Own change and a read in flight:* while the change is unanswered nothing is cacheable;
///   afterwards only what is stamped behind the change is.
/// - *Own change without an answer:* its stamp is unknown, so every reply under way is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leases {
    objects: Objects,
    /// Objects of which only stamps are remembered, the longest forgotten first.
    forgotten: VecDeque<Handle>,
    /// What older stamps say of any object is outdated.
    floor: Stamp,
    /// Recalls that are not approved.
    open: BTreeMap<RecallId, Open>,
    /// Open recalls of everything.
    everything: u32,
    asked: u64,
    tenures: u64,
    generation: u64,
    held: usize,
}

impl Leases {
    /// A session that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// To be called before a request is sent, and shown with its reply.
    pub fn ask(&self) -> Asked {
        Asked(self.asked)
    }

    /// Counts how often everything was lost.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes in a grant. Returns the parts that what the reply says of may be cached now.
    pub fn granted(&mut self, asked: Asked, grant: &Grant) -> Parts {
        if asked != self.ask() {
            return Parts::NONE;
        }
        if grant.stamp < self.floor {
            self.yield_late(grant, grant.parts);
            return Parts::NONE;
        }
        if self.held >= MOST_HELD && self.held(&grant.object).is_empty() {
            return Parts::NONE;
        }
        let object = known(&mut self.objects, &grant.object);
        object.seen = object.seen.max(grant.stamp);
        let current = object.current(grant.parts, grant.stamp);
        if object.held.is_empty() && !current.is_empty() {
            self.held += 1;
        }
        object.held |= current;
        if grant.mode == Mode::Write {
            if current.contains(Parts::DATA) && !object.write.contains(Parts::DATA) {
                self.tenures += 1;
                object.tenure = Tenure(self.tenures);
            }
            object.write |= current;
        }
        self.yield_late(grant, grant.parts - current);
        if current.is_empty() {
            self.remember(grant.object);
            return Parts::NONE;
        }
        self.cacheable(asked, &grant.object, current, grant.stamp)
    }

    /// Those of `parts` of which a reply with a grant of this stamp may be cached now.
    pub fn cacheable(&self, asked: Asked, object: &Handle, parts: Parts, stamp: Stamp) -> Parts {
        if asked != self.ask() || stamp < self.floor || self.everything > 0 {
            return Parts::NONE;
        }
        let Some(object) = self.objects.get(object) else {
            return Parts::NONE;
        };
        let single = [Parts::ATTRS, Parts::DATA, Parts::LISTING, Parts::NAMES];
        single
            .into_iter()
            .filter(|part| object.current(parts & object.held, stamp).contains(*part))
            .filter(|part| !object.is_busy(*part))
            .fold(Parts::NONE, |sum, part| sum | part)
    }

    /// Whether what a reply with a NAMES grant of this stamp says of one name may be cached.
    pub fn name_cacheable(&self, asked: Asked, dir: &Handle, name: &[u8], stamp: Stamp) -> bool {
        let names = self.cacheable(asked, dir, Parts::NAMES, stamp);
        names.contains(Parts::NAMES)
            && self
                .objects
                .get(dir)
                .is_some_and(|dir| dir.name_is_settled(name, stamp))
    }

    /// Names of a directory of which a reply with a NAMES grant of this stamp may say something outdated,
    /// or that are being changed.
    pub fn unsettled_names(&self, dir: &Handle, stamp: Stamp) -> Vec<Box<[u8]>> {
        let known = self.objects.get(dir);
        known.map_or_else(Vec::new, |dir| dir.unsettled_names(stamp))
    }

    /// The handle of an object as it stands here, for whoever keeps it, too.
    pub fn shared(&self, object: &Handle) -> Arc<Handle> {
        shared(&self.objects, object)
    }

    /// Parts held of an object.
    pub fn held(&self, object: &Handle) -> Parts {
        self.objects.get(object).map_or(Parts::NONE, |o| o.held)
    }

    /// Parts held of an object in Write mode.
    pub fn held_exclusively(&self, object: &Handle) -> Parts {
        self.objects.get(object).map_or(Parts::NONE, |o| o.write)
    }

    /// Whether the object's data is held exclusively: nobody else even reads it. That lasts until a
    /// recall of it is approved.
    pub fn is_exclusive(&self, object: &Handle) -> bool {
        self.objects.get(object).is_some_and(Object::is_exclusive)
    }

    /// Since when the object's data is held in Write mode, if it is.
    pub fn tenure(&self, object: &Handle) -> Option<Tenure> {
        let known = self.objects.get(object);
        let held = known.filter(|object| object.write.contains(Parts::DATA));
        held.map(|object| object.tenure)
    }

    /// Whether what is written may be kept here for a while: nobody else even asks for the file's
    /// data or attributes without recalling them, and no recall of them is open.
    pub fn may_buffer(&self, object: &Handle) -> bool {
        let content = Parts::ATTRS | Parts::DATA;
        let known = self.objects.get(object);
        self.everything == 0
            && known.is_some_and(|o| {
                o.write.contains(content)
                    || (planted::is(Bug::BufferShared) && o.held.contains(content))
            })
    }

    /// Objects on which a lease is held.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether no lease is held.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Acts on a recall: what it covers isn't held any more and isn't cacheable before
    /// [`Leases::approved`]. False if it is open already (sent again).
    pub fn recall(&mut self, recall: &Recall) -> bool {
        if self.open.contains_key(&recall.id) {
            return false;
        }
        let open = Open {
            recall: recall.clone(),
            yields: self.yields(&recall.scope),
        };
        self.open.insert(recall.id, open);
        match &recall.scope {
            Scope::Everything => self.recall_everything(recall.stamp),
            Scope::Object {
                object,
                parts,
                names,
            } => {
                let raw = || names.iter().map(|name| name.0.as_slice());
                let yields = parts.contains(Parts::DATA) && self.is_exclusive(object);
                self.give_up(object, *parts, recall.stamp);
                let object = known(&mut self.objects, object);
                object.yielding |= yields;
                object.act_on_names(raw(), recall.stamp);
                object.block(*parts, raw());
            }
        }
        true
    }

    /// The recall is approved (or void): what comes stamped behind it is cacheable again.
    pub fn approved(&mut self, id: RecallId) {
        let Some(open) = self.open.remove(&id) else {
            return;
        };
        match &open.recall.scope {
            Scope::Everything => {
                self.everything = self.everything.saturating_sub(1);
                self.keep(|object| object.yielding = false);
            }
            Scope::Object {
                object,
                parts,
                names,
            } => {
                if let Some(known) = self.objects.get_mut(object) {
                    known.unblock(*parts, names.iter().map(|name| name.0.as_slice()));
                    known.yielding &= !parts.contains(Parts::DATA);
                }
                self.remember(*object);
            }
        }
    }

    /// Whether another session waits for this one object, of which there may be bytes that it must see.
    pub fn is_waited_for(&self, object: &Handle) -> bool {
        self.everything == 0 && self.objects.get(object).is_some_and(|o| o.yielding)
    }

    /// Recalls that are not approved, oldest number first.
    pub fn open_recalls(&self) -> impl Iterator<Item = &Recall> {
        self.open.values().map(|open| &open.recall)
    }

    /// An own change is about to be sent: nothing of what it changes is cacheable before
    /// [`Leases::end_change`] with the same list.
    ///
    /// The leases stay: the server doesn't recall from the sender of a change what the sender says
    /// it has dropped.
    pub fn begin_change(&mut self, changes: &[ChangeOf]) {
        for change in changes {
            let object = known(&mut self.objects, &change.object);
            object.block(change.parts, raw_names(change));
        }
    }

    /// An own change has ended. `stamp` is its reply's; without one it is unknown whether and when
    /// it happened, or happens still.
    pub fn end_change(&mut self, changes: &[ChangeOf], stamp: Option<Stamp>) {
        if stamp.is_none() {
            self.asked += 1;
        }
        for change in changes {
            if let Some(object) = self.objects.get_mut(&change.object) {
                object.unblock(change.parts, raw_names(change));
                if let Some(stamp) = stamp.filter(|_| !planted::is(Bug::EndChangeUnstamped)) {
                    object.act(change.parts, stamp);
                    object.act_on_names(raw_names(change), stamp);
                }
            }
            self.remember(change.object);
        }
    }

    /// An own change that stays begun has taken effect so far: what older stamps say is outdated.
    pub fn changed(&mut self, object: &Handle, parts: Parts, stamp: Stamp) {
        if let Some(object) = self.objects.get_mut(object) {
            object.act(parts, stamp);
        }
    }

    /// Gives parts of an object back unasked; `None` if none of them is held. What has been dropped
    /// before must not be cached from replies under way: the server takes back every grant up
    /// to the newest stamp seen.
    pub fn release(&mut self, object: &Handle, parts: Parts) -> Option<Release> {
        let known = self.objects.get(object)?;
        let parts = parts & known.held;
        if parts.is_empty() || known.is_busy(parts) {
            return None;
        }
        Some(self.give_back(*object, parts, known.seen))
    }

    /// As [`Leases::release`] of a directory's names, which the server recalls one by one as long as it
    /// believes that they are held here: a release that met an open recall was in vain.
    pub fn release_names(&mut self, dir: &Handle) -> Option<Release> {
        let known = self.objects.get(dir)?;
        if known.is_busy(Parts::NAMES) || known.has_busy_name() {
            return None;
        }
        Some(self.give_back(*dir, Parts::NAMES, known.seen))
    }

    fn give_back(&mut self, object: Handle, parts: Parts, seen: Stamp) -> Release {
        self.give_up(&object, parts, seen.next());
        self.remember(object);
        Release {
            object,
            parts,
            seen,
        }
    }

    /// The leases of an object are lost (they could not be reclaimed).
    pub fn lost(&mut self, object: &Handle) {
        if self.objects.contains_key(object) {
            self.give_up(object, Parts::ALL, Stamp::default());
            self.remember(*object);
        }
    }

    /// The leases of all objects but those are lost.
    pub fn lose_all_but(&mut self, keeps: impl Fn(&Handle) -> bool) {
        let held = |(_, object): &(&Arc<Handle>, &Object)| !object.held.is_empty();
        let objects = self.objects.iter().filter(held).map(|(handle, _)| **handle);
        let lost: Vec<Handle> = objects.filter(|handle| !keeps(handle)).collect();
        lost.iter().for_each(|handle| self.lost(handle));
    }

    /// The server is another process: stamps begin anew. What is held stays until it expires or
    /// can't be reclaimed; its recalls are void. A Write lease whose recall was not approved is held
    /// still: the server must keep everybody else waiting until the bytes under it have come.
    pub fn restarted(&mut self) {
        self.asked += 1;
        self.floor = Stamp::default();
        let open = self.open.values();
        let yields: Vec<Yield> = open.flat_map(|open| open.yields.clone()).collect();
        self.void_recalls();
        self.keep(Object::reset_stamps);
        yields.into_iter().for_each(|yields| self.hold_on(yields));
    }

    /// All leases are gone by the own clock; replies under way are not cached. By the server's they may stand
    /// still: it waits for the approval of its recalls.
    pub fn expire(&mut self) {
        self.asked += 1;
        self.generation += 1;
        self.held = 0;
        self.open.values_mut().for_each(|open| open.yields.clear());
        self.keep(Object::reset);
    }

    /// The server has forgotten the session: all leases are gone, and stamps and recalls are counted anew.
    pub fn begin_anew(&mut self) {
        self.void_recalls();
        self.expire();
        self.floor = Stamp::default();
    }

    /// Everything held, to be reclaimed from a restarted server.
    pub fn reclaim_list(&self) -> impl Iterator<Item = ReclaimLease> + '_ {
        let modes = |object: &Object| {
            let read = object.held - object.write;
            [(object.write, Mode::Write), (read, Mode::Read)]
        };
        let lease = |object: Handle, (parts, mode): (Parts, Mode)| ReclaimLease {
            object,
            parts,
            mode,
        };
        let of_object = move |(handle, object): (&Arc<Handle>, &Object)| {
            let handle = **handle;
            modes(object).map(|held| lease(handle, held))
        };
        let all = self.objects.iter().flat_map(of_object);
        all.filter(|lease| !lease.parts.is_empty())
    }

    /// What a recall of this takes back.
    fn yields(&self, scope: &Scope) -> Vec<Yield> {
        let of = |(handle, object): (&Arc<Handle>, &Object), parts: Parts| {
            Yield::of(**handle, object.held & parts, object.write & parts)
        };
        match scope {
            Scope::Everything => {
                let all = self.objects.iter();
                all.filter_map(|known| of(known, Parts::ALL)).collect()
            }
            Scope::Object { object, parts, .. } => {
                let known = self.objects.get_key_value(object);
                known
                    .and_then(|known| of(known, *parts))
                    .into_iter()
                    .collect()
            }
        }
    }

    /// A grant has come behind the recall that takes these parts of it back.
    fn yield_late(&mut self, grant: &Grant, parts: Parts) {
        let write = match grant.mode {
            Mode::Write => parts,
            Mode::Read => Parts::NONE,
        };
        let Some(late) = Yield::of(grant.object, parts, write) else {
            return;
        };
        let takes_back = |open: &&mut Open| {
            grant.stamp < open.recall.stamp
                && match &open.recall.scope {
                    Scope::Everything => true,
                    Scope::Object { object, parts, .. } => {
                        *object == late.object && !(*parts & late.held).is_empty()
                    }
                }
        };
        if let Some(open) = self.open.values_mut().find(takes_back) {
            open.yields.push(late);
        }
    }

    fn hold_on(&mut self, yields: Yield) {
        let object = known(&mut self.objects, &yields.object);
        self.held += usize::from(object.held.is_empty());
        if !yields.write.is_empty() {
            self.tenures += 1;
            object.tenure = Tenure(self.tenures);
        }
        object.held |= yields.held;
        object.write |= yields.write;
    }

    fn recall_everything(&mut self, stamp: Stamp) {
        self.everything += 1;
        self.floor = self.floor.max(stamp);
        self.held = 0;
        self.keep(|object| {
            let yields = object.is_exclusive();
            object.reset();
            object.yielding = yields;
        });
    }

    /// The server waits for no approval any more.
    pub fn void_recalls(&mut self) {
        let open: Vec<RecallId> = self.open.keys().copied().collect();
        open.into_iter().for_each(|id| self.approved(id));
    }

    fn keep(&mut self, change: impl Fn(&mut Object)) {
        for object in self.objects.values_mut() {
            change(object);
            object.queued = false;
        }
        self.objects.retain(|_, object| !object.is_idle());
        self.forgotten.clear();
    }

    fn give_up(&mut self, object: &Handle, parts: Parts, stamp: Stamp) {
        let object = known(&mut self.objects, object);
        object.act(parts, stamp);
        let before = object.held;
        object.held = before - parts;
        object.write = object.write - parts;
        if !before.is_empty() && object.held.is_empty() {
            self.held = self.held.saturating_sub(1);
        }
    }

    /// Bounds what is remembered of objects without a lease: the longest forgotten are merged
    /// into one stamp for all.
    fn remember(&mut self, object: Handle) {
        let Some(known) = self.objects.get_mut(&object) else {
            return;
        };
        if !known.is_idle() || known.queued {
            return;
        }
        known.queued = true;
        self.forgotten.push_back(object);
        if self.forgotten.len() > MAX_FORGOTTEN {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.forgotten.pop_front() else {
            return;
        };
        let Some(object) = self.objects.get_mut(&oldest) else {
            return;
        };
        object.queued = false;
        if object.is_idle() {
            self.floor = self.floor.max(object.newest_acted());
            self.objects.remove(&oldest);
        }
    }
}

/// What is known of an object from now on.
fn known<'a>(objects: &'a mut Objects, object: &Handle) -> &'a mut Object {
    let handle = shared(objects, object);
    objects.entry(handle).or_default()
}

fn shared(objects: &Objects, object: &Handle) -> Arc<Handle> {
    let known = objects.get_key_value(object);
    known.map_or_else(|| Arc::new(*object), |(handle, _)| Arc::clone(handle))
}

fn raw_names(change: &ChangeOf) -> impl Iterator<Item = &[u8]> {
    change.names.iter().map(|name| name.0.as_slice())
}

#[cfg(test)]
mod tests;
