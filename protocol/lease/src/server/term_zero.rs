//! Where the core measures what bounces, and who doesn't get an exclusive lease for it.

use super::Core;
use super::api::OpId;
use super::ids::{ObjId, Sid};
use super::op::Need;
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
        if !self.bounces.has_zeros() {
            return;
        }
        for need in needs {
            if let Some(object) = self.table.get(need.object) {
                let parts = need.cover.parts;
                self.bounces.note_read(&object.handle, reader, parts);
            }
        }
    }

    /// Whether the session, which nothing else keeps from having these parts exclusively, doesn't get them so because the
    /// object bounces. What it holds exclusively already it keeps until somebody asks for it.
    pub(super) fn is_denied_exclusive(
        &mut self,
        now: BootTime,
        sid: Sid,
        object: ObjId,
        parts: Parts,
    ) -> bool {
        let (Some(session), Some(object)) = (self.sessions.get(sid), self.table.get(object)) else {
            return false;
        };
        let holds = object.holder(sid);
        let holds = holds.is_some_and(|h| h.write.contains(parts));
        !holds && self.bounces.denies(now, &object.handle, session.id, parts)
    }
}
