//! What must be true of locks, of all mounts together.

use super::{Plan, World};
use crate::sim::judge::Holder;
use crate::sim::model::Nanos;
use leasefs_lease::server::LockStatus;
use leasefs_protocol::SessionId;

impl Plan {
    /// Whether processes lock files: in every fourth seed.
    pub fn has_locks(&self) -> bool {
        self.locks && self.seed % 4 == 3
    }
}

impl World {
    /// Who has just been told that he has a lock has it, and nobody else one that stands against it.
    pub(super) fn check_locks(&mut self) {
        for granted in std::mem::take(&mut self.cx.judge.locks.fresh) {
            for client in &self.clients {
                let Some(held) = client.held_locks(self.cx.now) else {
                    continue;
                };
                let session = client.session();
                let own = session == granted.holder.session;
                let judge = &mut self.cx.judge;
                judge.check_apart(&granted, (session, own), &held);
                if own {
                    judge.check_held(&granted, &held);
                }
            }
        }
        for loss in std::mem::take(&mut self.cx.judge.locks.losses) {
            let mut clients = self.clients.iter();
            let client = clients.find(|client| client.session() == loss.session);
            let held = client.and_then(|client| client.held_locks(self.cx.now));
            self.cx.judge.check_loss(loss, held.as_deref());
        }
    }

    /// Where everything is closed nobody holds or awaits a lock.
    pub(super) fn check_no_locks_are_left(&mut self) {
        if !self.plan.has_locks() {
            return;
        }
        let alive = self.clients.iter().filter(|c| c.alive);
        let here = alive.filter_map(|client| {
            let held = client.held_locks(self.cx.now).unwrap_or_default();
            let awaited = client.awaited_locks();
            let left = !held.is_empty() || awaited > 0;
            left.then(|| {
                format!(
                    "client {} has {held:?}, awaits {awaited}",
                    client.make.index
                )
            })
        });
        let here: Vec<String> = here.collect();
        let there: Vec<LockStatus> = self.server.locks();
        // What is there of a file that a session decides is what it was when it got that right.
        let told = |lock: &&LockStatus| !lock.decided_there;
        let there: Vec<&LockStatus> = there.iter().filter(told).collect();
        if !here.is_empty() || (self.server.up && !there.is_empty()) {
            self.cx.judge.accuse(None, || {
                format!("locks are left in the end: {here:?}, at the server {there:?}")
            });
        }
    }

    /// Since when who is at something since then waits for nobody who is well: who waits for a lock does so as long as
    /// another holds it.
    pub(super) fn in_vain(&self, since: Nanos, lock: Option<Holder>) -> Option<Nanos> {
        let Some(wants) = lock else {
            return Some(since);
        };
        let locks = &self.cx.judge.locks;
        let lives = |session: SessionId| {
            let mut clients = self.clients.iter();
            clients.any(|c| c.session() == session && c.is_well(self.cx.now))
        };
        let held = locks.is_held(&wants, lives);
        (!held).then(|| since.max(locks.stirred(wants.object)))
    }
}
