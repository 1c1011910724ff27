//! What there is of one object, for people. Nothing is asked of anybody, and nothing changes.

use super::Cache;
use super::state::State;
use crate::inode::Dentry;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Handle, Parts, Scope};
use std::time::Duration;

/// What there is of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldHere {
    /// What leases cover.
    pub parts: Parts,
    /// What of that is held in Write mode.
    pub write: Parts,
    /// What is left of them; zero if they have ended.
    pub remaining: Duration,
    /// A recall of it is not approved yet.
    pub recalled: bool,
    /// Bytes here as the server has them.
    pub clean: usize,
    /// Bytes here that the server doesn't have.
    pub dirty: usize,
    /// The kernel may have pages of it.
    pub pages: bool,
}

impl Cache {
    /// What there is of an object.
    pub fn held_here(&self, object: &Handle) -> HeldHere {
        self.state().held_here(self.cx.boot(), object)
    }

    /// What the names of a path denote, as far as that is cached.
    pub fn cached_path(&self, root: Handle, path: &[Box<[u8]>]) -> Option<Handle> {
        let mut state = self.state();
        let now = self.cx.boot();
        let State {
            session, inodes, ..
        } = &mut *state;
        let live = session.witness(now)?;
        let names = &mut path.iter();
        names.try_fold(root, |dir, name| match inodes.name(&live, &dir, name) {
            Some(Dentry::Object(object)) => Some(object),
            Some(Dentry::Absent) | None => None,
        })
    }
}

impl State {
    fn held_here(&self, now: BootTime, object: &Handle) -> HeldHere {
        let inodes = &self.inodes;
        let recalled = |scope: &Scope| match scope {
            Scope::Everything => true,
            Scope::Object { object: of, .. } => of == object,
        };
        let mut recalls = self.leases.open_recalls();
        HeldHere {
            parts: self.leases.held(object),
            write: self.leases.held_exclusively(object),
            remaining: self.session.remaining(now),
            recalled: recalls.any(|recall| recalled(&recall.scope)),
            clean: inodes.clean(object).map_or(0, |bytes| bytes.bytes()),
            dirty: inodes.dirty(object).map_or(0, |dirty| dirty.buffer.bytes()),
            pages: inodes.may_hold_pages(object),
        }
    }
}
