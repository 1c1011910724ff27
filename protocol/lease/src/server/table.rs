//! The table of objects: who holds what of each, which operations wait or run there, which
//! recalls are open. An object that nobody holds and nobody works on takes no memory.

use super::api::OpId;
use super::cover::Cover;
use super::ids::{ObjId, Sid};
use super::index::Index;
use super::op::{Kind, Need, Op, Order};
use super::slab::Slab;
use leasefs_protocol::{Handle, Parts, RecallId, Stamp};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What one session holds of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) session: Sid,
    /// Never empty.
    pub(super) parts: Parts,
    /// Those held in Write mode; a subset of `parts`.
    pub(super) write: Parts,
    /// Of the newest grant.
    pub(super) stamp: Stamp,
}

impl Holder {
    /// What it has to give up before `op`, which needs `need` of the object, may go on. `own`: it is
    /// the requester's lease.
    pub(super) fn gives_up(&self, op: &Op, need: &Need, own: bool) -> Option<Cover> {
        if own && need.own_allowed {
            return None;
        }
        if let Kind::Parked(_) = op.kind {
            return None;
        }
        let taken = if op.is_exclusive() {
            need.cover.known_to(self.parts)
        } else {
            Cover::parts(need.cover.leased() & self.write)
        };
        (!taken.is_empty()).then_some(taken)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub(super) handle: Handle,
    /// One entry per session, in the order of the sessions. Most objects have one holder.
    pub(super) holders: SmallVec<[Holder; 1]>,
    /// How many of them hold something in Write mode.
    writers: u32,
    busy: Option<Box<Busy>>,
}

/// What only objects under contention need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Busy {
    /// Waiting and running operations, in their order.
    queue: BTreeSet<(Order, OpId)>,
    /// Those of them that others have to wait for.
    exclusive: BTreeSet<(Order, OpId)>,
    /// Those that run.
    running: BTreeSet<(Order, OpId)>,
    demand: Demand,
    recalls: BTreeSet<(Sid, RecallId)>,
}

const EACH: [Parts; 5] = [
    Parts::ATTRS,
    Parts::DATA,
    Parts::LISTING,
    Parts::NAMES,
    Parts::LOCKS,
];

/// What the operations in a queue are, counted, so that it need not be looked through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Demand {
    /// Of changes and exclusive fills: how many cover each part as a whole.
    parts: [u32; 5],
    /// How many of them cover no part as a whole.
    bare: u32,
    /// All that are not changes.
    pub(super) reads: u32,
    /// Changes that hold locks in their client's kernel.
    pub(super) writebacks: u32,
    /// Changes and exclusive fills.
    pub(super) exclusive: u32,
}

impl Demand {
    fn count(&mut self, op: &Op, cover: &Cover, up: bool) {
        let step = |count: &mut u32| match up {
            true => *count += 1,
            false => {
                assert!(
                    *count > 0,
                    "{:?} leaves a queue that does not count it",
                    op.kind
                );
                *count -= 1;
            }
        };
        if !matches!(op.kind, Kind::Change { .. } | Kind::Lock) {
            step(&mut self.reads);
        }
        if op.is_writeback() {
            step(&mut self.writebacks);
        }
        if !op.is_exclusive() {
            return;
        }
        step(&mut self.exclusive);
        let counts = EACH.into_iter().zip(&mut self.parts);
        counts
            .filter(|(part, _)| cover.parts.contains(*part))
            .for_each(|(_, count)| step(count));
        if cover.parts.is_empty() {
            step(&mut self.bare);
        }
    }

    /// Parts that some change or exclusive fill covers as a whole.
    pub(super) fn parts(&self) -> Parts {
        let some = EACH.into_iter().zip(&self.parts);
        let some = some.filter(|(_, count)| **count > 0);
        some.fold(Parts::NONE, |all, (part, _)| all | part)
    }

    /// Whether every operation of the queue meets what covers these parts, and none is a read.
    pub(super) fn is_within(&self, parts: Parts) -> bool {
        self.reads == 0 && self.bare == 0 && parts.contains(self.parts())
    }
}

impl Object {
    fn new(handle: &Handle) -> Self {
        Self {
            handle: *handle,
            holders: SmallVec::new(),
            writers: 0,
            busy: None,
        }
    }

    pub(super) fn holder(&self, session: Sid) -> Option<&Holder> {
        self.holders.get(self.place_of(session).ok()?)
    }

    fn place_of(&self, session: Sid) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&session, |h| h.session)
    }

    /// What of it others than `reader` hold in Write mode.
    pub(super) fn written_by_others(&self, reader: Option<Sid>) -> Parts {
        let writers = self.holders.iter().filter(|h| !h.write.is_empty());
        let others = writers.take(self.writers as usize);
        let others = others.filter(|h| Some(h.session) != reader);
        others.fold(Parts::NONE, |all, h| all | h.write)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = OpId> {
        let running = self.busy.iter().flat_map(|b| &b.running);
        running.map(|(_, id)| *id)
    }

    pub(super) fn demand(&self) -> Option<&Demand> {
        self.busy.as_ref().map(|b| &b.demand)
    }

    /// Waiting and running operations, in their order.
    pub(super) fn queue(&self) -> impl Iterator<Item = &(Order, OpId)> {
        self.busy.iter().flat_map(|b| &b.queue)
    }

    /// Those of them that others have to wait for.
    pub(super) fn exclusive(&self) -> impl Iterator<Item = &(Order, OpId)> {
        self.busy.iter().flat_map(|b| &b.exclusive)
    }

    pub(super) fn has_queue(&self) -> bool {
        self.busy.as_ref().is_some_and(|b| !b.queue.is_empty())
    }

    pub(super) fn is_recalled(&self, session: Sid, recall: RecallId) -> bool {
        let busy = self.busy.as_ref();
        busy.is_some_and(|b| b.recalls.contains(&(session, recall)))
    }

    pub(super) fn all_recalls(&self) -> impl Iterator<Item = &(Sid, RecallId)> {
        self.busy.iter().flat_map(|b| &b.recalls)
    }

    /// Open recalls of a session, in the order they were issued.
    pub(super) fn recalls_of(&self, session: Sid) -> impl Iterator<Item = RecallId> {
        let all = (session, RecallId(0))..=(session, RecallId(u64::MAX));
        let busy = self.busy.iter();
        busy.flat_map(move |b| b.recalls.range(all.clone()))
            .map(|(_, id)| *id)
    }

    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    objects: Slab<Object>,
    index: Index,
}

/// The index says nothing that the objects don't.
impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        self.objects == other.objects
    }
}

impl Eq for Table {}

impl Hash for Table {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.objects.hash(state);
    }
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            objects: Slab::new(),
            index: Index::default(),
        }
    }

    pub(super) fn get(&self, id: ObjId) -> Option<&Object> {
        self.objects.get(id.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjId, &Object)> {
        self.objects
            .iter()
            .map(|(key, object)| (ObjId(key), object))
    }

    pub(super) fn find(&self, handle: &Handle) -> Option<ObjId> {
        let is_it = |id| self.get(id).is_some_and(|o| o.handle == *handle);
        self.index.find(hash(handle), is_it)
    }

    pub(super) fn find_or_insert(&mut self, handle: &Handle) -> ObjId {
        let objects = &mut self.objects;
        let hash = hash(handle);
        let is_it = |id: ObjId| objects.get(id.0).is_some_and(|o| o.handle == *handle);
        if let Some(known) = self.index.find(hash, is_it) {
            return known;
        }
        let id = ObjId(objects.insert(Object::new(handle)));
        self.index.insert(hash, id);
        id
    }

    /// Adds to what a session holds; the stamp of its grant before, if it held anything.
    pub(super) fn hold(&mut self, id: ObjId, grant: Holder) -> Option<Stamp> {
        let object = self.objects.get_mut(id.0)?;
        match object.place_of(grant.session) {
            Err(place) => {
                object.writers += u32::from(!grant.write.is_empty());
                object.holders.insert(place, grant);
                None
            }
            Ok(place) => {
                let held = object.holders.get_mut(place)?;
                let new_writer = held.write.is_empty() && !grant.write.is_empty();
                object.writers += u32::from(new_writer);
                held.parts |= grant.parts;
                held.write |= grant.write;
                Some(std::mem::replace(&mut held.stamp, grant.stamp))
            }
        }
    }

    /// Takes parts from what a session holds; if nothing is left, the stamp of its last grant.
    pub(super) fn unhold(&mut self, id: ObjId, session: Sid, parts: Parts) -> Option<Stamp> {
        let object = self.objects.get_mut(id.0)?;
        let at = object.place_of(session).ok()?;
        let held = object.holders.get_mut(at)?;
        let wrote = !held.write.is_empty();
        held.parts = held.parts - parts;
        held.write = held.write - parts;
        if wrote && held.write.is_empty() {
            assert!(
                object.writers > 0,
                "{session:?} wrote, and no writer is counted"
            );
            object.writers -= 1;
        }
        if !held.parts.is_empty() {
            return None;
        }
        Some(object.holders.remove(at).stamp)
    }

    pub(super) fn enqueue(&mut self, need: &Need, id: OpId, op: &Op) {
        if let Some(object) = self.objects.get_mut(need.object.0) {
            let busy = object.busy();
            busy.queue.insert((op.order, id));
            if op.is_exclusive() {
                busy.exclusive.insert((op.order, id));
            }
            busy.demand.count(op, &need.cover, true);
        }
    }

    pub(super) fn dequeue(&mut self, need: &Need, id: OpId, op: &Op) {
        if let Some(object) = self.objects.get_mut(need.object.0) {
            let busy = object.busy();
            busy.running.remove(&(op.order, id));
            busy.exclusive.remove(&(op.order, id));
            if busy.queue.remove(&(op.order, id)) {
                busy.demand.count(op, &need.cover, false);
            }
        }
    }

    /// An operation of the queue runs from now on.
    pub(super) fn begin(&mut self, id: ObjId, order: Order, op: OpId) {
        if let Some(object) = self.objects.get_mut(id.0) {
            object.busy().running.insert((order, op));
        }
    }

    pub(super) fn open_recall(&mut self, id: ObjId, session: Sid, recall: RecallId) {
        if let Some(object) = self.objects.get_mut(id.0) {
            object.busy().recalls.insert((session, recall));
        }
    }

    /// Whether none is left.
    pub(super) fn close_recall(&mut self, id: ObjId, session: Sid, recall: RecallId) -> bool {
        let Some(object) = self.objects.get_mut(id.0) else {
            return true;
        };
        let recalls = &mut object.busy().recalls;
        recalls.remove(&(session, recall));
        recalls.is_empty()
    }

    /// Whether operations or recalls are open at the object.
    pub(super) fn is_busy(&self, id: ObjId) -> bool {
        self.get(id).is_some_and(|o| o.busy.is_some())
    }

    /// Frees what the object no longer needs, itself included.
    pub(super) fn tidy(&mut self, id: ObjId) {
        let Some(object) = self.objects.get_mut(id.0) else {
            return;
        };
        let idle = |b: &Busy| b.queue.is_empty() && b.recalls.is_empty();
        if object.busy.as_deref().is_some_and(idle) {
            object.busy = None;
        }
        if object.busy.is_none() && object.holders.is_empty() {
            self.index.remove(hash(&object.handle), id);
            self.objects.remove(id.0);
        }
    }
}

/// Needs to be the same within one life of the process only.
fn hash(handle: &Handle) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(handle.as_bytes());
    hasher.finish()
}
