//! The kernel's references to inodes, by node id.
//!
//! A node id stands for one object exactly as long as the kernel's count of references is above zero. The
//! host gives the inode number of an object that has gone to a new one, while a descriptor here may still be open
//! of the former: then the new one gets an id of its own. What is shown as `st_ino` doesn't depend on it.

use super::Inodes;
use crate::call::{Node, NodeId};
use crate::memory::Memory;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Attr, FileKind, Handle};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Names of a path that is told to people.
const MAX_DEPTH: usize = 1024;

/// How long the names of a directory are left alone after one was changed here.
const CALM: Duration = Duration::from_secs(2);

/// A name in a directory.
#[derive(Debug)]
struct Found {
    parent: NodeId,
    name: Box<[u8]>,
}

/// What the kernel knows an inode by, and what it believes of it.
#[derive(Debug)]
pub(super) struct KernelRefs {
    node: Node,
    /// References that it will give back; of the root none are counted.
    lookups: u64,
    /// A name was looked up in it since [`Inodes::take_searched`].
    searched: bool,
    /// The kernel believes that it has at least this size.
    floor: u64,
    /// When a name of it was last changed here.
    stirred: Option<BootTime>,
    /// The name under which it was found last.
    found: Option<Found>,
}

impl KernelRefs {
    fn new(node: Node, floor: u64) -> Self {
        Self {
            node,
            lookups: 0,
            searched: false,
            floor,
            stirred: None,
            found: None,
        }
    }

    fn is_found_as(&self, parent: NodeId, name: &[u8]) -> bool {
        let found = self.found.as_ref();
        found.is_some_and(|found| found.parent == parent && *found.name == *name)
    }
}

impl Inodes {
    /// Those of a mount of this directory, which the kernel never forgets.
    pub fn new(root: Handle, memory: Memory) -> Self {
        let mut inodes = Self::default();
        inodes.memory = memory;
        let node = Node {
            id: NodeId::ROOT,
            handle: root,
            kind: FileKind::Directory,
        };
        inodes.becomes_known(KernelRefs::new(node, 0));
        inodes
    }

    /// The node of `id`, if the kernel knows it.
    pub fn node(&self, id: NodeId) -> Option<Node> {
        self.refs(id).map(|refs| refs.node)
    }

    /// The node id by which the kernel knows an object.
    pub fn node_of(&self, object: &Handle) -> Option<NodeId> {
        let refs = self.get(object)?.kernel.as_ref()?;
        Some(refs.node.id)
    }

    /// Counts a reference that the kernel is about to be given along with these attributes.
    pub fn refer(&mut self, object: Handle, attr: &Attr) -> Node {
        let known = self.node_of(&object).and_then(|id| self.node(id));
        let node = known.unwrap_or_else(|| self.becomes_node(object, attr));
        if let Some(refs) = self.refs_mut(node.id) {
            refs.lookups += u64::from(node.id != NodeId::ROOT);
            refs.floor = refs.floor.min(attr.size);
        }
        node
    }

    fn becomes_node(&mut self, handle: Handle, attr: &Attr) -> Node {
        let own = NodeId(attr.ino);
        let is_free = NodeId::may_be(attr.ino) && !self.nodes.contains_key(&own);
        let node = Node {
            id: if is_free { own } else { self.spare_id() },
            handle,
            kind: attr.kind,
        };
        self.becomes_known(KernelRefs::new(node, u64::MAX));
        node
    }

    /// An id that nothing has. Counted from the other end than inode numbers.
    fn spare_id(&mut self) -> NodeId {
        loop {
            self.spare_ids += 1;
            let id = NodeId(u64::MAX - self.spare_ids);
            if !self.nodes.contains_key(&id) {
                return id;
            }
        }
    }

    /// The kernel gives back `count` references. Returns the node if that was the last.
    pub fn forget(&mut self, id: NodeId, count: u64) -> Option<Node> {
        if id == NodeId::ROOT {
            return None;
        }
        let refs = self.refs_mut(id)?;
        refs.lookups = refs.lookups.saturating_sub(count);
        if refs.lookups > 0 {
            return None;
        }
        let node = refs.node;
        self.becomes_unknown(&node);
        Some(node)
    }

    fn becomes_known(&mut self, refs: KernelRefs) {
        let Node { id, handle, .. } = refs.node;
        let before = self.nodes.insert(id, handle);
        assert!(before.is_none(), "two inodes have one node id");
        let other = self.make(handle, |inode| inode.kernel.replace(Box::new(refs)));
        assert!(other.is_none(), "an inode has two node ids");
    }

    fn becomes_unknown(&mut self, node: &Node) -> Option<Box<KernelRefs>> {
        self.nodes.remove(&node.id);
        let refs = self.change(&node.handle, |inode| inode.kernel.take());
        refs.flatten()
    }

    fn refs(&self, id: NodeId) -> Option<&KernelRefs> {
        self.get(self.nodes.get(&id)?)?.kernel.as_deref()
    }

    fn refs_mut(&mut self, id: NodeId) -> Option<&mut KernelRefs> {
        let object = *self.nodes.get(&id)?;
        self.get_mut(&object)?.kernel.as_deref_mut()
    }
}

/// What the kernel does and believes.
impl Inodes {
    /// A name that exists had to be looked up at the server.
    pub fn search(&mut self, id: NodeId) {
        if let Some(refs) = self.refs_mut(id) {
            refs.searched = true;
        }
    }

    /// As [`Inodes::take_searched`], but it stays so.
    pub fn is_searched(&self, id: NodeId) -> bool {
        self.refs(id).is_some_and(|refs| refs.searched)
    }

    /// Whether names of a directory were looked up at the server since this was asked last:
    /// whoever lists it wants to know more of its entries than their names.
    pub fn take_searched(&mut self, id: NodeId) -> bool {
        let refs = self.refs_mut(id);
        refs.is_some_and(|refs| std::mem::take(&mut refs.searched))
    }

    /// A name of a directory is being changed here.
    pub fn stir(&mut self, id: NodeId, now: BootTime) {
        if let Some(refs) = self.refs_mut(id) {
            refs.stirred = Some(now);
        }
    }

    /// Whether no name of a directory was changed here lately. Where names come and go the kernel
    /// had better not know them: it can only be made to forget all at once.
    pub fn is_calm(&self, id: NodeId, now: BootTime) -> bool {
        let calm = |at: BootTime| now.since(at) > CALM;
        self.refs(id)
            .is_some_and(|refs| refs.stirred.is_none_or(calm))
    }

    /// Whether the kernel may believe that a file is shorter than this.
    pub fn may_be_short(&self, id: NodeId, size: u64) -> bool {
        let short = |refs: &KernelRefs| refs.floor < size;
        id != NodeId::ROOT && self.refs(id).is_some_and(short)
    }

    /// The kernel is told this size, or finds the end of the file there.
    pub fn told_size(&mut self, id: NodeId, size: u64) {
        if let Some(refs) = self.refs_mut(id) {
            refs.floor = refs.floor.min(size);
        }
    }

    /// The kernel believes that the file has at least this size.
    pub fn grown(&mut self, id: NodeId, size: u64) {
        if let Some(refs) = self.refs_mut(id) {
            refs.floor = refs.floor.max(size);
        }
    }

    /// A node was found under this name.
    pub fn found(&mut self, id: NodeId, parent: NodeId, name: &[u8]) {
        if let Some(refs) = self.refs_mut(id)
            && !refs.is_found_as(parent, name)
        {
            let name = name.into();
            refs.found = Some(Found { parent, name });
        }
    }

    /// Where a node was found last, below the mount's root; for people.
    pub fn path(&self, id: NodeId) -> Option<PathBuf> {
        let (mut parts, mut at) = (Vec::new(), id);
        while at != NodeId::ROOT {
            let found = self.refs(at)?.found.as_ref()?;
            parts.push(OsStr::from_bytes(&found.name));
            // Names found at different times may form a circle.
            if parts.len() > MAX_DEPTH {
                return None;
            }
            at = found.parent;
        }
        Some(parts.iter().rev().collect())
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

    fn inodes() -> Inodes {
        Inodes::new(handle(0), Memory::default())
    }

    #[test]
    fn a_node_lives_until_its_last_reference_is_given_back() {
        let mut inodes = inodes();
        inodes.refer(handle(1), &attr(12, FileKind::File));
        let node = inodes.refer(handle(1), &attr(12, FileKind::File));
        assert_eq!(node.id, NodeId(12));
        assert_eq!(inodes.forget(NodeId(12), 1), None);
        assert_eq!(inodes.node(NodeId(12)), Some(node));
        assert_eq!(inodes.forget(NodeId(12), 1), Some(node));
        assert_eq!(inodes.node(NodeId(12)), None);
        assert_eq!(inodes.node_of(&handle(1)), None);
    }

    #[test]
    fn an_object_with_the_inode_number_of_one_that_has_gone_gets_an_id_of_its_own() {
        let mut inodes = inodes();
        let old = inodes.refer(handle(1), &attr(12, FileKind::File));
        let new = inodes.refer(handle(2), &attr(12, FileKind::Directory));
        assert_ne!(new.id, old.id);
        assert_eq!(inodes.node(old.id), Some(old));
        assert_eq!(inodes.forget(old.id, 1), Some(old));
        assert_eq!(inodes.refer(handle(2), &attr(12, FileKind::Directory)), new);
        assert_eq!(inodes.forget(new.id, 2), Some(new));
        let newest = inodes.refer(handle(3), &attr(12, FileKind::File));
        assert_eq!(newest.id, NodeId(12));
        inodes.check();
    }

    #[test]
    fn the_root_is_node_one_and_is_never_forgotten() {
        let mut inodes = inodes();
        assert_eq!(inodes.node_of(&handle(0)), Some(NodeId::ROOT));
        assert_eq!(inodes.forget(NodeId::ROOT, 9), None);
        assert!(inodes.node(NodeId::ROOT).is_some());
    }

    #[test]
    fn a_directory_is_searched_until_that_was_asked() {
        let mut inodes = inodes();
        inodes.refer(handle(1), &attr(12, FileKind::Directory));
        for id in [NodeId::ROOT, NodeId(12)] {
            assert!(!inodes.take_searched(id));
            inodes.search(id);
            assert!(inodes.is_searched(id) && inodes.take_searched(id));
            assert!(!inodes.take_searched(id));
        }
    }

    #[test]
    fn a_file_may_be_short_to_the_kernel_once_it_was_told_less() {
        let mut inodes = inodes();
        let id = inodes.refer(handle(1), &attr(12, FileKind::File)).id;
        assert!(!inodes.may_be_short(id, 5) && inodes.may_be_short(id, 6));
        inodes.grown(id, 6);
        assert!(!inodes.may_be_short(id, 6));
        inodes.told_size(id, 2);
        assert!(inodes.may_be_short(id, 6));
    }

    #[test]
    fn a_directory_is_calm_again_a_while_after_its_last_change() {
        let mut inodes = inodes();
        inodes.refer(handle(1), &attr(12, FileKind::Directory));
        let now = BootTime::ZERO;
        for id in [NodeId::ROOT, NodeId(12)] {
            assert!(inodes.is_calm(id, now));
            inodes.stir(id, now);
            assert!(!inodes.is_calm(id, now + CALM));
            assert!(inodes.is_calm(id, now + CALM + CALM));
        }
    }

    #[test]
    fn an_object_keeps_its_node_id_whatever_inode_number_it_is_said_to_have() {
        let mut inodes = inodes();
        let node = inodes.refer(handle(1), &attr(12, FileKind::File));
        inodes.refer(handle(2), &attr(13, FileKind::File));
        assert_eq!(inodes.refer(handle(1), &attr(13, FileKind::File)), node);
        assert_eq!(inodes.node_of(&handle(2)), Some(NodeId(13)));
        assert_eq!(inodes.forget(NodeId(12), 2), Some(node));
        inodes.check();
    }

    #[test]
    fn inode_numbers_that_fuse_reserves_get_ids_of_their_own() {
        let mut inodes = inodes();
        let one = inodes.refer(handle(1), &attr(1, FileKind::File)).id;
        let zero = inodes.refer(handle(2), &attr(0, FileKind::File)).id;
        assert!(one != NodeId::ROOT && zero != NodeId(0) && one != zero);
    }
}
