//! All inodes, and what crosses them.

use super::drops::Drops;
use super::epochs::Epochs;
use super::standing::{Found, There};
use super::unstable::Commits;
use super::{Content, Inode, Weight};
use crate::call::NodeId;
use crate::memory::{Memory, MemoryUse};
use crate::run::{Map, Set};
use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;
use std::borrow::Borrow;
#[cfg(test)]
use std::collections::HashSet;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// All inodes of a mount.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    /// Other tables that many are in share their handles.
    map: Map<Arc<Handle>, Inode>,
    /// Those that the kernel knows, by its number for them.
    pub(super) nodes: Map<NodeId, Arc<Handle>>,
    /// How many node ids that are no inode numbers were given out.
    pub(super) own_ids: u64,
    /// What the kernel may have where it was told of a directory.
    pub(super) standing: Map<Found, There>,
    /// Of all of them, and what it may be.
    pub(super) weight: Weight,
    pub(super) memory: Memory,
    /// The eviction's hand: every inode that is cached once.
    pub(super) ring: VecDeque<Arc<Handle>>,
    /// Which names the kernel may know of those that it was told.
    pub(super) epochs: Epochs,
    /// Objects whose attributes were dropped before the kernel had taken them up.
    pub(super) owed_attrs: Set<Handle>,
    /// Drops of pages under way.
    pub(super) drops: Drops,
    /// What commits have in common.
    pub(super) commits: Commits,
    /// Those that are dirty.
    pub(super) dirty: Set<Handle>,
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
    /// How much memory they may use.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// How much they use.
    pub fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            limit: self.memory.bytes(),
            cached: self.weight.cached,
            clean: self.weight.clean,
            dirty: self.weight.dirty_memory,
            unstable: self.weight.kept,
        }
    }

    /// What is known of an object.
    pub(super) fn get(&self, object: &Handle) -> Option<&Inode> {
        self.map.get(object)
    }

    /// As [`Inodes::change`], where neither its weight changes nor whether it is idle.
    pub(super) fn get_mut(&mut self, object: &Handle) -> Option<&mut Inode> {
        self.map.get_mut(object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Handle>, &Inode)> {
        self.map.iter()
    }

    /// A handle as others have it, if it is that of an inode.
    pub(super) fn shared(&self, object: &Handle) -> Arc<Handle> {
        let known = self.map.get_key_value(object);
        known.map_or_else(|| Arc::new(*object), |(object, _)| Arc::clone(object))
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
    pub(super) fn make<R>(
        &mut self,
        object: impl Into<Arc<Handle>> + Borrow<Handle>,
        change: impl FnOnce(&mut Inode) -> R,
    ) -> R {
        if let Some(inode) = self.map.get_mut(object.borrow()) {
            let result = self.weight.counted(inode, change);
            if inode.is_idle() {
                self.map.remove(object.borrow());
            }
            return result;
        }
        let mut inode = Inode::default();
        let result = self.weight.counted(&mut inode, change);
        if !inode.is_idle() {
            self.map.insert(object.into(), inode);
        }
        result
    }
}

/// Of an object's bytes.
impl Inodes {
    pub(super) fn content(&self, object: &Handle) -> Option<&Content> {
        self.get(object)?.content.as_deref()
    }

    pub(super) fn contents(&self) -> impl Iterator<Item = (&Arc<Handle>, &Content)> {
        let inodes = self.iter();
        inodes.filter_map(|(object, inode)| Some((object, inode.content.as_deref()?)))
    }

    /// As [`Inodes::get_mut`].
    pub(super) fn content_mut(&mut self, object: &Handle) -> Option<&mut Content> {
        self.get_mut(object)?.content.as_deref_mut()
    }

    /// As [`Inodes::change`].
    pub(super) fn change_content<R>(
        &mut self,
        object: &Handle,
        change: impl FnOnce(&mut Content) -> R,
    ) -> Option<R> {
        self.change(object, |inode| {
            let result = change(inode.content.as_mut()?);
            inode.content.take_if(|content| content.is_idle());
            Some(result)
        })?
    }

    /// As [`Inodes::make`].
    pub(super) fn make_content<R>(
        &mut self,
        object: Handle,
        change: impl FnOnce(&mut Content) -> R,
    ) -> R {
        self.make(object, |inode| {
            let result = change(inode.content.get_or_insert_default());
            inode.content.take_if(|content| content.is_idle());
            result
        })
    }
}

#[cfg(test)]
impl Inodes {
    /// Fails unless what stands beside the inodes says what they are.
    pub fn check(&self) {
        let mut weight = Weight::default();
        for inode in self.map.values() {
            assert!(!inode.is_idle(), "an idle inode is kept");
            assert!(!with(inode, Content::is_idle), "an idle content is kept");
            weight.shift(Weight::default(), inode.weight());
        }
        assert_eq!(weight, self.weight);
        let those = |has: fn(&Inode) -> bool| -> HashSet<Handle> {
            let those = self.map.iter().filter(|(_, inode)| has(inode));
            those.map(|(object, _)| **object).collect()
        };
        let ring: HashSet<Handle> = self.ring.iter().map(|object| **object).collect();
        assert_eq!(ring.len(), self.ring.len(), "an inode is in the ring twice");
        assert_eq!(ring, those(|inode| inode.cached.is_some()));
        let by_use: HashSet<Handle> = self.by_use.values().copied().collect();
        assert_eq!(by_use.len(), self.by_use.len());
        assert_eq!(
            by_use,
            those(|inode| with(inode, |content| content.clean.is_some()))
        );
        let dirty: HashSet<Handle> = self.dirty.iter().copied().collect();
        assert_eq!(
            dirty,
            those(|inode| with(inode, |content| content.dirty.is_some()))
        );
        let nodes: HashSet<Handle> = self.nodes.values().map(|object| **object).collect();
        assert_eq!(nodes, those(|inode| inode.kernel.is_some()));
        for (id, object) in &self.nodes {
            assert!(self.nodes_of(object).contains(id));
        }
        let there = self.standing.values().flat_map(|there| &there.directories);
        for id in there {
            assert!(self.nodes.contains_key(id), "a forgotten node stands");
        }
    }
}

#[cfg(test)]
fn with(inode: &Inode, has: impl Fn(&Content) -> bool) -> bool {
    inode.content.as_deref().is_some_and(has)
}
