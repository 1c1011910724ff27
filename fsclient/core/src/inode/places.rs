//! Where directories stand in the kernel.
//!
//! To Linux a directory has one place. If a LOOKUP leads to one that it has in another directory it moves it over
//! (`d_splice_alias`), for which it needs the lock of renames and that of the other directory at once; within a
//! rename, or beside one, it can't have them and tells the caller ESTALE, after one more try. So a directory
//! that is found in another directory than before, which another mount has moved, is shown as a further
//! node, with the same `st_ino`: the kernel has nothing to move, and whoever is in the old one goes
//! on there. Within one directory the kernel moves it without a lock.

use super::Inodes;
use crate::call::NodeId;
use leasefs_protocol::FileKind;

/// A name in a directory, as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub parent: NodeId,
    pub name: &'a [u8],
}

/// Where a node was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub parent: NodeId,
    pub name: Box<[u8]>,
}

impl Found {
    fn is_at(&self, at: Place<'_>) -> bool {
        self.parent == at.parent && *self.name == *at.name
    }
}

impl From<Place<'_>> for Found {
    fn from(Place { parent, name }: Place<'_>) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }
}

/// One id by which the kernel knows an inode.
#[derive(Debug)]
pub(super) struct KnownAs {
    pub id: NodeId,
    /// References that it will give back; of the root none are counted.
    pub lookups: u64,
    /// The name under which it was found last.
    pub found: Option<Found>,
}

/// The id by which an inode may be shown at a place, if it is one of those by which the kernel knows it.
pub(super) fn id_at(kind: FileKind, known: &[KnownAs], at: Place<'_>) -> Option<NodeId> {
    let is_directory = kind == FileKind::Directory;
    let mut near = None;
    for known in known {
        match &known.found {
            Some(found) if is_directory => {
                if found.is_at(at) {
                    return Some(known.id);
                }
                near = near.or((found.parent == at.parent).then_some(known.id));
            }
            // The root, and what may have many names.
            _ => return Some(known.id),
        }
    }
    near
}

impl Inodes {
    /// The kernel is about to find a node at a place.
    pub(super) fn stands(&mut self, id: NodeId, at: Place<'_>) {
        let Some(known) = self.known_mut(id) else {
            return;
        };
        if id == NodeId::ROOT || known.found.as_ref().is_some_and(|found| found.is_at(at)) {
            return;
        }
        let before = known.found.replace(at.into());
        if self
            .node(id)
            .is_some_and(|node| node.kind == FileKind::Directory)
        {
            before
                .into_iter()
                .for_each(|before| self.leaves(id, before));
            self.standing.insert((at.parent, at.name.into()), id);
        }
    }

    /// The kernel has forgotten a node.
    pub(super) fn stands_nowhere(&mut self, id: NodeId) {
        let found = self.known_mut(id).and_then(|known| known.found.take());
        if let Some(found) = found {
            self.leaves(id, found);
        }
    }

    /// A rename of this mount has succeeded: the kernel moves what it has there when it is told.
    pub fn moved(&mut self, from: Place<'_>, to: Place<'_>, exchanged: bool) {
        let at = |place: Place<'_>| (place.parent, Box::from(place.name));
        let (moves, back) = (
            self.standing.remove(&at(from)),
            self.standing.remove(&at(to)),
        );
        if let Some(id) = moves {
            self.stands(id, to);
        }
        if let (Some(id), true) = (back, exchanged) {
            self.stands(id, from);
        }
    }

    fn leaves(&mut self, id: NodeId, found: Found) {
        let place = (found.parent, found.name);
        // Another one may have been found there since.
        if self.standing.get(&place) == Some(&id) {
            self.standing.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Node;
    use leasefs_protocol::{Attr, Handle, Timestamp};

    fn handle(number: u8) -> Handle {
        Handle::new(&[number]).expect("short")
    }

    fn directory(inodes: &mut Inodes, number: u8, at: Place<'_>) -> Node {
        let attr = Attr {
            ino: u64::from(number),
            kind: FileKind::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        };
        inodes.refer(handle(number), &attr, at)
    }

    fn at(parent: u64, name: &[u8]) -> Place<'_> {
        let parent = NodeId(parent);
        Place { parent, name }
    }

    #[test]
    fn a_directory_that_another_mount_has_moved_to_another_one_is_a_further_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let old = directory(&mut inodes, 9, at(2, b"a"));
        let new = directory(&mut inodes, 9, at(3, b"a"));
        assert_ne!(old.id, new.id);
        assert_eq!(inodes.nodes_of(&handle(9)), [old.id, new.id]);
        // Both are it, each where it was found.
        assert_eq!(directory(&mut inodes, 9, at(2, b"a")), old);
        assert_eq!(directory(&mut inodes, 9, at(3, b"a")), new);
        assert_eq!(inodes.forget(old.id, 2), None);
        assert_eq!(inodes.node_of(&handle(9)), Some(new.id));
        inodes.check();
        assert_eq!(inodes.forget(new.id, 2), Some(new));
        inodes.check();
    }

    #[test]
    fn a_directory_that_moves_within_its_directory_stays_the_same_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let node = directory(&mut inodes, 9, at(2, b"a"));
        assert_eq!(directory(&mut inodes, 9, at(2, b"b")), node);
        inodes.check();
    }

    #[test]
    fn a_directory_that_this_mount_moves_stays_the_same_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let node = directory(&mut inodes, 9, at(2, b"a"));
        inodes.moved(at(2, b"a"), at(3, b"b"), false);
        assert_eq!(directory(&mut inodes, 9, at(3, b"b")), node);
        let other = directory(&mut inodes, 8, at(4, b"c"));
        inodes.moved(at(4, b"c"), at(3, b"b"), true);
        assert_eq!(directory(&mut inodes, 9, at(4, b"c")), node);
        assert_eq!(directory(&mut inodes, 8, at(3, b"b")), other);
        inodes.check();
    }
}
