//! Leases: granted, given back, asked back when there are too many.

use super::Core;
use super::api::OpId;
use super::cover::Cover;
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Cause, Need, Op, exclusive};
use super::recall::Waiter;
use super::table::Holder;
use crate::planted::{self, Bug};
use crate::time::BootTime;
use leasefs_protocol::{Grant, Handle, Mode, Parts, SessionId, Stamp};

impl Core {
    /// What of `cover` may be granted for reading while others work on the object: nothing that
    /// a waiting or running change covers, nor what is hidden. Nothing to who is denied leases.
    pub(super) fn grantable(&self, sid: Sid, object: ObjId, cover: &Cover) -> Parts {
        let hidden = self.hidden_parts(Some(sid), object, cover);
        // The approval of everything takes whatever is granted before it.
        let gives_up = self.owes_everything(sid) || self.is_denied(sid);
        if self.shutdown || gives_up || self.is_full(sid, object) {
            return Parts::NONE;
        }
        let yielding = self.yielding(sid, object);
        cover.leased() - hidden - self.contested(object, cover) - yielding
    }

    /// Parts the session holds exclusively and is asked to give up. A grant would keep them from
    /// its approval, and hidden from those who wait for it.
    fn yielding(&self, sid: Sid, object: ObjId) -> Parts {
        let holder = self.table.get(object).and_then(|o| o.holder(sid));
        holder.map_or(Parts::NONE, |h| h.write & self.owed(sid, object))
    }

    /// Parts that a waiting or running change (or exclusive fill) covers.
    fn contested(&self, object: ObjId, cover: &Cover) -> Parts {
        let demand = self.table.get(object).and_then(|o| o.demand());
        let Some(demand) = demand.filter(|_| !planted::is(Bug::GrantContested)) else {
            return Parts::NONE;
        };
        // Names apart, what they cover is counted.
        if !cover.leased().contains(Parts::NAMES) {
            return demand.parts() & cover.parts;
        }
        let changes = self.exclusive_at(object);
        changes.fold(Parts::NONE, |all, (_, _, need)| {
            all | need.cover.meets(cover)
        })
    }

    /// A client that doesn't give back what it is asked for gets no lease on further objects. Nor, if
    /// much is asked of it, any: what isn't granted isn't recalled.
    pub(super) fn is_full(&self, sid: Sid, object: ObjId) -> bool {
        let max = self.config.max_leases_per_client;
        let counts = self.sessions.counts(sid);
        let holds = self.table.get(object).and_then(|o| o.holder(sid));
        let full = holds.is_none() && counts.leases > max + max / 8;
        full || counts.recalls >= self.config.max_recalls_per_client
    }

    /// Registers a lease. `cover` is what the session may now have cached anew.
    pub(super) fn grant(
        &mut self,
        now: BootTime,
        sid: Sid,
        object: ObjId,
        cover: &Cover,
        parts: Parts,
        mode: Mode,
    ) -> Option<Grant> {
        let handle = self.table.get(object)?.handle;
        self.spoil_recalls(sid, object, &cover.known_to(parts), parts);
        let session = self.sessions.get_mut(sid)?;
        let stamp = session.next_stamp();
        session.dates.note(stamp, now);
        let holder = Holder {
            session: sid,
            parts,
            write: exclusive(parts, mode),
            stamp,
        };
        let before = self.table.hold(object, holder);
        self.sessions.list(sid, stamp, object, before);
        Some(Grant {
            object: handle,
            parts,
            mode,
            stamp,
        })
    }

    /// The approval of a recall doesn't take what is granted after the recall was sent.
    fn spoil_recalls(&mut self, sid: Sid, object: ObjId, granted: &Cover, parts: Parts) {
        let (Some(object), Some(session)) = (self.table.get(object), self.sessions.get_mut(sid))
        else {
            return;
        };
        for id in object
            .recalls_of(sid)
            .filter(|_| !planted::is(Bug::SpoilNothing))
        {
            if let Some(open) = session.recalls.get_mut(&id) {
                open.fresh.subtract(granted);
                // One name granted again means that not all names are free to go.
                open.fresh.parts = open.fresh.parts - parts;
            }
        }
    }

    /// Recalls a fresh grant for every waiting operation that it stands in the way of.
    pub(super) fn recall_for_waiting(
        &mut self,
        now: BootTime,
        sid: Sid,
        object: ObjId,
        grant: Grant,
        cause: Cause,
    ) {
        let holder = Holder {
            session: sid,
            parts: grant.parts,
            write: exclusive(grant.parts, grant.mode),
            stamp: grant.stamp,
        };
        let holder_id = self.sessions.get(sid).map(|s| s.id);
        let meets = |(id, op, need): (OpId, &Op, &Need)| {
            let own = Some(op.session) == holder_id;
            let taken = holder.gives_up(op, need, own)?;
            (!op.is_running()).then_some((id, taken))
        };
        // Reads don't stand in each other's way.
        let in_the_way: Vec<_> = match grant.mode {
            Mode::Read => self.exclusive_at(object).filter_map(meets).collect(),
            Mode::Write => self.ops_at(object).filter_map(meets).collect(),
        };
        for (op, taken) in in_the_way {
            self.recall(now, sid, object, taken, Some(Waiter { op, cause }));
            self.let_writebacks_pass(op);
        }
    }

    /// Asks back leases of the client while it has too many: of the session that has most, those that
    /// were granted longest ago. What would be too much to ask for at once is asked for later.
    pub(super) fn shed(&mut self, now: BootTime, sid: Sid) {
        while self.has_to_shed(sid)
            && let Some((sid, object)) = self.next_to_shed(sid)
        {
            let holder = self.table.get(object).and_then(|o| o.holder(sid));
            if let Some(held) = holder.map(|holder| holder.parts) {
                self.recall(now, sid, object, Cover::parts(held), None);
            }
        }
    }

    fn has_to_shed(&self, sid: Sid) -> bool {
        self.sessions.counts(sid).kept() > self.config.max_leases_per_client
            && self.can_be_asked_besides(sid)
    }

    /// Whether the client owes so little that it can be asked for what nobody waits for.
    fn can_be_asked_besides(&self, sid: Sid) -> bool {
        self.sessions.counts(sid).recalls < self.config.max_recalls_per_client.div_ceil(2)
    }

    fn next_to_shed(&mut self, sid: Sid) -> Option<(Sid, ObjId)> {
        let client = self.sessions.get(sid)?.client;
        let kept = |sid: &Sid| {
            let session = self.sessions.get(*sid);
            session.map(|s| s.counts().kept())
        };
        let most = self.sessions.of_client(client).max_by_key(kept)?;
        Some((most, self.sessions.shed_one(most)?))
    }

    pub(super) fn take_back(
        &mut self,
        now: BootTime,
        id: SessionId,
        handle: &Handle,
        parts: Parts,
    ) {
        let (Some(sid), Some(object)) = (self.sessions.find(id), self.table.find(handle)) else {
            return;
        };
        let holder = self.table.get(object).and_then(|o| o.holder(sid));
        let held = holder.map_or(Parts::NONE, |holder| holder.parts & parts);
        if !held.is_empty() {
            self.recall(now, sid, object, Cover::parts(held), None);
        }
    }

    /// Nothing else would ever end these leases but that there are too many.
    pub(super) fn recall_gone(&mut self, now: BootTime, handle: &Handle) {
        let Some(object) = self.table.find(handle) else {
            return;
        };
        let holders = self.table.get(object).map_or(&[][..], |o| &o.holders);
        let held: Vec<(Sid, Parts)> = holders.iter().map(|h| (h.session, h.parts)).collect();
        for (sid, parts) in held {
            if self.can_be_asked_besides(sid) {
                self.recall(now, sid, object, Cover::parts(parts), None);
            }
        }
    }

    pub(super) fn release(&mut self, id: SessionId, handle: &Handle, parts: Parts, seen: Stamp) {
        let (Some(sid), Some(object)) = (self.sessions.find(id), self.table.find(handle)) else {
            return;
        };
        let holder = self.table.get(object).and_then(|o| o.holder(sid));
        if holder.is_some_and(|h| h.stamp <= seen || planted::is(Bug::ReleaseStale)) {
            let free = parts - self.owed(sid, object);
            self.unhold(sid, object, free);
        }
    }

    /// Parts for which the session owes an approval: it holds them until then.
    pub(super) fn owed(&self, sid: Sid, object: ObjId) -> Parts {
        if self.owes_everything(sid) {
            return Parts::ALL;
        }
        let session = self.sessions.get(sid);
        let open = self
            .table
            .get(object)
            .into_iter()
            .flat_map(|o| o.recalls_of(sid));
        let covers = open.filter_map(|id| session?.recalls.get(&id));
        covers.fold(Parts::NONE, |owed, r| owed | r.cover.leased())
    }

    pub(super) fn unhold(&mut self, sid: Sid, object: ObjId, parts: Parts) {
        let shows = |o: &super::table::Object| {
            let held = o.holder(sid);
            o.holders.len() == 1 || held.is_some_and(|h| h.write.intersects(parts))
        };
        // Somebody may see more now, or nothing is left to be kept.
        if self.table.get(object).is_some_and(shows) {
            self.dirty.insert(object);
        }
        self.stops_deciding(sid, object, parts);
        let gone = self.table.unhold(object, sid, parts);
        if let Some(stamp) = gone {
            self.sessions.unlist(sid, stamp);
        }
    }
}
