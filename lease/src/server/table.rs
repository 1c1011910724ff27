//! The table of objects: who holds what of each, which operations wait or run there, which
//! recalls are open. An object that nobody holds and nobody works on takes no memory.

use super::api::OpId;
use super::op::Order;
use super::session::Sid;
use super::slab::Slab;
use leasefs_protocol::{Handle, Parts, RecallId, Stamp};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// An object of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjId(u32);

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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub(super) handle: Handle,
    /// One entry per session.
    pub(super) holders: Vec<Holder>,
    busy: Option<Box<Busy>>,
}

/// What only objects under contention need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Busy {
    /// Waiting and running operations, in their order.
    queue: Vec<(Order, OpId)>,
    recalls: Vec<(Sid, RecallId)>,
}

impl Object {
    pub(super) fn holder(&self, session: Sid) -> Option<&Holder> {
        self.holders.iter().find(|h| h.session == session)
    }

    pub(super) fn queue(&self) -> &[(Order, OpId)] {
        self.busy.as_ref().map_or(&[], |b| b.queue.as_slice())
    }

    /// Open recalls, in the order they were issued.
    pub(super) fn recalls(&self) -> &[(Sid, RecallId)] {
        self.busy.as_ref().map_or(&[], |b| b.recalls.as_slice())
    }

    pub(super) fn recalls_of(&self, session: Sid) -> impl Iterator<Item = RecallId> {
        let of_session = move |(holder, id): &(Sid, RecallId)| (*holder == session).then_some(*id);
        self.recalls().iter().filter_map(of_session)
    }

    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Table {
    objects: Slab<Object>,
    /// Hash of the handle: a handle is stored once, in its object.
    index: BTreeSet<(u64, ObjId)>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            objects: Slab::new(),
            index: BTreeSet::new(),
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
        let hash = hash(handle);
        let same_hash = self.index.range((hash, ObjId(0))..=(hash, ObjId(u32::MAX)));
        let is_it = |id: &ObjId| self.get(*id).is_some_and(|o| o.handle == *handle);
        same_hash.map(|(_, id)| *id).find(is_it)
    }

    pub(super) fn find_or_insert(&mut self, handle: &Handle) -> ObjId {
        if let Some(id) = self.find(handle) {
            return id;
        }
        let object = Object {
            handle: *handle,
            holders: Vec::new(),
            busy: None,
        };
        let id = ObjId(self.objects.insert(object));
        self.index.insert((hash(handle), id));
        id
    }

    /// Adds to what a session holds; the stamp of its grant before, if it held anything.
    pub(super) fn hold(&mut self, id: ObjId, grant: Holder) -> Option<Stamp> {
        let object = self.objects.get_mut(id.0)?;
        let Some(held) = object
            .holders
            .iter_mut()
            .find(|h| h.session == grant.session)
        else {
            object.holders.reserve_exact(1);
            object.holders.push(grant);
            return None;
        };
        held.parts |= grant.parts;
        held.write |= grant.write;
        Some(std::mem::replace(&mut held.stamp, grant.stamp))
    }

    /// Takes parts from what a session holds; if nothing is left, the stamp of its last grant.
    pub(super) fn unhold(&mut self, id: ObjId, session: Sid, parts: Parts) -> Option<Stamp> {
        let object = self.objects.get_mut(id.0)?;
        let at = object.holders.iter().position(|h| h.session == session)?;
        let held = object.holders.get_mut(at)?;
        held.parts = held.parts - parts;
        held.write = held.write - parts;
        if !held.parts.is_empty() {
            return None;
        }
        Some(object.holders.swap_remove(at).stamp)
    }

    pub(super) fn enqueue(&mut self, id: ObjId, order: Order, op: OpId) {
        if let Some(object) = self.objects.get_mut(id.0) {
            let queue = &mut object.busy().queue;
            let at = queue.partition_point(|(other, _)| *other < order);
            queue.insert(at, (order, op));
        }
    }

    pub(super) fn dequeue(&mut self, id: ObjId, op: OpId) {
        if let Some(object) = self.objects.get_mut(id.0) {
            object.busy().queue.retain(|(_, other)| *other != op);
        }
    }

    pub(super) fn open_recall(&mut self, id: ObjId, session: Sid, recall: RecallId) {
        if let Some(object) = self.objects.get_mut(id.0) {
            object.busy().recalls.push((session, recall));
        }
    }

    pub(super) fn close_recall(&mut self, id: ObjId, session: Sid, recall: RecallId) {
        if let Some(object) = self.objects.get_mut(id.0) {
            object.busy().recalls.retain(|r| *r != (session, recall));
        }
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
            self.index.remove(&(hash(&object.handle), id));
            self.objects.remove(id.0);
        }
    }
}

/// Needs to be the same within one life of the process only.
fn hash(handle: &Handle) -> u64 {
    let mut hasher = DefaultHasher::new();
    handle.hash(&mut hasher);
    hasher.finish()
}
