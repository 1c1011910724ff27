//! All inodes, and what crosses them.

use super::drops::Drops;
use super::unstable::Commits;
use super::{Inode, Weight};
use crate::call::NodeId;
use crate::run::{Map, Set};
use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;
use std::collections::{BTreeMap, VecDeque};

/// All inodes of a mount.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    map: Map<Handle, Inode>,
    /// Those that the kernel knows, by its number for them.
    pub(super) nodes: Map<NodeId, Handle>,
    /// Of all of them.
    pub(super) weight: Weight,
    /// The eviction's hand: every inode that is cached once.
    pub(super) ring: VecDeque<Handle>,
    /// How often the kernel was (or is just being) told to look all names up again, less one.
    pub(super) forgettings: u64,
    /// Drops of pages under way.
    pub(super) drops: Drops,
    /// What commits have in common.
    pub(super) commits: Commits,
    /// Those that are dirty.
    pub(super) dirty: Set<Handle>,
    /// How many bytes of one file are flushed within half a term, as far as has been measured.
    pub(super) bound: Option<usize>,
    /// What the server had room for, and when it said so.
    pub(super) room: Option<ServersRoom>,
    /// Those that have clean bytes, or may get some, the one not used for longest first.
    pub(super) by_use: BTreeMap<u64, Handle>,
    /// Last number given as an epoch or use of clean bytes.
    pub(super) last_use: u64,
}

/// What the server had room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServersRoom {
    pub bytes: u64,
    pub told: BootTime,
}

impl Inodes {
    /// What is known of an object.
    pub(super) fn get(&self, object: &Handle) -> Option<&Inode> {
        self.map.get(object)
    }

    /// As [`Inodes::change`], where neither its weight changes nor whether it is idle.
    pub(super) fn get_mut(&mut self, object: &Handle) -> Option<&mut Inode> {
        self.map.get_mut(object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Handle, &Inode)> {
        self.map.iter()
    }

    /// Changes what is known of an object. If nothing of it is left, it goes.
    pub(super) fn change<R>(
        &mut self,
        object: &Handle,
        change: impl FnOnce(&mut Inode) -> R,
    ) -> Option<R> {
        let inode = self.map.get_mut(object)?;
        let result = self.weight.counted(inode, change);
        if inode.is_idle() {
            self.map.remove(object);
        }
        Some(result)
    }

    /// As [`Inodes::change`], of an object of which nothing may be known yet.
    pub(super) fn make<R>(&mut self, object: Handle, change: impl FnOnce(&mut Inode) -> R) -> R {
        let inode = self.map.entry(object).or_default();
        let result = self.weight.counted(inode, change);
        if inode.is_idle() {
            self.map.remove(&object);
        }
        result
    }
}
