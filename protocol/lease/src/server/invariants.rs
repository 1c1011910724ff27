//! What is true of the core between any two events. Tests and models check it after each step.

use super::Core;
use super::api::{OpId, ReadKind};
use super::ids::ObjId;
use super::ids::Sid;
use super::op::{Kind, Need, Op};
use super::session::Session;
use super::table::Object;
use super::timer::Timer;
use crate::time::BootTime;
use leasefs_protocol::{Handle, Parts, RecallId, Stamp};
use std::collections::BTreeSet;

type Checked = Result<(), String>;

fn require(holds: bool, claim: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(claim()) }
}

/// Whether it changes the bytes of a file and nothing else.
fn of_bytes(op: &Op) -> bool {
    let [need] = op.needs.as_slice() else {
        return false;
    };
    need.cover.parts == Parts::ATTRS | Parts::DATA && !need.is_named()
}

impl Core {
    /// Checks everything that is always true of a core whose actions have been taken in.
    ///
    /// # Errors
    /// The first claim that doesn't hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let done = self.dirty.is_empty() && self.came.is_empty() && self.untidy.is_empty();
        require(done, || "work is left undone".into())?;
        for (id, object) in self.table.iter() {
            self.check_object(id, object)
                .map_err(|e| format!("object {}: {e}", object.handle))?;
        }
        for (sid, session) in self.sessions.iter() {
            self.check_session(sid, session)
                .map_err(|e| format!("session {}: {e}", session.id))?;
        }
        self.check_counts()?;
        require(self.bounces.is_sound(), || "misjudges what bounces".into())?;
        for (id, op) in &self.ops {
            self.check_op(*id, op).map_err(|e| format!("{id:?}: {e}"))?;
        }
        self.check_timers()?;
        self.check_locks()
    }

    /// Who decides a file's locks has a lease on that, and nobody else is given any while a change of the file runs that
    /// was made under locks that are lost.
    fn check_locks(&self) -> Checked {
        let late = |file: &Handle| {
            let object = self.table.find(file);
            object.is_some_and(|object| self.has_late_change(object))
        };
        self.locks.check(late)?;
        for (handle, file) in self.locks.files() {
            let Some((session, stamp)) = file.decides else {
                continue;
            };
            let object = self.table.find(handle).and_then(|id| self.table.get(id));
            let holder = object.zip(self.sessions.alive(session));
            let holder = holder.and_then(|(object, sid)| object.holder(sid));
            require(
                holder.is_some_and(|h| h.write.contains(Parts::LOCKS)),
                || format!("{session} decides the locks of {handle} since {stamp} without a lease"),
            )?;
        }
        Ok(())
    }

    fn check_object(&self, id: ObjId, object: &Object) -> Checked {
        let used = !object.holders.is_empty() || self.table.is_busy(id);
        require(used, || "kept though nobody needs it".into())?;
        require(self.table.find(&object.handle) == Some(id), || {
            "not found under its handle".into()
        })?;
        self.check_holders(id, object)?;
        self.check_queue(id, object)?;
        for (sid, recall) in object.all_recalls() {
            let open = self.sessions.recall(*sid, *recall);
            require(open.is_some_and(|r| r.object == Some(id)), || {
                format!("recall {recall} is not one of its holder's")
            })?;
        }
        Ok(())
    }

    /// One writer or many readers of each part, each known to its session.
    fn check_holders(&self, id: ObjId, object: &Object) -> Checked {
        for holder in &object.holders {
            let session = self.sessions.get(holder.session);
            let listed = session.and_then(|s| s.leases.get(&holder.stamp));
            require(listed == Some(&id), || {
                format!("{holder:?} is not listed by its session")
            })?;
            require(session.is_some_and(Session::is_alive), || {
                format!("{holder:?} has no live session")
            })?;
            let sound = !holder.parts.is_empty() && holder.parts.contains(holder.write);
            require(sound, || format!("{holder:?} is unsound"))?;
            let others = object.holders.iter().filter(|h| *h != holder);
            for other in others {
                require(other.session != holder.session, || "a holder twice".into())?;
                require(!holder.write.intersects(other.parts), || {
                    format!("{holder:?} writes what {other:?} holds")
                })?;
            }
        }
        Ok(())
    }

    fn check_queue(&self, id: ObjId, object: &Object) -> Checked {
        require(self.ops_at(id).count() == object.queue().count(), || {
            "the queue names operations that are not there".into()
        })?;
        let exclusive = self.ops_at(id).filter(|(_, op, _)| op.is_exclusive());
        let exclusive = exclusive.map(|(id, ..)| id);
        require(exclusive.eq(object.exclusive().map(|(_, id)| *id)), || {
            "misjudges for whom others wait".into()
        })?;
        let running: Vec<_> = self
            .ops_at(id)
            .filter(|(_, op, _)| op.is_running())
            .collect();
        for (at, (first, op, need)) in running.iter().enumerate() {
            self.check_running(object, op, need)?;
            for (second, _, other) in running.iter().skip(at + 1) {
                require(need.cover.meets(&other.cover).is_empty(), || {
                    format!("{first:?} and {second:?} change the same at a time")
                })?;
            }
        }
        Ok(())
    }

    /// No change runs while a lease stands against it. (Of names, single ones are recalled
    /// and the holder keeps the rest.)
    fn check_running(&self, object: &Object, op: &Op, need: &Need) -> Checked {
        let own = self.sessions.find(op.session);
        for holder in &object.holders {
            let taken = holder.gives_up(op, need, own == Some(holder.session));
            let against = taken.map_or(Parts::NONE, |cover| cover.parts);
            require(against.is_empty(), || {
                format!("a change of {op:?} runs against {holder:?}")
            })?;
        }
        Ok(())
    }

    /// A client's sessions have its bounds together.
    fn check_counts(&self) -> Checked {
        require(self.sessions.counts_are_true(), || {
            "miscounts what clients have".into()
        })?;
        for (sid, session) in self.sessions.iter() {
            let sessions = self.sessions.of_client(session.client).count();
            let recalls = self.sessions.counts(sid).recalls;
            require(
                recalls <= self.config.max_recalls_per_client + sessions,
                || format!("{recalls} recalls of one client"),
            )?;
        }
        Ok(())
    }

    fn check_session(&self, sid: Sid, session: &Session) -> Checked {
        let holds = !session.leases.is_empty() || !session.recalls.is_empty();
        require(session.is_alive() || !holds, || "expired and holds".into())?;
        let stamps = session.leases.keys().copied();
        let recall_stamps = session.recalls.values().map(|r| r.stamp);
        let newest = stamps.chain(recall_stamps).max();
        require(newest.unwrap_or(Stamp(0)) <= session.last_stamp(), || {
            "a stamp from the future".into()
        })?;
        let in_order = session
            .recalls
            .values()
            .is_sorted_by(|a, b| a.stamp < b.stamp);
        require(in_order, || "recalls are not in stamp order".into())?;
        for (stamp, object) in &session.leases {
            let held = self.table.get(*object).and_then(|o| o.holder(sid));
            require(held.is_some_and(|h| h.stamp == *stamp), || {
                format!("lists a lease of {stamp} that it doesn't hold")
            })?;
        }
        let shedding = session.leases.range(..=session.shed_to).count();
        require(shedding == session.shedding, || {
            "miscounts what it sheds".into()
        })?;
        let overdue: BTreeSet<(BootTime, RecallId)> = session
            .recalls
            .iter()
            .map(|(id, r)| (r.overdue_at, *id))
            .collect();
        require(overdue == session.overdue, || {
            "misjudges what is overdue".into()
        })?;
        for id in session.recalls.keys() {
            self.check_recall(sid, *id)
                .map_err(|e| format!("recall {id}: {e}"))?;
        }
        Ok(())
    }

    /// What is recalled is held until the approval, and who waits is known on both sides.
    fn check_recall(&self, sid: Sid, id: RecallId) -> Checked {
        let open = self.sessions.recall(sid, id).ok_or("is not there")?;
        for op in &open.waiters {
            let waits = self
                .ops
                .get(op)
                .is_some_and(|op| op.waits.contains_key(&(sid, id)));
            require(waits, || format!("{op:?} doesn't know that it waits"))?;
        }
        let Some(object) = open.object.and_then(|o| self.table.get(o)) else {
            return require(open.object.is_none(), || "its object is gone".into());
        };
        require(object.is_recalled(sid, id), || {
            "unknown to its object".into()
        })?;
        require(!open.cover.is_empty(), || "recalls nothing".into())?;
        let held = object.holder(sid).map_or(Parts::NONE, |h| h.parts);
        require(held.contains(open.cover.leased()), || {
            format!("recalls {:?} of a holder of {held:?}", open.cover)
        })
    }

    /// Whoever waits has a cause, the cause has an end, and none waits in a circle.
    fn check_op(&self, id: OpId, op: &Op) -> Checked {
        for need in &op.needs {
            let mut queue = self
                .table
                .get(need.object)
                .into_iter()
                .flat_map(|o| o.queue());
            require(queue.any(|at| *at == (op.order, id)), || {
                "missing in a queue".into()
            })?;
            let mut running = self
                .table
                .get(need.object)
                .into_iter()
                .flat_map(|o| o.running());
            require(running.any(|r| r == id) == op.is_running(), || {
                "its object doesn't know whether it runs".into()
            })?;
        }
        for (sid, recall) in op.waits.keys() {
            let open = self.sessions.recall(*sid, *recall);
            require(open.is_some_and(|r| r.waiters.contains(&id)), || {
                format!("waits for recall {recall}, which doesn't know it")
            })?;
            let ends = self.sessions.get(*sid).and_then(|s| s.expires);
            require(ends.is_some(), || format!("recall {recall} has no end"))?;
        }
        if op.is_running() {
            return require(op.waits.is_empty(), || "runs though it has to wait".into());
        }
        self.check_cause(op)?;
        self.check_own_approval(op)
    }

    fn check_cause(&self, op: &Op) -> Checked {
        let mut blockers = op.needs.iter().flat_map(|need| self.blockers(op, need));
        let hidden = |need: &Need| {
            let sid = self.sessions.find(op.session);
            !self.hidden_parts(sid, need.object, &need.cover).is_empty()
        };
        // What hides it has been asked to go, or is of the earlier life.
        let hidden = op.needs.iter().any(hidden) && (!op.waits.is_empty() || self.grace.is_some());
        let caused = if op.is_exclusive() {
            let shut = self.shutdown && op.is_for_later();
            let late = self.is_held_by_late(op);
            let stopped = self.is_stopped_by_grace(op) || shut || late;
            !op.waits.is_empty() || stopped || blockers.next().is_some()
        } else if let Kind::Parked(_) = op.kind {
            self.must_park(op.session, op.needs.iter().map(|need| need.object))
        } else if op.kind == Kind::Read(ReadKind::FillPages) {
            self.shutdown || blockers.next().is_some() || hidden
        } else {
            hidden
        };
        require(caused, || "waits for nothing".into())?;
        // Among operations the waits-for relation follows one total order.
        for id in op.needs.iter().flat_map(|need| self.blockers(op, need)) {
            let earlier = |o: &Op| o.is_running() || o.order < op.order;
            require(self.ops.get(&id).is_some_and(earlier), || {
                format!("waits for the later {id:?}")
            })?;
        }
        Ok(())
    }

    /// No request that holds locks in its client's kernel waits for an approval of that client
    /// for the same object.
    fn check_own_approval(&self, op: &Op) -> Checked {
        let Some(own) = self.sessions.find(op.session) else {
            return Ok(());
        };
        if op.is_fill() {
            let owes = |need: &Need| self.owes(own, need.object, Parts::DATA);
            return require(!op.needs.iter().all(owes), || {
                "fills pages and waits for its own session".into()
            });
        }
        if !op.is_writeback() {
            return Ok(());
        }
        for need in &op.needs {
            for id in self.blockers(op, need) {
                let blocker = self.ops.get(&id);
                // Of others than files' bytes nobody writes back.
                let judged = blocker.filter(|b| !b.is_writeback() || (of_bytes(b) && of_bytes(op)));
                let waits = judged.is_some_and(|b| self.waits_for(b, own, need.object));
                require(!waits, || {
                    format!("writes back behind {id:?}, which waits for its own session")
                })?;
            }
        }
        Ok(())
    }

    fn check_timers(&self) -> Checked {
        let mut fills = BTreeSet::new();
        let mut others = BTreeSet::new();
        let mut grants = BTreeSet::new();
        for (at, timer) in &self.timers {
            match timer {
                Timer::Fill(op) => fills.insert((*at, *op)),
                Timer::Locks => grants.insert(*at),
                Timer::Grace | Timer::Session(_) | Timer::Conduct(_) => {
                    others.insert((*at, *timer))
                }
            };
        }
        require(grants.is_empty() != self.locks.has_put_off(), || {
            format!("locks are granted at {grants:?}")
        })?;
        let live = self.sessions.iter();
        let ends = live.filter_map(|(sid, s)| Some((s.expires?, Timer::Session(sid))));
        let grace = self.grace.iter().map(|g| (g.ends, Timer::Grace));
        let conduct = self.conduct_timers();
        let expected: BTreeSet<_> = ends.chain(grace).chain(conduct).collect();
        require(others == expected, || {
            format!("timers are {others:?}, not {expected:?}")
        })?;
        for (at, id) in fills {
            let waits = self.ops.get(&id).is_some_and(|op| op.patient_until == at);
            require(waits, || format!("a timer for {id:?}, which is gone"))?;
        }
        Ok(())
    }
}
