//! Where the core measures what bounces, and who doesn't get an exclusive lease for it.

use super::Core;
use super::api::OpId;
use super::ids::{ObjId, Sid};
use super::op::{Need, Op};
use super::table::Object;
use crate::time::BootTime;
use leasefs_protocol::{Parts, SessionId};

impl Core {
    /// A read that has to wait, if it waits for what others hold exclusively.
    pub(super) fn note_wait(&mut self, now: BootTime, id: OpId) {
        let Some(op) = self.ops.get(&id).filter(|op| !op.is_exclusive()) else {
            return;
        };
        let own = self.sessions.find(op.session);
        for need in &op.needs {
            let object = self.table.get(need.object);
            // Those that wait for one recall together are one.
            let waits = |o: &&Object| {
                let asked = o.all_recalls().next().is_some();
                !asked && o.written_by_others(own).intersects(need.cover.leased())
            };
            if let Some(object) = object.filter(waits) {
                self.bounces.has_to_wait(now, object.handle);
            }
        }
    }

    /// A read that waits for nobody may be one that would have had to.
    pub(super) fn note_read(&mut self, reader: SessionId, needs: &[Need]) {
        if !self.bounces.may_have_zeros() {
            return;
        }
        for need in needs {
            if let Some(object) = self.table.get(need.object) {
                // A name by which something was found shows what may be new there.
                let parts = match need.cover.names.is_empty() {
                    true => need.cover.parts,
                    false if needs.len() > 1 => Parts::NAMES,
                    false => Parts::NONE,
                };
                self.bounces.note_read(&object.handle, reader, parts);
            }
        }
    }

    /// A change waits for others' caches: of names of a directory, if it makes or removes something there.
    pub(super) fn note_watchers(&mut self, now: BootTime, id: OpId) {
        let Some(op) = self.ops.get(&id).filter(|op| op.is_exclusive()) else {
            return;
        };
        let own = self.sessions.find(op.session);
        let named = op.needs.iter().filter(|need| !need.cover.names.is_empty());
        for need in named {
            let object = self.table.get(need.object);
            let is_watched = |o: &&Object| {
                let mut others = o.holders.iter().filter(|h| Some(h.session) != own);
                others.any(|h| h.parts.contains(Parts::NAMES))
            };
            if let Some(object) = object.filter(is_watched) {
                self.bounces.is_watched(now, object.handle);
            }
        }
    }

    /// Whether the session, which nothing else keeps from having these parts exclusively, doesn't get them so because the
    /// object bounces, or others look where the change has made it.
    pub(super) fn is_at_term_zero(
        &mut self,
        now: BootTime,
        sid: Sid,
        op: &Op,
        (object, parts): (ObjId, Parts),
    ) -> bool {
        let (Some(session), Some(found)) = (self.sessions.get(sid), self.table.get(object)) else {
            return false;
        };
        let holds = found.holder(sid);
        // What it holds exclusively already it keeps until somebody asks for it.
        if holds.is_some_and(|h| h.write.contains(parts)) {
            return false;
        }
        let is_new = op.need(object).is_none();
        let mut named = op.needs.iter().filter(|need| !need.cover.names.is_empty());
        let dir = named.next().filter(|_| is_new);
        let dir = dir.and_then(|need| self.table.get(need.object));
        let object = found.handle;
        match dir.map(|dir| dir.handle) {
            Some(dir) => self.bounces.denies_new(now, &dir, session.id, object),
            None => self.bounces.denies(now, &object, session.id, parts),
        }
    }
}
