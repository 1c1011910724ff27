//! FUSE node ids: the object's inode number on the storage host, the root being 1.
//!
//! So `st_ino` stays what it was when the kernel forgets an inode and finds it again. The
//! kernel counts its references to a node; a node lives here exactly as long as that count
//! is above zero.

use crate::call::{Node, NodeId};
use crate::run::{Map, Part};
use atomic_refcell::AtomicRefMut;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Attr, FileKind, Handle};
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Names of a path that is told to people.
const MAX_DEPTH: usize = 1024;

#[derive(Debug)]
struct Known {
    node: Node,
    lookups: u64,
    /// A name was looked up in it since [`Nodes::take_searched`].
    searched: bool,
    /// The kernel believes that it has at least this size.
    floor: u64,
    /// When a name of it was last changed here.
    stirred: Option<BootTime>,
    /// The name under which it was found last.
    called: Option<(NodeId, Box<[u8]>)>,
}

/// How long the names of a directory are left alone after one was changed here.
const CALM: Duration = Duration::from_secs(2);

fn is_calm(stirred: Option<BootTime>, now: BootTime) -> bool {
    stirred.is_none_or(|at| now.since(at) > CALM)
}

#[derive(Debug, Default)]
struct Tables {
    root_searched: bool,
    root_stirred: Option<BootTime>,
    by_id: Map<NodeId, Known>,
    by_handle: Map<Handle, NodeId>,
}

impl Tables {
    fn refer(&mut self, handle: Handle, attr: &Attr) -> Node {
        let (id, kind) = (NodeId::of(attr.ino), attr.kind);
        let known = match self.by_id.entry(id) {
            Entry::Vacant(vacant) => vacant.insert(Known {
                node: Node {
                    id,
                    handle,
                    kind,
                    generation: 0,
                },
                lookups: 0,
                searched: false,
                floor: attr.size,
                stirred: None,
                called: None,
            }),
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if known.node.handle != handle {
            // The host has given the inode number to a new object. What the kernel still
            // counts for the old one comes back as forgets of the same id.
            self.by_handle.remove(&known.node.handle);
            known.node = Node {
                id,
                handle,
                kind,
                generation: known.node.generation + 1,
            };
        }
        known.lookups += 1;
        known.floor = known.floor.min(attr.size);
        let node = known.node;
        self.by_handle.insert(handle, id);
        node
    }
}

/// All nodes the kernel knows.
#[derive(Debug)]
pub struct Nodes {
    root: Node,
    tables: Part<Tables>,
}

impl Nodes {
    /// A table that knows the root alone; the root is never forgotten.
    pub fn new(root: Handle) -> Self {
        let root = Node {
            id: NodeId::ROOT,
            handle: root,
            kind: FileKind::Directory,
            generation: 0,
        };
        Self {
            root,
            tables: Part::default(),
        }
    }

    /// The node of `id`, if the kernel knows it.
    pub fn get(&self, id: NodeId) -> Option<Node> {
        if id == NodeId::ROOT {
            return Some(self.root);
        }
        self.tables().by_id.get(&id).map(|known| known.node)
    }

    /// A name that exists had to be looked up at the server.
    pub fn search(&self, id: NodeId) {
        if id == NodeId::ROOT {
            self.tables().root_searched = true;
        } else if let Some(known) = self.tables().by_id.get_mut(&id) {
            known.searched = true;
        }
    }

    /// As [`Nodes::take_searched`], but it stays so.
    pub fn is_searched(&self, id: NodeId) -> bool {
        if id == NodeId::ROOT {
            return self.tables().root_searched;
        }
        let tables = self.tables();
        tables.by_id.get(&id).is_some_and(|known| known.searched)
    }

    /// Whether names of a directory were looked up at the server since this was asked last:
    /// whoever lists it wants to know more of its entries than their names.
    pub fn take_searched(&self, id: NodeId) -> bool {
        if id == NodeId::ROOT {
            return std::mem::take(&mut self.tables().root_searched);
        }
        let mut tables = self.tables();
        let known = tables.by_id.get_mut(&id);
        known.is_some_and(|known| std::mem::take(&mut known.searched))
    }

    /// The node id by which the kernel knows an object.
    pub fn id_of(&self, handle: &Handle) -> Option<NodeId> {
        if *handle == self.root.handle {
            return Some(NodeId::ROOT);
        }
        self.tables().by_handle.get(handle).copied()
    }

    /// Counts a reference that the kernel is about to be given along with these attributes, of an
    /// object that exists.
    pub fn refer(&self, handle: Handle, attr: &Attr) -> Node {
        if handle == self.root.handle {
            return self.root;
        }
        self.tables().refer(handle, attr)
    }

    /// As [`Nodes::refer`], of an object that may have gone since the server was asked.
    ///
    /// # Errors
    /// Another object that is known by its inode number, unless it was known to be (`over`) when the
    /// server was asked: either of them may be the newer one.
    pub fn refer_over(
        &self,
        handle: Handle,
        attr: &Attr,
        over: Option<Handle>,
    ) -> Result<Node, Handle> {
        if handle == self.root.handle {
            return Ok(self.root);
        }
        let mut tables = self.tables();
        let known = tables.by_id.get(&NodeId::of(attr.ino));
        match known.map(|known| known.node.handle) {
            Some(other) if other != handle && Some(other) != over => Err(other),
            _ => Ok(tables.refer(handle, attr)),
        }
    }

    /// A name of a directory is being changed here.
    pub fn stir(&self, id: NodeId, now: BootTime) {
        if id == NodeId::ROOT {
            self.tables().root_stirred = Some(now);
        } else if let Some(known) = self.tables().by_id.get_mut(&id) {
            known.stirred = Some(now);
        }
    }

    /// Whether no name of a directory was changed here lately. Where names come and go the kernel
    /// had better not know them: it can only be made to forget all at once.
    pub fn is_calm(&self, id: NodeId, now: BootTime) -> bool {
        if id == NodeId::ROOT {
            return is_calm(self.tables().root_stirred, now);
        }
        let tables = self.tables();
        tables
            .by_id
            .get(&id)
            .is_some_and(|known| is_calm(known.stirred, now))
    }

    /// Whether the kernel may believe that a file is shorter than this.
    pub fn may_be_short(&self, id: NodeId, size: u64) -> bool {
        self.tables()
            .by_id
            .get(&id)
            .is_some_and(|known| known.floor < size)
    }

    /// The kernel is told this size, or finds the end of the file there.
    pub fn told_size(&self, id: NodeId, size: u64) {
        if let Some(known) = self.tables().by_id.get_mut(&id) {
            known.floor = known.floor.min(size);
        }
    }

    /// The kernel believes that the file has at least this size.
    pub fn grown(&self, id: NodeId, size: u64) {
        if let Some(known) = self.tables().by_id.get_mut(&id) {
            known.floor = known.floor.max(size);
        }
    }

    /// A node was found under this name.
    pub fn called(&self, id: NodeId, parent: NodeId, name: &[u8]) {
        if let Some(known) = self.tables().by_id.get_mut(&id) {
            let same = |(at, called): &(NodeId, Box<[u8]>)| *at == parent && **called == *name;
            if !known.called.as_ref().is_some_and(same) {
                known.called = Some((parent, name.into()));
            }
        }
    }

    /// Where a node was found last, below the mount's root; for people.
    pub fn path(&self, id: NodeId) -> Option<PathBuf> {
        let tables = self.tables();
        let (mut parts, mut at) = (Vec::new(), id);
        while at != NodeId::ROOT {
            let (parent, name) = tables.by_id.get(&at)?.called.as_ref()?;
            parts.push(OsStr::from_bytes(name));
            // Names found at different times may form a circle.
            if parts.len() > MAX_DEPTH {
                return None;
            }
            at = *parent;
        }
        Some(parts.iter().rev().collect())
    }

    /// The kernel gives back `count` references. Returns the node if that was the last.
    pub fn forget(&self, id: NodeId, count: u64) -> Option<Node> {
        let mut tables = self.tables();
        let Entry::Occupied(mut known) = tables.by_id.entry(id) else {
            return None;
        };
        let left = known.get().lookups.saturating_sub(count);
        known.get_mut().lookups = left;
        if left > 0 {
            return None;
        }
        let node = known.remove().node;
        tables.by_handle.remove(&node.handle);
        Some(node)
    }

    fn tables(&self) -> AtomicRefMut<'_, Tables> {
        self.tables.borrow_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::Timestamp;

    fn handle(byte: u8) -> Handle {
        Handle::new(&[byte]).expect("one byte")
    }

    fn attr(ino: u64, kind: FileKind) -> Attr {
        Attr {
            ino,
            kind,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: 5,
            blocks: 8,
            blksize: 4096,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        }
    }

    fn nodes() -> Nodes {
        Nodes::new(handle(0))
    }

    #[test]
    fn a_node_lives_until_its_last_reference_is_given_back() {
        let nodes = nodes();
        nodes.refer(handle(1), &attr(12, FileKind::File));
        let node = nodes.refer(handle(1), &attr(12, FileKind::File));
        assert_eq!(node.id, NodeId(12));
        assert_eq!(nodes.forget(NodeId(12), 1), None);
        assert_eq!(nodes.get(NodeId(12)), Some(node));
        assert_eq!(nodes.forget(NodeId(12), 1), Some(node));
        assert_eq!(nodes.get(NodeId(12)), None);
        assert_eq!(nodes.id_of(&handle(1)), None);
    }

    #[test]
    fn a_reused_inode_number_gets_a_new_generation_and_keeps_the_count() {
        let nodes = nodes();
        nodes.refer(handle(1), &attr(12, FileKind::File));
        let new = nodes.refer(handle(2), &attr(12, FileKind::Directory));
        assert_eq!((new.generation, new.handle), (1, handle(2)));
        assert_eq!(nodes.id_of(&handle(1)), None);
        assert_eq!(nodes.forget(NodeId(12), 1), None);
        assert_eq!(nodes.forget(NodeId(12), 1), Some(new));
    }

    #[test]
    fn the_root_is_node_one_and_is_never_forgotten() {
        let nodes = nodes();
        assert_eq!(nodes.id_of(&handle(0)), Some(NodeId::ROOT));
        assert_eq!(nodes.forget(NodeId::ROOT, 9), None);
        assert!(nodes.get(NodeId::ROOT).is_some());
    }

    #[test]
    fn a_directory_is_searched_until_that_was_asked() {
        let nodes = nodes();
        nodes.refer(handle(1), &attr(12, FileKind::Directory));
        for id in [NodeId::ROOT, NodeId(12)] {
            assert!(!nodes.take_searched(id));
            nodes.search(id);
            assert!(nodes.is_searched(id) && nodes.take_searched(id));
            assert!(!nodes.take_searched(id));
        }
    }

    #[test]
    fn an_older_object_does_not_take_the_inode_number_of_a_newer_one() {
        let nodes = nodes();
        let file = attr(12, FileKind::File);
        let new = nodes.refer(handle(2), &file);
        assert_eq!(nodes.refer_over(handle(1), &file, None), Err(handle(2)));
        assert_eq!(nodes.get(NodeId(12)), Some(new));
        // Asked for after that: the newer one has gone meanwhile.
        let newest = nodes.refer_over(handle(3), &file, Some(handle(2)));
        assert_eq!(newest.map(|node| node.handle), Ok(handle(3)));
    }

    #[test]
    fn a_file_may_be_short_to_the_kernel_once_it_was_told_less() {
        let nodes = nodes();
        let id = nodes.refer(handle(1), &attr(12, FileKind::File)).id;
        assert!(!nodes.may_be_short(id, 5) && nodes.may_be_short(id, 6));
        nodes.grown(id, 6);
        assert!(!nodes.may_be_short(id, 6));
        nodes.told_size(id, 2);
        assert!(nodes.may_be_short(id, 6));
    }

    #[test]
    fn a_directory_is_calm_again_a_while_after_its_last_change() {
        let nodes = nodes();
        nodes.refer(handle(1), &attr(12, FileKind::Directory));
        let now = BootTime::ZERO;
        for id in [NodeId::ROOT, NodeId(12)] {
            assert!(nodes.is_calm(id, now));
            nodes.stir(id, now);
            assert!(!nodes.is_calm(id, now + CALM));
            assert!(nodes.is_calm(id, now + CALM + CALM));
        }
    }

    #[test]
    fn inode_numbers_that_fuse_reserves_get_ids_of_their_own() {
        let nodes = nodes();
        let one = nodes.refer(handle(1), &attr(1, FileKind::File)).id;
        let zero = nodes.refer(handle(2), &attr(0, FileKind::File)).id;
        assert!(one != NodeId::ROOT && zero != NodeId(0) && one != zero);
    }
}
