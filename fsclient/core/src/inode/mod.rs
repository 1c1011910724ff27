//! What is known of one object, in one record: what is cached of it under leases, the gate of its pages,
//! its bytes, be they clean, dirty, sent or unstable, and the kernel's references to it.
//!
//! [`Inodes`] holds all of them. What crosses inodes stands there beside the map: drops of pages, the
//! eviction's ring, budgets.

mod access;
mod cached;
mod caching;
mod changing;
mod clean;
mod committing;
mod dirty;
mod dropping;
mod drops;
mod epochs;
mod eviction;
mod gate;
mod habit;
mod in_use;
mod kernel;
mod looks;
mod newest;
mod places;
mod sets;
mod shared_opens;
mod standing;
mod table;
mod unstable;
mod untaken;
mod writer;

pub(crate) use access::Access;
pub(crate) use cached::{Dentry, Dropped, DurableAlong, ToldName};
pub(crate) use changing::Changing;
pub(crate) use clean::Fetch;
pub(crate) use dirty::{Dirty, MAX_END, Tell};
pub(crate) use dropping::Kept;
pub(crate) use drops::{Approvable, Arrived, Outcome, PagesOf, Then};
pub(crate) use kernel::Heard;
pub(crate) use newest::Brought;
pub(crate) use standing::Place;
pub(crate) use table::Inodes;
pub(crate) use unstable::{
    Committed, Covered, Durably, HostLife, LossesTold, Noted, Undone, Wrote,
};
pub(crate) use untaken::{Owed, Shows};
pub(crate) use writer::{Hearers, Writer, Written};

use cached::Cached;
use clean::Clean;
use gate::Gate;
use in_use::InUse;
use kernel::KernelRefs;
use leasefs_protocol::Attr;
use shared_opens::SharedOpens;
use std::sync::Arc;
use std::time::Duration;
use unstable::Unstable;

/// How long the kernel takes at most to take up an answer, as it is assumed of all answers with a timeout: that is
/// shortened by as much.
pub(crate) const ARRIVES_WITHIN: Duration = Duration::from_secs(1);

/// What is known of one object. It is there as long as it isn't idle.
#[derive(Debug, Default)]
pub(crate) struct Inode {
    /// What is cached of it, its bytes apart, and what of that the kernel may know.
    cached: Option<Box<Cached>>,
    /// What the kernel knows it by, if it does.
    kernel: Option<Box<KernelRefs>>,
    /// Its bytes, and who is at work on them: of few.
    content: Option<Box<Content>>,
}

/// An object's bytes, and who is at work on them. It is there as long as it isn't idle.
#[derive(Debug, Default)]
struct Content {
    /// The gate of its pages in the kernel, if anything must be known of them.
    gate: Option<Box<Gate>>,
    /// Bytes as the server has them.
    clean: Option<Box<Clean>>,
    /// Bytes that the server may not have.
    dirty: Option<Box<Dirty>>,
    /// Changes that the server's disk may not have.
    unstable: Option<Box<Unstable>>,
    /// Its opens here.
    in_use: Option<Box<InUse>>,
    /// Own changes under way.
    changing: Changing,
}

/// What inodes take up together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    /// Memory of what is cached, clean bytes apart.
    cached: usize,
    /// Shared opens.
    opens: usize,
    /// Memory of clean bytes.
    clean: usize,
    /// Dirty bytes.
    dirty: usize,
    /// Memory of them.
    dirty_memory: usize,
    /// Memory of unstable bytes that are kept.
    kept: usize,
    /// Those that their writer's open is kept of.
    kept_open: usize,
    /// Those that have unstable changes.
    unstable: usize,
    /// Those of which nobody asks for a commit.
    uncommitted: usize,
    /// Those that hold pages without a lease.
    unclean: usize,
    /// Those whose pages a pass is under way to drop, or asked for.
    passing: usize,
}

impl Inode {
    /// Whether nothing of it is left: then it goes.
    fn is_idle(&self) -> bool {
        self.cached.is_none() && self.kernel.is_none() && self.content.is_none()
    }

    /// These attributes, which stand once if they are those that are cached, or that the kernel was told.
    fn shared_attr(&self, attr: &Attr) -> Arc<Attr> {
        let cached = self.cached.as_ref().and_then(|cached| cached.attr.as_ref());
        let told = self.kernel.as_ref().and_then(|refs| refs.told.as_ref());
        let mut known = [cached, told].into_iter().flatten();
        let known = known.find(|known| ***known == *attr);
        known.map_or_else(|| Arc::new(*attr), Arc::clone)
    }

    fn weight(&self) -> Weight {
        let cached = self.cached.as_deref();
        let content = self.content.as_deref();
        let gate = content.and_then(|content| content.gate.as_deref());
        let unstable = content.and_then(|content| content.unstable.as_deref());
        let clean = content.and_then(|content| content.clean.as_deref());
        let dirty = content.and_then(|content| content.dirty.as_deref());
        Weight {
            cached: cached.map_or(0, Cached::bytes),
            opens: cached.and_then(Cached::opens).map_or(0, SharedOpens::len),
            clean: clean.map_or(0, Clean::memory),
            dirty: dirty.map_or(0, Dirty::bytes),
            dirty_memory: dirty.map_or(0, Dirty::memory),
            kept: unstable.map_or(0, Unstable::memory),
            kept_open: usize::from(unstable.is_some_and(Unstable::keeps_open)),
            unstable: usize::from(unstable.is_some()),
            uncommitted: usize::from(unstable.is_some_and(Unstable::waits_alone)),
            unclean: usize::from(gate.is_some_and(Gate::is_unclean)),
            passing: usize::from(gate.is_some_and(|gate| gate.passing)),
        }
    }
}

impl Content {
    fn is_idle(&self) -> bool {
        self.gate.is_none()
            && self.clean.is_none()
            && self.dirty.is_none()
            && self.unstable.is_none()
            && self.in_use.is_none()
            && self.changing.is_idle()
    }
}

impl Weight {
    /// Changes one of the inodes.
    fn counted<R>(&mut self, inode: &mut Inode, change: impl FnOnce(&mut Inode) -> R) -> R {
        let before = inode.weight();
        let result = change(inode);
        self.shift(before, inode.weight());
        result
    }

    fn shift(&mut self, before: Self, after: Self) {
        let shift = |all: &mut usize, before: usize, after: usize| {
            assert!(*all >= before, "an inode weighs more than all together");
            *all = *all - before + after;
        };
        shift(&mut self.cached, before.cached, after.cached);
        shift(&mut self.opens, before.opens, after.opens);
        shift(&mut self.clean, before.clean, after.clean);
        shift(&mut self.dirty, before.dirty, after.dirty);
        shift(
            &mut self.dirty_memory,
            before.dirty_memory,
            after.dirty_memory,
        );
        shift(&mut self.kept, before.kept, after.kept);
        shift(&mut self.kept_open, before.kept_open, after.kept_open);
        shift(&mut self.unstable, before.unstable, after.unstable);
        shift(&mut self.uncommitted, before.uncommitted, after.uncommitted);
        shift(&mut self.unclean, before.unclean, after.unclean);
        shift(&mut self.passing, before.passing, after.passing);
    }
}
