//! Where the core measures what bounces, and who doesn't get an exclusive lease for it.

use super::Core;
use super::api::OpId;
use super::ids::{ObjId, Sid};
use super::op::{Need, Op};
use super::table::Object;
use crate::time::BootTime;
use leasefs_protocol::{Handle, Parts, SessionId};

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
        if !self.bounces.has_zeros() {
            return;
        }
        for need in needs {
            if let Some(object) = self.table.get(need.object) {
                let parts = need.cover.parts;
                self.bounces.note_read(&object.handle, reader, parts);
            }
        }
        // A name, and what it denotes.
        let dir = needs.iter().find(|need| need.is_named());
        let found = needs.iter().find(|need| !need.is_named());
        if let (Some(dir), Some(found)) = (dir, found)
            && let Some(dir) = self.table.get(dir.object)
            && let Some(found) = self.table.get(found.object)
        {
            self.bounces.note_found(&dir.handle, reader, &found.handle);
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
        let Some(found) = self.table.get(object) else {
            return false;
        };
        let holds = found.holder(sid);
        // What it holds exclusively already it keeps until somebody asks for it.
        if holds.is_some_and(|h| h.write.contains(parts)) {
            return false;
        }
        let handle = found.handle;
        match self.made_in(sid, op, object) {
            Some((dir, is_watched)) => {
                if is_watched {
                    self.bounces.is_watched(now, dir);
                }
                self.bounces.denies_new(now, &dir, op.session, handle)
            }
            None => self.bounces.denies(now, &handle, op.session, parts),
        }
    }

    /// The directory in which a change has made an object, and whether another session has names of it cached.
    fn made_in(&self, sid: Sid, op: &Op, object: ObjId) -> Option<(Handle, bool)> {
        if op.need(object).is_some() {
            return None;
        }
        let named = op.needs.iter().find(|need| need.is_named())?;
        let dir = self.table.get(named.object)?;
        let mut others = dir.holders.iter().filter(|h| h.session != sid);
        Some((dir.handle, others.any(|h| h.parts.contains(Parts::NAMES))))
    }
}
